"""CUDA graphs: launch cost on the host, busy time on the device, their nodes; and launches that one could replace."""

import re
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple, Unpack

import polars as pl

from kanalyze.analyses.device._operations import (
    device_operations,
    exclusive_operations,
    in_window_scope,
    operations,
    with_facts,
)
from kanalyze.analyses.host._call_kinds import bucket_of, calls_that, captures, graph_steps, names_that
from kanalyze.analyses.idle._attribution import waited_ns
from kanalyze.analyses.launches._launch_costs import KERNEL, graph_launches, graph_operations
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import streamed_operations, used_streams
from kanalyze.columns import count_up_to, in_order, mixed, nearest, of_parts, positions, slices
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

# Repeated sequences of launches, which one CUDA graph could replace: whole stretches of a series
# (:func:`launch_series`) that are equal, and stretches that are :func:`periodic`.

#: Minimum number of repetitions: building a graph for fewer does not pay.
FEWEST: Final = 5

#: Minimum number of operations: a smaller graph does not pay either.
SHORTEST: Final = 3

#: Minimum number of operations in a graph of a periodic sequence: shorter periods are unrolled.
NODES: Final = 32

#: Multiplier that spreads places over 64 bits, and the divisor that splits hashes so that sums do not overflow.
_SPREAD: Final = 2862933555777941757
_HALF: Final = 1 << 31

#: The waits of operations that are summed per repetition: for their launches, and for queued work before them.
_WAITS: Final = ("launch_ns", "queued_ns")

CANDIDATES: Final = Table(
    "graphs",
    "One sequence of launches that repeats on one stream, and that one CUDA graph could launch.",
    columns("""
        process_id int?: Process that launched it; null where the report does not say.
        thread_id int?: Thread that launched it.
        device int: The GPU, as in `devices`.
        stream int?: CUDA stream.
        operations int: Kernels, copies and memsets of one repetition.
        kernels int: Kernels of one repetition.
        repetitions int: How often it was launched.
        start_ns int: Start of its first launching call.
        first text?: Name of the operation that it begins with.
        api_total_ns int: Time in its launching calls.
        launch_ns int: What the device waited for these launches, the first one of each kernel left out: part of the
            ledger's launch bucket.
        queued_ns int: What it waited for launches that had returned, but came too late to follow at once: of each wait,
            at most the time since the launch before it returned; part of the ledger's queued bucket.
        graph_launch_ns int: What launching a graph is taken to cost: the median call in this report on this device, or,
            without one, the median of these launching calls.
        measured bool: Whether that is from graph launches in this report.
        saved_ns int: At most what a graph saves: of each repetition, both waits less graph_launch_ns.
    """),
    when="--by candidate",
    telling=("operations", "repetitions", "launch_ns", "saved_ns", "first"),
)


class Repetitive(NamedTuple):
    """What repeats among the launches in scope, and what a capture of them would meet."""

    candidates: pl.DataFrame  # the sequences that could be CUDA graphs, :data:`CANDIDATES`
    #: Repeated launches in stretches shorter than :data:`SHORTEST`, split by calls that no capture allows, a row per
    #: device: device, launches, launch_ns.
    cuts: pl.DataFrame
    repetitions: pl.DataFrame  # the operations that belong to a sequence that repeats: row, sequence, unit
    stretches: int  # those that a capture would have to be made of, with little between launches of one
    pieces: pl.DataFrame  # what lies between calls that no capture allows: launches, their number


def graph_costs(report: Report) -> pl.DataFrame:
    """The median duration of the calls that launched a CUDA graph on each device, in ns: device, cost."""
    return graph_launches(report).filter("charged").group_by("device").agg(cost=pl.col("call_ns").median())


@analysis.once_per_report
def repetitive(report: Report) -> Repetitive:
    """Looks for what repeats among the launches in scope."""
    line = launch_series(report)
    words = _words(line)
    units = _with_units(line, words)
    short = (pl.col("length") < SHORTEST) & (pl.col("alike") >= FEWEST)
    cut = line.filter(words.select(short).to_series().gather(line.get_column("stretch")))
    of_cut = with_facts(report, cut.with_columns(_waits(report, cut)), "device").group_by("device")
    sums = of_cut.agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("launch_ns").sum())
    repeated = units.drop_nulls("unit").select("row", "sequence", "unit")
    pieces = line.group_by(piece=pl.struct("series", "passed").rle_id()).agg(launches=pl.len())
    return Repetitive(_candidates(report, units), sums, repeated, words.height, pieces)


def _candidates(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    line = line.drop_nulls("sequence")
    work = with_facts(report, line.with_columns(_waits(report, line)), "kind", "call_start", "call_ns")
    units = work.group_by("unit", maintain_order=True).agg(
        pl.col("sequence", "row").first(),
        pl.col(*_WAITS).sum(),
        operations=pl.len().cast(pl.Int64),
        kernels=(pl.col("kind") == "kernel").sum().cast(pl.Int64),
        start_ns=pl.col("call_start").first(),
        api_total_ns=pl.col("call_ns").sum(),
    )
    of_calls = work.group_by("sequence").agg(own=pl.col("call_ns").median())
    units = with_facts(report, units, "device").join(of_calls, on="sequence", maintain_order="left")
    units = units.join(graph_costs(report), on="device", how="left", maintain_order="left")
    cost = pl.col("cost").fill_null(pl.col("own")).cast(pl.Int64)
    saved = (pl.col("launch_ns") + pl.col("queued_ns") - cost).clip(lower_bound=0)
    units = units.with_columns(measured=pl.col("cost").is_not_null(), graph_launch_ns=cost, saved_ns=saved)
    sums = units.group_by("sequence", maintain_order=True).agg(
        pl.col("row", "device", "measured", "graph_launch_ns", "operations", "kernels", "start_ns").first(),
        pl.col("api_total_ns", "launch_ns", "queued_ns", "saved_ns").sum(),
        repetitions=pl.len(),
    )
    sums = with_facts(report, sums.filter(pl.col("kernels") > 0), "process_id", "thread_id", "stream", "name")
    sums = sums.with_columns(first=pl.col("name").cast(pl.String))
    return CANDIDATES.select(sums.sort("saved_ns", "start_ns", "device", descending=[True, False, False]))


def _waits(report: Report, part: pl.DataFrame) -> list[pl.Series]:
    """The device's waits for these launches: launch_ns and queued_ns, both 0 for a kernel's first launch.

    An operation that was launched in time waits for something other than its launch.
    """
    waited = waited_ns(report, part.get_column("row"), *_WAITS)
    late = pl.min_horizontal("queued_ns", "apart").alias("queued_ns")
    waiting = part.select("first", "apart").hstack(waited).select("first", "launch_ns", late)
    return waiting.select(pl.when("first").then(0).otherwise(pl.col(name)).alias(name) for name in _WAITS).get_columns()


def _with_units(line: pl.DataFrame, words: pl.DataFrame) -> pl.DataFrame:
    """The operations with the repetition (`unit`) and sequence that each belongs to; null for none."""
    whole = (pl.col("alike") >= FEWEST) & (pl.col("length") >= SHORTEST)
    of_stretch = words.select(
        sequence=pl.when(whole).then("word"), unit=pl.when(whole).then(pl.int_range(pl.len()).cast(pl.UInt32))
    )
    stretch = line.get_column("stretch")
    sequence, unit = (of_stretch.get_column(name).gather(stretch) for name in ("sequence", "unit"))
    free = sequence.is_null()
    if free.any():
        rest = line.select("series", "stretch", "code").with_row_index("place").filter(free)
        periods = periodic(rest, fewest=FEWEST, nodes=NODES)
        at, first = periods.get_column("place"), words.height
        sequence = sequence.scatter(at, (periods.get_column("sequence") + first).cast(pl.UInt32))
        unit = unit.scatter(at, (periods.get_column("unit") + first).cast(pl.UInt32))
    return line.select("row", "first", "apart", sequence.alias("sequence"), unit.alias("unit"))


def _words(line: pl.DataFrame) -> pl.DataFrame:
    """The stretches: length, word (equal for equal stretches of a series) and alike (number of equal ones)."""
    row, begins = pl.int_range(pl.len(), dtype=pl.Int64), pl.col("stretch") != pl.col("stretch").shift(1)
    place = row - pl.when(begins).then(row).forward_fill().fill_null(0)
    coded = line.select("series", stretch=pl.col("stretch").rle_id(), code=(pl.col("code") + place * _SPREAD).hash())
    words = coded.group_by("stretch", maintain_order=True).agg(
        pl.col("series").first(),
        length=pl.len(),
        low=(pl.col("code") % _HALF).sum(),
        high=(pl.col("code") // _HALF % _HALF).sum(),
    )
    same = ["series", "length", "low", "high"]
    numbers = words.group_by(same, maintain_order=True).agg(alike=pl.len()).with_row_index("word")
    return words.join(numbers, on=same, maintain_order="left").select("length", "word", "alike")


# Series of launches by one thread onto one stream, split at calls that a CUDA graph capture does not allow; and periods
# in series of codes: stretches that equal themselves when shifted by a period. No step compares all pairs: candidate
# periods are the distances at which short n-grams of codes recur, best first; each candidate is then tested on the
# whole series in one comparison.

#: Lengths of the n-grams. In a stretch of period p every n-gram of at least p codes recurs after p, and of shorter ones
#: those that occur once per period.
_RUNS: Final = (1, 4, 16, 64)

#: Maximum number of candidate distances per n-gram length, and of periods found in one series.
_TRIED: Final = 6
_MOST_PERIODS: Final = 8

#: A long series is sampled in so many slices, each of so many operations; shorter ones are looked at together.
_SLICES: Final = 8
_SLICE: Final = 1 << 16

#: Multiplier of a hash that spreads numbers over 64 bits.
_GRAM: Final = 6364136223846793005


def periodic(line: pl.DataFrame, *, fewest: int, nodes: int) -> pl.DataFrame:
    """The places of `line` (columns place, series, stretch, code) that belong to something periodic.

    A period counts if a stretch has at least `fewest` repetitions of it and twice `nodes` operations. One repetition
    (`unit`) is a period, or, if that is shorter than `nodes`, as many periods as reach that length.
    Columns: place, sequence (a number for each series and unit with the same codes) and unit.
    """
    repeated = [pl.DataFrame(schema={"place": pl.UInt32, "unit": pl.Int64, "length": pl.Int64})]
    parts = [part for part in line.partition_by("series") if part.height >= 2 * nodes]
    groups: dict[int, list[pl.DataFrame]] = {}
    for part, reached in zip(parts, accumulate(part.height for part in parts), strict=True):
        groups.setdefault(reached // (_SLICES * _SLICE), []).append(part)
    for some in groups.values():
        tried = _distances(some, fewest)
        for part in some:
            repeated += _of_series(part.drop("series"), tried[part.item(0, "series")], fewest, nodes)
    # units of the same codes in rotated order are one sequence, since a unit may begin anywhere in the period
    units = pl.concat(repeated).join(line.select("place", "series", "code"), on="place")
    mixed = (pl.col("code").hash() % (1 << 31)).cast(pl.Int64).sum()
    words = units.group_by("unit").agg(pl.col("series", "length").first(), word=mixed)
    same = pl.struct("series", "length", "word").rank("dense").cast(pl.Int64)
    words = words.with_columns(sequence=same).filter(pl.len().over("sequence") >= fewest)
    numbered = units.join(words.select("unit", "sequence"), on="unit")
    return numbered.select(pl.col("place").cast(pl.UInt32), pl.col("sequence", "unit").cast(pl.Int64))


def _of_series(part: pl.DataFrame, tried: list[int], fewest: int, nodes: int) -> list[pl.DataFrame]:
    """The units of one series, greedily: of the period that covers most of it, then of the best one for the rest."""
    parts, free = [], part
    for _ in range(_MOST_PERIODS):
        if free.height < 2 * nodes:
            break
        agree = {period: int(free.select(_again(period).sum()).item()) for period in tried}
        # those with most matching operations
        likely = sorted(sorted(agree, key=lambda period: -agree[period])[:4])
        spans = [_spans(free, period, fewest, nodes) for period in likely if agree[period] >= nodes]
        covered = pl.col("count") * pl.col("length")
        best = max(spans, key=lambda one: int(one.select(covered.sum()).item()), default=None)
        if best is None or best.is_empty():
            break
        stop = pl.col("start") + pl.col("count") * pl.col("length")
        rows = best.select(pl.int_ranges("start", stop).alias("at"), "start", "length").explode("at")
        first = rows.select(pl.col("at") - (pl.col("at") - pl.col("start")) % pl.col("length")).to_series()
        places = free.get_column("place")
        unit = places.gather(first).cast(pl.Int64).alias("unit")
        parts.append(pl.DataFrame([places.gather(rows.get_column("at")), unit, rows.get_column("length")]))
        taken = pl.col("place").is_in(parts[-1].get_column("place").implode())
        # the operations taken split the rest: no run continues across them
        free = free.with_columns(stretch=pl.struct("stretch", taken).rle_id()).filter(~taken)
    return parts


def _again(period: int) -> pl.Expr:
    """Whether each operation is equal to the operation one period before in the same stretch."""
    return pl.all_horizontal(pl.col(name) == pl.col(name).shift(period) for name in ("code", "stretch"))


def _distances(parts: Sequence[pl.DataFrame], fewest: int) -> dict[int, list[int]]:
    """Candidate periods by series, ascending: distances at which n-grams of codes recur in one stretch."""
    line = pl.concat(map(_sample, parts)).with_columns(longest=pl.len().over("series") // fewest).with_row_index("at")
    chosen: dict[int, set[int]] = {part.item(0, "series"): set() for part in parts}
    size = 1
    while size <= _RUNS[-1] and line.get_column("gram").null_count() < line.height:
        if size in _RUNS:
            for series, distance in _common_distances(line.drop_nulls("gram")).iter_rows():
                chosen[series].add(distance)
        after = line.select(pl.col("stretch", "gram").shift(-size)).rename({"stretch": "next", "gram": "then"})
        both = line.with_columns(after.get_columns())
        inside = (pl.col("stretch") == pl.col("next")) & pl.col("gram").is_not_null() & pl.col("then").is_not_null()
        joined = (pl.col("gram") * _GRAM + pl.col("then") + 1).hash().reinterpret(signed=True)
        line = both.select("series", "stretch", "longest", "at", gram=pl.when(inside).then(joined))
        size *= 2
    return {series: sorted(distances) for series, distances in chosen.items()}


def _sample(part: pl.DataFrame) -> pl.DataFrame:
    """The series, stretches and codes (as `gram`) of a series; of a long one, those of slices spread over it."""
    line = part.select("series", pl.col("stretch").cast(pl.UInt64), gram=pl.col("code"))
    if line.height <= _SLICES * _SLICE:
        return line
    apart = (line.height - _SLICE) // (_SLICES - 1)
    slices = [line.slice(number * apart, _SLICE) for number in range(_SLICES)]
    return pl.concat(one.with_columns(pl.col("stretch") * _SLICES + number) for number, one in enumerate(slices))


def _common_distances(line: pl.DataFrame) -> pl.DataFrame:
    """The distances between successive occurrences of an n-gram that would explain most of a series, with it."""
    # sorted, occurrences are neighbours; a window over n-grams takes many times as long where most are different
    line = line.sort("gram", maintain_order=True)
    again = (pl.col("gram") == pl.col("gram").shift(1)) & (pl.col("stretch") == pl.col("stretch").shift(1))
    apart = line.select("series", "longest", distance=pl.col("at").cast(pl.Int64).diff(), again=again).filter("again")
    counts = apart.filter(pl.col("distance") <= pl.col("longest"))
    sums = counts.group_by("series", "distance").agg(explained=pl.len() * pl.col("distance").first())
    top = sums.sort("explained", "distance", descending=[True, False]).group_by("series", maintain_order=True)
    return top.head(_TRIED).select("series", "distance")


def _spans(free: pl.DataFrame, period: int, fewest: int, nodes: int) -> pl.DataFrame:
    """Stretches of `free` in which one period repeats: columns start (a row), count (of units), length (of a unit)."""
    length = period * -(-nodes // period)
    again = free.select(_again(period).fill_null(value=False)).to_series()
    least = max(fewest * period, 2 * nodes)
    runs = again.rle().struct.unnest().with_columns(end=pl.col("len").cast(pl.Int64).cum_sum())
    runs = runs.filter("value", pl.col("len") + period >= least)
    # an overlap of two runs belongs to the first
    start = pl.max_horizontal(pl.col("end") - pl.col("len") - period, pl.col("end").shift(1))
    spans = runs.select(start=start, count=(pl.col("end") - start) // length, length=pl.lit(length, dtype=pl.Int64))
    return spans.filter(pl.col("count") > 1)


#: Calls, besides blocking ones, that a capture does not allow or a replay would not repeat.
_CUTS: Final = re.compile(r"(?:cuda|cu)(?:Event|Stream)Query|(?:cuda|cu)GraphLaunch|(?:cuda|cu)Stream(?:Begin|End)Cap")

#: Between launches further apart than this the host does more than launch: it computes, loads or waits, which no replay
#: of a graph spares.
_FAR_NS: Final = 300_000

#: Stream types that synchronise implicitly within a context: while one is captured, the other must not be used.
_ORDERED: Final = ("null", "blocking")


def launch_series(report: Report) -> pl.DataFrame:
    """The operations in scope that a capture allows and that were launched by a call of their own, by series.

    Columns: row (of :func:`operations`), series, passed (the number of splits before it) and stretch (a number; it lies
    between two splits, or launches further apart than :data:`_FAR_NS`), code (equal for the same operation with the
    same shape), first (whether it is a kernel's first launch) and apart (ns from the return of the previous launch in
    the stretch to that of its own; 0 for the first one).
    """
    line, cuts = _launched(report)
    line = in_order(_passed(line, cuts), "series")
    split = pl.col("series").cast(pl.UInt64) * (1 << 32) + pl.col("passed")  # no series has so many splits
    begins = split.ne_missing(split.shift(1)) | (pl.col("apart") > _FAR_NS).fill_null(value=False)
    line = line.with_columns(stretch=begins.cum_sum() - 1)
    together = pl.col("stretch") == pl.col("stretch").shift(1)
    return line.with_columns(pl.when(together).then("apart").fill_null(0).clip(lower_bound=0).alias("apart"))


def _launched(report: Report) -> tuple[pl.DataFrame, dict[tuple[object, ...], pl.Series]]:
    """The operations in scope that a capture allows, by call, with codes; and the sorted split times of each thread.

    Columns: row, series, code, first, apart (from the thread's previous launch), call_start, and those of
    :data:`THREAD` and of :func:`_implicit_order`.
    """
    work = device_operations(report).select("row", "kind", "name", "device", "process_id")
    coded = partial(_coded_slice, report, names_that(report, _splits_series))
    line = pl.concat(analysis.in_threads(coded, list(slices(work.with_columns(_implicit_order(report))))), rechunk=True)
    keys = line.get_column("series")
    distinct = keys.unique(maintain_order=True).to_frame().with_row_index("number").sort("series")
    numbers = distinct.get_column("number").gather(positions(distinct.get_column("series"), keys))
    line = in_order(line.with_columns(numbers.alias("series")), "call_start")
    barred = line.filter("cut").select(*THREAD, start_ns="call_start")
    splits = pl.concat([calls_that(report, _splits_series, *THREAD, "start_ns"), barred]).sort("start_ns")
    parts = splits.partition_by(*THREAD, as_dict=True)
    line = _with_apart(report, line).drop("call_end")
    first = pl.col("kernel").is_first_distinct() & pl.col("kernel").is_not_null()
    line = line.with_columns(first=first).drop("kernel").filter(~pl.col("cut")).drop("cut")
    return in_window_scope(report, line), {key: part.get_column("start_ns") for key, part in parts.items()}


def _implicit_order(report: Report) -> list[pl.Series]:
    """The context and stream type of each operation on the devices in scope, as `context` and `type`.

    Empty if no context used both its default stream and blocking ones, which synchronise implicitly.
    """
    known = used_streams(report).filter(pl.col("type").is_in(_ORDERED))
    if known.is_empty() or not known.select((pl.col("type").n_unique().over("group") > 1).any()).item():
        return []
    numbers = streamed_operations(report)
    kinds = used_streams(report).get_column("type")
    return [numbers.get_column("group").alias("context"), kinds.gather(numbers.get_column("number")).alias("type")]


def _with_apart(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """Launches by call start, with `apart`: ns between the returns of the thread's previous launch and this one."""
    every = line
    if report.scope.device is not None:  # the previous launch may have been on another device
        every = operations(report, "thread_id", "call_start", "call_end").drop_nulls("call_start")
        every = every.sort("call_start", maintain_order=True)
    ends = every.select(*THREAD, "call_end")
    apart = of_parts(ends, THREAD, pl.Int64, lambda _, own: own.get_column("call_end").diff()).alias("apart")
    if every is line:
        return line.with_columns(apart)
    return line.join(every.select("row", apart), on="row", how="left", maintain_order="left")


def _coded_slice(report: Report, barred: list[str], part: pl.DataFrame) -> pl.DataFrame:
    """:func:`_coded` for a slice of operations; `barred` are the names of calls that a capture does not allow."""
    part = with_facts(report, part, "thread_id", "call_start", "call_end", "call_name").drop_nulls("call_start")
    known = with_facts(report, part, "stream", "shape", "size_bytes", "source_memory", "target_memory")
    pageable = pl.any_horizontal(pl.col("source_memory", "target_memory") == "Pageable").fill_null(value=False)
    cut = pl.col("call_name").is_in(barred).fill_null(value=False) | pageable
    known = known.with_columns(pl.col("kind", "name").to_physical(), cut=cut, ran=pl.col("kind") == "kernel")
    numbers = known.select(
        "cut",
        series=mixed((*THREAD, "device", "stream")),
        code=mixed(("kind", "name", "shape", "size_bytes")).reinterpret(signed=True),
        kernel=pl.when(pl.col("ran") & ~pl.col("cut")).then(mixed(KERNEL)),
    )
    return part.drop("kind", "name", "device", "call_name").with_columns(numbers.get_columns())


def _passed(line: pl.DataFrame, cuts: dict[tuple[object, ...], pl.Series]) -> pl.DataFrame:
    """`line` with `passed`, the number of splits before each launch on its thread, without the columns used for it."""
    needed = [name for name in (*THREAD, "call_start", "context", "type") if name in line.columns]

    def passed(key: tuple[object, ...], part: pl.DataFrame) -> pl.Series:
        number = count_up_to(cuts.get(key, pl.Series(dtype=pl.Int64)), part.get_column("call_start"), equal=False)
        if "type" not in part.columns:
            return number
        # switches to a stream that synchronises implicitly
        one, other = ((pl.col("type") == name).fill_null(value=False) for name in _ORDERED)
        before = [side.cum_sum().over("context") for side in (one, other)]
        switches = pl.when(one).then(before[1]).when(other).then(before[0]).otherwise(0).cast(pl.UInt32)
        return number + part.select(switches).to_series()

    return line.drop(needed).with_columns(of_parts(line.select(needed), THREAD, pl.UInt32, passed).alias("passed"))


def _splits_series(name: str) -> bool:
    """Whether calls of this name split a series."""
    bucket = bucket_of(name)
    blocks = bucket == "sync" or (bucket == "allocation" and "Async" not in name)
    return blocks or _CUTS.match(name) is not None


# The CUDA graphs of a report.

#: The columns that identify a graph, in both forms of the table.
_KEYS: Final = (
    Column("graph", pl.Int64, "A number for the graph on this device within the report, from 1."),
    Column("process_id", pl.Int64, "Process that launched it; null where the report does not say.", nullable=True),
    Column("device", pl.Int64, "The GPU that ran it, as in `devices`."),
    Column("graph_exec_id", pl.Int64, "The executable graph; null where the report does not tell.", nullable=True),
    Column("graph_id", pl.Int64, "The graph that it was instantiated from; null likewise.", nullable=True),
)
_LEFT_OUT: Final = "null where its nodes were not traced"

TABLE: Final = Table(
    "graphs",
    "One executable CUDA graph on one device, all its launches.",
    (
        *_KEYS,
        *columns(f"""
            launches int: Launches of it that ran anything on this device.
            nodes int?: Nodes that the report lists of it, a child graph as one.
            active_nodes int?: Different nodes that ran an operation; {_LEFT_OUT}.
            kernels_per_launch float?: Kernels in a launch, mean; {_LEFT_OUT}.
            copies_per_launch float?: Copies in a launch, mean; {_LEFT_OUT}.
            memsets_per_launch float?: Memsets in a launch, mean; {_LEFT_OUT}.
            api_total_ns int: Time in the launching calls, each charged once: where it began to run.
            api_avg_ns float?: Mean launching call; null where no call is known.
            api_median_ns float?: Median launching call; null likewise.
            launch_ns int: What the device waited for its launches: part of the ledger's launch bucket.
            span_total_ns int: From the first start to the last end of each launch, summed.
            span_avg_ns float?: Mean of that; null without launches.
            span_median_ns float?: Median of that; null without launches.
            busy_ns int: Part of the spans in which any of its own operations ran.
            idle_ns int?: Part of the spans in which the device ran nothing at all; {_LEFT_OUT}.
            exclusive_ns int: Time of the ledger that its operations have; additive.
            instantiate_ns int?: The call that made it; null where the calls do not tell which.
            capture_ns int?: From the beginning to the end of the stream capture that it came from; null likewise.
            upload_ns int?: Calls that uploaded it ahead of its launches; null likewise.
        """),
    ),
    purpose="CUDA graphs: launches, nodes, host, GPU time",
    telling=("graph", "launches", "nodes", "api_avg_ns", "span_avg_ns", "busy_ns", "idle_ns"),
    groupings=("kernel", "candidate"),
)

#: The table that ``by="kernel"`` gives.
BY_KERNEL: Final = Table(
    "graphs",
    "One kernel inside one executable CUDA graph.",
    (
        *_KEYS,
        Column("kernel", pl.String, "Demangled name of the kernel.", nullable=True),
        *statistics.DURATION_COLUMNS,
        Column("exclusive_ns", pl.Int64, "Time of the ledger that these kernels have; additive."),
    ),
    when="--by kernel",
    telling=("graph", "count", "total_ns"),
)

_NAMES: Final = tuple(column.name for column in _KEYS)


def graphs(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The CUDA graphs in scope, the longest total device time first.

    Args:
        report: Where to look; launches of which anything overlaps its window count, whole.
        by: ``kernel`` gives the kernels inside each graph, ``candidate`` the repeated launches that could be one.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`BY_KERNEL` or :data:`CANDIDATES`; empty where there are none.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, TABLE, by, *DEVICE_KINDS)
    if by == "candidate":
        return repetitive(report).candidates
    if by is None:
        return _summed(report)
    inside = _seen(report).filter(pl.col("kind") == "kernel")
    sums = inside.group_by(*_NAMES, "name").agg(*statistics.duration_statistics(), pl.col("exclusive_ns").sum())
    named = sums.with_columns(statistics.share_of_total(), pl.col("name").cast(pl.String).alias("kernel"))
    return BY_KERNEL.select(named.sort("graph", "total_ns", "kernel", descending=[False, True, False]))


def _seen(report: Report) -> pl.DataFrame:
    """The graph operations in scope that overlap the window, with dur_ns and exclusive_ns."""
    own = graph_operations(report).drop("event_id", "kind", "name", "start", "end", "device", "process_id")
    columns = ("row", "event_id", "kind", "name", "device", "process_id", "dur_ns", "exclusive_ns")
    return exclusive_operations(report).select(columns).join(own, on="row")


def _summed(report: Report) -> pl.DataFrame:
    seen = _seen(report)
    keys = seen.group_by("graph").agg(pl.col(_NAMES[1:]).first(), pl.col("exclusive_ns").sum())
    launches = graph_launches(report).join(seen.select("launch").drop_nulls().unique(), on="launch", how="semi")
    span, traced = pl.col("end") - pl.col("start"), ~pl.col("whole").any()
    sums = launches.group_by("graph").agg(
        pl.when(traced).then(pl.col("kernels", "copies", "memsets").mean()).name.suffix("_per_launch"),
        pl.col("launch_ns", "busy_ns").sum(),
        launches=pl.len().cast(pl.Int64),
        api_total_ns=pl.col("call_ns").filter("charged").sum(),
        api_avg_ns=pl.col("call_ns").mean(),
        api_median_ns=pl.col("call_ns").median(),
        span_total_ns=span.sum(),
        span_avg_ns=span.mean(),
        span_median_ns=span.median(),
        idle_ns=pl.when(traced).then(pl.col("idle_ns").sum()),
    )
    both = keys.join(sums, on="graph", how="left").with_columns(
        pl.col(("launches", "api_total_ns", "launch_ns", "span_total_ns", "busy_ns")).fill_null(0)
    )
    ids, count = ["process_id", "graph_exec_id"], pl.col("graph_node_id").n_unique().cast(pl.Int64)
    listed = report.table("graph_nodes").group_by(ids).agg(made_of=pl.col("graph_id").drop_nulls().first(), nodes=count)
    ran = with_facts(report, graph_operations(report).select("row", "graph"), "graph_node_id").drop_nulls()
    both = both.join(listed, on=ids, how="left", nulls_equal=True)
    both = both.join(ran.group_by("graph").agg(active_nodes=count), on="graph", how="left")
    whole = both.with_columns(pl.coalesce("graph_id", "made_of").alias("graph_id"))
    whole = whole.join(making_costs(report), on=ids, how="left")
    return TABLE.select(whole.sort("span_total_ns", "graph", descending=[True, False]))


@analysis.once_per_report
def making_costs(report: Report) -> pl.DataFrame:
    """The host time for building each executable graph that was launched.

    Columns: process_id, graph_exec_id, instantiate_ns, capture_ns and upload_ns; null where unknown.
    """
    steps, length, ids = graph_steps(report), pl.col("end") - pl.col("start"), ["process_id", "graph_exec_id"]
    # the call that instantiated each, where there are as many calls as graphs, one after the other, before the launches
    calls = steps.filter(pl.col("step") == "instantiate")
    launches = graph_launches(report).drop_nulls(ids)
    graphs = launches.group_by(ids).agg(first=pl.col("call_start").min()).sort("graph_exec_id")
    place = pl.int_range(pl.len()).over("process_id").alias("place")
    size = pl.len().over("process_id")
    calls = calls.with_columns(place, calls=size, last_end=pl.col("end").cum_max().shift(1).over("process_id"))
    pairs = graphs.with_columns(place, graphs=size).join(calls, on=["process_id", "place"])
    apart = (pl.col("start") >= pl.col("last_end")).fill_null(value=True)
    possible = apart & (pl.col("end") <= pl.col("first")) & (pl.col("calls") == pl.col("graphs"))
    instantiated = pairs.filter(possible.fill_null(value=False).all().over("process_id"))
    instantiated = instantiated.select(*ids, "thread_id", "start", "end", instantiate_ns=length)
    # the last capture on its thread before it, unless another graph was made in between
    others = steps.filter(pl.col("step") != "upload").select(*THREAD, "step", "event_id", last="start")
    last = nearest(instantiated, others, ("start", "last"), THREAD, "strictly before")
    lengths = captures(report).select("event_id", capture_ns=length)
    last = last.join(lengths, on="event_id", how="left", maintain_order="left")
    instantiated = last.select(*instantiated.columns, "capture_ns")
    # the upload that followed it if each graph has one; all uploads for an only graph
    uploads = steps.filter(pl.col("step") == "upload")
    times = uploads.select("process_id", "start", ns=length)
    followed = nearest(times, instantiated.select(*ids, made="start"), ("start", "made"), ["process_id"])
    sums = followed.group_by(ids).agg(pl.col("ns").sum(), uploads=pl.len())
    each = (pl.col("uploads") == 1).fill_null(value=False).all().over("process_id")
    none = ~pl.col("process_id").is_in(uploads.get_column("process_id").unique().implode())
    ns = pl.when(none).then(0).when(each | (pl.len().over("process_id") == 1)).then(pl.col("ns").fill_null(0))
    costs = instantiated.join(sums, on=ids, how="left", maintain_order="left").with_columns(ns.alias("upload_ns"))
    return costs.select(*ids, *(pl.col(name).cast(pl.Int64) for name in ("instantiate_ns", "capture_ns", "upload_ns")))
