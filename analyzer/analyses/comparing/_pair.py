"""Two sides of one comparison: their runs, what matches what, and which rows differ by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.comparing._matching import Matches, Slots, matches, slots_of
from kanalyze.analyses.comparing._statistics import cold_runs
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.reduction.baselines import LAUNCHES, STEADY, About, Digest
from kanalyze.schema import Column
from kanalyze.turns import Turn, interleaved, pairs
from kanalyze.units import apportioned, count, nearest, plural, time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Numbers of iterations that differ by more than this part are no longer the same work.
_OTHER_NUMBER: Final = 0.1

#: The part of the launches of an iteration that both sides have, where they were found in different ways.
_SAME_LAUNCHES: Final = 0.75

#: From here on one side's iteration may be another thing than the other's.
_OTHER_UNIT: Final = 1.5


class LeftOut(NamedTuple):
    """A run that does not count, and why."""

    name: str
    reason: str


class Doubt(NamedTuple):
    """A difference between the sides beside the program: a name to allow it by, and a sentence."""

    kind: str
    text: str


class Side(NamedTuple):
    """The runs of one side, of one rank: those that count, and those that do not."""

    digests: list[Digest]
    left_out: list[LeftOut]

    @property
    def values_ns(self) -> list[float]:
        """The time of an iteration of each run."""
        return [one.about.iteration_ns for one in self.digests]

    @property
    def about(self) -> About:
        """Description of the first run."""
        return self.digests[0].about


def sides_of(base: Sequence[Digest], new: Sequence[Digest]) -> tuple[Side, Side, bool]:
    """The runs of one rank of both sides without those that began cold; and whether they were interleaved.

    Interleaved runs are in the order of their pairs.
    """
    return in_pairs(_warm(base), _warm(new))


def in_pairs(first: Side, second: Side) -> tuple[Side, Side, bool]:
    """Both sides in the order of their pairs, and True, where the runs were interleaved; else as they are."""
    turns = [
        [Turn(one.about.collection, one.about.side, one.about.turn) if one.about.turn else None for one in side.digests]
        for side in (first, second)
    ]
    if not interleaved(*turns):
        return first, second, False
    neighbours = pairs(*turns)
    one, other = ([side.digests[pair[at]] for pair in neighbours] for at, side in enumerate((first, second)))
    return first._replace(digests=one), second._replace(digests=other), True


def _warm(digests: Sequence[Digest]) -> Side:
    """The runs without those that began cold."""
    steady = digests[0].about.scope == STEADY
    # of a whole recording the host takes longer, too
    loading = [
        one.ns_in("loading", *(() if one.about.scope == STEADY else ("host",))) / one.about.iterations
        for one in digests
    ]
    cold = cold_runs(loading, [one.about.iteration_ns for one in digests])
    usual = median(ns for run, ns in enumerate(loading) if run not in cold)
    what = f"loading{'' if steady else ' and host'}"
    left_out = [
        LeftOut(digests[run].about.name, f"cold: {time(loading[run])} of {what}, {time(usual)} in the others")
        for run in cold
    ]
    return Side([one for run, one in enumerate(digests) if run not in cold], left_out)


def found_otherwise(base: Sequence[Digest], new: Sequence[Digest]) -> str:
    """The ways in which the steady iterations of both sides were found, where these differ; else empty."""
    ways = [sorted({one.about.found_by.partition(" ")[0] for one in runs} - {""}) for runs in (base, new)]
    if ways[0] == ways[1] or not all(ways):
        return ""
    return f"iterations were found by {' and '.join(ways[0])} in base, by {' and '.join(ways[1])} in new"


def same_launches(base: Sequence[Digest], new: Sequence[Digest]) -> bool:
    """Whether iterations that were found in different ways are the same thing: most of their launches are the same.

    Of an iteration that is two of the other side's, half of the launches at most are.
    """
    what, often = ("kind", "name", "shape"), pl.col("count") / pl.col("iterations")
    sides = []
    for runs in (base, new):
        every = pl.concat([one.slots.with_columns(iterations=pl.lit(one.about.iterations)) for one in runs])
        sides.append(every.group_by(what).agg(often=often.sum() / len(runs)))
    both = sides[0].join(sides[1], on=what, nulls_equal=True).select(pl.min_horizontal("often", "often_right").sum())
    return bool(both.item() >= _SAME_LAUNCHES * max(float(side.get_column("often").sum()) for side in sides))


def steps_in_common(base: Sequence[Digest], new: Sequence[Digest]) -> str:
    """The reason why the iterations of both sides cannot be compared; empty where they can."""
    for name, runs in (("base", base), ("new", new)):
        missing = [one for one in runs if one.about.scope != STEADY]
        if missing:
            return f"nothing repeats steadily in {plural(len(missing), 'run')} of {name}"
    numbers = [median(one.about.recorded_iterations for one in runs) for runs in (base, new)]
    if otherwise := found_otherwise(base, new):
        return otherwise
    if max(numbers) > _OTHER_UNIT * min(numbers) and base[0].about.found_by == LAUNCHES:
        return (
            f"an iteration may be another thing on each side ({count(int(numbers[0]))} {base[0].about.each} in base, "
            f"{count(int(numbers[1]))} {new[0].about.each} in new)"
        )
    return ""


def doubts(base: Side, new: Side) -> list[Doubt]:
    """Differences between the sides beside the program, the runs that began cold among them."""
    found = []
    for kind, (what, describe) in _DIFFERENCES.items():
        texts = [{describe(one.about) for one in side.digests} - {""} for side in (base, new)]
        if texts[0] and texts[1] and (texts[0] != texts[1] or len(texts[0]) > 1):
            before, after = (" and ".join(sorted(some)) for some in texts)
            found.append(Doubt(kind, f"{what}: {before} in base, {after} in new"))
    before_number, after_number = (min(one.about.recorded_iterations for one in side.digests) for side in (base, new))
    apart = abs(before_number - after_number)
    if apart > _OTHER_NUMBER * max(before_number, after_number) and base.about.scope == STEADY:
        what = f"number of iterations ({base.about.each})"
        found.append(Doubt("steps", f"{what}: {before_number:,} in base, {after_number:,} in new"))
    for name, side in (("base", base), ("new", new)):
        found += [Doubt("cold", f"left out of {name}: {one.name} ({one.reason})") for one in side.left_out]
    return found


#: What sides may differ in beside the program: by kind, what it is called and how it is told.
_DIFFERENCES: Final[dict[str, tuple[str, Callable[[About], str]]]] = {
    "gpu": ("GPU", lambda about: about.gpu),
    "driver": ("driver", lambda about: about.driver),
    "clocks": ("highest clock", lambda about: f"{about.clock_hz / 1e6:.0f} MHz" if about.clock_hz else ""),
    "tool": ("tool", lambda about: about.tool),
    "flags": ("recorded", lambda about: about.recorded),
}


#: False ones among the rows that are told to have changed.
_FALSE_SHARE: Final = 0.05

#: Least part of an iteration that a row takes on either side, to be told to have changed.
LEAST_SHARE: Final = 0.001

#: Between two single runs of the same program, the part by which times may differ where nothing says by how much.
ALONE: Final = 0.05

#: Parts are apportioned in proportion to times in this part of a nanosecond.
_FINE: Final = 1000


class Limits(NamedTuple):
    """Limits that a change has to pass."""

    least_effect: float = statistics.LEAST_EFFECT  # the least change that counts, as a part of the time
    #: Between two single runs of the same program, the part by which their times differ; None if not known.
    floor: float | None = None
    rows_floor: float | None = None  # the same of single kernels


@dataclass(frozen=True)
class Pair:
    """Two sides to be compared, of one rank; `paired` if the nth run of one side belongs to the nth of the other."""

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

        That is of a table of each digest the distinct `keys`, in the order of first occurrence; and of each of the
        columns `values`, which are summed over all iterations, two arrays [rows, runs].
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

    def certainty(self, base: Floats, new: Floats) -> list[pl.Series]:
        """The columns of :data:`CERTAINTY` of times [rows, runs].

        Changed are rows of both sides by more than the least effect, and with several runs a side by a moderated t at a
        rate of false ones of 5 %; with one by more than a floor. Rows of one side alone, always. Rows below a
        thousandth of the iteration never.
        """
        before, after = base.mean(axis=1), new.mean(axis=1)
        large = np.maximum(before, after) >= LEAST_SHARE * max(self.base_ns, self.new_ns, 1)
        both = (before > 0) & (after > 0)
        ratio, low, high = np.full((3, len(before)), np.nan)
        np.divide(after, before, out=ratio, where=both)
        least = self.limits.least_effect
        if not self.repeated:
            least = max(least, ALONE if self.limits.rows_floor is None else self.limits.rows_floor)
        clear = (ratio > 1 + least) | (ratio < 1 / (1 + least))
        if self.repeated:
            tested = np.flatnonzero(both & large)
            estimates = statistics.moderated(base[tested], new[tested], paired=self.paired)
            low[tested], high[tested] = estimates.low, estimates.high
            clear[tested] &= statistics.benjamini_hochberg(estimates.p_value) < _FALSE_SHARE
        ends = {"ratio": ratio, "ratio_low": low, "ratio_high": high}
        told = [pl.Series(name, values).fill_nan(None) for name, values in ends.items()]
        return [*told, pl.Series("changed", large & (clear | ~both))]


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

#: What most tables say of the times of a row.
DIFFERENCE: Final = (*TIMES, *CERTAINTY)

COUNTS: Final = (
    Column("base_count", pl.Float64, "How many in an iteration of base."),
    Column("new_count", pl.Float64, "How many in an iteration of new."),
)


def summed(values: Floats, groups: Iterable[Sequence[int]]) -> Floats:
    """The sums of `values` [rows, runs] over the rows of each group: [groups, runs]."""
    return np.array([values[list(rows)].sum(axis=0) for rows in groups])


def means(column: str, sides: tuple[Floats, Floats]) -> list[pl.Series]:
    """The columns ``base_`` and ``new_`` with this ending: means of values [rows, runs], whole but of numbers."""
    found = []
    for name, side in zip(("base", "new"), sides, strict=True):
        values = side.mean(axis=1).tolist()
        whole = nearest(values) if column.endswith(("_ns", "bytes")) else values
        found.append(pl.Series(f"{name}_{column}", whole, dtype=pl.Int64 if whole is not values else pl.Float64))
    return found


def with_differences(
    pair: Pair,
    keys: pl.DataFrame,
    values: Mapping[str, tuple[Floats, Floats]],
    ns: str,
    whole: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """The rows `keys` with :data:`DIFFERENCE` of the times `ns`, and :func:`means` of the other values [rows, runs].

    Times are means, which sum to `whole` where that is given.
    """
    sides = [side.mean(axis=1) for side in values[ns]]
    spans = map(nearest, (side.tolist() for side in sides)) if whole is None else map(integers, sides, whole)
    before, after = (pl.Series(one, dtype=pl.Int64) for one in spans)
    times = [before.alias("base_ns"), after.alias("new_ns"), (after - before).alias("delta_ns")]
    others = [column for name, both in values.items() if name != ns for column in means(name, both)]
    return keys.with_columns(*times, *pair.certainty(*values[ns]), *others)


def by_size(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The rows by the size of their difference, the largest first."""
    falling = [True, True, *(False for _ in keys)]
    return frame.sort(pl.col("delta_ns").abs(), "new_ns", *keys, descending=falling, nulls_last=True)
