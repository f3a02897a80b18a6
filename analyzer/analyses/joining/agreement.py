"""Cross-checks the tools: every figure that two of them report of one program, and why they differ where they do.

Definitions: docs/definitions.md, section 9.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Unpack

import polars as pl
from polars._typing import PolarsDataType

from kanalyze.analyses.device._operations import SHAPE, SHAPE_COLUMNS
from kanalyze.analyses.device.kernels import copies
from kanalyze.analyses.joining._reasons import (
    COUNTS,
    EXPLANATIONS,
    Explained,
    Reasons,
    Row,
    Steps,
    UnderNcu,
    disturbed,
    measuring,
    per_step,
    sampled_rows,
    shared_steps,
    trials_of_copies,
    trials_of_kernels,
    tuned,
    why_apart,
)
from kanalyze.analyses.joining._reasons import FIGURES as SAMPLED
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
from kanalyze.errors import CannotTellError, DamagedReportError
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: The reasons for a difference, and what each means.
REASONS: Final = EXPLANATIONS

#: The possible results of a comparison.
VERDICTS: Final = ("equal", "explained", "unexplained")

#: The figures that are compared per kernel, with their units; those of sampled counters are in a module of their own.
_FIGURES: Final = {"launches": "", "registers": "", "shared memory": "bytes", "duration": "ns"}

TABLE: Final = Table(
    "agreement",
    "One figure that two tools tell of one program.",
    (
        Column("figure", pl.String, f"What it is: {', '.join((*_FIGURES, *SAMPLED))}, copies, bytes copied."),
        Column("name", pl.String, "The kernel, copy or memset.", nullable=True),
        *SHAPE_COLUMNS,
        *columns(f"""
            first_tool text: One of the tools.
            first float?: What it tells, of durations the mean, or of the launches that ncu measured; null: it did not
                see this.
            second_tool text: The other.
            second float?: What that tells.
            difference float?: The second less the first.
            unit text: Of all three; empty for counts.
            verdict text: {", ".join(VERDICTS)}.
            reason text?: What explains the difference: {", ".join(REASONS)}.
            why text?: What in the reports shows that.
        """),
    ),
    purpose="figures on which two tools agree or do not",
    telling=("figure", "first_tool", "first", "second_tool", "second", "verdict", "reason"),
    together=True,
)

SEVERAL: Final = several(TABLE)

#: Columns that explain different counts: see :func:`kanalyze.analyses.joining._reasons.tried`.
_TRIALS: Final = ("compiling", "trial")

#: Columns added as null where no row has them: those of the other tool, and those of kernels.
_MAY_LACK: Final[dict[str, PolarsDataType]] = {
    **dict.fromkeys(("first", "second"), pl.Float64),
    **{f"{name}{side}": pl.Float64 for name in _TRIALS for side in ("", "_other")},
    **{f"{name}{side}": dtype for name, dtype in COUNTS.items() for side in ("", "_other")},
}


def agreement(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """Compares every figure that two of the reports have; unexplained differences first.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: There is only one report, or none has a time or kernels.
    """
    report_sets = together(TABLE, reports, where)
    if all(len(report_set.reports) == 1 for report_set in report_sets):
        raise CannotTellError.without_second(TABLE.name, report_sets[0].base.meta.path)
    return of_each(TABLE, [report_set for report_set in report_sets if len(report_set.reports) > 1], _agreement_of)


def _agreement_of(report_set: Together) -> pl.DataFrame:
    """:func:`agreement` for one report that provides the time, and the others."""
    require(report_set.base, TABLE, "kernel")
    rows, whole = _compared(report_set), report_set.base.whole
    if whole is not report_set.base:
        rows = _with_whole_base(rows, _compared(replace(report_set, base=whole)))
    order = pl.col("verdict").replace_strict(VERDICTS, range(len(VERDICTS)), return_dtype=pl.Int64)
    frame = rows.with_columns(difference=pl.col("second") - pl.col("first"))
    keys = ["figure", "name", *SHAPE, "second_tool"]
    return TABLE.select(frame.sort(order, *keys, descending=[True, *(False for _ in keys)]))


def _compared(report_set: Together) -> pl.DataFrame:
    """Every figure with its verdict; `right` is the number of the kernel group in the second report."""
    base, ncu = report_set.base, report_set.ncu
    parts = [_kernels(base, other) for other in report_set.reports[1:]]
    if report_set.torch is not None:
        parts.append(_copied(base, report_set.torch))
    if ncu is not None:
        with suppress(DamagedReportError):  # which is noted
            # sampled counters of the GPU, of the base or beside it in its capture, with those that ncu counted
            reports = (report for report in (base, base.whole.sampled()) if report is not None)
            sampled = [report for report in reports if report.table("gpu_metrics").height]
            parts += [_judged(sampled_rows(report, ncu), why_apart, base, ncu) for report in sampled[:1]]
    return pl.concat(parts, how="diagonal_relaxed")


def _with_whole_base(rows: pl.DataFrame, whole: pl.DataFrame) -> pl.DataFrame:
    """Marks as explained the `rows` of a part of the base that agree with the others if the `whole` base is taken."""
    without_group = pl.concat_str("name", *SHAPE, separator=" ", ignore_nulls=True)  # copies, too
    told_by = pl.when(pl.col("right").is_null()).then(without_group)
    keys = ["figure", "second_tool", "right", "told_by"]
    agreed = (
        whole.with_columns(told_by=told_by)
        .group_by(keys)
        .agg(agreed=(pl.col("verdict") != "unexplained").all(), why_whole=pl.col("reason").first().fill_null("equal"))
    )
    compared = rows.with_columns(told_by=told_by).join(
        agreed, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    by_window = (pl.col("verdict") == "unexplained") & pl.col("agreed").fill_null(value=False)
    values = {
        "verdict": pl.lit("explained"),
        "reason": pl.lit("window"),
        "why": pl.col("why_whole") + " in the whole report",
    }
    return compared.with_columns(pl.when(by_window).then(to).otherwise(name).alias(name) for name, to in values.items())


def _kernels(base: Report, other: Report) -> pl.DataFrame:
    steps = None if other.meta.timeless else shared_steps(base, other)
    each = (None, None) if steps is None else steps
    ours, theirs = (_figures(report, tuned(base), of) for report, of in zip((base, other), each, strict=True))
    pairs = same_kernels(base, other)
    both = pairs.join(ours, left_on="left", right_on="group").join(
        theirs, left_on="right", right_on="group", suffix="_other"
    )
    if other.meta.timeless:
        both = _of_launches(both, base, other)
    rows = [
        both.filter(pl.col(figure).is_not_null() & pl.col(f"{figure}_other").is_not_null()).with_columns(
            figure=pl.lit(figure), unit=pl.lit(unit), first=figure, second=f"{figure}_other"
        )
        for figure, unit in _FIGURES.items()
    ]
    other_shape = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_other")) for name in SHAPE)
    elsewhere = both.filter(other_shape)  # the first has that name in other shapes only
    as_there = [pl.col(f"{name}_other").alias(name) for name in ("launches", *SHAPE)]
    rows.append(_of_one_tool(elsewhere.with_columns(as_there), "second"))
    single = theirs.join(pairs, left_on="group", right_on="right", how="anti")
    explaining = (*_TRIALS, *(COUNTS if steps else ()))
    rows.append(
        _of_one_tool(single.rename({"group": "right"} | {name: f"{name}_other" for name in explaining}), "second")
    )
    if not other.meta.timeless:  # ncu is told which kernels to measure
        rows.append(_of_one_tool(ours.join(pairs, left_on="group", right_on="left", how="anti"), "first"))
    return _with_verdicts(pl.concat(rows, how="diagonal_relaxed"), base, other, steps)


def _figures(report: Report, names: list[str], steps: Steps | None) -> pl.DataFrame:
    """The kernel groups with the figures to compare, and the columns that may explain a difference."""
    groups = kernel_groups(report).rename({"shared": "shared memory"}).with_columns(launches="count")
    if report.meta.timeless:
        figures = groups.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in _TRIALS)
    else:
        figures = groups.join(trials_of_kernels(report, names), on="group", how="left")
    if steps is not None:
        figures = figures.join(per_step(report, steps)[0], on="group", how="left")
    explaining = (name for name in (*_TRIALS, *COUNTS) if name in figures.columns)
    return figures.select("group", *GROUP_KEYS, "low", "high", *explaining, pl.col(*_FIGURES).cast(pl.Float64))


def _of_launches(both: pl.DataFrame, base: Report, ncu: Report) -> pl.DataFrame:
    """Adds how ncu disturbed each kernel of `both`, and the time of exactly the launches that it measured, if known."""
    measured = same_launches(base, ncu).drop_nulls()
    times = kernels_in(base).select(left="event_id", own="dur_ns")
    own = grouped_kernels(ncu).select(of="group", right="event_id").join(measured, on="right").join(times, on="left")
    exact = own.group_by(right="of").agg(own=pl.col("own").mean(), launches=pl.len())
    compared = both.join(exact.rename({"launches": "known"}), on="right", how="left").with_columns(
        duration=pl.when((pl.col("match") == "exact") & (pl.col("known") == pl.col("launches_other")))
        .then("own")
        .otherwise("duration")
    )
    return compared.join(measuring(ncu), left_on="right", right_on="group", how="left").join(
        disturbed(base), left_on="left", right_on="group", how="left"
    )


def _of_one_tool(groups: pl.DataFrame, side: str) -> pl.DataFrame:
    """The rows for groups that only one of the tools has."""
    return groups.with_columns(figure=pl.lit("launches"), unit=pl.lit(""), **{side: pl.col("launches")})


def _with_verdicts(
    frame: pl.DataFrame, base: Report, other: Report, steps: tuple[Steps, Steps] | None = None
) -> pl.DataFrame:
    """Adds verdict, reason and why."""
    new = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in _MAY_LACK.items() if name not in frame.columns]
    reasons = Reasons.between(base, other, steps)
    explain = UnderNcu.between(base, other, reasons.spread).of if other.meta.timeless else reasons.of
    return _judged(frame.with_columns(new), explain, base, other)


def _judged(
    rows: pl.DataFrame, explain: Callable[[Row], Explained | None], base: Report, other: Report
) -> pl.DataFrame:
    """Adds the tools, the verdict, and of rows that differ the reason and why, as `explain` tells."""
    reasons = [None if row["first"] == row["second"] else explain(row) for row in rows.iter_rows(named=True)]
    frame = pl.DataFrame(
        [reason or (None, None) for reason in reasons], {"reason": pl.String, "why": pl.String}, orient="row"
    )
    equal = (pl.col("first") == pl.col("second")).fill_null(value=False)
    differs = pl.when(pl.col("reason").is_not_null()).then(pl.lit("explained")).otherwise(pl.lit("unexplained"))
    return rows.hstack(frame).with_columns(
        first_tool=pl.lit(base.meta.tool),
        second_tool=pl.lit(other.meta.tool),
        verdict=pl.when(equal).then(pl.lit("equal")).otherwise(differs),
    )


def _copied(base: Report, other: Report) -> pl.DataFrame:
    """Compares copies and memsets: their number, and their bytes."""
    columns = {"copies": ("count", "", ""), "bytes copied": ("total_bytes", "bytes", "_bytes")}
    sums = [
        copies(report)
        .select(name="operation", **{key: pl.col(name).cast(pl.Float64) for key, (name, _, _) in columns.items()})
        .join(trials_of_copies(report, tuned(base)), on="name", how="left")
        for report in (base, other)
    ]
    steps = shared_steps(base, other)
    if steps is not None:
        each = zip(sums, (base, other), steps, strict=True)
        sums = [frame.join(per_step(report, of)[1], on="name", how="left") for frame, report, of in each]
    explaining = (*_TRIALS, *(COUNTS if steps else ()))
    both = sums[0].join(sums[1], on="name", how="full", coalesce=True, suffix="_other")
    rows = [
        both.select(
            "name",
            *(pl.col(f"{name}{ending}{side}").alias(f"{name}{side}") for name in explaining for side in ("", "_other")),
            figure=pl.lit(figure),
            unit=pl.lit(unit),
            first=figure,
            second=f"{figure}_other",
        )
        for figure, (_, unit, ending) in columns.items()
    ]
    return _with_verdicts(pl.concat(rows), base, other, steps)
