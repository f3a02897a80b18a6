"""Two sides of one comparison: their time per iteration, what matches what, which rows differ by how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.comparing._matching import Matches, Slots, matches, slots_of
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.schema import Column
from kanalyze.units import apportioned, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from kanalyze.analyses.comparing._sides import Side
    from kanalyze.digest import Digest

    Floats = NDArray[np.float64]

#: False ones among the rows that are told to have changed.
_FALSE_SHARE: Final = 0.05

#: Least part of an iteration that a row takes on either side, to be told to have changed.
LEAST_SHARE: Final = 0.001

#: Between two single runs of the same program, the part by which times may differ where nothing says by how much.
ALONE: Final = 0.05

#: Parts are apportioned in proportion to times in this part of a nanosecond.
_FINE: Final = 1000


class Limits(NamedTuple):
    """Limits that a change has to pass.

    Attributes:
        least_effect: The least change that counts, as a part of the time.
        floor: Between two single runs of the same program, the part by which their times differ; None if not known.
        rows_floor: The same of single kernels.
    """

    least_effect: float = statistics.LEAST_EFFECT
    floor: float | None = None
    rows_floor: float | None = None


@dataclass(frozen=True)
class Changes:
    """How rows of times changed, an entry each.

    Attributes:
        ratio: New by base; NaN where one side has nothing.
        low: Lower end of its 95 % interval; NaN where there is none.
        high: Upper end.
        changed: Whether it is told to have changed.
    """

    ratio: Floats
    low: Floats
    high: Floats
    changed: NDArray[np.bool_]


@dataclass(frozen=True)
class Pair:
    """Two sides to be compared, of one rank.

    Attributes:
        base: The one side.
        new: The other one.
        paired: Whether the runs were interleaved, so that the nth of one side belongs to the nth of the other.
        limits: What counts as a change.
    """

    base: Side
    new: Side
    paired: bool = False
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def base_ns(self) -> int:
        """The mean time of an iteration of base."""
        return nearest([mean(self.base.values_ns)])[0]

    @cached_property
    def new_ns(self) -> int:
        """The mean time of an iteration of new."""
        return nearest([mean(self.new.values_ns)])[0]

    @cached_property
    def busy_ns(self) -> tuple[int, int]:
        """The busy time of an iteration of base and of new, as `compare` tells it."""
        keys, values = self.per_iteration(lambda one: one.buckets, ("bucket", "detail"), ("ns",))
        busy = keys.get_column("bucket").is_in(BUSY_BUCKETS).to_numpy()
        sides = zip(values["ns"], (self.base_ns, self.new_ns), strict=True)
        base, new = (int(np.array(integers(side.mean(axis=1), ns), dtype=np.int64)[busy].sum()) for side, ns in sides)
        return base, new

    @cached_property
    def repeated(self) -> bool:
        """Whether both sides have runs enough to know how much these vary."""
        return min(len(self.base.digests), len(self.new.digests)) >= statistics.LEAST_RUNS

    @cached_property
    def slots(self) -> tuple[Slots, Slots]:
        """The operations of a typical iteration of base and of new."""
        return slots_of(self.base.digests), slots_of(self.new.digests)

    @cached_property
    def matches(self) -> Matches:
        """Operations of base matched with those of new that do the same."""
        base, new = self.slots
        return matches(base.rows, new.rows)

    def per_iteration(
        self, rows: Callable[[Digest], pl.DataFrame], keys: Sequence[str], values: Sequence[str]
    ) -> tuple[pl.DataFrame, dict[str, tuple[Floats, Floats]]]:
        """The rows that any run has, and their values in an iteration of each run, of base and of new.

        Args:
            rows: The table of a digest.
            keys: Its columns that name a row.
            values: Its columns of numbers, summed over all iterations.

        Returns:
            The distinct keys, in the order of first occurrence; and of each value two arrays [rows, runs].
        """
        runs = [*self.base.digests, *self.new.digests]
        tables = [rows(one) for one in runs]
        heights = [table.height for table in tables]
        every = pl.concat(tables)
        names = every.select(keys).unique(maintain_order=True).with_row_index("row")
        at = every.select(keys).join(names, on=keys, how="left", nulls_equal=True, maintain_order="left")
        cells = at.get_column("row").to_numpy(), np.repeat(np.arange(len(runs)), heights)
        iterations = np.repeat([float(one.about.iterations) for one in runs], heights)
        found = {}
        for name in values:
            matrix = np.zeros((names.height, len(runs)))
            np.add.at(matrix, cells, every.get_column(name).to_numpy() / iterations)
            base, new = np.hsplit(matrix, [len(self.base.digests)])
            found[name] = (base, new)
        return names.drop("row"), found

    def changed(self, base: Floats, new: Floats) -> Changes:
        """Changed rows of times [rows, runs].

        Rows of both sides: by more than the least effect, and with several runs a side by a moderated t at a rate of
        false ones of 5 %; with one by more than a floor. Rows of one side alone, always. Rows below a thousandth of the
        iteration never.
        """
        before, after = base.mean(axis=1), new.mean(axis=1)
        large = np.maximum(before, after) >= LEAST_SHARE * max(self.base_ns, self.new_ns, 1)
        both = (before > 0) & (after > 0)
        ratio = np.full(len(before), np.nan)
        np.divide(after, before, out=ratio, where=both)
        beyond = (ratio > 1 + self.limits.least_effect) | (ratio < 1 / (1 + self.limits.least_effect))
        nothing = np.full(len(before), np.nan)
        if not self.repeated:
            alone = max(self.limits.least_effect, ALONE if self.limits.rows_floor is None else self.limits.rows_floor)
            clear = (ratio > 1 + alone) | (ratio < 1 / (1 + alone))
            return Changes(ratio, nothing, nothing, large & (clear | ~both))
        tested = np.flatnonzero(both & large)
        estimates = statistics.moderated(base[tested], new[tested], paired=self.paired)
        low, high, clear = nothing.copy(), nothing.copy(), np.zeros(len(before), dtype=np.bool_)
        low[tested], high[tested] = estimates.low, estimates.high
        clear[tested] = statistics.benjamini_hochberg(estimates.p_value) < _FALSE_SHARE
        return Changes(ratio, low, high, large & ((beyond & clear) | ~both))


def integers(values: Floats, whole: int) -> list[int]:
    """Times as integers that sum to `whole`, in proportion to themselves."""
    return apportioned(nearest((values * _FINE).tolist()), whole)


#: The columns about time that all of these tables have.
TIMES: Final = (
    Column("base_ns", pl.Int64, "Time of it in an iteration of base."),
    Column("new_ns", pl.Int64, "Time of it in an iteration of new."),
    Column("delta_ns", pl.Int64, "new_ns less base_ns."),
)

CERTAINTY: Final = (
    Column("ratio", pl.Float64, "new_ns by base_ns; null where one side has none.", nullable=True),
    Column("ratio_low", pl.Float64, "Lower end of its 95 % interval; null with one run a side.", nullable=True),
    Column("ratio_high", pl.Float64, "Upper end.", nullable=True),
    Column("changed", pl.Boolean, "Whether that is more than the least effect and more than noise."),
)

COUNTS: Final = (
    Column("base_count", pl.Float64, "How many in an iteration of base."),
    Column("new_count", pl.Float64, "How many in an iteration of new."),
)


def summed(values: Floats, groups: Iterable[Sequence[int]]) -> Floats:
    """The sums of `values` [rows, runs] over the rows of each group: [groups, runs]."""
    return np.array([values[list(rows)].sum(axis=0) for rows in groups])


def whole_means(column: str, values: tuple[Floats, Floats] | list[Floats]) -> list[pl.Series]:
    """The columns ``base_`` and ``new_`` with this ending: means of values [rows, runs] as whole numbers."""
    return [
        pl.Series(f"{name}_{column}", nearest(side.mean(axis=1).tolist()), dtype=pl.Int64)
        for name, side in zip(("base", "new"), values, strict=True)
    ]


def counts(base: Floats, new: Floats) -> list[pl.Series]:
    """The columns of :data:`COUNTS` of numbers [rows, runs]."""
    return [pl.Series("base_count", base.mean(axis=1)), pl.Series("new_count", new.mean(axis=1))]


def compared(pair: Pair, base: Floats, new: Floats, whole: tuple[int, int] | None = None) -> list[pl.Series]:
    """The columns of :data:`TIMES` and :data:`CERTAINTY` of times [rows, runs].

    Times are means, which sum to `whole` where that is given.
    """
    sides = [side.mean(axis=1) for side in (base, new)]
    spans = map(nearest, (side.tolist() for side in sides)) if whole is None else map(integers, sides, whole)
    before, after = (pl.Series(one, dtype=pl.Int64) for one in spans)
    found = pair.changed(base, new)
    certain = {"ratio": found.ratio, "ratio_low": found.low, "ratio_high": found.high}
    return [
        before.alias("base_ns"),
        after.alias("new_ns"),
        (after - before).alias("delta_ns"),
        *(pl.Series(name, values).fill_nan(None) for name, values in certain.items()),
        pl.Series("changed", found.changed),
    ]


def by_key(
    pair: Pair,
    rows: Callable[[Digest], pl.DataFrame],
    keys: Sequence[str],
    ns: str,
    *means: str,
    whole: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """The rows of a table of digests, those of one key together: the keys, :data:`TIMES` and :data:`CERTAINTY` by `ns`.

    With the means of further columns: of ``count`` :data:`COUNTS`, of others whole numbers.
    """
    names, values = pair.per_iteration(rows, keys, (ns, *means))
    base, new = values[ns]
    columns = [*names, *compared(pair, base, new, whole if names.height else None)]
    for one in means:
        columns += counts(*values[one]) if one == "count" else whole_means(one, values[one])
    return pl.DataFrame(columns)


def by_size(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The rows by the size of their difference, the largest first."""
    falling = [True, True, *(False for _ in keys)]
    return frame.sort(pl.col("delta_ns").abs(), "new_ns", *keys, descending=falling, nulls_last=True)
