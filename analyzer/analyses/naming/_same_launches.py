"""Aligns the launch calls of two recordings of one program, thread by thread, by what they launched.

Definitions: docs/waiting.md, From the trace of a capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, operations
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import rows_at
from kanalyze.decoder.same_name import normalised

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: Launches of a CUDA graph are all alike: one tool records its nodes, the other one a whole.
_GRAPH: Final = "GraphLaunch"

#: Least part of the launches of the smaller of two threads that the other one makes, too, for them to be one thread.
_ALIKE: Final = 0.5


#: Launches before and after a time between two launches that are its surroundings, on each side.
_AROUND: Final = 4

#: Multiplier of the number of surroundings, a large odd one: the product of another modulo 2 ** 64.
_MULTIPLIER: Final = 0x9E3779B97F4A7C15

#: Least length of a stretch of recurring launches, as a part of the trace's: a forward pass alone is no training step.
_STRETCH: Final = 0.5


class ThreadPair(NamedTuple):
    """A thread of one recording and the same one of another.

    Attributes:
        left: Process id and thread id in the first recording.
        right: Those in the other.
        calls: Launch calls of the first, by start: start, end, token (of what was launched).
        others: Those of the other.
        pairs: Rows of both that are aligned: left and right, both increasing.
    """

    left: ThreadKey
    right: ThreadKey
    calls: pl.DataFrame
    others: pl.DataFrame
    pairs: pl.DataFrame

    @property
    def complete(self) -> bool:
        """Whether every launch of both has a partner, so that the n-th launch of one is the n-th of the other."""
        return self.pairs.height == self.calls.height == self.others.height


class Alignment(NamedTuple):
    """How the launch calls of two recordings are aligned.

    Attributes:
        threads: The threads that both have.
        calls: Number of launch calls of the first recording.
        others: Number of those of the other.
        pairs: Number of pairs.
    """

    threads: list[ThreadPair]
    calls: int
    others: int
    pairs: int

    @property
    def share(self) -> float:
        """Part of the launches of the first recording that are aligned."""
        return self.pairs / max(self.calls, 1)


def align(report: Report, other: Report) -> Alignment | None:
    """Aligns the launch calls of two recordings; None unless one process of each makes launches.

    Which process of several is which nothing would tell, since ranks launch the same.
    """
    sides = _launch_calls(report), _launch_calls(other)
    if any(side.get_column("process_id").n_unique() != 1 for side in sides):
        return None
    own, others = (side.partition_by(THREAD, as_dict=True, include_key=False, maintain_order=True) for side in sides)
    threads = [_aligned(left, right, own[left], others[right]) for left, right in _same_threads(*sides)]
    return Alignment(threads, sides[0].height, sides[1].height, sum(pair.pairs.height for pair in threads))


def surroundings(calls: pl.DataFrame) -> pl.Series:
    """A number for what was launched right before and after the time that follows each launch; null near both ends."""
    token = calls.get_column("token").rename("around")
    found = token.new_from_index(0, len(token)) * 0 if len(token) else token
    for shift in range(-_AROUND, _AROUND):
        found = found * _MULTIPLIER + token.shift(shift)
    return found


def recurring(pair: ThreadPair) -> pl.Series:
    """Launches of the first recording in a stretch that the other makes, too, in the same surroundings.

    The stretch is as long as half of the other's launches, or longer. A trace of a few steps has such a one in each
    stretch of steps; what happens once, and what other loops share with these steps, has none.
    """
    around = surroundings(pair.calls)
    found = around.is_in(surroundings(pair.others).drop_nulls().implode()).fill_null(value=False)
    runs = found.rle_id()
    long = pl.DataFrame([found.alias("found"), runs.alias("run")]).select(
        pl.col("found") & (pl.len().over("run") >= max(pair.others.height * _STRETCH, 2 * _AROUND))
    )
    return long.to_series()


def _aligned(
    left: tuple[object, ...], right: tuple[object, ...], calls: pl.DataFrame, others: pl.DataFrame
) -> ThreadPair:
    from kanalyze.alignment import aligned  # noqa: PLC0415 - imports numpy, for a report with a trace beside it

    tokens = (side.get_column("token").reinterpret(signed=True).to_numpy() for side in (calls, others))
    at, partner = aligned(*tokens)
    pairs = pl.DataFrame({"left": at, "right": partner}, schema={"left": pl.Int64, "right": pl.Int64})
    return ThreadPair(_key(left), _key(right), calls, others, pairs)


def _key(values: tuple[object, ...]) -> ThreadKey:
    process, thread = (value if isinstance(value, int) else None for value in values)
    return process, thread


def _same_threads(calls: pl.DataFrame, others: pl.DataFrame) -> list[tuple[tuple[object, ...], tuple[object, ...]]]:
    """Pairs of threads that launched the same, the ones with most in common first; each thread is in at most one."""
    left, right = (side.group_by(*THREAD, "token").len() for side in (calls, others))
    both = left.join(right, on="token", suffix="_other").group_by(*THREAD, *(f"{name}_other" for name in THREAD))
    common = both.agg(pl.min_horizontal("len", "len_other").sum().alias("common"))
    sizes = (side.group_by(THREAD).len() for side in (calls, others))
    keys = (THREAD, [f"{name}_other" for name in THREAD])
    for key, size, name in zip(keys, sizes, ("size", "size_other"), strict=True):
        common = common.join(size.rename({"len": name} | dict(zip(THREAD, key, strict=True))), on=key)
    enough = common.filter(pl.col("common") >= pl.min_horizontal("size", "size_other") * _ALIKE)
    order = enough.sort("common", *keys[0], *keys[1], descending=[True, False, False, False, False])
    found: dict[tuple[object, ...], tuple[object, ...]] = {}
    for process, thread, other_process, other_thread in order.select(*keys[0], *keys[1]).iter_rows():
        if (process, thread) not in found and (other_process, other_thread) not in found.values():
            found[process, thread] = (other_process, other_thread)
    return [*found.items()]


def _launch_calls(report: Report) -> pl.DataFrame:
    """Launch calls sorted by start: process_id, thread_id, start, end and token, a number for what they launched.

    Calls that launch nothing are left out, and those that the report does not give a thread.
    """
    work = operations(report, "call_row").select(_tokens(report), call="call_row")
    sums = work.drop_nulls("call").group_by("call").agg(pl.col("token").sum()).sort("call")
    made = rows_at(report.kind("api").select(*THREAD, "name", "start_ns", "dur_ns"), sums.get_column("call"))
    graph = pl.col("name").cast(pl.String).str.contains(_GRAPH, literal=True).fill_null(value=False)
    token = pl.when(graph).then(pl.lit(0, dtype=pl.UInt64)).otherwise(sums.get_column("token"))
    calls = made.select(*THREAD, start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"), token=token)
    return calls.drop_nulls().sort("start", "end", *THREAD)


def _tokens(report: Report) -> pl.Series:
    """A number for each of the :func:`operations`: of a kernel by name and launch shape, of a copy by way and size."""
    work = operations(report, *SHAPE, "size_bytes")
    names = work.get_column("name").unique().drop_nulls()
    texts = pl.Series("text", [normalised(name) for name in names.cast(pl.String)], dtype=pl.String)
    work = work.join(pl.DataFrame([names, texts]), on="name", how="left", maintain_order="left")
    moved = pl.when(pl.col("kind").is_in(["memcpy", "memset"])).then(_number("kind", "detail", "size_bytes"))
    token = pl.when(pl.col("kind") == "kernel").then(_number("text", *SHAPE)).otherwise(moved)
    return work.select(token=token.fill_null(0)).to_series()


def _number(*columns: str) -> pl.Expr:
    return pl.struct(pl.col(name).cast(pl.String) for name in columns).hash()
