"""The page as terminal text: fitted to the width, coloured only if supported."""

from collections.abc import Sequence
from itertools import zip_longest
from math import ceil
from typing import Final

from kanalyze import units
from kanalyze.renderers import page as pages
from kanalyze.renderers.page import BOLD, CODES, DIM, LEAST_NAME, Look, Section, page_of_any, short_names, wrapped

_GLYPHS, _LEVELS, _INDENT = "█▓▒░╬≡∷", " ▁▂▃▄▅▆▇█", "  "

#: Most lines of the first page, and the rows per table that are tried for it: 0 for fewer findings, then fewer tables.
_LINES: Final = 45
_ROWS: Final = (5, 4, 3, 2, 1, 0, -1, -2)

_MORE: Final = "More: "

#: Shortest prefix of a name that is still informative, in characters.
_TELLING: Final = 24

#: Replacements for an ASCII-only terminal.
ASCII: Final = str.maketrans("█▓▒░╬≡∷·×≤µ−…▁▂▃▄▅▆▇─→λ‹›", "#%=-+~:.x<u-~.:-=+*%->L<>")

#: On wider terminals remarks stand beside what they are of: from here on no further than that is wide.
_WIDE: Final = 80


def render(shown: Sequence[pages.Shown], look: Look, top: int | None) -> str:
    """Renders a page per report as text, ending with a newline.

    Without `top`, a first page has as many rows as make it no longer than :data:`_LINES`.
    """
    look, texts = Look(max(60, min(look.width, 160)), look.colour), []
    for one in shown:
        text = _page(page_of_any(one, top), look)
        for rows in _ROWS if one.kind == "overview" and not top else ():
            if text.count("\n") <= _LINES:
                break
            text = _page(page_of_any(one, rows), look)
        texts.append(text)
    return f"\n{look.paint('─' * look.width, DIM)}\n\n".join(texts)


def _page(page: pages.Page, look: Look) -> str:
    room = [part.grid.room_for_names(look.width - len(_INDENT)) for part in page.sections if part.grid.named]
    names = short_names(page, max(LEAST_NAME, min([*room, 72, look.width])))
    name, *parts = page.heading
    heading = [name]
    for part in parts:
        joined = f"{heading[-1]}   {part}"
        heading[-1:] = [joined] if len(joined) <= look.width else [heading[-1], part]
    first, *rest = heading
    lines = [
        first.replace(name, look.paint(name, BOLD), 1),
        *(line for text in rest for line in wrapped(text, look.width)),
        "",
        *wrapped(page.answer, look.width),
        *(line for ledger in page.ledgers for line in _ledger(ledger, look)),
        *(_points(page, look, names) if page.ledgers else []),
        *(line for section in page.sections for line in _section(section, look, names)),
        *([""] if page.blocks else []),
        *_blocks(page.blocks, look),
        *(line for chapter in page.chapters for line in _chapter(chapter, look, names[chapter.name])),
        *(line for reason in page.cannot_tell for line in ("", *wrapped(reason, look.width))),
        "",
        # commands are never broken, so that they can be pasted
        *(look.paint(line, DIM) for line in f"{_MORE}{page.more}".replace("\n", f"\n{' ' * len(_MORE)}").split("\n")),
    ]
    return "\n".join(lines) + "\n"


def _title(title: str, right: str, look: Look, rows: Sequence[str] | None = None) -> str:
    """A title and its remark, which ends where the longest of the `rows` does, or stands below where it is too long."""
    right = _first_parts(right, "; ", look.width - len(title) - 2)
    if len(title) + 2 + len(right) > look.width:
        return "\n".join([look.paint(title, BOLD), *(look.paint(line, DIM) for line in wrapped(right, look.width))])
    width = look.width if rows is None else min(look.width, max(_WIDE, *map(len, rows), 0))
    space = max(width - len(title) - len(right), 2)
    return look.paint(title, BOLD) + (" " * space + look.paint(right, DIM) if right else "")


def _ledger(ledger: pages.Ledger, look: Look) -> list[str]:
    shares = ledger.shares
    glyphs = [_GLYPHS[at] if at < len(_GLYPHS) else "·" for at in range(len(shares))]
    painted = zip(shares, glyphs, units.apportioned([share.ns for share in shares], look.width), strict=True)
    bar = "".join(look.paint(glyph * cell, CODES[share.bucket]) for share, glyph, cell in painted)
    names, times = max((len(share.bucket) for share in shares), default=5), len(ledger.total)
    lines = ["", _title(ledger.title, ledger.heading, look), bar]
    spread = max((len(share.spread) for share in shares), default=0)
    for share, glyph in zip(shares, glyphs, strict=True):
        start = f"{share.bucket.ljust(names)}  {share.time.rjust(times)}  {share.share.rjust(7)}"
        start += f"  {share.spread.rjust(spread)}" if spread else ""
        room = look.width - len(start) - 6
        cut = f"{share.detail[: room - 1]}…" if share.detail and room >= _TELLING else ""
        fitting = (_first_parts(text, ", ", room) for text in (share.detail, share.plain))
        detail = next((text for text in fitting if 0 < len(text) <= room), cut)
        lines.append(f"{look.paint(glyph, CODES[share.bucket])} {start}    {look.paint(detail, DIM)}".rstrip())
    lines.append(f"  {'total'.ljust(names)}  {ledger.total}  100.0 %")
    if not ledger.busy:
        return lines
    # the busy share over time as a sparkline as wide as the bar above it, with the times of its ends
    parts = len(ledger.busy)
    levels = (_LEVELS[ceil(ledger.busy[at * parts // look.width] * (len(_LEVELS) - 1))] for at in range(look.width))
    start, end = ledger.span
    remark = f"{units.plural(parts, 'part')} of {units.time(ledger.window_ns / parts)}; full height is 100 %"
    axis = look.paint(start + end.rjust(look.width - len(start)), DIM)
    return [*lines, "", _title("BUSY OVER TIME", remark, look), "".join(levels).rstrip(), axis]


def _first_parts(text: str, between: str, width: int) -> str:
    """As many parts as fit; the first one in any case."""
    while len(text) > width and between in text:
        text = text.rpartition(between)[0]
    return text


def _section(section: Section, look: Look, names: dict[str, str]) -> list[str]:
    head, rows = section.grid.lines(look.width - len(_INDENT), names)
    return [
        "",
        _title(section.title, section.remark, look, [_INDENT + head, *(_INDENT + row for row in rows)]),
        *[look.paint(_INDENT + head, DIM)] * bool(rows),
        *(_INDENT + row for row in rows),
        *(look.paint(line, DIM) for line in wrapped(section.foot, look.width, _INDENT)),
    ]


def _points(page: pages.Page, look: Look, names: dict[str, str]) -> list[str]:
    """One action for each finding, below all that it is for: their times, and what is wrong."""
    lines = ["", _title("WHAT TO DO FIRST", page.points_remark, look, [])]
    if not page.points:
        return [*lines, f"{_INDENT}Nothing that gains a hundredth of it."]
    longest = max(len(text) for one in page.points for text in (*(part.worth for part in one.together()), one.saved))
    wide = longest + len(_INDENT)
    space = look.width - wide - len(_INDENT)
    for one in page.points:
        for part in one.together():
            worth = f"{_INDENT}{look.paint(part.worth.rjust(longest), BOLD)}"
            lines += _beside([worth], wrapped(part.said(names), space), wide)
        more = f"explain {one.finding.rule}"
        room = min(space, max(_WIDE - wide - len(_INDENT), len(one.action) + 4 + len(more))) - len(one.action)
        texts = [one.action, more] if len(more) + 2 > room else [f"{one.action}{more.rjust(room)}"]
        body = [line for text in texts for line in (wrapped(text, space) if len(text) > space else [text])]
        saved = f"→ {one.saved}" if one.saved else ""
        lines += _beside([saved.rjust(wide)], [look.paint(line, DIM) for line in body], wide)
    return lines


def _beside(left: Sequence[str], body: Sequence[str], wide: int) -> list[str]:
    """Lines of `left`, which are so `wide`, with those of the body beside them."""
    return [f"{at}{_INDENT}{line}" for at, line in zip_longest(left, body or [""], fillvalue=" " * wide)]


def _blocks(blocks: Sequence[pages.Block], look: Look, indent: str = "") -> list[str]:
    """Titles with their texts beside them."""
    wide = max((len(one.title) for one in blocks), default=0)
    lines = []
    for one in blocks:
        title = indent + look.paint(one.title, BOLD) + " " * (wide - len(one.title))
        text = wrapped(one.text, look.width - len(indent) - wide - len(_INDENT))
        lines += _beside([title], text, len(indent) + wide)
    return lines


def _chapter(chapter: pages.Chapter, look: Look, name: str) -> list[str]:
    """The chapter of one kernel: facts, and advice with its estimated gain."""
    beside = len(name) + 2 + len(chapter.launch) <= look.width
    lines = ["", _title(name, chapter.launch if beside else "", look)]
    lines += wrapped("" if beside else chapter.launch, look.width, _INDENT)
    lines += wrapped(chapter.conclusion, look.width, _INDENT)
    lines += [""] * bool(chapter.facts and chapter.conclusion) + _blocks(chapter.facts, look, _INDENT)
    if chapter.advice:
        lines += ["", _INDENT + _title("ADVICE", chapter.legend, look._replace(width=look.width - len(_INDENT)))]
    more = (look.paint(line, DIM) for line in wrapped(chapter.more, look.width, _INDENT))
    return [*lines, *_blocks(chapter.advice, look, _INDENT), *more]
