"""Kernels, copies and memsets of an iteration before and after, matched in the order of launch, and their counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import polars as pl

from kanalyze.analyses.comparing._matching import FUSED, GONE, KERNEL, NEW, SAME, SHAPE, SPLIT, Block, Slots
from kanalyze.analyses.comparing._pair import CERTAINTY, COUNTS, TIMES, Pair, Side, by_size, summed, with_differences
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Key = tuple[str | None, str | None]  # name and launch shape of a kernel
    Means = dict[Key, dict[str, float]]  # the mean of each counter of a launch

K = TypeVar("K")

#: The columns that say which kernels a row is of, and what became of them.
_CHANGE: Final = Column(
    "change",
    pl.Enum([SAME, SHAPE, KERNEL, FUSED, SPLIT, NEW, GONE]),
    "same; other shape (of the launch); other kernel (tile, template or type); fused (several became fewer); split; "
    "new; gone.",
)
_KERNELS: Final = (
    Column("base_kernel", pl.String, "The kernel of base, or the longest of several.", nullable=True),
    Column("new_kernel", pl.String, "The kernel of new, likewise.", nullable=True),
    Column("base_names", pl.Int64, "Different kernels of base."),
    Column("new_names", pl.Int64, "Different kernels of new."),
)

COMPARE_KERNELS: Final = Table(
    "compare_kernels",
    "Kernels, copies or memsets of an iteration of base, and those of new that do the same; deltas sum to busy time.",
    (
        _CHANGE,
        *_KERNELS[:2],
        Column("range", pl.String, "The range or operator that launched most of it.", nullable=True),
        *_KERNELS[2:],
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


COMPARE_COUNTERS: Final = Table(
    "compare_counters",
    "One counter of a kernel of base, and of the one of new that does the same; of several, of them all together.",
    (
        _CHANGE,
        *_KERNELS,
        *COUNTS,
        Column("counter", pl.String, "A column of `counters` or `roofline`."),
        Column(
            "base",
            pl.Float64,
            "Its mean over the launches of base; of several kernels that became others together, the sum of times, "
            "cycles, bytes and FLOP, the most registers, and of others the mean by time.",
            nullable=True,
        ),
        Column("new", pl.Float64, "The same of new.", nullable=True),
        Column("difference", pl.Float64, "new less base.", nullable=True),
        Column("ratio", pl.Float64, "new by base; null of shares, and where one is 0.", nullable=True),
        Column(
            "changed",
            pl.Boolean,
            "Whether it differs by more than the least effect: shares by their difference, others by their ratio, what "
            "one side alone has at all.",
        ),
    ),
    purpose="counters of kernels, before and after",
    telling=("base_kernel", "new_kernel", "counter", "base", "new", "ratio", "changed"),
    sides=True,
)


#: Counters that add up over kernels; all others are means by time, `intensity_flop_per_byte` by bytes of DRAM.
_SUMS: Final = ("dur_ns", "cycles", "dram_read_bytes", "dram_write_bytes", "flop")
_LARGEST: Final = ("registers_per_thread",)
_INTENSITY: Final = "intensity_flop_per_byte"


def compare_kernels(pair: Pair) -> pl.DataFrame:
    """The operations of an iteration of both sides, matched in the order of launch.

    Returns:
        :data:`COMPARE_KERNELS`, the largest difference first; `base_ns` and `new_ns` sum to the busy buckets of
        `compare`.
    """
    base, new = pair.slots
    if not (groups := _groups(pair)):
        return COMPARE_KERNELS.empty()
    before, after = [one.base for one in groups], [one.new for one in groups]
    sums = {
        "ns": (summed(base.ns, before), summed(new.ns, after)),
        "count": (summed(base.counts, before), summed(new.counts, after)),
    }
    frame = with_differences(pair, _names(base, new, groups), sums, "ns", pair.busy_ns)
    return by_size(COMPARE_KERNELS.select(_with_effects(frame)), "base_kernel", "new_kernel")


def _groups(pair: Pair) -> list[Block]:
    """The operations that are told together: those with one change and the same names on both sides."""
    base, new = (side.rows.get_column("name").to_list() for side in pair.slots)
    shapes = [side.rows.get_column("shape").to_list() for side in pair.slots]
    found: dict[tuple[object, ...], Block] = {}
    for i, j in zip(pair.matches.base.tolist(), pair.matches.new.tolist(), strict=True):
        change = KERNEL if base[i] != new[j] else SAME if shapes[0][i] == shapes[1][j] else SHAPE
        group = found.setdefault((change, base[i], new[j]), Block(change, [], []))
        group.base.append(i)
        group.new.append(j)
    for block in pair.matches.blocks:
        names = (frozenset(base[i] for i in block.base), frozenset(new[j] for j in block.new))
        group = found.setdefault((block.change, *names), Block(block.change, [], []))
        group.base.extend(block.base)
        group.new.extend(block.new)
    return list(found.values())


def _names(base: Slots, new: Slots, groups: Sequence[Block]) -> pl.DataFrame:
    """The change of each group, and its columns of :data:`_KERNELS` with the range."""
    names = [side.rows.get_column("name").to_list() for side in (base, new)]
    places = [side.rows.select(pl.coalesce("range", "op")).to_series().to_list() for side in (base, new)]
    found = []
    for one in groups:
        kernels = [_sums(names[0], base.ns, one.base), _sums(names[1], new.ns, one.new)]
        launchers = _sums(places[0], base.ns, one.base) if one.base else _sums(places[1], new.ns, one.new)
        largest = (
            max(times, key=lambda name: (times[name], name or ""), default=None) for times in (*kernels, launchers)
        )
        found.append((one.change, *largest, *map(len, kernels)))
    columns = ("change", "base_kernel", "new_kernel", "range", "base_names", "new_names")
    return pl.DataFrame(found, schema={name: COMPARE_KERNELS.schema[name] for name in columns}, orient="row")


def _sums(keys: Sequence[K], values: NDArray[np.float64], rows: Sequence[int]) -> dict[K, float]:
    """The sums over some operations, by their keys, of the means of values [operations, runs]."""
    found: dict[K, float] = {}
    for row in rows:
        found[keys[row]] = found.get(keys[row], 0.0) + float(values[row].mean())
    return found


def _with_effects(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds count_ns and time_ns; where one side has none, all of it is by their number."""
    mean = pl.col("base_ns") / pl.col("base_count")
    by_number = ((pl.col("new_count") - pl.col("base_count")) * mean).cast(pl.Int64)
    plain = (pl.col("base_count") > 0) & (pl.col("new_count") > 0)
    number = pl.when(plain).then(by_number).otherwise("delta_ns")
    return frame.with_columns(count_ns=number).with_columns(time_ns=pl.col("delta_ns") - pl.col("count_ns"))


def compare_counters(pair: Pair) -> pl.DataFrame:
    """The counters of the kernels of both sides, matched as in `compare_kernels`.

    Returns:
        :data:`COMPARE_COUNTERS`, the kernels with the most time first; empty where a side has no counters.
    """
    means = [_means(side) for side in (pair.base, pair.new)]
    if not all(means):
        return COMPARE_COUNTERS.empty()
    keys = [[*side.rows.select("name", "shape").iter_rows()] for side in pair.slots]
    rows: list[tuple[float, dict[str, object]]] = []
    for one in _groups(pair):
        parts = [*zip(keys, pair.slots, (one.base, one.new), strict=True)]
        launches = [_sums(names, side.counts, own) for names, side, own in parts]
        together = one.change in (FUSED, SPLIT)
        base, new = (dict(_counters(known, own, together=together)) for known, own in zip(means, launches, strict=True))
        time = max(float(side.ns[list(own)].sum()) for _, side, own in parts)
        head = {"change": one.change, **_kernels(means, launches)}
        rows += [
            (-time, head | {"counter": counter, "base": base.get(counter), "new": new.get(counter)})
            for counter in base | new
        ]
    rows.sort(key=lambda row: row[0])
    schema = dict([*COMPARE_COUNTERS.schema.items()][:-3])
    frame = pl.DataFrame([row for _, row in rows], schema=schema)
    return COMPARE_COUNTERS.select(_differences(frame, pair.limits.least_effect))


def _means(side: Side) -> Means:
    """The counters of each kernel and shape, the mean of the runs that have them."""
    every = pl.concat([one.counters for one in side.digests])
    found: Means = {}
    sums = every.group_by("name", "shape", "counter", maintain_order=True).agg(pl.col("mean").mean())
    for name, shape, counter, mean in sums.iter_rows():
        found.setdefault((name, shape), {})[counter] = mean
    return found


def _counters(known: Means, launches: Mapping[Key, float], *, together: bool) -> Iterator[tuple[str, float]]:
    """The counters of some kernels: of all launches together, or means of a launch."""
    own = [(known[key], number) for key, number in launches.items() if key in known]
    every = 1.0 if together else sum(number for _, number in own)
    for counter in dict.fromkeys(name for counters, _ in own for name in counters):
        having = [(counters, number) for counters, number in own if counter in counters]
        values = np.array([counters[counter] for counters, _ in having])
        numbers = np.array([number for _, number in having])
        if counter in _SUMS:
            if len(having) == len(own):  # of fewer it would be a part of the sum
                yield counter, float(values @ numbers / every)
        elif counter in _LARGEST:
            yield counter, float(values.max())
        else:
            weights = np.array([_weight(counters, counter) for counters, _ in having]) * numbers
            yield counter, float(np.average(values, weights=weights if weights.sum() > 0 else numbers))


def _weight(counters: dict[str, float], counter: str) -> float:
    """By what a kernel counts in the mean of a counter."""
    if counter == _INTENSITY:
        return counters.get("dram_read_bytes", 0.0) + counters.get("dram_write_bytes", 0.0)
    return counters.get("dur_ns", 0.0)


def _kernels(means: Sequence[Means], launches: Sequence[Mapping[Key, float]]) -> dict[str, object]:
    """The longest kernel of each side, the number of names and of launches."""
    found: dict[str, object] = {}
    for name, known, own in zip(("base", "new"), means, launches, strict=True):
        longest = max(
            own, key=lambda key: (own[key] * known.get(key, {}).get("dur_ns", 0.0), key[0] or ""), default=None
        )
        found[f"{name}_kernel"] = None if longest is None else longest[0]
        found[f"{name}_names"] = len({key[0] for key in own})
        found[f"{name}_count"] = float(sum(own.values()))
    return found


def _differences(frame: pl.DataFrame, least: float) -> pl.DataFrame:
    """Adds difference, ratio and changed."""
    base, new, share = pl.col("base"), pl.col("new"), pl.col("counter").str.ends_with("_share")
    ratio = pl.when(~share & (base > 0) & (new > 0)).then(new / base)
    alone = pl.col("change").cast(pl.String).is_in(["new", "gone"])
    beyond = (ratio > 1 + least) | (ratio < 1 / (1 + least))
    from_nothing = ~share & ((base > 0) != (new > 0))
    changed = alone | pl.when(share).then((new - base).abs() > least).otherwise(beyond.fill_null(from_nothing))
    return frame.with_columns(difference=new - base, ratio=ratio, changed=changed.fill_null(value=False))
