"""Batches that a program gives to its model: how wide their rows are, and how much of each is filled, not padded."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any

#: So many batches are kept, of so many rows and values at most, and no row shorter than this; of so many calls.
BATCHES, _ROWS, _VALUES, _SHORTEST, _CALLS = 16, 512, 1 << 18, 16, 64

#: So many arguments are looked at, and what is in them, and so many batches kept of a call.
_LOOKED_AT, _OF_CALL = 16, 4

#: Tensors of two values are masks, or kinds of tokens.
_VALUES_OF_MASKS = 2


class Batches:
    """The first batches of whole numbers, a row each for a sample, that a module is called with: copies of them."""

    def __init__(self, torch: Any = None) -> None:  # noqa: ANN401 - a module
        """Takes torch; without it there are no batches."""
        self._torch = torch
        self._kept: list[list[Any]] = []
        self._calls = 0

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Keeps the batches among the arguments of a call; whether they are the first ones. It never raises."""
        self._calls += 1
        if self._torch is None or self._calls > _CALLS or len(self._kept) >= BATCHES:
            return False
        with suppress(Exception):  # whatever arguments may do that are looked at
            every = islice(chain.from_iterable(map(_inside, (*args, *kwargs.values()))), _LOOKED_AT)
            batches = [one for one in every if self._is_batch(one)][:_OF_CALL]
            if batches and not self._is_traced(batches[0]):
                self._kept.append([one.detach().clone() for one in batches])
                return len(self._kept) == 1
        return False

    def filled(self) -> list[tuple[int, tuple[int, ...]]]:
        """Width and filled positions of the rows of each batch, of a call's tensors of that which is padded least.

        Of batches that are alike, as one that comes again, there is one.
        """
        least = []
        for call in self._kept:
            with suppress(Exception):  # the GPU failed
                batches = [(one.shape[1], tuple(rows)) for one in call if (rows := _filled(one.tolist()))]
                least += [max(batches, key=lambda batch: sum(batch[1]) / batch[0])] if batches else []
        return list(dict.fromkeys(least))

    def _is_batch(self, value: Any) -> bool:  # noqa: ANN401 - an argument
        """Whether a value is a plain tensor of tokens: smaller types are of pixels, and no size is symbolic."""
        torch = self._torch
        if type(value) is not torch.Tensor or value.is_nested or value.dtype not in (torch.int64, torch.int32):
            return False
        sizes = tuple(value.shape)
        if len(sizes) != len(("rows", "positions")) or any(type(size) is not int for size in sizes):
            return False
        return bool(1 < sizes[0] <= _ROWS and sizes[1] >= _SHORTEST and sizes[0] * sizes[1] <= _VALUES)

    def _is_traced(self, batch: Any) -> bool:  # noqa: ANN401 - a tensor
        """Whether what is done with a tensor becomes a part of a graph."""
        torch = self._torch
        modes = getattr(torch._C, "_len_torch_dispatch_stack", int)()  # noqa: SLF001 - the only way
        captured = batch.is_cuda and torch.cuda.is_current_stream_capturing()
        return bool(modes or torch.jit.is_tracing() or captured)


def _inside(value: Any) -> Iterator[Any]:  # noqa: ANN401 - an argument
    """An argument, or what is in it, where it is a dictionary or list of Python, or what transformers make of one."""
    value = value.data if isinstance(value, UserDict) else value
    values = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
    return islice(values, _LOOKED_AT)


def _filled(rows: list[list[int]]) -> list[int]:
    """How many positions of each row are filled: not of one value that short rows end with, or begin; none if unknown.

    None of a mask is known, nor of rows that are all alike, as positions are.
    """
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
