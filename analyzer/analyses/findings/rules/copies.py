"""Copies that are slower than they need to be: of pageable memory, or many small ones instead of one."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import exact, intervals
from kanalyze.analyses.device._operations import device_operations, exclusive_operations, operations
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._all_along import PARTS, all_along
from kanalyze.analyses.findings.rules._mendings import merged
from kanalyze.analyses.findings.rules._places import place_of
from kanalyze.analyses.findings.rules._sites import main_site
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._call_kinds import BLOCKING_COPY, cuda_name, names_that, shown
from kanalyze.analyses.host._context_creation import context_calls
from kanalyze.analyses.host._launching_call import calls_of, launch_rows, launching_rows
from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.host._rounds import STEP, rounds, rounds_at
from kanalyze.analyses.idle._blocking_calls import WAITING, blocking_calls, scope_of
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._serialised import ordering_calls
from kanalyze.analyses.streams._streams import placed_operations, spans_by_stream, stream_numbers
from kanalyze.analyses.streams._waited_for import streams
from kanalyze.columns.lookup import beside, gathered, rows_at
from kanalyze.exact import rate_of
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids
from kanalyze.units import count, plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Smaller pinned copies do not show the bandwidth of pinned memory.
_COMPARABLE_BYTES: Final = 1 << 20

#: Maximum length of a range's name in the sentence.
_LONGEST: Final = 60

#: The remedy for copies that recur, in CUDA and in PyTorch.
_PIN: Final = (
    "Copy from pinned memory: cudaHostAlloc, or pin_memory() and DataLoader(pin_memory=True) in PyTorch.",
    "Copy from pinned memory: DataLoader(…, pin_memory=True) or pin_memory(), and .to(device, non_blocking=True).",
)
_ONCE: Final = "If it is a cost of starting up, as the upload of a model is, leave it out of what you compare."


def pageable_copy(report: Report) -> list[Finding]:
    """Findings per device: one on recurring copies, and one on those that happen once."""
    most = _pageable(report).group_by("device").agg(ns=took().sum())
    if not worth_saying(report, longest(most, "ns")):
        return []
    copies, found = pageable_copies(report), []
    for (device, when), part in copies.partition_by("device", "when", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        stake = gained_at_most(report, number, part.get_column("row"), part.select(start="spared", end="until"))
        if stake:
            found.append(_pageable_finding(report, part, str(when), stake))
    return found


def _pageable_finding(report: Report, copies: pl.DataFrame, when: str, stake: int) -> Finding:
    per, device = per_iteration(report), int(copies.item(0, "device"))
    text = f"{_what(report, copies)} {_WHEN[when](report, copies)}."
    if when == "once":
        one = Finding("pageable-copy-once", device, stake, text, _ONCE, "copies")
        headline = f"{size(total(copies, 'size_bytes'))} of pageable memory are copied once"
        return one._replace(headline=headline, action="leave it out of what you compare", at_most=True)
    moved = copies.group_by(to_host=pl.col("detail") == _TO_HOST).agg(pl.col("size_bytes").sum())
    to_host = bool(moved.sort("size_bytes", "to_host", descending=[True, False]).item(0, "to_host"))
    return Finding(
        "pageable-copy",
        device,
        stake,
        text,
        _PIN[in_pytorch(report)],
        "copies",
        headline=f"{per.clause(copies.height, 'copy', 'block', 'of pageable memory')} the host",
        action=_PINNED_COPY[in_pytorch(report), to_host],
        where=place_of(report, pl.col("row").is_in(copies.get_column("row").implode())),
        mending=partial(_pinned, copies=copies),
    )


def _pinned(report: Report, copies: pl.DataFrame) -> Mending | None:
    """The copies do not block, and take what pinned ones would; None for large ones if there are no pinned ones.

    The host still waits for what a synchronous call copies to it.
    """
    needed = pl.col("synchronous") & (pl.col("detail") == _TO_HOST)
    calls = gathered(launch_rows(report), copies.filter(~needed).get_column("row")).drop_nulls().unique()
    against = _comparable(report, copies)
    if not (bytes_per_s := _bandwidth(against) if against.height else 0.0):
        large = longest(copies, "size_bytes") >= _COMPARABLE_BYTES
        return None if large or copies.select(needed.any()).item() else Mending(unwaited=calls)
    saved = pl.col("dur_ns") - (pl.col("size_bytes") / bytes_per_s * 1e9).ceil().cast(pl.Int64)
    return Mending(shorter=copies.select("row", saved_ns=saved.clip(lower_bound=0)), unwaited=calls)


#: How to copy from pinned memory: whether in PyTorch, and whether to the host.
_PINNED_COPY: Final = {
    (True, False): "DataLoader(…, pin_memory=True), batch.cuda(non_blocking=True)",
    (True, True): "torch.empty(…, pin_memory=True).copy_(result, non_blocking=True)",
    (False, False): "cudaHostAlloc once, then cudaMemcpyAsync from there",
    (False, True): "cudaHostAlloc once, then cudaMemcpyAsync to there",
}


def _what(report: Report, copies: pl.DataFrame) -> str:
    """The number and bytes of the copies, compared with pinned ones of the same direction."""
    pinned = _comparable(report, copies)
    against = f", pinned ones {rate(_bandwidth(pinned))}" if pinned.height else ""
    moved = f"{size(total(copies, 'size_bytes'))} at {rate(_bandwidth(copies))}{against}"
    what = "copy" if copies.get_column("synchronous").any() else "asynchronous copy"
    return f"{per_iteration(report).plural(copies.height, what, 'of pageable memory')}, {moved}:"


def _comparable(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Large pinned copies of the device and direction of `copies`."""
    return copies_by_calls(report).filter(
        pl.col("device") == copies.item(0, "device"),
        pl.col("memory") == PINNED,
        pl.col("detail").is_in(copies.get_column("detail").unique().implode()),
        pl.col("size_bytes") >= _COMPARABLE_BYTES,
    )


def _recurring(report: Report, copies: pl.DataFrame) -> str:
    """The recurring copies, per step: of the range name with most of them, in the median instance."""
    names = copies.group_by("round_name").agg(took().sum().alias("took"), pl.col("instances").first())
    top = names.sort("took", "round_name", descending=[True, False]).row(0, named=True)
    own = copies.filter(pl.col("round_name") == top["round_name"])
    blocked = pl.col("call_end") - pl.col("call_start")
    each = own.group_by("round").agg(copies=pl.len(), blocked=blocked.sum(), covered=took().sum())
    others = f", and in {plural(names.height - 1, 'other range')}" if names.height > 1 else ""
    name = top["round_name"] if len(top["round_name"]) <= _LONGEST else f"{top['round_name'][:_LONGEST]}…"
    every = plural(top["instances"], "step") if name == STEP else f"{count(top['instances'])} rounds of {literal(name)}"
    # rounds are counted in the whole report, copies in the window
    of = f"{every}{others}" if report.scope.window is None else f"the report's {every}{others}"
    here = "" if report.scope.window is None else "here "
    return (
        f"they recur, {here}in {count(each.height)} of {of}; in the median {median_of(each, 'copies'):.3g} in each, "
        f"whose calls block the host for {time(median_of(each, 'blocked'))}: at most "
        f"{time(median_of(each, 'covered'))} in each can be gained by pinning it"
    )


def _once(report: Report, copies: pl.DataFrame) -> str:
    blocked = time(_call_ns(copies))
    as_rounds = " as the program's rounds do" if rounds(report).height else ""
    return f"they do not recur{as_rounds}. Their calls blocked the host for {blocked} in all"


def _unknown(report: Report, copies: pl.DataFrame) -> str:
    per = per_iteration(report)
    if per.iterations:
        return f"their calls block the host for {per.time(_call_ns(copies))}"
    return (
        f"their calls blocked the host for {time(_call_ns(copies))}. The report has no steps and no range that occurs "
        "often, which would tell whether they recur"
    )


def _often(report: Report, copies: pl.DataFrame) -> str:
    if per_iteration(report).iterations:
        return _unknown(report, copies)
    blocked = time(_call_ns(copies))
    return f"they recur all along, outside of the program's rounds. Their calls blocked the host for {blocked}"


_WHEN: Final = {"recurs": _recurring, "once": _once, "unknown": _unknown, "often": _often}


def _call_ns(copies: pl.DataFrame) -> int:
    return intervals.length(intervals.union(copies.select(start="call_start", end="call_end")))


def _bandwidth(copies: pl.DataFrame) -> float:
    return rate_of(total(copies, "size_bytes"), total(copies, "dur_ns"))


def gained_at_most(report: Report, device: int, rows: pl.Series, calls: pl.DataFrame) -> int:
    """Upper bound on how much shorter a device's window gets if some operations and their calls took no time, in ns.

    The critical path passes through one of them at every instant that is gained, so that the gain is at most the union
    of their intervals. Other operations of a stream still run one after the other: the window stays at least as long as
    the other work of its busiest stream.

    Args:
        report: The report; its window is respected.
        device: The device whose window is meant.
        rows: The operations, by row of `operations`.
        calls: Their calls, and other host intervals that would be saved: columns start, end.
    """
    window = windows(report).row(by_predicate=pl.col("device") == device, named=True)
    low, high = int(window["start"]), int(window["end"])
    wanted = rows.implode()
    own = exclusive_operations(report).filter(pl.col("row").is_in(wanted)).select("start", "end")
    covered = intervals.length(
        intervals.union(intervals.clip(pl.concat([own, calls.select("start", "end")]), low, high))
    )
    others = placed_operations(report).filter((pl.col("device") == device) & ~pl.col("row").is_in(wanted))
    busiest = max(map(intervals.length, spans_by_stream(others.select("number", "start", "end")).values()), default=0)
    return min(covered, high - low - busiest)


# Copies of pageable memory, which block their caller, and which of them recur with the program's steps.

PAGEABLE: Final = "Pageable"
PINNED: Final = "Pinned"
_TO_HOST: Final = "Device-to-Host"

#: CUDA takes up to so much pageable memory with the call, and returns (CUDA C++ Programming Guide, "Concurrent
#: execution between host and device").
_STAGED_BYTES: Final = 1 << 16

#: Synchronous copies of one size and direction recur where there are so many.
_SEVERAL: Final = 3

#: Copies in at least so many instances of a range recur.
_RECURS: Final = 2

#: Copies of one instance that take more than this factor times the median are not all recurring.
_ODD: Final = 3

#: Whether a copy recurs with the rounds (step or range instances), occurs once, or the report has no rounds; or whether
#: such copies are outside of all rounds and all along the window.
WHEN: Final = ("recurs", "once", "unknown", "often")


@once_per_report
def copies_by_calls(report: Report) -> pl.DataFrame:
    """The copies in scope that a copying call launched, with the host memory that they read or write (`memory`).

    Columns: those of `exclusive_operations`, call_name, call_start, call_end, thread_id, size_bytes, memory, and
    synchronous (whether the call is, as `cudaMemcpy`); by device.
    """
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    calls = calls_of(report, work.get_column("row"), "call_name", "call_start", "call_end", "thread_id")
    names = calls.get_column("call_name").unique().drop_nulls()
    told = {name: bool(re.match(BLOCKING_COPY, cuda_name(name))) for name in names.cast(pl.String)}
    wanted = pl.DataFrame([names, pl.Series("synchronous", [*told.values()], dtype=pl.Boolean)])
    wanted = wanted.filter(pl.col("synchronous") | pl.Series(["Async" in name for name in told], dtype=pl.Boolean))
    work = pl.concat([work, calls], how="horizontal").join(wanted, on="call_name", maintain_order="left")
    host = pl.when(pl.col("source_memory").is_in([PAGEABLE, PINNED])).then("source_memory").otherwise("target_memory")
    known = beside(work, report.copy_detail.with_columns(memory=host), "size_bytes", "memory")
    return known.drop_nulls("size_bytes").sort("device")


@once_per_report
def _pageable(report: Report) -> pl.DataFrame:
    """The pageable ones of :func:`copies_by_calls`, with spared and until; see :func:`_spared`.

    Of synchronous calls only those of so many bytes that pinned memory is faster.
    """
    large = ~pl.col("synchronous") | (pl.col("size_bytes") > _STAGED_BYTES)
    found = copies_by_calls(report).filter((pl.col("memory") == PAGEABLE) & large)
    if (found.get_column("detail") == _TO_HOST).any():
        return _spared(report, found)
    return found.with_columns(spared="call_start", until="call_end")


def _spared(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with `spared` and `until`: the host interval that pinned memory would save, by default the call's.

    If the thread waits for the stream or device after a copy to the host, before it launches more, it would wait there
    anyway for the stream's earlier work. What the host does up to the end of that wait could then overlap it. A
    synchronous copy to the host waits for that work, too, since the host goes on with what was copied.
    """
    by = ["process_id", "thread_id"]
    on = rows_at(streams(report), copies.get_column("row")).select("stream").to_series()
    known = copies.join(_work_before(report), on="row", how="left", maintain_order="left")
    line = known.with_columns(on.alias("on")).with_row_index("place").sort("call_end")
    waits = blocking_calls(report).filter(pl.col("scope").is_in(["stream", "device"]))
    waits = waits.select(*by, wait="start", waited="end", behind="stream").drop_nulls([*by, "wait"]).sort("wait")
    for times, name in ((waits, "wait"), (_launches(report), "launch")):
        line = line.join_asof(
            times, left_on="call_end", right_on=name, by=by, strategy="forward", coalesce=False, check_sortedness=False
        )
    first = pl.col("wait") <= pl.col("launch").fill_null(pl.col("wait"))
    anyway = (pl.col("detail") == _TO_HOST) & first & (pl.col("behind") == pl.col("on")).fill_null(value=True)
    begun = pl.max_horizontal(
        "call_start", pl.min_horizontal(pl.col("before").fill_null(pl.col("call_start")), "call_end")
    )
    anyway = anyway.fill_null(value=False)
    needed = pl.col("synchronous") & (pl.col("detail") == _TO_HOST)
    spared = pl.when(anyway | needed).then(begun).otherwise("call_start")
    until = pl.when(anyway).then("waited").otherwise("call_end")
    told = line.with_columns(spared=spared, until=until).sort("place")
    return told.drop("place", "wait", "waited", "behind", "launch", "on", "before")


def _work_before(report: Report) -> pl.DataFrame:
    """End of the previous work in each operation's stream: columns row, before (null for the first one)."""
    work = device_operations(report).select("row", "start", "end")
    line = work.with_columns(stream_numbers(report).select("number").get_columns()).sort("number", "start", "row")
    return line.select("row", before=pl.col("end").cum_max().shift(1).over("number"))


def _launches(report: Report) -> pl.DataFrame:
    """Launching calls by time: process_id, thread_id, launch (the call's start)."""
    calls = report.kind("api").select(*THREAD, launch="start_ns")
    return rows_at(calls, launching_rows(report)).drop_nulls().sort("launch")


def pageable_copies(report: Report) -> pl.DataFrame:
    """The pageable copies in scope, with the columns of :func:`_by_round` (when, round, …).

    Besides the columns of :func:`copies_by_calls`: spared and until, the host interval that pinned memory would
    save.
    """
    found = _pageable(report).join(_by_round(report.whole), on="row", how="left", maintain_order="left")
    return _all_along(report, _made_once(report, found))


def _made_once(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with synchronous ones as ``once`` where nothing tells rounds, and few are of one size and direction.

    A program that copies its input to the GPU and its results back does not gain by pinning: that takes longer.
    """
    if per_iteration(report).iterations:
        return copies
    few = pl.len().over("device", "detail", "size_bytes") < _SEVERAL
    alone = pl.col("synchronous") & (pl.col("when") == WHEN[2]) & few
    return copies.with_columns(when=pl.when(alone).then(pl.lit(WHEN[1])).otherwise("when"))


def _all_along(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with those outside of all rounds as ``often`` that lie all along the work of their device.

    That is in most of as many equal parts of the time from its first operation to its last as there are iterations, or
    :data:`PARTS`, without copies that take more than :data:`_ODD` times the median. Those that recur with rounds are
    then told with them.
    """
    number = per_iteration(report).iterations or PARTS
    once = pl.col("when") == WHEN[1]
    if number < _RECURS or not copies.select(once.any()).item():
        return copies
    work = exclusive_operations(report).group_by("device").agg(low=pl.col("start").min(), high=pl.col("end").max())
    known = copies.join(work, on="device", maintain_order="left")
    of = ["device", "detail"]
    usual = once & (took() <= _ODD * pl.when(once).then(took()).median().over(of))
    along = all_along(pl.when(usual).then("start"), pl.col("low"), pl.col("high"), number).over(of)
    known = known.with_columns(often=usual & along)
    told = pl.col("often") | (pl.col("often").any().over("device") & (pl.col("when") == WHEN[0]))
    return known.with_columns(when=pl.when(told).then(pl.lit(WHEN[3])).otherwise("when")).drop("low", "high", "often")


def took() -> pl.Expr:
    """The length of the union of a copy and the host interval that pinned memory would save, in ns."""
    both = pl.min_horizontal("until", "end") - pl.max_horizontal("spared", "start")
    return (pl.col("until") - pl.col("spared") + pl.col("end") - pl.col("start")) - both.clip(lower_bound=0)


@once_per_process
def _by_round(report: Report) -> pl.DataFrame:
    """Classifies the pageable copies of a whole report: columns row, when (of :data:`WHEN`), and those of `rounds_at`.

    A copy occurs once if its call was in no round, or in the only round of its name with such a copy. Where the copies
    and calls of a round take more than :data:`_ODD` times the median of the rounds of its name, the longest copies that
    exceed it occur once.
    """
    found = _pageable(report)
    copies = found.select("row", took().alias("took"))
    inside = rounds_at(report, found.select("process_id", at="call_start"))
    line = pl.concat([copies, inside], how="horizontal").sort("took", "row")
    whole = line.drop_nulls("round").group_by("round_name", "round").agg(whole=pl.col("took").sum())
    usual = whole.group_by("round_name").agg(usual=pl.col("whole").median(), with_copies=pl.len())
    line = line.join(usual, on="round_name", how="left", maintain_order="left")
    up_to = pl.col("took").cum_sum().over("round")
    recurs = (pl.col("with_copies") >= _RECURS) & (up_to <= _ODD * pl.col("usual"))
    when = pl.when(recurs.fill_null(value=False)).then(pl.lit(WHEN[0])).otherwise(pl.lit(WHEN[1]))
    told = when if rounds(report).height else pl.lit(WHEN[2])
    return line.select("row", "round", "round_name", "instances", when=told)


#: The ledger's buckets in which a device waits for copying calls.
_WAITS: Final = ("launch", "queued", "sync", "api")

#: A profiler step's range, as `named_ranges` names it.
_STEP: Final = rf"^:?{STEP_PREFIX}\d+$"


def many_small_copies(report: Report) -> list[Finding]:
    """One finding per device and direction of copy."""
    if not worth_saying(report, most_small_copies_take(report)):
        return []
    copies, found = small_copies(report), []
    for (device, direction), part in copies.partition_by("device", "detail", as_dict=True).items():
        finding = _small_copies_between(report, int(str(device)), str(direction), part)
        found += [finding] if finding else []
    return found


def _small_copies_between(report: Report, device: int, direction: str, copies: pl.DataFrame) -> Finding | None:
    """The finding on runs of one direction on one device; one copy could replace each run."""
    waited = intervals.overlap(copies.get_column("call_start"), copies.get_column("call_end"), _free(report, device))
    large = _like(report, copies)
    speed = total(large, "size_bytes") / total(large, "dur_ns") if large.height else None  # bytes per ns
    runs = (
        copies.with_columns(waited.alias("waited_ns"))
        .group_by("run")
        .agg(pl.len().alias("count"), pl.col("exclusive_ns", "waited_ns", "size_bytes", "dur_ns").sum())
    )
    # the cost of one copy for the whole run: at the bandwidth of large ones, but at least that of one small copy
    alone = pl.col("dur_ns") / pl.col("count")
    joined = pl.max_horizontal(alone, pl.col("size_bytes") / speed) if speed else alone
    moving = (pl.col("exclusive_ns") - joined).clip(lower_bound=0).sum().cast(pl.Int64)
    calling = (pl.col("waited_ns") - pl.col("waited_ns") / pl.col("count")).sum().cast(pl.Int64)
    moved_ns, called_ns = runs.select(moving=moving, calling=calling).row(0)
    called_ns = min(called_ns, _waited_ns(report, device))
    if moved_ns + called_ns <= 0:
        return None
    count, bytes_moved, time_ns = copies.height, total(copies, "size_bytes"), total(copies, "dur_ns")
    against = f", {size(LARGE_BYTES)} and more at {rate(exact.rate_of(speed, 1))}" if speed else ""
    several = f" in {plural(runs.height, 'run')}" if runs.height > 1 else ""
    per = per_iteration(report)
    text = (
        f"{per.plural(count, 'copy')} {literal(direction)} of {size(bytes_moved / count)} on average, one after the "
        f"other{several}, at {rate(exact.rate_of(bytes_moved, time_ns))}{against}{_caller(report, copies)}. They cost "
        f"{per.time(moved_ns)} of copying and {per.time(called_ns)} in which the device waited for their calls, more "
        f"than one copy {'per run' if several else 'of all'} would. More may follow: the host is spared the calls."
    )
    remedy = "Put the pieces side by side in one buffer and copy that once (or cudaMemcpyBatchAsync, cudaMemcpy2D)."
    one = Finding("small-copies", device, moved_ns + called_ns, text, remedy, "copies")
    return one._replace(
        headline=f"{per.plural(count, 'small copy')}, one after another",
        action=_TOGETHER[in_pytorch(report)],
        where=main_site(report, copies.select("process_id", "thread_id", at="call_start")),
        mending=lambda _: merged(
            copies.join(runs.select("run", merged_ns=joined.cast(pl.Int64)), on="run").select(
                "row", group="run", kept=pl.lit(1), merged_ns="merged_ns", dur_ns="dur_ns"
            )
        ),
    )


#: How to copy many pieces at once, in CUDA and in PyTorch.
_TOGETHER: Final = ("one buffer and one cudaMemcpyAsync", "torch.cat(pieces).cuda().split(lengths)")


def _free(report: Report, device: int) -> pl.DataFrame:
    """The idle intervals of a device, less the profiler's overhead and context creation."""
    idle = idle_spans(report)[device]
    end = pl.col("start_ns") + pl.col("dur_ns")
    other = [
        report.kind("overhead").select(start="start_ns", end=end),
        context_calls(report).select(start="start_ns", end="made_ns"),
    ]
    return intervals.subtract(idle, intervals.union(pl.concat(other)))


def _like(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Large copies between the same kinds of memory, or if there are none, in the same direction."""
    large, alike = large_copies(report), copies.select(ALIKE).unique()
    same = large.join(alike, on=ALIKE, how="semi", nulls_equal=True)
    return same if same.height else large.join(alike, on=ALIKE[:2], how="semi")


def _waited_ns(report: Report, device: int) -> int:
    """The device's idle time in the ledger's buckets for such calls, in ns."""
    rows = bucket_sums(report).filter((pl.col("device") == device) & pl.col("bucket").cast(pl.String).is_in(_WAITS))
    return total(rows, "ns")


def _caller(report: Report, copies: pl.DataFrame) -> str:
    """The call that issued most of the copies, and the range around most of them."""
    call = copies.group_by(call=shown(pl.col("call_name"))).len().sort("len", "call", descending=[True, False])
    text = f", by {literal(str(call.item(0, 'call')))}"
    if "range" not in report.kinds:
        return text
    inside = ranges_at(report, copies.select("process_id", "thread_id", at="call_start"))
    rows = inside.drop_nulls()
    names = named_ranges(report).select(without_ids(pl.col("range"))).to_series().gather(rows)
    names = names.str.replace(_STEP, ALL_STEPS)
    if names.is_empty():
        return text
    common = names.alias("range").to_frame().group_by("range").len().sort("len", "range", descending=[True, False])
    every = common.item(0, "len") == copies.height
    return f"{text}{'' if every else ', most often'} in the range {literal(plain(common.item(0, 'range')))}"


# Runs of small copies: consecutive in a stream, in one direction, so that one copy could replace them.
#
# That copy would begin with the first and end with the last. So nothing in between may have written its source or read
# its target: no other work launched by the process on that device, and no call that orders streams; between copies to
# the host also no wait, after which the host may have read the data.

#: Upper limit of a small copy; below it, the duration hardly depends on the size.
SMALL_BYTES: Final = 64 << 10

#: Lower limit of a large copy, which reaches full bandwidth.
LARGE_BYTES: Final = 1 << 20

#: Minimum number of consecutive small copies for a run.
RUN: Final = 10

#: Copies to the host, which may read the data after any wait.

_STREAM: Final = ("process_id", "device", "context_id", "stream")

#: Keys by which runs are separated: the same calls end all runs of one key.
_SENT: Final = ("process_id", "device", "detail")

#: Keys of comparable copies.
ALIKE: Final = ("device", "detail", "source_memory", "target_memory")


@once_per_report
def small_copies(report: Report) -> pl.DataFrame:
    """The small copies in scope that belong to a run of at least :data:`RUN`, by stream and time.

    A run is a sequence of copies of one direction in one stream, each by its own call, with no other operation of the
    stream between them. A new run begins where the process, between the calls of two copies, launched other work on the
    device or made a call of :func:`ordering_calls`; for copies to the host also where it made a call that only waits.
    Copies without a call, such as those of unified memory, and copies in graphs belong to none.

    Columns: run (its number), row (of `operations`), device, process_id, detail (the direction), source_memory,
    target_memory, size_bytes, dur_ns, exclusive_ns, thread_id, call_row, call_start, call_end, call_name.
    """
    small = _called(report)
    if small.height < RUN:
        return small.with_columns(run=pl.lit(0, dtype=pl.Int64)).clear()
    many = small.filter(pl.len().over(*_STREAM, "detail") >= RUN)
    line = many.sort(*_STREAM, "began", "event_id")
    others, found = _without_calls(report, line), [line.clear().with_columns(fresh=pl.lit(value=True))]
    for (process, device, direction), part in line.partition_by(_SENT, as_dict=True, maintain_order=True).items():
        cuts = _cutting_calls(report, process, int(str(device)), str(direction))
        by_stream = part.partition_by(_STREAM, maintain_order=True)
        found += [copies.with_columns(fresh=_begins(copies, others, cuts)) for copies in by_stream]
    numbered = pl.concat(found)
    numbered = numbered.with_columns(run=pl.col("fresh").cum_sum().cast(pl.Int64)).drop("fresh")
    return numbered.filter(pl.len().over("run") >= RUN)


def most_small_copies_take(report: Report) -> int:
    """Upper bound of the time of all small copies in scope and their calls on one device; cheaper than finding runs."""
    took = pl.col("exclusive_ns").sum() + (pl.col("call_end") - pl.col("call_start")).sum()
    return longest(_called(report).group_by("device").agg(ns=took), "ns")


@once_per_report
def _called(report: Report) -> pl.DataFrame:
    """The small copies in scope, each with a call of its own."""
    small = _copies(report).filter((pl.col("size_bytes") <= SMALL_BYTES) & pl.col("graph_node_id").is_null())
    calls = calls_of(report, small.get_column("row"), "call_row", "thread_id", "call_start", "call_end", "call_name")
    on = rows_at(streams(report), small.get_column("row"))
    small = pl.concat([small, on, calls], how="horizontal").filter(pl.col("call_row").is_not_null())
    return small.filter(~pl.col("call_row").is_duplicated())


@once_per_report
def large_copies(report: Report) -> pl.DataFrame:
    """Bytes and time of copies of at least :data:`LARGE_BYTES`: columns of :data:`ALIKE`, size_bytes, dur_ns (sums)."""
    large = _copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
    return large.group_by(ALIKE).agg(pl.col("size_bytes", "dur_ns").sum())


@once_per_report
def _copies(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    keys = ("row", "event_id", "began", "device", "process_id", "detail", "dur_ns", "exclusive_ns")
    return beside(
        work.select(keys), report.copy_detail, "size_bytes", "source_memory", "target_memory", "graph_node_id"
    )


def _begins(copies: pl.DataFrame, others: pl.DataFrame, cuts: pl.Series) -> pl.Series:
    """Whether each of the small copies of one stream and direction, in order, begins a run."""
    here = others.filter(pl.col(key).eq_missing(copies.item(0, key)) for key in _STREAM)
    passed = here.get_column("start").sort().search_sorted(copies.get_column("began"))
    calls = copies.get_column("call_start")
    earlier = calls.shift(1)
    low, high = pl.select(low=pl.min_horizontal(calls, earlier), high=pl.max_horizontal(calls, earlier))
    between = cuts.search_sorted(high, side="left") > cuts.search_sorted(low, side="right")
    return (between | (passed != passed.shift(1))).fill_null(value=True)


def _without_calls(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Operations other than `copies` that :func:`_cutting_calls` misses: columns start and :data:`_STREAM`.

    They have no call, or are other copies, such as large ones of the same direction, or several by one call.
    """
    work = operations(report).select("row", "event_id", "kind", "process_id", "device", "start")
    untold = launch_rows(report).is_null() | work.select(pl.col("kind") == "memcpy").to_series()
    rest = work.filter(untold & ~work.get_column("row").is_in(copies.get_column("row").implode()))
    on = rows_at(streams(report), rest.get_column("row"))
    return rest.with_columns(on.get_columns())


def _cutting_calls(report: Report, process: object, device: int, direction: str) -> pl.Series:
    """The sorted times at which a process called something that ends runs of one direction on a device."""
    work = operations(report).select("device", "process_id", "detail", call=launch_rows(report)).drop_nulls("call")
    own = work.filter((pl.col("device") == device) & pl.col("process_id").eq_missing(process))
    other = own.filter(pl.col("detail").ne_missing(pl.lit(direction))).get_column("call")
    calls = report.kind("api").select("process_id", "name", "start_ns")
    launched = calls.get_column("start_ns").gather(other)
    asked = ordering_calls(report).filter(pl.col("process_id").eq_missing(process)).get_column("at")
    found = [launched, asked]
    if direction == _TO_HOST:
        waiting = names_that(report, lambda name: scope_of(name) in WAITING)
        waits = calls.filter(pl.col("name").is_in(waiting) & pl.col("process_id").eq_missing(process))
        found.append(waits.get_column("start_ns"))
    return pl.concat([times.rename("at") for times in found]).sort()


RULES: Final = (pageable_copy, many_small_copies)
