"""Timeline of each host thread: its CUDA calls and profiler overheads as disjoint intervals, and what it did otherwise.

That is told by the scheduler, system calls and samples. Definitions: docs/definitions.md, section 5, "Host time by
state".
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import intervals
from kanalyze.analyses.host._call_kinds import BEGINS, CALL_BUCKETS, bucket_of, context_calls, shown, unseen_syncs
from kanalyze.analyses.shared import threads as timelines
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD, ThreadKey
from kanalyze.columns import gathered, in_order, nearest, parts_by, positions, rows_at
from kanalyze.report import Report


@once_per_process
def labels(report: Report) -> pl.DataFrame:
    """Labels of the intervals of a timeline: kind, name, bucket, detail, rank (in CALL_BUCKETS), wins.

    One row per name of a call, then one per name of an overhead, null included, and last one for context creation and
    one for a blocking call that waits for work from before the recording. One that `wins` takes precedence over a
    launch call.
    """
    calls, over = (report.kind(kind).select(pl.col("name").unique(), kind=pl.lit(kind)) for kind in ("api", "overhead"))
    buckets = pl.Series("bucket", map(bucket_of, calls.get_column("name").cast(pl.String)), dtype=pl.String)
    rows = [
        calls.with_columns(buckets, detail=shown(pl.col("name"))),
        over.with_columns(bucket=pl.lit("profiler"), detail=pl.col("name").cast(pl.String)),
        pl.DataFrame({"bucket": ["loading", "unknown"], "detail": ["context", BEGINS]}),
    ]
    ranks = {bucket: rank for rank, bucket in enumerate(CALL_BUCKETS)}
    ranks["unknown"] = ranks["sync"]
    return pl.concat(rows, how="diagonal").with_columns(
        rank=pl.col("bucket").replace_strict(ranks, return_dtype=pl.UInt32),
        wins=pl.col("bucket").is_in(("profiler", "loading", "allocation")),
    )


def labels_of(report: Report, kind: str, names: pl.Series) -> pl.Series:
    """Rows of :func:`labels` of calls (api) or overheads by their names, null included."""
    own = labels(report).with_row_index("label").filter(pl.col("kind") == kind)
    named = own.get_column("name")
    places = positions(named.to_physical(), names.to_physical()).fill_null(named.is_null().arg_max() or 0)
    return gathered(own.get_column("label"), places)


def shown_calls(report: Report, names: pl.Series) -> pl.Series:
    """Display names of calls; null for null."""
    details = labels(report).get_column("detail").cast(pl.Categorical)
    return details[labels_of(report, "api", names)].set(names.is_null(), None)


class Thread(NamedTuple):
    """CUDA calls of one host thread, sorted by start: `rows` of the api events, whose `starts` are beside them.

    `reached` is the running maximum of the ends, so that the calls of an interval are found by binary search. The
    `others` take precedence: overheads, and the making of contexts in calls (start, end, label), sorted by start.
    """

    rows: pl.Series
    starts: pl.Series
    reached: pl.Series
    others: pl.DataFrame


def activity(report: Report, key: ThreadKey, sides: tuple[int, int], pieces: pl.DataFrame) -> pl.DataFrame:
    """The :func:`timeline` of a host thread between two times: start, end, label (row of :func:`labels`).

    Only calls and overheads that take precedence over launches, or overlap any of `pieces` (start, end; sorted and
    disjoint).
    """
    (low, high), thread = sides, threads(report)[key]
    first = bisect_right(thread.reached, low)
    stop = max(bisect_left(thread.rows, high, key=thread.starts.item), first)
    rows = thread.rows.slice(first, stop - first)
    calls = report.kind("api").select("name", "start_ns", "dur_ns")[rows].select("name", **intervals.OF_EVENTS)
    events = calls.select("start", "end", label=labels_of(report, "api", calls.get_column("name")))
    unseen = unseen_syncs(report)
    if len(unseen) and (these := rows.is_in(unseen.implode())).any():
        waits = pl.lit(labels(report).height - 1, dtype=pl.UInt32)
        events = events.with_columns(pl.when(these).then(waits).otherwise("label").alias("label"))
    others = thread.others.filter((pl.col("end") > low) & (pl.col("start") < high))
    if others.height:
        events = pl.concat([others.select("start", "end", "label"), events]).sort("start", maintain_order=True)
    needed = events.filter(
        timelines.touched(events, pieces) | labels(report).get_column("wins")[events.get_column("label")]
    )
    return timeline(needed, labels(report).get_column("rank"))


@once_per_process
def threads(report: Report) -> dict[ThreadKey, Thread]:
    """Host threads with CUDA calls, by process id and thread id."""
    over, making = report.kind("overhead"), context_calls(report)
    over = over.select(*THREAD, **intervals.OF_EVENTS, label=labels_of(report, "overhead", over.get_column("name")))
    of_contexts = pl.lit(labels(report).height - 2, dtype=pl.UInt32)
    making = making.select(*THREAD, start="start_ns", end=pl.min_horizontal("made_ns", "end_ns"), label=of_contexts)
    parts, starts = parts_by(pl.concat([making, over]).sort("start"), THREAD), report.kind("api").get_column("start_ns")
    by_key, row = {}, pl.int_range(pl.len(), dtype=pl.UInt32)
    for key, calls in timelines.by_thread(report.kind("api").select(*THREAD, row=row, **intervals.OF_EVENTS)).items():
        ordered = in_order(calls, "start")
        others = parts.get(key, over.clear()).select("start", "end", "label")
        by_key[key] = Thread(ordered.get_column("row"), starts, ordered.get_column("end").cum_max(), others)
    return by_key


def timeline(calls: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """Resolves overlaps of calls and overheads (start, end, label; sorted by start) by rank.

    Each instant goes to the label with the lowest of `ranks` (by label), among equals to the call that started first.
    Columns: start, end, label; sorted by start, disjoint.
    """
    line = calls.filter(pl.col("end") > pl.col("start")).select("start", "end", "label")
    alone_before = (pl.col("start") >= pl.col("end").cum_max().shift(1)).fill_null(value=True)
    alone = line.select(alone_before & alone_before.shift(-1, fill_value=True)).to_series()
    if alone.all():
        return line
    return pl.concat([line.filter(alone), _without_overlaps(line.filter(~alone), ranks)]).sort("start")


def _without_overlaps(calls: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """Resolves overlapping calls by rank, on the elementary intervals between all their starts and ends."""
    cuts = pl.concat([calls.get_column("start"), calls.get_column("end")]).unique().sort()
    start, end = cuts.slice(0, len(cuts) - 1).alias("start"), cuts.slice(1).alias("end")
    calls = calls.with_columns(rank=ranks.gather(calls.get_column("label")))
    winner = pl.Series("label", [None], dtype=pl.UInt32).new_from_index(0, len(start))
    for rank in calls.get_column("rank").unique().sort():
        of_rank = intervals.first_come(calls.filter(pl.col("rank") == rank))
        of_rank = of_rank.filter(pl.col("own_end") > pl.col("own_start"))
        label = timelines.on_line(of_rank.select(start="own_start", end="own_end", row="label"), start)
        winner = winner.zip_with(winner.is_not_null(), label)
    return pl.DataFrame([start, end, winner.alias("label")]).drop_nulls("label")


# States of each host thread over time: on a processor, in a system call, runnable, blocked.

#: States of a host thread, those that it works in first.
STATES: Final = ("running", "system call", "runnable", "blocked", "off processor", "unknown")

#: What the readers' tables are that tell of states and functions, besides CPU samples.
NEEDED: Final = ("scheduling", "python_samples", "stack_frames", "call_stacks")

#: What a system call waits for, by its name; the first that fits.
WAITS_ON: Final = {
    "sleep": r"sleep$",
    "lock": r"^pthread_(?:mutex|rwlock|spin)_\w*lock$|^flock$|^lockf",
    "condition": r"^pthread_cond_|^sem_\w*wait|^pthread_barrier_wait|^futex",
    "thread or process": r"^pthread_\w*join|^wait(?:pid|id|[34])?$|^fork$|^vfork$",
    "file, pipe or socket": r"^(?:p|f|__)?(?:read|write)|^(?:recv|send|accept|connect)|^p?poll|^p?select|^epoll_|^mq_"
    r"|^f?(?:get|put|open|close|stat|sync)|^fflush|^lstat|^fdatasync",
    "driver": r"^ioctl",
    "memory": r"^m(?:map|unmap|protect|advise|remap|lock)",
}

#: What is none of these.
OTHER: Final = "other call"

#: Those whose calls do nothing but wait.
_ONLY_WAIT: Final = ("sleep", "lock", "condition", "thread or process")

_ON_PROCESSOR: Final = {**dict.fromkeys(("start", "end"), pl.Int64), **dict.fromkeys(("runs", "waits"), pl.Boolean)}


@once_per_process
def system_calls(report: Report) -> pl.DataFrame:
    """The traced calls of the operating system's library.

    Columns: event_id, name, process_id, thread_id, start, end, and waits_on (of :data:`WAITS_ON`, or :data:`OTHER`).
    """
    calls = report.kind("osrt").select("event_id", "name", *THREAD, **intervals.OF_EVENTS)
    name = pl.col("name").cast(pl.String)
    fits = (pl.when(name.str.contains(names)).then(pl.lit(what)) for what, names in WAITS_ON.items())
    by_name = calls.select(pl.col("name").unique()).with_columns(waits_on=pl.coalesce(*fits, pl.lit(OTHER)))
    return calls.join(by_name, on="name", how="left", nulls_equal=True, maintain_order="left")


@once_per_process
def call_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """Timeline of the innermost system call of each thread: start, end, row (of :func:`system_calls`)."""
    return timelines.innermost_lines(system_calls(report).with_row_index("row").select(*THREAD, "start", "end", "row"))


@once_per_process
def processor_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """When each thread was on a processor, and what it was otherwise: start, end, runs and waits; sorted, disjoint.

    `waits` is set where it was off the processor that it had left, while other threads of the report were on that for
    at least half of the time. Before the first moment that the scheduler recorded of a thread there is no row.
    """
    until = pl.col("time_ns").shift(-1, fill_value=intervals.AFTER_ALL)
    lines = {
        key: moments.select("runs", "cpu", start="time_ns", end=until).filter(pl.col("end") > pl.col("start"))
        for key, moments in parts_by(report.table("scheduling"), THREAD).items()
    }
    if not lines:
        return {}
    runs = pl.concat([line.filter("runs") for line in lines.values()])
    on_each = {key[0]: intervals.union(part) for key, part in parts_by(runs, ["cpu"]).items()}
    return {key: _with_waits(line, on_each) for key, line in lines.items()}


def _with_waits(line: pl.DataFrame, on_each: dict[object, pl.DataFrame]) -> pl.DataFrame:
    """Adds `waits` to the line of a thread: whether others had its processor for at least half of the time."""
    taken_ns = pl.zeros(line.height, dtype=pl.Int64, eager=True)
    for cpu, busy in on_each.items():
        here = (line.get_column("cpu") == cpu) & ~line.get_column("runs")
        taken_ns = intervals.covered(line, busy).zip_with(here, taken_ns)
    length = line.get_column("end") - line.get_column("start")
    return line.select("start", "end", "runs", waits=~pl.col("runs") & (2 * taken_ns >= length))


def states_of(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """Splits `pieces` of a thread (start, end; sorted, disjoint) by what it was doing.

    Adds state (of :data:`STATES`) and call (row of :func:`system_calls`, null outside of them).
    """
    cut = timelines.overlaid(pieces, timelines.line_of(call_lines(report), key).rename({"row": "call"}), "call")
    line = processor_lines(report).get(key, pl.DataFrame(schema=_ON_PROCESSOR))
    cut = timelines.overlaid(cut, line.with_row_index("moment"), "moment")
    cut = cut.hstack(rows_at(line.select("runs", "waits"), cut.get_column("moment")))
    inside, runs = pl.col("call").is_not_null(), pl.col("runs")
    waiting = gathered(system_calls(report).get_column("waits_on"), cut.get_column("call")).is_in(_ONLY_WAIT)
    called = pl.when(pl.coalesce(runs, ~pl.lit(waiting))).then(pl.lit("system call")).otherwise(pl.lit("blocked"))
    state = pl.when(inside).then(called).when(runs).then(pl.lit("running"))
    state = state.when(runs.is_null()).then(pl.lit("unknown")).when("waits").then(pl.lit("runnable"))
    states = state.otherwise(pl.lit("off processor")).cast(pl.Enum(STATES))
    return cut.select(*pieces.columns, "call", state=states)


#: By what a function was found.
EVIDENCE: Final = ("python samples", "call stack", "cpu samples", "trace", "none")

#: Schema of a part of host time: its stack by evidence, or null; samples that tell of it.
PARTS: Final[dict[str, DataType | DataTypeClass]] = {
    "device": pl.Int64,
    "state": pl.Enum(STATES),
    **dict.fromkeys(("waits_on", "waits_for"), pl.String),
    "call": pl.Categorical,
    "evidence": pl.Enum(EVIDENCE),
    **dict.fromkeys(("stack_id", "ns", "samples"), pl.Int64),
}

_CAST: Final = [pl.col(name).cast(kind) for name, kind in PARTS.items()]

#: What tells parts apart besides their stack.
KEYS: Final = ("device", "state", "waits_on", "waits_for", "call")
_LINES: Final = {**dict.fromkeys((*THREAD, "first", "last", "height"), pl.Int64), "usual": pl.Float64}
_HITS: Final = {"asked": pl.Int64, **{key: PARTS[key] for key in (*KEYS, "stack_id", "samples")}, **_LINES}
#: Samples of a thread from which on the time between them is known; a single one tells of all of its time.
_FEWEST: Final = 2


#: A Python sample tells of at most so many periods before and after it.
_REACH: Final = 2

_LATEST: Final = 1 << 61


#: What a culprit begins with that is a wait for another thread.
WAIT: Final = "wait for "


def records_waits(report: Report) -> bool:
    """Whether system calls or the scheduler were recorded, which tell of waits."""
    return "osrt" in report.kinds or not report.table("scheduling").is_empty()


def told_parts(report: Report, asked_of: Iterable[tuple[ThreadKey, pl.DataFrame]]) -> pl.DataFrame:
    """What threads did in spans (start, end, device, a number, and waits_for, a text): :data:`PARTS`.

    The spans of each item are sorted and disjoint; the rows of a number sum to them.
    """
    parts, remaining, calls = [pl.DataFrame(schema=PARTS)], [], system_calls(report)
    calls = calls.select("event_id", "waits_on", call="name")
    stacks = report.table("python_samples").filter(pl.col("periodic") & pl.col("stack_id").is_not_null())
    python = parts_by(stacks.select(*THREAD, "stack_id", time="time_ns").sort("time"), THREAD)
    for key, pieces in asked_of:
        spans = states_of(report, key, pieces)
        rows = rows_at(calls, spans.get_column("call"))
        spans = spans.with_columns(rows.get_columns(), ns=pl.col("end") - pl.col("start"))
        if key in python:
            parts.append(_by_nearest(spans, python[key]))
            continue
        inside, off = pl.col("event_id").is_not_null(), pl.col("state").is_in(["runnable", "off processor"])
        # time in system calls, by the stack that nsys took of each; calls without a stack have none
        stacks = spans.filter(inside).join(
            report.table("call_stacks"), on="event_id", how="left", maintain_order="left"
        )
        sums = stacks.group_by(*KEYS, "stack_id", maintain_order=True).agg(pl.col("ns").sum())
        word = pl.when(pl.col("stack_id").is_not_null()).then(pl.lit("call stack")).otherwise(pl.lit("none"))
        parts += [
            sums.with_columns(samples=pl.lit(0), evidence=word).select(_CAST),
            _untold(spans.filter(~inside & off)),
        ]
        remaining.append((key, spans.filter(~inside & ~off)))  # of which CPU samples may tell
    if remaining:
        hits, lines = _hits(report, remaining)
        for place, (key, spans) in enumerate(remaining):
            line = lines.filter(timelines.of_thread(key))
            if line.is_empty():
                parts.append(_untold(spans))
            else:
                counts = hits.filter(pl.col("asked") == place).drop("asked")
                parts.append(_by_counts(spans, counts, _each(report, key, line.row(0, named=True))))
    return pl.concat(parts).filter(pl.col("ns") > 0)


def _hits(report: Report, spans_of: Sequence[tuple[ThreadKey, pl.DataFrame]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """CPU samples in the spans of threads, and how each thread was sampled.

    Columns: asked (place in `spans_of`), :data:`KEYS`, stack_id and samples; and process_id, thread_id, first, last,
    height and usual, the usual time between two samples.
    """

    def counted(part: pl.DataFrame) -> pl.DataFrame:
        """Counts a part of the samples: rows of hits, and a row for each thread."""
        threads = {key: own.sort("time_ns") for key, own in parts_by(part, THREAD).items()}
        parts = [pl.DataFrame(schema=_HITS)]
        for key in dict.fromkeys(key for key, _ in spans_of):
            if key in threads:
                time = threads[key].get_column("time_ns")
                line = (*key, time[0], time[-1], len(time), time.diff().median())
                parts.append(pl.DataFrame([line], schema=_LINES, orient="row"))
        for number, (key, spans) in enumerate(spans_of):
            if key in threads and spans.height:
                samples = threads[key].select("stack_id", time="time_ns")
                inside = nearest(samples, spans.select(*KEYS, "start", "end"), ("time", "start"))
                inside = inside.filter(pl.col("time") < pl.col("end"))
                counts = inside.group_by(*KEYS, "stack_id", maintain_order=True).agg(samples=pl.len().cast(pl.Int64))
                parts.append(counts.with_columns(asked=pl.lit(number, dtype=pl.Int64)))
        return pl.concat(parts, how="diagonal")

    rows = report.mapped("cpu_samples", counted)
    lines = rows.filter(pl.col("asked").is_null()).group_by(THREAD)
    sampled = lines.agg(
        pl.col("first").min(), pl.col("last").max(), pl.col("height").sum(), pl.col("usual").drop_nulls().first()
    )
    hits = rows.drop_nulls("asked").group_by("asked", *KEYS, "stack_id", maintain_order=True)
    return hits.agg(pl.col("samples").sum()), sampled


def _untold(spans: pl.DataFrame) -> pl.DataFrame:
    """Time of which no sample tells."""
    sums = spans.group_by(*KEYS, maintain_order=True).agg(pl.col("ns").sum())
    none = {"evidence": pl.lit("none"), "stack_id": pl.lit(None), "samples": pl.lit(0)}
    return sums.with_columns(**none).select(_CAST)


def _by_counts(spans: pl.DataFrame, counts: pl.DataFrame, each_ns: float) -> pl.DataFrame:
    """Time by `counts` of the samples that lie in it: each stands for `each_ns`, of more than there is an equal part.

    What is left over is told by no sample.
    """
    sums = spans.group_by(*KEYS, maintain_order=True).agg(pl.col("ns").sum())
    sampled = counts.join(sums, on=KEYS, nulls_equal=True, maintain_order="left").rename({"ns": "whole"})
    counted_ns = pl.col("samples").sum().over(KEYS) * each_ns
    part = pl.min_horizontal(pl.lit(1.0), pl.col("whole") / counted_ns)
    sampled = sampled.with_columns(ns=(pl.col("samples") * each_ns * part).floor().cast(pl.Int64))
    # where samples stand for all of the time, the nanoseconds that rounding leaves go to the first stack
    rest = pl.col("whole") - pl.col("ns").sum().over(KEYS)
    first = (pl.int_range(pl.len()).over(KEYS) == 0) & (counted_ns >= pl.col("whole"))
    sampled = sampled.with_columns(ns=pl.col("ns") + pl.when(first).then(rest).otherwise(0))
    covered = sampled.group_by(KEYS).agg(told=pl.col("ns").sum())
    left = sums.join(covered, on=KEYS, how="left", nulls_equal=True, maintain_order="left")
    left = left.with_columns(ns=pl.col("ns") - pl.col("told").fill_null(0), samples=pl.lit(0), stack_id=pl.lit(None))
    left = left.filter(pl.col("ns") > 0)
    by_evidence = {"cpu samples": sampled, "none": left}
    return pl.concat(part.with_columns(evidence=pl.lit(word)).select(_CAST) for word, part in by_evidence.items())


def _by_nearest(spans: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Time by the nearest of the samples that lie in it, at most :data:`_REACH` periods away.

    Python's samples are taken when the thread gives up its interpreter lock, mostly in a short wait for that. So the
    state is the scheduler's, and only the stack is the sample's, of the time around it.
    """
    hits = nearest(samples, spans.select("start", "end"), ("time", "start")).filter(pl.col("time") < pl.col("end"))
    period_ns = samples.select((pl.col("time") - pl.col("time").shift(1)).median()).item()
    reach = _LATEST if period_ns is None else int(min(_REACH * period_ns, _LATEST))
    before = (pl.col("time") - pl.col("time").shift(1)).fill_null(2 * reach)
    after = (pl.col("time").shift(-1) - pl.col("time")).fill_null(2 * reach)
    cells = hits.select(
        "stack_id",
        start=pl.col("time") - pl.min_horizontal(before // 2, reach),
        end=pl.col("time") + pl.min_horizontal(after - after // 2, reach),
    )
    cells = cells.filter(pl.col("end") > pl.col("start"))
    cells = cells.with_columns(start=pl.max_horizontal("start", pl.col("end").shift(1).fill_null(intervals.BEFORE_ALL)))
    cut = timelines.overlaid(
        spans.select(*KEYS, "start", "end"), cells.filter(pl.col("end") > pl.col("start")), "stack_id"
    )
    sums = cut.group_by(*KEYS, "stack_id", maintain_order=True).agg(ns=(pl.col("end") - pl.col("start")).sum())
    counts = hits.group_by("stack_id").agg(every=pl.len())
    # a sample counts for the row of its stack that has most time
    largest = (pl.col("ns") == pl.col("ns").max().over("stack_id")) & pl.col("stack_id").is_not_null()
    rows = sums.join(counts, on="stack_id", how="left", maintain_order="left").with_columns(
        samples=pl.when(largest).then("every").otherwise(0),
        evidence=pl.when(pl.col("stack_id").is_null()).then(pl.lit("none")).otherwise(pl.lit("python samples")),
    )
    return rows.select(_CAST)


def _each(report: Report, key: ThreadKey, sampled: Mapping[str, Any]) -> float:
    """Time on a processor that one sample of a thread stands for; without the scheduler the usual distance."""
    line = processor_lines(report).get(key)
    if line is None or sampled["height"] < _FEWEST:
        return float(_LATEST) if sampled["usual"] is None else float(sampled["usual"])
    on = intervals.clip(line.filter("runs"), sampled["first"], sampled["last"])
    return intervals.length(on) / (int(sampled["height"]) - 1)
