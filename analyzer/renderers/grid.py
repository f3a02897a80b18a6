"""Text tables: cells as wide as they need, aligned under their headings, kernel names in the last column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kanalyze.units import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GAP: Final = "  "

#: Columns marked `wide` are left out before kernel names get less room than this.
_ENOUGH_FOR_NAMES: Final = 32

#: Texts that are cut keep so many characters, however narrow the page.
_LEAST_CUT: Final = 12


@dataclass(frozen=True)
class Head:
    """A column's heading; numbers stand right, words left. `wide` ones are left out where space is short."""

    text: str
    left: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    With `named` the last column holds whole kernel names, for a renderer to shorten; with `cut` it ends where the
    line does.
    """

    heads: tuple[Head, ...]
    rows: Sequence[tuple[str, ...]] = ()
    named: bool = False
    cut: bool = False

    def names(self) -> list[str]:
        """The kernel names in the table."""
        return [row[-1] for row in self.rows] if self.named else []

    def room_for_names(self, width: int) -> int:
        """How many columns of `width` are left for kernel names."""
        return width - self._width(self._fitting(width)[:-1]) - len(_GAP)

    def lines(self, width: int, names: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
        """The heading line and a line per row; kernel names as `names` shortens them."""
        kept = self._fitting(width)
        heads = [self.heads[column] for column in kept]
        cells = [[printable(row[column]) for column in kept] for row in self.rows]
        if self.named and names is not None:
            shown = [names.get(row[-1], row[-1]) for row in self.rows]
            cells = [[*row[:-1], name] for row, name in zip(cells, shown, strict=True)]
        if self.cut:
            room = max(width - self._width(kept[:-1]) - len(_GAP), _LEAST_CUT)
            cells = [[*row[:-1], _cut(row[-1], room)] for row in cells]
        widths = [max(len(head.text), *(len(row[i]) for row in cells), 0) for i, head in enumerate(heads)]
        texts = [_joined(row, heads, widths) for row in ([head.text for head in heads], *cells)]
        return texts[0], texts[1:]

    def _fitting(self, width: int) -> list[int]:
        """The columns that there is space for: all of them, or those that are not `wide`."""
        every = list(range(len(self.heads)))
        if self.named or self.cut:
            fits = self._width(every[:-1]) + len(_GAP) + _ENOUGH_FOR_NAMES <= width
        else:
            fits = self._width(every) <= width
        return every if fits else [column for column in every if not self.heads[column].wide]

    def _width(self, columns: Sequence[int]) -> int:
        widths = [max(len(self.heads[i].text), *(len(row[i]) for row in self.rows), 0) for i in columns]
        return sum(widths) + len(_GAP) * max(len(widths) - 1, 0)


@dataclass(frozen=True)
class Section:
    """A titled table, with a remark beside the title."""

    title: str
    remark: str
    grid: Grid


def of(shown: int, total: int, remark: str = "") -> str:
    """A remark that also says how many rows of the table are shown, where not all are."""
    part = f"{shown} of {total}" if shown < total else ""
    return "; ".join(text for text in (part, remark) if text)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _joined(row: Sequence[str], heads: Sequence[Head], widths: Sequence[int]) -> str:
    aligned = [
        text.ljust(width) if head.left else text.rjust(width)
        for text, head, width in zip(row, heads, widths, strict=True)
    ]
    return _GAP.join(aligned).rstrip()
