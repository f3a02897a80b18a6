"""The program without its profiler: measured by runs of the capture without one, or estimated for its tool.

Definitions: docs/definitions.md, section 4, "Without a profiler", and section 12, "Without the profiler".
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import columns, errors, machinery, model
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle.ledger import hides_host
from kanalyze.analyses.iterations._marks import BY_LOOPS
from kanalyze.analyses.iterations.phases import SteadyPart, steady_part
from kanalyze.analyses.iterations.sample import Cut, sample_of
from kanalyze.analyses.replay import _changes, _whatif
from kanalyze.analyses.replay._host_time import (
    AS_RECORDED,
    BY_TOOL,
    COSTLIEST,
    DEVICES_DIFFER,
    HOSTS_DIFFER,
    NEAR,
    UNCHANGED,
    HostTime,
    Unslowed,
    fitted,
)
from kanalyze.analyses.replay._network import Changed, Network, as_recorded, call_times, network, point_values, replayed
from kanalyze.analyses.shared import analysis, threads
from kanalyze.report import BareRun, Derived, Report
from kanalyze.units import percent, shortened, time, times
from kanalyze.window import Window

with machinery.loading_late("statistics"):  # of programs that ran without a profiler
    import statistics

#: Marks of a program that repeats less often may be as many by chance.
_FEWEST: Final = 5

#: The marks of a program that profiles itself, and in which part of its steps it left that on.
OWN: Final = "the program's own profiler"
OWN_END: Final = "the end of the program's own profiler"
LEFT_ON: Final = 0.5

#: Marks of torch that tell iterations, the surest first, in a sentence.
OF_TORCH: Final = {
    "Optimizer.step#": "steps of the optimizer",
    "the outermost module's call": "calls of the outermost module",
}

#: Runs that differ by more than this part vary; and the part of iterations at each end that the range leaves out.
_VARIES: Final = 0.05
_TENTH: Final = 0.1

#: Every second or fourth iteration, which does more, is as often in so many in a row as in all.
_IN_A_ROW: Final = 4


class BareIteration(NamedTuple):
    """An iteration without a profiler: the mean over those of the steady part, of several runs the median of theirs.

    `recorded_ns` is the mean over the same iterations as recorded, `runs_ns` the mean of each run; nine of ten
    iterations, of all runs, take `low_ns` at least and `high_ns` at most. The program's `mark` tells them, which is
    `of_loop` if it is a loop by file and line. `by_device` if the host was ahead, so that an iteration takes as long as
    the GPU works in it; where it waited for nothing, the host took `host_ns`.
    """

    ns: float
    recorded_ns: float
    runs_ns: tuple[float, ...]
    low_ns: float
    high_ns: float
    mark: str
    by_device: bool
    of_loop: bool = False
    host_ns: float = 0.0

    @property
    def spread_ns(self) -> float:
        """How far the means of its runs are apart."""
        return max(self.runs_ns) - min(self.runs_ns)


class Bare(NamedTuple):
    """Runs of a program without a profiler, from start to end of the process; an iteration where a mark tells it."""

    programs_ns: tuple[int, ...]
    iteration: BareIteration | None


def runs_without(report: Report, steady: SteadyPart | None, busy_ns: float) -> Bare | None:
    """The runs without a profiler in the report's capture; an iteration of them is no shorter than the GPU is busy.

    None of a program that profiles some of its steps itself.
    """
    programs_ns, runs, damage = report.whole.bare()
    if damage is not None:
        report.go_without("of runs without a profiler", damage)
    if not programs_ns or any(OWN in run.starts_ns and profiled_part(run) < LEFT_ON for run in runs):
        return None
    whole = report.meta.recorder.every_launch and not report.meta.partial and report.whole is report
    if steady is None or not whole:
        return Bare(programs_ns, None)
    return Bare(programs_ns, iteration_of(runs, report.meta.rank, steady, busy_ns))


def profiled_part(run: BareRun) -> float:
    """In which part of its steps, the most frequent mark since then, a program had a profiler of its own on."""
    turns = sorted((ns, on) for on, name in ((True, OWN), (False, OWN_END)) for ns in run.starts_ns.get(name, ()))
    marks = [starts for name, starts in run.starts_ns.items() if name not in (OWN, OWN_END)]
    if not (run.profiler and turns and marks):
        return 0.0
    steps = max(marks, key=lambda starts: sum(ns > turns[0][0] for ns in starts))
    last_turns = (bisect_right(turns, (ns, True)) - 1 for ns in steps)
    return sum(at >= 0 and turns[at][1] for at in last_turns) / len(steps)


def iteration_of(runs: Sequence[BareRun], rank: int | None, steady: SteadyPart, busy_ns: float) -> BareIteration | None:
    """An iteration of the steady part without a profiler, by runs of a rank, or of the first where none is of it."""
    ranks = {run.rank for run in runs}
    chosen = rank if rank in ranks else min(ranks, key=lambda number: -1 if number is None else number, default=None)
    runs = [run for run in runs if run.rank == chosen]
    rows = steady.rows.filter(pl.col("name") == steady.each).sort("start_ns")
    windows, recorded = rows.get_column("window"), rows.get_column("dur_ns")
    first, last = (windows.index_of(steady.run.item(at, "window")) for at in (0, -1))
    if first is None or last is None:
        return None
    loop = steady.found_by.removeprefix(BY_LOOPS).strip() if steady.found_by.startswith(BY_LOOPS) else None
    by_run = [lengths_of(run.starts_ns, loop or steady.each, windows.len(), first, last) for run in runs]
    measured = [pair for pair in by_run if pair is not None]
    if not measured:
        return None
    means_ns = [_mean(pl.Series(lengths), recorded.slice(first, last - first)) for _, lengths in measured]
    all_ns = pl.Series([ns for _, lengths in measured for ns in lengths])
    shortest, longest = (all_ns.quantile(part, "nearest") or 0.0 for part in (_TENTH, 1 - _TENTH))
    runs_ns, recorded_ns = tuple(max(ns, busy_ns) for ns in means_ns), steady.ns / steady.number
    if not statistics.median(runs_ns):
        return None
    mark, mean_ns = measured[0][0], statistics.median(means_ns)
    device_ns = rows.get_column("device_ns").slice(first, last - first)
    alike = (device_ns.quantile(_TENTH, "nearest") or 0.0) >= 0.8 * float(statistics.median(device_ns))
    # until so much is queued that it has to wait for the device, alike iterations take the host its own time
    free = alike and mean_ns <= busy_ns * (1 + DEVICES_DIFFER)
    return BareIteration(
        *(statistics.median(runs_ns), recorded_ns, runs_ns, max(shortest, busy_ns), max(longest, busy_ns), mark),
        by_device=mean_ns <= busy_ns,
        of_loop=mark == loop,
        host_ns=min([mean_ns, *(_least_mean(lengths) for _, lengths in measured if free)]),
    )


def _least_mean(lengths: Sequence[int]) -> float:
    """The least mean of :data:`_IN_A_ROW` in a row; infinite of fewer."""
    ends = range(_IN_A_ROW, len(lengths) + 1)
    return min((sum(lengths[end - _IN_A_ROW : end]) / _IN_A_ROW for end in ends), default=inf)


def _mean(lengths: pl.Series, recorded: pl.Series) -> float:
    """The mean length; where a few make it longer than nine of ten are, as if these took as long as the last of ten.

    But for those that take 1.5 times the median in the recording, too: the program does more in them, such as to
    compile, for no longer than it was recorded to.
    """
    most, usual = (each.quantile(1 - _TENTH, "nearest") or 0.0 for each in (lengths, recorded))
    far = (recorded > usual) & (recorded > 1.5 * float(statistics.median(recorded)))
    longest = recorded.clip(lower_bound=int(most)).set(~far, int(most))
    held_up = lengths.zip_with(lengths <= longest, longest)
    return float(statistics.mean(lengths if statistics.mean(lengths) <= most else held_up))


def lengths_of(
    starts_ns: Mapping[str, Sequence[int]], each: str, count: int, first: int, last: int
) -> tuple[str, list[int]] | None:
    """The mark that tells the iterations from `first` to `last`, and the time from the start of each to the next, ns.

    `starts_ns` is when occurrences of a mark began; `each` is what an iteration is called, or the loop that it is a
    pass of. None where neither the ranges of that name, nor the steps of an optimizer, nor the calls of the outermost
    module are as many as the iterations.
    """
    if count < _FEWEST or last <= first:
        return None
    # of a loop the last pass that begins is none where Python only finds that there is no further one
    fits = {key: (count, count + 1) if key == each else (count,) for key in starts_ns if _called(key) or key == each}
    alike = [name for name, counts in fits.items() if len(starts_ns[name]) in counts]
    if not alike:
        return None
    name = min(alike, key=lambda mark: (mark != each, [*OF_TORCH.values(), ""].index(_called(mark))))
    return name, [later - start for start, later in pairwise(starts_ns[name][first : last + 1])]


def _words(iteration: BareIteration) -> str:
    """What tells an iteration, in a sentence."""
    mark = shortened(iteration.mark, 48)
    return _called(iteration.mark) or (f"the passes of {mark}" if iteration.of_loop else repr(mark))


def _called(mark: str) -> str:
    """What a mark of torch is called in a sentence; empty for another one."""
    return next((called for start, called in OF_TORCH.items() if mark.startswith(start)), "")


def corrected_sentence(bare: Bare, tool: str, slower: float, ns: float) -> str:
    """A sentence on what an iteration of `ns` took while `tool` recorded it, on a page of times without it."""
    iteration = bare.iteration
    if iteration is None:
        return ""
    mark = _words(iteration)
    if slower <= 1 + SAME:
        return f"A run without {tool} took about as long, by {mark}."
    if iteration.by_device:
        ahead = f"in a run without it the host is ahead of the GPU, by {mark}"
        return f"While {tool} recorded, it took {time(ns * slower)}, up to {times(slower)} as long: {ahead}."
    took = f"{time(ns * slower)}, {times(slower)} as long"
    apart = f", in which it took {time(iteration.ns)}" if abs(iteration.ns / ns - 1) > SAME else ""
    return f"While {tool} recorded, it took {took}: a run without it tells, by {mark}{apart}."


def bare_sentence(bare: Bare, tool: str) -> str:
    """A sentence on the runs without a profiler, beside a report of `tool`."""
    iteration = bare.iteration
    if iteration is None:
        return f"Without a profiler the program took {time(statistics.median(bare.programs_ns))} from start to end."
    mark = _words(iteration)
    how = "as long as the GPU works" if iteration.by_device else f"by {mark}"
    spread = iteration.spread_ns / iteration.ns
    varies = f"; its {len(iteration.runs_ns)} runs vary by {percent(spread)}" if spread > _VARIES else ""
    limits = f"{time(iteration.low_ns)} to {time(iteration.high_ns)}, " if iteration.high_ns > iteration.low_ns else ""
    least = "at least " if iteration.by_device else ""
    text = f"Without {tool} it took {least}{time(iteration.ns)} ({limits}{how}{varies})"
    ratio = iteration.recorded_ns / iteration.ns
    if iteration.low_ns <= iteration.recorded_ns <= iteration.high_ns or abs(ratio - 1) <= SAME:
        return f"{text}, about as long."
    if ratio < 1:
        return f"{text}, longer than recorded."
    return f"{text}: recorded, {'up to ' if iteration.by_device else ''}{times(ratio)} as long."


#: The most operations and calls of a report of which a profiler's cost is estimated, and of one that is corrected by a
#: run without it, which tells more: each of some ten replays takes 3 µs of each.
_MOST: Final = 1 << 18
_MOST_CORRECTED: Final = 1 << 19

#: Where so little may be left of the host's time, or less, nothing is known of it.
_NOTHING: Final = 0.15

#: Recordings that take longer by less than this part are as the program is.
SAME: Final = 0.02


@analysis.once_per_process
def bare_of(report: Report) -> Bare | None:
    """The runs without a profiler in the report's capture, with an iteration of its steady part; None without any."""
    steady = steady_part(report) if report.bare().programs_ns else None
    return runs_without(report, steady, 0.0 if steady is None else busy_ns(report, steady))


@analysis.once_per_process
def _measured(report: Report) -> Unslowed | None:
    """What is left of the host's time by a run without the profiler; None where no such run tells an iteration.

    Nor does one that took longer than the recording by more than hosts differ, or longer than it would if the host took
    so much longer, as where the device limits the program: something else held it up. All is left of the time of a
    program that profiles itself, if that takes longer without the other profiler.
    """
    bare, steady = bare_of(report), steady_part(report)
    if bare is None or bare.iteration is None or steady is None:
        return None
    iteration, (view, times, _) = bare.iteration, sample_of(report.narrow(window=steady.window))
    if not replayable(view, _MOST_CORRECTED):
        return None
    number = steady.number / times
    if iteration.ns > iteration.recorded_ns * (1 + HOSTS_DIFFER):
        return UNCHANGED if any(OWN in run.starts_ns for run in report.whole.bare().marked) else None
    near, took = max(NEAR, iteration.spread_ns / iteration.ns / 2), cache(_whatif.window_without(view))
    longest_ns = took(HostTime(1 + HOSTS_DIFFER, inf)) if iteration.ns > iteration.recorded_ns * (1 + near) else inf
    if longest_ns < iteration.ns * number * (1 - near):
        return None
    if iteration.host_ns <= 0.8 * iteration.ns:
        # ahead of the device the host waits for nothing: it takes as long as if the device took no time
        alone, host_ns = cache(_whatif.window_without(view, device=False)), iteration.host_ns * number
        if alone(HostTime(_NOTHING, inf)) <= host_ns:
            host = fitted(alone, min(host_ns, alone(AS_RECORDED)), near)
            if host.usual.kept >= COSTLIEST.kept:  # else iterations that do more, now and then, are not among them
                return host
    return fitted(took, iteration.ns * number, near, BY_TOOL.get(report.meta.tool, UNCHANGED).usual)


def hosts_of(report: Report) -> Unslowed:
    """What is left of the host's time of a report, or a part of one, without its profiler: measured, else estimated."""
    if isinstance(report.source, Cut):
        return hosts_of(report.source.whole)
    estimate = BY_TOOL.get(report.meta.tool, UNCHANGED)
    measured = report.source.host if isinstance(report.source, Moved) else _measured(report)
    if measured is None:
        return estimate
    if measured.least.kept > _NOTHING:
        return measured
    # the device limits the program whatever the host takes, which tells nothing of the host but how much it is at most
    return Unslowed(*(one if one.kept < measured.most.kept else measured.most for one in estimate))


@analysis.once_per_process
def corrected(report: Report) -> Report | None:
    """The whole report as it would be without its profiler.

    None where its capture has no run without one that tells iterations, where the recording took hardly longer, of
    reports of more than 524,288 operations and calls, and of one that is without its profiler.
    """
    bare, steady = bare_of(report), steady_part(report)
    iteration = None if bare is None or report.meta.slower is not None else bare.iteration
    if steady is None or iteration is None or iteration.recorded_ns <= iteration.ns * (1 + SAME):
        return None
    if not replayable(report, _MOST_CORRECTED) or _measured(report) is None:
        return None

    new = unprofiled(report, hosts_of(report), steady.window)
    part = steady_part(new)
    ns = iteration.ns if part is None else part.ns / part.number
    return replace(new, meta=replace(new.meta, slower=iteration.recorded_ns / max(ns, 1)))


def without(report: Report) -> Report:
    """The whole report without its profiler; itself, if it is that.

    Raises:
        CannotTellError: Its capture has no run without a profiler that tells how long an iteration takes, or it has
            more than 524,288 operations and calls.
    """
    if report.meta.slower is not None:
        return report.whole
    new = corrected(report)
    if new is None:
        raise errors.CannotTellError(
            f"{report.meta.path}: cannot tell times without the profiler, because no run without one tells how much "
            "shorter an iteration is, or the report has more operations and calls than are replayed.",
            "Record with `kanalyze collect`, which makes such a run first, and give the folder that it writes.",
        )
    return new


def replayable(report: Report, most: int) -> bool:
    """Whether a report has times, launches where devices wait for these, and at most so many operations and calls."""
    if not {*model.DEVICE_KINDS} & {*report.kinds} or report.meta.timeless:
        return False
    return operations(report).height + report.kind("api").height <= most and not hides_host(report)


def _estimable(view: Report) -> bool:
    """Whether a profiler's cost can be estimated: it is a known one, and records no Python functions."""
    return view.meta.tool in BY_TOOL and "python" not in view.kinds and replayable(view, _MOST)


def busy_ns(report: Report, steady: SteadyPart) -> float:
    """Time in which the GPU of the iterations is busy in one of them; in collectives it waits for other ranks."""
    own = pl.col("device").eq_missing(steady.device) & (pl.col("bucket") != "communication")
    work = exclusive_operations(report.narrow(window=steady.window)).filter(own)
    return float(work.get_column("exclusive_ns").sum()) / steady.number


# The same events at the times that a replay gives them with less of the host's time.


_MOVED: Final = "moved"
_UNTIL: Final = "until"


@dataclass(frozen=True, eq=False)
class Clock:
    """Recorded times and those without the profiler, both rising; between two of them time passes evenly."""

    recorded: pl.Series
    new: pl.Series

    @cached_property
    def _since_first(self) -> tuple[Any, Any]:
        """Both in ns since their first: whole ns of a clock since 1970 do not fit the 53 bits of a float."""
        return tuple((times - times[0]).cast(pl.Float64).to_numpy() for times in (self.recorded, self.new))

    def at(self, recorded_ns: pl.Series) -> pl.Series:
        """The times (ns) without the profiler; before the first and after the last known one, as far from it."""
        import numpy as np  # noqa: PLC0415 - takes longer to import than most pages need it

        if self.recorded.is_empty():
            return recorded_ns
        times, first = recorded_ns.fill_null(0).to_numpy(), self.recorded[0]
        inside = np.clip(times, first, self.recorded[-1])
        moved = np.rint(np.interp(inside - first, *self._since_first)).astype(np.int64) + self.new[0]
        moved += times - inside
        return pl.Series(_MOVED, moved).set(recorded_ns.is_null(), None)


def unprofiled(report: Report, host: Unslowed, window: Window | None = None) -> Report:
    """The whole report at the times of a replay in which so much of the host's time is left as usual.

    Operations keep their durations, but for collectives, which wait for other ranks of the report. What a thread does
    lies between its calls as it did; a thread without calls, and a process without any, go by that with most calls.
    `host` is known of the `window`: where that is no matter of recorded events, what comes before stays.
    """
    everything = report.everywhere
    net = network(everything, *everything.recorded)
    if window is not None and (host.usual.reach_ns == inf or host.usual.far < 1):
        net = net._replace(start=window.start_ns or 0)
    left = _changes.host_times(everything, net)
    state = _changes.without_profiler(net, as_recorded(net), host.usual, left)
    times = replayed(net, state)
    starts_by_id = _starts(everything, net, times)
    moved = Moved(everything, starts_by_id, _clocks(net, times, point_values(net.line, state.values)), host)
    meta = replace(report.meta, end_ns=None if report.meta.end_ns is None else times[-1])
    return replace(everything, meta=meta).with_source(moved)


def _starts(everything: Report, net: Network, times: pl.Series) -> pl.DataFrame:
    """The operations of a replay with these times: event_id, moved and, of those that wait for ranks, until (ns)."""
    starts = columns.gathered(times, net.numbers.starts).alias(_MOVED)
    ends = columns.gathered(times, net.numbers.finishes).alias(_UNTIL)
    return pl.DataFrame([operations(everything).get_column("event_id"), starts, ends]).drop_nulls(_MOVED)


@analysis.once_per_process
def earliest_starts(report: Report) -> pl.DataFrame:
    """When operations would start without the profiler at the earliest: as :func:`_starts`, of the whole report.

    As much is taken off the host's time as a profiler costs any program that was measured. Empty where that is not
    known, or times are without it: as of :func:`estimated`.
    """
    if not _estimable(report) or report.meta.slower is not None:
        return pl.DataFrame(schema=dict.fromkeys(("event_id", _MOVED, _UNTIL), pl.Int64))
    net = network(report, *report.recorded)
    state = _changes.without_profiler(net, as_recorded(net, "low"), COSTLIEST, _changes.host_times(report, net))
    return _starts(report, net, replayed(net, state))


_Clocks = dict[threads.ThreadKey, Clock]


def _clocks(net: Network, times: pl.Series, points: pl.Series) -> _Clocks:
    """The clock of each thread with calls, by the begins and ends of its outermost calls."""
    calls, new = net.line.calls, call_times(net, times, points)
    sides = [calls.select(*threads.THREAD, recorded=side, new=new.get_column(side)) for side in new.columns]
    line = pl.concat(sides).drop_nulls(["recorded", "new"]).sort(*threads.THREAD, "recorded", "new")
    # calls that overlap on one thread, of a damaged report, stay in order
    line = line.with_columns(pl.col("new").cum_max().over(threads.THREAD))
    return {key: Clock(*part.select("recorded", "new")) for key, part in threads.by_thread(line).items()}


class Moved(Derived):
    """A source whose events and samples are at other times, with what may be left of the host's time as it is here."""

    def __init__(self, report: Report, starts: pl.DataFrame, clocks: _Clocks, host: Unslowed) -> None:
        """Takes the whole report and what is left of its host's time.

        With the operations that were replayed, as of :func:`_starts`, and the clock of each thread with calls.
        """
        super().__init__(report)
        self._starts, self._clocks, usual = starts, clocks, host.usual
        by_size = sorted(clocks.items(), key=lambda item: len(item[1].recorded), reverse=True)
        self._main = by_size[0][1] if by_size else Clock(*2 * (pl.Series(dtype=pl.Int64),))
        self._of_process = {process: clock for (process, _), clock in reversed(by_size)}
        self.host = Unslowed(*(one._replace(kept=one.kept / usual.kept, far=one.far / usual.far) for one in host))

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, sorted as they were; the profiler's own work takes no time."""
        rows = self.whole.kind(kind)
        if kind == "overhead":
            return self._spans(rows).with_columns(dur_ns=pl.when(_changes.IS_LOADING).then("dur_ns").otherwise(0))
        return self._of_device(rows) if kind in model.DEVICE_KINDS else self._spans(rows)

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables."""
        rows = self.whole.table(name)
        if name == model.EVENTS.name or rows.is_empty():
            return rows
        if "start_ns" in rows.columns:
            rows = self._spans(rows)
        instants = [
            column for column in ("time_ns", "open_until_ns", "made_ns", "captured_ns") if column in rows.columns
        ]
        capturing = rows.drop("thread_id", strict=False).rename({"captured_thread_id": "thread_id"}, strict=False)
        placed = {"captured_ns": capturing}  # the time of a capture is of the thread that made it
        moved = (self._of_host(placed.get(column, rows), column).alias(column) for column in instants)
        return rows.with_columns(moved)

    def mapped(self, name: str, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """A table, mapped by `transform`."""
        return transform(self.table(name))

    def _spans(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with start_ns and dur_ns, at both moved sides."""
        starts = self._of_host(rows, "start_ns")
        ends = self._of_host(rows.with_columns(end=pl.col("start_ns") + pl.col("dur_ns")), "end")
        return rows.with_columns(start_ns=starts, dur_ns=(ends - starts).clip(lower_bound=0))

    def _of_host(self, rows: pl.DataFrame, column: str) -> pl.Series:
        """The times in a column of rows, by their thread, else their process, else the main thread."""
        keys = [key for key in threads.THREAD if key in rows.columns]
        if not keys:
            return self._main.at(rows.get_column(column))

        def moved(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
            process, thread = (*key, None)[:2]
            clock = self._clocks.get((process, thread)) or self._of_process.get(process, self._main)
            return clock.at(part.get_column(column))

        return columns.of_parts(rows.select(*keys, column), keys, pl.Int64, moved).alias(_MOVED)

    def _of_device(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Operations; those that were not replayed start as host events do, and collectives end with the last rank."""
        joined = rows.select("event_id").join(self._starts, on="event_id", how="left", maintain_order="left")
        moved, until = joined.get_column(_MOVED), joined.get_column(_UNTIL)
        starts = moved.zip_with(moved.is_not_null(), self._of_host(rows, "start_ns"))
        return rows.with_columns(start_ns=starts, dur_ns=pl.coalesce(until - starts, "dur_ns"))


# A window without its profiler: as usual, at the least and at the most that is known of the host's time.


class Side(NamedTuple):
    """The window of a device without a profiler that costs so much: its network, its state, and when it ends."""

    network: Network
    state: Changed
    end: int


@analysis.once_per_report
def sides(report: Report) -> dict[int, list[Side]]:
    """The window of each device: with what is usually left of the host's time, with the least, and with the most.

    With the least, what nothing waited for in the recording takes no time; with the most, as long as nearly any does.
    """
    spans = {device: (start, end) for device, start, end in windows(report).iter_rows()}
    by_span = {}
    for span in {*spans.values()}:
        net = network(report.whole, *span)
        left = _changes.host_times(report.whole, net)
        states = [
            _changes.without_profiler(net, as_recorded(net, lags), host, left)
            for host, lags in zip(hosts_of(report), ("lag", "low", "high"), strict=True)
        ]
        by_span[span] = [Side(net, state, replayed(net, state)[-1]) for state in states]
    return {device: by_span[span] for device, span in spans.items()}


class Estimate(NamedTuple):
    """What an iteration takes without the profiler, as estimated for its tool (ns), on a GPU as quick as recorded.

    Another run takes between `low_ns` and `high_ns`: clocks of GPUs differ, too.
    """

    usual_ns: float
    least_ns: float
    most_ns: float

    @property
    def low_ns(self) -> float:
        """The least of another run."""
        return min(self.least_ns, self.usual_ns * (1 - DEVICES_DIFFER))

    @property
    def high_ns(self) -> float:
        """The most of another run."""
        return max(self.most_ns, self.usual_ns * (1 + DEVICES_DIFFER))


def estimated(view: Report, steady: SteadyPart) -> Estimate | None:
    """An iteration of the steady part without the profiler, by estimate; `view` is the report's steady part.

    None of unknown tools, where an iteration has too many operations and calls, and of those with Python functions:
    what it costs to record these was not measured.
    """
    part, times, _ = sample_of(view)
    if not _estimable(part):
        return None
    by_device, number = sides(part), steady.number / times
    of_device = by_device.get(steady.device or 0) or next(iter(by_device.values()))
    usual, least, longest = ((side.end - side.network.start) / number for side in of_device)
    return Estimate(usual, least * (1 - NEAR), longest * (1 + NEAR))


def estimated_sentence(estimate: Estimate, recorded_ns: float, tool: str) -> str:
    """A sentence on what an iteration takes without `tool`, beside a report of it."""
    if estimate.least_ns >= recorded_ns * (1 - SAME - NEAR):
        return f"Without {tool} it takes about as long, by estimate."
    return f"Without {tool} it takes {time(estimate.low_ns)} to {time(estimate.high_ns)}, by estimate."
