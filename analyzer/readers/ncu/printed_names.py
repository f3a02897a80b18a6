"""Restores full kernel names, which ncu shortens on its pages of launches but not on the source page.

For example, ``void at::native::vectorized_elementwise_kernel<(int)4, …>`` becomes ``void
at::vectorized_elementwise_kernel<4, …>``: some namespaces and casts are dropped, occasionally a bracket. nsys, torch
and NVIDIA's module print full names.
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
    """The kernel names on a source page, in order; a kernel of several functions has several blocks."""
    lines: list[str] = []
    begin = 0 if text.startswith(_BLOCK) else text.find(b"\n" + _BLOCK) + 1 or -1
    while begin >= 0:
        end = text.find(b"\n", begin)
        lines.append(text[begin : end if end >= 0 else len(text)].decode(errors="replace"))
        begin = text.find(b"\n" + _BLOCK, begin) + 1 or -1
    return [row[1] for row in csv.reader(lines)]


def with_whole_names(launches: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """`launches` with full names from `names`, matched in order; unchanged unless every launch has a match."""
    found = places(launches.get_column("name").to_list(), names)
    if found is None:
        return launches
    return launches.with_columns(pl.Series("name", [names[place] for place in found], dtype=pl.String))


def places(short: Sequence[str | None], whole: Sequence[str]) -> list[int] | None:
    """The index of each launch's full name, matched in order; None unless every launch has a match.

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
    """Whether `name` is `whole` with words left out."""
    words = iter(_WORD.findall(whole))
    return all(word in words for word in _WORD.findall(name))
