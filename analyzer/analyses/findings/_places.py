"""Names the line of the program that the time of each finding comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.idle.code import has_lines, placed_pieces, placed_with_text
from kanalyze.report import Report

#: The part of its time that a finding has in a line, at the least, to be said to lie there.
_MOST: Final = 0.5

#: Where the lines of its own threads are known for this part of its time, that of others does not count, which goes to
#: the line that the main thread was in: ``loss.backward()`` is the line of all that autograd does.
_OWN: Final = 0.1

#: Lines of one function are told together where they are no further apart.
_TOGETHER: Final = 10

#: What a rule says where a call stack or a trace told it the line: ``train.py:31``, ``train.py(31): step``.
_HAS_LINE: Final = re.compile(r":\d+$|\(\d+\)")


def with_lines(report: Report, found: Sequence[Finding]) -> list[Finding]:
    """The findings, those that claim time with the line of the program that most of it comes from."""
    if not any(_asked(one) for one in found) or not has_lines(report):
        return [*found]
    return [one._replace(line=literal(line_of(report, one))) if _asked(one) else one for one in found]


def _asked(finding: Finding) -> bool:
    return finding.claims is not None and not finding.claims.is_empty() and not _HAS_LINE.search(finding.where)


def line_of(report: Report, finding: Finding) -> str:
    """The line with at least half of the time that a finding claims, as ``model.py:41``.

    Where none has half it is the costliest lines of one function that have it together, if they are close to each
    other: ``model.py:41-43``. Else it is empty.
    """
    pieces, ns = claimed(report, finding), pl.col("ns").sum()
    own = pieces.filter("own")
    told = own if own.select(ns).item() >= _OWN * pieces.select(ns).item() else pieces
    return lines_of_most(report, told.group_by("place").agg(ns))


def lines_of_most(report: Report, sums: pl.DataFrame) -> str:
    """The line, or the lines close to each other, with at least half of some time by place (place, ns)."""
    least = _MOST * int(sums.get_column("ns").sum())
    order = sums.drop_nulls("place").sort("ns", "place", descending=[True, False])
    for _, own in placed_with_text(report, order).group_by("file", "function", maintain_order=True):
        needed = own.filter(pl.col("ns").cum_sum().shift(1, fill_value=0) < least).sort("line")
        first, last = (int(needed.item(at, "line")) for at in (0, -1))
        if needed.get_column("ns").sum() >= least and last - first <= _TOGETHER:
            return f"{needed.item(0, 'place')}{f'-{last}' if last > first else ''}"
    return ""


def claimed(report: Report, finding: Finding) -> pl.DataFrame:
    """The pieces of its device's time that a finding claims: start, end, ns (of that time), part, place, own."""
    if finding.claims is None:
        return placed_pieces(report).drop("device").clear()
    pieces = placed_pieces(report).filter(pl.col("device") == finding.device).drop("device")
    start, end = pieces.get_column("start"), pieces.get_column("end")
    inside = intervals.overlap(start, end, intervals.union(finding.claims.select("start", "end")))
    # of operations that run beside others only a part of their time counts
    part = pieces.get_column("ns") * (inside / (end - start))
    return pieces.with_columns(part.cast(pl.Int64).alias("ns")).filter(pl.col("ns") > 0)
