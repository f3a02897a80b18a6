"""Waits of host threads, the thread of any process that ended each, and what that was doing meanwhile.

Definitions: docs/definitions.md, section 5, "Waits, and who ended them".
"""

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._call_kinds import calls_around
from kanalyze.analyses.host._range_lines import stack_names
from kanalyze.analyses.host._thread_timeline import WAIT, processor_lines, system_calls, told_parts
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import LINE, THREAD, ThreadKey, by_thread, key_columns, outermost
from kanalyze.columns import as_of, count_up_to, gathered, nearest_place, parts_by, rows_at, sure
from kanalyze.report import Report

#: Shorter waits do not name the time of a thread: mostly they are those for Python's lock.
_LEAST_NAMED_NS: Final = 100_000

#: How it is known who ended a wait: by a call that wakes, by who was on a processor, or by the time that was set.
EVIDENCE: Final = ("call", "processor", "timer")

#: In what calls a thread waits, the calls by which another one wakes it, and whether one of another process may. A
#: semaphore, a lock and shared memory are released without a traced call.
_WAKES: Final = (
    (
        r"^(?:p|f|__)?read|^recv|^accept|^p?poll|^p?select|^epoll_|^mq_",
        r"^(?:p|f|__)?write|^send|^splice|^mq_send|^connect|^shutdown$|^close$",
        True,
    ),
    (r"^pthread_cond_", r"^pthread_cond_(?:signal|broadcast)", False),
    (r"^pthread_barrier_wait", r"^pthread_barrier_wait", False),
    (r"^futex", r"^futex", True),
)

_SLEEP: Final = "sleep"
#: What a call waits on that may be a wait.
_WAITED_ON: Final = ("file, pipe or socket", "lock", "condition", "thread or process", _SLEEP)

#: Shorter calls are no waits where the scheduler does not tell that the thread left its processor.
_LEAST_NS: Final = 20_000
#: A wait ends so long after the call that woke it began, at most.
_REACH_NS: Final = 5_000_000
#: Calls that began up to so much earlier than the last one can have woken as well, besides as long as that one took.
_ABOUT_NS: Final = 100_000
#: Who woke a thread was on a processor so long before that, at least.
_LATENCY_NS: Final = 100_000
#: A candidate fits by so much better than any other.
_BETTER: Final = 1.5
#: A candidate fits waits by so many standard deviations more often than by chance.
_FAR: Final = 2
_LEAST_SPREAD: Final = 0.2
#: Sleeps in a row are one wait where what lies between is shorter than this part of each.
_POLLING: Final = 0.25
_FEWEST_POLLS: Final = 5

_BY_NAMES: Final = ("by_process_id", "by_thread_id")
_BY: Final = [pl.col(name).alias(by) for name, by in zip(THREAD, _BY_NAMES, strict=True)]
_OTHER: Final = (pl.col("thread_id") != pl.col("by_thread_id")) | (pl.col("process_id") != pl.col("by_process_id"))

#: Schema of a thread that may have ended a wait, and of the chance that it may if it has nothing to do with that.
_CANDIDATES: Final = {
    "wait": pl.UInt32,
    **dict.fromkeys(_BY_NAMES, pl.Int64),
    "by_call": pl.UInt32,
    "at": pl.Int64,
    "chance": pl.Float64,
}


@once_per_process
def waits(report: Report) -> pl.DataFrame:
    """Waits of all threads: process_id, thread_id, start, end, woken, since, polls, call, name and waits_on; sorted.

    `woken` is when the thread came onto a processor again; whoever woke it did so from `since` on. `call` is a row of
    :func:`system_calls`, null for a wait in no traced call.
    """
    calls = outermost(system_calls(report).with_row_index("call"))
    # when threads were off their processors, other than for another thread; nothing is recorded of the last one's end
    lines = [
        line.head(-1).filter(~pl.col("runs") & ~pl.col("waits")).select(**key_columns(key), start="start", end="end")
        for key, line in processor_lines(report).items()
    ]
    off = pl.concat([pl.DataFrame(schema=dict.fromkeys((*THREAD, "start", "end"), pl.Int64)), *lines])
    last = rows_at(off, as_of(calls.select(*THREAD, at="end"), off.select(*THREAD, at="end")))
    scheduled = off.select(THREAD).unique().with_columns(scheduled=True)
    rows = calls.with_columns(slept=last.get_column("end")).join(
        scheduled, on=THREAD, how="left", maintain_order="left"
    )
    slept = pl.when("scheduled").then(pl.col("slept") > pl.col("start"))
    long = pl.col("end") - pl.col("start") >= _LEAST_NS
    in_calls = rows.filter(slept.otherwise(long) & pl.col("waits_on").is_in(_WAITED_ON)).with_columns(
        woken=pl.when("scheduled").then("slept").otherwise("end")
    )
    around = rows_at(calls, as_of(off.select(*THREAD, at="start"), calls.select(*THREAD, at="start")))
    bare = off.filter(~sure(around.get_column("end") > off.get_column("start"))).with_columns(woken="end")
    spans = pl.concat([in_calls, bare], how="diagonal").sort(*THREAD, "start")
    return _polling(spans.select(*THREAD, "start", "end", "woken", "call", "name", "waits_on"))


def _polling(waits: pl.DataFrame) -> pl.DataFrame:
    """Joins sleeps in a row to one wait, which is over some time after the last but one began; adds `since`."""
    sleeps, length = (pl.col("waits_on") == _SLEEP).fill_null(value=False), pl.col("end") - pl.col("start")
    near = pl.col("start") - pl.col("end").shift(1) < _POLLING * pl.min_horizontal(length, length.shift(1))
    joins = (sleeps & sleeps.shift(1) & near).over(THREAD).fill_null(value=False)
    since = pl.max_horizontal("start", pl.col("woken") - _REACH_NS)
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    numbered = waits.with_columns(since=since, run=row.filter(~joins).get((~joins).cum_sum() - 1))
    polls = pl.len().over("run") >= _FEWEST_POLLS
    runs = numbered.with_columns(run=pl.when(polls).then("run").otherwise(row)).group_by("run", maintain_order=True)
    first, last = pl.col(*THREAD, "start", "call", "name", "waits_on").first(), pl.col("end", "woken").last()
    since = pl.when(pl.len() > 1).then(pl.col("start").get(-2, null_on_oob=True)).otherwise(pl.col("since").first())
    return runs.agg(first, last, since=since, polls=pl.len() > 1).drop("run")


def ended(report: Report, threads: pl.DataFrame) -> pl.DataFrame:
    """The :func:`waits` of `threads` with who ended each: by_process_id, by_thread_id, by_call, at and evidence.

    Null: not known. `by_call` is a row of :func:`system_calls`, `at` the time from which on the waiting thread was free
    to go on.
    """
    all_waits = waits(report).with_row_index("wait").join(threads, on=THREAD, how="semi", maintain_order="left")
    untimed = all_waits.filter(~((pl.col("waits_on") == _SLEEP) & ~pl.col("polls")).fill_null(value=False))
    calls = _callers(report, untimed)
    likeliest = _likeliest(untimed, calls, "call")
    rest = untimed.filter(~pl.col("wait").is_in(calls.get_column("wait").unique().implode()))
    likeliest = pl.concat([likeliest, _likeliest(untimed, _runners(report, rest), "processor")])
    rows = all_waits.join(likeliest, on="wait", how="left", maintain_order="left")
    rows = rows.with_columns(at=pl.coalesce("at", "woken"))
    timer = pl.when(~pl.col("wait").is_in(untimed.get_column("wait").implode())).then(pl.lit("timer"))
    return rows.with_columns(evidence=timer.otherwise("evidence").cast(pl.Enum(EVIDENCE)))


def _callers(report: Report, waits: pl.DataFrame) -> pl.DataFrame:
    """The calls of other threads that can have ended each of `waits`, the last of each thread: :data:`_CANDIDATES`."""
    calls, candidates = system_calls(report).with_row_index("by_call"), [pl.DataFrame(schema=_CANDIDATES)]
    name, of_wait = pl.col("name").cast(pl.String), gathered(calls.get_column("name"), waits.get_column("call"))
    whole = pl.lit(calls.select(pl.col("end").max() - pl.col("start").min()).item() or 1)
    for waited_in, names, elsewhere in _WAKES:
        wakes = calls.filter(name.str.contains(names)).sort("start")
        waiting, begun = waits.filter(of_wait.cast(pl.String).str.contains(waited_in)), wakes.get_column("start")
        first = count_up_to(begun, waiting.get_column("since"), equal=False)
        stop = count_up_to(begun, waiting.get_column("woken"), equal=True)
        near = waiting.select("wait", *THREAD, "woken", at=pl.int_ranges(first, stop, dtype=pl.UInt32))
        near = near.explode("at").drop_nulls("at")
        callers = wakes.select("by_call", *_BY, at="start", rate=pl.len().over(THREAD) / whole)
        others = near.drop("at").hstack(rows_at(callers, near.get_column("at"))).filter(_OTHER)
        others = others.filter(elsewhere | (pl.col("process_id") == pl.col("by_process_id")))
        age = pl.col("woken") - pl.col("at")
        window = 2 * age.min().over("wait") + _ABOUT_NS
        last = others.with_columns(chance=(pl.col("rate") * window).clip(upper_bound=1.0)).filter(age <= window)
        last = last.unique(["wait", *_BY_NAMES], keep="last", maintain_order=True)
        candidates.append(last.select(_CANDIDATES.keys()))
    return pl.concat(candidates)


def _runners(report: Report, waits: pl.DataFrame) -> pl.DataFrame:
    """The other threads that were on a processor shortly before each of `waits` ended: :data:`_CANDIDATES`."""
    reach = pl.when("polls").then(pl.col("woken") - pl.col("since")).otherwise(_LATENCY_NS)
    waiting, candidates = waits.with_columns(reach=reach), [pl.DataFrame(schema=_CANDIDATES)]
    woken, begun = waiting.get_column("woken"), waiting.select(pl.col("woken") - pl.col("reach")).to_series()
    polling = waiting.select(pl.col("reach").filter("polls").mean().fill_null(0.0)).item()
    for key, line in processor_lines(report).items():
        runs = line.filter("runs")
        place = nearest_place(runs.get_column("start"), woken, equal=False)
        near = waiting.filter(sure(gathered(runs.get_column("end"), place) > begun))
        by = (pl.lit(value, pl.Int64).alias(name) for name, value in zip(_BY_NAMES, key, strict=True))
        chance = pl.when("polls").then(_chance(report, runs, polling)).otherwise(_chance(report, runs, _LATENCY_NS))
        rows = near.with_columns(*by, at="woken", chance=chance, by_call=pl.lit(None, pl.UInt32))
        own = pl.col("name").is_not_null() | (pl.col("process_id") == pl.col("by_process_id"))
        candidates.append(rows.filter(_OTHER & own).select(_CANDIDATES.keys()))
    return pl.concat(candidates)


def _chance(report: Report, runs: pl.DataFrame, reach: float) -> float:
    """The chance that a thread with these `runs` was on a processor in a time of the length `reach` (ns)."""
    moments = report.table("scheduling").get_column("time_ns")
    low, high = int(moments[0]), int(moments[-1])
    # until what is recorded ends, where a thread is on its processor to the end
    recorded = intervals.clip(runs, low, high)
    gaps = (recorded.get_column("start").shift(-1) - recorded.get_column("end")).clip(upper_bound=reach)
    return (intervals.length(recorded) + float(gaps.sum())) / max(high - low, 1)


def _likeliest(waits: pl.DataFrame, candidates: pl.DataFrame, evidence: str) -> pl.DataFrame:
    """Of the `candidates` of each wait the one that fits best: wait, by_…, by_call, at, evidence.

    How well it fits is the part of the waits of a thread in one call for which it is a candidate, less the part that it
    would be if it had nothing to do with them. There is none where that is not :data:`_BETTER` times as much as of any
    other one. Who is a candidate hardly more often than by chance is none.
    """
    channel = [*THREAD, "name"]
    waiting = waits.select("wait", *THREAD, "name").with_columns(every=pl.len().over(channel))
    pairs = candidates.join(waiting, on="wait", maintain_order="left")
    many, chance = pl.col("every").first(), pl.col("chance").mean().clip(upper_bound=1.0)
    often, spread = pl.len() - many * chance, pl.max_horizontal(many * chance * (1 - chance), _LEAST_SPREAD).sqrt()
    over = [*channel, *_BY_NAMES]
    pairs = pairs.with_columns(fits=(often / many).clip(0).over(over), sure=(often >= _FAR * spread).over(over))
    first = pairs.sort("wait", "fits", descending=[False, True]).group_by("wait", maintain_order=True)
    second = pl.col("fits").get(1, null_on_oob=True).fill_null(-1.0)
    best = first.agg(
        *(pl.col(name).first() for name in (*_BY_NAMES, "by_call", "at")),
        clear=pl.col("sure").first() & (pl.col("fits").first() > _BETTER * second),
    )
    return best.filter("clear").drop("clear").with_columns(evidence=pl.lit(evidence))


@once_per_process
def causes(report: Report) -> pl.DataFrame:
    """The waits of threads that make CUDA calls as :func:`ended`, with who was waited for in the end, and hops.

    Who ended a wait, but was for at least half of the time until then in one wait that another thread ended, only
    handed on what that one did; at most eight threads do.
    """
    visited = report.kind("api").select(THREAD).unique()
    rows = all_waits = ended(report, visited).with_columns(hops=pl.lit(0, dtype=pl.Int64))
    for _ in range(8):
        makers = rows.select(process_id="by_process_id", thread_id="by_thread_id").drop_nulls().unique()
        added = makers.join(visited, on=THREAD, how="anti")
        all_waits = pl.concat([all_waits, ended(report, added).with_columns(hops=pl.lit(0, dtype=pl.Int64))])
        visited, lines = pl.concat([visited, added]), parts_by(all_waits.drop_nulls("by_thread_id"), THREAD)
        moves = [_handed_on(rows.head(0), all_waits.head(0))]
        for key, part in parts_by(rows.drop_nulls("by_thread_id"), _BY_NAMES).items():
            moves += [_handed_on(part, lines[key])] if key in lines else []
        moved = pl.concat(moves).with_columns(moves=True)
        if moved.is_empty():
            break
        both = rows.join(moved, on="wait", how="left", maintain_order="left", suffix="_next")
        names = (
            pl.when("moves").then(f"{name}_next").otherwise(name).alias(name) for name in (*_BY_NAMES, "by_call", "at")
        )
        rows = both.with_columns(*names, hops=pl.col("hops") + pl.col("moves").is_not_null()).select(rows.columns)
    return rows


def _handed_on(ended_waits: pl.DataFrame, line: pl.DataFrame) -> pl.DataFrame:
    """Of the waits that a thread ended those that it handed on, by its own waits in `line`: wait, by_…, by_call, at."""
    first = count_up_to(line.get_column("woken"), ended_waits.get_column("start"), equal=True)
    stop = count_up_to(line.get_column("start"), ended_waits.get_column("at"), equal=False)
    rows = pl.int_ranges(first, pl.max_horizontal(first, stop), dtype=pl.UInt32)
    pairs = ended_waits.select("wait", *THREAD, "start", "at", row=rows).explode("row").drop_nulls("row")
    own_waits = line.select(*_BY_NAMES, "by_call", begun="start", until="woken", next="at")
    pairs = pairs.hstack(rows_at(own_waits, pairs.get_column("row")))
    inside = pl.col("until") - pl.max_horizontal("begun", "start")
    earlier = (pl.col("until") <= pl.col("at")) & (pl.col("next") < pl.col("at"))
    half = 2 * inside >= pl.col("at") - pl.col("start")
    longest = pairs.with_columns(inside=inside).filter(_OTHER & earlier & half)
    longest = longest.sort("inside", descending=True).unique("wait", keep="first", maintain_order=True)
    return longest.select("wait", *_BY_NAMES, "by_call", at="next")


@once_per_process
def told_causes(report: Report) -> pl.DataFrame:
    """The :func:`causes` of waits in no CUDA call of threads that make some, with what was done meanwhile.

    Adds function, module, state, doing (a system call) and told_share (the part of the wait until `at` in which the
    thread waited for did that), and cause: all that in words; null where it is not known who was waited for.
    """
    whole = report.everywhere  # of other processes some launch nothing, but end waits
    calling = report.whole.kind("api").select(THREAD).unique()
    waits = causes(whole).join(calling, on=THREAD, how="semi", maintain_order="left")
    inside = calls_around(report.whole, waits.select(*THREAD, at="start", until=pl.col("start") + 1))
    waits = waits.filter(inside.is_null())
    rows = waits.join(_done(whole, waits), on="wait", how="left", maintain_order="left")
    what = pl.coalesce("function", pl.col("doing").cast(pl.String))
    rows = rows.with_columns(what=what, same=pl.col("process_id") == pl.col("by_process_id"))
    processes = pl.col("by_process_id").n_unique().over("what", "same")
    several = pl.col("what").is_not_null() & (processes > 1)
    shared = (
        pl.when(several).then(pl.format("{} processes", processes)).otherwise(pl.format("process {}", "by_process_id"))
    )
    who = pl.when("same").then(pl.format("thread {}", "by_thread_id")).otherwise(shared)
    cause = pl.when(pl.col("by_thread_id").is_not_null()).then(pl.coalesce(pl.format("{} in {}", "what", who), who))
    return rows.with_columns(cause=cause).drop("what", "same")


def _done(report: Report, waits: pl.DataFrame) -> pl.DataFrame:
    """What was done in most of each wait by the thread waited for: wait, function, module, state, doing, told_share."""
    waiting = waits.drop_nulls("by_thread_id").filter(pl.col("at") > pl.col("start")).sort("start")
    number, nothing = pl.col("wait").cast(pl.Int64), pl.lit(None, pl.String)
    spans = waiting.select(*THREAD, *_BY_NAMES, "start", end="at", device=number, waits_for=nothing)
    pairs = parts_by(spans, (*THREAD, *_BY_NAMES)).items()
    parts = told_parts(report, (((key[2], key[3]), part.drop(*THREAD, *_BY_NAMES)) for key, part in pairs))
    named = parts.join(stack_names(report), on="stack_id", how="left", maintain_order="left")
    sums = named.group_by("device", "state", "function", "module", doing="call", maintain_order=True).agg(
        pl.col("ns").sum()
    )
    in_state, whole = pl.col("ns").sum().over("device", "state"), pl.col("ns").sum().over("device")
    most = sums.with_columns(in_state=in_state, told_share=in_state / whole).sort(
        "in_state", "ns", descending=True, maintain_order=True
    )
    first = most.unique("device", keep="first", maintain_order=True)
    return first.select("function", "module", "state", "doing", "told_share", wait=pl.col("device").cast(pl.UInt32))


@once_per_process
def cause_names(report: Report) -> pl.Series:
    """What each row of :func:`told_causes` waited for, as a culprit."""
    return told_causes(report).select(pl.format(f"{WAIT}{{}}", "cause").cast(pl.Categorical)).to_series()


@once_per_process
def cause_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """When each thread waited so, where it is known for whom: start, end, row (of :func:`told_causes`)."""
    rows = told_causes(report).with_row_index("row").drop_nulls("cause")
    long = rows.filter(pl.col("end") - pl.col("start") >= _LEAST_NAMED_NS)
    return {key: part.select([*LINE]) for key, part in by_thread(long).items()}
