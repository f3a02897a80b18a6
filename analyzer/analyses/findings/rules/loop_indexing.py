"""Python loops that index a tensor element by element, while the device idles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._mendings import nothing_within
from kanalyze.analyses.findings.rules._sites import sites
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.findings.rules.data_loading import getting_batches
from kanalyze.analyses.idle._attribution import WITHIN, idle_within
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.operators._events import operator_tree
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Operators that select one element, with which a pass through such a loop begins.
_SELECTS: Final = ("aten::select",)

#: Fewest passes in a row, the most operators of one (longer ones do more than indexing), and the most kinds of passes
#: in a loop, which may have branches.
_PASSES: Final = 10
_LONGEST_PASS: Final = 6
_KINDS: Final = 4


def loop_indexing(report: Report) -> list[Finding]:
    """At most one finding per device, on all such loops together."""
    return [_finding(report, device, intervals.length(pieces)) for device, pieces in _idle(report).items()]


def idle_in_loops(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device that :func:`loop_indexing` tells of: columns of `idle_within`."""
    return _idle(report).get(device, pl.DataFrame(schema=WITHIN))


@once_per_report
def _idle(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time in such loops, by device, where it is worth a finding."""
    loops = _loops(report)
    if loops.is_empty():
        return {}
    least = least_worth_saying(report)
    idle = idle_within(report, loops).items()
    return {device: pieces for device, pieces in idle if intervals.length(pieces) >= max(least[device], 1)}


@once_per_process
def _loops(report: Report) -> pl.DataFrame:
    """The loops, at any time: process_id, thread_id, start, end, passes, operators (of one pass).

    Of operators at one level: short passes in a row, each of which begins with operators of :data:`_SELECTS`, of few
    kinds by the names of their operators, of which `operators` are the most frequent. None is in a DataLoader, which
    gets one sample after the other.
    """
    kept = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "passes": pl.UInt32, "operators": pl.String}
    names = report.kind("op").get_column("name").unique().cast(pl.String)
    if not names.is_in(_SELECTS).any():
        return pl.DataFrame(schema=kept)
    rows = operator_tree(report).rows.with_columns(pl.col("name").cast(pl.String)).with_row_index("row")
    level = [*THREAD, "parent"]
    ops = rows.filter(pl.col("kind") == "op").select(*level, "row", "start", "end", "name").sort(*level, "row")
    selects = pl.col("name").is_in(_SELECTS)
    another = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in level)
    begins = another | (selects & ~selects.shift(1)).fill_null(value=True)
    passes = ops.with_columns(number=begins.cum_sum()).group_by("number", *level, maintain_order=True)
    each = passes.agg(
        pl.col("start").first(), pl.col("end").last(), operators=pl.col("name").str.join(" → "), size=pl.len()
    )
    short = pl.col("operators").str.starts_with(_SELECTS[0]) & (pl.col("size") <= _LONGEST_PASS)
    alike = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift(1)) for key in (*level, "short"))
    runs = each.with_columns(short=short).with_columns(run=(~alike).cum_sum()).filter("short")
    loops = runs.group_by("run", *THREAD, maintain_order=True).agg(
        pl.col("start").first(),
        pl.col("end").last(),
        pl.col("operators").mode(maintain_order=True).first(),
        kinds=pl.col("operators").n_unique(),
        passes=pl.len(),
    )
    found = loops.filter((pl.col("passes") >= _PASSES) & (pl.col("kinds") <= _KINDS)).select(list(kept))
    return found.join(_in_loaders(report, found), on=[*THREAD, "start"], how="anti", nulls_equal=True)


def _in_loaders(report: Report, loops: pl.DataFrame) -> pl.DataFrame:
    """Those of `loops` that begin while their thread gets a batch from a DataLoader."""
    batches = getting_batches(report.whole).select(*THREAD, since="start", until="end").sort("since")
    inside = loops.sort("start").join_asof(
        batches, left_on="start", right_on="since", by=[*THREAD], check_sortedness=False
    )
    return inside.filter((pl.col("start") < pl.col("until")).fill_null(value=False))


def _finding(report: Report, device: int, stake: int) -> Finding:
    per, pieces = per_iteration(report), _idle(report)[device]
    low, high = pieces.select(pl.col("start").min(), pl.col("end").max().alias("end")).row(0)
    loops = _loops(report).filter((pl.col("end") > low) & (pl.col("start") < high))
    top = loops.sort("passes", "start", descending=[True, False]).head(1)
    at = sites(report, top.select(*THREAD, at="start"))
    where = at.select(pl.coalesce("function", "range")).item()
    text = (
        f"A tensor is indexed element by element in {per.plural(loops.height, 'loop')}, {total(loops, 'passes'):,} "
        f"passes in all, up to {longest(loops, 'passes'):,} in a row of {literal(top.item(0, 'operators'))}"
        f"{f' in {literal(where)}' if where else ''}: GPU {device} idles in them for {per.time(stake)}."
    )
    remedy = (
        "Work on the whole tensor at once: a slice, an index tensor (gather, index_put_, scatter_), or arithmetic on "
        "torch.arange."
    )
    return Finding(
        "loop-indexing",
        device,
        stake,
        text,
        remedy,
        "tree",
        headline="A Python loop indexes a tensor element by element",
        action="Index once: x[indices] in place of x[i] in a loop",
        where=literal(where) if where else "",
        mending=partial(nothing_within, spans=loops.select(*THREAD, "start", "end")),
    )


RULES: Final = (loop_indexing,)
