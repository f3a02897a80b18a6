"""Operators of an iteration before and after, by their place in the call tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.comparing._pair import (
    CERTAINTY,
    COUNTS,
    TIMES,
    by_size,
    compared,
    counts,
    summed,
    whole_means,
)
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.operators._paths import ARROW
from kanalyze.schema import Column, Table
from kanalyze.units import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.comparing._pair import Floats, Pair

#: What became of operators.
_SAME, _REPLACED, _NEW, _GONE = "same", "replaced", "new", "gone"
_CHANGES: Final = pl.Enum([_SAME, _REPLACED, _NEW, _GONE])

#: Operators that a row names.
_NAMED: Final = 3

COMPARE_OPS: Final = Table(
    "compare_ops",
    "One operator of the call tree in base and in new, or those under it that one side alone has; device time is "
    "exclusive, of the window of `compare`, and sums to its busy time less what no recorded operator launched.",
    (
        Column(
            "path",
            pl.String,
            "The operators around it and itself, outermost first; of those that one side alone has, the nearest "
            "operator around them that both have. Null at the outermost.",
            nullable=True,
        ),
        Column("change", _CHANGES, "same; replaced (others under it); new; gone (some under it)."),
        Column("base_ops", pl.String, "The operators under it that base alone has.", nullable=True),
        Column("new_ops", pl.String, "Those that new alone has.", nullable=True),
        *COUNTS,
        *TIMES,
        Column(
            "base_self_host_ns",
            pl.Int64,
            "Host time without what they called, in base; of the host's part of the iterations, which is earlier.",
        ),
        Column("new_self_host_ns", pl.Int64, "The same in new."),
        *CERTAINTY,
    ),
    purpose="operators that changed, came or went",
    telling=("change", "delta_ns", "base_count", "new_count", "path", "base_ops", "new_ops"),
    sides=True,
)


class _Group(NamedTuple):
    """Paths that are told together."""

    path: str  # what is told; empty at the outermost
    change: str  # one of _CHANGES
    rows: Sequence[int]  # all of its paths
    outer: Sequence[int]  # those of them that no other one of them is around, whose calls are counted


def compare_ops(pair: Pair) -> pl.DataFrame:
    """The operators of an iteration of both sides, by their path in the call tree.

    Of operators that one side alone has, those under the same nearest operator of both sides are one row, with all that
    they called: the lowest common ancestor, as in TraceLens' TraceDiff.

    Returns:
        :data:`COMPARE_OPS`, the largest difference first; `base_ns` and `new_ns` sum to the busy time of `compare`,
        without that of what no operator in the recording launched.
    """
    keys, values = pair.per_iteration(lambda one: one.ops, ("path",), ("count", "self_host_ns", "device_ns"))
    if keys.is_empty():
        return COMPARE_OPS.empty()
    paths = keys.get_column("path").to_list()
    had = [np.logical_or.reduce([both[side].any(axis=1) for both in values.values()]).tolist() for side in (0, 1)]
    groups = _groups(paths, had)
    base, new = (summed(side, (group.rows for group in groups)) for side in values["device_ns"])
    calls = [summed(side, (group.outer for group in groups)) for side in values["count"]]
    host = [summed(side, (group.rows for group in groups)) for side in values["self_host_ns"]]
    means_of_calls = [side.mean(axis=1) for side in values["count"]]
    frame = pl.DataFrame(
        [
            pl.Series("path", [group.path or None for group in groups], dtype=pl.String),
            pl.Series("change", [group.change for group in groups], dtype=_CHANGES),
            *(
                pl.Series(name, [_told(paths, group, means) for group in groups], dtype=pl.String)
                for name, means in zip(("base_ops", "new_ops"), means_of_calls, strict=True)
            ),
            *counts("count", calls),
            *compared(pair, base, new, _whole_ns(pair, (base, new))),
            *whole_means("self_host_ns", host),
        ]
    )
    return by_size(COMPARE_OPS.select(frame), "path")


def _whole_ns(pair: Pair, device_ns: tuple[Floats, Floats]) -> tuple[int, int]:
    """The busy time of an iteration of each side as `compare` tells it, without what no recorded operator launched."""
    busy = pl.col("bucket").is_in(BUSY_BUCKETS)
    _, buckets = pair.per_iteration(lambda one: one.buckets.filter(busy), ("bucket",), ("ns",))
    sums = zip(buckets["ns"], device_ns, strict=True)
    others = nearest(float(all_ns.mean(axis=1).sum() - ops_ns.mean(axis=1).sum()) for all_ns, ops_ns in sums)
    base, new = (whole - other for whole, other in zip(pair.busy_ns, others, strict=True))
    return base, new


def _groups(paths: Sequence[str], had: Sequence[Sequence[bool]]) -> list[_Group]:
    """The paths of both sides one by one, and the others by the nearest path around them that both have.

    `had` tells of each side whether any run of it has each path.
    """
    both = {path for path, *sides in zip(paths, *had, strict=True) if all(sides)}
    every = set(paths)
    found = [_Group(path, _SAME, [row], [row]) for row, path in enumerate(paths) if path in both]
    alone: dict[str, tuple[list[int], list[int]]] = {}
    for row, path in enumerate(paths):
        if path not in both:
            rows, outer = alone.setdefault(_nearest(path, both), ([], []))
            rows.append(row)
            if (above := _nearest(path, every)) in both or not above:
                outer.append(row)
    for path, (rows, outer) in alone.items():
        sides = [any(side[row] for row in rows) for side in had]
        found.append(_Group(path, _REPLACED if all(sides) else _GONE if sides[0] else _NEW, rows, outer))
    return found


def _nearest(path: str, known: set[str]) -> str:
    """The nearest path around `path` that is known; empty where none is."""
    above = path.rpartition(ARROW)[0]
    while above and above not in known:
        above = above.rpartition(ARROW)[0]
    return above


def _told(paths: Sequence[str], group: _Group, calls: Floats) -> str | None:
    """``aten::addmm, aten::t and 2 more``: what the group's path is around, that with the most calls first.

    `calls` are those of one side; None where it has none of them.
    """
    if group.change == _SAME:
        return None
    own = sorted((row for row in group.outer if calls[row] > 0), key=lambda row: (-calls[row], paths[row]))
    cut = len(group.path) + len(ARROW) if group.path else 0
    names = [paths[row][cut:] for row in own]
    if not names:
        return None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
