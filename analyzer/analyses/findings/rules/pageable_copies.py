"""Copies of pageable memory that recur, or are made once: slower than those of pinned memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    device_operations,
    exclusive_operations,
    launch_calls,
    with_facts,
)
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._copies import (
    PAGEABLE,
    PINNED,
    TO_DEVICE,
    TO_HOST,
    device_copies,
    without_set_up,
)
from kanalyze.analyses.findings.rules._telling import PARTS, all_along, idle_in, in_pytorch, per_iteration, place_of
from kanalyze.analyses.host._rounds import STEP, rounds, rounds_at
from kanalyze.analyses.idle._blocking_calls import blocking_calls, scope_of
from kanalyze.analyses.iterations.iterations import judged_iterations
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._streams import placed_operations, spans_by_stream, streamed_operations
from kanalyze.columns.exact import rate_of
from kanalyze.columns.lookup import as_of, gathered, nearest
from kanalyze.units import count, plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: CUDA takes up to so much pageable memory with the call, and returns (CUDA C++ Programming Guide, "Concurrent
#: execution between host and device").
_STAGED_BYTES: Final = 1 << 16

#: Where nothing tells rounds, synchronous calls may recur if a process makes so many of one size and direction, or of
#: one direction.
_ALIKE: Final = 5
_MANY: Final = 32

#: Copies in at least so many instances of a range recur.
_RECURS: Final = 2

#: Copies of one instance that take more than this factor times the median are not all recurring.
_ODD: Final = 3

#: Whether the host waits for what a synchronous call copies to it.
NEEDED: Final = pl.col("synchronous") & (pl.col("detail") == TO_HOST)


@once_per_report
def copies_by_calls(report: Report) -> pl.DataFrame:
    """The program's :func:`device_copies` by copying calls, with the host memory that they read or write (`memory`).

    Besides: synchronous (whether the call is, as `cudaMemcpy`); by device.
    """
    work = device_copies(report)
    names = work.get_column("call_name").unique().drop_nulls()
    blocks = pl.Series("synchronous", [scope_of(name) == "copy" for name in names.cast(pl.String)], dtype=pl.Boolean)
    copying = blocks | names.cast(pl.String).str.contains("Async", literal=True)
    wanted = pl.DataFrame([names, blocks]).filter(copying)
    host = pl.when(pl.col("source_memory").is_in([PAGEABLE, PINNED])).then("source_memory").otherwise("target_memory")
    known = work.join(wanted, on="call_name", maintain_order="left").with_columns(memory=host)
    known = known.drop("source_memory", "target_memory").drop_nulls("size_bytes")
    return without_set_up(report, known).sort("device")


@once_per_report
def pageable(report: Report) -> pl.DataFrame:
    """The pageable ones of :func:`copies_by_calls`, with spared and until; see :func:`_spared`.

    Of synchronous calls only those of so many bytes that pinned memory is faster.
    """
    large = ~pl.col("synchronous") | (pl.col("size_bytes") > _STAGED_BYTES)
    between = pl.col("detail").is_in([TO_DEVICE, TO_HOST])
    found = copies_by_calls(report).filter(between & (pl.col("memory") == PAGEABLE) & large)
    if (found.get_column("detail") == TO_HOST).any():
        return _spared(report, found)
    return found.with_columns(spared="call_start", until="call_end")


def _spared(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with `spared` and `until`: the host interval that pinned memory would save, by default the call's.

    If the thread waits for the stream or device after a copy to the host, before it launches more, it would wait there
    anyway for the stream's earlier work. What the host does up to the end of that wait could then overlap it. A
    synchronous copy to the host waits for all earlier work, since the host goes on with what was copied.
    """
    known = copies.with_columns(on="stream")
    known = known.join(_work_before(report), on="row", how="left", maintain_order="left").with_row_index("place")
    line = known.with_columns(before=pl.when(NEEDED).then(_ended_before(report, copies)).otherwise("before"))
    waits = blocking_calls(report).filter(pl.col("scope").is_in(["stream", "device"]))
    waits = waits.select(*THREAD, wait="start", waited="end", behind="stream").drop_nulls([*THREAD, "wait"])
    launches = launch_calls(report, "thread_id", "call_start").drop_nulls().rename({"call_start": "launch"})
    for times, name in ((waits, "wait"), (launches, "launch")):
        line = nearest(line, times, ("call_end", name), THREAD, "after")
    first = pl.col("wait") <= pl.col("launch").fill_null(pl.col("wait"))
    anyway = (pl.col("detail") == TO_HOST) & first & (pl.col("behind") == pl.col("on")).fill_null(value=True)
    begun = pl.max_horizontal(
        "call_start", pl.min_horizontal(pl.col("before").fill_null(pl.col("call_start")), "call_end")
    )
    anyway = anyway.fill_null(value=False)
    spared = pl.when(anyway | NEEDED).then(begun).otherwise("call_start")
    until = pl.when(anyway).then("waited").otherwise("call_end")
    told = line.with_columns(spared=spared, until=until).sort("place")
    return told.drop("place", "wait", "waited", "behind", "launch", "on", "before")


def _work_before(report: Report) -> pl.DataFrame:
    """End of the previous work in each operation's stream: columns row, before (null for the first one)."""
    line = streamed_operations(report).select("row", "start", "end", "number").sort("number", "start", "row")
    return line.select("row", before=pl.col("end").cum_max().shift(1).over("number"))


def _ended_before(report: Report, copies: pl.DataFrame) -> pl.Series:
    """When the last operation of its process and device ended that had before each copy began; null for none."""
    by, work = ["process_id", "device"], device_operations(report)
    last = as_of(copies.select(*by, at="start"), work.select(*by, at="end"))
    return gathered(work.get_column("end"), last)


def pageable_copies(report: Report) -> pl.DataFrame:
    """The pageable copies in scope, with the columns of :func:`_by_round` (when, round, …).

    Besides the columns of :func:`copies_by_calls`: spared and until, the host interval that pinned memory would
    save.
    """
    found = pageable(report).join(_by_round(report.whole), on="row", how="left", maintain_order="left")
    return _all_along(report, found)


def _all_along(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with those outside of all rounds as ``often`` that lie all along the work of their device.

    That is in most of as many equal parts of the time from its first operation to its last as there are iterations, or
    :data:`PARTS`, without copies that take more than :data:`_ODD` times the median. Those that recur with rounds are
    then told with them.
    """
    number = per_iteration(report).iterations or PARTS
    once = pl.col("when").is_in(["once", "often"])
    if number < _RECURS or not copies.select(once.any()).item():
        return copies
    work = exclusive_operations(report).group_by("device").agg(low=pl.col("start").min(), high=pl.col("end").max())
    known = copies.join(work, on="device", maintain_order="left")
    of = ["device", "detail"]
    usual = once & (took() <= _ODD * pl.when(once).then(took()).median().over(of))
    along = all_along(pl.when(usual).then("start"), pl.col("low"), pl.col("high"), number).over(of)
    known = known.with_columns(often=(usual & along) | (pl.col("when") == "often"))
    told = pl.col("often") | (pl.col("often").any().over("device") & (pl.col("when") == "recurs"))
    return known.with_columns(when=pl.when(told).then(pl.lit("often")).otherwise("when")).drop("low", "high", "often")


def took() -> pl.Expr:
    """The length of the union of a copy and the host interval that pinned memory would save, in ns."""
    both = pl.min_horizontal("until", "end") - pl.max_horizontal("spared", "start")
    return (pl.col("until") - pl.col("spared") + pl.col("end") - pl.col("start")) - both.clip(lower_bound=0)


@once_per_process
def _by_round(report: Report) -> pl.DataFrame:
    """Classifies the pageable copies of a whole report: columns row, when, and those of `rounds_at`.

    `when` says whether a copy ``recurs`` with the rounds (step or range instances), occurs ``once``, or its process has
    no rounds (``unknown``); whether such copies are outside of all rounds and all along the window (``often``); or is
    one of ``few`` synchronous ones without rounds.

    A copy occurs once if its call was in no round, or in the only round of its name with such a copy. Where the copies
    and calls of a round take more than :data:`_ODD` times the median of the rounds of its name, the longest copies that
    exceed it occur once. Without rounds, a few synchronous ones are told apart: a program that copies its input to the
    GPU and its results back does not gain by pinning memory, which takes longer.
    """
    found = pageable(report)
    copies = found.select("row", "process_id", _is_few().alias("few"), took=took())
    inside = rounds_at(report, found.select("process_id", at="call_start"))
    line = pl.concat([copies, inside], how="horizontal").sort("took", "row")
    whole = line.drop_nulls("round").group_by("round_name", "round").agg(whole=pl.col("took").sum())
    usual = whole.group_by("round_name").agg(usual=pl.col("whole").median(), with_copies=pl.len())
    line = line.join(usual, on="round_name", how="left", maintain_order="left")
    up_to = pl.col("took").cum_sum().over("round")
    recurs = (pl.col("with_copies") >= _RECURS) & (up_to <= _ODD * pl.col("usual"))
    when = pl.when(recurs.fill_null(value=False)).then(pl.lit("recurs")).otherwise(pl.lit("once"))
    known = rounds(report).get_column("process_id").unique()
    without = pl.when("few").then(pl.lit("few")).otherwise(pl.lit("unknown"))
    told = pl.when(pl.col("process_id").is_in(known.implode(), nulls_equal=True)).then(when).otherwise(without)
    line = line.select("row", "round", "round_name", "instances", when=told)
    return _without_repeated(report, found.join(line, on="row")).select(line.columns)


def _without_repeated(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with as once only what the report shows to be.

    They recur where others of their direction are in another iteration, however that was found. Outside of iterations
    they do so if :data:`_ALIKE` of one size have kernels between them; without rounds none tells it of two of them.
    """
    of, alike = ["process_id", "device", "detail"], pl.col("size_bytes")
    steps = judged_iterations(report).select(
        "process_id", since="start_ns", ended=pl.col("start_ns") + pl.col("dur_ns")
    )
    runs = device_operations(report).select("process_id", "device", "kind", at="start")
    runs = runs.filter(pl.col("kind") != "memcpy").drop("kind")
    line = copies.filter(pl.col("when").is_in(["once", "few"]))
    line = nearest(line, steps, ("call_start", "since"), of[:1])
    last = as_of(line.select(*of[:2], at="start"), runs)
    line = line.with_columns(gathered(runs.get_column("at"), last))
    step = pl.when(pl.col("call_start") < pl.col("ended")).then("since")
    line = line.with_columns(step=step, steps=step.drop_nulls().n_unique().over(of))
    bursts = pl.when(pl.col("step").is_null()).then(pl.col("at").n_unique().over(*of, alike, "step"))
    several = pl.col("step").is_not_null() & (pl.col("steps") >= _RECURS) | (bursts >= _ALIKE)
    told = pl.when(several).then(pl.lit("often")).when((pl.col("when") == "few") & (bursts >= _RECURS))
    return copies.update(line.select("row", when=told.then(pl.lit("unknown")).otherwise("when")), on="row")


def _is_few() -> pl.Expr:
    """Whether a copy is by a synchronous call, and its process makes few such calls of its size and direction."""
    way = ["process_id", "device", "detail", "synchronous"]
    alike = pl.col("call_start").n_unique().over(*way, "size_bytes") < _ALIKE
    return pl.col("synchronous") & alike & (pl.col("call_start").n_unique().over(way) < _MANY)


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
    most = pageable(report).group_by("device").agg(ns=took().sum())
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
    text = f"{_what(report, copies)} {_how_often(report, copies, when, stake)}."
    idle = idle_in(report, device, copies.select(start="spared", end="until"))
    claims = pl.concat([copies.select("start", "end"), idle])
    if when in {"once", "few"}:
        one = Finding("pageable-copy-once", device, stake, text, _ONCE, "copies", vague=True)
        headline = f"{size(total(copies, 'size_bytes'))} of pageable memory are copied once"
        at_most = not copies.select(NEEDED.any()).item()  # the host may do without what it waits for
        return one._replace(
            headline=headline, action="leave it out of what you compare", at_most=at_most, claims=claims
        )
    moved = copies.group_by(to_host=pl.col("detail") == TO_HOST).agg(pl.col("size_bytes").sum())
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
        claims=claims,
    )


#: What copies of pinned memory reach at least, by compute capability (bytes per second): over 16 lanes of PCIe's fifth
#: generation 49 to 55 GB/s, measured on H200; over those of the fourth half of that.
_PINNED_RATES: Final = {"8.0": 20e9, "8.9": 20e9, "9.0": 45e9, "10.0": 45e9}


def _pinned(report: Report, copies: pl.DataFrame) -> Mending | None:
    """The copies do not block, and take what pinned ones would; None for large ones where neither is known.

    The host still waits for what a synchronous call copies to it.
    """
    calls = with_facts(report, copies.filter(~NEEDED), "call_row").get_column("call_row").drop_nulls().unique()
    against = _comparable(report, copies)
    known = report.devices.filter(pl.col("device") == copies.item(0, "device")).get_column("compute_capability")
    usual = _PINNED_RATES.get(known.item(0) or "", 0.0) if len(known) else 0.0
    if not (bytes_per_s := _bandwidth(against) if against.height else usual):
        large = longest(copies, "size_bytes") >= _COMPARABLE_BYTES
        return None if large or copies.select(NEEDED.any()).item() else Mending(unwaited=calls)
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


def _recurring(report: Report, copies: pl.DataFrame, stake: int) -> str:
    """The recurring copies, per step: of the range name with most of them, in the median instance."""
    names = copies.group_by("round_name").agg(took().sum().alias("took"), pl.col("instances").first())
    top = names.sort("took", "round_name", descending=[True, False]).row(0, named=True)
    own = copies.filter(pl.col("round_name") == top["round_name"])
    blocked = pl.col("call_end") - pl.col("call_start")
    each = own.group_by("round").agg(copies=pl.len(), blocked=blocked.sum(), covered=took().sum())
    gained = min(median_of(each, "covered"), stake / each.height)
    others = f", and in {plural(names.height - 1, 'other range')}" if names.height > 1 else ""
    name = top["round_name"] if len(top["round_name"]) <= _LONGEST else f"{top['round_name'][:_LONGEST]}…"
    every = plural(top["instances"], "step") if name == STEP else f"{count(top['instances'])} rounds of {literal(name)}"
    # rounds are counted in the whole report, copies in the window
    of = f"{every}{others}" if report.scope.window is None else f"the report's {every}{others}"
    here = "" if report.scope.window is None else "here "
    per = per_iteration(report)
    most = f"{per.time(stake)}" if per.iterations else f"{time(gained)} in each"
    return (
        f"they recur, {here}in {count(each.height)} of {of}; in the median {median_of(each, 'copies'):.3g} in each, "
        f"whose calls block the host for {time(median_of(each, 'blocked'))}: at most "
        f"{most} can be gained by pinning it"
    )


def _how_often(report: Report, copies: pl.DataFrame, when: str, stake: int) -> str:
    """Whether the copies recur, and how long their calls block the host."""
    per, blocked_ns = per_iteration(report), _call_ns(copies)
    blocked = f"Their calls blocked the host for {time(blocked_ns)}"
    if when == "recurs":
        return _recurring(report, copies, stake)
    if when == "once":
        return f"they do not recur as the program's rounds do. {blocked} in all"
    if when == "few":
        return f"nothing shows that they recur. {blocked} in all"
    if per.iterations:
        return f"their calls block the host for {per.time(blocked_ns)}"
    if when == "often":
        return f"they recur. {blocked}"
    unknown = "Their process has no steps and no range that occurs often, which would tell whether they recur"
    return f"t{blocked[1:]}. {unknown}"


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
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    wanted = rows.implode()
    own = exclusive_operations(report).filter(pl.col("row").is_in(wanted)).select("start", "end")
    covered = intervals.length(
        intervals.union(intervals.clip(pl.concat([own, calls.select("start", "end")]), low, high))
    )
    others = placed_operations(report).filter((pl.col("device") == device) & ~pl.col("row").is_in(wanted))
    busiest = max(map(intervals.length, spans_by_stream(others.select("number", "start", "end")).values()), default=0)
    return min(covered, int(high - low) - busiest)


RULES: Final = (pageable_copy,)
