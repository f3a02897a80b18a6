"""Batches that a model is called with: which are kept, and how much of each row is padding."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from kanalyze.collectors.in_workload.batches import BATCHES, Batches


@dataclass
class Tensor:
    """A tensor of rows, as far as batches are looked at."""

    rows: list[list[int]]
    dtype: str = "int64"
    is_nested = is_cuda = False

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    def tolist(self) -> list[list[int]]:
        return self.rows

    def detach(self):
        return self

    def clone(self):
        return Tensor([[*row] for row in self.rows])


class Odd:
    """An argument that nothing may be asked."""

    def __getattr__(self, name):
        raise RuntimeError(name)


TORCH = SimpleNamespace(Tensor=Tensor, int64="int64", int32="int32", _C=None, jit=SimpleNamespace(is_tracing=bool))


def texts(*lengths: int, width: int = 20, pad: int = 0, start: int = 1, left: bool = False) -> Tensor:
    """Rows of numbers that differ, filled up to a width."""
    rows = [[start + row * width + at for at in range(length)] for row, length in enumerate(lengths)]
    filled = [[pad] * (width - len(row)) + row if left else row + [pad] * (width - len(row)) for row in rows]
    return Tensor(filled)


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        (texts(5, 20, 9), (5, 20, 9)),
        (texts(5, 20, 9, left=True), (5, 20, 9)),
        (texts(5, 19, 9, pad=7000), (5, 20, 9)),  # one position may be a word that looks like padding
        (texts(20, 20), (20, 20)),
        (Tensor([[1, 2] * 8 + [3] * 4, [1, 2] * 8 + [4] * 4]), (20, 20)),  # rows end in values of their own
        (Tensor([[1] * 20, [2, 3] * 10]), (20, 20)),  # a row of one value is none of a text
        (Tensor([[1] * 9 + [0] * 11, [1] * 20]), None),  # a mask
        (Tensor([[*range(10)] + [0] * 10] * 2), None),  # positions
        (texts(5), None),
        (texts(5, 9, width=15), None),
        (replace(texts(5, 9), dtype="uint8"), None),
    ],
)
def test_rows_are_filled_up_to_the_value_that_short_ones_end_or_begin_with(given, filled):
    batches = Batches(TORCH)
    assert batches.take((Odd(), 3, [None, given]), {}) == (
        min(given.shape[0], given.shape[1] // 8) > 1 and "64" in given.dtype
    )
    assert batches.filled() == ([(20, filled)] if filled else [])


def test_the_first_batches_are_kept_of_mappings_too_as_they_were_and_each_once():
    batches, again = Batches(TORCH), texts(3, 20)
    mask = Tensor([[1] * 3 + [0] * 17, [1] * 20])
    labels = Tensor([[-100] * 19 + [1], [-100] * 18 + [1, 2]])
    assert batches.take(({"ids": again, "mask": mask},), {"labels": labels})
    again.rows[1][4:] = [0] * 16
    assert not batches.take((texts(3, 20),), {})  # another tensor with the same lengths
    for number in range(2 * BATCHES):
        batches.take((), {"ids": texts(4, 4 + number % 16, start=number + 1)})
    filled = batches.filled()
    assert filled[0] == (20, (3, 20))
    assert (len(filled), len({*filled})) == (BATCHES - 1,) * 2


def test_nothing_is_kept_of_graphs_of_many_calls_and_without_torch():
    for made in (
        Batches(),
        Batches(SimpleNamespace(**vars(TORCH) | {"jit": SimpleNamespace(is_tracing=lambda: True)})),
    ):
        assert not made.take((texts(3, 20),), {})
    late = Batches(TORCH)
    assert not any(late.take((3,), {}) for _ in range(64))
    assert not late.take((texts(3, 20),), {})
