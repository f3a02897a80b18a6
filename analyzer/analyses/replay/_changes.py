"""Changes of a program, as other durations and lags of its network: by patterns of names, or by a finding's remedy.

Among them the recording without the profiler. What lies before the window is as it was recorded: only the part of a
duration that is inside of it changes. Definitions: docs/definitions.md, section 12.
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

import polars as pl

from kanalyze import intervals, machinery, outlets
from kanalyze.analyses.device._operations import WITH_HOST, families, launching_rows, operations
from kanalyze.analyses.host._call_kinds import LOADING_WORDS, names_that
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls
from kanalyze.analyses.launches.graphs import graph_costs, repetitive
from kanalyze.analyses.operators._host_tree import ARROW
from kanalyze.analyses.replay._host_time import AS_RECORDED, HostTime
from kanalyze.analyses.replay._network import HOST_EDGES, Changed, Network, as_recorded, recorded_values
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.columns import count_up_to, gathered, marked, of_parts, scattered, sure
from kanalyze.decoder.fields import spelled
from kanalyze.errors import UnknownNameError
from kanalyze.report import Report

with machinery.late():  # of changes to ranges
    from kanalyze.analyses.ranges import captured

#: Rows of no operation, and of no call; no times that are saved, and none of a host.
_NO_ROWS: Final = pl.Series("row", [], dtype=pl.UInt32)
_NO_TIMES: Final = pl.DataFrame(schema={"row": pl.UInt32, "saved_ns": pl.Int64})
_NO_SPANS: Final = pl.DataFrame(schema=dict.fromkeys(("process_id", "start", "end"), pl.Int64))


class Mending(NamedTuple):
    """Changes that a remedy makes."""

    #: Operations that take less: row (of the operations), saved_ns; below 0 those that take longer.
    shorter: pl.DataFrame = _NO_TIMES
    #: Rows of operations that nothing launches any more: their calls go with them, and the host's work for each.
    gone: pl.Series = _NO_ROWS
    calls: pl.Series = _NO_ROWS  # rows (of the api events) of calls that are not made any more
    unwaited: pl.Series = _NO_ROWS  # rows of calls that launch, and no longer wait for what they launched
    host: pl.DataFrame = _NO_SPANS  # host time that is spared: process_id, start, end
    graph: bool = False  # whether each repeated sequence of launches becomes one

    @property
    def host_alone(self) -> bool:
        """Whether the device does the same work, each piece for as long."""
        return self.shorter.is_empty() and self.gone.is_empty()

    def keeping(self, rows: pl.Series) -> "Mending":
        """The same, but that some operations stay (rows)."""
        return self._replace(gone=self.gone.filter(~self.gone.is_in(rows.implode())))

    def with_all_of(self, other: "Mending") -> "Mending":
        """What both change: an operation that both shorten takes less by the more of the two, one that is gone nothing.

        What both spare of the host is spared once.
        """
        gone = pl.concat([self.gone, other.gone]).unique()
        parts = (rows.group_by("row").agg(pl.col("saved_ns").sum()) for rows in (self.shorter, other.shorter))
        shorter = pl.concat(parts, how="vertical_relaxed").group_by("row").agg(pl.col("saved_ns").max())
        return Mending(
            shorter=shorter.filter(~pl.col("row").is_in(gone.implode())),
            gone=gone,
            calls=pl.concat([self.calls, other.calls]).unique(),
            unwaited=pl.concat([self.unwaited, other.unwaited]).unique(),
            host=pl.concat((one.host.select(_NO_SPANS.columns) for one in (self, other)), how="vertical_relaxed"),
            graph=self.graph or other.graph,
        )


#: The union of spans (start, end) by process.
Spans: TypeAlias = "dict[int | None, pl.DataFrame]"

#: Edges of the host that end a blocking call.
_OF_WAITS: Final = ("own", "return")

#: Rows of overheads that are CUDA's own loading, and no work of the profiler.
IS_LOADING: Final = pl.col("name").cast(pl.String).str.contains(LOADING_WORDS).fill_null(value=False)

#: Calls that load or unload code, which a profiler goes through: the more of it, the longer.
_LOADS_CODE: Final = re.compile(r"cu(?:da)?(?:Module|Library)(?:Load|Unload)")

#: A GPU that is free begins a launch within some microseconds, large graphs aside; one that takes longer was held up.
_HELD_NS: Final = 200_000


class HostTimes(NamedTuple):
    """What of the host's time of a network is near events, whatever is left of it."""

    #: Of each call: start, since (the end of the one before), loads (code), events and profiled (ns) between the two.
    calls: pl.DataFrame
    #: The host's edges since the window's start (edge, start and others of :func:`_host_edges`), with events.
    edges: pl.DataFrame


def host_times(report: Report, network: Network) -> HostTimes:
    """Times of calls, of code between them, and of what a blocking call takes beside its wait, with their events."""
    loading = report.whole.kind("api").get_column("name").is_in(names_that(report, _LOADS_CODE.match))
    calls = network.line.calls
    between = calls.select("process_id", start=pl.col("start") - pl.col("gap"), end="start")
    own_work = _unions(report.kind("overhead").filter(~IS_LOADING).select("process_id", **intervals.OF_EVENTS))
    with_events = between.select(
        start="end",
        since="start",
        loads=gathered(loading, calls.get_column("row")),
        events=_events(report, between),
        profiled=intervals.covered_by(between, "process_id", own_work),
    )
    edges = _host_edges(network, (*HOST_EDGES, *_OF_WAITS)).filter(pl.col("start") >= network.start)
    events = pl.when(pl.col("kind").is_in(_OF_WAITS)).then(1.0).otherwise(_events(report, edges))
    return HostTimes(with_events, edges.with_columns(events=events))


def without_profiler(network: Network, state: Changed, host: HostTime, times: HostTimes) -> Changed:
    """What is left of the host's time, from the window's start on.

    Of a call, and of a wait for what it returns late, the event is the call, near to which all of a call that loads
    code is; of the code before a call there are also the begins and ends of ranges and operators in it, half an event
    each. What the profiler itself reports as its own work between calls is gone.
    """
    if host == AS_RECORDED:
        return state
    calls = times.calls.with_columns(own=state.values.own, gap=state.values.gaps)
    inside, whole = pl.col("start") >= network.start, pl.col("since") >= network.start
    code = (pl.col("gap") - pl.col("profiled")).clip(lower_bound=0)
    in_call = pl.when("loads").then(inf).otherwise(1.0)
    new = calls.select(
        own=pl.when(inside).then(_shorter(pl.col("own"), in_call, host)).otherwise("own"),
        gap=pl.when(whole & (pl.col("gap") > 0)).then(_shorter(code, pl.col("events"), host)).otherwise("gap"),
    )
    values = state.values._replace(own=new.get_column("own"), gaps=new.get_column("gap"))
    return state._replace(values=values, lags=_lags(network, state, host, times.edges))


def _lags(network: Network, state: Changed, left: HostTime, host: pl.DataFrame) -> pl.Series:
    """The lags of edges that are host code, or what a blocking call takes beside what it waits for."""
    host = host.with_columns(lag=gathered(state.lags, host.get_column("edge"))).filter(pl.col("lag") > 0)
    new = host.select(_shorter(pl.col("lag"), pl.col("events"), left))
    lags = _with(state.lags, host.get_column("edge"), new.to_series())
    # a GPU that has nothing to do, and takes longer than usual to begin what was launched, is in another program's time
    # slice, or does the profiler's own work: what follows a launch in order are other edges
    since = gathered(network.nodes.get_column("at"), network.edges.get_column("target")) >= network.start
    launches = network.edges.select((pl.col("kind") == "launch") & since).to_series()
    usual = lags.filter(launches).median()
    held = launches & (lags >= _HELD_NS)
    return lags.set(sure(held), int(usual)) if isinstance(usual, float) else lags


def _host_edges(network: Network, kinds: tuple[str, ...]) -> pl.DataFrame:
    """Edges of some kinds that are the host's: edge, kind, binds, slack, process_id, start and end (ns)."""
    edges = network.edges
    until = gathered(network.nodes.get_column("at"), edges.get_column("target"))
    rows = edges.select(*("kind", "binds", "slack", "place", "target"), end=until, start=until - pl.col("slack"))
    rows = rows.with_row_index("edge").filter(pl.col("kind").is_in(kinds))
    # what ends a blocking call is of the call that it ends
    calls = pl.DataFrame([network.numbers.ends.alias("target"), network.line.calls.get_column("place").alias("of")])
    rows = rows.join(calls.drop_nulls(), on="target", how="left", maintain_order="left")
    place = rows.select(pl.when(pl.col("kind").is_in(_OF_WAITS)).then("of").otherwise("place")).to_series()
    return rows.with_columns(gathered(network.line.calls.get_column("process_id"), place)).drop("target", "of")


def _with(values: pl.Series, places: pl.Series, new: pl.Series | int) -> pl.Series:
    """`values` with others at some places."""
    return values.clone().scatter(places, new) if len(places) else values


def _shorter(host_ns: pl.Expr, events: float | pl.Expr, left: HostTime) -> pl.Expr:
    """What is left of host time with so many events in it; times below 0, of what overlaps, stay."""
    whole = host_ns.cast(pl.Float64)
    near = pl.min_horizontal(whole, events * pl.lit(left.reach_ns)).clip(lower_bound=0.0)
    beyond = (whole - near).clip(lower_bound=0.0)
    return (host_ns - near * (1 - left.kept) - beyond * (1 - left.far)).cast(pl.Int64)


def _events(report: Report, rows: pl.DataFrame) -> pl.Series:
    """Events by row (process_id, start, end): a call, and half of one for each begin and end of a range or operator."""
    none = pl.Series(dtype=pl.Int64)

    def events(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
        line = _sides(report).get(key[0], none)
        first, last = (count_up_to(line, part.get_column(side), equal=False) for side in ("start", "end"))
        return 1 + (last.cast(pl.Float64) - first.cast(pl.Float64)).clip(lower_bound=0) / 2

    return of_parts(rows.select("process_id", "start", "end"), ["process_id"], pl.Float64, events)


@once_per_report
def _sides(report: Report) -> dict[int | None, pl.Series]:
    """Begins and ends of ranges and operators by process, sorted."""
    end = pl.col("start_ns") + pl.col("dur_ns")
    parts = [report.kind(kind).select("process_id", start="start_ns", end=end) for kind in ("range", "op")]
    sides = pl.concat([part.select("process_id", at=side) for part in parts for side in ("start", "end")])
    by_process = sides.drop_nulls("at").partition_by("process_id", as_dict=True)
    return {process: part.get_column("at").sort() for (process,), part in by_process.items()}


def _unions(spans: pl.DataFrame) -> Spans:
    """The union of `spans` (process_id, start, end) by process."""
    parts = spans.filter(pl.col("end") > pl.col("start")).partition_by("process_id", as_dict=True)
    return {process: intervals.union(part.select("start", "end")) for (process,), part in parts.items()}


#: What is not the name of a kernel in ``--faster``.
HOST: Final = "host"
COPIES: Final = "copies"
CALLS: Final = "calls"
_RANGE: Final = "host:"
_IN_RANGE: Final = "range:"

#: What can be left out.
WITHOUT: Final = ("launch-gaps", "sync", "startup")

#: How long after the end of one node of a graph the next one begins (ns): on H100 and H200 64 to 256 in the median, of
#: reports of nsys with the nodes of graphs; kernels on a stream begin after 1,000 and more.
_IN_GRAPH_NS: Final = 256

#: Copies of fewer bytes take what any copy takes.
_SMALL_BYTES: Final = 4096

_OF_DURATIONS: Final = ("cut", "transfer")


class Changes(NamedTuple):
    """Changes that are made together."""

    #: Pattern of kernels (or ``range:RANGE``, ``host``, ``host:RANGE``, ``copies``, ``calls``) with its factor.
    faster: tuple[tuple[str, float], ...] = ()
    without: tuple[str, ...] = ()  # of :data:`WITHOUT`
    graph: bool = False  # whether repeated launches become one launch each
    copies_bytes_per_s: float | None = None  # bandwidth of copies between host and device
    slower: pl.DataFrame | None = None  # operations that take so many times as long: row, factor
    host: HostTime = AS_RECORDED  # what of the host's time is left without the profiler: changed first

    def options(self, copies: str | None) -> list[str]:
        """The changes as options of the command; `copies` is the bandwidth as it was given."""
        return [
            *(f"--faster {what}={factor:g}" for what, factor in self.faster),
            *(f"--without {what}" for what in self.without),
            *(["--graph"] if self.graph else []),
            *([] if copies is None else [f"--copies {copies}"]),
        ]


def changed(report: Report, network: Network, changes: Changes, lags: str = "lag") -> Changed:
    """The network's values, and its `lags` (lag, low or high), with all of `changes`."""
    state = as_recorded(network, lags)
    if changes.host != AS_RECORDED:
        state = without_profiler(network, state, changes.host, host_times(report, network))
    if changes.slower is not None:
        rows, now = changes.slower.get_column("row").cast(pl.UInt32), state.values.durations
        longer = (gathered(now, rows) * changes.slower.get_column("factor")).ceil().cast(pl.Int64)
        state = with_durations(network, state, now.clone().scatter(rows, longer))
    for what, factor in changes.faster:
        state = _faster(report, network, state, what, factor)
    if changes.copies_bytes_per_s is not None:
        state = _with_bandwidth(report, network, state, changes.copies_bytes_per_s)
    names = {*changes.without, *(["graph"] if changes.graph else [])}
    for name, change in _MADE.items():
        state = change(report, network, state) if name in names else state
    return state


def _faster(report: Report, network: Network, state: Changed, what: str, factor: float) -> Changed:
    share = 1 - 1 / factor
    if what == HOST or what.startswith(_RANGE):
        return host_less(network, state, _host_spans(report, network, what), share)
    recorded = recorded_values(network.line, network.graph)
    if what == CALLS:
        calls = network.line.calls
        own = _less(state.values.own, recorded.own, inside_window(network, calls), share)
        return state.less(int((state.values.own - own).filter(~calls.get_column("blocks")).sum()), own=own)
    if what.startswith(_IN_RANGE):
        chosen = _in_ranges(report, what.removeprefix(_IN_RANGE))
    else:
        chosen = _copies(report) if what == COPIES else _kernels(report, what)
    inside = inside_window(network, network.graph.operations).zip_with(chosen, pl.zeros(len(chosen), eager=True))
    return with_durations(network, state, _less(state.values.durations, recorded.durations, inside, share))


def with_durations(network: Network, state: Changed, durations: pl.Series) -> Changed:
    """Operations of other durations; transfers of collectives and what ran when the window ended go with them."""
    before, edges = state.values.durations, network.edges
    lags = state.lags
    if edges.get_column("kind").is_in(_OF_DURATIONS).any():
        place = edges.select(pl.when(pl.col("kind").is_in(_OF_DURATIONS)).then("place")).to_series()
        ratio = (durations / before).zip_with(before > 0, pl.ones(len(before), dtype=pl.Float64, eager=True))
        scaled = (lags * gathered(ratio, place)).floor().cast(pl.Int64)
        left_over = (lags - gathered(before - durations, place)).clip(lower_bound=0)
        kind = edges.get_column("kind")
        lags = left_over.zip_with(kind == "cut", scaled.zip_with(kind == "transfer", lags))
    return state.less(int((before - durations).sum()), lags, durations=durations)


def _less(values: pl.Series, recorded: pl.Series, inside: pl.Series, share: float) -> pl.Series:
    """`values` less a share of what is left of the part that was `inside` as recorded; times of 0 or more stay so."""
    left = (inside - (recorded - values)).clip(lower_bound=0)
    new = values - (left.cast(pl.Float64) * share).floor().cast(pl.Int64)
    return new.clip(lower_bound=0).zip_with(values > 0, values)


def inside_window(network: Network, spans: pl.DataFrame) -> pl.Series:
    """How much of each of `spans` (start, end) is in the window."""
    start, end = (spans.get_column(side).clip(network.start, network.end) for side in ("start", "end"))
    return (end - start).clip(lower_bound=0)


def capped(lags: pl.Series, where: pl.Series, most: int) -> pl.Series:
    """The lags, some of them no longer than `most`."""
    return lags.clip(upper_bound=most).zip_with(where, lags)


def _kernels(report: Report, pattern: str) -> pl.Series:
    """Whether each operation is a kernel (or whole graph) whose name or family `pattern` matches."""
    work = operations(report).select("kind", "name")
    kernel = work.get_column("kind").is_in(["kernel", "graph"])
    names = work.get_column("name").filter(kernel).unique().drop_nulls().cast(pl.String)
    matches = matching(names, pattern)
    if not matches:
        choices = [HOST, COPIES, CALLS, *families(names).unique().sort(), *plain_names(names)]
        raise UnknownNameError.of("kernel", pattern, dict.fromkeys(map(outlets.short, choices)))
    return kernel & work.get_column("name").cast(pl.String).is_in(matches).fill_null(value=False)


def _in_ranges(report: Report, pattern: str) -> pl.Series:
    """Whether each operation was launched, or captured into a CUDA graph, in a range that `pattern` matches."""
    rows = operations(report).get_column("row")
    paths = captured.launch_paths(report, rows).to_frame()
    paths = paths.with_columns(captured.captured_as(report, rows, "path"))
    parts_of = {text: text.split(ARROW) for path in paths for text in path.unique().drop_nulls()}
    matches = [text for text, parts in parts_of.items() if any(fnmatchcase(part, pattern) for part in parts)]
    if not matches:
        raise UnknownNameError.of("range", pattern, sorted({part for parts in parts_of.values() for part in parts}))
    return paths.select(pl.any_horizontal(pl.all().is_in(matches).fill_null(value=False))).to_series()


def matching(names: pl.Series, pattern: str) -> list[str]:
    """The names of kernels that `pattern` matches: whole, without arguments, without namespace, or by family."""
    return [
        name
        for name, family in zip(names, families(names), strict=True)
        if any(fnmatchcase(form, pattern) for form in (family, *_forms(name)))
    ]


def plain_names(names: Iterable[str]) -> list[str]:
    """Names without arguments and namespace, sorted."""
    return sorted({_forms(name)[-1] for name in names})


def _forms(name: str) -> tuple[str, str, str]:
    spelling = spelled(name)
    return name, spelling.function, spelling.word or name


def _copies(report: Report) -> pl.Series:
    """Whether each operation is a copy between host and device."""
    work = operations(report, "direction")
    both = work.get_column("direction").cast(pl.String).str.contains(WITH_HOST).fill_null(value=False)
    copies = both & (work.get_column("kind") == "memcpy")
    if not copies.any():
        raise UnknownNameError.of("copy between host and device", COPIES, [])
    return copies


def _with_bandwidth(report: Report, network: Network, state: Changed, bytes_per_s: float) -> Changed:
    """Copies between host and device take what the smallest take, and their bytes at this bandwidth."""
    chosen, size = _copies(report), operations(report, "size_bytes").get_column("size_bytes").fill_null(0)
    recorded = recorded_values(network.line, network.graph).durations
    small = recorded.filter(chosen & (size <= _SMALL_BYTES)).median()
    fixed = recorded.cast(pl.Float64).clip(upper_bound=small if isinstance(small, float) else 0.0)
    new = (fixed + size / bytes_per_s * 1e9).floor().cast(pl.Int64)
    applies = chosen & (size > 0) & (inside_window(network, network.graph.operations) == recorded)
    return with_durations(network, state, new.zip_with(applies, state.values.durations))


def host_less(network: Network, state: Changed, spans: Spans, share: float) -> Changed:
    """Host code between calls, and in a wait after what it is for, takes less by a share of what lies in `spans`."""
    calls = network.line.calls
    gaps = calls.select("process_id", start=pl.col("start") - pl.col("gap"), end="start")
    now = calls.select("gap", now=state.values.gaps, inside=intervals.covered_by(gaps, "process_id", spans))
    left = pl.when(pl.col("now") > 0).then(pl.col("inside") * (pl.col("now") / pl.col("gap"))).otherwise(0)
    less = now.select((left * share).floor().cast(pl.Int64)).to_series()
    host = _host_edges(network, (*HOST_EDGES, "return"))
    host = host.with_columns(lag=gathered(state.lags, host.get_column("edge"))).filter(pl.col("slack") > 0)
    inside = intervals.covered_by(host, "process_id", spans)
    part = (inside * (pl.col("lag") / pl.col("slack")) * share).floor().cast(pl.Int64)
    host = host.with_columns(less=pl.min_horizontal(part, "lag"))
    lags = _with(state.lags, host.get_column("edge"), host.get_column("lag") - host.get_column("less"))
    # where a begin is handed over, that time is the host's, not the time since the last call of its own thread
    of_edges = host.filter(pl.col("binds") | (pl.col("kind") == "tail")).get_column("less")
    saved = int(less.filter(~calls.get_column("begins")).sum()) + int(of_edges.sum())
    return state.less(saved, lags, gaps=state.values.gaps - less)


def _host_spans(report: Report, network: Network, what: str) -> Spans:
    """Spans of faster host code: in the ranges or operators of a name, or everywhere in the window."""
    if what == HOST:
        window = pl.DataFrame({"start": [network.start], "end": [network.end]})
        return dict.fromkeys(network.line.calls.get_column("process_id").unique().to_list(), window)
    pattern, choices = what.removeprefix(_RANGE), list[str]()
    for kind in ("range", "op"):
        events = report.kind(kind).select("name", "process_id", **intervals.OF_EVENTS)
        names = sorted(events.get_column("name").unique().drop_nulls().cast(pl.String))
        choices += names
        if chosen := [name for name in names if fnmatchcase(name, pattern)]:
            return by_process(network, events.filter(pl.col("name").is_in(chosen)))
    raise UnknownNameError.of("range", pattern, choices)


def by_process(network: Network, spans: pl.DataFrame) -> Spans:
    """The union of `spans` (process_id, start, end) in the window, by process."""
    return {key: intervals.clip(union, network.start, network.end) for key, union in _unions(spans).items()}


def _without_sync(report: Report, network: Network, state: Changed) -> Changed:
    """No call waits for the device: those that do nothing else are gone, copies return once they are launched."""
    line = network.line
    blocking = blocking_calls(report).select("call_row", "scope")
    pure = blocking.filter(pl.col("scope").is_in(WAITING)).get_column("call_row")
    waiting = line.calls.filter(pl.col("kind") == "wait").get_column("place")
    return without_waits(network, state, gathered(line.places, pure), waiting)


def without_waits(network: Network, state: Changed, gone: pl.Series, unwaited: pl.Series) -> Changed:
    """Calls (places) in the window that no longer wait: those of `gone` take no time, others no longer than to return.

    Calls of `gone` that did not wait take no time either.
    """
    line, edges = network.line, network.edges
    inside = line.calls.get_column("start") >= network.start
    empty, free = (marked(len(inside), places.drop_nulls()) & inside for places in (gone, unwaited))
    free = (empty | free) & line.calls.get_column("blocks")
    # the place of the blocking call whose end each edge of kind own or return leads to
    ends = edges.select("target", "point", "kind").with_row_index("edge").filter(pl.col("kind").is_in(_OF_WAITS))
    own = ends.filter(pl.col("kind") == "own")
    of_call = (own.get_column("point") - network.graph.operations.height).cast(pl.UInt32)
    ended = scattered(network.nodes.height, own.get_column("target"), of_call)
    waiting, lags = gathered(ended, ends.get_column("target")), state.lags
    for kind, calls, lag in (("return", free, -(1 << 60)), ("own", empty, 0)):  # the first bind at no time
        chosen = sure(gathered(calls, waiting)) & (ends.get_column("kind") == kind)
        lags = _with(lags, ends.get_column("edge").filter(chosen), lag)
    return state.less(int(state.values.own.filter(empty).sum()), lags, own=state.values.own.set(empty, 0))


def _without_startup(report: Report, network: Network, state: Changed) -> Changed:
    """Calls that are slow once (contexts, loading, first launches, graphs made) take what they take when warm."""
    from kanalyze.analyses.launches.cold import cold  # noqa: PLC0415 - for this change only

    costs = cold(report.whole).filter(pl.col("extra_ns") > 0).sort("start_ns")
    calls = network.line.calls.select("place", "process_id", "start", "end", own=state.values.own).sort("start")
    rows = costs.select("process_id", start="start_ns", extra=pl.col("extra_ns").cast(pl.Int64))
    rows = rows.join_asof(calls, on="start", by="process_id", check_sortedness=False)
    rows = rows.filter((pl.col("end") > pl.col("start")) & (pl.col("start") >= network.start))
    extra = rows.group_by("place").agg(pl.col("extra").max(), pl.col("own").first())
    new = (extra.get_column("own") - extra.get_column("extra")).clip(lower_bound=0)
    own = _with(state.values.own, extra.get_column("place"), new)
    return state.less(int((state.values.own - own).sum()), own=own)


def as_graphs(report: Report, network: Network, state: Changed) -> Changed:
    """Each repetition of a sequence of launches becomes one launch; host code in between is gone with the launches."""
    repetitions = repetitive(report).repetitions
    if repetitions.is_empty():
        raise UnknownNameError.of("sequence of launches that repeats", "--graph", [])
    rows = repetitions.get_column("row")
    place = gathered(network.line.places, gathered(network.graph.operations.get_column("call"), rows))
    device = gathered(operations(report).get_column("device"), rows)
    placed = repetitions.with_columns(place.alias("place"), device.alias("device")).drop_nulls("place")
    placed = placed.join(graph_costs(report), on="device", how="left", maintain_order="left")
    calls = gathered(recorded_values(network.line, network.graph).own, placed.get_column("place")).alias("call_ns")
    placed = placed.with_columns(usual=calls).with_columns(pl.col("usual").median().over("sequence"))
    line = network.line.calls.select("place", own=state.values.own, gap=state.values.gaps)
    took = line.select(reached=(pl.col("own") + pl.col("gap")).cum_sum()).to_series()
    units = placed.group_by("unit").agg(
        first=pl.col("place").min(),
        last=pl.col("place").max(),
        cost=pl.coalesce("cost", "usual").first().cast(pl.Int64),
    )
    # of few short launches no graph is made that takes longer than they do
    begun = gathered(took, units.get_column("first")) - gathered(line.get_column("own"), units.get_column("first"))
    most = gathered(took, units.get_column("last")) - begun
    units = units.with_columns(cost=pl.min_horizontal("cost", most.alias("most")))
    joined = line.join_asof(units.sort("first"), left_on="place", right_on="first", check_sortedness=False)
    inner = ((pl.col("place") > pl.col("first")) & (pl.col("place") <= pl.col("last"))).fill_null(value=False)
    own = pl.when(inner).then(0).when(pl.col("place") == pl.col("first")).then("cost").otherwise("own")
    new = joined.select(own=own, gap=pl.when(inner).then(0).otherwise("gap"))
    saved = sum(int((line.get_column(name) - new.get_column(name)).sum()) for name in ("own", "gap"))
    # those that waited for room in their stream do not, either
    places = joined.filter(inner).get_column("place")
    lags = without_waits(network, state, places, places).lags
    # and nodes of a graph begin as soon after those before them
    rows = placed.filter(pl.col("place").is_in(places.implode())).get_column("row")
    nodes = gathered(network.numbers.starts, rows).drop_nulls()
    following = network.edges.select(pl.col("target").is_in(nodes.implode()) & (pl.col("kind") == "stream"))
    lags = capped(lags, following.to_series(), _IN_GRAPH_NS)
    return state.less(saved, lags, own=new.get_column("own"), gaps=new.get_column("gap"))


def _without_launch_gaps(report: Report, network: Network, state: Changed) -> Changed:
    """Launching takes no time: neither the calls, nor until the device begins."""
    calls, edges = network.line.calls, network.edges
    launches = marked(calls.height, gathered(network.line.places, launching_rows(report)).drop_nulls())
    free = calls.select(~pl.col("blocks") & (pl.col("start") >= network.start)).to_series()
    own = state.values.own.set(launches & free, 0)
    at = gathered(network.nodes.get_column("at"), edges.get_column("target"))
    launches_one = edges.get_column("kind").is_in(["launch", "early launch"])
    lags = capped(state.lags, launches_one & (at >= network.start), 0)
    return state.less(int((state.values.own - own).sum()) + int((state.lags - lags).sum()), lags, own=own)


#: Changes by name, in the order in which they are made.
_MADE: Final[dict[str, Callable[[Report, Network, Changed], Changed]]] = {
    "startup": _without_startup,
    "sync": _without_sync,
    "graph": as_graphs,
    "launch-gaps": _without_launch_gaps,
}
