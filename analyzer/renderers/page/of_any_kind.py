"""Dispatches `summarize` results to page builders: report, instances of a range, counters, several tools."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kanalyze import outlets
from kanalyze.renderers.page.overview import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from kanalyze.analyses.comparing._comparison import Comparison
    from kanalyze.analyses.comparing._noise import Noise
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.counters_page import CounterSummary
    from kanalyze.analyses.page.evidence import Evidence
    from kanalyze.analyses.page.joint_page import JointSummary
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.replay._whatif import WhatIf
    from kanalyze.renderers.page.time import Page
    from kanalyze.renderers.text.grid import Grid

    Shown: TypeAlias = (
        Overview | Summary | Instances | CounterSummary | JointSummary | Comparison | Noise | Job | WhatIf | Evidence
    )


#: Rows in each table of a page, unless told.
USUAL_ROWS: Final = 8

#: What builds the page of a kind of summary: the module of this package, its function, and the rows unless told. A
#: command makes pages of one kind, and does not wait for the modules of the others.
_BUILDERS: Final = {
    "comparison": ("comparison", "comparison_page", ROWS),
    "counters": ("counters", "counters_page", USUAL_ROWS),
    "evidence": ("evidence", "evidence_page", ROWS),
    "instances": ("time", "instances_page", USUAL_ROWS),
    "job": ("job", "job_page", ROWS),
    "joint": ("counters", "joint_page", USUAL_ROWS),
    "noise": ("comparison", "noise_page", ROWS),
    "overview": ("overview", "overview_page", ROWS),
    "time": ("time", "page_of", USUAL_ROWS),
    "whatif": ("whatif", "whatif_page", USUAL_ROWS),
}


def page_of_any(shown: Shown, top: int | None) -> Page:
    """Builds the page of any summary, at most `top` rows per table, or as many as suit it; texts are printable."""
    module, name, rows = _BUILDERS[shown.kind]
    build: Callable[[Shown, int], Page] = getattr(import_module(f"kanalyze.renderers.page.{module}"), name)
    page: Page = _plain(build(shown, rows if top is None else top))
    return page


def _plain(value: Any, field: str = "") -> Any:  # noqa: ANN401 - whatever a page consists of
    """Makes every text in a part of a page one printable line; kernel names stay whole, for renderers to shorten."""
    if field in _OTHERWISE:
        return _OTHERWISE[field](value)
    if isinstance(value, str):
        return outlets.short(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value, value._fields))
    return type(value)(map(_plain, value)) if isinstance(value, list | tuple) else value


def _plain_grid(grid: Grid) -> Grid:
    names = 1 if grid.named else 0
    rows = [(*map(outlets.short, row[: len(row) - names]), *row[len(row) - names :]) for row in grid.rows]
    return grid._replace(rows=rows)


def _plain_finding(finding: Finding) -> Finding:
    """A finding whose sentences are not cut: they have places for names."""
    names = ("text", "remedy", "headline", "action", "where", "line")
    sentences: dict[str, Any] = {name: outlets.line(getattr(finding, name)) for name in names}
    return finding._replace(**sentences)


#: Fields of a page that are no plain texts: a chapter's name is a kernel's, commands are a line each, and sentences of
#: findings, with places for names, are not cut.
_OTHERWISE: Final[dict[str, Callable[[Any], Any]]] = {
    "action": outlets.line,
    "finding": _plain_finding,
    "grid": _plain_grid,
    "headline": outlets.line,
    "more": outlets.lines,
    "name": str,
}
