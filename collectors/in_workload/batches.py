"""Batches that a program gives to its model: how wide their rows are, and how much of each is filled, not padded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

#: So many batches are kept, of so many rows and values at most, and no row shorter than this.
BATCHES, _ROWS, _VALUES, _SHORTEST = 16, 512, 1 << 18, 16

#: Types of tokens: smaller ones are of pixels.
_WHOLE = ("torch.int64", "torch.int32")

#: Tensors of two values are masks, or kinds of tokens.
_VALUES_OF_MASKS = 2


class Batches:
    """The first batches of whole numbers, a row each for a sample, that a module is called with."""

    def __init__(self) -> None:
        """Starts without batches."""
        self._calls: list[list[Any]] = []

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Keeps the batches among the arguments of a call; whether they are the first ones."""
        if len(self._calls) >= BATCHES:
            return False
        batches = [one for value in (*args, *kwargs.values()) for one in _tensors(value) if _is_batch(one)]
        known = any(one is batch for call in self._calls for one in call for batch in batches)
        if batches and not known:
            self._calls.append(batches)
        return len(self._calls) == 1 and not known

    def filled(self) -> list[tuple[int, tuple[int, ...]]]:
        """Width and filled positions of the rows of each batch, of a call's tensors of that which is padded least.

        Of batches that are alike, as one that comes again, there is one.
        """
        each = ([(one.shape[1], rows) for one in call if (rows := _filled(one))] for call in self._calls)
        least = [max(batches, key=lambda batch: sum(batch[1]) / batch[0]) for batches in each if batches]
        return list(dict.fromkeys((width, tuple(rows)) for width, rows in least))


def _tensors(value: Any) -> Iterator[Any]:  # noqa: ANN401 - an argument
    """An argument, or what is in it, where it is a mapping or list."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    else:
        yield value


def _is_batch(value: Any) -> bool:  # noqa: ANN401 - an argument
    shape: tuple[int, ...] = getattr(value, "shape", ())
    if len(shape) != len(("rows", "positions")) or str(getattr(value, "dtype", "")) not in _WHOLE:
        return False
    return bool(1 < shape[0] <= _ROWS and shape[1] >= _SHORTEST and shape[0] * shape[1] <= _VALUES)


def _filled(batch: Any) -> list[int]:  # noqa: ANN401 - a tensor
    """How many positions of each row are filled: not of one value that short rows end with, or begin; none if unknown.

    None of a mask is known, nor of rows that are all alike, as positions are.
    """
    rows: list[list[int]] = batch.tolist()
    if len({*chain.from_iterable(rows)}) <= _VALUES_OF_MASKS or all(row == rows[0] for row in rows):
        return []
    return min((_before_padding(one) for one in (rows, [row[::-1] for row in rows])), key=sum)


def _before_padding(rows: list[list[int]]) -> list[int]:
    """The length of each row without the value that it ends with several times, where that is the same in all."""
    width = len(rows[0])
    runs = [next((at for at, value in enumerate(reversed(row)) if value != row[-1]), width) for row in rows]
    fillers = {row[-1] for row, run in zip(rows, runs) if run > 1}
    if len(fillers) != 1 or max(runs) == width:
        return [width] * len(rows)
    return [width - run if run > 1 else width for run in runs]
