"""Copies that need not be: many small ones in place of one, of tensors made on the CPU, of what grows by a piece."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations, with_facts
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import FAMILY, LIBRARY, OPERATION
from kanalyze.analyses.findings.on_host import LARGE_BYTES, TO_HOST
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal
from kanalyze.analyses.host._call_kinds import calls_that, context_calls, shown
from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.idle.code import place_at, placed_with_text
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.idle.syncs import WAITING, scope_of
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import ordering_calls
from kanalyze.columns import having, mixed, nearest, rate_of
from kanalyze.report import Report
from kanalyze.window import ALL_STEPS, STEP_PREFIX, plain, without_ids

_STEP: Final = rf"^:?{STEP_PREFIX}\d+$"  # a profiler step's range, as `named_ranges` names it

#: Upper limit of a small copy; below it, the duration hardly depends on the size.
_SMALL_BYTES: Final = 64 << 10

RUN: Final = 10  # minimum number of consecutive small copies for a run

#: A stream, keys by which runs are separated (the same calls end all runs of one key), and keys of comparable copies.
_STREAM: Final = ("process_id", "device", "context_id", "stream")
_SENT: Final = ("process_id", "device", "detail")
_ALIKE: Final = ("device", "detail", "source_memory", "target_memory")


@Rule
def many_small_copies(report: Report) -> Findings:
    """One finding per device and direction of copy."""
    parts = small_copies(report).partition_by("device", "detail", as_dict=True).items()
    yield from (_between(report, int(str(device)), str(direction), part) for (device, direction), part in parts)


def _between(report: Report, device: int, direction: str, copies: pl.DataFrame) -> Finding:
    """The finding on runs of one direction on one device; one copy could replace each run."""
    # idle time, less the profiler's overhead and context creation
    overhead = report.kind("overhead").select(**intervals.OF_EVENTS)
    created = context_calls(report).select(start="start_ns", end="made_ns")
    free = intervals.subtract(idle_spans(report)[device], intervals.union(pl.concat([overhead, created])))
    waited = intervals.overlap(copies.get_column("call_start"), copies.get_column("call_end"), free)
    # large copies between the same kinds of memory, or if there are none, in the same direction
    large = on_host.device_copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
    same = large.join(copies, on=_ALIKE, how="semi", nulls_equal=True)
    large = same if same.height else large.join(copies, on=_ALIKE[:2], how="semi")
    speed = total(large, "size_bytes") / total(large, "dur_ns") if large.height else None  # bytes per ns
    sums = copies.with_columns(waited.alias("waited_ns")).group_by("run")
    runs = sums.agg(pl.len().alias("count"), pl.col("exclusive_ns", "waited_ns", "size_bytes", "dur_ns").sum())
    # the cost of one copy for the whole run: at the bandwidth of large ones, but at least that of one small copy
    alone = pl.col("dur_ns") / pl.col("count")
    joined = pl.max_horizontal(alone, pl.col("size_bytes") / speed) if speed else alone
    moving = (pl.col("exclusive_ns") - joined).clip(lower_bound=0).sum().cast(pl.Int64)
    calling = (pl.col("waited_ns") - pl.col("waited_ns") / pl.col("count")).sum().cast(pl.Int64)
    moved_ns, called_ns = runs.select(moving=moving, calling=calling).row(0)
    waits = (pl.col("device") == device) & pl.col("bucket").is_in(("launch", "queued", "sync", "api"))
    called_ns = min(called_ns, total(bucket_sums(report).filter(waits), "ns"))
    figures = {"many": copies.height, "direction": direction, "bytes": copies.get_column("size_bytes").mean()}
    figures |= {"rate": on_host.bandwidth(copies), "several": runs.height > 1, "runs": runs.height}
    figures |= {"moved": moved_ns, "called": called_ns, "large": LARGE_BYTES}
    figures["against"] = rate_of(speed, 1) if speed else 0.0
    one = runs.select(group="run", kept=pl.lit(1), merged_ns=joined.cast(pl.Int64))
    idle = say.idle_in(report, device, copies.select(start="call_start", end="call_end"))
    return say.told(
        report,
        "small-copies",
        device,
        pl.concat([on_gpu.times_of(report, copies.get_column("row")), idle]),
        moved_ns + called_ns,
        **figures,
        caller=_caller(report, copies),
        one="per run" if runs.height > 1 else "of all",
        where=say.main_site(report, copies.select("process_id", "thread_id", at="call_start")),
        mending=on_gpu.merged(copies.select("row", "dur_ns", group="run").join(one, on="group")),
    )


def _caller(report: Report, copies: pl.DataFrame) -> str:
    """The call that issued most of the copies, and the range around most of them."""
    call = on_host.by_number(copies.select(shown(pl.col("call_name"))).to_series()).item(0, "value")
    text = f", by {literal(str(call))}"
    inside = ranges_at(report, copies.select("process_id", "thread_id", at="call_start")).drop_nulls()
    if inside.is_empty():
        return text
    names = named_ranges(report).select(without_ids(pl.col("range"))).to_series().gather(inside)
    name, number = on_host.by_number(names.str.replace(_STEP, ALL_STEPS)).row(0)
    return f"{text}{'' if number == copies.height else ', most often'} in the range {literal(plain(name))}"


@once_per_report
def small_copies(report: Report) -> pl.DataFrame:
    """The small copies in scope that belong to a run of at least :data:`RUN`, by stream and time; with `run`.

    A run is a sequence of copies of one direction in one stream, each by its own call, with no other operation of the
    stream between them, so that one copy could replace it: nothing in between may have written its source or read its
    target. So a new run begins where the process, between the calls of two copies, launched other work on the device or
    made a call of :func:`ordering_calls`; for copies to the host also where it made a call that only waits.
    """
    small = on_host.device_copies(report).filter(
        (pl.col("size_bytes") <= _SMALL_BYTES) & pl.col("graph_node_id").is_null()
    )
    small = on_host.without_set_up(report, small.drop_nulls("call_row").filter(~pl.col("call_row").is_duplicated()))
    many = small.filter(pl.len().over(*_STREAM, "detail") >= RUN)
    if many.is_empty():
        return many.with_columns(run=pl.lit(0, dtype=pl.Int64))
    line = many.sort(*_STREAM, "began", "event_id").with_row_index("place")
    line = line.sort(pl.col("place").min().over(_SENT), "place").drop("place").with_row_index("place")
    call, earlier = pl.col("call_start"), pl.col("call_start").shift(1).over(*_STREAM, "detail")
    sides = pl.min_horizontal(call, earlier).alias("low"), pl.max_horizontal(call, earlier).alias("high")
    line = line.with_columns(*sides, earlier=earlier, on=mixed(_STREAM))
    # operations that no call tells of: they have none, or are other copies, large ones, or several by one call
    untold = pl.col("call_row").is_null() | (pl.col("kind") == "memcpy")
    rest = operations(report, "call_row").filter(untold & ~pl.col("row").is_in(many.get_column("row").implode()))
    others = with_facts(report, rest, "context_id", "stream").select(on=mixed(_STREAM), passed="start")
    line = nearest(line, others, ("began", "passed"), ["on"])
    line = nearest(line, _cutting_calls(report, many), ("high", "cut"), _SENT, "strictly before").sort("place")
    same = pl.col("passed").eq_missing(pl.col("passed").shift(1).over(*_STREAM, "detail"))
    cut = (pl.col("cut") > pl.col("low")).fill_null(value=False)
    numbered = line.with_columns(run=(pl.col("earlier").is_null() | ~same | cut).cum_sum().cast(pl.Int64))
    return numbered.select(*small.columns, "run").filter(pl.len().over("run") >= RUN)


def _cutting_calls(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """When a process called something that ends the runs of one direction on a device: :data:`_SENT`, cut."""
    sent = copies.select(_SENT).unique()
    sides = copies.select(low=pl.col("call_start").min(), high=pl.col("call_start").max()).row(0)
    work = operations(report, "call_start").select(*_SENT[:2], other="detail", cut="call_start")
    launched = sent.join(work.filter(pl.col("cut").is_between(*sides)), on=_SENT[:2])
    waits = calls_that(report, lambda name: scope_of(name) in WAITING, "process_id", "start_ns")
    waiting = sent.filter(pl.col("detail") == TO_HOST).join(waits.rename({"start_ns": "cut"}), on="process_id")
    asking = sent.join(ordering_calls(report).select("process_id", cut="at"), on="process_id")
    others = launched.filter(pl.col("other").ne_missing(pl.col("detail")))
    return pl.concat([part.select(*_SENT, "cut") for part in (others, asking, waiting)])


# Tensors that are copied to grow by a piece, and tensors that are repeated in memory.

_MUCH: Final = 0.08  # less of the kernel time is left out

#: Concatenations grow where the later ones of the window take longer: so many, with such a correlation of time and
#: place, and the last quarter so much longer than the first one.
_FEWEST: Final = 16
_CORRELATED: Final = 0.3
_GROWS: Final = 1.005

#: The same within iterations: from eighth to eighth, none far longer than the one before, but for the first: layers
#: that join images of other sizes are.
_EIGHTHS: Final = 8
_GROWS_WITHIN: Final = 1.3
_JUMPS: Final = 2.0

#: A line that joins what an object or a list holds, and puts the result there: ``self.k = torch.cat([self.k, k])``.
_JOINS: Final = re.compile(
    r"(?<![\w.\]])(\w+(?:\.\w+|\[[^\[\]]*\])+)\s*=\s*(?:torch\.)?(?:cat|concat)\(\s*[\[(]\s*\1\s*,"
)

#: What users write that repeats a tensor in memory, by the operators.
_REPEATS: Final = {"aten::repeat": ".repeat()", "aten::repeat_interleave": "repeat_interleave", "aten::tile": "tile"}


@Rule
def growing_concatenations(report: Report) -> Findings:
    """At most two findings per device: concatenations that grow, and repeated tensors."""
    aten = LIBRARY == "aten"
    for device in on_gpu.kernel_sums(report) if say.in_pytorch(report) else ():
        every = on_gpu.with_operators(report, exclusive_operations(report, "thread_id", "call_start"))
        # what has more than 2³¹ elements is joined by copies
        copied = on_gpu.COPIES_WITHIN & (pl.col("outer") == "aten::cat").fill_null(value=False)
        copied &= pl.col("device") == device.device
        cats = every.filter(device.are(aten & (OPERATION == "cat")) | copied).sort("start")
        whole_ns = device.kernel_ns + total(cats.filter(pl.col("kind") == "memcpy"), "exclusive_ns")
        if total(cats, "exclusive_ns") >= _MUCH * whole_ns and cats.height >= _FEWEST:
            grows = _grow(cats.get_column("dur_ns"), say.per_iteration(report).iterations or 1)
            # whether the results of most take the place of what they join
            places = place_at(report, cats.select(*THREAD, at="call_start")).alias("place").to_frame()
            lines = placed_with_text(report, places.with_columns(cats["exclusive_ns"]).drop_nulls("place"))
            texts = lines.get_column("text").cast(pl.String)
            joins = pl.Series([bool(_JOINS.search(text or "")) for text in texts], dtype=pl.Boolean)
            if grows or 2 * total(lines.filter(joins), "exclusive_ns") > total(cats, "exclusive_ns"):
                name = "growing-copies" if grows else "growing-copies: kept"
                yield _copied(report, device.device, cats, whole_ns, name)
        copies = every.filter(device.are(aten & ((OPERATION == "copy") | (FAMILY == "index"))))
        work = copies.filter(pl.col("outer").is_in(_REPEATS.keys()))
        if total(work, "exclusive_ns") >= max(_MUCH * device.kernel_ns, 1):
            yield _copied(report, device.device, work, device.kernel_ns, "growing-copies: repeated")


@Rule
def growing_copies(report: Report) -> Findings:
    """One finding per device on copies within it of what was there, each followed by one of the piece that is new."""
    every = exclusive_operations(report, "size_bytes", "stream")
    size, beside = pl.col("size_bytes"), ["device", "stream"]
    grows = (size.shift(-2) == size + size.shift(-1)).over(beside) & (size > size.shift(-1)).over(beside)
    again = grows.shift(2).over(beside) & (size > size.shift(-1).over(beside))
    within = every.filter(pl.col("detail") == "Device-to-Device").sort("start")
    for device, copies in say.by_device(within.filter(grows | again)):
        whole_ns = total(every.filter(pl.col("device") == device), "exclusive_ns")
        if copies.height >= _FEWEST and total(copies, "exclusive_ns") >= _MUCH * whole_ns:
            one = _copied(report, device, copies, whole_ns, "growing-copies: arrays")
            yield one._replace(names=(), mending=on_gpu.without(copies))


#: Kernels with a block for each row of a text; a pass of so many rows as the one before and a few more, at most this
#: part of all, may go through them again, where a word is chosen after each, and nothing is trained. Products of fewer
#: rows take as long as of so many: their weights are read.
_OF_ROWS: Final = r"layer_norm|rms_norm"
_FEW_MORE: Final = 1 / 16
_PASSES: Final = 4
_LEAST_ROWS: Final = 300


@Rule
def no_kv_cache(report: Report) -> Findings:
    """One finding per device on passes of a model over rows that the pass before went through, and some more."""
    more, rows = pl.col("rows").diff(), pl.col("rows")
    again = (more > 0) & (more <= _FEW_MORE * rows) & ((more == more.shift(1)) | (more == more.shift(-1)))
    for device in on_gpu.kernel_sums(report) if say.in_pytorch(report) else ():
        every = exclusive_operations(report, *SHAPE).filter(device=device.device, kind="kernel").sort("start")
        norms = every.filter(on_host.kernels_named(every, _OF_ROWS)).select("start", rows="grid_x").cast(pl.Int64)
        runs = norms.group_by(run=rows.rle_id(), maintain_order=True).agg(
            pl.col("start", "rows").first(), many=pl.len()
        )
        # the last norm of a pass may be of the last words alone
        before, after = rows < rows.shift(1), (rows < rows.shift(-1)).fill_null(value=True)
        dips = before & after & (pl.col("many") < pl.col("many").shift(1))
        passes = runs.filter(~dips.fill_null(value=False))
        passes = passes.select(begun="start", more=more, rows="rows", again=again.fill_null(value=False))
        work = nearest(every, passes, ("start", "begun"), ())
        names = work.get_column("name")
        chosen = work.filter(having(names, on_host.CHOOSES)).get_column("begun")
        trained = having(names, on_host.UPDATES).any()
        work = work.filter("again", pl.col("begun").is_in(chosen.implode()), not trained)
        many, per = work["begun"].n_unique(), say.per_iteration(report)
        if many < max(_PASSES, (per.iterations or 1) / 2):
            continue
        least = pl.when(on_gpu.decoded_as(work, FAMILY == "gemm")).then(_LEAST_ROWS).otherwise(0)
        left = (pl.max_horizontal("more", least) / rows).clip(upper_bound=1.0) * pl.col("dur_ns")
        saved = (pl.col("dur_ns") - pl.max_horizontal(left, on_gpu.LEAST_NS).cast(pl.Int64)).clip(lower_bound=0)
        yield on_gpu.Work(report, device, work).finding(
            "no-kv-cache",
            "",
            passes=many,
            rows=longest(work, "rows"),
            left=None,
            mending=Mending(shorter=work.select("row", saved_ns=saved)),
        )


def _copied(report: Report, device: int, work: pl.DataFrame, whole_ns: int, name: str) -> Finding:
    """The finding on operations that copy, of which only the new piece would have to be."""
    ns, outer = total(work, "exclusive_ns"), "outer" if "outer" in work.columns else "name"
    return say.told(
        report,
        name,
        device,
        work.select("start", "end"),
        ns,
        many=work.height,
        share=ns / max(whole_ns, 1),
        written=_REPEATS.get(say.most(work, outer, "exclusive_ns"), ""),
        names=(str(work.sort("exclusive_ns").item(-1, "name")),),
        where=say.place_of(report, work.get_column("row")),
        mending=Mending(shorter=work.select("row", saved_ns=(pl.col("dur_ns") - on_gpu.LEAST_NS).clip(lower_bound=0))),
        shortens=True,
    )


def _grow(took: pl.Series, iterations: int) -> bool:
    """Whether durations grow along the window, or from eighth to eighth of each of so many iterations."""
    each = len(took) // iterations
    whole = took.head(each * iterations).to_frame("ns").with_row_index("at")
    within = whole.group_by(pl.col("at") % max(each, 1)).agg(pl.col("ns").mean()).sort("at").get_column("ns")
    quarter = len(took) // 4
    along, longer = whole.select(
        pl.corr("at", "ns"), longer=pl.col("ns").tail(quarter).mean() >= _GROWS * pl.col("ns").head(quarter).mean()
    ).row(0)
    if longer and along is not None and along >= _CORRELATED:
        return True
    if len(within) < _FEWEST:
        return False
    parts = within.to_frame("ns").with_columns(part=pl.int_range(pl.len()) * _EIGHTHS // pl.len())
    means = parts.group_by("part").agg(pl.col("ns").mean()).sort("part").get_column("ns").to_list()
    steps = [after / before for before, after in pairwise(means)]
    return bool(min(steps) > 1 and means[-1] >= _GROWS_WITHIN * means[0] and max(steps[1:]) <= _JUMPS)
