"""Renders one table for the terminal: the columns that fit, names that differ, sentences wrapped below their row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze import outlets, units
from kanalyze.analyses.joining.agreement import REASONS, VERDICTS
from kanalyze.renderers.tables.frame import KERNELS, PHRASES, is_text, last_of, on_phrases
from kanalyze.renderers.text.grid import LEAST_NAME, Column, Grid, distinct, section, text_of, words, wrapped
from kanalyze.renderers.text.kernel_names import short_forms, shorten

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.renderers.text.grid import Row

#: Columns of sentences, which are wrapped; of several, the label of all but the first stands before it.
PROSE: Final = ("sentence", "remedy", "effect", "evidence", "headline", "action")

#: Those that say in brief what another one says; shown where they are asked for.
_BRIEF: Final = {"headline": "sentence", "action": "remedy"}

#: The column of reports, where a table is of several.
_REPORT: Final = "report"

#: Most width of texts between other columns: 0.3 of the line, within these bounds.
_TEXT: Final = (24, 48)

#: Most width that the column of names gets before others are shown: else 0.4 of the line.
_NAME_MOST: Final = 60


_GAP: Final = 2


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


#: The columns that fit, as they are declared.
_DECLARED: Final = Choice()


def terminal(frame: pl.DataFrame, width: int, choice: Choice = _DECLARED) -> str:
    """Renders a table for the terminal, with units; shows the columns that fit `width`.

    Of those that are no first choice, the ones that are equal in all rows go first, then the last ones. A last line
    says which are hidden. Names are shortened so that they differ, and sentences wrapped below their row.
    """
    every = choice.every or choice.given
    wanted = [name for name in frame.columns if every or _BRIEF.get(name) not in frame.columns]
    told = [name for name in wanted if name in PROSE]
    names = [name for name in wanted if name not in told]
    fitting = _Fitting(frame, width, last_of(names))
    if not every:
        names = fitting.chosen(names, [*(_REPORT, "instance"), *choice.first])
    if not choice.given:
        names.sort(key=lambda name: name == fitting.last)
    prose = [fitting.cells(name, outlets.LONGEST) for name in told]
    lines = _lines(fitting.widest(names), prose, width)
    hidden = [name for name in frame.columns if name not in {*names, *told}]
    lines += [_hint(hidden, choice.how, width)] if hidden else []
    return "".join(f"{line}\n" for line in lines)


class _Fitting:
    """The columns of a frame as texts at a width, one of which may be long; what is not tried is not formatted."""

    def __init__(self, frame: pl.DataFrame, width: int, last: str | None) -> None:
        self.last = last
        self._frame, self._width = frame, width
        self._narrow = min(max(int(width * 0.3), _TEXT[0]), _TEXT[1])
        self._texts: dict[str, list[str]] = {}
        self._name_width = 0

    def chosen(self, names: Sequence[str], first: Sequence[str]) -> list[str]:
        """The columns that fit: the one that may be long, those of `first`, those that tell rows apart, others."""
        rank = {name: self._rank(name, first) for name in names}
        taken: dict[str, int] = {}
        full = False
        for name in sorted(names, key=rank.__getitem__):
            if full and rank[name] >= len(first):
                break  # a narrow one further on would tell less
            width = self._least(self.cells(name, self._narrow))
            if taken and sum(taken.values()) + _GAP * len(taken) + width > self._width:
                full = True
            else:
                taken[name] = width
        return [name for name in names if name in taken]

    def widest(self, names: Sequence[str]) -> list[_Cells]:
        """These columns, texts as long as the width allows, and names as long as the other columns leave room for.

        All have a usual length where they do not fit at all.
        """
        for room in (outlets.LONGEST, *range(_TEXT[1], self._narrow - 1, -4), _TEXT[1]):
            shown = [self.cells(name, room) for name in names]
            if sum(map(self._least, shown)) + _GAP * (len(shown) - 1) <= self._width:
                break
        left = self._width - sum(one.width + _GAP for one in shown if not one.elastic)
        left = left if left >= LEAST_NAME else _NAME_MOST
        return [one._replace(texts=_shortened(one.name, one.texts, left)) if one.elastic else one for one in shown]

    def cells(self, name: str, room: int) -> _Cells:
        """A column, its texts in at most `room` characters unless they are stretched later."""
        if name not in self._texts:
            texts = [text_of(name, value) for value in self._frame.get_column(name)]
            self._texts[name] = [*map(outlets.short, outlets.short_paths(texts) if name == _REPORT else texts)]
        left = is_text(self._frame.schema[name])
        elastic = name == self.last and name in KERNELS
        texts = self._texts[name]
        return _Cells(name, _shortened(name, texts, room) if left and not elastic else texts, left, elastic)

    def _rank(self, name: str, first: Sequence[str]) -> int:
        """The order in which columns are tried: the one that stands last, `first`, differing values, equal ones."""
        if name == self.last:
            return -1
        values = self._frame.get_column(name)
        if name in first and values.null_count() < max(values.len(), 1):
            return first.index(name)
        different = values.n_unique() > (1 if values.len() > 1 else values.null_count())
        return len(first) + (not different)

    def _least(self, cells: _Cells) -> int:
        """The width that a column needs: of names that of what they are when shortened."""
        if not cells.elastic:
            return cells.width
        if not self._name_width:
            least = min(max(int(self._width * 0.4), LEAST_NAME), _NAME_MOST)
            self._name_width = cells._replace(texts=_shortened(cells.name, cells.texts, least)).width
        return self._name_width


def _shortened(name: str, texts: list[str], room: int) -> list[str]:
    """Texts of a column in at most `room` characters, different ones different."""
    different = list(dict.fromkeys(texts))
    if max(map(len, different), default=0) <= room:
        return texts
    if name not in PHRASES:
        short = (shorten if name in KERNELS else distinct)(different, room)
    elif max(map(len, short := on_phrases(different, room))) > room:
        short = distinct(on_phrases(different, max(room - 16, LEAST_NAME)), room)
    return [*map(dict(zip(different, short, strict=True)).__getitem__, texts)]


def _lines(shown: Sequence[_Cells], prose: Sequence[_Cells], width: int) -> list[str]:
    """Heading and rows; sentences in the row if all fit there, else wrapped below it."""
    beside = [*shown, *prose]
    below = len(prose) > 1 or sum(one.width + _GAP for one in beside) - _GAP > width
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


def _hint(hidden: Sequence[str], how: str, width: int) -> str:
    """A line that says how many columns are hidden, `how` to see them, and as many of their names as fit."""
    said = f"{units.plural(len(hidden), 'column')} hidden{how and f' ({how})'}"
    for count in range(len(hidden), 0, -1):
        line = f"{said}: {', '.join(hidden[:count])}{', …' * (count < len(hidden))}"
        if len(line) <= width:
            return line
    return said


# The comparison of two tools on one program, side by side.


def agreement(rows: pl.DataFrame, shown: pl.DataFrame, width: int) -> str:
    """Renders counts of all `rows` by verdict, the rows in `shown`, and the meaning of the reasons."""
    verdicts = rows.get_column("verdict").to_list()
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    told = [f"{units.plural(rows.height, 'figure')}: {counted}"]
    report = Column("report", lambda row: PurePath(row["report"]).name, left=True)
    columns = [
        *([report] if "report" in shown.columns else []),
        Column("figure", "figure", left=True),
        Column("first", partial(_value, "first")),
        Column("tool", "first_tool", left=True, wide=True),
        Column("second", partial(_value, "second")),
        Column("tool", "second_tool", left=True),
        Column("difference", partial(_value, "difference")),
        Column(
            "why", lambda row: row["reason"] or ("?" if row["verdict"] == "unexplained" else ""), left=True, spare=True
        ),
        words("kernel or copy", "name"),
    ]
    if shown.height:
        grid = section("", shown, columns, named=True).grid
        head, lines = grid.lines(width, short_forms(grid.names(), max(grid.room_for_names(width), LEAST_NAME)))
        told += ["", head, *lines]
    used = shown.get_column("reason").unique(maintain_order=True).drop_nulls().to_list()
    told += [""] * bool(used) + [f"{reason}: {REASONS[reason]}" for reason in used]
    return "\n".join(told) + "\n"


def _value(name: str, row: Row) -> str:
    if row[name] is None:
        return "-"
    size, unit = abs(row[name]), row["unit"]
    say = {"ns": units.time, "bytes": units.size}.get(unit, units.count)
    return ("-" if row[name] < 0 else "") + (units.percent(size) if unit == "share" else say(int(size)))
