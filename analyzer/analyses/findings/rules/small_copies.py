"""Many small copies in place of one, and copies of tensors that PyTorch makes on the CPU just for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launches_of, operations, with_facts
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._copies import TO_DEVICE, TO_HOST, device_copies, without_set_up
from kanalyze.analyses.findings.rules._kernels import merged, nothing_within, times_of
from kanalyze.analyses.findings.rules._telling import (
    events_around,
    fewest_in,
    idle_in,
    in_pytorch,
    main_site,
    per_iteration,
    site_text,
    sites,
)
from kanalyze.analyses.host._call_kinds import calls_that, shown
from kanalyze.analyses.host._context_creation import context_calls
from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.idle._attribution import idle_within
from kanalyze.analyses.idle._blocking_calls import WAITING, scope_of
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import least_worth_saying, worth_saying
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._serialised import ordering_calls
from kanalyze.columns import exact
from kanalyze.columns.grouping import mixed, parts_by
from kanalyze.columns.lookup import beside, nearest
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids
from kanalyze.units import plural, rate, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report


#: The ledger's buckets in which a device waits for copying calls.
_WAITS: Final = ("launch", "queued", "sync", "api")

#: A profiler step's range, as `named_ranges` names it.
_STEP: Final = rf"^:?{STEP_PREFIX}\d+$"


def many_small_copies(report: Report) -> list[Finding]:
    """One finding per device and direction of copy."""
    if not worth_saying(report, most_small_copies_take(report)):
        return []
    parts = small_copies(report).partition_by("device", "detail", as_dict=True).items()
    found = [_small_copies_between(report, int(device), str(direction), part) for (device, direction), part in parts]
    return [one for one in found if one]


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
    calls = copies.select(start="call_start", end="call_end")
    return one._replace(
        claims=pl.concat([times_of(report, copies.get_column("row")), idle_in(report, device, calls)]),
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
    line = many.sort(*_STREAM, "began", "event_id").with_row_index("place")
    line = line.sort(pl.col("place").min().over(_SENT), "place").drop("place").with_row_index("place")
    call, earlier = pl.col("call_start"), pl.col("call_start").shift(1).over(*_STREAM, "detail")
    sides = pl.min_horizontal(call, earlier).alias("low"), pl.max_horizontal(call, earlier).alias("high")
    line = line.with_columns(*sides, earlier=earlier, on=mixed(_STREAM))
    line = nearest(line, _others(report, many), ("began", "passed"), ["on"])
    line = nearest(line, _cutting_calls(report, many), ("high", "cut"), _SENT, "strictly before").sort("place")
    same = pl.col("passed").eq_missing(pl.col("passed").shift(1).over(*_STREAM, "detail"))
    cut = (pl.col("cut") > pl.col("low")).fill_null(value=False)
    numbered = line.with_columns(run=(pl.col("earlier").is_null() | ~same | cut).cum_sum().cast(pl.Int64))
    return numbered.select(*small.columns, "run").filter(pl.len().over("run") >= RUN)


def most_small_copies_take(report: Report) -> int:
    """Upper bound of the time of all small copies in scope and their calls on one device; cheaper than finding runs."""
    took = pl.col("exclusive_ns").sum() + (pl.col("call_end") - pl.col("call_start")).sum()
    return longest(_called(report).group_by("device").agg(ns=took), "ns")


@once_per_report
def _called(report: Report) -> pl.DataFrame:
    """The program's small copies in scope, each with a call of its own."""
    small = device_copies(report).filter((pl.col("size_bytes") <= SMALL_BYTES) & pl.col("graph_node_id").is_null())
    small = small.drop_nulls("call_row")
    return without_set_up(report, small.filter(~pl.col("call_row").is_duplicated()))


@once_per_report
def large_copies(report: Report) -> pl.DataFrame:
    """Bytes and time of copies of at least :data:`LARGE_BYTES`: columns of :data:`ALIKE`, size_bytes, dur_ns (sums)."""
    large = device_copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
    return large.group_by(ALIKE).agg(pl.col("size_bytes", "dur_ns").sum())


def _others(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Operations other than `copies` that :func:`_cutting_calls` misses: passed (when they began), on (their stream).

    They have no call, or are other copies, such as large ones of the same direction, or several by one call.
    """
    untold = pl.col("call_row").is_null() | (pl.col("kind") == "memcpy")
    rest = operations(report, "call_row").filter(untold & ~pl.col("row").is_in(copies.get_column("row").implode()))
    return with_facts(report, rest, "context_id", "stream").select(on=mixed(_STREAM), passed="start")


def _cutting_calls(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """When a process called something that ends the runs of one direction on a device: :data:`_SENT`, cut."""
    sent = copies.select(_SENT).unique()
    work = operations(report, "call_start").drop_nulls("call_start")
    launched = sent.join(work.select(*_SENT[:2], other="detail", cut="call_start"), on=_SENT[:2])
    waits = calls_that(report, lambda name: scope_of(name) in WAITING, "process_id", "start_ns")
    waiting = sent.filter(pl.col("detail") == TO_HOST).join(waits.rename({"start_ns": "cut"}), on="process_id")
    asking = sent.join(ordering_calls(report).select("process_id", cut="at"), on="process_id")
    others = launched.filter(pl.col("other").ne_missing(pl.col("detail")))
    return pl.concat([part.select(*_SENT, "cut") for part in (others, asking, waiting)])


#: Operators that copy a tensor to another device.
_MOVES: Final = ("aten::to", "aten::_to_copy", "aten::copy_")

#: Operators that fill a tensor.
_FILLS: Final = (
    *("zeros", "ones", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "scalar_tensor"),
    *("fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "tril_indices", "triu_indices"),
)
_FILL_NAMES: Final = [f"aten::{name}" for name in _FILLS]

#: What torch.tensor(…) ends with, after an aten::to that does nothing on the CPU.
_LIFT: Final = "aten::lift_fresh"
_DETACH: Final = "aten::detach_"
_TENSOR: Final = "torch.tensor"

_IN_PLACE: Final = [name for name in _FILL_NAMES if name.endswith("_")]

#: The first of the shapes of an operator's inputs, as recorded.
_FIRST_SHAPE: Final = r"^\[(\[[^\]]*\])"

#: Most operators, with those inside of them, between the filling of a tensor and its copy: it may be changed meanwhile.
_BETWEEN: Final = 8


def extra_copy(report: Report) -> list[Finding]:
    """At most one finding per device, on all such copies together."""
    found, least = [], least_worth_saying(report)
    for (device,), copies in _moved(report).partition_by("device", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        if copies.height >= fewest_in(report) and number in least:
            pieces = idle_within(report, copies.select(*THREAD, start="made", end="until"))[number]
            claims = pl.concat([pieces.select("start", "end"), times_of(report, copies.get_column("row"))])
            stake = intervals.length(pieces) + total(copies, "exclusive_ns")
            found.append(_finding(report, number, stake, copies)._replace(claims=claims))
    return found


def _finding(report: Report, device: int, stake: int, copies: pl.DataFrame) -> Finding:
    per, top = per_iteration(report), copies.group_by("maker").len().sort("len", "maker", descending=[True, False])
    makers = ", ".join(f"{literal(maker)} ({per.plural(number, 'time')})" for maker, number in top.head(3).iter_rows())
    at = sites(report, copies.select(*THREAD, at="made")).select("function", "range")
    places = at.with_columns(operator=pl.lit(None, dtype=pl.String)).select(place=site_text()).drop_nulls()
    common = places.group_by("place").len().sort("len", "place", descending=[True, False])
    where = literal(common.item(0, "place")) if common.height else ""
    largest = longest(copies.with_columns(pl.col("size_bytes").fill_null(0)), "size_bytes")
    text = (
        f"{per.plural(copies.height, 'copy')} to GPU {device} of a tensor that was filled on the CPU right before, by "
        f"{makers}{f', most in {where}' if where else ''}, up to {size(largest)} each. The GPU idles while they are "
        f"made and sent, or does nothing but copy, for {per.time(stake)}."
    )
    name = str(top.item(0, "maker")).removeprefix("aten::")
    made = "zeros" if name.endswith("_") or name == _TENSOR else name
    remedy = (
        "Make the tensor on the GPU, torch.zeros(…, device=x.device), or once before the loop; from Python lists and "
        "numbers, once before the loop."
    )
    return Finding(
        "extra-copy",
        device,
        stake,
        text,
        remedy,
        "copies",
        headline="Tensors are made on the CPU and copied to the GPU",
        action=f"torch.{made}(…, device='cuda') in place of .to('cuda')",
        where=where,
        mending=partial(nothing_within, spans=copies.select(*THREAD, start="made", end="until")),
    )


@once_per_report
def _moved(report: Report) -> pl.DataFrame:
    """The copies to a device in scope right after an operator of their thread that filled a tensor on the CPU.

    Columns: row, device, exclusive_ns, size_bytes, process_id, thread_id, moved (when the operator that copied it
    began), until (its end), maker (the operator that filled it), made (its start).
    """
    copies = device_copies(report).filter((pl.col("detail").cast(pl.String) == TO_DEVICE) & ("op" in report.kinds))
    told = copies.drop_nulls("call_start")
    told = told.select("row", "device", "process_id", "exclusive_ns", "size_bytes", "thread_id", "call_start")
    told = told.with_row_index("point")
    moves = events_around(report, "op", _known(report, _MOVES), told.select("point", *THREAD, at="call_start"))
    outermost = moves.sort("start", "end", descending=[False, True]).unique("point", keep="first")
    found = told.join(outermost.select("point", moved="start", until="end"), on="point").sort("point")
    parts = [_with_makers(report, key, part) for key, part in parts_by(found, THREAD).items()]
    return pl.concat(parts) if parts else found.with_columns(maker=pl.lit(""), made="moved").clear()


def _known(report: Report, names: Sequence[str]) -> pl.Series:
    """The names of operators in the report that are among `names`."""
    every = report.kind("op").get_column("name").unique()
    return every.filter(every.cast(pl.String).is_in(names))


def _with_makers(report: Report, key: ThreadKey, copies: pl.DataFrame) -> pl.DataFrame:
    """The copies of one thread whose tensor was filled on the CPU right before; adds by which operator, and when.

    Where shapes are recorded, that is the last operator that filled a tensor of the shape that was copied, with at most
    :data:`_BETWEEN` operators after it; else the last one that filled any, with none after it.
    """
    process, thread = (pl.lit(value, dtype=pl.Int64) for value in key)
    ops = report.kind("op").filter(pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread))
    shaped = beside(ops, report.table("op_detail"), "input_shapes")
    shape = pl.col("input_shapes").cast(pl.String).str.extract(_FIRST_SHAPE).alias("shape")
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    known = shaped.select(pl.col("name").cast(pl.String), shape, start="start_ns", end=end)
    moves = known.filter(pl.col("name").is_in(_MOVES)).select("shape", moved="start").unique("moved", keep="first")
    line = copies.join(moves, on="moved", how="left", maintain_order="left").sort("moved")
    makers = _makers(known).sort("end", "start", descending=[False, True])
    found = []
    for own, same in ((line.drop_nulls("shape"), ["shape"]), (line, [])):
        fills = makers.select("maker", "shape", made="start", filled="end")
        fills = fills if same else fills.drop("shape")
        found.append(nearest(own, fills, ("moved", "filled"), same).drop_nulls("maker"))
    launches, begun = _launches(report, key), known.filter(pl.col("name") != _DETACH).get_column("start").sort()
    by_shape, any_shape = (
        _nearby(part, launches, begun, most) for part, most in zip(found, (_BETWEEN, 0), strict=True)
    )
    shaped_fills = makers.drop_nulls("shape").get_column("start")
    unknown = any_shape.filter(pl.col("shape").is_null() | ~pl.col("made").is_in(shaped_fills.implode()))
    every = pl.concat([part.select(*copies.columns, "maker", "made") for part in (by_shape, unknown)])
    return every.unique("point", keep="first", maintain_order=True)


def _nearby(copies: pl.DataFrame, launches: pl.Series, begun: pl.Series, most: int) -> pl.DataFrame:
    """Those of `copies` since whose filling nothing was launched, and at most so many operators began."""
    made, filled, moved = (copies.get_column(name) for name in ("made", "filled", "moved"))
    launched = launches.search_sorted(moved, side="left") > launches.search_sorted(made, side="left")
    between = begun.search_sorted(moved, side="left").cast(pl.Int64) - begun.search_sorted(filled, side="left")
    return copies.filter(~launched & (between <= most))


def _launches(report: Report, key: ThreadKey) -> pl.Series:
    """When a thread launched, sorted."""
    process, thread = key
    return launches_of(report, process, "call_start", thread=thread).to_series()


def _makers(ops: pl.DataFrame) -> pl.DataFrame:
    """The operators of a thread that fill a tensor, torch.tensor among them: maker (the name), start, end, shape."""
    fills = ops.filter(pl.col("name").is_in(_FILL_NAMES)).sort("start")
    lifts = ops.filter(pl.col("name") == _LIFT)
    copies = ops.filter(pl.col("name") == _MOVES[0]).select(copied="start", done="end")
    lifted = nearest(lifts, copies, ("start", "done")).drop_nulls("copied")
    made = fills.select("start", "end", maker="name", shape=_filled(fills, ops))
    return pl.concat(
        [made, lifted.select("shape", start="copied", end="end", maker=pl.lit(_TENSOR)).select(made.columns)]
    )


def _filled(fills: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """The shape that each of `fills` filled: that of the last operator in it that fills in place, null if unknown."""
    inner = ops.filter(pl.col("name").is_in(_IN_PLACE)).select(at="start", inner="shape").sort("at")
    found = fills.join_asof(inner, left_on="end", right_on="at", check_sortedness=False)
    inside = (pl.col("at") >= pl.col("start")).fill_null(value=False)
    return found.select(pl.when(inside).then("inner")).to_series().alias("shape")


RULES: Final = (many_small_copies, extra_copy)
