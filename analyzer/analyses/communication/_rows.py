"""Collectives of ranks in little memory: of what they say, each rank's different calls once.

A job of 1,000 ranks has 5,000,000 rows, of which each column takes 40 MB: what can be computed of a row is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Small = npt.NDArray[np.int32]
    Keys = npt.NDArray[np.uint64]

#: What is said of a collective, alike for many of a rank.
_SAID: Final = (
    "member", "kind", "group", "size", "ranks", "own", "source", "target", "in_bytes", "out_bytes", "largest_bytes",
    "stream",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """The collectives of all ranks, by member and number.

    Attributes:
        first: Where those of each member begin, and the number of all.
        call: What is said of each, a row of `calls`.
        start: Start in Unix time, by the clock of the rank.
        dur: Duration.
        exposed: Time in which the GPU ran nothing else.
        inside: The step that it begins in, as its row among the steps of the rank; -1 outside.
        sequence: Its number in the group; empty where none is recorded of any.
        id: A number for what the tool calls it on all ranks; empty where it calls none.
        calls: Of what some collectives of a rank say the same: member, kind, group, size, ranks, own, source, target,
            in_bytes, out_bytes, largest_bytes, stream.
    """

    first: Ints
    call: Small
    start: Ints
    dur: Ints
    exposed: Ints
    inside: Small
    sequence: Ints
    id: Keys
    calls: pl.DataFrame

    def __len__(self) -> int:
        """All collectives of all ranks."""
        return len(self.start)

    @cached_property
    def member(self) -> Small:
        """The rank of each."""
        return np.repeat(np.arange(len(self.first) - 1, dtype=np.int32), np.diff(self.first))


def rows_of(table: pl.DataFrame, members: int) -> Rows:
    """The collectives of so many ranks; `table` has columns of :data:`COLLECTIVES`, by member."""
    columns, calls = narrow(table, 0)
    first = np.searchsorted(table.get_column("member").to_numpy(), np.arange(members + 1))
    return Rows(first=first, inside=np.full(table.height, -1, dtype=np.int32), calls=calls, **columns)


def narrow(rows: pl.DataFrame, before: int) -> tuple[dict[str, npt.NDArray[Any]], pl.DataFrame]:
    """The columns of :class:`Rows` but `inside`, and its calls, `before` which there are others."""
    # different ones get the same number by no more than chance
    said = rows.select(_SAID).hash_rows()
    known = np.sort(said.unique().to_numpy())
    call = np.searchsorted(known, said.to_numpy())
    example = np.empty(len(known), dtype=np.int64)
    example[call] = np.arange(len(call))
    name = pl.when(pl.col("id").is_not_null()).then(pl.col("id").hash().replace(0, 1)).otherwise(NO_ID)
    columns = {
        "call": (call + before).astype(np.int32),
        "start": rows.get_column("start_ns").to_numpy(),
        "dur": rows.get_column("dur_ns").to_numpy(),
        "exposed": rows.get_column("exposed_ns").to_numpy(),
        "sequence": rows.get_column("sequence").fill_null(NO_SEQUENCE).to_numpy(),
        "id": rows.select(name.cast(pl.UInt64)).to_series().to_numpy(),
    }
    return columns, rows.select(_SAID)[example].cast({"kind": pl.Categorical, "group": pl.Categorical})


#: What stands for a number in the group, or a name, that is not recorded.
NO_SEQUENCE: Final = -(1 << 63)
NO_ID: Final = 0
