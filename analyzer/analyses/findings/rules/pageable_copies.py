"""Copies between host and device that hold up the work: of pageable memory, and of data that the host asks for."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, exclusive_operations, launch_calls, nearest_launches
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal, words_of
from kanalyze.analyses.findings.rules import _operators as on_host
from kanalyze.analyses.findings.rules import _telling as say
from kanalyze.analyses.findings.rules._operators import LARGE_BYTES, PAGEABLE, PINNED, SPAN, TO_DEVICE, TO_HOST
from kanalyze.analyses.host._call_kinds import CUPY, world
from kanalyze.analyses.idle.syncs import blocking_calls, scope_of
from kanalyze.analyses.iterations.iterations import iterations_at, judged_iterations
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import placed_operations, spans_by_stream, streamed_operations
from kanalyze.columns import as_of, gathered, nearest
from kanalyze.report import Report
from kanalyze.units import count, plural, rate, size, time
from kanalyze.window import WORDS

#: CUDA takes up to so much pageable memory with the call, and returns (CUDA C++ Programming Guide, "Concurrent
#: execution between host and device").
_STAGED_BYTES: Final = 1 << 16

#: Where no marks tell iterations, synchronous calls may recur if a process makes so many of one size and direction, or
#: of one direction.
_ALIKE: Final = 5
_MANY: Final = 32

_RECURS: Final = 2  # copies in at least so many instances of a range recur
_ODD: Final = 3  # copies of one instance that take more than this factor times the median are not all recurring
_WAY: Final = ("process_id", "device", "detail")  # copies of one way

#: Whether the host waits for what a synchronous call copies to it.
_NEEDED: Final = pl.col("synchronous") & (pl.col("detail") == TO_HOST)


@once_per_report
def copies_by_calls(report: Report) -> pl.DataFrame:
    """The program's :func:`device_copies` by calls and device: with the host's `memory`, and if `synchronous`."""
    work = on_host.device_copies(report)
    names = work.get_column("call_name").unique().drop_nulls()
    blocks = pl.Series("synchronous", [scope_of(name) == "copy" for name in names.cast(pl.String)], dtype=pl.Boolean)
    copying = pl.DataFrame([names, blocks]).filter(blocks | names.cast(pl.String).str.contains("Async", literal=True))
    host = pl.when(pl.col("source_memory").is_in([PAGEABLE, PINNED])).then("source_memory").otherwise("target_memory")
    made = work.join(copying, on="call_name", maintain_order="left").with_columns(memory=host)
    made = made.drop("source_memory", "target_memory").drop_nulls("size_bytes")
    return on_host.without_set_up(report, made).sort("device")


@once_per_report
def _pageable(report: Report) -> pl.DataFrame:
    """The pageable ones of :func:`copies_by_calls`, with the host time that pinned memory saves: spared, until.

    That is the call. But if the thread waits for the stream or device after a copy to the host, before it launches
    more, it would wait there anyway for earlier work: what the host does up to the end of that wait could overlap it.
    """
    large = ~pl.col("synchronous") | (pl.col("size_bytes") > _STAGED_BYTES)
    chosen = pl.col("detail").is_in([TO_DEVICE, TO_HOST]) & (pl.col("memory") == PAGEABLE) & large
    copies = copies_by_calls(report).filter(chosen)
    if not (copies.get_column("detail") == TO_HOST).any():
        return copies.with_columns(spared="call_start", until="call_end")
    ends = streamed_operations(report).select("row", "start", "end", "number").sort("number", "start", "row")
    ends = ends.select("row", before=pl.col("end").cum_max().shift(1).over("number"))
    line = copies.join(ends, on="row", how="left", maintain_order="left").with_row_index("place")
    work = device_operations(report)
    last = as_of(copies.select(*_WAY[:2], at="start"), work.select(*_WAY[:2], at="end"))
    line = line.with_columns(before=pl.when(_NEEDED).then(gathered(work.get_column("end"), last)).otherwise("before"))
    waits = blocking_calls(report).filter(pl.col("scope").is_in(["stream", "device"]))
    waits = waits.select(*THREAD, wait="start", waited="end", behind="stream").drop_nulls([*THREAD, "wait"])
    launches = launch_calls(report, "thread_id", "call_start").drop_nulls().rename({"call_start": "launch"})
    for times, name in ((waits, "wait"), (launches, "launch")):
        line = nearest(line, times, ("call_end", name), THREAD, "after")
    first = (pl.col("wait") <= pl.col("launch").fill_null(pl.col("wait"))).fill_null(value=False)
    anyway = (pl.col("detail") == TO_HOST) & first & (pl.col("behind") == pl.col("stream")).fill_null(value=True)
    begun = pl.max_horizontal("call_start", pl.min_horizontal("before", "call_end"))
    spared = pl.when((anyway | _NEEDED) & pl.col("before").is_not_null()).then(begun).otherwise("call_start")
    until = pl.when(anyway).then("waited").otherwise("call_end")
    return line.sort("place").select(*copies.columns, spared=spared, until=until)


def pageable_copies(report: Report) -> pl.DataFrame:
    """The pageable copies in scope, with the columns of :func:`_pageable` and :func:`_by_iteration` (when, each, …)."""
    return _pageable(report).join(_by_iteration(report.whole), on="row", how="left", maintain_order="left")


def _took() -> pl.Expr:
    """The length of the union of a copy and the host interval that pinned memory would save, in ns."""
    both = pl.min_horizontal("until", "end") - pl.max_horizontal("spared", "start")
    return (pl.col("until") - pl.col("spared") + pl.col("end") - pl.col("start")) - both.clip(lower_bound=0)


@once_per_process
def _by_iteration(report: Report) -> pl.DataFrame:
    """Classifies the pageable copies of a whole report: columns row, when, and those of `iterations_at`.

    `when` says whether a copy ``recurs`` with the iterations, occurs ``once``, its process has none (``unknown``), or
    it is one of ``few`` synchronous ones without such: who copies his input to the GPU and its results back gains
    nothing by pinning memory. A copy occurs once if its call was in no iteration, or the only one of
    its name with such a copy. Where the copies and calls of an iteration take more than :data:`_ODD` times the median
    of those of its name, the longest copies that exceed it occur once.
    """
    copies, way = _pageable(report), [*_WAY, "synchronous"]
    alike, every = (pl.col("call_start").n_unique().over(*way, *more) for more in (("size_bytes",), ()))
    few = pl.col("synchronous") & (alike < _ALIKE) & (every < _MANY)
    inside = iterations_at(report, copies.select("process_id", at="call_start"))
    line = copies.with_columns(inside.get_columns(), few=few, took=_took()).sort("took", "row")
    whole = line.drop_nulls("iteration").group_by("each", "iteration").agg(whole=pl.col("took").sum())
    usual = whole.group_by("each").agg(usual=pl.col("whole").median(), with_copies=pl.len())
    line = line.join(usual, on="each", how="left", maintain_order="left")
    recurs = (pl.col("with_copies") >= _RECURS) & (pl.col("took").cum_sum().over("iteration") <= _ODD * pl.col("usual"))
    repeating = judged_iterations(report).get_column("process_id").unique()
    when = (
        pl.when(~pl.col("process_id").is_in(repeating.implode(), nulls_equal=True))
        .then(pl.when("few").then(pl.lit("few")).otherwise(pl.lit("unknown")))
        .when(recurs.fill_null(value=False))
        .then(pl.lit("recurs"))
        .otherwise(pl.lit("once"))
    )
    told = _without_repeated(report, line.with_columns(when=when))
    return told.select("row", "iteration", "each", "many", "when")


def _without_repeated(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with as once only what the report shows to be.

    Outside of iterations copies of one size recur if :data:`_ALIKE` of them have kernels between them; without any
    iterations none tells it of two of them.
    """
    runs = device_operations(report).filter(pl.col("kind") != "memcpy").select("process_id", "device", at="start")
    line = copies.filter(pl.col("when").is_in(["once", "few"]) & pl.col("iteration").is_null())
    line = line.with_columns(gathered(runs.get_column("at"), as_of(line.select(*_WAY[:2], at="start"), runs)))
    bursts = pl.col("at").n_unique().over(*_WAY, "size_bytes")
    when = pl.when(bursts >= _ALIKE).then(pl.lit("often")).when((pl.col("when") == "few") & (bursts >= _RECURS))
    return copies.update(line.select("row", when=when.then(pl.lit("unknown")).otherwise("when")), on="row")


_LONGEST: Final = 60  # maximum length of a range's name in the sentence

#: How to copy from pinned memory, by whether in PyTorch, and whether to the host.
_PINNED_COPY: Final = {
    (True, False): "DataLoader(…, pin_memory=True), batch.cuda(non_blocking=True)",
    (True, True): "torch.empty(…, pin_memory=True).copy_(result, non_blocking=True)",
    (False, False): "cudaHostAlloc once, then cudaMemcpyAsync from there",
    (False, True): "cudaHostAlloc once, then cudaMemcpyAsync to there",
}

#: What copies of pinned memory reach at least, by compute capability (bytes per second): over 16 lanes of PCIe's fifth
#: generation 49 to 55 GB/s, measured on H200; over those of the fourth half of that.
_PINNED_RATES: Final = {"8.0": 20e9, "8.9": 20e9, "9.0": 45e9, "10.0": 45e9}


@Rule
def pageable_copy(report: Report) -> Findings:
    """Findings per device: one on recurring copies, and one on those that happen once."""
    if _pageable(report).height:
        parts = pageable_copies(report).partition_by("device", "when", as_dict=True, maintain_order=True)
        yield from (_pageable_finding(report, part, str(when)) for (_, when), part in parts.items())


def _pageable_finding(report: Report, copies: pl.DataFrame, when: str) -> Finding | None:
    per, device = say.per_iteration(report), int(copies.item(0, "device"))
    rows, spans = copies.get_column("row"), copies.select(start="spared", end="until")
    if not (stake := _gained_at_most(report, device, rows, spans)):
        return None
    moved, back = (total(part, "size_bytes") for part in (copies, copies.filter(pl.col("detail") == TO_HOST)))
    pinned = _comparable(report, copies)
    against = f", pinned ones {rate(on_host.bandwidth(pinned))}" if pinned.height else ""
    what = "copy" if copies.get_column("synchronous").any() else "asynchronous copy"
    text = (
        f"{per.plural(copies.height, what, 'of pageable memory')}, {size(moved)} at {rate(on_host.bandwidth(copies))}"
        f"{against}: {_how_often(report, copies, when, stake)}."
    )
    claims = pl.concat([copies.select("start", "end"), say.idle_in(report, device, spans)])
    if when in {"once", "few"}:
        needed = copies.select(_NEEDED.any()).item()  # the host may do without what it waits for
        return (
            words_of("pageable-copy-once")
            .of(size(moved))
            .finding(device, text, claims, stake, at_most=not needed, vague=True)
        )
    return words_of("pageable-copy", report).finding(
        device,
        text,
        claims,
        stake,
        headline=f"{per.clause(copies.height, 'copy', 'block', 'of pageable memory')} the host",
        action=_PINNED_COPY[say.in_pytorch(report), 2 * back > moved],
        where=say.place_of(report, rows),
        mending=_pinned(report, copies),
    )


def _pinned(report: Report, copies: pl.DataFrame) -> Mending | None:
    """The copies do not block, and take what pinned ones would; None for large ones where neither is known."""
    # the host still waits for what a synchronous call copies to it
    calls = copies.filter(~_NEEDED).get_column("call_row").drop_nulls().unique()
    against = _comparable(report, copies)
    capability = report.devices.filter(pl.col("device") == copies.item(0, "device")).get_column("compute_capability")
    usual = _PINNED_RATES.get(capability.item(0) or "", 0.0) if len(capability) else 0.0
    if not (bytes_per_s := on_host.bandwidth(against) if against.height else usual):
        large = longest(copies, "size_bytes") >= LARGE_BYTES
        return None if large or copies.select(_NEEDED.any()).item() else Mending(unwaited=calls)
    saved = pl.col("dur_ns") - (pl.col("size_bytes") / bytes_per_s * 1e9).ceil().cast(pl.Int64)
    return Mending(shorter=copies.select("row", saved_ns=saved.clip(lower_bound=0)), unwaited=calls)


def _comparable(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Large pinned copies of the device and direction of `copies`."""
    pinned = copies_by_calls(report).filter((pl.col("memory") == PINNED) & (pl.col("size_bytes") >= LARGE_BYTES))
    return pinned.join(copies, on=_WAY[1:], how="semi")


def _recurring(report: Report, copies: pl.DataFrame, stake: int) -> str:
    """The recurring copies, per step: of the range name with most of them, in the median instance."""
    names = copies.group_by("each").agg(_took().sum().alias("took"), pl.col("many").first())
    top = names.sort("took", "each", descending=[True, False]).row(0, named=True)
    of_name = copies.filter(pl.col("each") == top["each"])
    blocked = pl.col("call_end") - pl.col("call_start")
    each = of_name.group_by("iteration").agg(copies=pl.len(), blocked=blocked.sum(), covered=_took().sum())
    gained = min(median_of(each, "covered"), stake / each.height)
    others = f", and in {plural(names.height - 1, 'other range')}" if names.height > 1 else ""
    name = top["each"] if len(top["each"]) <= _LONGEST else f"{top['each'][:_LONGEST]}…"
    every = plural(top["many"], name) if name in WORDS else f"{count(top['many'])} iterations of {literal(name)}"
    # iterations are counted in the whole report, copies in the window
    here, of = ("", "") if report.scope.window is None else ("here ", "the report's ")
    per = say.per_iteration(report)
    most = per.time(stake) if per.iterations else f"{time(gained)} in each"
    return (
        f"they recur, {here}in {count(each.height)} of {of}{every}{others}; in the median "
        f"{median_of(each, 'copies'):.3g} in each, whose calls block the host for {time(median_of(each, 'blocked'))}: "
        f"at most {most} can be gained by pinning it"
    )


_SENTENCES: Final = {
    "once": "they do not recur as the program's iterations do. Their calls blocked the host for {} in all",
    "few": "nothing shows that they recur. Their calls blocked the host for {} in all",
    "often": "they recur. Their calls blocked the host for {}",
    "unknown": "their calls blocked the host for {}. Nothing repeats in their process that would tell "
    "whether they recur",
}


def _how_often(report: Report, copies: pl.DataFrame, when: str, stake: int) -> str:
    """Whether the copies recur, and how long their calls block the host."""
    if when == "recurs":
        return _recurring(report, copies, stake)
    per = say.per_iteration(report)
    blocked_ns = intervals.length(intervals.union(copies.select(start="call_start", end="call_end")))
    if per.iterations and when not in {"once", "few"}:
        return f"their calls block the host for {per.time(blocked_ns)}"
    return _SENTENCES[when].format(time(blocked_ns))


def _gained_at_most(report: Report, device: int, rows: pl.Series, calls: pl.DataFrame) -> int:
    """Upper bound on how much shorter a device's window gets (ns) if operations (rows) and their calls took no time."""
    # the critical path passes through one of them at every instant that is gained, so that the gain is at most the
    # union of their intervals; other operations of a stream still run one after the other
    low, high = say.sides_of(report, device)
    wanted = pl.col("row").is_in(rows.implode())
    spans = pl.concat([exclusive_operations(report).filter(wanted).select("start", "end"), calls])
    others = placed_operations(report).filter((pl.col("device") == device) & ~wanted)
    busiest = max(map(intervals.length, spans_by_stream(others.select("number", "start", "end")).values()), default=0)
    return min(intervals.length(intervals.union(intervals.clip(spans, low, high))), high - low - busiest)


_FINDING: Final = r"NonZeroOp|nonzero|DeviceSelectSweep|DeviceCompactInit|write_indices|cupy_(?:scan|bsum|getitem_mask)"

_TURNS: Final = 8  # so many masks of an iteration are a loop's

#: The size of a count, which the host reads.
_COUNT_BYTES: Final = 8

#: Smaller copies are of numbers.
_LEAST_BYTES: Final = 1 << 12

#: A call that waits returns so long after a copy's, at most (ns).
_RETURN_NS: Final = 50_000


@Rule
def boolean_masks(report: Report) -> Findings:
    """At most one finding per device, on reads of how many elements of a mask are true."""
    torch = say.in_pytorch(report)
    if not (torch or world(report) == CUPY):
        return
    finds, own = (pl.col("name") == "aten::nonzero") & pl.col("called"), on_host.operators(report)
    spans = own.filter(finds).select(SPAN) if own.height else _kernels(report)
    if spans.is_empty():
        return
    inside = on_host.within(report, _until_next(report, spans))
    many = say.per_iteration(report).plural(inside.host.height, "time")
    # nothing is asked for, but what takes its place is launched
    # of arrays an operation takes its place, where()
    apart = on_host.launched(report).select(pl.col("call_start").diff().over(THREAD).median()).item() or 0
    kept = pl.min_horizontal(pl.col("start") + (say.LAUNCH_NS if torch else int(apart)), "end")
    turns = spans.height / (say.per_iteration(report).iterations or 1)
    every = pl.concat([spans, _by_masks(own, spans)]).sort(SPAN[:3]) if turns >= _TURNS else spans
    asked, left = (on_host.within(report, part) for part in (every, every.with_columns(start=kept)))
    change = asked.mending._replace(host=left.host) if torch else left.mending
    yield from on_host.on_time(
        report,
        words_of(f"boolean-masks{': CuPy' * (not torch)}"),
        inside,
        f"Indices of a mask's true elements are asked for {many}, for whose number the host waits: ",
        change,
    )


def _by_masks(own: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Gathers and scatters of the rows of many masks that are `asked` for in turn: sorted once, each is a slice."""
    parts = own.filter(pl.col("name").is_in(["aten::index", "aten::index_put_"]))
    parts = nearest(parts.select(SPAN), asked.select(*THREAD, begun="start"), ("end", "begun"), THREAD)
    apart = asked.select(pl.col("start").diff().over(THREAD).median()).item() or 0
    near = (pl.col("start") - pl.col("begun")).is_between(1, 2 * apart)
    return parts.filter(near).select(SPAN)


def _until_next(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The spans, each until the next launch of its thread, but at most twice as long: the device waits for that."""
    points = spans.select(*THREAD, at="end")
    until = nearest_launches(on_host.traced(report) or report, points, "call_start", later=True, equal=True).to_series()
    end = pl.min_horizontal(until.alias("until"), 2 * pl.col("end") - pl.col("start"))
    return spans.select(*THREAD, "start", end=pl.coalesce(end, "end")).sort(*THREAD, "start")


def _kernels(report: Report) -> pl.DataFrame:
    """Runs of kernels that find true elements, with the read of their number among them."""
    line = on_host.launched(report)
    finds = on_host.kernels_named(line, _FINDING)
    if not finds.any():
        return line.clear().select(*THREAD, start="call_start", end="call_end")
    reads = (pl.col("way") == TO_HOST) & (pl.col("bytes") <= _COUNT_BYTES)
    if world(report) == CUPY:  # whose scans are for sums, too
        reads &= on_host.kernels_named(line, "cupy_getitem_mask").shift(-1)
    marked = line.with_columns(finds=finds, reads=reads.fill_null(value=False))
    following = pl.col("call_start").shift(-1).over(THREAD)
    marked = marked.with_columns(until=pl.when("reads").then(following).otherwise(None).fill_null(pl.col("call_end")))
    part = (pl.col("finds") | pl.col("reads")).alias("part")
    asked = pl.col("reads").cast(pl.UInt32).cum_sum().shift(1, fill_value=0)
    runs = marked.with_columns(part, run=part.rle_id().over(THREAD), asked=asked).filter("part")
    found = runs.group_by(*THREAD, "run", "asked", maintain_order=True).agg(
        pl.col("finds", "reads").any(), start=pl.col("call_start").first(), end=pl.col("until").last()
    )
    return found.filter(pl.col("finds") & pl.col("reads")).select(SPAN)


@Rule
def downloads(report: Report) -> Findings:
    """At most one finding per device, on copies of a model, or of data, to the host in each iteration."""
    iterations = say.per_iteration(report).iterations or 1
    to_host = on_host.with_next(
        on_host.launched(report), (pl.col("way") == TO_HOST) & (pl.col("bytes") >= _LEAST_BYTES)
    )
    copies = to_host.filter((pl.col("next_way") != TO_DEVICE).fill_null(value=True))
    after, another = pl.col("next_call_start"), (pl.col("next_way") == TO_HOST).fill_null(value=False)
    # NumPy computes with what it got from CuPy
    returned = after if world(report) == CUPY else pl.col("call_end") + _RETURN_NS
    end = pl.when(another).then(after).otherwise(pl.min_horizontal(after, returned))
    copies = copies.with_columns(end=pl.coalesce(end, "call_end"))
    seen = copies.join(exclusive_operations(report).select("row"), on="row", how="semi")
    if (moved := total(seen, "bytes")) >= LARGE_BYTES * iterations:
        many = say.per_iteration(report).plural(seen.height, "copy", "to the host")
        yield from on_host.on_time(
            report,
            words_of("downloads", report),
            on_host.own_within(report, copies.select(*THREAD, "end", start="call_start")),
            f"{many}, {size(moved // iterations)} {'in each' if iterations > 1 else 'in all'}: ",
        )
