"""Renders one table: as much as fits the terminal, and its cells as text with units."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze import errors, outlets, schema, units
from kanalyze.renderers.page import GAP, LEAST_NAME, Column, Grid, kernel_names, operation, text_of, wrapped

#: All columns, as a choice of columns.
ALL: Final = "all"

#: The column of reports, where a table is of several.
REPORT: Final = "report"

#: Column printed last, since it may be long: the first of these in the table.
_LAST: Final = ("sentence", "effect", "evidence", "kernel", "name", "operation", "culprit", "waited_for")

#: Columns that may hold kernel names: the last column is fitted to the remaining space, others are short.
KERNELS: Final = (
    *("kernel", "base_kernel", "new_kernel", "name", "operation", "function", "what", "mostly", "first", "ended_by"),
    *("culprit", "waited_for"),
)

#: Those of them that hold phrases, too.
PHRASES: Final = ("culprit", "waited_for")


def joined(parts: Mapping[str | None, pl.DataFrame], column: str = "instance") -> pl.DataFrame:
    """Concatenates the tables of several windows or reports with a leading `column`; a single unnamed one stays."""
    if None in parts:
        return parts[None]
    frames = []
    several = any("instance" in frame.columns for frame in parts.values())
    for name, frame in parts.items():
        keys = {column: name and outlets.name(name)}
        if several and "instance" not in frame.columns:  # others have the windows that they are of
            keys["instance"] = None
        frames.append(frame.select(*(pl.lit(text, dtype=pl.String).alias(key) for key, text in keys.items()), pl.all()))
    return pl.concat(frames)


def of_reports(tables: Sequence[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Concatenates the tables of several reports with a leading column `report`.

    Texts take the place of categories, which differ from report to report.
    """
    plain = pl.col(pl.Categorical).cast(pl.String)
    return joined({report: frame.with_columns(plain) for report, frame in tables}, REPORT)


def arranged(frame: pl.DataFrame, sort: str | None, top: int | None, each: str | None = None) -> pl.DataFrame:
    """Sorts `frame` by a column (descending with a leading minus) and truncates it to `top` rows.

    Without `sort` these are that many for `each` value of a column, if one is named.

    Raises UnknownNameError if there is no such column.
    """
    if sort is not None:
        name = sort.removeprefix("-")
        errors.refuse_unknown("column", name, frame.columns)
        frame = frame.sort(name, descending=sort.startswith("-"), nulls_last=True, maintain_order=True)
    if top is None or sort is not None or each is None:
        return frame if top is None else frame.head(top)
    return frame.filter(pl.int_range(pl.len()).over(each) < top)


def chosen(frame: pl.DataFrame, columns: str | None) -> pl.DataFrame:
    """The columns that a comma-separated list names, in its order; the whole frame for None and ``all``.

    Raises UnknownNameError if there is no such column.
    """
    if columns is None or columns.strip() == ALL:
        return frame
    names = list(dict.fromkeys(name.strip() for name in columns.split(",") if name.strip()))
    for name in names or [columns]:
        errors.refuse_unknown("column", name, frame.columns)
    return frame.select(names)


def laid_out(frame: pl.DataFrame) -> Grid:
    """Formats a table's cells with units, the column of names last."""
    last = last_of(frame.columns)
    order = [name for name in frame.columns if name != last] + ([last] if last else [])
    named, cells = last in KERNELS and last not in PHRASES, []
    for name in order:
        texts = [text_of(name, value) for value in frame.get_column(name)]
        if not named or name != last:
            texts = [*map(outlets.short, kernel_names.on_phrases(texts, 48) if name in KERNELS else texts)]
        cells.append(texts)
    heads = tuple(Column(name, left=is_text(frame.schema[name])) for name in order)
    return Grid(heads, list(zip(*cells, strict=True)), named=named)


def markdown(frame: pl.DataFrame) -> str:
    """A table of Markdown with units, numbers right-aligned, names of kernels shortened."""
    cells = []
    for name in frame.columns:
        texts = [text_of(name, value) for value in frame.get_column(name)]
        if name in KERNELS and name not in PHRASES:
            cells.append([*map(outlets.code, kernel_names.shorten(texts, NAME_MOST))])
        else:
            cells.append([*map(outlets.markdown, texts)])
    rules = [":--" if is_text(kind) else "--:" for kind in frame.schema.values()]
    return "".join(f"| {' | '.join(row)} |\n" for row in (frame.columns, rules, *zip(*cells, strict=True)))


def last_of(names: Sequence[str]) -> str | None:
    """The column that is printed last, since it may be long; None if there is none."""
    return next((name for name in _LAST if name in names), None)


def is_text(kind: pl.DataType) -> bool:
    """Whether a column's values are texts, which are left-aligned."""
    return kind in (pl.String, pl.Categorical, pl.Enum)


# The table for a terminal: the columns that fit, names that differ, sentences wrapped below their row.

#: Columns of sentences, which are wrapped; of several, the label of all but the first stands before it.
PROSE: Final = ("sentence", "remedy", "effect", "evidence", "headline", "action")

#: Those that say in brief what another one says; shown where they are asked for.
_BRIEF: Final = {"headline": "sentence", "action": "remedy"}

#: Most width of texts between other columns: 0.3 of the line, within these bounds.
_TEXT_WIDTHS: Final = (24, 48)

#: Their width where a first choice would be hidden otherwise.
_SHORTEST: Final = 16

#: Most width that the column of names gets before others are shown: else 0.4 of the line, or less for a first choice.
NAME_MOST: Final = 60
_NAME_SHARES: Final = (0.4, 0.35, 0.3)


class _Cells(NamedTuple):
    """A column's name, its texts, and whether they are shortened to the room that other columns leave."""

    name: str
    texts: list[str]
    left: bool = False
    elastic: bool = False

    @property
    def width(self) -> int:
        return max(len(self.name), *map(len, self.texts), 0)


class Choice(NamedTuple):
    """Columns that a table shows.

    Those that fit, `first` ones before others, and `how` to see the others; or `every` one, a column of names last
    unless they stand as `given`.
    """

    first: Sequence[str] = ()
    how: str = ""
    every: bool = False
    given: bool = False


def terminal(frame: pl.DataFrame, width: int, choice: Choice) -> str:
    """Renders a table for the terminal, with units; shows the columns that fit `width`.

    Columns without any value but 0 go first, then, of those that are no first choice, the ones that are equal in all
    rows, then the last ones. Names are shortened before a first choice goes, and so that they differ; a last line says
    what is hidden; sentences are wrapped below their row.
    """
    every = choice.every or choice.given
    wanted = [name for name in frame.columns if every or _BRIEF.get(name) not in frame.columns]
    prose = [name for name in wanted if name in PROSE]
    names = [name for name in wanted if name not in prose]
    fitting = _Fitting(frame, width, last_of(names))
    if not every:
        names = fitting.chosen(names, [*(REPORT, "instance"), *choice.first])
    if not choice.given:
        names.sort(key=lambda name: name == fitting.last)
    lines = _lines(fitting.widest(names), [fitting.cells(name, outlets.LONGEST) for name in prose], width)
    hidden = [name for name in frame.columns if name not in {*names, *prose}]
    if hidden:  # how many, how to see them, and as many of their names as fit
        remark = f"{units.plural(len(hidden), 'column')} hidden{choice.how and f' ({choice.how})'}"
        named = (", ".join([*hidden[:count], *["…"] * (count < len(hidden))]) for count in range(len(hidden), 0, -1))
        lines.append(next((line for text in named if len(line := f"{remark}: {text}") <= width), remark))
    return "".join(f"{line}\n" for line in lines)


class _Fitting:
    """The columns of a frame as texts at a width, one of which may be long; what is not tried is not formatted."""

    def __init__(self, frame: pl.DataFrame, width: int, last: str | None) -> None:
        self.last = last
        self._frame, self._width = frame, width
        self._narrow = min(max(int(width * 0.3), _TEXT_WIDTHS[0]), _TEXT_WIDTHS[1])
        self._name_share = _NAME_SHARES[0]
        self._texts: dict[str, list[str]] = {}
        self._name_width = 0

    def chosen(self, names: Sequence[str], first: Sequence[str]) -> list[str]:
        """The columns that fit: the one that may be long, those of `first`, those that tell rows apart, others.

        Where some of `first` do not fit, texts are as short as they may be, and none but these are shown.
        """
        rank = {}  # that which stands last, those of `first`, with different values, with equal ones, with 0, with none
        for name in names:
            values = self._frame.get_column(name)
            nothing = values.null_count() == values.len()
            zero = nothing or (values.dtype.is_numeric() and schema.unit_of(name) != "" and (values == 0).all())
            alike = zero or (values.len() > 1 and values.n_unique() == 1)
            if name in first and not zero:  # of first choices texts that are equal in all rows go first
                rank[name] = len(first) if alike and is_text(values.dtype) else first.index(name)
            else:
                rank[name] = len(first) + 1 + alike + zero + nothing
        if self.last in rank:
            rank[self.last] = -1
        order = sorted(names, key=rank.__getitem__)
        wanted = [name for name in order if rank[name] < len(first)]
        shown = self._fitting(order, len(wanted))
        for share in _NAME_SHARES[1:]:
            if {*wanted} <= shown:
                break
            self._narrow, self._name_share, self._name_width = _SHORTEST, share, 0
            shown = self._fitting([name for name in order if rank[name] <= len(first)], len(wanted))
        return [name for name in names if name in shown]

    def _fitting(self, order: Sequence[str], wanted: int) -> set[str]:
        """The columns that fit beside each other, those that come first in `order` before others."""
        shown: set[str] = set()
        left = self._width + len(GAP)
        for number, name in enumerate(order):
            needed = self._least(self.cells(name, self._narrow)) + len(GAP)
            if needed <= left or not shown:
                shown.add(name)
                left -= needed
            elif number >= wanted:
                break  # a narrow one further on would tell less
        return shown

    def widest(self, names: Sequence[str]) -> list[_Cells]:
        """These columns, texts as long as the width allows, and names as long as the other columns leave room for.

        All have a usual length where they do not fit at all.
        """
        for room in (outlets.LONGEST, *range(_TEXT_WIDTHS[1], self._narrow - 1, -4), _TEXT_WIDTHS[1]):
            shown = [self.cells(name, room) for name in names]
            if sum(map(self._least, shown)) + len(GAP) * (len(shown) - 1) <= self._width:
                break
        left = self._width - sum(one.width + len(GAP) for one in shown if not one.elastic)
        left = left if left >= LEAST_NAME else NAME_MOST
        return [one._replace(texts=shortened(one.name, one.texts, left)) if one.elastic else one for one in shown]

    def cells(self, name: str, room: int) -> _Cells:
        """A column, its texts in at most `room` characters unless they are stretched later."""
        if name not in self._texts:
            texts = [text_of(name, value) for value in self._frame.get_column(name)]
            self._texts[name] = [*map(outlets.short, outlets.short_paths(texts) if name == REPORT else texts)]
        left = is_text(self._frame.schema[name])
        elastic = name == self.last and name in KERNELS
        texts = self._texts[name]
        return _Cells(name, shortened(name, texts, room) if left and not elastic else texts, left, elastic)

    def _least(self, cells: _Cells) -> int:
        """The width that a column needs: of names that of what they are when shortened."""
        if not cells.elastic:
            return cells.width
        if not self._name_width:
            least = min(max(int(self._width * self._name_share), LEAST_NAME), NAME_MOST)
            self._name_width = cells._replace(texts=shortened(cells.name, cells.texts, least)).width
        return self._name_width


def shortened(name: str, texts: list[str], room: int) -> list[str]:
    """The texts of the column `name` in at most `room` characters, different ones different."""
    different = list(dict.fromkeys(texts))
    if max(map(len, different), default=0) <= room:
        return texts
    if name not in PHRASES:
        bare = [text if len(text) <= room else operation(text) for text in different]
        short = kernel_names.shorten(bare, room) if name in KERNELS else kernel_names.distinct(different, room)
    elif max(map(len, short := kernel_names.on_phrases(different, room))) > room:
        short = kernel_names.distinct(kernel_names.on_phrases(different, max(room - 16, LEAST_NAME)), room)
    return [*map(dict(zip(different, short, strict=True)).__getitem__, texts)]


def _lines(shown: Sequence[_Cells], prose: Sequence[_Cells], width: int) -> list[str]:
    """Heading and rows; sentences in the row if all fit there, else wrapped below it."""
    beside = [*shown, *prose]
    below = len(prose) > 1 or sum(one.width + len(GAP) for one in beside) - len(GAP) > width
    columns = shown if below else beside
    heads = tuple(Column(one.name, left=one.left) for one in columns)
    cells = list(zip(*(one.texts for one in columns), strict=True))
    head, rows = Grid(heads, cells).lines(0) if columns else (prose[0].name, [""] * len(prose[0].texts))
    lines = [head]
    for number, row in enumerate(rows):
        lines += [row] * bool(columns)
        for one in prose if below else ():
            label = "" if one is prose[0] else f"{one.name}: "
            lines += wrapped(label + one.texts[number], width, "    ") if one.texts[number] else []
    return lines if rows else [head, "(no rows)"]
