"""Many small copies in place of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import exact, intervals
from kanalyze.analyses.device._operations import exclusive_operations, operations, with_facts
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._mendings import merged
from kanalyze.analyses.findings.rules._set_up import without_set_up
from kanalyze.analyses.findings.rules._sites import main_site
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._call_kinds import calls_that, shown
from kanalyze.analyses.host._context_creation import context_calls
from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.idle._blocking_calls import WAITING, scope_of
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.streams._serialised import ordering_calls
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids
from kanalyze.units import plural, rate, size

if TYPE_CHECKING:
    from kanalyze.report import Report

_TO_HOST: Final = "Device-to-Host"

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
    """The program's small copies in scope, each with a call of its own."""
    small = _copies(report).filter((pl.col("size_bytes") <= SMALL_BYTES) & pl.col("graph_node_id").is_null())
    told = ("context_id", "stream", "call_row", "thread_id", "call_start", "call_end", "call_name")
    small = with_facts(report, small, *told).drop_nulls("call_row")
    return without_set_up(report, small.filter(~pl.col("call_row").is_duplicated()))


@once_per_report
def large_copies(report: Report) -> pl.DataFrame:
    """Bytes and time of copies of at least :data:`LARGE_BYTES`: columns of :data:`ALIKE`, size_bytes, dur_ns (sums)."""
    large = _copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
    return large.group_by(ALIKE).agg(pl.col("size_bytes", "dur_ns").sum())


@once_per_report
def _copies(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    keys = ("row", "event_id", "began", "device", "process_id", "detail", "dur_ns", "exclusive_ns")
    return with_facts(report, work.select(keys), "size_bytes", "source_memory", "target_memory", "graph_node_id")


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
    untold = pl.col("call_row").is_null() | (pl.col("kind") == "memcpy")
    rest = operations(report, "call_row").filter(untold & ~pl.col("row").is_in(copies.get_column("row").implode()))
    return with_facts(report, rest, "context_id", "stream")


def _cutting_calls(report: Report, process: object, device: int, direction: str) -> pl.Series:
    """The sorted times at which a process called something that ends runs of one direction on a device."""
    work = operations(report, "call_start").drop_nulls("call_start")
    own = work.filter((pl.col("device") == device) & pl.col("process_id").eq_missing(process))
    launched = own.filter(pl.col("detail").ne_missing(pl.lit(direction))).get_column("call_start")
    asked = ordering_calls(report).filter(pl.col("process_id").eq_missing(process)).get_column("at")
    found = [launched, asked]
    if direction == _TO_HOST:
        waits = calls_that(report, lambda name: scope_of(name) in WAITING, "process_id", "start_ns")
        found.append(waits.filter(pl.col("process_id").eq_missing(process)).get_column("start_ns"))
    return pl.concat([times.rename("at") for times in found]).sort()


RULES: Final = (many_small_copies,)
