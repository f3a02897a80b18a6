"""Reasons for which two tools tell different figures of one program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.counters import _sampled_means, advice, counters
from kanalyze.analyses.device._operations import compiled_kernels, exclusive_operations, operations
from kanalyze.analyses.host._call_kinds import BY_DRIVER
from kanalyze.analyses.iterations.iterations import iteration_spans
from kanalyze.analyses.operators._kernel_groups import GROUP_KEYS, grouped_kernels, kernel_groups, same_kernels
from kanalyze.analyses.ranges.instances import compile_spans
from kanalyze.analyses.shared.analysis import named_ranges, once_per_report
from kanalyze.analyses.shared.threads import outermost
from kanalyze.columns import beside
from kanalyze.report import Report
from kanalyze.units import count, frequency, percent, plural, rate, size, time

Row = dict[str, Any]
Explained = tuple[str, str]

#: The reasons for a difference, and what each means.
REASONS: Final = {
    "spread": "as far apart as launches of one kernel are in one run",
    "compile": "launched while torch.compile compiled and measured variants, in one of both runs or in both",
    "autotuner": "trials of Triton's autotuner, which tries each variant as often as time allows",
    "steps": "they recorded other steps, of which each launches the same, or one of them some of the program's steps",
    "window": "of the report that gives the time a part is looked at, of the others all; in the whole of it nothing is "
    "unexplained",
    "filter": "ncu was told to measure some of the launches",
    "clocks": "the SMs ran slower under ncu, by the clock that it measured, than the GPU may run",
    "caches": "ncu empties the caches before each launch, unless told not to; with it goes what others left there",
    "page faults": "pages of managed memory moved while it ran; under ncu they were there",
    "beside others": "the GPU did other work at the same time; ncu runs each kernel alone",
    "samples": "as near as samples of another run tell: 10 %, and 1 % of the unit's peak, as they are in whole percent",
    "replay": "ncu runs a kernel alone, with empty caches and maybe at other clocks; how much that is was not measured",
}


def with_spread(groups: pl.DataFrame, reports: Sequence[Report]) -> pl.DataFrame:
    """`groups` with the least (low) and the greatest (high) duration to expect: nine in ten seen, and half the spread.

    That is the usual one of the launches of a kernel, the median over all kernels that these reports launched several
    times, as a part of the duration and in ns. Two runs of one program differ by more than launches within one run do:
    a kernel launched once shows no spread, and buffers lie at other addresses.
    """
    seen = pl.concat(kernel_groups(one).select("count", "duration", "low", "high") for one in reports)
    seen = seen.filter((pl.col("count") > 1) & (pl.col("duration") > 0))
    apart = pl.col("high") - pl.col("low")
    share, ns = seen.select((apart / pl.col("duration")).median(), apart.median().alias("ns")).row(0)
    # where no kernel was launched twice: the median of the 76 kernels that the sample captures launch several times
    share, ns = (0.08, 370.0) if share is None else (share, ns)
    half = pl.max_horizontal(share * pl.col("high"), pl.lit(ns)) / 2
    return groups.with_columns(low=(pl.col("low") - half).clip(0), high=pl.col("high") + half)


def of_recordings(base: Report, other: Report, shared: "Shared") -> Callable[[Row], Explained | None]:
    """Explains differences between two tools that record every launch; `shared` are the steps that both have."""
    tools, autotuned = (base.meta.tool, other.meta.tool), tuned(base)
    numbers = other.steps().sort("start").get_column("step").unique(maintain_order=True).to_list()

    def explained(row: Row) -> Explained | None:
        if row["figure"] == "duration":
            return _within_spread(row, tools)
        if row["figure"] not in COUNTED:
            return None
        if (tried := _by_trials(row, tools, autotuned)) is not None:
            return tried
        if shared is not None:
            return _by_step(row, shared, tools)
        if numbers and (row["second"] or 0) < (row["first"] or 0):
            return "steps", f"{plural(len(numbers), 'step')}, from {numbers[0]} on"
        return None

    return explained


def _within_spread(row: Row, tools: tuple[str, str]) -> Explained | None:
    """The reason `spread`: the durations to expect by both overlap."""
    if row["low"] > row["high_other"] or row["low_other"] > row["high"]:
        return None
    first, second = (f"{time(row[f'low{side}'])} to {time(row[f'high{side}'])}" for side in ("", "_other"))
    return "spread", f"{first} by {tools[0]}, {second} by {tools[1]}"


def _by_trials(row: Row, tools: tuple[str, str], autotuned: Sequence[str]) -> Explained | None:
    """The reasons `compile` and `autotuner`: without what was launched meanwhile both count the same."""
    counts = row["first"] or 0, row["second"] or 0
    for reason, kinds, of in (("compile", TRIALS[:1], ""), ("autotuner", TRIALS, f", of {', '.join(autotuned)}")):
        some = [max(row[f"{kind}{side}"] or 0 for kind in kinds) for side in ("", "_other")]
        if any(some) and counts[0] - some[0] == counts[1] - some[1]:
            each = zip(some, counts, tools, strict=True)
            parts = [f"{part:,.0f} of {whole:,.0f} by {tool}" for part, whole, tool in each if part]
            return reason, f"{' and '.join(parts)}{of}; the rest is equal"
    return None


def _by_step(row: Row, shared: tuple[pl.DataFrame, pl.DataFrame], tools: tuple[str, str]) -> Explained | None:
    """The reason `steps`: both reports have the same number per step, but recorded different numbers of steps."""
    ours, theirs = (
        {name: (None if row[side] is None else row[f"{name}{suffix}"]) or nothing for name, nothing in NOTHING.items()}
        for side, suffix in (("first", ""), ("second", "_other"))
    )
    numbers = shared[0].height, shared[1].height
    if not alike(ours, theirs, numbers):
        return None
    few = ours if numbers[0] <= numbers[1] else theirs
    low, high = min(few["in"]), max(few["in"])
    each = count(low) if low == high else f"{count(low)} to {count(high)}"
    sides = zip(shared, tools, strict=True)
    recorded = [f"{count(steps.height)} ({steps.item(0, 'name')}) by {tool}" for steps, tool in sides]
    beside_steps = f"beside them {count(ours['beside'])} and {count(theirs['beside'])}"
    return "steps", f"{each} a step in both, of {' and '.join(recorded)}; {beside_steps}"


#: Figures that are counts or sums of bytes.
COUNTED: Final = ("launches", "copies", "bytes copied")


# Counts of launches that explain a difference: by step, while compiling, in trials.

#: Where an operation was launched: in a step, between two steps, or outside: before the first or after the last; of
#: each the value of what does not occur: the distinct counts per step and between two steps, and the sum outside.
NOTHING: Final[dict[str, Any]] = {"in": [0], "between": [0], "beside": 0}

#: What was launched while torch.compile compiled, or benchmarked what it had compiled; and in trials of the autotuner.
TRIALS: Final = ("compiling", "trial")

_SPANS: Final = {"process_id": pl.Int64, "start": pl.Int64, "end": pl.Int64, "name": pl.String}

#: The steps of two reports that both have: name, process_id, start, end, until (start of the next one, null for the
#: last), sorted by start; None without any.
Shared: TypeAlias = tuple[pl.DataFrame, pl.DataFrame] | None


def shared_steps(base: Report, other: Report) -> Shared:
    """The steps that both reports have: ranges of the common name that takes most time in `other`; None without any.

    Without a common name, the most frequent iterations of each, such as a profiler's steps here and ranges there. Only
    steps inside a report's window are taken.
    """
    ours, theirs = _named(base), _named(other)
    often = (pl.col("len") > 1) | (pl.col("len_other") > 1)
    sums = [side.group_by("name").agg(pl.len(), ns=(pl.col("end") - pl.col("start")).sum()) for side in (ours, theirs)]
    both = sums[0].join(sums[1], on="name", suffix="_other").filter(often)
    if both.height:
        name = str(both.sort("ns_other", "name", descending=[True, False]).item(0, "name"))
        return _steps(name, ours), _steps(name, theirs)
    repeated = [_inside(report, iteration_spans(report.whole).select(list(_SPANS))) for report in (base, other)]
    if any(spans.is_empty() for spans in repeated):
        return None
    order = (spans.group_by("name").len().sort("len", "name", descending=[True, False]) for spans in repeated)
    first, second = (_steps(str(names.item(0, "name")), of) for names, of in zip(order, repeated, strict=True))
    return first, second


def _inside(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The `spans` inside the window of a report."""
    low, high = report.scope.sides
    spans = spans if low is None else spans.filter(pl.col("start") >= low)
    return spans if high is None else spans.filter(pl.col("end") <= high)


def _named(report: Report) -> pl.DataFrame:
    """The closed ranges and the profiler's steps of a whole report, with their names."""
    steps = report.whole.steps()
    # the profiler's own steps, where steps are otherwise user ranges
    parts = [steps.select("process_id", "start", "end", name=pl.lit("ProfilerStep"))]
    if "range" in report.kinds:
        ranges = named_ranges(report.whole).filter(~pl.col("open"))
        own = ranges.join(steps.select("event_id"), on="event_id", how="anti")
        parts.append(own.select("process_id", "start", "end", name=pl.col("name").fill_null("")))
    spans = pl.concat(parts).filter((pl.col("end") > pl.col("start")) & (pl.col("name") != ""))
    return _inside(report, spans).select(list(_SPANS))


def _steps(name: str, spans: pl.DataFrame) -> pl.DataFrame:
    """The outermost spans with this name, as steps."""
    outer = outermost(spans.filter(pl.col("name") == name), "process_id").with_columns(pl.col("name").cast(pl.String))
    return outer.select(*_SPANS, until=pl.col("start").shift(-1).over("process_id")).sort("start")


def counted(report: Report, tried: list[str], steps: pl.DataFrame | None) -> pl.DataFrame:
    """Counts of the operations in scope, with what may explain other ones in another report.

    Columns: figure (one of :data:`COUNTED`), unit, group (of kernels; null for copies and memsets), name, amount, of
    that :data:`TRIALS` (as kernels of the names `tried`, or right before one: Triton's autotuner flushes the cache
    before each trial), and by the `steps` the columns of :data:`NOTHING`.
    """
    work = exclusive_operations(report, "call_start", "stream", "size_bytes").sort("start", "event_id")
    work = work.with_columns(pl.col("name").cast(pl.String))
    calls = work.get_column("call_start")
    meanwhile = intervals.overlap(calls.fill_null(0), calls.fill_null(0) + 1, compile_spans(report)) > 0
    own = pl.col("name").is_in(tried).fill_null(value=False)
    # where no launch was recorded, the operation's own start decides
    placed = work.with_columns(
        compiling=meanwhile & calls.is_not_null(),
        trial=own | own.shift(-1).over("stream").fill_null(value=False),
        at="call_start" if calls.count() else "start",
    )
    numbered = pl.DataFrame(schema=_SPANS | {"until": pl.Int64}) if steps is None else steps
    spans = numbered.drop("name").rename({"start": "since"}).with_row_index("step").sort("since")
    placed = placed.sort("at").join_asof(spans, left_on="at", right_on="since", by="process_id", check_sortedness=False)
    inside, between, beside = map(pl.lit, NOTHING)
    place = pl.when(pl.col("at") < pl.col("end_right")).then(inside).when(pl.col("at") < pl.col("until")).then(between)
    groups = grouped_kernels(report).select("event_id", "group")
    placed = placed.with_columns(place=place.otherwise(beside)).join(groups, on="event_id", how="left")
    one, moved = pl.lit(1, dtype=pl.Int64), pl.col("kind").is_in(["memcpy", "memset"])
    return pl.concat(
        _amounts(placed.filter(of).with_columns(amount=amount).drop_nulls("amount"), figure, numbered.height)
        for figure, of, amount in (
            ("launches", pl.col("group").is_not_null(), one),
            ("copies", moved, one),
            ("bytes copied", moved, pl.col("size_bytes")),
        )
    )


def _amounts(work: pl.DataFrame, figure: str, steps: int) -> pl.DataFrame:
    """:func:`counted` of one figure; steps without such an operation count as 0."""
    amount, keys = pl.col("amount"), ["group", "name"]
    sums = amount.sum(), *(amount.filter(trial).sum().alias(trial) for trial in TRIALS)
    each = work.group_by(*keys, "place", "step").agg(sums)
    by_place = [amount.filter(pl.col("place") == place).alias(place) for place in NOTHING]
    rows = each.group_by(keys).agg(pl.col("amount", *TRIALS).sum(), *by_place)
    numbers = {"in": steps, "between": max(steps - 1, 1)}
    zero = {name: pl.when(pl.col(name).list.len() < number).then([0]).otherwise([]) for name, number in numbers.items()}
    return rows.select(
        pl.lit(figure).alias("figure"),
        pl.lit("bytes" if figure == "bytes copied" else "").alias("unit"),
        *(*keys, "amount", *TRIALS),
        *(pl.concat_list(name, filled).list.unique() for name, filled in zero.items()),
        pl.col("beside").list.sum(),
    )


def alike(first: Mapping[str, Any], second: Mapping[str, Any], numbers: tuple[int, int]) -> bool:
    """Whether two recordings (:data:`NOTHING`) with `numbers` of steps agree on the counts per step.

    Every value of the one with fewer steps, in and between steps, must occur in the other one. Its sum outside of steps
    may be no larger than that of the other, plus the largest values between and in steps (for a step that was cut).
    """
    few, many = (first, second) if (numbers[0], first["beside"]) <= (numbers[1], second["beside"]) else (second, first)
    inside = all(set(few[place]) <= set(many[place]) for place in ("in", "between"))
    same = numbers[0] != numbers[1] or set(few["in"]) == set(many["in"])
    return inside and same and few["beside"] <= many["beside"] + max(many["between"]) + max(many["in"])


def tuned(report: Report) -> list[str]:
    """Names of the kernels that Triton compiled in several variants, as its autotuner does; empty if not recorded."""
    compiled = compiled_kernels(report).filter(pl.col("source") == "triton")
    return compiled.filter(pl.col("hash").n_unique().over("name") > 1).get_column("name").unique().sort().to_list()


# Differences of what ncu measures: by its conditions, and from what nsys sampled of the GPU's counters meanwhile.
#
# ncu fixes clocks, empties caches and runs kernels one by one. Definitions: docs/counters.md, One kernel, three tools.

#: What a GPU may reach: the clock of its SMs, the size of its L2, what its memory moves.
_LIMITS: Final = ("clock_hz", "l2_bytes", "memory_bandwidth_bytes_per_s")


def under_ncu(base: Report, ncu: Report) -> Callable[[Row], Explained | None]:
    """Explains why what ncu measured differs from what a tracing tool recorded."""
    limits = pl.concat([one.devices.select(_LIMITS).max() for one in (base, ncu)]).select(pl.all().drop_nulls().first())
    facts = limits.row(0, named=True) | {"tool": base.meta.tool}

    def explained(row: Row) -> Explained | None:
        if row["figure"] == "duration":
            return measured_otherwise(row | facts)
        fewer = row["figure"] in COUNTED and row["first"] is not None and row["second"] <= row["first"]
        if not fewer or ncu.meta.selective is False:  # it was told to measure all
            return None
        unknown = "; its command is not known" if ncu.meta.selective is None else ""
        return "filter", f"{row['second']:,.0f} of {row['first']:,.0f}{unknown}"

    return explained


def measured_otherwise(row: Row) -> Explained | None:
    """The reason why the duration under ncu is another one; None if unknown.

    Besides what :func:`measuring` and :func:`disturbed` tell of the kernel, the row has the tracing tool and the limits
    of the GPU, null where neither report has them.
    """
    low, high, second = row["low"], row["high"], row["second"]
    if second < low:
        return _shorter(row, low)
    if second <= high:
        return "spread", f"{time(low)} to {time(high)} by {row['tool']}"
    clock, waiting, most = row["sm_clock_hz"], row["cold_share"], row["clock_hz"]
    if clock is None or waiting is None or most is None:
        return "replay", "ncu's report has no clocks, or not what warps waited for"
    slower = max(most / clock, 1.0)
    clocks = f"{frequency(clock)} under ncu, up to {frequency(most)} without"
    if slower == 1:
        clocks = f"{frequency(clock)} under ncu, no less than the GPU's {frequency(most)}"
    if second <= high * slower:
        return "clocks", f"{clocks}: up to {time(high * slower)}"
    cold = waiting * second
    if second > high * slower + cold:
        return None
    waits = f"{percent(waiting)} of its {time(second)} waiting for memory, instructions and constants"
    return "caches", f"{waits}; {clocks}: up to {time(high * slower + cold)}"


def _shorter(row: Row, low: float) -> Explained | None:
    """The reason why a kernel took less than `low` under ncu; None if unknown."""
    if row["faulted"]:
        return "page faults", "managed memory moved while it ran"
    if row["crowded"]:
        return "beside others", "other operations ran on the GPU at the same time"
    moved, bandwidth = min(row["dram_bytes"] or 0, row["l2_bytes"] or 0), row["memory_bandwidth_bytes_per_s"]
    if bandwidth and low - row["second"] <= 1e9 * moved / bandwidth:
        return "caches", f"up to {size(moved)} that others left in L2 need not be written back, at {rate(bandwidth)}"
    return None


@once_per_report
def measuring(ncu: Report) -> pl.DataFrame:
    """Conditions of measuring by kernel group of ncu: group, sm_clock_hz (least), cold_share and dram_bytes (most)."""
    # these grow when caches are cold: data, instructions, constants
    waits = pl.col("share").filter(pl.col("reason").is_in(("long_scoreboard", "no_instruction", "imc_miss")))
    cold = counters.stalls(ncu).group_by("event_id").agg(cold_share=waits.sum())
    facts = advice.kernel_facts(ncu).select("event_id", "sm_clock_hz", "dram_bytes")
    each = grouped_kernels(ncu).join(facts, on="event_id", how="left").join(cold, on="event_id", how="left")
    most = pl.col("cold_share").max().clip(0, 1), pl.col("dram_bytes").max()
    return each.group_by("group").agg(pl.col("sm_clock_hz").min(), *most)


@once_per_report
def disturbed(base: Report) -> pl.DataFrame:
    """Disturbances by kernel group of the program: group, faulted (memory migrated meanwhile), crowded (others ran)."""
    work = operations(base)
    faults = base.kind("fault").select(**intervals.OF_EVENTS)
    moves = pl.concat([work.filter(BY_DRIVER).select("start", "end"), faults])
    placed = beside(grouped_kernels(base), work.sort("event_id"), "start", "end")
    start, end = placed.get_column("start"), placed.get_column("end")
    ours = work.filter(~BY_DRIVER).partition_by("device")
    shared = [intervals.subtract(intervals.union(own), intervals.alone(own)) for own in ours]
    spans = intervals.union(pl.concat([moves.clear(), *shared]))
    kernels = placed.with_columns(
        faulted=intervals.overlap(start, end, intervals.union(moves)) > 0,
        crowded=intervals.overlap(start, end, spans) > 0,
    )
    return kernels.group_by("group").agg(pl.col("faulted", "crowded").any())


#: Metrics of ncu that figures are made of.
_METRICS: Final = (
    "dram__bytes_read.sum", "dram__bytes_write.sum", "sm__cycles_active.avg", "sm__cycles_elapsed.max",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "sm__cycles_elapsed.avg.per_second",
)  # fmt: skip
_READ, _WRITTEN, _ACTIVE, _ELAPSED, _TENSOR, _CLOCK = map(pl.col, _METRICS)

#: The sampled counter of each figure, and what ncu tells of it.
_SOURCES: Final = {
    "DRAM read": ("dram_read_share", _READ),
    "DRAM written": ("dram_write_share", _WRITTEN),
    "SMs active": ("sms_active_share", _ACTIVE / _ELAPSED),
    "tensor cores active": ("tensor_active_share", _TENSOR / 100),
}

#: The figures, with their units; bytes are per launch.
FIGURES: Final = {name: "bytes" if name.startswith("DRAM") else "share" for name in _SOURCES}

#: Fewest samples of a kernel, and the part of its time that they have to tell of.
_SAMPLES: Final = 20
_COVERED: Final = 0.5

#: How far two runs may be apart, as a part of the greater value; samples are in whole percent of a counter's peak.
_APART: Final = 0.1
_STEP: Final = 0.01


def sampled_rows(sampled: Report, ncu: Report) -> pl.DataFrame:
    """The figures that samples and ncu have of the same kernels that enough samples tell of, and what may explain them.

    Columns: name, those of the launch shape, right (the number of the kernel group of `ncu`), figure, unit, first (of
    samples), second (of ncu), step (how fine samples are, in the figure's unit), samples, clock_hz and ncu_clock_hz,
    l2_bytes and crowded (whether other operations ran meanwhile).
    """
    counted = grouped_kernels(ncu).join(counters.metric_columns(ncu, _METRICS), on="event_id")
    figures = {f"{name}_ncu": of_ncu for name, (_, of_ncu) in _SOURCES.items()} | {"ncu_clock_hz": _CLOCK}
    theirs = counted.group_by("group").agg(value.mean().alias(name) for name, value in figures.items())
    ours = _of_samples(sampled)
    crowded = disturbed(sampled).select("group", "crowded")
    pairs = same_kernels(sampled, ncu).select("left", "right")
    both = pairs.join(ours, left_on="left", right_on="group").join(theirs, left_on="right", right_on="group")
    both = both.join(crowded, left_on="left", right_on="group", how="left")
    l2_bytes = sampled.devices.get_column("l2_bytes").max()
    rows = [
        both.select(
            *(name for name in GROUP_KEYS if name != "device"),
            *("right", "samples", "clock_hz", "ncu_clock_hz", "crowded"),
            figure=pl.lit(figure),
            unit=pl.lit(unit),
            first=figure,
            second=f"{figure}_ncu",
            step=pl.col("percent_bytes") if unit == "bytes" else pl.lit(_STEP),
            l2_bytes=pl.lit(l2_bytes, dtype=pl.Int64),
        ).drop_nulls(["first", "second"])
        for figure, unit in FIGURES.items()
    ]
    return pl.concat(rows)


def _of_samples(report: Report) -> pl.DataFrame:
    """The sampled figures of each kernel group: group, name, shape, the figures, samples, clock_hz, percent_bytes."""
    groups = kernel_groups(report).select("group", *GROUP_KEYS)
    placed = grouped_kernels(report).select("event_id", "group")
    work = exclusive_operations(report).select("event_id", "device", "start", "end").join(placed, on="event_id")
    bandwidths = dict(report.devices.select("device", "memory_bandwidth_bytes_per_s").iter_rows())
    parts = []
    for device, grid in _sampled_means.grids(report).items():
        own = work.filter(pl.col("device") == device)
        launches = own.group_by(key="group").agg(launches=pl.len())
        sampled = _sampled_means.means(grid, own.select("start", "end", key="group")).join(launches, on="key")
        peak = pl.lit(bandwidths.get(device), dtype=pl.Float64) * pl.col("total_ns") / 1e9 / pl.col("launches")
        shares = {name: pl.col(column) for name, (column, _) in _SOURCES.items()}
        figures = {name: share * peak if FIGURES[name] == "bytes" else share for name, share in shares.items()}
        figures |= {"group": pl.col("key"), "clock_hz": pl.col("sm_clock_hz"), "percent_bytes": _STEP * peak}
        enough = (pl.col("samples") >= _SAMPLES) & (pl.col("sampled_ns") >= _COVERED * pl.col("total_ns"))
        parts.append(sampled.filter(enough).select("samples", **figures))
    return groups.drop("device").join(pl.concat(parts), on="group")


def why_apart(row: Row) -> Explained | None:
    """The reason why samples and ncu differ in a row of :func:`sampled_rows`; None if unknown."""
    first, second = row["first"], row["second"]
    apart, near = abs(second - first), _APART * max(first, second) + row["step"]
    if apart <= near:
        most = size(near) if row["unit"] == "bytes" else percent(near)
        return "samples", f"{plural(row['samples'], 'sample')}; up to {most} apart"
    if row["crowded"]:
        return "beside others", "other operations ran on the GPU at the same time, and samples are of the whole GPU"
    if row["unit"] == "bytes":
        room = row["l2_bytes"] or 0
        if apart <= near + room:
            return "caches", f"L2 holds {size(room)}, which ncu empties before each launch"
        return None
    clock, under = row["clock_hz"], row["ncu_clock_hz"]
    if clock and under and apart <= near + abs(1 - clock / under) * max(first, second):
        return "clocks", f"{frequency(clock)} on average in samples, {frequency(under)} under ncu"
    return None
