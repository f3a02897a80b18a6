"""Kernels, copies and memsets of an iteration before and after, matched in the order of launch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._matching import FUSED, GONE, KERNEL, NEW, SAME, SHAPE, SPLIT
from kanalyze.analyses.comparing._rows import CERTAINTY, COUNTS, TIMES, by_size, certainty, counts, summed, times
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kanalyze.analyses.comparing._matching import Slots
    from kanalyze.analyses.comparing._pair import Pair

CHANGES: Final = (SAME, SHAPE, KERNEL, FUSED, SPLIT, NEW, GONE)

#: The columns that say which kernels a row is of, and what became of them.
CHANGE: Final = Column(
    "change",
    pl.Enum(CHANGES),
    "same; other shape (of the launch); other kernel (tile, template or type); fused (several became fewer); split; "
    "new; gone.",
)
KERNELS: Final = (
    Column("base_kernel", pl.String, "The kernel of base, or the longest of several.", nullable=True),
    Column("new_kernel", pl.String, "The kernel of new, likewise.", nullable=True),
    Column("base_names", pl.Int64, "Different kernels of base."),
    Column("new_names", pl.Int64, "Different kernels of new."),
)

TABLE: Final = Table(
    "compare_kernels",
    "Kernels, copies or memsets of an iteration of base, and those of new that do the same; deltas sum to busy time.",
    (
        CHANGE,
        *KERNELS[:2],
        Column("range", pl.String, "The range or operator that launched most of it.", nullable=True),
        *KERNELS[2:],
        *COUNTS,
        *TIMES,
        Column("count_ns", pl.Int64, "Part of delta_ns by their number: as long as before each."),
        Column("time_ns", pl.Int64, "Part of delta_ns by the time of each; both sum to delta_ns."),
        *CERTAINTY,
    ),
    purpose="kernels that changed, fused, came or went",
    telling=("change", "delta_ns", "base_count", "new_count", "base_kernel", "new_kernel"),
    sides=True,
)


def compare_kernels(pair: Pair) -> pl.DataFrame:
    """The operations of an iteration of both sides, matched in the order of launch.

    Returns:
        :data:`TABLE`, the largest difference first; `base_ns` and `new_ns` sum to the busy buckets of `compare`.

    Columns:
        change, base_kernel, new_kernel, range, base_names, new_names, base_count, new_count, base_ns, new_ns, delta_ns,
        count_ns, time_ns, ratio, ratio_low, ratio_high, changed.
    """
    base, new = pair.slots
    groups = groups_of(pair)
    if not groups:
        return TABLE.empty()
    ns, number = [
        (summed(sides[0], [group[0] for group in groups]), summed(sides[1], [group[1] for group in groups]))
        for sides in ((base.ns, new.ns), (base.counts, new.counts))
    ]
    spans = times(ns[0], ns[1], pair.busy_ns)
    told = pair.changed(ns[0], ns[1])
    changes = pl.Series("change", [group[2] for group in groups], dtype=pl.Enum(CHANGES))
    frame = pl.DataFrame([changes, *_names(base, new, groups), *counts(number[0], number[1]), *spans, *certainty(told)])
    return by_size(TABLE.select(_with_effects(frame)), "base_kernel", "new_kernel")


def groups_of(pair: Pair) -> list[tuple[Sequence[int], Sequence[int], str]]:
    """The rows of base and of new that are told together, and the change: those of the same names on both sides."""
    base, new = (side.rows.get_column("name").to_list() for side in pair.slots)
    shapes = [side.rows.get_column("shape").to_list() for side in pair.slots]
    found: dict[tuple[object, ...], tuple[list[int], list[int], str]] = {}
    for i, j in zip(pair.matches.base.tolist(), pair.matches.new.tolist(), strict=True):
        change = KERNEL if base[i] != new[j] else SAME if shapes[0][i] == shapes[1][j] else SHAPE
        group = found.setdefault((change, base[i], new[j]), ([], [], change))
        group[0].append(i)
        group[1].append(j)
    for block in pair.matches.blocks:
        names = (frozenset(base[i] for i in block.base), frozenset(new[j] for j in block.new))
        group = found.setdefault((block.change, *names), ([], [], block.change))
        group[0].extend(block.base)
        group[1].extend(block.new)
    return list(found.values())


def _names(base: Slots, new: Slots, groups: Sequence[tuple[Sequence[int], Sequence[int], str]]) -> list[pl.Series]:
    """base_kernel, new_kernel, range, base_names and new_names of each group."""
    columns: dict[str, list[object]] = {
        name: [] for name in ("base_kernel", "new_kernel", "range", "base_names", "new_names")
    }
    told = [list(_places(side)) for side in (base, new)]
    for before, after, _ in groups:
        for name, side, rows in (("base", base, before), ("new", new, after)):
            kernels = _weights(side, "name", rows)
            columns[f"{name}_kernel"].append(_largest(kernels))
            columns[f"{name}_names"].append(len(kernels))
        side, places, rows = (base, told[0], before) if before else (new, told[1], after)
        weights: Counter[str | None] = Counter()
        for row in rows:
            weights[places[row]] += side.ns[row].mean()
        columns["range"].append(_largest(weights))
    types = {"base_names": pl.Int64, "new_names": pl.Int64}
    return [pl.Series(name, values, dtype=types.get(name, pl.String)) for name, values in columns.items()]


def _places(side: Slots) -> Iterator[str | None]:
    for inner, op in side.rows.select("range", "op").iter_rows():
        yield inner if inner is not None else op


def _weights(side: Slots, column: str, rows: Sequence[int]) -> Counter[str | None]:
    names, weights = side.rows.get_column(column), Counter[str | None]()
    for row in rows:
        weights[names[row]] += side.ns[row].mean()
    return weights


def _largest(weights: Counter[str | None]) -> str | None:
    return max(weights, key=lambda name: (weights[name], name or ""), default=None)


def _with_effects(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds count_ns and time_ns; where one side has none, all of it is by their number."""
    mean = pl.col("base_ns") / pl.col("base_count")
    by_number = ((pl.col("new_count") - pl.col("base_count")) * mean).cast(pl.Int64)
    plain = (pl.col("base_count") > 0) & (pl.col("new_count") > 0)
    number = pl.when(plain).then(by_number).otherwise("delta_ns")
    return frame.with_columns(count_ns=number).with_columns(time_ns=pl.col("delta_ns") - pl.col("count_ns"))
