"""Builds the page of a finding in a report: what it says, where, what its remedy gains, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.outlets import command
from kanalyze.renderers.page.sections import UNNAMED
from kanalyze.renderers.page.time import Page
from kanalyze.renderers.text.grid import Column, Section, section, words
from kanalyze.renderers.text.kernel_names import short_forms
from kanalyze.window import PerIteration

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.analyses.page.evidence import Evidence

#: The width of a kernel's name in a sentence, in characters.
_NAME: Final = 60


def evidence_page(found: Evidence, top: int) -> Page:
    """Builds the page of a finding, at most `top` rows per table."""
    window, finding = found.window, found.finding
    each = window.each or "iteration" if window and window.count else ""
    per = PerIteration(window.count if window and each else None, each)
    tables = (_lines(found.lines, per, top), _kernels(found.kernels, per, top), _waits(found.waits, per, top))
    told = [found.meta.path.name, *([f"GPU {finding.device}"] if finding.device else [])]
    more = [
        command("kanalyze", "explain", finding.rule),
        command("kanalyze", "show", *finding.table.split(), found.meta.path),
    ]
    return Page(
        heading=[finding.rule, *told, *([per.all] if per.iterations else [])],
        answer=_answer(found, per),
        sections=[table for table in tables if table is not None],
        more="\n".join(more),
    )


def _answer(found: Evidence, per: PerIteration) -> str:
    """The finding's sentence, its place, what it takes and what its remedy gains."""
    one = found.finding
    names = short_forms(one.names, _NAME)
    place = f" It lies in {one.place.format()}." if one.place else ""
    took = f" It takes {per.mean_time(one.at_stake_ns)} of the GPU's time{f' {per.of}' if per.iterations else ''}"
    usual, low, high = one.replayed
    if usual is None:
        gain = "."
    elif low == high:
        gain = f"; by a replay the remedy saves {per.mean_time(usual)}."
    else:
        between = " to ".join(per.mean_time(ns or 0) for ns in (low, high))
        gain = f"; by a replay the remedy saves {per.mean_time(usual)} ({between})."
    return f"{one.text.format(*map(names.__getitem__, one.names))}{place}{took}{gain} {one.remedy}"


def _lines(rows: pl.DataFrame, per: PerIteration, top: int) -> Section | None:
    columns = (
        Column("time", "ns", per.mean_time),
        Column("line", "place", left=True, missing="elsewhere"),
        words("source", "text", missing=""),
    )
    return _table("LINES", rows, columns, top, per, "of its time")


def _kernels(rows: pl.DataFrame, per: PerIteration, top: int) -> Section | None:
    columns = (Column("time", "ns", per.mean_time), Column("count", "count", per.mean), words("kernel", "name"))
    return _table("KERNELS", rows, columns, top, per, "that run in its time", named=True)


def _waits(rows: pl.DataFrame, per: PerIteration, top: int) -> Section | None:
    columns = (
        Column("time", "ns", per.mean_time),
        Column("times", "count", per.mean),
        Column("bucket", "reason", left=True),
        words("culprit", "culprit", lambda name: UNNAMED.get(name, name), missing=""),
    )
    return _table("WAITS", rows, columns, top, per, "idle time in it, by what held the GPU up")


def _table(  # noqa: PLR0913 - as a section has
    title: str,
    rows: pl.DataFrame,
    columns: tuple[Column, ...],
    top: int,
    per: PerIteration,
    remark: str,
    *,
    named: bool = False,
) -> Section | None:
    """A section of the rows; None where there are none."""
    if rows.is_empty():
        return None
    told = f"{remark}; per {per.each}" if per.each else remark
    return section(title, rows, columns, top, told, named=named, cut=not named)
