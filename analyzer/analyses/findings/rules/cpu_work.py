"""Work of the host between launches of PyTorch: operators on the CPU, checks of anomaly detection, modes in Python."""

import re
from functools import partial
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import facts_of
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import on_gpu, on_host, rules, say
from kanalyze.analyses.findings.on_host import IS_NODE, LARGE_BYTES, SCALAR_BYTES, SPAN, TO_DEVICE, TO_HOST
from kanalyze.analyses.idle.code import line_that_reads
from kanalyze.analyses.iterations._marks import LIBRARIES
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import named_ranges, once_per_process, source_lines
from kanalyze.analyses.shared.threads import THREAD, by_thread, line_of, of_thread
from kanalyze.columns import as_of, nearest, of_parts, rows_at
from kanalyze.report import Report

#: Operators that launch nothing on any device: they change how a tensor is seen, or get memory.
_NO_WORK: Final = (
    r"^aten::(?:_?unsafe_)?(?:view|view_as|reshape|reshape_as|t|transpose|permute|movedim|unbind|select|slice|narrow|split"
    r"|chunk|expand|expand_as|as_strided|detach|detach_|alias|squeeze|unsqueeze|flatten|unflatten|empty|empty_like"
    r"|empty_strided|new_empty|resize_|set_|lift_fresh|result_type|is_same_size|size|stride|numpy_T|T|mT|_reshape_alias"
    r"|diagonal|unfold|swapaxes|real|view_as_real|view_as_complex|requires_grad_|_local_scalar_dense|item|split_with_sizes"
    r"|_has_compatible_shallow_copy_type|tensor_split|hsplit|vsplit|broadcast_tensors|to|_to_copy|contiguous|clone"
    r"|dropout|resolve_conj|resolve_neg)_?$"
)

#: What PyTorch runs on a tensor that it made of Python's or NumPy's data, behind these where it made it of a list, and
#: before that one where it copied an array; alone of an array that becomes a tensor without a copy (torch.from_numpy).
_LIFTS: Final = "aten::lift_fresh"
_OF_LIST: Final = ("aten::to", "aten::empty")
_FILLS: Final = r"(?:normal|uniform|random|bernoulli|exponential|geometric|cauchy|log_normal)_"
_CREATES: Final = (
    rf"^aten::(?:{_FILLS}|full|full_like|ones|ones_like|zeros|zeros_like|arange|linspace|logspace|eye|tril_indices|triu_indices|rand"
    r"|randn|randint|randperm|rand_like|randn_like|hann_window|hamming_window|tensor|scalar_tensor|new_full|new_zeros"
    r"|new_ones|normal|bernoulli|cartesian_prod)$"
)

#: Those that users call with a device; of them what draws numbers, which nobody wants to be the same each time.
_DRAWS: Final = rf"(?P<draws>rand(?:n|int|perm|_like|n_like)?|(?P<fills>{_FILLS}))"
_MAKES: Final = re.compile(rf"aten::(?:arange|eye|linspace|ones|zeros|{_DRAWS})")

#: Operators of models, and of signals and images, which compute rather than convert what is copied next.
_COMPUTES: Final = (
    r"^aten::(?:embedding|embedding_bag|linear|addmm|layer_norm|batch_norm|lstm|gru|scaled_dot_product_attention"
    r"|stft|istft|_?fft_\w+|matmul|mm|bmm|einsum|conv\w*|_convolution|upsample_\w+|grid_sampler\w*|sort|argsort|topk"
    r"|cumsum|linalg_\w+|abs|pow|log|log10|log2|log1p|exp)_?$"
)

#: Types of a copy that makes data larger, of bytes and of others that are stored in fewer; and pinned data of such.
_STORED: Final = r"\s*\"(?:unsigned char|signed char|char|short|unsigned short)\""
_PINS: Final = pl.col("name").str.contains("^aten::_?pin_memory$") & (
    pl.col("input_types").cast(pl.String).str.contains(rf"^\[{_STORED}")
)

#: An operator on the CPU that no copy is seen beside takes so long at least (ns); launches that the host is late for.
_LONG_NS: Final = 100_000

#: A line that makes a tensor of lists or arrays that have a name.
_OF_A_NAME: Final = r"\btorch\.(?:as_)?tensor\(\s*[\w.]+\s*[,)]"

#: The kind of runs that join tensors to what is copied next; few large ones take less time for each byte.
_STACKED: Final = "data-loading: stacked"
_JOINS: Final = pl.col("top").is_in(["aten::stack", "aten::cat"]) & (pl.col("bytes") <= pl.col("top_ns"))

_OF_DATA_NS: Final = 600  # the most that the host works for a byte of what was copied to it


@rules.Rule
def cpu_work(report: Report) -> rules.Findings:
    """At most one finding per device on each kind of work of the CPU between launches."""
    named = say.in_pytorch(report) and on_host.outermost(report).height
    every = _runs(report) if named else _between_copies(report)
    for rule in ("cpu-operators", "cpu-tensors", "large-upload", _STACKED):
        if (runs := every.filter(pl.col("kind") == rule)).is_empty():
            continue
        inside, start, within = on_host.within(report, runs), pl.col("start"), pl.col("within")
        along = (say.all_along(start, low, high) for _, low, high in windows(report).iter_rows())
        if not (say.per_iteration(report).iterations or any(inside.host.select(one).item() for one in along)):
            continue
        # of Python, without an operator's name
        lists_ns = pl.col("end") - start if rule == "cpu-tensors" else 0
        ns = pl.when(pl.col("top").is_not_null()).then("top_ns").otherwise(lists_ns)
        # those that only a set-up runs are not named
        seen = [part for part in runs.partition_by("top") if on_host.within(report, part).host.height]
        top = say.most(pl.concat([runs.head(0), *seen]).with_columns(ns=ns), "top", "ns")
        moved = int(runs.select(pl.col("bytes").median().fill_null(0)).item())
        maker = _MAKES.fullmatch(top or "")
        kind = ": of Python" if not top else ": random" if maker and maker["draws"] else ""
        kind = kind if rule == "cpu-tensors" else ": by the copy" * runs.select(2 * within.sum() > pl.len()).item()
        by_host = "what the host does between a copy to it and one back"
        by_host = by_host if rule == "cpu-operators" else "Python and NumPy"
        figures = {"top": rules.literal(top) or by_host, "named": rules.literal(top), "moved": moved}
        fills = maker["fills"] if maker else None
        figures |= {"maker": "empty" if fills else maker[0].removeprefix("aten::") if maker else "full", "fills": fills}
        yield from on_host.on_time(report, f"{rule}{kind}", inside, partial(_spared, runs=runs, rule=rule), **figures)


def _spared(report: Report, runs: pl.DataFrame, rule: str) -> Mending:
    """The time of the runs is gone, but for launches of the operators that the device computes then."""
    # data that were converted before are still copied, by a quarter: they are bytes that became four each
    every = on_host.within(report, runs)
    if rule == "cpu-tensors":
        return every.mending
    kept = pl.min_horizontal(pl.col("start") + pl.col("operators").cast(pl.Int64) * say.LAUNCH_NS, "end")
    left = on_host.within(report, runs.with_columns(start=kept)).mending
    if rule == _STACKED:
        return left
    if rule == "cpu-operators":
        return left._replace(gone=every.mending.gone)
    facts = facts_of(report, every.mending.gone, "dur_ns", "detail", "size_bytes", "device")
    facts = facts.with_columns(every.mending.gone.alias("row"))
    copies, spared = (pl.col("detail") == TO_DEVICE).fill_null(value=False), on_host.SPARED
    saved = pl.col("dur_ns") * spared
    # what a copy makes of bytes is not pinned, as bytes of this program are
    rate = on_host.pinned_rate(report, facts.select(pl.col("device").first()).item())
    if rate and runs.get_column("within").all() and on_host.operators(report).select(_PINS.any()).item():
        saved = pl.max_horizontal(saved, pl.col("dur_ns") - pl.col("size_bytes") * (1 - spared) / rate * 1e9)
    shorter = facts.filter(copies).select("row", saved_ns=saved.cast(pl.Int64))
    return left._replace(gone=facts.filter(~copies).get_column("row"), shorter=shorter)


def _operators_in_runs(report: Report) -> pl.DataFrame:
    """Outermost operators with the number of their run on their thread, and what they do to data of the host."""
    name, own = pl.col("name"), pl.col("own")
    launching = (pl.col("launches") > 0) | pl.col("called") | pl.col("aside")
    line = on_host.outermost(report).sort(*THREAD, "start")
    listed = pl.all_horizontal(name.shift(by).over(THREAD) == before for by, before in enumerate(_OF_LIST, 1))
    lifts = (name == _LIFTS) & (listed | (name.shift(-1).over(THREAD) == "aten::detach_")).fill_null(value=False)
    line = line.with_columns(run=launching.cast(pl.UInt32).cum_sum().over(THREAD), own=~launching, lifts=lifts)
    return line.with_columns(
        # types of a copy that makes data smaller: into 16 bits, of more
        shortens=_copied_bytes(report, line, r"^\[\s*\"c10::(?:BFloat16|Half)\",\s*\"(?:float|double)\"") > 0,
        widened_bytes=_copied_bytes(report, line, rf"^\[\s*\"(?:float|double)\",{_STORED}"),
        computes=own & ~name.str.contains(_NO_WORK),
        # operators that change the type, the range or the layout of data; what is as asked for already calls none
        converts=own
        & ((pl.col("stop") - pl.col("row") > 1) | ~name.str.contains(r"^aten::(?:to|contiguous|float|half)$"))
        & name.str.contains(
            r"^aten::(?:to|_to_copy|div|div_|mul|mul_|sub|sub_|add|add_|permute|contiguous|clone|float|half|copy_)$"
        ),
    )


@once_per_process
def _runs(report: Report) -> pl.DataFrame:
    """Runs of operators that launch nothing between two that do, with work of the CPU in them.

    Columns: SPAN (with the copies from and to the device beside them), kind (the rule's name), operators (number of
    those that compute), top (the one that takes most), top_ns, bytes (copied to the device), within (whether the copy
    to the device converts them).
    """
    name, own, launches = pl.col("name"), pl.col("own"), ~pl.col("own")
    line = _operators_in_runs(report)
    took = pl.when(pl.col("computes") | pl.col("converts")).then(pl.col("end") - pl.col("start"))
    runs = line.group_by(*THREAD, "run", maintain_order=True).agg(
        first=pl.col("start").filter(own).min(),
        first_converted=pl.col("start").filter("converts").min(),
        last=pl.col("end").filter(own).max(),
        before_start=pl.col("start").filter(launches).first(),
        before_end=pl.col("end").filter(launches).first(),
        to_host_bytes=pl.col("to_host_bytes").filter(launches).first().fill_null(0),
        operators=pl.col("computes").sum(),
        others=(pl.col("computes") & ~pl.col("converts") & ~name.str.contains(_CREATES)).sum(),
        created=(own & name.str.contains(_CREATES)).any(),
        lifted=(own & pl.col("lifts")).any(),
        arrays=(own & (name == _LIFTS)).any(),
        lifted_first=pl.col("lifts").filter(own).first().fill_null(value=False),
        converts=(pl.col("converts") & ~pl.col("shortens")).any(),
        widened_bytes=pl.col("widened_bytes").filter(own).sum(),
        top=name.sort_by(took, nulls_last=False).last(),
        top_ns=took.max(),
        took_ns=took.sum(),
    )
    launching = line.filter(launches)
    following = _following(launching)
    runs = runs.join(following, on=[*THREAD, "run"], how="left", nulls_equal=True, maintain_order="left")
    runs = _handed_on(report, runs, launching)
    # torch.tensor(…, device=…) copies before it lifts
    lifted = pl.col("lifted") | pl.col("lifted_first").shift(-1, fill_value=False).over(THREAD)
    # what takes longer is no work of NumPy on that array, but Python's on its elements
    lifted |= pl.col("arrays") & (pl.col("after_start") - pl.col("before_end") <= 20 * pl.col("bytes"))
    # of large data what the host did in lines before is no part of it, since it may have read them; nor of slow data
    text = pl.col("text").cast(pl.String)
    lines = source_lines(on_host.traced(report) or report)
    lines = lines.select(*THREAD, since="start_ns", makes=text.str.contains(_OF_A_NAME)).sort("since")
    ends = nearest(runs.select(*THREAD, "run", "after_start").drop_nulls(), lines, ("after_start", "since"), THREAD)
    runs = runs.join(ends.drop("after_start"), on=[*THREAD, "run"], how="left", nulls_equal=True, maintain_order="left")
    since, small = pl.max_horizontal("before_end", "since"), pl.col("bytes") < LARGE_BYTES
    # most of the time in a line that makes a tensor of what it has: nothing is computed there
    makes = 2 * (pl.col("after_start") - since) >= pl.col("after_start") - pl.col("before_end")
    makes = (makes & pl.col("makes") & lifted).fill_null(value=False)
    # copying within the host takes less for each byte; data that take longer before they are copied are made of lists
    slow = pl.col("after_start") - since > 2 * pl.col("bytes")
    # no list of numbers takes so long to become a tensor: what takes longer is computed, in the lines before
    converted_ns = pl.max_horizontal(50 * pl.col("bytes"), _LONG_NS)
    computed = pl.col("after_start") - pl.col("before_end") > converted_ns
    # nor a line of Python that goes on for longer, which was sampled before the next one began
    # a list of small types, or of arrays, takes no longer than this for a byte
    longest_ns = pl.max_horizontal(600 * pl.col("bytes"), _LONG_NS).cast(pl.Int64)
    nearby = pl.max_horizontal(since, pl.col("after_start") - longest_ns)
    begun = pl.when(lifted & (~small | computed)).then(nearby).otherwise("before_end")
    between = runs.select(*THREAD, start="before_end", end="after_start").fill_null(0)
    runs = runs.with_columns(_are_named(on_host.traced(report) or report, between))
    return _of_kinds(runs.with_columns(lifted=lifted & (small | slow), makes=makes, before_end=begun))


def _following(launching: pl.DataFrame) -> pl.DataFrame:
    """What the operators that launch tell of the run before each: by thread and run."""
    moved, moves = pl.col("to_host_bytes") + pl.col("to_device_bytes"), pl.col("to_host") + pl.col("to_device")
    # others that launch a copy work on what was copied as well
    copies = pl.col("name").str.contains(r"^aten::(?:to|_to_copy|copy_|clone|contiguous|pin_memory)$")
    return launching.select(
        *(*THREAD, "to_device"),
        run=pl.col("run") - 1,
        number=(moved <= SCALAR_BYTES) & (moves == pl.col("launches")) & (moves > 0),
        after_start="start",
        after_end=pl.when(copies).then("end").otherwise("start"),
        copying="name",
        bytes="to_device_bytes",
        within_bytes=pl.when(copies).then("widened_bytes"),
        to_host_next="to_host",
    )


def _copied_bytes(report: Report, line: pl.DataFrame, types: str) -> pl.Series:
    """What the CPU's copies of such input types in operators of `line` write, where types are known; 1 for no shape."""
    such = (pl.col("name") == "aten::copy_") & pl.col("input_types").cast(pl.String).str.contains(types)
    copies = on_host.operators(report).filter(such, ~pl.col("called"))
    written = copies.select(4 * on_host.elements()).to_series().fill_null(1)
    before = pl.concat([pl.Series([0.0]), written.cum_sum()])
    first, stop = (copies.get_column("row").search_sorted(line.get_column(side)) for side in ("row", "stop"))
    return before.gather(stop) - before.gather(first)


def _handed_on(report: Report, runs: pl.DataFrame, launching: pl.DataFrame) -> pl.DataFrame:
    """The runs with the copy to the host that each computes on: before copies of numbers, or by another thread.

    Backward's thread of the device copies gradients that the one which called it computes on. Adds goes_on: whether the
    next run computes on, after a copy of a number.
    """
    nodes = on_host.operators(report).filter(IS_NODE).select(SPAN)
    before = launching.select("process_id", since="start", until="end", handed_bytes="to_host_bytes")
    works = (pl.col("operators") > 0) & (pl.col("top_ns") >= 2 * say.LAUNCH_NS) & ~pl.col("created") & ~pl.col("lifted")
    goes_on = (pl.col("number") & works & works.shift(-1).over(THREAD)).fill_null(value=False)
    runs = runs.with_columns(
        goes_on=goes_on,
        follows=goes_on.shift(1, fill_value=False).over(THREAD),
        inside=on_gpu.is_inside(runs.select(*THREAD, at="first"), nodes),
    )
    at = as_of(runs.select("process_id", at="first"), before.select("process_id", at="until"))
    runs = runs.hstack(rows_at(before.drop("process_id"), at))
    handed = pl.col("inside") & ~pl.col("follows") & (pl.col("until") > pl.col("before_end"))
    begun = {"before_start": pl.max_horizontal("since", "before_end"), "before_end": pl.col("until")}
    copied_bytes = pl.when(handed).then("handed_bytes").when(~pl.col("follows")).then("to_host_bytes")
    return runs.with_columns(
        *(pl.when(handed).then(of).otherwise(name).alias(name) for name, of in begun.items()),
        to_host_bytes=copied_bytes.forward_fill().over(THREAD),
    )


def _of_kinds(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs of a kind, with what of their time, and of what is around them, is work of the CPU."""
    uploads, downloads = pl.col("to_device").fill_null(0) > 0, pl.col("to_host_bytes") > SCALAR_BYTES
    # what is copied back is up to so many times as large as what came: one-hot vectors of numbers of classes are
    back = uploads & (pl.col("bytes") <= 32 * pl.col("to_host_bytes"))
    # a processor writes no more in a nanosecond: what operators made so quickly is not what is copied
    made = pl.col("bytes").fill_null(0) <= 200 * pl.col("took_ns")
    by_operators = (pl.col("operators") > 0) & ((pl.col("top_ns") >= 2 * say.LAUNCH_NS) | (back & made))
    between_ns = pl.col("after_start") - pl.col("before_end")
    by_others = back & between_ns.is_between(_LONG_NS, _OF_DATA_NS * pl.col("to_host_bytes"))
    returns = pl.when(~pl.col("goes_on")).then(back).backward_fill().over(THREAD)
    used = (pl.col("to_host_next").fill_null(0) == 0) | (pl.col("goes_on") & returns)
    # bytes that become numbers of four each, if such copies write most of what is copied next; without other work they
    # are no results of what was copied to the host
    within = pl.col("within_bytes").fill_null(0) >= 0.5 * pl.col("bytes")  # a copy to a larger type begins on the CPU
    widened = pl.max_horizontal("widened_bytes", pl.col("within_bytes").fill_null(0)) >= 0.5 * pl.col("bytes")
    widened &= uploads & (pl.col("bytes") >= LARGE_BYTES)
    new = widened.fill_null(value=False) & (pl.col("others") == 0)
    # what works on large data within a range of the program works on these
    named = pl.col("named") & (pl.col("to_host_bytes").fill_null(0) < LARGE_BYTES)
    computing = downloads & (by_operators | by_others) & used & ~new & ~named & ~pl.col("makes")
    long = (pl.col("top_ns") >= _LONG_NS) & ~pl.col("created")
    stacked = (uploads & long & _JOINS).fill_null(value=False)
    kind = (
        pl.when(computing | (uploads & long & pl.col("top").str.contains(_COMPUTES)))
        .then(pl.lit("cpu-operators"))
        .when(widened)
        .then(pl.lit("large-upload"))
        .when(stacked)
        .then(pl.lit(_STACKED))
        .when(uploads & ((pl.col("created") & made) | pl.col("lifted")))
        .then(pl.lit("cpu-tensors"))
        .when(uploads & pl.col("converts") & (pl.col("bytes") >= LARGE_BYTES))
        .then(pl.lit("large-upload"))
        .when(long & (pl.col("operators") > 0) & ~uploads & ~downloads)
        .then(pl.lit("cpu-operators"))
    )
    uploaded = pl.col("kind") == "large-upload"
    with_kind = runs.with_columns(kind=kind).drop_nulls("kind").with_columns(within=uploaded & within)
    of_python = (pl.col("kind") == "cpu-tensors") & ~pl.col("created")
    start = (
        pl.when(computing)
        .then("before_start")
        .when(of_python)
        .then("before_end")
        .when(uploaded & pl.col("first_converted").is_not_null())
        .then("first_converted")
        .when("within")
        .then("after_start")
        .otherwise("first")
    )
    end = pl.when(pl.when(computing).then(back).otherwise(uploads & ~stacked)).then("after_end").otherwise("last")
    top = pl.when("within").then("copying").when(~of_python & (pl.col("operators") > 0)).then("top")
    kept, launches = (*THREAD, "kind", "within", "top_ns", "bytes"), pl.col("operators") + pl.col("within")
    spans = with_kind.select(*kept, operators=launches, top=top, start=start, end=end)
    # a copy of a number is between two
    spans = spans.with_columns(start=pl.max_horizontal("start", pl.col("end").shift(1).over(THREAD)))
    return spans.drop_nulls(["start", "end"]).filter(pl.col("end") > pl.col("start"))


@once_per_process
def _between_copies(report: Report) -> pl.DataFrame:
    """In a report without operators: host time from a copy to the host to the next launch, a copy to the device.

    That is of no more data, which tells it from the next batch. Columns as in :func:`_runs`.
    """
    to_host = on_host.with_next(on_host.launched(report), (pl.col("way") == TO_HOST) & (pl.col("bytes") > SCALAR_BYTES))
    few = pl.col("next_bytes") <= pl.max_horizontal("bytes", pl.lit(1 << 16))
    pairs = to_host.filter((pl.col("next_way") == TO_DEVICE) & few)

    def free(key: tuple[int, ...], part: pl.DataFrame) -> pl.Series:
        start, end = part.get_column("call_end"), part.get_column("next_call_start")
        own = report.kind("api").filter(of_thread((key[0], key[1]))).select(**intervals.OF_EVENTS)
        return (end - start - intervals.overlap(start, end, intervals.union(own))).cast(pl.Int64)

    between = pairs.select(*THREAD, start="call_end", end="next_call_start")
    pairs = pairs.with_columns(of_parts(pairs, THREAD, pl.Int64, free).alias("top_ns"))
    named = _are_named(report, between) & (pairs.get_column("bytes") < LARGE_BYTES)
    return pairs.filter(~named, pl.col("top_ns").is_between(_LONG_NS, _OF_DATA_NS * pl.col("bytes"))).select(
        *(*THREAD, "top_ns"),
        kind=pl.lit("cpu-operators"),
        operators=pl.lit(1, pl.UInt32),
        top=pl.lit(None, pl.String),
        bytes="next_bytes",
        within=pl.lit(value=False),
        start="call_start",
        end="next_call_end",
    )


def _are_named(report: Report, spans: pl.DataFrame) -> pl.Series:
    """Whether most of each span (:data:`SPAN`) is in ranges of the program in which it calls no operator, nor CUDA."""
    ranges = named_ranges(report)
    others = [name for name in ranges.get_column("range").unique() if LIBRARIES.match(name)]
    ranges = ranges.filter(~(pl.col("open") | pl.col("range").is_in(others))).select(SPAN)
    if ranges.is_empty():
        return pl.repeat(value=False, n=spans.height, eager=True).alias("named")
    calls = pl.concat(report.kind(kind).select(*THREAD, at="start_ns") for kind in ("api", "op")).sort("at")
    ends = pl.col("at").fill_null(intervals.AFTER_ALL) >= pl.col("end")
    quiet = by_thread(nearest(ranges, calls, ("start", "at"), THREAD, "after").filter(ends))

    def named_ns(key: tuple[int, ...], part: pl.DataFrame) -> pl.Series:
        return intervals.covered(part, intervals.union(line_of(quiet, (key[0], key[1]))))

    lengths = (spans.get_column("end") - spans.get_column("start")).clip(lower_bound=0)
    return (2 * of_parts(spans, THREAD, pl.Int64, named_ns) > lengths).alias("named")


# Anomaly detection: each result of backward is asked for NaN, and the host waits for it.

#: What autograd's engine runs on each of a node's results.
_ASKS: Final = ("aten::isnan", "aten::_is_any_true", "aten::any", "aten::item", "aten::is_nonzero", "aten::ne")

#: An operator that records itself for backward begins its work after so long without a stack of Python to save (ns).
_USUAL_NS: Final = 15_000

_STACK_NS: Final = 1_000_000  # a longer time between launches of the forward pass is more than a saved stack (ns)

#: Fewer checks are no run of backward; after the last call of one the host is about to launch the next operator (ns).
_FEWEST: Final = 20
_AFTER_NS: Final = 5_000


@rules.Rule
def anomaly_detection(report: Report) -> rules.Findings:
    """At most one finding per device."""
    checks, saves = _checks(report)
    if checks.height:
        inside, many = on_host.within(report, pl.concat([checks, saves])), on_host.within(report, checks).host.height
        yield from on_host.on_time(report, "anomaly-detection", inside, checks=many)


_NO_SPANS: Final = pl.DataFrame(schema=dict.fromkeys(SPAN, pl.Int64))


@once_per_process
def _checks(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The checks of backward, and what operators of forward take to save the stack: :data:`SPAN`; empty for too few."""
    if (every := on_host.operators(report)).is_empty():
        return _by_kernels(report)
    nodes = every.filter(IS_NODE)
    inside = every.filter(pl.col("parent").is_in(nodes.get_column("row").implode()) & pl.col("called"))
    asks, isnan = inside.filter(pl.col("name").is_in(_ASKS)), pl.col("name") == _ASKS[0]
    checked = asks.filter(isnan).get_column("parent").n_unique()
    working = inside.filter(~pl.col("name").is_in(_ASKS)).get_column("parent").n_unique()
    if not checked or checked < 0.6 * working:
        return _NO_SPANS, _NO_SPANS
    by_check = asks.group_by(*THREAD, "parent", isnan.cast(pl.UInt32).cum_sum().alias("check"), maintain_order=True)
    # the beginning of operators that record themselves for backward, until they go on, as far as it is long
    own = every.filter(pl.col("sequence_number").is_not_null() & pl.col("name").str.starts_with("aten::"))
    forward = own.filter(intervals.covered(own, intervals.union(nodes.select("start", "end"))) == 0)
    inner = every.group_by(row="parent").agg(goes_on=pl.col("start").min())
    begun = forward.join(inner, on="row", how="left").with_columns(end=pl.coalesce("goes_on", "end"))
    saves = begun.filter(pl.col("end") - pl.col("start") > _USUAL_NS)
    checks = by_check.agg(pl.col("start").min(), pl.col("end").max()).select(SPAN)
    return checks, saves.select(*THREAD, pl.col("start") + _USUAL_NS, "end")


def _by_kernels(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    line = on_host.launched(report).with_row_index("at")
    # names of the kernels of a check: whether a value differs from itself, and whether any does
    compares = on_host.kernels_named(line, r"Compare|isnan|ne_kernel")
    if compares.sum() < _FEWEST:
        return _NO_SPANS, _NO_SPANS
    line = line.with_columns(
        pl.col("at").cast(pl.Int64),
        compares=compares,
        any=on_host.kernels_named(line, r"or_kernel"),
        fills=pl.col("kind") == "memset",
        reads=((pl.col("way") == TO_HOST) & (pl.col("bytes") <= 1)).fill_null(value=False),
    )

    def before(column: str, by: int) -> pl.Expr:
        return pl.col(column).shift(by, fill_value=False)

    plain = before("any", 1) & before("compares", 2)
    back = pl.when(plain).then(2).when(before("any", 1) & before("fills", 2) & before("compares", 3)).then(3)
    start = pl.when(plain).then(pl.col("call_start").shift(2)).otherwise(pl.col("call_start").shift(3))
    until = pl.col("call_start").shift(-1).fill_null(0) - _AFTER_NS
    checks = line.with_columns(back=back, start=start, end=pl.max_horizontal("call_end", until))
    checks = checks.filter("reads").drop_nulls("back")
    apart = checks.select((pl.col("at") - pl.col("back") > pl.col("at").shift(1) + 1).sum()).item()
    # a loop over parameters that asks each for NaN has no other launches before its checks
    if checks.height < _FEWEST or apart < 0.2 * checks.height:
        return _NO_SPANS, _NO_SPANS
    # none lasts until the next begins, or long after its last call
    following = pl.col("start").shift(-1).over(THREAD).fill_null(pl.col("end"))
    end = pl.min_horizontal("end", following, pl.col("start") + _STACK_NS)
    spans = checks.sort(*THREAD, "start").with_columns(end=end).filter(pl.col("end") > pl.col("start"))
    # between launches of the other threads, which run forward: what is longer than usual between those of a check
    since = pl.col("call_end").shift(1).over(THREAD)
    gaps = line.select(*THREAD, start=since, end="call_start", gap=pl.col("call_start") - since).drop_nulls("gap")
    checking = checks.select(THREAD).unique()
    usual = gaps.join(checking, on=list(THREAD), how="semi", nulls_equal=True).get_column("gap").median()
    others = gaps.join(checking, on=list(THREAD), how="anti", nulls_equal=True)
    most = max(2 * int(usual), _USUAL_NS) if isinstance(usual, float) else _USUAL_NS
    long = others.filter(pl.col("gap").is_between(most, _STACK_NS))
    return spans.select(SPAN), long.select(*THREAD, pl.col("start") + most, "end")


# A mode, for which operators go through Python.

#: Lines of the program that make a mode.
_MAKES_MODE: Final = r"(?:^|[=(\[,:.]|\b(?:with|return|yield|if|else|and|or))\s*\w*Mode\("


@rules.Rule
def dispatch_modes(report: Report) -> rules.Findings:
    """At most one finding per device."""
    line, modes = on_host.outermost(report), on_host.operators(report).filter(name="PythonDispatchMode")
    if modes.is_empty():
        return
    # compilers trace operators by modes of their own
    modes = modes.filter(~on_gpu.is_inside(modes.select(*THREAD, at="start"), line.filter("aside").select(SPAN)))
    working = line.filter(~pl.col("aside"), pl.col("launches") > 0)
    first, stop = (modes.get_column("row").search_sorted(working.get_column(side)) for side in ("row", "stop"))
    if part := (stop > first).mean():
        # the time of their functions, and what operators that these call take beside a launch, unless they take long:
        # then they wait, or work
        took = pl.col("end") - pl.col("start")
        kept = pl.when(took > _LONG_NS).then(took).otherwise(pl.min_horizontal(took, say.LAUNCH_NS))
        inner = on_host.operators(report).join(modes.select(parent="row"), on="parent", how="semi")
        begins = [modes.select("row", *THREAD, "start"), inner.select(*THREAD, pl.col("start") + kept, row="parent")]
        ends = [modes.select("row", "end"), inner.select(row="parent", end="start")]
        begun, ended = pl.concat(begins, how="diagonal").sort("row", "start"), pl.concat(ends).sort("row", "end")
        spans = begun.with_columns(ended.get_column("end")).filter(took > 0).select(SPAN)
        inside = on_host.within(report, intervals.union_by(spans, THREAD))
        inside = inside._replace(mending=Mending(host=inside.mending.host))
        where = rules.literal(line_that_reads(report, _MAKES_MODE, 1))
        yield from on_host.on_time(report, "dispatch-modes", inside, where=where, part=part)
