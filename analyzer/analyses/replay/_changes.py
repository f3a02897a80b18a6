"""Changes of a program, as other durations and lags of its network; among them the recording without the profiler.

What lies before the window is as it was recorded: only the part of a duration that is inside of it changes.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._kernel_families import families
from kanalyze.analyses.device._operations import launching_rows, operations
from kanalyze.analyses.idle._blocking_calls import WAITING, blocking_calls
from kanalyze.analyses.launches._graph_candidates import graph_costs, repetitions
from kanalyze.analyses.replay._network import HOST_EDGES, Changed, as_recorded, recorded_values
from kanalyze.analyses.replay._slowing import AS_RECORDED, covered, without_profiler
from kanalyze.columns.lookup import gathered, marked, sure
from kanalyze.decoder.spelling import spelled
from kanalyze.errors import UnknownNameError
from kanalyze.outlets import short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kanalyze.analyses.replay._network import Network
    from kanalyze.analyses.replay._slowing import HostTime
    from kanalyze.report import Report

#: What is not the name of a kernel in ``--faster``.
HOST: Final = "host"
COPIES: Final = "copies"
CALLS: Final = "calls"
_RANGE: Final = "host:"

#: What can be left out.
WITHOUT: Final = ("launch-gaps", "sync", "startup")

#: Later than any time: the lag of an edge that is gone.
_GONE: Final = -(1 << 60)

#: How long after the end of one node of a graph the next one begins (ns): on H100 and H200 64 to 256 in the median, of
#: reports of nsys with the nodes of graphs; kernels on a stream begin after 1,000 and more.
_IN_GRAPH_NS: Final = 256

#: Copies of fewer bytes take what any copy takes.
_SMALL_BYTES: Final = 4096

_LAUNCHES: Final = ("launch", "early launch")
_OF_DURATIONS: Final = ("cut", "transfer")


class Changes(NamedTuple):
    """Changes that are made together.

    Attributes:
        faster: Pattern of kernels (or ``host``, ``host:RANGE``, ``copies``, ``calls``) with its factor.
        without: Of :data:`WITHOUT`.
        graph: Whether repeated launches become one launch each.
        copies_bytes_per_s: Bandwidth of copies between host and device.
        host: What of the host's time is left without the profiler: changed first.
    """

    faster: tuple[tuple[str, float], ...] = ()
    without: tuple[str, ...] = ()
    graph: bool = False
    copies_bytes_per_s: float | None = None
    host: HostTime = AS_RECORDED

    def options(self, copies: str | None) -> list[str]:
        """The changes as options of the command; `copies` is the bandwidth as it was given."""
        found = [f"--faster {what}={factor:g}" for what, factor in self.faster]
        found += [f"--without {what}" for what in self.without]
        return [*found, *(["--graph"] if self.graph else []), *([] if copies is None else [f"--copies {copies}"])]


def changed(report: Report, network: Network, changes: Changes, lags: str = "lag") -> Changed:
    """The network's values, and its `lags` (lag, low or high), with all of `changes`."""
    state = without_profiler(report, network, as_recorded(network, lags), changes.host)
    for what, factor in changes.faster:
        state = _faster(report, network, state, what, factor)
    if changes.copies_bytes_per_s is not None:
        state = _with_bandwidth(report, network, state, changes.copies_bytes_per_s)
    if "startup" in changes.without:
        state = _without_startup(report, network, state)
    if "sync" in changes.without:
        state = _without_sync(report, network, state)
    if changes.graph:
        state = as_graphs(report, network, state)
    if "launch-gaps" in changes.without:
        state = _without_launch_gaps(report, network, state)
    return state


def _faster(report: Report, network: Network, state: Changed, what: str, factor: float) -> Changed:
    share = 1 - 1 / factor
    if what == HOST or what.startswith(_RANGE):
        return host_less(network, state, _host_spans(report, network, what), share)
    if what == CALLS:
        calls = network.line.calls
        inside = inside_window(network, calls.get_column("start"), calls.get_column("end"))
        own = _less(state.values.own, recorded_values(network).own, inside, share)
        saved = (state.values.own - own).filter(~calls.get_column("blocks")).sum()
        return Changed(state.values._replace(own=own), state.lags, state.amdahl_ns + int(saved))
    chosen = _copies(report) if what == COPIES else _kernels(report, what)
    return _shorter(network, state, chosen, share)


def _shorter(network: Network, state: Changed, chosen: pl.Series, share: float) -> Changed:
    """The `chosen` operations (Boolean, by row) take less: the share of their time in the window that is saved."""
    work = network.graph.operations
    inside = inside_window(network, work.get_column("start"), work.get_column("end"))
    inside = (
        pl.DataFrame([inside.alias("i"), chosen.alias("c")]).select(pl.when("c").then("i").otherwise(0)).to_series()
    )
    recorded = recorded_values(network).durations
    return with_durations(network, state, _less(state.values.durations, recorded, inside, share))


def with_durations(network: Network, state: Changed, durations: pl.Series) -> Changed:
    """Operations of other durations; transfers of collectives and what ran when the window ended go with them."""
    edges = network.edges
    saved = int((state.values.durations - durations).sum())
    lags = state.lags
    if edges.get_column("kind").is_in(_OF_DURATIONS).any():
        before = state.values.durations
        left = pl.DataFrame([durations.alias("new"), before.alias("old")])
        ratio = left.select(pl.when(pl.col("old") > 0).then(pl.col("new") / pl.col("old")).otherwise(1.0)).to_series()
        place = _place(edges, _OF_DURATIONS)
        less = gathered(before - durations, place)
        known = edges.with_columns(lag=state.lags, ratio=gathered(ratio, place), less=less)
        scaled = (pl.col("lag") * pl.col("ratio")).floor().cast(pl.Int64)
        left_over = (pl.col("lag") - pl.col("less")).clip(lower_bound=0)
        of = pl.when(pl.col("kind") == "transfer").then(scaled).when(pl.col("kind") == "cut").then(left_over)
        lags = known.select(of.otherwise("lag")).to_series()
    return Changed(state.values._replace(durations=durations), lags, state.amdahl_ns + saved)


def _place(edges: pl.DataFrame, kinds: tuple[str, ...]) -> pl.Series:
    """The place that edges of these kinds name; null for others, which name something else."""
    return edges.select(pl.when(pl.col("kind").is_in(kinds)).then("place")).to_series()


def _less(values: pl.Series, recorded: pl.Series, inside: pl.Series, share: float) -> pl.Series:
    """`values` less a share of what is left of the part that was `inside` as recorded; times of 0 or more stay so."""
    told = pl.DataFrame([values.alias("v"), recorded.alias("recorded"), inside.alias("inside")])
    left = (pl.col("inside") - (pl.col("recorded") - pl.col("v"))).clip(lower_bound=0)
    less = (left.cast(pl.Float64) * share).floor().cast(pl.Int64)
    new = (pl.col("v") - less).clip(lower_bound=0)
    return told.select(pl.when(pl.col("v") > 0).then(new).otherwise("v")).to_series()


def inside_window(network: Network, start: pl.Series, end: pl.Series) -> pl.Series:
    """How much of each ``[start, end)`` is in the window."""
    first, last = (pl.col(side).clip(network.start, network.end) for side in ("s", "e"))
    told = pl.DataFrame([start.alias("s"), end.alias("e")])
    return told.select((last - first).clip(lower_bound=0).alias("s")).to_series()


def _kernels(report: Report, pattern: str) -> pl.Series:
    """Whether each operation is a kernel (or whole graph) whose name or family `pattern` matches."""
    work = operations(report).select("kind", "name")
    kernel = work.get_column("kind").is_in(["kernel", "graph"])
    names = work.get_column("name").filter(kernel).unique().drop_nulls().cast(pl.String)
    found = matching(names, pattern)
    if not found:
        known = [HOST, COPIES, CALLS, *families(names).unique().sort(), *plain_names(names)]
        raise UnknownNameError.of("kernel", pattern, dict.fromkeys(map(short, known)))
    return kernel & work.get_column("name").cast(pl.String).is_in(found).fill_null(value=False)


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
    said = spelled(name)
    return name, said.function, said.word or name


def _copies(report: Report) -> pl.Series:
    """Whether each operation is a copy between host and device."""
    work = operations(report, "direction")
    both = work.get_column("direction").cast(pl.String).str.contains("(?i)host|HtoD|DtoH").fill_null(value=False)
    found = both & (work.get_column("kind") == "memcpy")
    if not found.any():
        raise UnknownNameError.of("copy between host and device", COPIES, [])
    return found


def _with_bandwidth(report: Report, network: Network, state: Changed, bytes_per_s: float) -> Changed:
    """Copies between host and device take what the smallest take, and their bytes at this bandwidth."""
    chosen = _copies(report)
    size = operations(report, "size_bytes").get_column("size_bytes").fill_null(0)
    table = pl.DataFrame(
        [
            chosen.alias("chosen"),
            size.alias("size"),
            state.values.durations.alias("now"),
            recorded_values(network).durations,
        ]
    )
    small = table.filter(pl.col("chosen") & (pl.col("size") <= _SMALL_BYTES)).get_column("durations").median() or 0
    fixed = pl.min_horizontal("durations", pl.lit(small))
    new = (fixed + pl.col("size") / bytes_per_s * 1e9).floor().cast(pl.Int64)
    within = inside_window(
        network, network.graph.operations.get_column("start"), network.graph.operations.get_column("end")
    )
    applies = pl.col("chosen") & (pl.col("size") > 0) & (pl.lit(within) == pl.col("durations"))
    return with_durations(network, state, table.select(pl.when(applies).then(new).otherwise("now")).to_series())


def host_less(network: Network, state: Changed, spans: dict[int | None, pl.DataFrame], share: float) -> Changed:
    """Host code between calls takes less by a share of what of it lies in `spans` (start, end) of its process."""
    calls, edges = network.line.calls, network.edges
    before = (calls.get_column("start") - calls.get_column("gap")).alias("start")
    gaps = pl.DataFrame([calls.get_column("process_id"), before, calls.get_column("start").alias("end")])
    now = pl.DataFrame([covered(gaps, spans).alias("inside"), calls.get_column("gap"), state.values.gaps.alias("now")])
    left = pl.when(pl.col("now") > 0).then(pl.col("inside") * (pl.col("now") / pl.col("gap"))).otherwise(0)
    new = now.select(gap=pl.col("now") - (left * share).floor().cast(pl.Int64)).to_series()
    at = network.nodes.get_column("at")
    until = gathered(at, edges.get_column("target")).alias("end")
    since = (until - edges.get_column("slack")).alias("start")
    process = gathered(calls.get_column("process_id"), _place(edges, HOST_EDGES)).alias("process_id")
    host = edges.select("kind", "binds", "slack", process_id=process, start=since, end=until, lag=state.lags)
    host = host.with_row_index("edge").filter(pl.col("kind").is_in(HOST_EDGES) & (pl.col("slack") > 0))
    part = covered(host.select("process_id", "start", "end"), spans)
    less = (part * (pl.col("lag") / pl.col("slack")) * share).floor().cast(pl.Int64)
    host = host.with_columns(less=pl.min_horizontal(less, "lag"))
    lags = state.lags
    if host.height:
        lags = lags.clone().scatter(host.get_column("edge"), host.get_column("lag") - host.get_column("less"))
    # where a begin is handed over, that time is the host's, not the time since the last call of its own thread
    told = host.filter(pl.col("binds") | (pl.col("kind") == "tail")).get_column("less")
    saved = _sum((state.values.gaps - new).filter(~calls.get_column("begins"))) + _sum(told)
    return Changed(state.values._replace(gaps=new), lags, state.amdahl_ns + saved)


def _sum(values: pl.Series) -> int:
    """The sum of times, in ns."""
    return int(values.sum())


def _host_spans(report: Report, network: Network, what: str) -> dict[int | None, pl.DataFrame]:
    """Spans of faster host code, by process: in the ranges or operators of a name, or everywhere in the window."""
    processes = network.line.calls.get_column("process_id").unique().to_list()
    window = pl.DataFrame({"start": [network.start], "end": [network.end]})
    if what == HOST:
        return dict.fromkeys(processes, window)
    pattern, found = what.removeprefix(_RANGE), None
    known: list[str] = []
    for kind in ("range", "op"):
        events = report.kind(kind).select(
            "name", "process_id", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns")
        )
        names = events.get_column("name").unique().drop_nulls().cast(pl.String).to_list()
        chosen = [name for name in names if fnmatchcase(name, pattern)]
        known += sorted(names)
        if chosen:
            found = events.filter(pl.col("name").is_in(chosen)).drop_nulls("end")
            break
    if found is None:
        raise UnknownNameError.of("range", pattern, known)
    spans = {}
    for process in processes:
        own = (
            found.filter(pl.col("process_id").eq_missing(process))
            .select("start", "end")
            .filter(pl.col("end") > pl.col("start"))
        )
        spans[process] = intervals.clip(intervals.union(own), network.start, network.end)
    return spans


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
    waiting, kinds = _place_of_end(network), edges.get_column("kind")
    lags = state.lags.set(sure(gathered(free, waiting)) & (kinds == "return"), _GONE)
    lags = lags.set(sure(gathered(empty, waiting)) & (kinds == "own"), 0)
    saved = _sum(state.values.own.filter(empty))
    own = state.values.own.set(empty, 0)
    return Changed(state.values._replace(own=own), lags, state.amdahl_ns + saved)


def _place_of_end(network: Network) -> pl.Series:
    """Place of the blocking call whose end each edge of kind own or return leads to; null for others."""
    edges = network.edges
    own = edges.select("target", "point").filter(edges.get_column("kind") == "own")
    places = pl.Series("waiting", [None], dtype=pl.UInt32).new_from_index(0, network.nodes.height)
    if own.height:
        waiting = (own.get_column("point") - network.graph.operations.height).cast(pl.UInt32)
        places = places.scatter(own.get_column("target"), waiting)
    return gathered(places, edges.get_column("target"))


def _without_startup(report: Report, network: Network, state: Changed) -> Changed:
    """Calls that are slow once (contexts, loading, first launches, graphs made) take what they take when warm."""
    from kanalyze.analyses.launches.cold import cold  # noqa: PLC0415 - for this change only

    costs = cold(report.whole).filter(pl.col("extra_ns") > 0).sort("start_ns")
    calls = network.line.calls.select("place", "process_id", "start", "end", own=state.values.own).sort("start")
    found = costs.select("process_id", start="start_ns", extra=pl.col("extra_ns").cast(pl.Int64)).join_asof(
        calls, on="start", by="process_id", check_sortedness=False
    )
    found = found.filter((pl.col("end") > pl.col("start")) & (pl.col("start") >= network.start))
    extra = found.group_by("place").agg(pl.col("extra").max(), pl.col("own").first())
    new = (extra.get_column("own") - extra.get_column("extra")).clip(lower_bound=0)
    own = state.values.own.clone().scatter(extra.get_column("place"), new) if extra.height else state.values.own
    return Changed(state.values._replace(own=own), state.lags, state.amdahl_ns + int((state.values.own - own).sum()))


def as_graphs(report: Report, network: Network, state: Changed) -> Changed:
    """Each repetition of a sequence of launches becomes one launch; host code in between is gone with the launches."""
    found = repetitions(report)
    if found.is_empty():
        raise UnknownNameError.of("sequence of launches that repeats", "--graph", [])
    rows = found.get_column("row")
    place = gathered(network.line.places, gathered(network.graph.operations.get_column("call"), rows))
    device = gathered(operations(report).get_column("device"), rows)
    known = found.with_columns(place.alias("place"), device.alias("device")).drop_nulls("place")
    cost = pl.col("device").replace_strict(graph_costs(report), default=None, return_dtype=pl.Float64)
    calls = gathered(recorded_values(network).own, known.get_column("place")).alias("call_ns")
    known = known.with_columns(calls, cost=cost).with_columns(usual=pl.col("call_ns").median().over("sequence"))
    line = network.line.calls.select("place", own=state.values.own, gap=state.values.gaps)
    took = line.select(reached=(pl.col("own") + pl.col("gap")).cum_sum()).to_series()
    units = known.group_by("unit").agg(
        first=pl.col("place").min(),
        last=pl.col("place").max(),
        cost=pl.coalesce("cost", "usual").first().cast(pl.Int64),
    )
    # of few short launches no graph is made that takes longer than they do
    begun = gathered(took, units.get_column("first")) - gathered(line.get_column("own"), units.get_column("first"))
    most = gathered(took, units.get_column("last")) - begun
    units = units.with_columns(cost=pl.min_horizontal("cost", most.alias("most")))
    joined = line.join_asof(units.sort("first"), left_on="place", right_on="first", check_sortedness=False)
    inner = (pl.col("place") > pl.col("first")) & (pl.col("place") <= pl.col("last"))
    new = joined.select(
        own=pl.when(inner.fill_null(value=False))
        .then(0)
        .when(pl.col("place") == pl.col("first"))
        .then("cost")
        .otherwise("own"),
        gap=pl.when(inner.fill_null(value=False)).then(0).otherwise("gap"),
    )
    saved = sum(_sum(line.get_column(name) - new.get_column(name)) for name in ("own", "gap"))
    # those that waited for room in their stream do not, either
    places = joined.filter(inner.fill_null(value=False)).get_column("place")
    lags = without_waits(network, state, places, places).lags
    lags = _one_after_another(network, lags, known.filter(pl.col("place").is_in(places.implode())).get_column("row"))
    values = state.values._replace(own=new.get_column("own"), gaps=new.get_column("gap"))
    return Changed(values, lags, state.amdahl_ns + saved)


def _one_after_another(network: Network, lags: pl.Series, rows: pl.Series) -> pl.Series:
    """The lags where the operations `rows` begin as soon as nodes of a graph do after those before them."""
    nodes = gathered(network.numbers.starts, rows).drop_nulls()
    edges = network.edges.select(pl.col("target").is_in(nodes.implode()) & (pl.col("kind") == "stream"))
    told = pl.DataFrame([lags.alias("lag"), edges.to_series().alias("held")])
    soon = pl.min_horizontal("lag", pl.lit(_IN_GRAPH_NS))
    return told.select(pl.when("held").then(soon).otherwise("lag")).to_series()


def _without_launch_gaps(report: Report, network: Network, state: Changed) -> Changed:
    """Launching takes no time: neither the calls, nor until the device begins."""
    places = gathered(network.line.places, launching_rows(report)).drop_nulls().unique()
    blocks = gathered(network.line.calls.get_column("blocks"), places)
    inside = gathered(network.line.calls.get_column("start"), places) >= network.start
    places = places.filter(~blocks & inside)
    own = state.values.own.clone().scatter(places, 0) if len(places) else state.values.own
    edges = network.edges
    at = gathered(network.nodes.get_column("at"), edges.get_column("target"))
    chosen = edges.get_column("kind").is_in(_LAUNCHES) & (at >= network.start)
    told = pl.DataFrame([state.lags.alias("lag"), chosen.alias("chosen")])
    lags = told.select(pl.when("chosen").then(pl.min_horizontal("lag", 0)).otherwise("lag")).to_series()
    saved = int((state.values.own - own).sum()) + int((state.lags - lags).sum())
    return Changed(state.values._replace(own=own), lags, state.amdahl_ns + saved)


def together(*changes: Changes) -> Changes:
    """Several changes as one."""
    found = Changes()
    for one in changes:
        found = found._replace(
            faster=found.faster + one.faster,
            without=found.without + one.without,
            graph=found.graph or one.graph,
            copies_bytes_per_s=one.copies_bytes_per_s or found.copies_bytes_per_s,
            host=found.host if one.host == AS_RECORDED else one.host,
        )
    return found
