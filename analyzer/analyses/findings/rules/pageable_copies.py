"""Asynchronous copies of pageable memory, which block the host and overlap nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.host._launching_call import calls_of, launching_rows
from kanalyze.analyses.host._rounds import STEP, rounds, rounds_at
from kanalyze.analyses.idle._blocking_calls import blocking_calls
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._streams import placed_operations, spans_by_stream, stream_numbers
from kanalyze.analyses.streams._waited_for import streams
from kanalyze.columns.lookup import beside, rows_at
from kanalyze.exact import rate_of
from kanalyze.units import count, plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Smaller pinned copies do not show the bandwidth of pinned memory.
_COMPARABLE_BYTES: Final = 1 << 20

#: Maximum length of a range's name in the sentence.
_LONGEST: Final = 60

_PIN: Final = "Copy from pinned memory: cudaHostAlloc, or pin_memory() and DataLoader(pin_memory=True) in PyTorch."
_ONCE: Final = "If it is a cost of starting up, as the upload of a model is, leave it out of what you compare."


def find(report: Report) -> list[Finding]:
    """Per device one finding on recurring copies, and one on those that happen once."""
    found = []
    copies = pageable_copies(report)
    for (device, when), part in copies.partition_by("device", "when", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        stake = gained_at_most(report, number, part.get_column("row"), part.select(start="spared", end="until"))
        if stake:
            text = f"{_what(report, part)} {_WHEN[str(when)](report, part)}."
            recurs = Finding("pageable-copy", number, stake, text, _PIN, "copies")
            once = Finding("pageable-copy-once", number, stake, text, _ONCE, "copies")
            found.append(once if when == "once" else recurs)
    return found


def _what(report: Report, copies: pl.DataFrame) -> str:
    """The number and bytes of the copies, compared with pinned ones of the same direction."""
    pinned = asynchronous_copies(report).filter(
        pl.col("device") == copies.item(0, "device"),
        pl.col("memory") == PINNED,
        pl.col("detail").is_in(copies.get_column("detail").unique().implode()),
        pl.col("size_bytes") >= _COMPARABLE_BYTES,
    )
    against = f", pinned ones {rate(_bandwidth(pinned))}" if pinned.height else ""
    moved = f"{size(total(copies, 'size_bytes'))} at {rate(_bandwidth(copies))}{against}"
    return f"{plural(copies.height, 'asynchronous copy')} of pageable memory, {moved}:"


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
        f"{time(median_of(each, 'covered'))} in each can be gained"
    )


def _once(_: Report, copies: pl.DataFrame) -> str:
    return (
        f"they do not recur as the program's rounds do. Their calls blocked the host for {time(_called(copies))} in all"
    )


def _unknown(_: Report, copies: pl.DataFrame) -> str:
    return (
        f"their calls blocked the host for {time(_called(copies))}. The report has no steps and no range that occurs "
        "often, which would tell whether they recur"
    )


_WHEN: Final = {"recurs": _recurring, "once": _once, "unknown": _unknown}


def _called(copies: pl.DataFrame) -> int:
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


# Asynchronous copies of pageable memory, which block their caller, and which of them recur with the program's steps.

PAGEABLE: Final = "Pageable"
PINNED: Final = "Pinned"
_TO_HOST: Final = "Device-to-Host"

#: Copies in at least so many instances of a range recur.
_RECURS: Final = 2

#: Copies of one instance that take more than this factor times the median are not all recurring.
_ODD: Final = 3

#: Whether a copy recurs with the rounds (step or range instances), occurs once, or the report has no rounds.
WHEN: Final = ("recurs", "once", "unknown")


@once_per_report
def asynchronous_copies(report: Report) -> pl.DataFrame:
    """The copies in scope launched by an …Async call, with the host memory that they read or write (`memory`).

    Columns: those of `exclusive_operations`, call_name, call_start, call_end, thread_id, size_bytes, memory; by
    device.
    """
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    calls = calls_of(report, work.get_column("row"), "call_name", "call_start", "call_end", "thread_id")
    names = calls.get_column("call_name").unique().cast(pl.String).drop_nulls()
    wanted = names.filter(names.str.contains("Async", literal=True)).to_list()
    work = pl.concat([work, calls], how="horizontal").filter(pl.col("call_name").is_in(wanted))
    host = pl.when(pl.col("source_memory").is_in([PAGEABLE, PINNED])).then("source_memory").otherwise("target_memory")
    known = beside(work, report.copy_detail.with_columns(memory=host), "size_bytes", "memory")
    return known.drop_nulls("size_bytes").sort("device")


@once_per_report
def _pageable(report: Report) -> pl.DataFrame:
    """The pageable ones of :func:`asynchronous_copies`, with spared and until; see :func:`_spared`."""
    found = asynchronous_copies(report).filter(pl.col("memory") == PAGEABLE)
    if (found.get_column("detail") == _TO_HOST).any():
        return _spared(report, found)
    return found.with_columns(spared="call_start", until="call_end")


def _spared(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` with `spared` and `until`: the host interval that pinned memory would save, by default the call's.

    If the thread waits for the stream or device after a copy to the host, before it launches more, it would wait there
    anyway for the stream's earlier work. What the host does up to the end of that wait could then overlap it.
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
    spared = pl.when(anyway.fill_null(value=False)).then(begun).otherwise("call_start")
    until = pl.when(anyway.fill_null(value=False)).then("waited").otherwise("call_end")
    told = line.with_columns(spared=spared, until=until).sort("place")
    return told.drop("place", "wait", "waited", "behind", "launch", "on", "before")


def _work_before(report: Report) -> pl.DataFrame:
    """For each operation, by row, when the previous work of its stream ended (`before`); null for the first one."""
    work = device_operations(report).select("row", "start", "end")
    line = work.with_columns(stream_numbers(report).select("number").get_columns()).sort("number", "start", "row")
    return line.select("row", before=pl.col("end").cum_max().shift(1).over("number"))


def _launches(report: Report) -> pl.DataFrame:
    """Launching calls by time: process_id, thread_id, launch (the call's start)."""
    calls = report.kind("api").select(*THREAD, launch="start_ns")
    return rows_at(calls, launching_rows(report)).drop_nulls().sort("launch")


def pageable_copies(report: Report) -> pl.DataFrame:
    """The pageable copies in scope, with the columns of :func:`_by_round` (when, round, …).

    Besides the columns of :func:`asynchronous_copies`: spared and until, the host interval that pinned memory would
    save.
    """
    found = _pageable(report)
    return found.join(_by_round(report.whole), on="row", how="left", maintain_order="left")


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
