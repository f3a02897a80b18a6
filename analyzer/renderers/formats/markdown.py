"""The page as Markdown, for issues and pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.outlets import code, markdown, paragraph
from kanalyze.renderers.page.of_any_kind import page_of_any
from kanalyze.renderers.page.time import Block, short_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.renderers.page.time import Ledger, Page
    from kanalyze.renderers.text.grid import Chapter, Grid, Section

_NAME: Final = 60

#: Lines of a comparison, which is pasted into a pull request.
_MOST_LINES: Final = 39

#: Rows of its tables: as many as usual, or fewer where it would be too long.
_ROWS: Final = (None, 5, 4, 3, 2, 1)


def render(shown: Sequence[Shown], top: int | None) -> str:
    """Renders a page per report as GitHub-flavoured Markdown, ending with a newline."""
    pages = (_short(one) if one.kind == "comparison" and top is None else _page(page_of_any(one, top)) for one in shown)
    return "\n".join(pages)


def _short(shown: Shown) -> str:
    """A page for a pull request: where it would be too long, fewer rows, and the remarks alone of the last sections."""
    found = next((text for rows in _ROWS if _lines(text := _page(page_of_any(shown, rows))) <= _MOST_LINES), None)
    page = page_of_any(shown, 1)
    kept = len(page.sections)
    while found is None:
        kept -= 1
        told = ", ".join(f"{one.plain_title.lower()} ({one.remark})" for one in page.sections[kept:])
        text = _page(page._replace(sections=page.sections[:kept], blocks=[*page.blocks, Block("ALSO", f"{told}.")]))
        found = text if _lines(text) <= _MOST_LINES or not kept else None
    return found


def _lines(text: str) -> int:
    return text.count("\n")


def _page(page: Page) -> str:
    names = {name: code(short) for name, short in short_names(page, _NAME).items()}
    lines = [
        f"### {code(page.heading[0])}",
        "",
        paragraph(page.beside),
        "",
        f"**{markdown(page.answer)}**",
    ]
    for ledger in page.ledgers:
        lines += ["", *_ledger(ledger)]
    points = _points(page, names)
    lines += points if page.overview else []
    for section in page.sections:
        lines += ["", *_section(section, names)]
    for block in page.blocks:
        lines += ["", f"**{markdown(block.title.capitalize())}** {markdown(block.text)}"]
    lines += [] if page.overview else points
    for chapter in page.chapters:
        lines += ["", *_chapter(chapter, names)]
    for reason in page.cannot_tell:
        lines += ["", paragraph(reason)]
    return "\n".join(lines) + "\n"


def _ledger(ledger: Ledger) -> list[str]:
    rows = [
        f"| {markdown(share.bucket)} | {share.time} | {share.share} | {markdown(share.description)} |"
        for share in ledger.shares
    ]
    return [
        f"#### {ledger.title.capitalize()}: {markdown(ledger.heading)}",
        "",
        "| bucket | time | share | most of it |",
        "| :-- | --: | --: | :-- |",
        *rows,
        f"| **total** | **{ledger.total}** | **100.0 %** | |",
    ]


def _section(section: Section, names: dict[str, str]) -> list[str]:
    remark = f" ({markdown(section.remark)})" if section.remark else ""
    foot = ["", paragraph(section.foot)] if section.foot else []
    return [f"#### {section.plain_title}{remark}", "", *_grid(section.grid, names), *foot]


def _grid(grid: Grid, names: dict[str, str]) -> list[str]:
    rows = [[*map(markdown, row)] for row in grid.rows]
    if grid.named:
        rows = [[*row[:-1], names[whole[-1]]] for row, whole in zip(rows, grid.rows, strict=True)]
    heads = " | ".join(head.title or " " for head in grid.heads)
    rule = " | ".join(":--" if head.left else "--:" for head in grid.heads)
    return [
        f"| {heads} |",
        f"| {rule} |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _points(page: Page, names: dict[str, str]) -> list[str]:
    """Findings as a list: all that one action is for, and where to read on."""
    if not page.points:
        return []
    lines = ["", f"#### {'What to do first' if page.overview else 'Findings'}: {markdown(page.points_remark)}", ""]
    for one in page.points:
        saved = f" (→ {one.saved})" if one.saved else ""
        texts = [f"**{part.worth}** {part.said(names, markdown)}" for part in one.together()]
        texts[0] = texts[0].replace("** ", f"**{saved} ", 1)
        table, _, rest = one.more.partition(", ")
        action = (
            f": {markdown(one.action)} ({code(f'kanalyze {one.more}')})"
            if page.overview
            else f" {markdown(one.action)} ({code(table)}, {rest})"
        )
        lines.append(f"- {'; '.join(texts)}{action}")
    return lines


def _chapter(chapter: Chapter, names: dict[str, str]) -> list[str]:
    facts = [f"| {markdown(label)} | {markdown(text)} |" for label, text in chapter.facts]
    table = ["", "| | |", "| :-- | :-- |", *facts] if facts else []
    advice = [
        f"- {f'**{markdown(one.worth)}** ' if one.worth else ''}{markdown(f'{one.sentence} {one.remedy}')}"
        for one in chapter.advice
    ]
    title = [
        f"#### {names[chapter.name]} ({markdown(chapter.launch)})",
        *(["", paragraph(chapter.conclusion)] if chapter.conclusion else []),
    ]
    legend = ["", f"Advice, {markdown(chapter.legend)}:", "", *advice] if advice else []
    return [*title, *table, *legend, *(["", paragraph(chapter.more)] if chapter.more else [])]
