"""Renders one table for the terminal: the columns that fit, names that differ, sentences wrapped below their row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze import outlets, units
from kanalyze.renderers.tables.frame import KERNELS, PHRASES, is_text, last_of, on_phrases
from kanalyze.renderers.text.grid import LEAST_NAME, Column, Grid, distinct, text_of, wrapped
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

#: Columns of sentences, which are wrapped; of several, the label of all but the first stands before it.
PROSE: Final = ("sentence", "remedy", "effect", "evidence", "headline", "action")

#: Those that say in brief what another one says; shown where they are asked for.
_BRIEF: Final = {"headline": "sentence", "action": "remedy"}

#: Columns that say what a row is of, where a table is of several windows or reports.
_REPORT: Final = "report"
_KEYS: Final = (_REPORT, "instance")

#: Most width of texts between other columns: this share of the line, within these bounds.
_TEXT_SHARE: Final = 0.3
_TEXT_LEAST: Final = 24
_TEXT_MOST: Final = 48

#: By so much less are they tried until all fits.
_STEP: Final = 4

#: Width that the column of names gets before others are shown: this share of the line, within these bounds.
_NAME_SHARE: Final = 0.4
_NAME_MOST: Final = 60

#: Width of what stands around a kernel's name in a phrase, of which it is shortened.
_AROUND: Final = 16

_GAP: Final = 2
_INDENT: Final = "    "


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
    fitting = _Fitting(frame, width, names)
    if not every:
        names = fitting.chosen(names, [*_KEYS, *choice.first])
    if not choice.given:
        names = fitting.in_order(names)
    prose = [fitting.cells(name, outlets.LONGEST) for name in told]
    lines = _lines(_stretched(fitting.widest(names), width), prose, width)
    hidden = [name for name in frame.columns if name not in {*names, *told}]
    lines += [_hint(hidden, choice.how, width)] if hidden else []
    return "".join(f"{line}\n" for line in lines)


class _Fitting:
    """The columns of a frame as texts at a width; what is not tried is not formatted."""

    def __init__(self, frame: pl.DataFrame, width: int, names: Sequence[str]) -> None:
        self._frame, self._width = frame, width
        self._last = last_of(names)
        self._narrow = min(max(int(width * _TEXT_SHARE), _TEXT_LEAST), _TEXT_MOST)
        self._texts: dict[str, list[str]] = {}
        self._names: int | None = None

    def chosen(self, names: Sequence[str], first: Sequence[str]) -> list[str]:
        """The columns that fit: the one that may be long, those of `first`, those that tell rows apart, others."""
        rank = {name: self._rank(name, first) for name in names}
        found: dict[str, int] = {}
        full = False
        for name in sorted(names, key=rank.__getitem__):
            if full and rank[name] >= len(first):
                break  # a narrow one further on would tell less
            width = self._least(self.cells(name, self._narrow))
            if found and sum(found.values()) + _GAP * len(found) + width > self._width:
                full = True
            else:
                found[name] = width
        return [name for name in names if name in found]

    def in_order(self, names: Sequence[str]) -> list[str]:
        """The columns with the one that may be long last."""
        return sorted(names, key=lambda name: name == self._last)

    def widest(self, names: Sequence[str]) -> list[_Cells]:
        """These columns, texts as long as the width allows; at a usual length where they do not fit at all."""
        for room in (outlets.LONGEST, *range(_TEXT_MOST, self._narrow - 1, -_STEP)):
            found = [self.cells(name, room) for name in names]
            if sum(map(self._least, found)) + _GAP * (len(found) - 1) <= self._width:
                return found
        return [self.cells(name, _TEXT_MOST) for name in names]

    def cells(self, name: str, room: int) -> _Cells:
        """A column, its texts in at most `room` characters unless they are stretched later."""
        if name not in self._texts:
            texts = [text_of(name, value) for value in self._frame.get_column(name)]
            self._texts[name] = [*map(outlets.short, outlets.short_paths(texts) if name == _REPORT else texts)]
        left = is_text(self._frame.schema[name])
        elastic = name == self._last and name in KERNELS
        texts = self._texts[name]
        return _Cells(name, _shortened(name, texts, room) if left and not elastic else texts, left, elastic)

    def _rank(self, name: str, first: Sequence[str]) -> int:
        """The order in which columns are tried: the one that stands last, `first`, differing values, equal ones."""
        if name == self._last:
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
        if self._names is None:
            least = min(max(int(self._width * _NAME_SHARE), LEAST_NAME), _NAME_MOST)
            self._names = cells._replace(texts=_shortened(cells.name, cells.texts, least)).width
        return self._names


def _shortened(name: str, texts: list[str], room: int) -> list[str]:
    """Texts of a column in at most `room` characters, different ones different."""
    different = list(dict.fromkeys(texts))
    if max(map(len, different), default=0) <= room:
        return texts
    if name in PHRASES:
        short = on_phrases(different, room)
        if max(map(len, short)) > room:
            short = distinct(on_phrases(different, max(room - _AROUND, LEAST_NAME)), room)
    else:
        short = (shorten if name in KERNELS else distinct)(different, room)
    return [*map(dict(zip(different, short, strict=True)).__getitem__, texts)]


def _stretched(shown: Sequence[_Cells], width: int) -> list[_Cells]:
    """The columns with names shortened to the room that the others leave; to a usual length where they leave none."""
    room = width - sum(one.width + _GAP for one in shown if not one.elastic)
    room = room if room >= LEAST_NAME else _NAME_MOST
    return [one._replace(texts=_shortened(one.name, one.texts, room)) if one.elastic else one for one in shown]


def _lines(shown: Sequence[_Cells], prose: Sequence[_Cells], width: int) -> list[str]:
    """Heading and rows; sentences in the row if all fit there, else wrapped below it."""
    beside = [*shown, *prose]
    if len(prose) <= 1 and sum(one.width + _GAP for one in beside) - _GAP <= width:
        head, rows = _grid(beside)
        return [head, *(rows or ["(no rows)"])]
    head, rows = _grid(shown) if shown else (prose[0].name, [""] * len(prose[0].texts))
    lines = [head]
    for number, row in enumerate(rows):
        lines += [row] * bool(shown)
        for one in prose:
            label = "" if one is prose[0] else f"{one.name}: "
            lines += wrapped(label + one.texts[number], width, _INDENT) if one.texts[number] else []
    return lines if rows else [head, "(no rows)"]


def _grid(columns: Sequence[_Cells]) -> tuple[str, list[str]]:
    heads = tuple(Column(one.name, left=one.left) for one in columns)
    return Grid(heads, list(zip(*(one.texts for one in columns), strict=True))).lines(0)


def _hint(hidden: Sequence[str], how: str, width: int) -> str:
    """A line that says how many columns are hidden, `how` to see them, and as many of their names as fit."""
    said = f"{units.plural(len(hidden), 'column')} hidden{how and f' ({how})'}"
    line = f"{said}: {', '.join(hidden)}"
    for count in range(len(hidden), 0, -1):
        line = f"{said}: {', '.join(hidden[:count])}{', …' * (count < len(hidden))}"
        if len(line) <= width:
            break
    return line if len(line) <= width else said
