"""The page for issues and pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze import units
from kanalyze.renderers.page import short_names
from kanalyze.renderers.pages import closing, page_of_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.renderers.chapters import Chapter
    from kanalyze.renderers.grid import Grid, Section
    from kanalyze.renderers.page import Ledger, Page, Topic
    from kanalyze.renderers.pages import Shown

_NAME: Final = 60


def render(shown: Sequence[Shown], top: int) -> str:
    """A page for each, and a line that compares several, as GitHub-flavoured Markdown that ends with a newline."""
    pages = [_page(page_of_any(one, top)) for one in shown]
    if text := closing(shown):
        pages.append(f"#### Compared\n\n{text}\n")
    return "\n".join(pages)


def _page(page: Page) -> str:
    names = {name: _code(short) for name, short in short_names(page, _NAME).items()}
    name, *parts = page.heading
    lines = [
        f"### {_code(name)}",
        "",
        " · ".join([*parts, page.health] if page.health else parts),
        "",
        f"**{page.answer}**",
    ]
    for ledger in page.ledgers:
        lines += ["", *_ledger(ledger)]
    for section in page.sections:
        lines += ["", *_section(section, names)]
    if page.topics:
        lines += ["", "#### Findings", "", "Time at stake; at most this much can be gained.", ""]
        lines += [_topic(topic, names) for topic in page.topics]
    for chapter in page.chapters:
        lines += ["", *_chapter(chapter, names)]
    for reason in page.cannot_tell:
        lines += ["", reason]
    return "\n".join(lines) + "\n"


def _ledger(ledger: Ledger) -> list[str]:
    rows = [f"| {share.bucket} | {share.time} | {share.share} | {_cell(share.said)} |" for share in ledger.shares]
    return [
        f"#### Where the time went: {ledger.heading}",
        "",
        "| bucket | time | share | most of it |",
        "| :-- | --: | --: | :-- |",
        *rows,
        f"| **total** | **{ledger.total}** | **100.0 %** | |",
    ]


def _section(section: Section, names: dict[str, str]) -> list[str]:
    remark = f" ({section.remark})" if section.remark else ""
    foot = ["", section.foot] if section.foot else []
    return [f"#### {section.plain_title}{remark}", "", *_grid(section.grid, names), *foot]


def _grid(grid: Grid, names: dict[str, str]) -> list[str]:
    rows = [(*row[:-1], names[row[-1]]) for row in grid.rows] if grid.named else grid.rows
    heads = " | ".join(head.text or " " for head in grid.heads)
    rule = " | ".join(":--" if head.left else "--:" for head in grid.heads)
    return [
        f"| {heads} |",
        f"| {rule} |",
        *(f"| {' | '.join(_cell(text) for text in row)} |" for row in rows),
    ]


def _topic(topic: Topic, names: dict[str, str]) -> str:
    stake = units.time(topic.finding.at_stake_ns)
    finding = topic.finding
    return f"- **{stake}** {topic.sentence(names)} {finding.remedy} ({_code(finding.table)}, {finding.definition})"


def _chapter(chapter: Chapter, names: dict[str, str]) -> list[str]:
    """What is said of one kernel."""
    facts = [f"| {label} | {_cell(text)} |" for label, text in chapter.facts]
    table = ["", "| | |", "| :-- | :-- |", *facts] if facts else []
    advice = [
        f"- {f'**{one.worth}** ' if one.worth else ''}{units.printable(one.sentence)} {one.remedy}".rstrip()
        for one in chapter.advice
    ]
    title = [
        f"#### {names[chapter.name]} ({chapter.launch})",
        *(["", chapter.conclusion] if chapter.conclusion else []),
    ]
    legend = ["", f"Advice, {chapter.legend}:", "", *advice] if advice else []
    return [*title, *table, *legend, *(["", chapter.more] if chapter.more else [])]


def _cell(text: str) -> str:
    return units.printable(text).strip().replace("|", "\\|")


def _code(text: str) -> str:
    """`text` as code; one that holds a backtick is fenced by two."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"
