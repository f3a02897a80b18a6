"""Kernels, copies and memsets of an iteration before and after, matched in the order of launch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._matching import FUSED, GONE, KERNEL, NEW, SAME, SHAPE, SPLIT
from kanalyze.analyses.comparing._pair import CERTAINTY, COUNTS, TIMES, by_size, compared, counts, summed
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """
    base, new = pair.slots
    groups = groups_of(pair)
    if not groups:
        return TABLE.empty()
    before, after = [group[0] for group in groups], [group[1] for group in groups]
    number = counts(summed(base.counts, before), summed(new.counts, after))
    spans = compared(pair, summed(base.ns, before), summed(new.ns, after), pair.busy_ns)
    frame = _names(base, new, groups).with_columns(*number, *spans)
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


def _names(base: Slots, new: Slots, groups: Sequence[tuple[Sequence[int], Sequence[int], str]]) -> pl.DataFrame:
    """The change of each group, and its columns of :data:`KERNELS` with the range."""
    names = [side.rows.get_column("name").to_list() for side in (base, new)]
    places = [side.rows.select(pl.coalesce("range", "op")).to_series().to_list() for side in (base, new)]
    found = []
    for *rows, change in groups:
        base_kernels, new_kernels = (
            _weights(named, side, of_side) for named, side, of_side in zip(names, (base, new), rows, strict=True)
        )
        first = 0 if rows[0] else 1
        launchers = _weights(places[first], (base, new)[first], rows[first])
        kernels = (_largest(base_kernels), _largest(new_kernels), _largest(launchers))
        found.append((change, *kernels, len(base_kernels), len(new_kernels)))
    columns = ("change", "base_kernel", "new_kernel", "range", "base_names", "new_names")
    return pl.DataFrame(found, schema={name: TABLE.schema[name] for name in columns}, orient="row")


def _weights(names: Sequence[str | None], side: Slots, rows: Sequence[int]) -> Counter[str | None]:
    """The time of each name."""
    weights = Counter[str | None]()
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
