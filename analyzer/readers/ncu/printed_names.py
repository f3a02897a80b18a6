"""Whole names of kernels, which ncu makes shorter on its pages of launches and prints whole on that of sources.

Of ``void at::native::vectorized_elementwise_kernel<(int)4, …>`` it leaves ``void at::vectorized_elementwise_kernel<4,
…>``: some namespaces and casts, and now and then a bracket. What nsys, torch and NVIDIA's module print is whole.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK: Final = b'"Kernel Name","'
_WORD: Final = re.compile(r"\w+")


def names_of_sources(text: bytes) -> list[str]:
    """The names on a page of sources, in their order; a kernel of several functions has several blocks."""
    lines: list[str] = []
    begin = 0 if text.startswith(_BLOCK) else text.find(b"\n" + _BLOCK) + 1 or -1
    while begin >= 0:
        end = text.find(b"\n", begin)
        lines.append(text[begin : end if end >= 0 else len(text)].decode(errors="replace"))
        begin = text.find(b"\n" + _BLOCK, begin) + 1 or -1
    return [row[1] for row in csv.reader(lines)]


def with_whole_names(launches: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """`launches` with the whole one of `names` for each, if each has one, in the same order; else as they are."""
    found = places(launches.get_column("name").to_list(), names)
    if found is None:
        return launches
    return launches.with_columns(pl.Series("name", [names[place] for place in found], dtype=pl.String))


def places(short: Sequence[str | None], whole: Sequence[str]) -> list[int] | None:
    """For each name of a launch the place of its whole name, in the same order; None where one has none.

    A kernel of which ncu prints the block several times has them one after the other.
    """
    if len(short) == len(whole):
        pairs = zip(short, whole, strict=True)
        return [*range(len(short))] if all(name and _shortened(name, one) for name, one in pairs) else None
    found: list[int] = []
    place = 0
    for name in short:
        while place < len(whole) and not (name and _shortened(name, whole[place])):
            place += 1
        if place == len(whole):
            return None
        found.append(place)
        place += 1
    return found


def _shortened(name: str, whole: str) -> bool:
    """Whether the words of a name are those of a whole one with some left out."""
    words = iter(_WORD.findall(whole))
    return all(word in words for word in _WORD.findall(name))
