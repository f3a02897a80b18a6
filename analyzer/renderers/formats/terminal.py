"""The page as terminal text: fitted to the width, coloured only if supported."""

from __future__ import annotations

import re
from itertools import zip_longest
from math import ceil
from typing import TYPE_CHECKING, Final

from kanalyze import units
from kanalyze.renderers.page.of_any_kind import page_of_any, pages_of_any
from kanalyze.renderers.page.time import short_names, topics_remark
from kanalyze.renderers.text.grid import LEAST_NAME, Look, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.renderers.page.time import Ledger, Page, Topic
    from kanalyze.renderers.text.grid import Chapter, Section

_WIDEST: Final = 160
_NARROWEST: Final = 60
_GLYPHS: Final = "█▓▒░╬≡∷"
_REST: Final = "·"

#: Most lines of the first page, and the rows per table that are tried for it: 0 for fewer findings, -1 for no tables.
_LINES: Final = 45
_ROWS: Final = (5, 4, 3, 2, 1, 0, -1)
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
#: A word of a command line, quoted as :func:`kanalyze.outlets.command` does.
_SHELL_WORD: Final = re.compile(r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|[^\s'"]|['"])+""")
_MORE: Final = "More: "
_NAME_MOST: Final = 72
_INDENT: Final = "  "
_STAKE: Final = 11

#: Replacements for an ASCII-only terminal.
ASCII: Final = str.maketrans("█▓▒░╬≡∷·×≤µ−…▁▂▃▄▅▆▇─→λ‹›", "#%=-+~:.x<u-~.:-=+*%->L<>")

_COLOURS: Final = {
    "kernel": "32",
    "communication": "35",
    "memcpy": "34",
    "memset": "36",
    "profiler": "90",
    "loading": "33",
    "allocation": "93",
    "launch": "31",
    "queued": "95",
    "sync": "91",
    "api": "96",
    "host": "94",
    "unknown": "37",
    "rest": "37",
}
_BOLD, _DIM = "1", "2"


def render(shown: Sequence[Shown], look: Look, top: int | None) -> str:
    """Renders a page per report as text, ending with a newline."""
    look = Look(max(_NARROWEST, min(look.width, _WIDEST)), look.colour)
    pages = [_page(page_of_any(one, top), look) if top else _fitting(one, look) for one in shown]
    return f"\n{look.paint('─' * look.width, _DIM)}\n\n".join(pages)


def _fitting(shown: Shown, look: Look) -> str:
    """A page with the usual number of rows; the first page with as many as make it no longer than :data:`_LINES`."""
    pages = pages_of_any(shown)
    page = pages(None)
    text = _page(page, look)
    for rows in _ROWS if page.overview else ():
        if text.count("\n") <= _LINES:
            break
        text = _page(pages(rows), look)
    return text


def _page(page: Page, look: Look) -> str:
    room = [part.grid.room_for_names(look.width - len(_INDENT)) for part in page.sections if part.grid.named]
    names = short_names(page, max(LEAST_NAME, min([*room, _NAME_MOST, look.width])))
    blocks = [_heading(page, look), *wrapped(page.answer, look.width)]
    for ledger in page.ledgers:
        blocks += ["", *_ledger(ledger, look)]
    blocks += _first(page, look, names)
    for section in page.sections:
        blocks += ["", *_section(section, look, names)]
    blocks += _findings(page, look, names)
    blocks += _blocks(page, look)
    for chapter in page.chapters:
        blocks += ["", *_chapter(chapter, look, names[chapter.name])]
    for reason in page.cannot_tell:
        blocks += ["", *wrapped(reason, look.width)]
    blocks += ["", *(look.paint(line, _DIM) for line in _commands(page.more, look.width))]
    return "\n".join(blocks) + "\n"


def _commands(more: str, width: int) -> list[str]:
    """Lines with a command each; a long one goes on behind a backslash, so that it can be pasted."""
    lines: list[str] = []
    rest = " " * len(_MORE)
    for text in more.split("\n"):
        begin = rest if lines else _MORE
        line = begin
        for word in _SHELL_WORD.findall(text):
            space = " " * (line is not begin)
            if space and len(line + word) + len(" \\ ") > width:
                lines.append(f"{line} \\")
                begin = line = f"{rest}  "
                space = ""
            line += space + word
        lines.append(line)
    return lines


def _heading(page: Page, look: Look) -> str:
    name, *parts = page.heading
    lines = [name]
    for part in parts:
        joined = f"{lines[-1]}   {part}"
        lines[-1:] = [joined] if len(joined) <= look.width else [lines[-1], part]
    first, *rest = [*lines, page.health] if page.health else lines
    below = [line for text in rest for line in wrapped(text, look.width)]
    return "\n".join([first.replace(name, look.paint(name, _BOLD), 1), *below, ""])


def _title(title: str, right: str, look: Look) -> str:
    parts = right.split("; ")
    while len(parts) > 1 and len(title) + 2 + len("; ".join(parts)) > look.width:
        parts.pop()
    right = "; ".join(parts)
    space = max(look.width - len(title) - len(right), 2)
    return look.paint(title, _BOLD) + (" " * space + look.paint(right, _DIM) if right else "")


def _ledger(ledger: Ledger, look: Look) -> list[str]:
    glyphs = {share.bucket: _GLYPHS[i] if i < len(_GLYPHS) else _REST for i, share in enumerate(ledger.shares)}
    cells = units.apportioned([share.ns for share in ledger.shares], look.width)
    bar = "".join(
        look.paint(glyphs[share.bucket] * cell, _COLOURS[share.bucket])
        for share, cell in zip(ledger.shares, cells, strict=True)
    )
    names = max((len(share.bucket) for share in ledger.shares), default=5)
    times = len(ledger.total)
    lines = [_title(ledger.title, ledger.heading, look), bar]
    spread = max((len(share.spread) for share in ledger.shares), default=0)
    for share in ledger.shares:
        glyph = look.paint(glyphs[share.bucket], _COLOURS[share.bucket])
        start = f"{share.bucket.ljust(names)}  {share.time.rjust(times)}  {share.share.rjust(7)}"
        start += f"  {share.spread.rjust(spread)}" if spread else ""
        room = look.width - len(start) - 6
        cut = f"{share.detail[: room - 1]}…" if share.detail and room >= _TELLING else ""
        detail = _fitted(share.detail, room) or _fitted(share.plain, room) or cut
        lines.append(f"{glyph} {start}    {look.paint(detail, _DIM)}".rstrip())
    lines.append(f"  {'total'.ljust(names)}  {ledger.total}  100.0 %")
    return [*lines, *_over_time(ledger, look)] if ledger.busy else lines


def _over_time(ledger: Ledger, look: Look) -> list[str]:
    """The busy share over time as a sparkline as wide as the bar above it, with the times of its ends."""
    parts = len(ledger.busy)
    levels = (_LEVELS[ceil(ledger.busy[at * parts // look.width] * (len(_LEVELS) - 1))] for at in range(look.width))
    start, end = ledger.span
    remark = f"{units.plural(parts, 'part')} of {units.time(ledger.window_ns / parts)}; full height is 100 %"
    axis = look.paint(start + end.rjust(look.width - len(start)), _DIM)
    return ["", _title("BUSY OVER TIME", remark, look), "".join(levels).rstrip(), axis]


#: Shortest prefix of a name that is still informative, in characters.
_TELLING: Final = 24


def _fitted(detail: str, width: int) -> str:
    """As many comma-separated parts as fit."""
    parts = detail.split(", ")
    while len(parts) > 1 and len(", ".join(parts)) > width:
        parts.pop()
    text = ", ".join(parts)
    return text if len(text) <= width else ""


def _section(section: Section, look: Look, names: dict[str, str]) -> list[str]:
    head, rows = section.grid.lines(look.width - len(_INDENT), names)
    return [
        _title(section.title, section.remark, look),
        look.paint(_INDENT + head, _DIM),
        *(_INDENT + row for row in rows),
        *(look.paint(line, _DIM) for line in wrapped(section.foot, look.width, _INDENT)),
    ]


def _findings(page: Page, look: Look, names: dict[str, str]) -> list[str]:
    if not page.ledgers or page.overview:
        return []
    lines = ["", _title("FINDINGS", topics_remark(page.topics), look)]
    if not page.topics:
        return [*lines, f"{_INDENT}Nothing worth a sentence."]
    for topic in page.topics:
        lines += _topic(topic, look, names)
    return lines


def _topic(topic: Topic, look: Look, names: dict[str, str]) -> list[str]:
    finding, space = topic.finding, look.width - _STAKE - 2
    sentence = wrapped(topic.sentence(names), space)
    remedy = wrapped(f"{finding.remedy} → {finding.table}, {finding.definition}", space)
    body = [*sentence, *(look.paint(text, _DIM) for text in remedy)]
    stake = look.paint(units.time(finding.at_stake_ns).rjust(_STAKE), _BOLD)
    beside = [stake, topic.saved.rjust(_STAKE)]
    return [f"{left}  {text}" for left, text in zip_longest(beside, body, fillvalue=" " * _STAKE)]


def _first(page: Page, look: Look, names: dict[str, str]) -> list[str]:
    """Findings to act on first: the time, what is wrong, what to do, and where to read on."""
    if not page.overview or not page.ledgers:
        return []
    lines = ["", _title("WHAT TO DO FIRST", page.first_remark, look)]
    if not page.first:
        return [*lines, f"{_INDENT}Nothing that gains a hundredth of it."]
    wide = max(len(told) for one in page.first for told in (*(part.worth for part in one.told()), one.saved))
    for one in page.first:
        space = look.width - wide - 2 * len(_INDENT)
        action = one.finding.action
        told = (
            [action, one.more]
            if len(action) + len(one.more) + 2 > space
            else [f"{action}{one.more.rjust(space - len(action))}"]
        )
        dim = [
            look.paint(line, _DIM) for text in told for line in (wrapped(text, space) if len(text) > space else [text])
        ]
        saved = f"→ {one.saved}" if one.saved else ""
        parts = [
            (f"{_INDENT}{look.paint(part.worth.rjust(wide), _BOLD)}", wrapped(part.headline(names), space))
            for part in one.told()
        ]
        empty = " " * (wide + len(_INDENT))
        for left, body in [*parts, (saved.rjust(wide + len(_INDENT)), dim)]:
            lines += [f"{at}{_INDENT}{line}" for at, line in zip_longest([left], body, fillvalue=empty)]
    return lines


def _blocks(page: Page, look: Look) -> list[str]:
    """Titles with their texts beside them."""
    if not page.blocks:
        return []
    wide = max(len(one.title) for one in page.blocks) + len(_INDENT)
    lines = [""]
    for one in page.blocks:
        first, *more = wrapped(one.text, look.width - wide) or [""]
        lines.append(look.paint(one.title, _BOLD) + " " * (wide - len(one.title)) + first)
        lines += [" " * wide + line for line in more]
    return lines


def _chapter(chapter: Chapter, look: Look, name: str) -> list[str]:
    """Renders the chapter of one kernel: labels on the left, each advice with its estimated gain."""
    wide = max((len(label) for label, _ in chapter.facts), default=0)
    beside = len(name) + 2 + len(chapter.launch) <= look.width
    lines = [_title(name, chapter.launch if beside else "", look)]
    lines += wrapped("" if beside else chapter.launch, look.width, _INDENT)
    lines += wrapped(chapter.conclusion, look.width, _INDENT)
    lines += [""] * bool(chapter.facts and chapter.conclusion)
    for label, text in chapter.facts:
        first, *more = wrapped(text, look.width - wide - 2 * len(_INDENT)) or [""]
        lines.append(f"{_INDENT}{look.paint(label.ljust(wide), _DIM)}{_INDENT}{first}")
        lines += [" " * (wide + 2 * len(_INDENT)) + line for line in more]
    lines += ["", _INDENT + _title("ADVICE", chapter.legend, Look(look.width - len(_INDENT), look.colour))] * bool(
        chapter.advice
    )
    for advice in chapter.advice:
        space = look.width - _STAKE - 2
        remedy = (look.paint(line, _DIM) for line in wrapped(advice.remedy, space))
        first, *more = [*wrapped(advice.sentence, space), *remedy] or [""]
        lines.append(f"{look.paint(advice.worth.rjust(_STAKE), _BOLD)}  {first}")
        lines += [" " * (_STAKE + 2) + line for line in more]
    return [*lines, *(look.paint(line, _DIM) for line in wrapped(chapter.more, look.width, " " * (_STAKE + 2)))]
