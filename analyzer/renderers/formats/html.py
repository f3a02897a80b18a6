"""Pages and tables as HTML fragments for notebooks: no script, no external resources, any colour scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze import units
from kanalyze.outlets import html
from kanalyze.renderers.page.of_any_kind import page_of_any
from kanalyze.renderers.page.time import short_names, topics_remark
from kanalyze.renderers.tables.frame import laid_out
from kanalyze.renderers.text.colours import COLOURS
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.renderers.page.time import Ledger, Page, Topic
    from kanalyze.renderers.text.grid import Chapter, Grid, Section

_NAME: Final = 72
_ROWS: Final = 40

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


def page(shown: Shown, top: int | None) -> str:
    """Renders a page as one ``<div>``."""
    found = page_of_any(shown, top)
    names = short_names(found, _NAME)
    title, *parts = found.heading
    beside = " · ".join([*parts, found.health] if found.health else parts)
    head = f"<b>{html(title)}</b> <span class='dim'>{html(beside)}</span>"
    blocks = [f"<div>{head}</div>", f"<p><b>{html(found.answer)}</b></p>", *map(_ledger, found.ledgers)]
    blocks += _first(found, names)
    blocks += [_section(section, names) for section in found.sections]
    blocks += [f"<p><b>{html(one.title.capitalize())}</b> {html(one.text)}</p>" for one in found.blocks]
    blocks += _findings(found, names)
    blocks += [_chapter(chapter, names[chapter.name]) for chapter in found.chapters]
    blocks += [f"<p class='dim'>{html(reason)}</p>" for reason in found.cannot_tell]
    return _framed("".join(blocks))


def table(frame: pl.DataFrame) -> str:
    """Renders a table with units; a long one is truncated, with its row count below."""
    grid = laid_out(frame.head(_ROWS))
    names = list(dict.fromkeys(grid.names()))
    short = dict(zip(names, shorten(names, _NAME), strict=True))
    rest = frame.height - _ROWS
    more = f"<div class='dim'>{rest:,} rows more</div>" if rest > 0 else ""
    empty = "<div class='dim'>no rows</div>" if frame.is_empty() else ""
    return _framed(f"{_grid(grid, short)}{more}{empty}")


def _framed(content: str) -> str:
    return f"{_STYLE}<div class='kanalyze tex2jax_ignore mathjax_ignore'>{content}</div>"


def _ledger(ledger: Ledger) -> str:
    whole = max(ledger.window_ns, 1)
    pieces = "".join(
        f"<div title='{html(share.bucket)} {html(share.share)}' "
        f"style='width:{share.ns / whole:.4%};background:{COLOURS[share.bucket]}'></div>"
        for share in ledger.shares
    )
    rows = "".join(
        f"<tr><td class='l'><span class='key' style='background:{COLOURS[share.bucket]}'></span>"
        f"{html(share.bucket)}</td>"
        f"<td>{html(share.time)}</td><td>{html(share.share)}</td><td class='l dim'>{html(share.description)}</td></tr>"
        for share in ledger.shares
    )
    total = f"<tr><td class='l'>total</td><td>{ledger.total}</td><td>100.0 %</td><td></td></tr>"
    return (
        f"<h4>{html(ledger.title.capitalize())} <span class='dim'>{html(ledger.heading)}</span></h4>"
        f"<div class='bar'>{pieces}</div><table>{rows}{total}</table>"
    )


def _section(section: Section, names: Mapping[str, str]) -> str:
    remark = f" <span class='dim'>{html(section.remark)}</span>" if section.remark else ""
    foot = f"<p class='dim'>{html(section.foot)}</p>" if section.foot else ""
    return f"<h4>{html(section.plain_title)}{remark}</h4>{_grid(section.grid, names)}{foot}"


def _grid(grid: Grid, names: Mapping[str, str]) -> str:
    classes = [" class='l'" if head.left else "" for head in grid.heads]
    heads = "".join(f"<th{kind}>{html(head.text)}</th>" for head, kind in zip(grid.heads, classes, strict=True))
    rows = "".join(f"<tr>{_cells(row, classes, names, named=grid.named)}</tr>" for row in grid.rows)
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _cells(row: Sequence[str], classes: Sequence[str], names: Mapping[str, str], *, named: bool) -> str:
    cells = [f"<td{kind}>{html(text)}</td>" for text, kind in zip(row, classes, strict=True)]
    if named:
        whole, short = html(row[-1]), html(names.get(row[-1], row[-1]))
        cells[-1] = f"<td{classes[-1]} title='{whole}'>{short}</td>"
    return "".join(cells)


def _first(found: Page, names: dict[str, str]) -> list[str]:
    if not found.first:
        return []
    items = ""
    for first in found.first:
        saved = f" (→ {html(first.saved)})" if first.saved else ""
        told = "; ".join(
            f"<b>{html(one.worth)}</b>{saved if one is first else ''} {html(one.headline(names))}"
            for one in first.told()
        )
        action = html(f"{first.finding.action} → kanalyze {first.more}")
        items += f"<li>{told} <span class='dim'>{action}</span></li>"
    return [f"<h4>What to do first <span class='dim'>{html(found.first_remark)}</span></h4><ul>{items}</ul>"]


def _findings(found: Page, names: dict[str, str]) -> list[str]:
    if not found.topics:
        return []
    items = "".join(f"<li>{_topic(topic, names)}</li>" for topic in found.topics)
    remark = f"<span class='dim'>{html(topics_remark(found.topics))}</span>"
    return [f"<h4>Findings {remark}</h4><ul>{items}</ul>"]


def _topic(topic: Topic, names: dict[str, str]) -> str:
    stake = units.time(topic.finding.at_stake_ns)
    finding = topic.finding
    remedy = html(f"{finding.remedy} → {finding.table}, {finding.definition}")
    saved = f" ({html(topic.saved)})" if topic.saved else ""
    return f"<b>{stake}</b>{saved} {html(topic.sentence(names))} <span class='dim'>{remedy}</span>"


def _chapter(chapter: Chapter, name: str) -> str:
    whole = html(chapter.name)
    title = f"<h4><span title='{whole}'>{html(name)}</span> <span class='dim'>{html(chapter.launch)}</span></h4>"
    conclusion = f"<p>{html(chapter.conclusion)}</p>" if chapter.conclusion else ""
    facts = "".join(
        f"<tr><td class='l dim'>{html(label)}</td><td class='l'>{html(text)}</td></tr>" for label, text in chapter.facts
    )
    items = "".join(
        f"<li><b>{html(one.worth)}</b> {html(one.sentence)} <span class='dim'>{html(one.remedy)}</span></li>"
        for one in chapter.advice
    )
    advice = f"<div class='dim'>Advice, {html(chapter.legend)}</div><ul>{items}</ul>" if items else ""
    more = f"<div class='dim'>{html(chapter.more)}</div>" if chapter.more else ""
    return f"{title}{conclusion}<table>{facts}</table>{advice}{more}"
