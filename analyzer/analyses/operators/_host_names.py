"""Names host time of a report by the trace of the same program beside it, between launches that are aligned."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze import errors, intervals, schema, units
from kanalyze.analyses.device._operations import SHAPE, operations
from kanalyze.analyses.host._call_kinds import graph_call
from kanalyze.analyses.host._range_lines import named_events, neighbours, program_functions
from kanalyze.analyses.operators._host_tree import host_tree
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD, ThreadKey, key_columns, of_thread
from kanalyze.columns import gathered, mixed, nearest_place, parts_by, positions, rows_at, told_of
from kanalyze.decoder.fields import normalised
from kanalyze.report import Report

#: Launches before and after a time between two launches that are its surroundings, on each side.
_AROUND: Final = 4


class ThreadPair(NamedTuple):
    """A thread of one recording and the same one of another."""

    left: ThreadKey  # in the first recording
    right: ThreadKey  # in the other
    calls: pl.DataFrame  # launch calls of the first, by start: start, end, token (of what was launched)
    others: pl.DataFrame  # those of the other
    pairs: pl.DataFrame  # rows of both that are aligned: left and right, both increasing

    @property
    def complete(self) -> bool:
        """Whether every launch of both has a partner, so that the n-th launch of one is the n-th of the other."""
        return self.pairs.height == self.calls.height == self.others.height


def align(report: Report, other: Report) -> tuple[list[ThreadPair], int] | None:
    """The threads that launch the same in two recordings, and the number of launch calls of the first.

    None unless one process of each makes launches: which process of several is which nothing would tell, since ranks
    launch the same.
    """
    from kanalyze.analyses.shared.alignment import aligned  # noqa: PLC0415 - imports numpy, for a report with a trace beside it

    # a trace has names of more than 1,024 characters as they stand in the binary
    functions = dict(pl.concat(side.table("symbols").select("symbol", "name") for side in (report, other)).iter_rows())
    sides = _launch_calls(report, functions), _launch_calls(other, functions)
    if any(side.get_column("process_id").n_unique() != 1 for side in sides):
        return None
    own, others = ({key: part.drop(THREAD) for key, part in parts_by(side, THREAD).items()} for side in sides)
    threads = []
    for left, right in _same_threads(*sides):
        both = own[left], others[right]
        at, partner = aligned(*(side.get_column("token").reinterpret(signed=True).to_numpy() for side in both))
        pairs = pl.DataFrame({"left": at, "right": partner}, schema={"left": pl.Int64, "right": pl.Int64})
        threads.append(ThreadPair(left, right, *both, pairs))
    return threads, sides[0].height


def surroundings(calls: pl.DataFrame) -> pl.Series:
    """A number for what was launched right before and after the time that follows each launch; null near both ends."""
    around = calls.select(pl.col("token").shift(shift).alias(str(shift)) for shift in range(-_AROUND, _AROUND))
    known = pl.all_horizontal(pl.all().is_not_null())
    return around.select(pl.when(known).then(mixed(around.columns)).alias("around")).to_series()


def recurring(pair: ThreadPair) -> pl.Series:
    """Launches of the first recording in a stretch that the other makes, too, in the same surroundings.

    The stretch is as long as half of the other's launches, or longer. A trace of a few steps has such a one in each
    stretch of steps; what happens once, and what other loops share with these steps, has none.
    """
    around = surroundings(pair.calls)
    same = around.is_in(surroundings(pair.others).drop_nulls().implode()).fill_null(value=False).alias("same")
    length = pl.len().over(pl.col("same").rle_id())
    least = max(pair.others.height * 0.5, 2 * _AROUND)  # a forward pass alone is no training step
    return same.to_frame().select(pl.col("same") & (length >= least)).to_series()


def _same_threads(calls: pl.DataFrame, others: pl.DataFrame) -> list[tuple[ThreadKey, ThreadKey]]:
    """Pairs of threads that launched the same, the ones with most in common first; each thread is in at most one."""
    left, right = (side.group_by(*THREAD, "token").len() for side in (calls, others))
    there = [f"{name}_other" for name in THREAD]
    both = left.join(right, on="token", suffix="_other").group_by(*THREAD, *there)
    common = both.agg(pl.min_horizontal("len", "len_other").sum().alias("common"))
    sizes = (side.group_by(THREAD).agg(size=pl.len()) for side in (calls, others))
    common = common.join(next(sizes), on=THREAD).join(next(sizes), left_on=there, right_on=THREAD, suffix="_other")
    # one thread makes so many of the other's launches
    enough = common.filter(pl.col("common") >= pl.min_horizontal("size", "size_other") * 0.5)
    order = enough.sort("common", *THREAD, *there, descending=[True, False, False, False, False])
    pairs: dict[ThreadKey, ThreadKey] = {}
    for process, thread, other_process, other_thread in order.select(*THREAD, *there).iter_rows():
        if (process, thread) not in pairs and (other_process, other_thread) not in pairs.values():
            pairs[process, thread] = (other_process, other_thread)
    return [*pairs.items()]


def _launch_calls(report: Report, functions: dict[str, str]) -> pl.DataFrame:
    """Launch calls sorted by start: process_id, thread_id, start, end and token, a number for what they launched.

    That is of kernels by name (of `functions` by symbol) and launch shape, of copies by way and size.
    Calls that launch nothing are left out, and those that the report does not give a thread.
    """
    work = operations(report, "call_row", *SHAPE, "size_bytes")
    work = work.with_columns(text=told_of(work.get_column("name"), lambda name: normalised(functions.get(name, name))))
    moved = pl.when(pl.col("kind").is_in(["memcpy", "memset"])).then(_number("kind", "detail", "size_bytes"))
    token = pl.when(pl.col("kind") == "kernel").then(_number("text", *SHAPE)).otherwise(moved)
    work = work.select(token=token.fill_null(0), call="call_row").drop_nulls("call")
    sums = work.group_by("call").agg(pl.col("token").sum()).sort("call")
    api_calls = rows_at(report.kind("api").select(*THREAD, "name", "start_ns", "dur_ns"), sums.get_column("call"))
    # launches of a CUDA graph are all alike: one tool records its nodes, the other one a whole
    tokens = sums.get_column("token").set(graph_call(report, api_calls.get_column("name")), 0)
    calls = api_calls.select(*THREAD, **intervals.OF_EVENTS, token=tokens)
    return calls.drop_nulls().sort("start", "end", *THREAD)


def _number(*columns: str) -> pl.Expr:
    return pl.struct(pl.col(name).cast(pl.String) for name in columns).hash()


#: An event names the time between two launches from this part of it on that the thread is in it.
_MOST: Final = 0.5


def events_between(report: Report, key: ThreadKey, gaps: pl.DataFrame) -> pl.DataFrame:
    """Names `gaps` (start, end; sorted and disjoint) of a trace's thread by what it did in them outside of CUDA calls.

    Columns: free_ns (outside of CUDA calls) and name: that of the innermost event that at least half of that was in, in
    the program's innermost function of which that holds; ``between A and B`` where half of it was in no event; or null.
    """
    gaps = gaps.select("start", "end").with_row_index("gap")
    calls = report.kind("api").filter(of_thread(key)).select(**intervals.OF_EVENTS)
    low, high = gaps.select(pl.col("start").min(), pl.col("end").max()).row(0)
    free = intervals.gaps(intervals.union(calls), low or 0, high or 0)
    times = gaps.with_columns(free_ns=intervals.covered(gaps, free))
    what, where = (_innermost(events(report), key, times, free) for events in (named_events, program_functions))
    both = times.join(what, on="gap", how="left").join(where, on="gap", how="left", suffix="_around").sort("gap")
    both = both.with_columns(_alone(report, key, times, free).alias("between"))
    inside = (pl.col("ns") < pl.col("ns_around")).fill_null(value=False)
    within = pl.format("{} in {}", "name", "name_around")
    name = pl.when(inside).then(within).otherwise(pl.coalesce("name_around", "name", "between"))
    # torch names the range in which a loader gets a batch by the kind of loader
    name = name.str.replace_all(r"enumerate\(DataLoader\)#\w*\.__next__", "DataLoader.__next__")
    return both.select("free_ns", name=name)


def _innermost(events: pl.DataFrame, key: ThreadKey, gaps: pl.DataFrame, free: pl.DataFrame) -> pl.DataFrame:
    """The innermost event that at least half of the free time of a gap is in: gap, name, ns (its whole duration)."""
    own = events.filter(of_thread(key)).select("start", "end", "name").with_row_index("event")
    times = gaps.select("gap", "free_ns", since="start", until="end")
    inside = own.join_where(times, pl.col("start") < pl.col("until"), pl.col("end") > pl.col("since"))
    sides = inside.select(start=pl.max_horizontal("start", "since"), end=pl.min_horizontal("end", "until"))
    time = intervals.covered(sides, free)
    enough = inside.filter((time >= inside.get_column("free_ns") * _MOST) & (time > 0))
    # events of a thread nest: of those that half of the time is in, the shortest is the innermost
    length = pl.col("end") - pl.col("start")
    last = enough.sort("gap", length, "event", descending=[False, False, True])
    last = last.unique("gap", keep="first", maintain_order=True)
    return last.select("gap", pl.col("name").cast(pl.String), ns=length)


def _alone(report: Report, key: ThreadKey, gaps: pl.DataFrame, free: pl.DataFrame) -> pl.Series:
    """For each gap of which at least half is in no event, what its longest such piece is between; null for others."""
    events = [of(report).filter(of_thread(key)).select("start", "end") for of in (named_events, program_functions)]
    pieces = intervals.cut(gaps, intervals.subtract(free, intervals.union(pl.concat(events))))
    length = pl.col("end") - pl.col("start")
    most = pieces.filter(length.sum().over("gap") >= pl.col("free_ns") * _MOST)
    longest = most.sort("gap", length, "start", descending=[False, True, False])
    longest = longest.unique("gap", keep="first", maintain_order=True).sort("start")
    names = neighbours(report, key, longest).cast(pl.String)
    # between two calls of CUDA is what either tool would name it
    calls = names.str.contains(r"^(?:between|after|before) (?:cu|hip)\w+(?: and (?:cu|hip)\w+)?$")
    names = names.set(calls.fill_null(value=False), None)
    at = longest.select("gap").with_columns(names.alias("text"))
    return gaps.select("gap").join(at, on="gap", how="left", maintain_order="left").get_column("text")


#: Least part of a report's launches that are aligned for any of its time to be named.
_ENOUGH: Final = 0.5

#: How many times as long as in the trace a time between two launches may be, or how much longer, to be the same.
_TIMES: Final = 3
_LONGER_NS: Final = 50_000

#: The bucket of what is named, and the column that says how sure that is.
_BUCKET: Final = "host"
ALIGNED: Final = schema.Column(
    "aligned_share",
    pl.Float64,
    "Where the capture's trace names it: part of the report's launches that are aligned with the trace's.",
    nullable=True,
)

#: A time between two launches, its name, and the times in the trace that name it.
_PART: Final = ("start", "end", "name", "there", "until")


class HostNames(NamedTuple):
    """Names of host time from the trace of the same program."""

    names: pl.Series  # each once
    #: The times between launches that have a name, sorted and disjoint: start, end, row (of `names`), and there and
    #: until, the time in the trace that names it.
    lines: dict[ThreadKey, pl.DataFrame]
    share: float | None = None  # part of the launches that are aligned; None without a trace, or for several processes
    threads: Sequence[ThreadPair] = ()  # those that both have, where enough is aligned
    recurring: bool = False  # whether launches count that the trace makes in the same surroundings, in one of few steps


_NOTHING: Final = HostNames(pl.Series("name", [], dtype=pl.Categorical), {})


@once_per_process
def host_names(report: Report) -> HostNames:
    """The names of the host time of a report.

    None without a trace beside it that is whole and not closed, and where too few launches are aligned.
    """
    other = report.beside()
    if other is None or operations(report).is_empty():
        return _NOTHING
    try:
        threads, calls = align(report, other) or ([], 0)
        if not calls:
            return _NOTHING
        share = sum(pair.pairs.height for pair in threads) / calls
        if recurs := share < _ENOUGH:
            stretches = {pair.left: recurring(pair) for pair in threads}
            share = max(share, sum(int(same.sum()) for same in stretches.values()) / calls)
            if share < _ENOUGH:
                return _NOTHING._replace(share=share)
            parts = {pair.left: _of_steps(other, pair, stretches[pair.left]) for pair in threads}
        else:
            parts = {pair.left: _of_thread(other, pair) for pair in threads}
    except (errors.ClosedReportError, errors.DamagedReportError):
        return _NOTHING
    # a range that the report has itself, and not here, says that the two differ here
    recorded = report.kind("range").get_column("name").unique().cast(pl.String).implode()
    parts = {key: part.filter(~pl.col("name").is_in(recorded)) for key, part in parts.items()}
    every = [part.get_column("name") for part in parts.values()]
    names = pl.concat([pl.Series("name", [], dtype=pl.String), *every]).drop_nulls().unique().sort()
    rows = pl.DataFrame([names]).with_row_index("row")
    lines = {key: part.join(rows, on="name", maintain_order="left").drop("name") for key, part in parts.items()}
    return HostNames(names.cast(pl.Categorical), lines, share, threads, recurs)


def _of_thread(other: Report, pair: ThreadPair) -> pl.DataFrame:
    """Times of a thread between two launches that follow each other in both recordings: :data:`_PART`."""
    at, partner = pair.pairs.get_column("left"), pair.pairs.get_column("right")
    next_ones = ((at.shift(-1) == at + 1) & (partner.shift(-1) == partner + 1)).fill_null(value=False)
    own = _between(pair.calls, at.filter(next_ones)).drop("before", "after")
    named = own.hstack(_in_trace(other, pair, partner.filter(next_ones)).get_columns())
    # where some launches have no partner, it may be the one of an iteration before or after
    around = ("before", "after")
    usual = pl.len().over(*around, "name") * 2 > pl.len().over(*around)
    return named.filter(_alike() & (usual | pair.complete)).select(_PART)


def _of_steps(other: Report, pair: ThreadPair, in_stretch: pl.Series) -> pl.DataFrame:
    """Times of a thread between two launches of its `recurring` stretches, named by the trace: :data:`_PART`.

    The trace's times in the same surroundings name them by the name that most of those have, and the median of these
    is the partner.
    """
    at, there = (pl.int_range(side.height - 1, dtype=pl.Int64, eager=True) for side in (pair.calls, pair.others))
    within = in_stretch.head(at.len()) & in_stretch.tail(at.len())
    own = _between(pair.calls, at).with_columns(surroundings(pair.calls).head(at.len())).filter(within)
    named = _in_trace(other, pair, there).with_columns(surroundings(pair.others).head(there.len()))
    most = named.filter((pl.len().over("around", "name") * 2 > pl.len().over("around")) & pl.col("name").is_not_null())
    most = most.sort("around", pl.col("until") - pl.col("there"), "there")
    middle = most.filter(pl.int_range(pl.len()).over("around") == pl.len().over("around") // 2)
    return own.join(middle, on="around", maintain_order="left").filter(_alike()).select(_PART)


def _in_trace(other: Report, pair: ThreadPair, at: pl.Series) -> pl.DataFrame:
    """The times :func:`_between` launches of the trace as there and until, with their names."""
    times = _between(pair.others, at)
    names = events_between(other, pair.right, times).get_column("name")
    return times.rename({"start": "there", "end": "until"}).with_columns(names)


def _alike() -> pl.Expr:
    """Whether a time that has a name is about as long as the trace's that names it, or shorter."""
    here, there = pl.col("end") - pl.col("start"), (pl.col("until") - pl.col("there")).clip(lower_bound=0)
    same = (here <= there * _TIMES) | (here <= there + _LONGER_NS)
    return (here > 0) & pl.col("name").is_not_null() & same


def _between(calls: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """The times from the calls in rows `at` to the next ones: start, end, before, after (tokens); never reversed."""
    both = calls[at].hstack(calls[at + 1].select(begin="start", after="token").get_columns())
    return both.select("after", start="end", end=pl.max_horizontal("end", "begin"), before="token")


def launches_beside(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """Place in the trace of the launch that each of `points` (process_id, thread_id, at) follows, or is in.

    Columns: process_id, thread_id and at (its start) in the trace; null where that launch has no sure partner.
    """
    return _in_the_trace([pair for pair in host_names(report).threads if pair.complete], points, nearest_place)


def operators_beside(report: Report, trace: Report, launches: pl.DataFrame) -> pl.Series:
    """The innermost operator, a row of the host tree of the trace beside, of each launch (process_id, thread_id, at).

    Null where that launch has no partner in the trace.
    """
    there, tree = _in_the_trace(host_names(report).threads, launches, positions), host_tree(trace)
    return tree.innermost(there, tree.of_kinds("op"))


def operators_beside_in_part(report: Report, trace: Report) -> pl.Series:
    """The operators, rows of the host tree of the trace beside, some launch of which has no partner in the report."""
    alone = [pl.DataFrame(schema=dict.fromkeys((*THREAD, "at"), pl.Int64))]
    for pair in host_names(report).threads:
        aligned = pl.int_range(pl.len()).is_in(pair.pairs.get_column("right").implode())
        alone.append(pair.others.filter(~aligned).select(**key_columns(pair.right), at="start"))
    tree = host_tree(trace)
    return tree.innermost(pl.concat(alone, how="vertical_relaxed"), tree.of_kinds("op")).drop_nulls()


def _in_the_trace(
    pairs: Sequence[ThreadPair], points: pl.DataFrame, launch_of: Callable[[pl.Series, pl.Series], pl.Series]
) -> pl.DataFrame:
    """The partner in the trace of the launch that each of `points` (process_id, thread_id, at) belongs to.

    `launch_of` gives its place among the starts of the thread's launches. Columns: process_id, thread_id and at (its
    start); null where there is none.
    """
    numbered = points.select(*THREAD, "at").with_row_index("point")
    partners = [numbered.clear()]
    for pair in pairs:
        own = numbered.filter(of_thread(pair.left))
        place = launch_of(pair.calls.get_column("start"), own.get_column("at"))
        partner = gathered(pair.pairs.get_column("right"), positions(pair.pairs.get_column("left"), place))
        there = own.with_columns(**key_columns(pair.right), at=gathered(pair.others.get_column("start"), partner))
        partners.append(there.select(partners[0].columns))
    matches = pl.concat(partners).drop_nulls("at")
    return numbered.select("point").join(matches, on="point", how="left", maintain_order="left").drop("point")


def placed(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """Places `spans` of the threads of the trace beside into the report, by the times between launches that they name.

    Those are disjoint on each thread. The part of each in each time between launches that has its partner in the trace
    is at the same part of that time: with the report's process and thread, and the other columns of `spans`. One of a
    trace of few steps is placed in every such step.
    """
    naming, parts = host_names(report), [spans.clear()]
    for pair in naming.threads:
        own = spans.filter(of_thread(pair.right))
        moved = own.select(pl.exclude(*THREAD, "start", "end"), since="start", to="end")
        line = naming.lines[pair.left].drop("row")
        cut = line.join_where(moved, pl.col("since") < pl.col("until"), pl.col("to") > pl.col("there"))
        scale = (pl.col("end") - pl.col("start")) / (pl.col("until") - pl.col("there"))
        first, last = pl.max_horizontal("since", "there"), pl.min_horizontal("to", "until")
        sides = {
            "start": pl.col("start") + ((first - pl.col("there")) * scale + 0.5).cast(pl.Int64),
            "end": pl.col("start") + ((last - pl.col("there")) * scale + 0.5).cast(pl.Int64),
        }
        parts.append(cut.with_columns(**sides, **key_columns(pair.left)).select(parts[0].columns))
    return pl.concat(parts).sort(*THREAD, "start", "end")


def with_shares(report: Report, rows: pl.DataFrame, bucket: str) -> pl.DataFrame:
    """Adds aligned_share to rows of idle time by culprit: how many of the launches are aligned that it is named by.

    Null for what the report's own events name. `bucket` is the name of the column of the ledger's bucket.
    """
    naming = host_names(report)
    by_trace = pl.col("culprit").cast(pl.String).is_in(naming.names.cast(pl.String).implode())
    named = (pl.col(bucket).cast(pl.String) == _BUCKET) & by_trace
    return rows.with_columns(pl.when(named).then(pl.lit(naming.share, dtype=pl.Float64)).alias(ALIGNED.name))


def told(report: Report, rows: pl.DataFrame) -> str:
    """How sure the names from the trace are, in a sentence, if `rows` of `culprits` have such, or could have."""
    naming = host_names(report)
    alone = (pl.col("bucket").cast(pl.String) == _BUCKET) & pl.col("range").is_null()
    if naming.share is not None and naming.share < _ENOUGH and rows.select(alone.any()).item():
        few = f"only {units.percent(naming.share)} of the launches are aligned with its own"
        return f"The trace names no host time: {few}."
    if naming.share is None or rows.get_column(ALIGNED.name).is_null().all():
        return ""
    how = "made as in its few steps" if naming.recurring else "aligned with its own"
    return f"The trace names host time, too: {units.percent(naming.share)} of the launches are {how}."


def told_briefly(report: Report, rows: pl.DataFrame) -> str:
    """The same in a few words, for a heading; empty where the trace names nothing."""
    if rows.get_column(ALIGNED.name).is_null().all():
        return ""
    naming = host_names(report)
    how = "as in its steps" if naming.recurring else "aligned"
    return f"host time named by the trace ({units.percent(naming.share or 0)} {how})"
