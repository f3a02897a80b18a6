"""Dispatches `summarize` results to page builders: report, instances of a range, counters, several tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.renderers.page.comparison import comparison_page
from kanalyze.renderers.page.counters import counters_page
from kanalyze.renderers.page.instances import instances_page
from kanalyze.renderers.page.job import job_page
from kanalyze.renderers.page.joint import joint_page
from kanalyze.renderers.page.noise import noise_page
from kanalyze.renderers.page.overview import ROWS, overview_page
from kanalyze.renderers.page.time import Block, page_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from kanalyze.analyses.comparing._comparison import Comparison
    from kanalyze.analyses.comparing._noise import Noise
    from kanalyze.analyses.page.counters_page import CounterSummary
    from kanalyze.analyses.page.joint_page import JointSummary
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.renderers.page.time import First, Ledger, Page, Topic
    from kanalyze.renderers.text.grid import Chapter, Grid

    Shown: TypeAlias = Overview | Summary | Instances | CounterSummary | JointSummary | Comparison | Noise | Job


#: Rows in each table of a page, unless told.
USUAL_ROWS: Final = 8


def page_of_any(shown: Shown, top: int | None) -> Page:
    """Builds the page of any summary, at most `top` rows per table, or as many as suit it; texts are printable."""
    return _plain(_page_of_any(shown, top))


def _page_of_any(shown: Shown, top: int | None) -> Page:
    if shown.kind == "counters":
        return counters_page(shown, top or USUAL_ROWS)
    if shown.kind == "noise":
        return noise_page(shown, top or ROWS)
    if shown.kind == "joint":
        return joint_page(shown, top or USUAL_ROWS)
    rows = ROWS if top is None else top
    if shown.kind == "comparison" or shown.kind == "job":  # noqa: PLR1714 - narrows the type
        return comparison_page(shown, rows) if shown.kind == "comparison" else job_page(shown, rows)
    if shown.kind == "overview":
        return overview_page(shown, rows)
    return page_of(shown, top or USUAL_ROWS) if shown.kind == "time" else instances_page(shown, top or USUAL_ROWS)


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
    return first._replace(finding=finding._replace(headline=headline, action=action, where=where))


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
