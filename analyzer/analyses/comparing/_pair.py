"""Two sides of one comparison: their runs, which operations are the same, and which rows differ by how much.

Definitions: docs/definitions.md, section 10, "Comparing".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean, median
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.iterations._marks import BY_ENGINE, STEP
from kanalyze.analyses.shared.alignment import aligned
from kanalyze.decoder.decode import decode
from kanalyze.reduction.baselines import LAUNCHES, STEADY, About, Digest
from kanalyze.schema import Column, Table
from kanalyze.tools import Turn, interleaved, pairs as pairs_of
from kanalyze.units import apportioned, change, count, nearest, plural, time

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: How an operation changed.
SAME: Final = "same"
SHAPE: Final = "other shape"
KERNEL: Final = "other kernel"
FUSED: Final = "fused"
SPLIT: Final = "split"
NEW: Final = "new"
GONE: Final = "gone"

#: Families whose kernels do one recognisable thing, so that another kernel of the family does the same one.
_DISTINCT: Final = frozenset({
    "gemm", "conv", "attention", "softmax", "normalization", "embedding", "loss", "pooling", "resample", "fft",
    "linalg", "rnn", "communication", "sort", "scan", "random",
})  # fmt: skip

#: What operations have in common that match, in the order in which matches are sought.
_ALIKE: Final = (("range", "op", "name", "shape"), ("name", "shape"), ("name",), ("family",))

#: What matches nothing beside a run of weak matches is this times as long, for it to be a part of that.
_WEAK: Final = 2

#: What tells an operation from others of its kind and name, and from all others: the nth of these.
_KEY: Final = ("kind", "bucket", "name", "shape", "range", "op", "lane")
OPERATION: Final = (*_KEY, "nth")

#: Numbers of iterations that differ by more than this part are no longer the same work.
_OTHER_NUMBER: Final = 0.1

#: The part of the launches of an iteration that both sides have, where they were found in different ways.
_SAME_LAUNCHES: Final = 0.75

#: From here on one side's iteration may be another thing than the other's.
_OTHER_UNIT: Final = 1.5


def stacked(digests: Sequence[Digest], table: str) -> pl.DataFrame:
    """The rows of a table of several digests, each with its run, from 0, and with how many iterations that has."""
    frames: list[pl.DataFrame] = [getattr(one, table) for one in digests]
    return pl.concat(
        frame.with_columns(run=pl.lit(at), iterations=pl.lit(one.about.iterations))
        for at, (frame, one) in enumerate(zip(frames, digests, strict=True))
    )


def per_iteration(
    rows: pl.DataFrame, runs: int, keys: Sequence[str], values: Sequence[str]
) -> tuple[pl.DataFrame, dict[str, Floats]]:
    """The distinct `keys` of rows as :func:`stacked`, in the order of first occurrence, with values in each run.

    Those are of each of the columns `values`, which are summed over all iterations, the part of one: [rows, runs].
    """
    names = rows.select(keys).unique(maintain_order=True).with_row_index("at")
    at = rows.select(keys).join(names, on=keys, how="left", nulls_equal=True, maintain_order="left").get_column("at")
    cells, iterations = (at.to_numpy(), rows.get_column("run").to_numpy()), rows.get_column("iterations").to_numpy()
    sums = {}
    for name in values:
        sums[name] = np.zeros((names.height, runs))
        np.add.at(sums[name], cells, rows.get_column(name).to_numpy() / iterations)
    return names.drop("at"), sums


def matches(rows: pl.DataFrame) -> pl.DataFrame:
    """Operations of base (side 0) matched with those of new that do the same; each side's are by place.

    Per stream the sequences are aligned by place, name and launch shape, and what is left between two matches by name
    and shape, by name, and by family and type; then block by block, the ranges that both sides launched from apart.
    What is left of one name and shape in other places has moved. Adds group, the same of
    those that are matched or in one block, and change, null of what is matched.
    """
    decoded = {name: decode(name) for name in rows.get_column("name").unique().drop_nulls()}
    types = {name: f"{one.family} {one.dtype}" for name, one in decoded.items() if one.family in _DISTINCT}
    alike = rows.with_columns(family=pl.col("name").replace(types)).select(
        pl.struct("kind", *columns).rank("dense").cast(pl.Int64).alias(str(at)) for at, columns in enumerate(_ALIKE)
    )
    tokens = [column.to_numpy() for column in alike.iter_columns()]
    side, lanes = (rows.get_column(name).to_numpy() for name in ("side", "lane"))
    pair = np.full(rows.height, -1)
    for lane in np.unique(lanes):
        base, new = (np.flatnonzero((lanes == lane) & (side == at)) for at in (0, 1))
        one, other = _without_weak(*_aligned(base, new, tokens), base, new, tokens[1])
        pair[base[one]] = pair[new[other]] = base[one]
    # what is left between two matches, on both sides or on one alone
    matched, both, same = pl.col("pair") >= 0, pl.col("side").n_unique() > 1, ("kind", "name", "shape")
    rows = rows.with_row_index("row").with_columns(pair=pl.Series(pair)).with_columns(matched=matched)
    rows = rows.with_columns(gap=pl.col("matched").cum_sum().over("side", "lane"))
    gap, alone = ("matched", "lane", "gap"), ("matched", "block", "again", *same)
    rows = rows.with_columns(block=both.over(gap), common=pl.when(both.over(*gap, "range")).then("range"))
    rows = rows.with_columns(again=pl.int_range(pl.len()).over("matched", "block", "side", *same))
    rows = rows.with_columns(matched=pl.col("matched") | (~pl.col("block") & both.over(alone)))
    first = pl.col("row").min()
    between = pl.when("block").then(first.over(*gap, "common")).when("matched").then(first.over(alone)).otherwise("row")
    rows = rows.with_columns(group=pl.when(matched).then("pair").otherwise(between))
    before, after = ((pl.col("side") == at).sum().over("group") for at in (0, 1))
    one_each = (before == 1) & (after == 1)
    changes = {NEW: before == 0, GONE: after == 0, KERNEL: one_each, FUSED: after <= before, SPLIT: pl.lit(value=True)}
    change = pl.coalesce(pl.when(~pl.col("matched") & where).then(pl.lit(name)) for name, where in changes.items())
    return rows.with_columns(change=change).drop("row", "pair", "matched", "gap", "block", "common", "again")


def _aligned(base: Numbers, new: Numbers, tokens: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """The places in `base` and `new`, rows of one stream, that match: by the first tokens, or between by others."""
    mine, theirs = np.zeros((2, 0), np.int64)
    for token in tokens:
        edges = (np.r_[0, mine + 1], np.r_[mine, len(base)], np.r_[0, theirs + 1], np.r_[theirs, len(new)])
        more = [
            (np.asarray(one) + low, np.asarray(other) + start)
            for low, high, start, end in zip(*(edge.tolist() for edge in edges), strict=True)
            if high > low and end > start
            for one, other in [aligned(token[base[low:high]], token[new[start:end]])]
        ]
        mine = np.sort(np.concatenate([mine, *(one for one, _ in more)]))
        theirs = np.sort(np.concatenate([theirs, *(other for _, other in more)]))
    return mine, theirs


def _without_weak(at: Numbers, to: Numbers, base: Numbers, new: Numbers, token: Numbers) -> tuple[Numbers, Numbers]:
    """The matches without those of other names or shapes that stand alone in what was replaced: a part of it.

    These are runs of such matches, less than half as long as what matches nothing on either side of the run.
    """
    weak = token[base[at]] != token[new[to]]
    if not weak.any():
        return at, to
    free = np.diff(np.r_[-1, at, len(base)]) + np.diff(np.r_[-1, to, len(new)]) - 2
    begins = np.flatnonzero(weak & np.r_[True, ~weak[:-1] | (free[1:-1] > 0)])
    run = np.cumsum(np.isin(np.arange(len(weak)), begins)) - 1
    lengths = np.bincount(run[weak], minlength=len(begins))
    ends = begins + lengths
    dropped = (free[begins] > 0) & (free[ends] > 0) & (_WEAK * lengths < free[begins] + free[ends])
    kept = ~(weak & dropped[np.maximum(run, 0)])
    return at[kept], to[kept]


class Doubt(NamedTuple):
    """A difference between the sides beside the program: a name to allow it by, and a sentence."""

    kind: str
    text: str


class Side(NamedTuple):
    """The runs of one side, of one rank: those that count, and those that do not."""

    digests: list[Digest]
    left_out: list[tuple[str, str]]  # name and why

    @property
    def values_ns(self) -> list[float]:
        """The time of an iteration of each run."""
        return [one.about.iteration_ns for one in self.digests]

    @property
    def about(self) -> About:
        """Description of the first run."""
        return self.digests[0].about


def under_one_name(first: Side, second: Side) -> list[Side]:
    """Both sides; of engines of which one has steps of other kinds all are steps of any kind."""
    sides = [first, second]
    if len({side.about.each for side in sides}) == 1 or any(side.about.found_by != BY_ENGINE for side in sides):
        return sides
    return [
        side._replace(digests=[replace(one, about=replace(one.about, each=STEP)) for one in side.digests])
        for side in sides
    ]


def in_pairs(first: Side, second: Side) -> tuple[Side, Side, bool]:
    """Both sides in the order of their pairs, and True, where the runs were interleaved; else as they are."""
    turns = [
        [Turn(one.about.collection, one.about.side, one.about.turn) if one.about.turn else None for one in side.digests]
        for side in (first, second)
    ]
    if not interleaved(*turns):
        return first, second, False
    one, other = (
        side._replace(digests=[side.digests[pair[at]] for pair in pairs_of(*turns)])
        for at, side in enumerate((first, second))
    )
    return one, other, True


def warm(digests: Sequence[Digest]) -> Side:
    """The runs of one rank without those that began cold."""
    # of a whole recording the host takes longer, too
    loading = [
        one.ns_in("loading", *(() if one.about.scope == STEADY else ("host",))) / one.about.iterations
        for one in digests
    ]
    cold = statistics.cold_runs(loading, [one.about.iteration_ns for one in digests])
    usual = median(ns for run, ns in enumerate(loading) if run not in cold)
    what = f"loading{'' if digests[0].about.scope == STEADY else ' and host'}"
    left_out = [
        (digests[run].about.name, f"cold: {time(loading[run])} of {what}, {time(usual)} in the others") for run in cold
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
    sides = [stacked(runs, "slots").group_by(what).agg(often=often.sum() / len(runs)) for runs in (base, new)]
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
    differences = []
    for kind, (what, describe) in _DIFFERENCES.items():
        texts = [{describe(one.about) for one in side.digests} - {""} for side in (base, new)]
        if texts[0] and texts[1] and (texts[0] != texts[1] or len(texts[0]) > 1):
            before, after = (" and ".join(sorted(some)) for some in texts)
            differences.append(Doubt(kind, f"{what}: {before} in base, {after} in new"))
    before_number, after_number = (min(one.about.recorded_iterations for one in side.digests) for side in (base, new))
    apart = abs(before_number - after_number)
    served = base.about.found_by == BY_ENGINE  # of an engine's steps each kind and size is compared by itself
    if apart > _OTHER_NUMBER * max(before_number, after_number) and base.about.scope == STEADY and not served:
        what = f"number of iterations ({base.about.each})"
        differences.append(Doubt("steps", f"{what}: {before_number:,} in base, {after_number:,} in new"))
    typical = [mean(one.about.typical for one in side.digests) for side in (base, new)]
    if max(typical) > (1 + ALONE) * min(typical) > 0 and not served:
        what = "kernels of the iterations that are averaged, against those of all steady ones"
        differences.append(Doubt("steps", f"{what}: {change(typical[0])} in base, {change(typical[1])} in new"))
    return differences + [
        Doubt("cold", f"left out of {name}: {run} ({reason})")
        for name, side in (("base", base), ("new", new))
        for run, reason in side.left_out
    ]


#: What sides may differ in beside the program: by kind, what it is called and how it is told.
_DIFFERENCES: Final[dict[str, tuple[str, Callable[[About], str]]]] = {
    "gpu": ("GPU", lambda about: about.gpu),
    "driver": ("driver", lambda about: about.driver),
    "clocks": ("highest clock", lambda about: f"{about.clock_hz / 1e6:.0f} MHz" if about.clock_hz else ""),
    "tool": ("tool", lambda about: about.tool),
    "flags": ("recorded", lambda about: about.recorded),
    "profiler": ("times", lambda about: about.times),
}

#: False ones among the rows that are told to have changed.
_FALSE_SHARE: Final = 0.05

#: Least part of an iteration that a row takes on either side, to be told to have changed.
LEAST_SHARE: Final = 0.001

#: Between two single runs of the same program, the part by which times may differ where nothing says by how much.
ALONE: Final = 0.05


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

    @property
    def sides(self) -> tuple[Side, Side]:
        """Base and new."""
        return self.base, self.new

    @cached_property
    def ns(self) -> tuple[int, int]:
        """The mean time of an iteration of base and of new."""
        base, new = nearest(mean(side.values_ns) for side in self.sides)
        return base, new

    @property
    def repeated(self) -> bool:
        """Whether both sides have runs enough to know how much these vary."""
        return min(len(side.digests) for side in self.sides) >= statistics.LEAST_RUNS

    def runs(self, table: str) -> pl.DataFrame:
        """The rows of a table of all runs as :func:`stacked`, those of base first, with side: 0 is base, 1 new."""
        new = pl.col("run") >= len(self.base.digests)
        return stacked([*self.base.digests, *self.new.digests], table).with_columns(side=new.cast(pl.Int32))

    def per_iteration(
        self, rows: pl.DataFrame, keys: Sequence[str], values: Sequence[str]
    ) -> tuple[pl.DataFrame, dict[str, tuple[Floats, Floats]]]:
        """:func:`per_iteration` of rows of both sides, with the values of base and of new apart."""
        at = len(self.base.digests)
        names, sums = per_iteration(rows, at + len(self.new.digests), keys, values)
        return names, {name: (matrix[:, :at], matrix[:, at:]) for name, matrix in sums.items()}

    def per_run(self, rows: pl.DataFrame, ns: str) -> tuple[list[float], list[float]]:
        """The sum of a column in an iteration of each run of base and of new."""
        base, new = self.per_iteration(rows, ("side",), (ns,))[1][ns]
        return base.sum(axis=0).tolist(), new.sum(axis=0).tolist()

    @cached_property
    def slots(self) -> pl.DataFrame:
        """The operations of all runs, with nth: the nth of one name and place is the same one in each run."""
        return self.runs("slots").with_columns(nth=pl.int_range(pl.len()).over("run", *_KEY))

    @cached_property
    def operations(self) -> pl.DataFrame:
        """The operations of a typical iteration of both sides, each side's by stream and place.

        Columns: side, :data:`OPERATION`, ns (device time in an iteration of each run, summed over its side), count
        (in an iteration of its side), block and change. Of one block are those that are told together: with one change,
        and the same names on both sides.
        """
        ns, number = (pl.col(name) / pl.col("iterations") for name in ("exclusive_ns", "count"))
        numbers = pl.when(pl.col("side") == 0).then(len(self.base.digests)).otherwise(len(self.new.digests))
        sums = self.slots.group_by("side", *OPERATION).agg(pl.col("place").mean(), ns=ns.sum(), count=number.sum())
        sums = sums.with_columns(pl.col("count") / numbers)
        rows = matches(sums.sort("side", "lane", "place", *OPERATION, nulls_last=True))
        sets = [
            pl.col(what).filter(pl.col("side") == at).fill_null("").unique().sort().str.join("\n").alias(f"{what}{at}")
            for what in ("name", "shape")
            for at in (0, 1)
        ]
        groups = rows.group_by("group", "change").agg(sets)
        same = pl.when(pl.col("shape0") == pl.col("shape1")).then(pl.lit(SAME)).otherwise(pl.lit(SHAPE))
        of_match = pl.when(pl.col("name0") == pl.col("name1")).then(same).otherwise(pl.lit(KERNEL))
        groups = groups.with_columns(change=pl.coalesce("change", of_match), matched=pl.col("change").is_null())
        block = pl.col("group").min().over("change", "name0", "name1", "matched").rank("dense").cast(pl.Int64) - 1
        groups = groups.select("group", "change", block=block)
        return rows.drop("change").join(groups, on="group", maintain_order="left").drop("group")

    def certainty(self, base: Floats, new: Floats) -> list[pl.Series]:
        """The columns of :data:`CERTAINTY` of times [rows, runs].

        Changed are rows of both sides by more than the least effect, and with several runs a side by a moderated t at a
        rate of false ones of 5 %; with one by more than a floor. Rows of one side alone, always. Rows below a
        thousandth of the iteration never.
        """
        before, after = base.mean(axis=1), new.mean(axis=1)
        large = np.maximum(before, after) >= LEAST_SHARE * max(*self.ns, 1)
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
        ratios = [pl.Series(name, values).fill_nan(None) for name, values in ends.items()]
        return [*ratios, pl.Series("changed", large & (clear | ~both))]


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


def means(column: str, sides: tuple[Floats, Floats]) -> list[pl.Series]:
    """The columns ``base_`` and ``new_`` with this ending: means of values [rows, runs], whole but of numbers."""
    columns = []
    for name, side in zip(("base", "new"), sides, strict=True):
        values = side.mean(axis=1).tolist()
        whole = nearest(values) if column.endswith(("_ns", "bytes")) else values
        columns.append(pl.Series(f"{name}_{column}", whole, dtype=pl.Int64 if whole is not values else pl.Float64))
    return columns


def with_differences(
    pair: Pair, rows: pl.DataFrame, keys: Sequence[str], values: Sequence[str], whole: tuple[int, int] | None = None
) -> pl.DataFrame:
    """The `keys` of rows of both sides with :data:`DIFFERENCE` of the first of `values`, and :func:`means` of others.

    The first is a time, whose means sum to `whole` where that is given.
    """
    names, sums = pair.per_iteration(rows, keys, values)
    sides = [side.mean(axis=1) for side in sums[values[0]]]
    spans = [nearest(side.tolist()) for side in sides]
    if whole is not None:  # in proportion to the times
        # in proportion to times in thousandths of a nanosecond
        spans = [apportioned(nearest((side * 1000).tolist()), of) for side, of in zip(sides, whole, strict=True)]
    before, after = (pl.Series(one, dtype=pl.Int64) for one in spans)
    times = [before.alias("base_ns"), after.alias("new_ns"), (after - before).alias("delta_ns")]
    others = [column for name in values[1:] for column in means(name, sums[name])]
    return names.with_columns(*times, *pair.certainty(*sums[values[0]]), *others)


def by_size(table: Table, frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The rows of a table by the size of their difference, the largest first."""
    falling = [True, True, *(False for _ in keys)]
    return table.select(frame).sort(pl.col("delta_ns").abs(), "new_ns", *keys, descending=falling, nulls_last=True)
