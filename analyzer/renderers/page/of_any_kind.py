"""Dispatches `summarize` results to page builders: report, instances of a range, counters, several tools."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.renderers.page.overview import ROWS
from kanalyze.renderers.page.time import Block

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from kanalyze.analyses.comparing._comparison import Comparison
    from kanalyze.analyses.comparing._noise import Noise
    from kanalyze.analyses.page.counters_page import CounterSummary
    from kanalyze.analyses.page.joint_page import JointSummary
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.replay._whatif import WhatIf
    from kanalyze.renderers.page.time import First, Ledger, Page, Topic
    from kanalyze.renderers.text.grid import Chapter, Grid

    Shown: TypeAlias = (
        Overview | Summary | Instances | CounterSummary | JointSummary | Comparison | Noise | Job | WhatIf
    )


#: Rows in each table of a page, unless told.
USUAL_ROWS: Final = 8

#: What builds the page of a kind of summary: the module of this package, its function, and the rows unless told. A
#: command makes pages of one kind, and does not wait for the modules of the others.
_BUILDERS: Final = {
    "comparison": ("comparison", "comparison_page", ROWS),
    "counters": ("counters", "counters_page", USUAL_ROWS),
    "instances": ("instances", "instances_page", USUAL_ROWS),
    "job": ("job", "job_page", ROWS),
    "joint": ("joint", "joint_page", USUAL_ROWS),
    "noise": ("noise", "noise_page", ROWS),
    "overview": ("overview", "overview_page", ROWS),
    "time": ("time", "page_of", USUAL_ROWS),
    "whatif": ("whatif", "whatif_page", USUAL_ROWS),
}


def page_of_any(shown: Shown, top: int | None) -> Page:
    """Builds the page of any summary, at most `top` rows per table, or as many as suit it; texts are printable."""
    return pages_of_any(shown)(top)


def pages_of_any(shown: Shown) -> Callable[[int | None], Page]:
    """:func:`page_of_any` by the number of rows, for pages of one summary with several."""
    page, rows = _builder(shown), _BUILDERS[shown.kind][-1]
    return lambda top: _plain(page(rows if top is None else top))


def _builder(shown: Shown) -> Callable[[int], Page]:
    module, name, _ = _BUILDERS[shown.kind]
    build = getattr(import_module(f"kanalyze.renderers.page.{module}"), name)
    page: Callable[[int], Page] = build(shown) if shown.kind == "overview" else partial(build, shown)
    return page


def _plain(page: Page) -> Page:
    """Makes every text of `page` a single printable line."""
    return page._replace(
        heading=[*map(outlets.short, page.heading)],
        health=outlets.short(page.health),
        answer=outlets.short(page.answer),
        ledgers=[*map(_plain_ledger, page.ledgers)],
        sections=[
            one._replace(remark=outlets.short(one.remark), foot=outlets.short(one.foot), grid=_plain_grid(one.grid))
            for one in page.sections
        ],
        topics=[*map(_plain_topic, page.topics)],
        cannot_tell=[*map(outlets.short, page.cannot_tell)],
        more=outlets.lines(page.more),
        chapters=[*map(_plain_chapter, page.chapters)],
        first=[*map(_plain_first, page.first)],
        first_remark=outlets.short(page.first_remark),
        blocks=[Block(outlets.short(one.title), outlets.short(one.text)) for one in page.blocks],
    )


def _plain_ledger(ledger: Ledger) -> Ledger:
    shares = [
        share._replace(detail=outlets.short(share.detail), plain=outlets.short(share.plain)) for share in ledger.shares
    ]
    return ledger._replace(heading=outlets.short(ledger.heading), shares=shares)


def _plain_grid(grid: Grid) -> Grid:
    names = 1 if grid.named else 0
    return grid._replace(
        rows=[(*map(outlets.short, row[: len(row) - names]), *row[len(row) - names :]) for row in grid.rows]
    )


def _plain_topic(topic: Topic) -> Topic:
    finding = topic.finding
    text, remedy = outlets.line(finding.text), outlets.line(finding.remedy)
    return topic._replace(finding=finding._replace(text=text, remedy=remedy), also=outlets.short(topic.also))


def _plain_first(first: First) -> First:
    finding = first.finding
    headline, action, where = map(outlets.line, (finding.headline, finding.action, finding.where))
    beside = None if first.beside is None else _plain_first(first.beside)
    return first._replace(finding=finding._replace(headline=headline, action=action, where=where), beside=beside)


def _plain_chapter(chapter: Chapter) -> Chapter:
    return chapter._replace(
        launch=outlets.short(chapter.launch),
        conclusion=outlets.short(chapter.conclusion),
        facts=[(outlets.short(label), outlets.short(text)) for label, text in chapter.facts],
        advice=[
            one._replace(
                worth=outlets.short(one.worth), sentence=outlets.short(one.sentence), remedy=outlets.short(one.remedy)
            )
            for one in chapter.advice
        ],
        more=outlets.short(chapter.more),
        legend=outlets.short(chapter.legend),
    )
