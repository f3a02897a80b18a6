"""Reasons for which two tools tell different figures of one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from polars._typing import PolarsDataType

from kanalyze import intervals
from kanalyze.analyses.counters._sampled_means import grids, means
from kanalyze.analyses.counters.advice import kernel_facts
from kanalyze.analyses.counters.counters import metric_columns, stalls
from kanalyze.analyses.device._operations import compiled_kernels, exclusive_operations, operations
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.iterations.iterations import iteration_spans
from kanalyze.analyses.operators._kernel_groups import GROUP_KEYS, grouped_kernels, kernel_groups, same_kernels
from kanalyze.analyses.ranges.instances import compile_spans
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.threads import outermost
from kanalyze.columns import beside
from kanalyze.report import Report
from kanalyze.units import count, frequency, percent, plural, rate, size, time

Row = dict[str, Any]
Explained = tuple[str, str]

#: The reasons for a difference, and what each means.
EXPLANATIONS: Final = {
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

#: The spread assumed where no kernel was launched twice: the median of the 76 kernels that the sample captures launch
#: several times, as a part of their mean, and at least in nanoseconds.
_SEEN_SHARE: Final = 0.08
_SEEN_NS: Final = 370.0


@dataclass(frozen=True)
class Spread:
    """The usual spread of the launches of one kernel, the median over kernels: as a part of the mean, and in ns."""

    share: float
    ns: float

    @classmethod
    def of(cls, reports: Sequence[Report]) -> Spread:
        """The spread over all kernels that these reports launched several times."""
        groups = pl.concat(kernel_groups(one).select("count", "duration", "low", "high") for one in reports)
        apart = pl.col("high") - pl.col("low")
        several = groups.filter((pl.col("count") > 1) & (pl.col("duration") > 0))
        share, ns = several.select((apart / pl.col("duration")).median(), apart.median().alias("ns")).row(0)
        return cls(_SEEN_SHARE, _SEEN_NS) if share is None else cls(share, ns)

    def around(self, row: Row, suffix: str = "") -> tuple[float, float]:
        """The least and the greatest duration to expect of a launch: nine in ten of those seen, and half the spread.

        Two runs of one program differ by more than launches within one run do: a kernel launched once shows no spread,
        and buffers lie at other addresses.
        """
        low, high = row[f"low{suffix}"], row[f"high{suffix}"]
        half = max(self.share * high, self.ns) / 2
        return max(low - half, 0.0), high + half


@dataclass(frozen=True)
class Reasons:
    """Explains differences between two tools that record every launch."""

    tools: tuple[str, str]
    spread: Spread  # of launches of one kernel
    tuned: list[str]  # kernels that Triton's autotuner tried variants of
    steps: list[int]  # that the second report was recorded in; empty for none
    shared: tuple[Steps, Steps] | None  # the steps of each report that both have

    @classmethod
    def between(cls, base: Report, other: Report, shared: tuple[Steps, Steps] | None) -> Reasons:
        """Collects what explains differences between the two reports; `shared` are the steps that both have."""
        steps = other.steps().sort("start").get_column("step").unique(maintain_order=True).to_list()
        return cls((base.meta.tool, other.meta.tool), Spread.of([base, other]), tuned(base), steps, shared)

    def of(self, row: Row) -> Explained | None:
        """The reason why this row's figures differ; None if unknown."""
        if row["figure"] != "duration":
            return self._count(row) if row["figure"] in COUNTED else None
        (low, high), (low_other, high_other) = self.spread.around(row), self.spread.around(row, "_other")
        if low > high_other or low_other > high:
            return None
        ranges = (f"{time(start)} to {time(end)}" for start, end in ((low, high), (low_other, high_other)))
        return "spread", f"{next(ranges)} by {self.tools[0]}, {next(ranges)} by {self.tools[1]}"

    def _count(self, row: Row) -> Explained | None:
        first, second = row["first"] or 0, row["second"] or 0
        for reason, kinds in (("compile", ["compiling"]), ("autotuner", ["compiling", "trial"])):
            some = [max(row[kind] or 0 for kind in kinds), max(row[f"{kind}_other"] or 0 for kind in kinds)]
            if any(some) and first - some[0] == second - some[1]:
                each = zip(some, (first, second), self.tools, strict=True)
                counts = [f"{part:,.0f} of {whole:,.0f} by {tool}" for part, whole, tool in each if part]
                of = f", of {', '.join(self.tuned)}" if reason == "autotuner" else ""
                return reason, f"{' and '.join(counts)}{of}; the rest is equal"
        if self.shared is not None:
            return self._by_step(row, *self.shared)
        if self.steps and second < first:
            return "steps", f"{plural(len(self.steps), 'step')}, from {self.steps[0]} on"
        return None

    def _by_step(self, row: Row, first: Steps, second: Steps) -> Explained | None:
        """The reason `steps`: both reports have the same number per step, but recorded different numbers of steps."""
        ours, theirs = (
            {name: (None if row[side] is None else row[f"{name}{suffix}"]) or NOTHING[name] for name in COUNTS}
            for side, suffix in (("first", ""), ("second", "_other"))
        )
        numbers = first.spans.height, second.spans.height
        if not alike(ours, theirs, numbers):
            return None
        few = ours if numbers[0] <= numbers[1] else theirs
        low, high = min(few["in"]), max(few["in"])
        each = count(low) if low == high else f"{count(low)} to {count(high)}"
        recorded = " and ".join(
            f"{count(number)} ({name}) by {tool}"
            for number, name, tool in zip(numbers, (first.name, second.name), self.tools, strict=True)
        )
        return (
            "steps",
            f"{each} a step in both, of {recorded}; beside them {count(ours['beside'])} and {count(theirs['beside'])}",
        )


#: Figures that are counts or sums of bytes.
COUNTED: Final = ("launches", "copies", "bytes copied")


# Counts of launches that explain a difference: by step, while compiling, in trials.

#: The name of the profiler's own steps, where steps are otherwise user ranges.
PROFILER_STEPS: Final = "ProfilerStep"

#: Where an operation was launched: in a step, between two steps, or outside: before the first or after the last.
_PLACES: Final = ("in", "between", "beside")

_SPANS: Final = {"process_id": pl.Int64, "start": pl.Int64, "end": pl.Int64, "name": pl.String}

#: The columns of a count: its distinct values per step, its distinct values between two steps, and its sum outside.
COUNTS: Final[dict[str, PolarsDataType]] = {"in": pl.List(pl.Int64), "between": pl.List(pl.Int64), "beside": pl.Int64}

#: The values for something that does not occur.
NOTHING: Final[dict[str, Any]] = {"in": [0], "between": [0], "beside": 0}


@dataclass(frozen=True)
class Steps:
    """The steps of a recording that another recording has, too."""

    name: str
    spans: pl.DataFrame  # process_id, start, end, until (start of the next step, null for the last); sorted by start


def shared_steps(base: Report, other: Report) -> tuple[Steps, Steps] | None:
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
    names = [
        spans.group_by("name").len().sort("len", "name", descending=[True, False]).item(0, "name") for spans in repeated
    ]
    first, second = (_steps(str(name), spans) for name, spans in zip(names, repeated, strict=True))
    return first, second


def _inside(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The `spans` inside the window of a report."""
    low, high = report.scope.sides
    spans = spans if low is None else spans.filter(pl.col("start") >= low)
    return spans if high is None else spans.filter(pl.col("end") <= high)


def _named(report: Report) -> pl.DataFrame:
    """The closed ranges and the profiler's steps of a whole report, with their names."""
    steps = report.whole.steps()
    parts = [steps.select("process_id", "start", "end", name=pl.lit(PROFILER_STEPS))]
    if "range" in report.kinds:
        ranges = named_ranges(report.whole).filter(~pl.col("open"))
        own = ranges.join(steps.select("event_id"), on="event_id", how="anti")
        parts.append(own.select("process_id", "start", "end", name=pl.col("name").fill_null("")))
    spans = pl.concat(parts).filter((pl.col("end") > pl.col("start")) & (pl.col("name") != ""))
    return _inside(report, spans).select(list(_SPANS))


def _steps(name: str, spans: pl.DataFrame) -> Steps:
    """The outermost spans with this name, as steps."""
    outer = outermost(spans.filter(pl.col("name") == name), "process_id")
    until = pl.col("start").shift(-1).over("process_id")
    return Steps(name, outer.select("process_id", "start", "end", until=until).sort("start"))


def per_step(report: Report, steps: Steps) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Counts per step of the operations in scope: kernels by group, copies and memsets by name.

    Further columns: :data:`COUNTS`; for copies and memsets also in bytes, with the suffix ``_bytes``.
    """
    work = exclusive_operations(report, "call_start", "size_bytes")
    # where no launch was recorded, the operation's own start decides
    at = "call_start" if work.get_column("call_start").count() else "start"
    work = work.select("event_id", "kind", "name", "process_id", pl.col("size_bytes").fill_null(0), at=at)
    placed = _placed(work, steps)
    own = placed.select("event_id", "step", "place")
    kernels = grouped_kernels(report).select("event_id", "group").join(own, on="event_id")
    rest = placed.filter(pl.col("kind").is_in(["memcpy", "memset"])).with_columns(pl.col("name").cast(pl.String))
    number, one = steps.spans.height, pl.lit(1, dtype=pl.Int64)
    moved = _sums(rest, ("name",), pl.col("size_bytes"), number)
    named = moved.rename({count: f"{count}_bytes" for count in COUNTS})
    return _sums(kernels, ("group",), one, number), _sums(rest, ("name",), one, number).join(named, on="name")


def _placed(work: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """`work` (process_id, at) with the step that each operation was launched in, and its place (:data:`_PLACES`)."""
    numbered = steps.spans.with_row_index("step").rename({"start": "since"})
    line = work.sort("at")
    joined = line.join_asof(numbered, left_on="at", right_on="since", by="process_id", check_sortedness=False)
    inside, between, beside = map(pl.lit, _PLACES)
    place = pl.when(pl.col("at") < pl.col("end")).then(inside).when(pl.col("at") < pl.col("until")).then(between)
    return joined.with_columns(place=place.otherwise(beside))


def _sums(work: pl.DataFrame, keys: Sequence[str], amount: pl.Expr, steps: int) -> pl.DataFrame:
    """:data:`COUNTS` by `keys`; steps without such an operation count as 0."""
    each = work.with_columns(amount=amount).group_by(*keys, "place", "step").agg(pl.col("amount").sum())
    inside, between, beside = (pl.col("amount").filter(pl.col("place") == place) for place in _PLACES)
    numbers = {"in": (inside, steps), "between": (between, max(steps - 1, 1))}
    sums = each.group_by(keys).agg(
        beside.sum().alias("beside"),
        *(amounts.unique().sort().alias(place) for place, (amounts, _) in numbers.items()),
        *((amounts.len() < number).alias(f"lacks_{place}") for place, (amounts, number) in numbers.items()),
    )
    zero = {place: pl.when(f"lacks_{place}").then(pl.concat_list(place, pl.lit(0))) for place in numbers}
    return sums.select(*keys, *(with_zero.otherwise(place).alias(place) for place, with_zero in zero.items()), "beside")


def alike(first: Mapping[str, Any], second: Mapping[str, Any], numbers: tuple[int, int]) -> bool:
    """Whether two recordings (:data:`COUNTS`) with `numbers` of steps agree on the counts per step.

    Every value of the one with fewer steps, in and between steps, must occur in the other one. Its sum outside of steps
    may be no larger than that of the other, plus the largest values between and in steps (for a step that was cut).
    """
    few, many = (first, second) if (numbers[0], first["beside"]) <= (numbers[1], second["beside"]) else (second, first)
    inside = all(set(few[place]) <= set(many[place]) for place in _PLACES[:2])
    same = numbers[0] != numbers[1] or set(few["in"]) == set(many["in"])
    return inside and same and few["beside"] <= many["beside"] + max(many["between"]) + max(many["in"])


def tuned(report: Report) -> list[str]:
    """Names of the kernels that Triton compiled in several variants, as its autotuner does; empty if not recorded."""
    compiled = compiled_kernels(report).filter(pl.col("source") == "triton")
    several = compiled.filter(pl.col("hash").n_unique().over("name") > 1)
    return several.get_column("name").unique().sort().to_list()


@once_per_report
def compiled_meanwhile(report: Report) -> pl.DataFrame:
    """Every operation in scope: columns event_id, kind, name, stream, start, size_bytes and compiling.

    `compiling`: it was launched while torch.compile compiled, or benchmarked what it had compiled.
    """
    work = exclusive_operations(report, "call_start", "stream", "size_bytes")
    calls = work.get_column("call_start")
    inside = intervals.overlap(calls.fill_null(0), calls.fill_null(0) + 1, compile_spans(report)) > 0
    compiling = (inside & calls.is_not_null()).alias("compiling")
    return work.select("event_id", "kind", pl.col("name").cast(pl.String), "stream", "start", "size_bytes", compiling)


def tried(report: Report, names: list[str], kinds: Sequence[str]) -> pl.DataFrame:
    """:func:`compiled_meanwhile` of some kinds, with `trial`: a launch of one of `names`, or what is right before one.

    Triton's autotuner flushes the cache before each trial.
    """
    work = compiled_meanwhile(report).sort("start", "event_id")
    own = pl.col("name").is_in(names).fill_null(value=False)
    every = work.with_columns(trial=own | own.shift(-1).over("stream").fill_null(value=False))
    return every.filter(pl.col("kind").is_in(kinds))


def trials_of_kernels(report: Report, names: list[str]) -> pl.DataFrame:
    """Counts of trial launches by kernel group: group, compiling, trial."""
    own = tried(report, names, ["kernel"]).select("event_id", "compiling", "trial")
    kernels = grouped_kernels(report).join(own, on="event_id")
    return kernels.group_by("group").agg(pl.col("compiling", "trial").sum().cast(pl.Float64))


def trials_of_copies(report: Report, names: list[str]) -> pl.DataFrame:
    """Counts and bytes of trial copies and memsets: columns name, compiling, trial, compiling_bytes, trial_bytes."""
    own = tried(report, names, ["memcpy", "memset"])
    count = pl.col("compiling", "trial").sum().cast(pl.Float64)
    size = (pl.col("compiling", "trial").cast(pl.Float64) * pl.col("size_bytes")).sum().name.suffix("_bytes")
    return own.group_by("name").agg(count, size)


# Differences of what ncu measures: by its conditions, and from what nsys sampled of the GPU's counters meanwhile.
#
# ncu fixes clocks, empties caches and runs kernels one by one. Definitions: docs/counters.md, One kernel, three tools.

#: Stall reasons that grow when caches are cold: data, instructions, constants.
_COLD: Final = ("long_scoreboard", "no_instruction", "imc_miss")


@dataclass(frozen=True)
class UnderNcu:
    """Explains why a duration measured by ncu differs from the one recorded by a tracing tool."""

    tool: str  # the tracing tool
    spread: Spread  # of launches of one kernel in its recording
    clock_hz: int | None  # the GPU's maximum
    l2_bytes: int | None  # the size of the L2 cache
    dram_bytes_per_s: int | None
    selective: bool | None  # whether ncu was told to measure only some launches; None if its command is unknown

    @classmethod
    def between(cls, base: Report, ncu: Report, spread: Spread) -> UnderNcu:
        """Collects it from two reports of one program."""

        def most(name: str) -> Any:  # noqa: ANN401 - a number, or None where neither report has one
            greatest = base.devices.get_column(name).max()
            return ncu.devices.get_column(name).max() if greatest is None else greatest

        names = ("clock_hz", "l2_bytes", "memory_bandwidth_bytes_per_s")
        clock_hz, l2_bytes, dram_bytes_per_s = (most(name) for name in names)
        return cls(base.meta.tool, spread, clock_hz, l2_bytes, dram_bytes_per_s, ncu.meta.selective)

    def of(self, row: Row) -> Explained | None:
        """The reason why this row's figures differ; None if unknown."""
        if row["figure"] == "duration":
            return self.duration(row)
        fewer = row["figure"] in COUNTED and row["first"] is not None and row["second"] <= row["first"]
        if not fewer or self.selective is False:  # it was told to measure all
            return None
        unknown = "; its command is not known" if self.selective is None else ""
        return "filter", f"{row['second']:,.0f} of {row['first']:,.0f}{unknown}"

    def duration(self, row: Row) -> Explained | None:
        """The reason why the durations of a row differ; None if unknown."""
        low, high = self.spread.around(row)
        second = row["second"]
        if low <= second <= high:
            return "spread", f"{time(low)} to {time(high)} by {self.tool}"
        return self._longer(row, high) if second > high else self._shorter(row, low)

    def _longer(self, row: Row, high: float) -> Explained | None:
        clock, waiting = row["sm_clock_hz"], row["cold_share"]
        if clock is None or waiting is None or self.clock_hz is None:
            return "replay", "ncu's report has no clocks, or not what warps waited for"
        slower = max(self.clock_hz / clock, 1.0)
        clocks = f"{frequency(clock)} under ncu, up to {frequency(self.clock_hz)} without"
        if slower == 1:
            clocks = f"{frequency(clock)} under ncu, no less than the GPU's {frequency(self.clock_hz)}"
        if row["second"] <= high * slower:
            return "clocks", f"{clocks}: up to {time(high * slower)}"
        cold = waiting * row["second"]
        if row["second"] > high * slower + cold:
            return None
        waits = f"{percent(waiting)} of its {time(row['second'])} waiting for memory, instructions and constants"
        return "caches", f"{waits}; {clocks}: up to {time(high * slower + cold)}"

    def _shorter(self, row: Row, low: float) -> Explained | None:
        if row["faulted"]:
            return "page faults", "managed memory moved while it ran"
        if row["crowded"]:
            return "beside others", "other operations ran on the GPU at the same time"
        moved = min(row["dram_bytes"] or 0, self.l2_bytes or 0)
        if self.dram_bytes_per_s and low - row["second"] <= 1e9 * moved / self.dram_bytes_per_s:
            written = f"up to {size(moved)} that others left in L2 need not be written back"
            return "caches", f"{written}, at {rate(self.dram_bytes_per_s)}"
        return None


@once_per_report
def measuring(ncu: Report) -> pl.DataFrame:
    """Conditions of measuring by kernel group of ncu: group, sm_clock_hz (least), cold_share and dram_bytes (most)."""
    waits = pl.col("share").filter(pl.col("reason").is_in(_COLD))
    cold = stalls(ncu).group_by("event_id").agg(cold_share=waits.sum())
    facts = kernel_facts(ncu).select("event_id", "sm_clock_hz", "dram_bytes")
    each = grouped_kernels(ncu).join(facts, on="event_id", how="left").join(cold, on="event_id", how="left")
    return each.group_by("group").agg(
        pl.col("sm_clock_hz").min(), pl.col("cold_share").max().clip(0, 1), pl.col("dram_bytes").max()
    )


@once_per_report
def disturbed(base: Report) -> pl.DataFrame:
    """Disturbances by kernel group of the program: group, faulted (memory migrated meanwhile), crowded (others ran)."""
    work = operations(base)
    unified = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
    faults = base.kind("fault").select(**intervals.OF_EVENTS)
    moves = pl.concat([work.filter(unified).select("start", "end"), faults])
    placed = beside(grouped_kernels(base), work.sort("event_id"), "start", "end")
    start, end = placed.get_column("start"), placed.get_column("end")
    ours = work.filter(~unified).partition_by("device")
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
    """The figures that samples and ncu have of the same kernels, with what may explain a difference.

    Returns:
        name, those of the launch shape, right (the number of the kernel group of `ncu`), figure, unit, first (of
        samples), second (of ncu), step (how fine samples are, in the figure's unit), samples, clock_hz and
        ncu_clock_hz, l2_bytes and crowded (whether other operations ran meanwhile). Only kernels that enough samples
        tell of.
    """
    counted = grouped_kernels(ncu).join(metric_columns(ncu, _METRICS), on="event_id")
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
    for device, grid in grids(report).items():
        own = work.filter(pl.col("device") == device)
        launches = own.group_by(key="group").agg(launches=pl.len())
        sampled = means(grid, own.select("start", "end", key="group")).join(launches, on="key")
        peak = pl.lit(bandwidths.get(device), dtype=pl.Float64) * pl.col("total_ns") / 1e9 / pl.col("launches")
        shares = {
            name: pl.col(column) * (peak if FIGURES[name] == "bytes" else 1) for name, (column, _) in _SOURCES.items()
        }
        enough = (pl.col("samples") >= _SAMPLES) & (pl.col("sampled_ns") >= _COVERED * pl.col("total_ns"))
        parts.append(
            sampled.filter(enough).select(
                "samples", **shares, group="key", clock_hz="sm_clock_hz", percent_bytes=_STEP * peak
            )
        )
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
