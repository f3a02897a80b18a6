"""Counters of ncu before and after, kernel by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from kanalyze.analyses.comparing._matching import FUSED, SPLIT
from kanalyze.analyses.comparing._pair import COUNTS
from kanalyze.analyses.comparing.compare_kernels import CHANGE, KERNELS, groups_of
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kanalyze.analyses.comparing._pair import Pair, Side

    Key = tuple[str | None, str | None]  # name and launch shape of a kernel
    Means = dict[Key, dict[str, float]]  # the mean of each counter of a launch

#: Counters that add up over kernels; all others are means by time, `intensity_flop_per_byte` by bytes of DRAM.
_SUMS: Final = ("dur_ns", "cycles", "dram_read_bytes", "dram_write_bytes", "flop")
_LARGEST: Final = ("registers_per_thread",)
_INTENSITY: Final = "intensity_flop_per_byte"

TABLE: Final = Table(
    "compare_counters",
    "One counter of a kernel of base, and of the one of new that does the same; of several, of them all together.",
    (
        CHANGE,
        *KERNELS,
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


def compare_counters(pair: Pair) -> pl.DataFrame:
    """The counters of the kernels of both sides, matched as in `compare_kernels`.

    Returns:
        :data:`TABLE`, the kernels with the most time first; empty where a side has no counters.
    """
    means = [_means(side) for side in (pair.base, pair.new)]
    if not all(means):
        return TABLE.empty()
    names = [[*side.rows.select("name", "shape").iter_rows()] for side in pair.slots]
    rows: list[tuple[float, dict[str, object]]] = []
    for before, after, change in groups_of(pair):
        launches = [
            _launches(keys, side.counts, own)
            for keys, side, own in zip(names, pair.slots, (before, after), strict=True)
        ]
        together = change in (FUSED, SPLIT)
        sides = [dict(_counters(known, own, together=together)) for known, own in zip(means, launches, strict=True)]
        time = max(float(side.ns[list(own)].sum()) for side, own in zip(pair.slots, (before, after), strict=True))
        head = {"change": change, **_kernels(means, launches)}
        for counter in dict.fromkeys(name for own in sides for name in own):
            base, new = (own.get(counter) for own in sides)
            rows.append((-time, head | {"counter": counter, "base": base, "new": new}))
    rows.sort(key=lambda row: row[0])
    schema = {name: kind for name, kind in TABLE.schema.items() if name not in ("difference", "ratio", "changed")}
    return TABLE.select(_differences(pl.DataFrame([row for _, row in rows], schema=schema), pair.limits.least_effect))


def _means(side: Side) -> Means:
    """The counters of each kernel and shape, the mean of the runs that have them."""
    every = pl.concat([one.counters for one in side.digests])
    found: Means = {}
    sums = every.group_by("name", "shape", "counter", maintain_order=True).agg(pl.col("mean").mean())
    for name, shape, counter, mean in sums.iter_rows():
        found.setdefault((name, shape), {})[counter] = mean
    return found


def _launches(names: Sequence[Key], counts: NDArray[np.float64], rows: Sequence[int]) -> dict[Key, float]:
    """How often a run launches each kernel and shape of some operations."""
    found: dict[Key, float] = {}
    for row in rows:
        found[names[row]] = found.get(names[row], 0.0) + float(counts[row].mean())
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
