"""What pages are made of, whatever they are of: columns, grids and sections as data, their texts, and what builds them.

A page is texts without layout, which every format renders. Columns of a grid are sized by content and aligned to their
headings; kernel names stand last.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import polars as pl

from kanalyze import outlets, schema, units
from kanalyze.renderers.page.kernel_names import distinct, short_forms

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.analyses.comparing._comparison import Comparison, Noise
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.overview_page import Summary
    from kanalyze.analyses.ranges.instances import Instances
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.replay._whatif import WhatIf
    from kanalyze.report import Meta
    from kanalyze.window import Scope

#: What a page is made of.
Shown: TypeAlias = "Summary | Instances | Comparison | Noise | Job | WhatIf"

#: A row of a table.
Row: TypeAlias = dict[str, Any]


#: SGR codes of a terminal: bold, dim.
BOLD, DIM = "1", "2"


class Look(NamedTuple):
    """Display options of text: width in columns, and whether ANSI colour codes are allowed."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        """`text` in an SGR colour, or unchanged without colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


#: Between columns of a grid.
GAP: Final = "  "

#: Minimum width of a kernel name, and of a text that is truncated.
LEAST_NAME, _LEAST_CUT = 20, 12

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
        return width - self._width(self._fitting(width)[:-1]) - len(GAP)

    def lines(self, width: int, names: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
        """The heading line and one line per row, two where one is broken; kernel names replaced through `names`."""
        kept = self._fitting(width)
        cells = [[outlets.line(row[column]) for column in kept] for row in self.rows]
        if self.named and names is not None:
            cells = [[*row[:-1], names.get(name, name)] for row, name in zip(cells, self.names(), strict=True)]
        if self.cut:
            room = max(width - self._width(kept[:-1]) - len(GAP), _LEAST_CUT)
            cells = [part for row in cells for part in (_broken(row, room) if self.broken else [row])]
            last = [row[-1] for row in cells]
            shown = [outlets.cut(text, room) for text in last]
            if len({*shown}) < len({*last}):
                shown = distinct(last, room)
            cells = [[*row[:-1], name] for row, name in zip(cells, shown, strict=True)]
        titled = [[self.heads[column].title for column in kept], *cells]
        widths = [max(map(len, texts)) for texts in zip(*titled, strict=True)]
        sides = [f"{'<' if self.heads[column].left else '>'}{wide}" for column, wide in zip(kept, widths, strict=True)]
        first, *rows = (GAP.join(map(format, row, sides)).rstrip() for row in titled)
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
        return self._width(columns[:-1]) + len(GAP) + (min(last, enough) if self.named or self.cut else last) <= width

    def _width(self, columns: Sequence[int]) -> int:
        widths = [max(len(self.heads[at].title), *(len(row[at]) for row in self.rows), 0) for at in columns]
        return sum(widths) + len(GAP) * max(len(widths) - 1, 0)


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


def some(say: Callable[[Any], str]) -> Callable[[Any], str]:
    """What says a figure, and nothing of 0."""
    return lambda figure: say(figure) if figure else ""


def words(title: str, name: str, say: Callable[[str], str] = str, missing: str = "(no name)") -> Column:
    """The last column of most sections: names, on the left."""
    return Column(title, name, say, left=True, missing=missing)


def numbers(*, missing: str = "", **columns: str) -> list[Column]:
    """Columns of quantities by title, with ``_`` for spaces: what is in the table, and perhaps ``wide`` or ``spare``.

    Whole numbers without a unit are counts.
    """
    parts = {title.replace("_", " "): text.partition(" ") for title, text in columns.items()}
    quantities = [
        Column(title, name, None if schema.unit_of(name) else units.count, wide=room == "wide", spare=room == "spare")
        for title, (name, _, room) in parts.items()
    ]
    return [column._replace(missing=missing) for column in quantities]


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
        whole, rest = divmod(round(value), 10**9)
        return f"{value / 1_000_000:.6f} ms" if abs(value) < 10**9 else f"{whole}.{rest:09} s"
    if unit := schema.unit_of(name):
        return _SAY[unit](value)
    if isinstance(value, float):
        return f"{value:g}"
    return units.count(value) if name == "count" else str(value)


def of(shown: int, total: int, remark: str = "") -> str:
    """A remark, with the number of rows shown if truncated."""
    return "; ".join(text for text in ((f"{shown} of {total}" if shown < total else ""), remark) if text)


def telling_apart(table: pl.DataFrame, names: Sequence[str], columns: Iterable[str]) -> list[str]:
    """The first of `columns` needed to distinguish rows of equal `names`."""
    needed: list[str] = []
    for column in columns:
        if table.select((pl.col(column).n_unique().over(*names, *needed) > 1).any()).item():
            needed.append(column)
    return needed


def operation(name: str) -> str:
    """A memory operation without nsys' brackets."""
    return re.sub(r"\A\[(?:CUDA|HIP) (.*)\]\Z", r"\1", name)


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


# Chapters of a page: one kernel each, as texts without layout.


class Block(NamedTuple):
    """A title and a text beside it."""

    title: str
    text: str


class Chapter(NamedTuple):
    """The chapter of one kernel: name, launch line, conclusion, labelled facts, advice by estimated gain."""

    name: str
    launch: str
    conclusion: str
    facts: list[Block]
    advice: list[Block]
    more: str
    legend: str = "at most this part of the duration; in brackets: of one unit of the GPU"


# Colours of buckets: in pictures and HTML three times as light or dark as paper, in both themes.

#: Glyphs of the parts of a rank's step.
PARTS: Final = {"kernel": "█", "waiting": "░", "transfer": "▓", "rest": "·"}

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


# The page.


class Share(NamedTuple):
    """One bucket of a ledger: name, share of the bar, texts.

    `detail` says what most of it was; `plain` what it is, where there is no such detail, or no space for it; `spread`
    the least and the most of it, of several iterations.
    """

    bucket: str
    ns: int
    time: str
    share: str
    detail: str
    plain: str
    spread: str = ""

    @property
    def description(self) -> str:
        """The detail, else the plain description."""
        return self.detail or self.plain


class Ledger(NamedTuple):
    """A device's ledger: heading, buckets (longest first), total, busy share over time."""

    heading: str
    window_ns: int
    shares: list[Share]
    total: str
    busy: list[float]
    title: str = "WHERE THE TIME WENT"
    span: tuple[str, str] = ("", "")


class Point(NamedTuple):
    """A finding on the page: the time that it takes, what is wrong, and what to do.

    `headline` has places for kernel names. `saved` is what a replay says that it saves; empty where none was made.
    `beside` is one about other time with the same action.
    """

    worth: str
    finding: Finding
    headline: str
    action: str
    saved: str = ""
    beside: Point | None = None

    def together(self) -> list[Point]:
        """Findings of one action: this one, and the one beside it."""
        return [self] if self.beside is None else [self, self.beside]

    def said(self, names: Mapping[str, str], escaped: Callable[[str], str] = str) -> str:
        """The headline, `escaped`, with kernel names shortened by `names`."""
        return escaped(self.headline).format(*(names[name] for name in self.finding.names))

    def sentence(self, names: Mapping[str, str]) -> str:
        """The whole finding, with kernel names shortened by `names`."""
        return self.finding.text.format(*(names[name] for name in self.finding.names))


class Page(NamedTuple):
    """A page: heading, answer, tables, closing line, ledgers, findings, chapters per kernel."""

    heading: list[str]
    answer: str
    sections: Sequence[Section]
    more: str
    ledgers: Sequence[Ledger] = ()
    points: Sequence[Point] = ()
    points_remark: str = ""
    cannot_tell: Sequence[str] = ()
    chapters: Sequence[Chapter] = ()
    blocks: Sequence[Block] = ()

    @property
    def beside(self) -> str:
        """The heading behind the name."""
        return " · ".join(self.heading[1:])


def short_names(page: Page, width: int) -> dict[str, str]:
    """Maps kernel names on the page to unique short forms of at most `width` characters.

    Two kernels that differ never have the same short form.
    """
    tables = [name for section in page.sections for name in section.grid.names()]
    findings = [name for point in page.points for one in point.together() for name in one.finding.names]
    return short_forms([*tables, *findings, *(chapter.name for chapter in page.chapters)], width)


#: Rows in each table of a page, unless told; of one that is read first, or pasted.
_USUAL_ROWS, ROWS = 8, 6

#: What builds the page of a kind of summary: the module of this package, its function, and the rows unless told. A
#: command makes pages of one kind, and does not wait for the modules of the others.
_BUILDERS: Final = {
    "comparison": ("comparison", "comparison_page", ROWS),
    "counters": ("counters", "counters_page", _USUAL_ROWS),
    "evidence": ("overview", "evidence_page", ROWS),
    "instances": ("time", "instances_page", _USUAL_ROWS),
    "job": ("job", "job_page", ROWS),
    "joint": ("counters", "joint_page", _USUAL_ROWS),
    "noise": ("comparison", "noise_page", ROWS),
    "overview": ("overview", "overview_page", ROWS),
    "time": ("time", "page_of", _USUAL_ROWS),
    "whatif": ("comparison", "whatif_page", _USUAL_ROWS),
}


def page_of_any(shown: Shown, top: int | None) -> Page:
    """Builds the page of any summary, at most `top` rows per table, or as many as suit it; texts are printable."""
    module, name, rows = _BUILDERS[shown.kind]
    page: Page = _plain(getattr(import_module(f"{__name__}.{module}"), name)(shown, rows if top is None else top))
    return page


def _plain(value: Any, field: str = "") -> Any:  # noqa: ANN401 - whatever a page consists of
    """Makes every text in a part of a page one printable line; kernel names stay whole, for renderers to shorten."""
    if field in _OTHERWISE:
        return _OTHERWISE[field](value)
    if isinstance(value, str):
        return outlets.short(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value, value._fields))
    return type(value)(map(_plain, value)) if isinstance(value, list | tuple) else value


def _plain_grid(grid: Grid) -> Grid:
    whole = len(grid.heads) - grid.named
    return grid._replace(rows=[(*map(outlets.short, row[:whole]), *row[whole:]) for row in grid.rows])


def _plain_finding(finding: Finding) -> Finding:
    """A finding whose sentences are not cut: they have places for names."""
    names = ("text", "remedy", "headline", "action", "where", "line")
    sentences: dict[str, Any] = {name: outlets.line(getattr(finding, name)) for name in names}
    return finding._replace(**sentences)


#: Fields of a page that are no plain texts: a chapter's name is a kernel's, commands are a line each, and sentences of
#: findings, with places for names, are not cut.
_OTHERWISE: Final[dict[str, Callable[[Any], Any]]] = {
    "action": outlets.line,
    "finding": _plain_finding,
    "grid": _plain_grid,
    "headline": outlets.line,
    "more": outlets.lines,
    "name": str,
}

# What pages of several kinds have.

#: nsys' name for unspecified overhead, and ours.
UNNAMED: Final = {"Unknown": "unnamed"}

#: A part of a bucket is named from this share of it on.
WORTH_NAMING: Final = 0.02

#: Folders in the file of a Python function, such as ``train/steps.py(31): step``; and an enclosing such function.
#: Anchored at word starts, since trying every letter of a long word is quadratic.
_FOLDERS: Final = re.compile(r"(?<![^\s<>])[^\s<>]*/(?=[^\s/<>]+\.py\(\d+\): )")
_AROUND: Final = re.compile(r"(?<=.) in [^\s<>]+\.py\(\d+\): \S+$")


def unversioned(call: str) -> str:
    """Strips the version suffix from a CUDA call."""
    return re.sub(r"_v\d{4,5}\b", "", call)


def without_folders(culprit: str) -> str:
    """Strips folders from Python file names in a culprit."""
    return _FOLDERS.sub("", culprit)


def without_function(culprit: str) -> str:
    """Strips the enclosing Python function from a culprit, unless nothing else is left."""
    return without_folders(_AROUND.sub("", culprit))


def options(scope: Scope) -> list[str]:
    """The options that choose what is in `scope`."""
    chosen = {"window": scope.window, "device": scope.device, "process": scope.process, "capture": scope.capture}
    given = [*chosen.items(), *(("steps", label) for label in scope.labels)]
    return [word for name, value in given if value is not None for word in (f"--{name}", str(value))]


def paths(summary: Summary) -> list[Path]:
    """What to give to a command for all reports of a page: those in a capture's folder are that folder."""
    every = (one.path for one in (summary.meta, *summary.others) if one.path.parent != summary.meta.path)
    return [*dict.fromkeys(every)]


def rank_of(meta: Meta) -> list[str]:
    """``rank 2 of 8``, where a report names its rank."""
    of = f" of {meta.world_size}" if meta.world_size else ""
    return [] if meta.rank is None else [f"rank {meta.rank}{of}"]


def health_line(health: pl.DataFrame) -> str:
    """How far the report can be trusted, in a line; of what a tool says itself the first sentence."""
    wrong = health.filter("doubt").select("check", "count").iter_rows()
    checks = [units.checked(re.split(r"\.(?=\s|[A-Z])", check, maxsplit=1)[0], count) for check, count in wrong]
    return f"health: {'; '.join(checks) or 'complete'}"


def shares_of(parts: Iterable[tuple[str, float]], whole: float) -> str:
    """Parts of a whole by name, in whole percents: ``gemm 61 %, softmax 20 %``."""
    return ", ".join(f"{name} {part / max(whole, 1):.0%}".replace("%", " %") for name, part in parts)
