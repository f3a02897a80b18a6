"""The page and the tables as HTML fragments, for notebooks: no script, no outside resources, any colour scheme."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from kanalyze import units
from kanalyze.renderers.frame import laid_out
from kanalyze.renderers.kernel_names import shorten
from kanalyze.renderers.page import short_names
from kanalyze.renderers.pages import page_of_any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from kanalyze.renderers.chapters import Chapter
    from kanalyze.renderers.grid import Grid, Section
    from kanalyze.renderers.page import Ledger, Page, Topic
    from kanalyze.renderers.pages import Shown

_NAME: Final = 72
_ROWS: Final = 40

_COLOURS: Final = {
    "kernel": "#2ca25f",
    "communication": "#c51b8a",
    "memcpy": "#2b8cbe",
    "memset": "#41b6c4",
    "profiler": "#969696",
    "loading": "#fdae61",
    "allocation": "#fee08b",
    "launch": "#d73027",
    "queued": "#9e6ebd",
    "sync": "#f46d43",
    "api": "#66c2a5",
    "host": "#4575b4",
    "unknown": "#bdbdbd",
}

_STYLE: Final = (
    "<style>"
    ".kanalyze{font-size:13px;line-height:1.45}"
    ".kanalyze table{border-collapse:collapse;margin:.3em 0 .9em;font-size:inherit}"
    ".kanalyze th,.kanalyze td{padding:1px 10px 1px 0;text-align:right;white-space:pre;border:none}"
    ".kanalyze th{font-weight:600;border-bottom:1px solid currentColor}"
    ".kanalyze .l{text-align:left}"
    ".kanalyze .dim{opacity:.65}"
    ".kanalyze .bar{display:flex;height:18px;max-width:900px;margin:.4em 0}"
    ".kanalyze .key{display:inline-block;width:10px;height:10px;margin-right:6px}"
    ".kanalyze h4{margin:.9em 0 .1em}"
    "</style>"
)


def page(shown: Shown, top: int) -> str:
    """The page of a report, or of all instances of a range, as one ``<div>``."""
    found = page_of_any(shown, top)
    names = short_names(found, _NAME)
    title, *parts = found.heading
    head = f"<b>{escape(title)}</b> <span class='dim'>{escape(' · '.join([*parts, found.health]))}</span>"
    blocks = [f"<div>{head}</div>", f"<p><b>{escape(found.answer)}</b></p>", *map(_ledger, found.ledgers)]
    blocks += [_section(section, names) for section in found.sections]
    blocks += _findings(found, names)
    blocks += [_chapter(chapter, names[chapter.name]) for chapter in found.chapters]
    blocks += [f"<p class='dim'>{escape(reason)}</p>" for reason in found.cannot_tell]
    return f"{_STYLE}<div class='kanalyze'>{''.join(blocks)}</div>"


def table(frame: pl.DataFrame) -> str:
    """A table with its quantities in the units that suit them; of a long one the first rows, and how many there are."""
    grid = laid_out(frame.head(_ROWS))
    names = list(dict.fromkeys(grid.names()))
    short = dict(zip(names, shorten(names, _NAME), strict=True))
    rest = frame.height - _ROWS
    more = f"<div class='dim'>{rest:,} rows more</div>" if rest > 0 else ""
    empty = "<div class='dim'>no rows</div>" if frame.is_empty() else ""
    return f"{_STYLE}<div class='kanalyze'>{_grid(grid, short)}{more}{empty}</div>"


def _ledger(ledger: Ledger) -> str:
    whole = max(ledger.window_ns, 1)
    pieces = "".join(
        f"<div title='{escape(share.bucket)} {escape(share.share)}' "
        f"style='width:{share.ns / whole:.4%};background:{_COLOURS[share.bucket]}'></div>"
        for share in ledger.shares
    )
    rows = "".join(
        f"<tr><td class='l'><span class='key' style='background:{_COLOURS[share.bucket]}'></span>{share.bucket}</td>"
        f"<td>{share.time}</td><td>{escape(share.share)}</td><td class='l dim'>{escape(share.said)}</td></tr>"
        for share in ledger.shares
    )
    total = f"<tr><td class='l'>total</td><td>{ledger.total}</td><td>100.0 %</td><td></td></tr>"
    return (
        f"<h4>Where the time went <span class='dim'>{escape(ledger.heading)}</span></h4>"
        f"<div class='bar'>{pieces}</div><table>{rows}{total}</table>"
    )


def _section(section: Section, names: Mapping[str, str]) -> str:
    remark = f" <span class='dim'>{escape(section.remark)}</span>" if section.remark else ""
    foot = f"<p class='dim'>{escape(section.foot)}</p>" if section.foot else ""
    return f"<h4>{escape(section.plain_title)}{remark}</h4>{_grid(section.grid, names)}{foot}"


def _grid(grid: Grid, names: Mapping[str, str]) -> str:
    classes = [" class='l'" if head.left else "" for head in grid.heads]
    heads = "".join(f"<th{kind}>{escape(head.text)}</th>" for head, kind in zip(grid.heads, classes, strict=True))
    rows = "".join(f"<tr>{_cells(row, classes, names, named=grid.named)}</tr>" for row in grid.rows)
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _cells(row: Sequence[str], classes: Sequence[str], names: Mapping[str, str], *, named: bool) -> str:
    cells = [f"<td{kind}>{escape(units.printable(text))}</td>" for text, kind in zip(row, classes, strict=True)]
    if named:
        whole, short = escape(units.printable(row[-1]), quote=True), escape(names.get(row[-1], row[-1]))
        cells[-1] = f"<td{classes[-1]} title='{whole}'>{short}</td>"
    return "".join(cells)


def _findings(found: Page, names: dict[str, str]) -> list[str]:
    if not found.topics:
        return []
    items = "".join(f"<li>{_topic(topic, names)}</li>" for topic in found.topics)
    remark = "<span class='dim'>time at stake; at most this much can be gained</span>"
    return [f"<h4>Findings {remark}</h4><ul>{items}</ul>"]


def _topic(topic: Topic, names: dict[str, str]) -> str:
    stake = units.time(topic.finding.at_stake_ns)
    finding = topic.finding
    remedy = escape(f"{finding.remedy} → {finding.table}, {finding.definition}")
    return f"<b>{stake}</b> {escape(topic.sentence(names))} <span class='dim'>{remedy}</span>"


def _chapter(chapter: Chapter, name: str) -> str:
    """What is said of one kernel."""
    whole = escape(units.printable(chapter.name), quote=True)
    title = f"<h4><span title='{whole}'>{escape(name)}</span> <span class='dim'>{escape(chapter.launch)}</span></h4>"
    conclusion = f"<p>{escape(chapter.conclusion)}</p>" if chapter.conclusion else ""
    facts = "".join(
        f"<tr><td class='l dim'>{escape(label)}</td><td class='l'>{escape(text)}</td></tr>"
        for label, text in chapter.facts
    )
    items = "".join(
        f"<li><b>{escape(one.worth)}</b> {escape(units.printable(one.sentence))} "
        f"<span class='dim'>{escape(one.remedy)}</span></li>"
        for one in chapter.advice
    )
    advice = f"<div class='dim'>Advice, {escape(chapter.legend)}</div><ul>{items}</ul>" if items else ""
    more = f"<div class='dim'>{escape(chapter.more)}</div>" if chapter.more else ""
    return f"{title}{conclusion}<table>{facts}</table>{advice}{more}"
