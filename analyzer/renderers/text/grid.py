"""Text grids: columns sized by content, aligned to headings, kernel names last; the parts of a page; colours."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kanalyze import outlets, units
from kanalyze.schema import unit_of

if TYPE_CHECKING:
    Row = dict[str, Any]


class Look(NamedTuple):
    """Display options of text: width in columns, and whether ANSI colour codes are allowed."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        """`text` in an SGR colour, or unchanged without colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


_GAP: Final = "  "


#: Minimum width of a kernel name, and of a text that is truncated.
LEAST_NAME: Final = 20
_LEAST_CUT: Final = 12


#: Between what was and what became of it, and between an operator and what it called.
ARROW: Final = " → "

#: A number and its unit, kept on one line.
QUANTITY: Final = re.compile(r"(\d) (%|[nµm]?s|[kMGT]?B(?:/s)?)(?!\w)")


class Column(NamedTuple):
    """A column of a section as data: its heading, how it is laid out, and the text of each row of a table.

    `value` is a column of the table, or makes the text of a row. `say` formats what is in the column, by the unit in
    its name unless told; what is null or empty is `missing`. Numbers are right-aligned, words on the `left`; `wide`
    columns are left out where space is short, `spare` ones, from right to left, where it is shorter still.
    """

    title: str
    value: str | Callable[[Any], str] = ""
    say: Callable[[Any], str] | None = None
    left: bool = False
    wide: bool = False
    spare: bool = False
    missing: str = ""

    def text(self, row: Row) -> str:
        """The text of a row."""
        if not isinstance(self.value, str):
            return self.value(row)
        value = row[self.value]
        if value is None or value == "":
            return self.missing
        return self.say(value) if self.say else text_of(self.value, value)


class Grid(NamedTuple):
    """A grid of texts.

    With `named` the last column holds whole kernel names, for a renderer to shorten; with `cut` it ends where the
    line does, with `broken` only behind an arrow, from which it goes on below.
    """

    heads: tuple[Column, ...]
    rows: Sequence[tuple[str, ...]] = ()
    named: bool = False
    cut: bool = False
    broken: bool = False

    def names(self) -> list[str]:
        """The kernel names in the grid."""
        return [row[-1] for row in self.rows] if self.named else []

    def room_for_names(self, width: int) -> int:
        """The width left for kernel names."""
        return width - self._width(self._fitting(width)[:-1]) - len(_GAP)

    def lines(self, width: int, names: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
        """The heading line and one line per row, two where one is broken; kernel names replaced through `names`."""
        kept = self._fitting(width)
        heads = [self.heads[column] for column in kept]
        cells = [[outlets.line(row[column]) for column in kept] for row in self.rows]
        if self.named and names is not None:
            cells = [[*row[:-1], names.get(name, name)] for row, name in zip(cells, self.names(), strict=True)]
        if self.cut:
            room = max(width - self._width(kept[:-1]) - len(_GAP), _LEAST_CUT)
            cells = [part for row in cells for part in (_broken(row, room) if self.broken else [row])]
            last = [row[-1] for row in cells]
            shown = [text if len(text) <= room else f"{text[: room - 1]}…" for text in last]
            if len({*shown}) < len({*last}):
                shown = distinct(last, room)
            cells = [[*row[:-1], name] for row, name in zip(cells, shown, strict=True)]
        titled = [[head.title for head in heads], *cells]
        sides = [
            (head.left, max(map(len, texts))) for head, texts in zip(heads, zip(*titled, strict=True), strict=True)
        ]
        first, *rows = (
            _GAP.join(
                text.ljust(width) if left else text.rjust(width) for text, (left, width) in zip(row, sides, strict=True)
            ).rstrip()
            for row in titled
        )
        return first, rows

    def _fitting(self, width: int) -> list[int]:
        """Columns that fit: all; else without `wide` ones, and as many `spare` ones as possible."""
        kept = list(range(len(self.heads)))
        if self._fits(kept, width, 32):
            return kept
        kept = [column for column in kept if not self.heads[column].wide]
        least = LEAST_NAME if self.named else _LEAST_CUT
        for column in [column for column in reversed(kept) if self.heads[column].spare]:
            if self._fits(kept, width, least):
                break
            kept.remove(column)
        return kept

    def _fits(self, columns: Sequence[int], width: int, enough: int) -> bool:
        """Whether columns fit, the last one, if it can be shortened, with at least `enough` characters."""
        last = self._width(columns[-1:])
        room = min(last, enough) if self.named or self.cut else last
        return self._width(columns[:-1]) + len(_GAP) + room <= width

    def _width(self, columns: Sequence[int]) -> int:
        widths = [max(len(self.heads[at].title), *(len(row[at]) for row in self.rows), 0) for at in columns]
        return sum(widths) + len(_GAP) * max(len(widths) - 1, 0)


class Section(NamedTuple):
    """A titled table, with a remark beside the title and optionally a line below."""

    title: str
    remark: str
    grid: Grid
    foot: str = ""

    @property
    def plain_title(self) -> str:
        """The title in sentence case: only abbreviations keep capitals."""
        first, *others = (word if word in ("CUDA", "NVTX") else word.lower() for word in self.title.split())
        return " ".join([first[:1].upper() + first[1:], *others])


_SAY: Final[dict[str, Callable[[float], str]]] = {
    "ns": units.time,
    "bytes": units.size,
    "bytes/s": units.rate,
    "Hz": lambda value: f"{value / 1_000_000:g} MHz",
    "0..1": units.percent,
    "FLOP": units.flop,
    "FLOP/s": lambda value: f"{units.flop(value)}/s",
    "FLOP/byte": lambda value: f"{value:.3g} FLOP/byte",
}


def words(title: str, name: str, say: Callable[[str], str] = str, missing: str = "(no name)") -> Column:
    """The last column of most sections: names, on the left."""
    return Column(title, name, say, left=True, missing=missing)


def numbers(**columns: str) -> list[Column]:
    """Columns of quantities by title, with ``_`` for spaces: what is in the table, and perhaps ``wide`` or ``spare``.

    Whole numbers without a unit are counts.
    """
    told = {title.replace("_", " "): text.partition(" ") for title, text in columns.items()}
    return [
        Column(title, name, None if unit_of(name) else units.count, wide=room == "wide", spare=room == "spare")
        for title, (name, _, room) in told.items()
    ]


def section(  # noqa: PLR0913 - as many as a section has parts
    title: str,
    table: pl.DataFrame | Sequence[Any],
    columns: Sequence[Column],
    top: int | None = None,
    remark: str = "",
    foot: str = "",
    *,
    named: bool = False,
    cut: bool = False,
    broken: bool = False,
) -> Section:
    """The section of the first `top` rows of a table or a list; the remark says how many where these are not all."""
    shown = table[:top]
    every = shown.iter_rows(named=True) if isinstance(shown, pl.DataFrame) else shown
    rows = [tuple(one.text(row) for one in columns) for row in every]
    grid = Grid((*columns,), rows, named=named, cut=cut, broken=broken)
    return Section(title, of(len(rows), len(table), remark), grid, foot)


def text_of(name: str, value: object) -> str:
    """Formats a value in the unit in its column's name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    if name.endswith(("start_ns", "end_ns")):
        return f"{value / 1_000_000:.6f} ms"
    if unit := unit_of(name):
        return _SAY[unit](value)
    if isinstance(value, float):
        return f"{value:g}"
    return units.count(value) if name == "count" else str(value)


def of(shown: int, total: int, remark: str = "") -> str:
    """A remark, with the number of rows shown if truncated."""
    part = f"{shown} of {total}" if shown < total else ""
    return "; ".join(text for text in (part, remark) if text)


def telling_apart(table: pl.DataFrame, names: Sequence[str], columns: Iterable[str]) -> list[str]:
    """The first of `columns` needed to distinguish rows of equal `names`."""
    needed: list[str] = []
    for column in columns:
        if table.select((pl.col(column).n_unique().over(*names, *needed) > 1).any()).item():
            needed.append(column)
    return needed


def operation(name: str) -> str:
    """A memory operation without nsys' brackets."""
    found = re.fullmatch(r"\[(?:CUDA|HIP) (.*)\]", name)
    return found[1] if found else name


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wraps `text` to `width` columns, without separating numbers from units."""
    bound = QUANTITY.sub("\\1\xa0\\2", text)
    width = max(width, LEAST_NAME)
    lines = textwrap.wrap(bound, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _broken(row: list[str], room: int) -> list[list[str]]:
    """The row, in two where its last cell is too long: what stands from an arrow on is below."""
    before, arrow, after = row[-1].partition(ARROW)
    if len(row[-1]) <= room or not arrow:
        return [row]
    return [[*row[:-1], before], [*("" for _ in row[:-1]), f"{arrow.lstrip()}{after}"]]


# Texts that are no kernel names, such as ranges and paths, shortened so that no two look alike.


def distinct(texts: Sequence[str], width: int) -> list[str]:
    """The texts in at most `width` characters each, different ones different; one that fits stays as it is.

    What is left out stands in the middle, or where that is what tells two of them apart at one of the ends.
    """
    owners = {text: text for text in texts if len(text) <= width}
    for text in texts:
        if len(text) > width and text not in owners.values():
            owners[next(form for form in _forms(text, width) if form not in owners)] = text
    return [*map({text: form for form, text in owners.items()}.__getitem__, texts)]


def _forms(text: str, width: int) -> Iterator[str]:
    """Shorter forms of a text, the first the best; endless, with a number at last."""
    kept = width - 1
    front = (kept + 1) // 2
    yield f"{text[:front]}…{text[len(text) - (kept - front) :]}"
    yield f"…{text[-kept:]}"
    yield f"{text[:kept]}…"
    for number in count(2):
        mark = f"…#{number}"
        yield f"{text[: max(width - len(mark), 0)]}{mark}"


# Chapters of a page: one kernel each, as texts without layout.


class Advice(NamedTuple):
    """One advice: estimated gain, observation and its source, action."""

    worth: str
    sentence: str
    remedy: str


class Chapter(NamedTuple):
    """The chapter of one kernel: name, launch line, conclusion, labelled facts, advice."""

    name: str
    launch: str
    conclusion: str
    facts: list[tuple[str, str]]
    advice: list[Advice]
    more: str = ""
    legend: str = "at most this part of the duration; in brackets: of one unit of the GPU"


# Colours of buckets: in pictures and HTML three times as light or dark as paper, in both themes.

#: A colour and the SGR code of a terminal's, for each bucket, and for what is left beside the largest ones.
_BUCKETS: Final = {
    "kernel": ("#2ca25f", "32"),
    "communication": ("#c51b8a", "35"),
    "memcpy": ("#2b8cbe", "34"),
    "memset": ("#1f9aaa", "36"),
    "profiler": ("#707070", "90"),
    "loading": ("#d5801c", "33"),
    "allocation": ("#a98a00", "93"),
    "launch": ("#d73027", "31"),
    "queued": ("#9e6ebd", "95"),
    "sync": ("#f0643a", "91"),
    "api": ("#3f9f82", "96"),
    "host": ("#4575b4", "94"),
    "unknown": ("#929292", "37"),
    "rest": ("#929292", "37"),
}
COLOURS: Final = {bucket: colour for bucket, (colour, _) in _BUCKETS.items()}
CODES: Final = {bucket: code for bucket, (_, code) in _BUCKETS.items()}

#: Buckets on whose colours white is easier to read than black.
DARK: Final = ("communication", "profiler", "launch", "host")
