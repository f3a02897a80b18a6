"""The page as Markdown, for issues and pull requests."""

from collections.abc import Iterable, Sequence
from typing import Final

from kanalyze.outlets import code, markdown, paragraph
from kanalyze.renderers.page import Block, Chapter, Ledger, Page, Section, Shown, page_of_any, short_names

#: Lines of a comparison, which is pasted into a pull request.
_MOST_LINES: Final = 39


def render(shown: Sequence[Shown], top: int | None) -> str:
    """Renders a page per report as GitHub-flavoured Markdown, ending with a newline."""
    pages = (_short(one) if one.kind == "comparison" and top is None else _page(page_of_any(one, top)) for one in shown)
    return "\n".join(pages)


def _short(shown: Shown) -> str:
    """A page for a pull request: where it would be too long, fewer rows, and the remarks alone of the last sections."""
    for rows in (None, 5, 4, 3, 2, 1):
        page = page_of_any(shown, rows)
        text = _page(page)
        if text.count("\n") <= _MOST_LINES:
            return text
    for kept in range(len(page.sections) - 1, -1, -1):
        left_out = ", ".join(f"{one.plain_title.lower()} ({one.remark})" for one in page.sections[kept:])
        text = _page(page._replace(sections=page.sections[:kept], blocks=[*page.blocks, Block("ALSO", f"{left_out}.")]))
        if text.count("\n") <= _MOST_LINES:
            break
    return text


def _page(page: Page) -> str:
    names = {name: code(short) for name, short in short_names(page, 60).items()}
    blocks = [("", f"**{markdown(one.title.capitalize())}** {markdown(one.text)}") for one in page.blocks]
    lines = [
        f"### {code(page.heading[0])}",
        "",
        paragraph(page.beside),
        "",
        f"**{markdown(page.answer)}**",
        *(line for ledger in page.ledgers for line in _ledger(ledger)),
        *(_points(page, names) if page.points else []),
        *(line for section in page.sections for line in _section(section, names)),
        *(line for block in blocks for line in block),
        *(line for chapter in page.chapters for line in _chapter(chapter, names)),
        *(line for reason in page.cannot_tell for line in ("", paragraph(reason))),
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ledger(ledger: Ledger) -> list[str]:
    return [
        "",
        f"#### {ledger.title.capitalize()}: {markdown(ledger.heading)}",
        "",
        "| bucket | time | share | most of it |",
        "| :-- | --: | --: | :-- |",
        *(_row((markdown(one.bucket), one.time, one.share, markdown(one.description))) for one in ledger.shares),
        f"| **total** | **{ledger.total}** | **100.0 %** | |",
    ]


def _section(section: Section, names: dict[str, str]) -> list[str]:
    grid = section.grid
    rows = [[*map(markdown, row)] for row in grid.rows]
    if grid.named:
        rows = [[*row[:-1], names[name]] for row, name in zip(rows, grid.names(), strict=True)]
    return [
        "",
        f"#### {section.plain_title}{f' ({markdown(section.remark)})' if section.remark else ''}",
        "",
        _row(head.title or " " for head in grid.heads),
        _row(":--" if head.left else "--:" for head in grid.heads),
        *map(_row, rows),
        *(["", paragraph(section.foot)] if section.foot else []),
    ]


def _points(page: Page, names: dict[str, str]) -> list[str]:
    """Findings as a list: all that one action is for, and where to read on."""
    lines = ["", f"#### What to do first: {markdown(page.points_remark)}", ""]
    for one in page.points:
        first, *others = (f"**{part.worth}** {part.said(names, markdown)}" for part in one.together())
        first = first.replace("** ", f"** (→ {one.saved}) ", 1) if one.saved else first
        advice = f"{markdown(one.action)} ({code(f'kanalyze explain {one.finding.rule}')})"
        lines.append(f"- {'; '.join([first, *others])} → {advice}")  # a colon would make :100: an emoji
    return lines


def _chapter(chapter: Chapter, names: dict[str, str]) -> list[str]:
    facts = [_row(map(markdown, fact)) for fact in chapter.facts]
    advice = [f"- {f'**{markdown(one.title)}** ' if one.title else ''}{markdown(one.text)}" for one in chapter.advice]
    return [
        "",
        f"#### {names[chapter.name]} ({markdown(chapter.launch)})",
        *(["", paragraph(chapter.conclusion)] if chapter.conclusion else []),
        *(["", "| | |", "| :-- | :-- |", *facts] if facts else []),
        *(["", f"Advice, {markdown(chapter.legend)}:", "", *advice] if advice else []),
        *(["", paragraph(chapter.more)] if chapter.more else []),
    ]
