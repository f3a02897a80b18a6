"""Idle time of the device while its host thread runs the program's own code: loaders, loops, and all other."""

import re
from functools import partial
from keyword import iskeyword
from typing import Final

import polars as pl

from kanalyze import columns, intervals, units
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_host import LARGE_BYTES, SPAN, TO_DEVICE
from kanalyze.analyses.findings.rules import HEADLINE_LONGEST, Finding, Findings, Rule, literal, phrases
from kanalyze.analyses.host import _call_kinds, _thread_timeline
from kanalyze.analyses.idle._attribution import SHORT_NS, host_by_name, host_pieces, idle_within
from kanalyze.analyses.idle.code import PLACE, place_at, placed_pieces, placed_with_text
from kanalyze.analyses.idle.culprits import culprits, own_samples
from kanalyze.analyses.iterations._marks import LIBRARIES
from kanalyze.analyses.memory.migrations import faults_seen
from kanalyze.analyses.operators._host_names import host_names, placed
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report, source_lines
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report
from kanalyze.window import located, of_iteration

#: What DataLoader calls the range (in old versions the operator) in which it gets a batch, with the kind of loader.
_NEXT: Final = r"enumerate\(DataLoader\)#\w*?(SingleProcess|MultiProcessing)\w*\.__next__"

#: So many tensors that are joined to a batch are its rows.
_PIECES: Final = 32

#: Starting workers counts from so long on, and after so many starts of a loader.
_START_NS: Final = 10_000_000
_STARTS: Final = 2

_NOTABLE: Final = 0.1  # what is named next in a sentence takes so large a part of the time at least


@Rule
def data_loading(report: Report) -> Findings:
    """At most one finding per device on loaders without workers, one on waits for workers, one on starting them."""
    every, trace = getting_batches(report), report.beside()
    # when a loader starts its workers again, by the report's own or its trace's
    starts = _starts(report) if trace is None or _recorded(report).height else placed(report, _starts(trace))
    beside = ", by the trace of the same program" if _recorded(report).is_empty() else ""
    # workers that keep up need some time to hand a batch over, too
    for name, workers, least_ns in (("data-loading", False, 250_000), ("data-loading: workers", True, 1_000_000)):
        batches = every.filter(pl.col("end") - pl.col("start") >= least_ns, workers=workers)
        words = name if workers or batches.is_empty() else f"{name}{_made(report, batches)}"
        yield from _loading(report, words, batches, beside, workers=workers)
    starts = intervals.overlapping(starts, report.scope.sides)
    yield from _loading(report, "data-loading: workers anew", starts, beside, workers=True)


def _made(report: Report, batches: pl.DataFrame) -> str:
    """How most of the batches are made, of the rules' names: on the GPU, of rows there or in any way; of rows here."""
    work = on_host.by_span(report, on_host.own_within(report, batches), "grid_y")
    # each column of blocks of such a kernel copies a tensor
    work = work.with_columns(joins=on_host.kernels_named(work, "CatArrayBatchedCopy"))
    copied, pieces = (pl.col("detail") == on_host.TO_DEVICE).any(), pl.col("grid_y").filter("joins").sum()
    each = work.group_by("span").agg(joins=~copied.fill_null(value=False) & (pieces >= _PIECES))
    made, of_rows = (2 * number >= batches.height for number in (each.height, each.get_column("joins").sum()))
    return ": rows" if of_rows else ": samples" if made else ": single rows" if _takes_rows(report) else ""


def _takes_rows(report: Report) -> bool:
    """Whether loaders take rows of tensors one by one, and compute nothing with them, by the trace's operators."""
    if (trace := on_host.traced(report)) is None:
        return False
    batches, every = _recorded(trace).filter(~pl.col("workers")), on_host.outermost(report)
    names = every.filter(on_gpu.is_inside(every.select(*THREAD, at="start"), batches.select(SPAN))).get_column("name")
    rows = int((names == "aten::select").sum())
    return rows >= max(_PIECES * batches.height, 0.9 * len(names), 1)


def _loading(report: Report, name: str, spans: pl.DataFrame, beside: str, *, workers: bool) -> Findings:
    """A finding on each device that idles in such intervals of its loader."""
    for device, pieces in (idle_within(report, spans) if spans.height else {}).items():
        took = spans.select(ns=pl.col("end") - pl.col("start"))
        figures = {"times": took.height, "median": median_of(took, "ns"), "longest": longest(took, "ns")}
        # culprits of most of the idle time in the loader's range, where they are named; with workers what these did
        own = (pl.col("device") == device) & (pl.col("bucket") == "host") & pl.col("range").str.contains(_NEXT)
        rows = culprits(report).filter(own)
        waits = pl.col("culprit").str.starts_with(_thread_timeline.WAIT)
        inner = rows.filter(~pl.col("culprit").str.contains(_NEXT) & (waits | (not workers)))
        named = pl.when(waits).then(pl.format("the {}", "culprit")).otherwise("culprit")
        inner = inner.group_by(named).agg(pl.col("ns").sum())
        notable = inner.filter(pl.col("ns") >= _NOTABLE * total(rows, "ns"))
        top = notable.sort("ns", "culprit", descending=[True, False]).head(2)
        rest_ns = pl.col("start").shift(-1).over(THREAD) - pl.col("end")
        # so many workers read at once, each as long as the loop did, while the loop does the rest of a step
        by_workers = (pl.col("end") - pl.col("start")) // 8 - rest_ns.fill_null(rest_ns.median())
        kept_ns = pl.lit(0) if workers else by_workers.cast(pl.Int64).clip(0).fill_null(0)
        change = Mending(host=spans.select("process_id", pl.col("start") + kept_ns, "end"))
        yield say.told(report, name, device, pieces, mending=change, beside=beside, most=top.rows(), **figures)


@once_per_process
def _starts(report: Report) -> pl.DataFrame:
    """The intervals in which a loader that had workers before starts them, :data:`SPAN`, where that is seen often.

    For a new iterator PyTorch draws the seed of its workers, starts them, and asks for the first batch, before which a
    sampler may draw its own.
    """
    batches = _recorded(report).filter("workers")
    if batches.height < _STARTS:
        return batches.select(*SPAN).clear()
    every, name = on_host.outermost(report), pl.col("name")
    kinds = {
        "seed": every.filter(name == "aten::random_"),
        # what draws numbers for a sampler
        "drawn": every.filter(name.str.contains(r"^aten::(?:randperm|randint|multinomial)$")),
        "next": batches,
        "launch": on_host.launched(report).select(*THREAD, start="call_start", end="call_end"),
    }
    line = pl.concat(part.select(*SPAN, kind=pl.lit(kind)) for kind, part in kinds.items()).sort(*THREAD, "start")
    kind, at = pl.col("kind"), pl.col("start")
    line = line.with_columns(turn=kind.is_in(["next", "launch"]).cum_sum().over(THREAD))
    first, last = at.filter(kind == "seed").first(), at.filter(kind == "seed").last()
    by_turn, drawn = line.group_by(*THREAD, "turn", maintain_order=True), at.filter(kind == "drawn").first()
    turns = by_turn.agg(kind.first(), begun=at.first(), start=first, last=last, drawn=drawn)
    then = pl.coalesce("drawn", pl.col("begun").shift(-1).over(THREAD))
    end = pl.when(pl.col("last") > pl.col("start")).then("last").otherwise(then)
    before = turns.with_columns(end=end).filter(kind.shift(-1).over(THREAD) == "next", pl.col("start").is_not_null())
    starts = before.filter(pl.col("end") - pl.col("start") >= _START_NS).select(SPAN)
    again = starts.filter(~place_at(report, starts.select(*THREAD, at="start")).is_first_distinct())
    return again if again.height >= _STARTS else again.clear()


def getting_batches(report: Report) -> pl.DataFrame:
    """The intervals in scope in which a thread gets a batch: SPAN, and whether the loader has `workers`.

    By ranges or operators, else by Python functions. Where the report of a capture has none, the times in lines in
    which the trace beside it gets them; without lines, those of the trace, as far as it names the report's host time.
    """
    named, trace = _recorded(report), report.beside()
    if named.height or trace is None:
        return named
    lines = source_lines(report).join(_lines_with_batches(trace), on=PLACE, nulls_equal=True)
    batches = intervals.union_by(lines.select(*THREAD, "workers", **intervals.OF_EVENTS), (*THREAD, "workers"))
    if batches.is_empty() and host_names(report).lines:
        batches = placed(report, _recorded(trace))
    return intervals.overlapping(batches, report.scope.sides)


@once_per_process
def _lines_with_batches(trace: Report) -> pl.DataFrame:
    """The lines of the program in which it mostly gets batches, by its trace: file, line, function, workers."""
    lines = source_lines(trace).with_columns(**intervals.OF_EVENTS)
    inside = [lines.head(0).with_columns(ns=pl.col("dur_ns"), workers=pl.lit(value=False))]
    by_thread = columns.parts_by(lines, THREAD)
    for key, batches in columns.parts_by(_recorded(trace), THREAD).items():
        sides = batches.select(low=pl.col("start").min(), high=pl.col("end").max()).row(0)
        line = intervals.overlapping(by_thread.get(key, lines.head(0)), sides)
        ns = intervals.covered(line, intervals.union(batches))
        inside.append(line.with_columns(ns=ns, workers=pl.lit(batches.item(0, "workers"))))
    by_line = pl.concat(inside).group_by(PLACE).agg(pl.col("dur_ns", "ns").sum(), pl.col("workers").first())
    # the least part of the time in a line that gets batches and does nothing else
    return by_line.filter(pl.col("ns") >= 0.9 * pl.col("dur_ns")).select(*PLACE, "workers")


@once_per_report
def _recorded(report: Report) -> pl.DataFrame:
    named = on_host.spans_named(_NEXT, report.seen("range"), report.seen("op"))
    workers = pl.col("name").cast(pl.String).str.extract(_NEXT) == "MultiProcessing"
    if named.is_empty():
        named = on_host.spans_named(r"torch/utils/data/dataloader\.py\(\d+\): __next__$", report.seen("python"))
        # which only a loader with workers calls
        gets = on_host.spans_named(r"torch/utils/data/dataloader\.py\(\d+\): _try_get_data$", report.kind("python"))
        workers = pl.lit(gets.height > 0)
    return named.select(*SPAN, workers=workers)


# All other time outside of CUDA calls.


@Rule
def host_computes(report: Report) -> Findings:
    """At most two findings per device, on its time outside CUDA calls: right before data is copied, and all other."""
    # what is launched into a graph that is being captured runs later: that time is not waited for
    for device, pieces in host_pieces(report).items():
        spans = intervals.subtract(pieces.select("start", "end"), intervals.union(_call_kinds.captures(report)))
        if not (ns := intervals.length(spans)):
            continue
        if say.per_iteration(report).iterations and not _short_stretches(report, spans):
            data = intervals.union(idle_before_data(report, device))
            yield _prepares(report, device, data) if 2 * intervals.length(data) >= ns else None
        yield _computes(report, device, spans)


def idle_before_data(report: Report, device: int) -> pl.DataFrame:
    """Time in which a device idled between calls while the host ran its own code right before it copied data to it."""
    to_device = pl.col("detail") == TO_DEVICE
    # smaller copies are of single numbers and the like, which take no time to prepare
    large = (pl.col("device") == device) & (pl.col("size_bytes") >= 1 << 16)
    copying = on_host.device_copies(report).filter(large & to_device).select(*THREAD, end="call_start").drop_nulls()
    before = _operations.nearest_launches(report, copying.rename({"end": "at"}), "call_end").to_series()
    spans = copying.with_columns(before.alias("start")).drop_nulls().filter(pl.col("end") > pl.col("start"))
    return idle_within(report, spans)[device].filter(bucket="host")


def _prepares(report: Report, device: int, data: pl.DataFrame) -> Finding:
    """The finding on host time right before data is copied to the device."""
    return say.told(
        report,
        "host-computes: data",
        device,
        data,
        part=say.of_window(report, device, intervals.length(data)),
        where=_where(_mostly(_phases(report, device, data))),
        retold=partial(_prepares, report, device),
    )


def _computes(report: Report, device: int, spans: pl.DataFrame) -> Finding:
    """The finding on host time in `spans` (start, end) of which no other finding tells more."""
    per, stake = say.per_iteration(report), intervals.length(spans)
    phases = _phases(report, device, spans)
    notable = phases.filter((pl.col("ns") > 0) & (pl.col("ns") >= _NOTABLE * pl.col("ns").max())).head(3)
    parts = [
        f"{literal(where)}: {per.mean_time(ns)}"
        + f" in {per.plural(gaps, 'gap')}, the longest {units.time(most)}" * (gaps > 1)
        for where, ns, gaps, most in notable.iter_rows()
    ]
    others = intervals.length(host_pieces(report)[device]) - stake
    ns = pl.col("end") - pl.col("start")
    start, longest_ns = spans.select(pl.col("start").filter(ns == ns.max()).min(), ns.max().alias("ns")).row(0)
    name, advice = _advice(report, device, _mostly(phases), spans)
    # page faults of the CPU meanwhile are not the program's code either
    used, sides = _operations.used_devices(report).filter(device=device), say.sides_of(report, device)
    faults = faults_seen(report).filter(pl.col("start").is_between(*sides, closed="left"), side="CPU")
    return say.told(
        report,
        name,
        device,
        spans,
        part=say.of_window(report, device, stake),
        most="; ".join(parts),
        longest=longest_ns,
        since=units.moment(start, report.zero_ns),
        faults=total(faults.join(used, on="process_id", how="semi"), "faults"),
        others=others if others > 0.01 * stake else 0,
        **advice,
        where=_where(_mostly(phases)),
        vague=name == "host-computes",
        general=name == "host-computes",
        retold=partial(_computes, report, device),
    )


def _where(phase_of_most: str) -> str:
    """The range or operator of at least half of the time, escaped; empty if none has, or a library's range has."""
    place = phase_of_most.removeprefix("in ")
    return literal(place) if place != phase_of_most and not LIBRARIES.match(place) else ""


def _mostly(phases: pl.DataFrame) -> str:
    """The phase with at least half of the time; empty if none has."""
    return str(phases.item(0, "where")) if phases.height and 2 * phases.item(0, "ns") >= total(phases, "ns") else ""


def _short_stretches(report: Report, spans: pl.DataFrame) -> int:
    """The number of short stretches, where most of the time is in these, and they are many; else 0."""
    lengths = spans.get_column("end") - spans.get_column("start")
    short = lengths.filter(lengths < SHORT_NS)
    # fewer stretches than these are none between launches; of iterations, than one in each
    many = len(short) >= max(2, say.per_iteration(report).iterations or 0)
    return len(short) if many and 2 * short.sum() > lengths.sum() else 0


def _advice(report: Report, device: int, top: str, spans: pl.DataFrame) -> tuple[str, dict[str, str]]:
    """The words on host time with most of it in the phase `top`: on short stretches, or on where long ones are."""
    if many := _short_stretches(report, spans):
        less = on_gpu.launch_less(report, device)
        headline = f"The GPU waits for the program in {say.per_iteration(report).plural(many, 'short stretch')}"
        action = less.ahead_action or less.action
        return "host-computes", {"headline": headline, "action": action, "remedy": less.ahead, "how": ""}
    low, high = say.sides_of(report, device)
    loading = _call_kinds.loading_seen(report).filter(pl.col("start").is_between(low, high, closed="left"))
    recurs = say.per_iteration(report).iterations or loading.select(say.all_along(pl.col("start"), low, high)).item()
    if top == say.LOADS_NEXT and recurs:
        return "host-computes: new kernels", {}
    how = "kanalyze show culprits --by function"
    if not own_samples(report):
        how = f"nsys profile {'--python-sampling=true' if say.in_pytorch(report) else '--sample=process-tree'}"
    where = f"The GPU waits for the program {literal(top)}".replace("for the program while it", "while the program", 1)
    fits = top.startswith(("in ", "while ")) or (top and len(where) <= HEADLINE_LONGEST)
    return "host-computes", {"how": how, **({"headline": where} if fits else {})}


def _phases(report: Report, device: int, spans: pl.DataFrame) -> pl.DataFrame:
    """Host time in `spans` in the user's words, the longest first: where, ns, gaps, longest_ns."""
    sums, each = host_by_name(report, device, spans), say.per_iteration(report).each
    rows = sums.drop_nulls("culprit").select("culprit", "range").unique().iter_rows()
    words = [(culprit, within, of_iteration(located(say.phase(culprit), within), each)) for culprit, within in rows]
    names = pl.DataFrame(words, dict.fromkeys(("culprit", "range", "where"), pl.String), orient="row")
    named = sums.join(names, on=["culprit", "range"], nulls_equal=True, maintain_order="left")
    phases = named.group_by("where", maintain_order=True).agg(pl.col("ns", "gaps").sum(), pl.col("longest_ns").max())
    return phases.sort("ns", descending=True, maintain_order=True)


# Lines that convert arrays of the host, which are copied next.

#: Lines that make floating-point numbers of others, or scale bytes; and arithmetic, which goes with these so many lines
#: below, and is of what is stored in fewer bytes.
_CONVERTS: Final = (
    r"\.astype\(\s*\W?(?:\w+\.)?(?:float(?:32|64)?|single|double)\b|\b(?:np|numpy)\.float(?:32|64)\(|/ *(?:255|127)\b"
    r"|\.(?:true_)?(?:divide|multiply)\([^()#]*\b(?:255|127)\b[^()#]*\bdtype *= *\W?(?:\w+\.)?"
    r"(?:float(?:32|64)?|single|double)\b"
)
_SCALES: Final = r"[-*/]= *[\w.]+|/ *(?:255|127)\b|\.(?:true_)?(?:divide|multiply)\([^()#]*\b(?:255|127)\b"
_NEAR: Final = 4


@Rule
def converted_arrays(report: Report) -> Findings:
    """At most one finding per device on lines that convert what is copied to it in most iterations."""
    per = say.per_iteration(report)
    if not per.iterations or source_lines(report).is_empty():
        return
    # large copies to a device before which lines convert arrays: row, device…, start and end (of lines), spared
    places = source_lines(report).select(*PLACE, text=pl.col("text").cast(pl.String)).unique(PLACE)
    number, converts = pl.col("line"), pl.col("text").str.contains(_CONVERTS)
    last = pl.when(converts).then(number).forward_fill().over("file", "function", order_by="line")
    chosen = places.with_columns(scales=pl.col("text").str.contains(_SCALES))
    chosen = chosen.filter((converts | (pl.col("scales") & (number - last <= _NEAR))).fill_null(value=False))
    lines = source_lines(report).join(chosen.select(*PLACE, "scales"), on=PLACE, nulls_equal=True)
    lines = intervals.overlapping(lines.select("process_id", "scales", **intervals.OF_EVENTS), report.scope.sides)
    large = (pl.col("detail") == TO_DEVICE) & (pl.col("size_bytes") >= LARGE_BYTES)
    keys = ("process_id", "device", "row", "dur_ns", "size_bytes")
    copies = on_host.device_copies(report).filter(large).select(*keys, at="call_start").drop_nulls("at")
    next_one = columns.nearest(lines, copies, ("end", "at"), ["process_id"], "after").drop_nulls("at")
    runs = next_one.group_by(*keys, "at", maintain_order=True).agg(
        pl.col("start").min(),
        pl.col("end").max(),
        ns_per_byte=(pl.col("end") - pl.col("start")).sum() / pl.col("size_bytes").first(),
        spared=pl.col("scales").any() * on_host.SPARED,
    )
    # converting takes so long for each byte that is copied: less is of other data, more is other work
    every = runs.filter(pl.col("ns_per_byte").is_between(0.05, 2))
    conversions = phrases("conversions")
    for device, runs in say.by_device(every):
        if runs.height < say.OFTEN * per.iterations:
            continue
        idle = say.idle_in(report, device, runs.select("start", end="at"))
        # what the host does from there to the copy, which puts the data aside, takes no longer
        aside = pl.min_horizontal(pl.col("at") - pl.col("end"), pl.col("size_bytes") * 0.25)
        spared = runs.select("process_id", "start", end=pl.col("end") + (aside * pl.col("spared")).cast(pl.Int64))
        yield say.told(
            report,
            "large-upload: arrays",
            device,
            (idle, _operations.exclusive_operations(report).join(runs, on="row", how="semi")),
            action=_call_kinds.spoken(report, conversions, conversions["others"]),
            idle=intervals.length(idle),
            mending=Mending(shorter=runs.select("row", saved_ns=on_gpu.part("dur_ns", pl.col("spared"))), host=spared),
            times=runs.height,
            bytes=int(runs.select(pl.col("size_bytes").median()).item()),
        )


# Lines of the program that launch nothing, and for which the device waits.

#: A call in a line of Python, and what is no code in it.
_CALL: Final = re.compile(r"([A-Za-z_][\w.]*)\(")
_READY: Final = r"\bblock_until_ready\("
_NO_CODE: Final = re.compile(r"""'[^']*'|"[^"]*"|#.*""")


@Rule
def own_code(report: Report) -> Findings:
    """At most two findings per device in a window of iterations: idle time in lines that launch nothing, or wait."""
    if not say.per_iteration(report).iterations or source_lines(report).is_empty():
        return
    calls = on_host.launched(report).select(*THREAD, at="call_start", start="call_start", end="call_end")
    launching = place_at(report, intervals.overlapping(calls, report.scope.sides)).drop_nulls().unique()
    for device, low, high in _windows.windows(report).iter_rows():
        # idle time in no call of the host, in other places
        pieces = placed_pieces(report).filter(pl.col("device") == device, pl.col("place").is_not_null())
        of_host, ns = pl.col("part") == "host", pl.col("ns")
        mostly = 2 * ns.filter(of_host).sum().over("place") > ns.sum().over("place")
        lines = pieces.filter(mostly & ~pl.col("place").is_in(launching.implode()) & of_host & pl.col("own"))
        in_no_call = intervals.union(host_pieces(report)[device].select("start", "end"))
        quiet = intervals.cut(lines.select("start", "end", "place").sort("start"), in_no_call)
        quiet = quiet.with_columns(ns=pl.col("end") - pl.col("start"))
        text = placed_with_text(report, quiet).get_column("text").cast(pl.String).fill_null("")
        ready, waits = text.str.contains(_READY), text.str.contains(on_host.ONLY_WAITS)  # whose call is recorded
        for name, part in (("unneeded-sync: ready", quiet.filter(ready)), ("own-code", quiet.filter(~ready & ~waits))):
            if total(part, "ns") >= max(0.1 * (high - low), 1):
                yield _in_lines(report, device, name, part)


def _in_lines(report: Report, device: int, name: str, quiet: pl.DataFrame) -> Finding:
    """The finding on the stretches of lines (start, end, place, ns) for which a device waits."""
    claims = intervals.union(quiet.select("start", "end"))
    sums = quiet.group_by("place").agg(pl.col("ns").sum()).sort("ns", "place", descending=[True, False])
    place, line = placed_with_text(report, sums.head(1)).select("place", pl.col("text").cast(pl.String)).row(0)
    call = next((call for call in _CALL.findall(_NO_CODE.sub("", line or "")) if not iskeyword(call)), "")
    return say.told(
        report,
        name,
        device,
        claims,
        part=say.of_window(report, device, intervals.length(claims)),
        most=place,
        call=f": {literal(call)}()" if call else "",
        mending=lambda of: Mending(host=on_host.stretches_of(of, sums.get_column("place"))),
    )
