"""Cross-checks the tools: every figure that two of them report of one program, and why they differ where they do.

Definitions: docs/definitions.md, section 9.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Unpack

import polars as pl

from kanalyze import errors, schema
from kanalyze.analyses.device._operations import SHAPE, SHAPE_COLUMNS
from kanalyze.analyses.joining import _reasons
from kanalyze.analyses.joining._report_set import Together, of_each, several, together
from kanalyze.analyses.operators._kernel_groups import (
    GROUP_KEYS,
    grouped_kernels,
    kernel_groups,
    kernels_in,
    same_kernels,
    same_launches,
)
from kanalyze.analyses.shared.analysis import require
from kanalyze.report import Report, Where

#: The possible results of a comparison.
VERDICTS: Final = ("equal", "explained", "unexplained")

#: The figures that are compared per kernel, with their units; those of sampled counters are in a module of their own.
_FIGURES: Final = {"launches": "", "registers": "", "shared memory": "bytes", "duration": "ns"}

TABLE: Final = schema.Table(
    "agreement",
    "One figure that two tools tell of one program.",
    (
        schema.Column(
            "figure", pl.String, f"What it is: {', '.join((*_FIGURES, *_reasons.FIGURES))}, copies, bytes copied."
        ),
        schema.Column("name", pl.String, "The kernel, copy or memset.", nullable=True),
        *SHAPE_COLUMNS,
        *schema.columns(f"""
            first_tool text: One of the tools.
            first float?: What it tells, of durations the mean, or of the launches that ncu measured; null: it did not
                see this.
            second_tool text: The other.
            second float?: What that tells.
            difference float?: The second less the first.
            unit text: Of all three; empty for counts.
            verdict text: {", ".join(VERDICTS)}.
            reason text?: What explains the difference: {", ".join(_reasons.REASONS)}.
            why text?: What in the reports shows that.
        """),
    ),
    purpose="figures on which two tools agree or do not",
    telling=("figure", "first_tool", "first", "second_tool", "second", "verdict", "reason"),
    together=True,
)

SEVERAL: Final = several(TABLE)


def agreement(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """Compares every figure that two of the reports have; unexplained differences first: :data:`TABLE`.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Raises:
        CannotTellError: There is only one report, or none has a time or kernels.
    """
    report_sets = together(TABLE, reports, where)
    if all(len(report_set.reports) == 1 for report_set in report_sets):
        raise errors.CannotTellError.without_second(TABLE.name, report_sets[0].base.meta.path)
    return of_each(TABLE, [report_set for report_set in report_sets if len(report_set.reports) > 1], _agreement_of)


def _agreement_of(report_set: Together) -> pl.DataFrame:
    """:func:`agreement` for one report that provides the time, and the others."""
    require(report_set.base, TABLE, "kernel")
    rows, whole = _compared(report_set), report_set.base.whole
    if whole is not report_set.base:
        rows = _with_whole_base(rows, _compared(replace(report_set, base=whole)))
    order = pl.col("verdict").replace_strict(VERDICTS, range(len(VERDICTS)), return_dtype=pl.Int64)
    frame = rows.with_columns(difference=pl.col("second") - pl.col("first"))
    keys = ["figure", "name", *SHAPE, "second_tool", "right"]
    return TABLE.select(frame.sort(order, *keys, descending=[True, *(False for _ in keys)]))


def _compared(report_set: Together) -> pl.DataFrame:
    """Every figure with its verdict; `right` is the number of the kernel group in the second report."""
    base, ncu, parts = report_set.base, report_set.ncu, []
    if (other := report_set.torch) is not None:
        for report in (base, other):
            require(report, "copies", "memcpy", "memset")
        steps = _reasons.shared_steps(base, other)
        each = zip((base, other), (None, None) if steps is None else steps, strict=True)
        counts = [_reasons.counted(report, _reasons.tuned(base), own) for report, own in each]
        explain = _reasons.of_recordings(base, other, steps)
        rows = [_copied(*counts), _kernels(base, other, *counts)]
        parts.append(_judged(pl.concat(rows, how="diagonal_relaxed"), explain, base, other))
    if ncu is not None:
        parts.append(_judged(_kernels(base, ncu), _reasons.under_ncu(base, ncu), base, ncu))
        with suppress(errors.DamagedReportError):  # which is noted
            # sampled counters of the GPU, of the base or beside it in its capture, with those that ncu counted
            reports = (report for report in (base, base.whole.sampled()) if report is not None)
            sampled = [report for report in reports if report.table("gpu_metrics").height]
            rows = [_reasons.sampled_rows(report, ncu) for report in sampled[:1]]
            parts += [_judged(one, _reasons.why_apart, base, ncu) for one in rows]
    return pl.concat(parts, how="diagonal_relaxed")


def _with_whole_base(rows: pl.DataFrame, whole: pl.DataFrame) -> pl.DataFrame:
    """Marks as explained the `rows` of a part of the base that agree with the others if the `whole` base is taken."""
    without_group = pl.concat_str("name", *SHAPE, separator=" ", ignore_nulls=True)  # copies, too
    told_by = pl.when(pl.col("right").is_null()).then(without_group)
    keys = ["figure", "second_tool", "right", "told_by"]
    agrees, reason = (pl.col("verdict") != "unexplained").all(), pl.col("reason").first().fill_null("equal")
    agreed = whole.with_columns(told_by=told_by).group_by(keys).agg(agreed=agrees, why_whole=reason)
    rows = rows.with_columns(told_by=told_by).join(agreed, on=keys, how="left", nulls_equal=True, maintain_order="left")
    by_window = (pl.col("verdict") == "unexplained") & pl.col("agreed").fill_null(value=False)
    values = {
        "verdict": pl.lit("explained"),
        "reason": pl.lit("window"),
        "why": pl.col("why_whole") + " in the whole report",
    }
    return rows.with_columns(pl.when(by_window).then(to).otherwise(name).alias(name) for name, to in values.items())


def _kernels(base: Report, other: Report, *counts: pl.DataFrame) -> pl.DataFrame:
    """Compares kernels, explained by `counts` of both reports unless ncu measured them."""
    groups = (kernel_groups(report).rename({"shared": "shared memory"}) for report in (base, other))
    sides = (_reasons.with_spread(one.with_columns(launches="count"), (base, other)) for one in groups)
    figures = pl.col(*_FIGURES).cast(pl.Float64)
    ours, theirs = (side.select("group", *GROUP_KEYS, "low", "high", figures) for side in sides)
    if counts:
        explaining = [one.select("group", *_reasons.TRIALS, *_reasons.NOTHING).drop_nulls("group") for one in counts]
        ours, theirs = (side.join(one, on="group") for side, one in zip((ours, theirs), explaining, strict=True))
    pairs = same_kernels(base, other)
    both = pairs.join(ours, left_on="left", right_on="group")
    both = both.join(theirs, left_on="right", right_on="group", suffix="_other")
    if other.meta.timeless:
        both = _of_launches(both, base, other)
    rows = []
    for figure, unit in _FIGURES.items():
        known = both.with_columns(first=figure, second=f"{figure}_other").drop_nulls(["first", "second"])
        rows.append(known.with_columns(figure=pl.lit(figure), unit=pl.lit(unit)))
    other_shape = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_other")) for name in SHAPE)
    elsewhere = both.filter(other_shape)  # the first has that name in other shapes only
    as_there = [pl.col(f"{name}_other").alias(name) for name in ("launches", *SHAPE)]
    rows.append(_of_one_tool(elsewhere.with_columns(as_there), "second"))
    single = theirs.join(pairs, left_on="group", right_on="right", how="anti")
    renamed = {name: f"{name}_other" for name in (*_reasons.TRIALS, *_reasons.NOTHING) if name in single.columns}
    rows.append(_of_one_tool(single.rename({"group": "right"} | renamed), "second"))
    if not other.meta.timeless:  # ncu is told which kernels to measure
        rows.append(_of_one_tool(ours.join(pairs, left_on="group", right_on="left", how="anti"), "first"))
    return pl.concat(rows, how="diagonal_relaxed")


def _of_launches(both: pl.DataFrame, base: Report, ncu: Report) -> pl.DataFrame:
    """Adds how ncu disturbed each kernel of `both`, and the time of exactly the launches that it measured, if known."""
    measured = same_launches(base, ncu).drop_nulls()
    times = kernels_in(base).select(left="event_id", own="dur_ns")
    own = grouped_kernels(ncu).select(of="group", right="event_id").join(measured, on="right").join(times, on="left")
    exact = own.group_by(right="of").agg(own=pl.col("own").mean(), known=pl.len())
    known = (pl.col("match") == "exact") & (pl.col("known") == pl.col("launches_other"))
    compared = both.join(exact, on="right", how="left")
    compared = compared.with_columns(duration=pl.when(known).then("own").otherwise("duration"))
    compared = compared.join(_reasons.measuring(ncu), left_on="right", right_on="group", how="left")
    return compared.join(_reasons.disturbed(base), left_on="left", right_on="group", how="left")


def _of_one_tool(groups: pl.DataFrame, side: str) -> pl.DataFrame:
    """The rows for groups that only one of the tools has."""
    return groups.with_columns(figure=pl.lit("launches"), unit=pl.lit(""), **{side: pl.col("launches")})


def _judged(
    rows: pl.DataFrame, explain: Callable[[_reasons.Row], _reasons.Explained | None], base: Report, other: Report
) -> pl.DataFrame:
    """Adds the tools, the verdict, and of rows that differ the reason and why, as `explain` tells."""
    reasons = [None if row["first"] == row["second"] else explain(row) for row in rows.iter_rows(named=True)]
    pairs, texts = [reason or (None, None) for reason in reasons], dict.fromkeys(("reason", "why"), pl.String)
    equal = (pl.col("first") == pl.col("second")).fill_null(value=False)
    differs = pl.when(pl.col("reason").is_not_null()).then(pl.lit("explained")).otherwise(pl.lit("unexplained"))
    return rows.hstack(pl.DataFrame(pairs, texts, orient="row")).with_columns(
        first_tool=pl.lit(base.meta.tool),
        second_tool=pl.lit(other.meta.tool),
        verdict=pl.when(equal).then(pl.lit("equal")).otherwise(differs),
    )


def _copied(ours: pl.DataFrame, theirs: pl.DataFrame) -> pl.DataFrame:
    """Compares copies and memsets by counts of both reports: their number, and their bytes."""
    sides = [counts.filter(pl.col("group").is_null()).drop("group") for counts in (ours, theirs)]
    keys = ["figure", "unit", "name"]
    both = sides[0].join(sides[1], on=keys, how="full", coalesce=True, nulls_equal=True, suffix="_other")
    amounts = {"first": "amount", "second": "amount_other"}
    return both.with_columns(pl.col(name).cast(pl.Float64).alias(side) for side, name in amounts.items())
