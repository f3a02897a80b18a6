"""NVTX ranges by name: time on the host, and projected onto the GPU: when what each launched ran, and which kernels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Unpack

import polars as pl

from kanalyze import intervals, model, window
from kanalyze.analyses.device._operations import device_operations, exclusive_operations, of_used_processes, with_facts
from kanalyze.analyses.host._captures import capture_rows, capture_source, captures
from kanalyze.analyses.operators._host_tree import path_texts
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.analyses.shared.threads import THREAD, key_columns, nested
from kanalyze.columns import count_up_to, gathered, in_order, parts_by, rows_at
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

# The projection onto the GPU: an operation belongs to the ranges around its launch, on the range's own thread.
#
# As in nsys' projection of NVTX ranges, the launching call may start where the range starts and end where it ends, and
# a range that another thread ended is excluded. nsys joins every range with every call; here two binary searches find
# the calls inside a range.
#
# Nothing assumes a stack: ranges of two domains, and start/end ranges, may cross. Calls of one thread follow each
# other, but those of several threads may lie in each other. So calls are split into layers, in which none contains
# another one: there starts and ends increase together, and the calls inside a range are adjacent.

#: Ranges and the operations in them are joined in batches of so many pairs, about 100 MB; a range's own are in one.
MOST_PAIRS: Final = 1_000_000


def outermost_first(ranges: pl.DataFrame) -> pl.DataFrame:
    """Sorts ranges of one thread (start, end, row) so that a range comes before all that it contains."""
    return ranges.sort("start", "end", "row", descending=[False, True, False])


def pairs(ranges: pl.DataFrame, work: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Joins `work` (since, until, and others) with all of the `ranges` around it, both ends included, as `range_row`.

    `ranges` have the columns row, start and end. All rows of one range are in the same batch.
    """
    layers, rest = list[pl.DataFrame](), work.drop_nulls(["since", "until"]).sort("since", "until")
    number = count_up_to(rest.get_column("until").sort(), ranges.get_column("end"), equal=True).cast(pl.Int64)
    number -= count_up_to(rest.get_column("since"), ranges.get_column("start"), equal=False)
    while rest.height:
        rises = rest.select(pl.col("until") >= pl.col("until").cum_max()).to_series()
        layers.append(rest.filter(rises))
        rest = rest.filter(~rises)
    for some in ranges.with_columns(part=number.clip(0).cum_sum() // MOST_PAIRS).partition_by("part"):
        inside = [work.clear().with_columns(range_row=pl.lit(0, dtype=pl.UInt32))]
        for layer in layers:
            first = count_up_to(layer.get_column("since"), some.get_column("start"), equal=False)
            stop = count_up_to(layer.get_column("until"), some.get_column("end"), equal=True)
            at = pl.int_ranges(first, pl.max_horizontal(first, stop), dtype=pl.UInt32)
            both = some.select(range_row="row", at=at).explode("at").drop_nulls("at")
            inside.append(layer[both.get_column("at")].with_columns(both.get_column("range_row")))
        yield pl.concat(inside)


def parents(ranges: pl.DataFrame) -> pl.DataFrame:
    """Parent and depth of each of `ranges` (start, end; sorted by :func:`outermost_first`): at, parent, level.

    The parent is the shortest containing range, then the one that started last, then the last row; null for outermost
    ranges. The level is the number of ancestors.
    """
    start, end = ranges.get_column("start"), ranges.get_column("end")
    places = pl.int_range(ranges.height, dtype=pl.UInt32, eager=True)
    tree, following = nested(start, end), count_up_to(start, end, equal=False)
    parent = tree.get_column("parent").cast(pl.UInt32)
    if not (start < end).all() or (tree.get_column("stop") != following.zip_with(following > places, places + 1)).any():
        parent = _tightest(ranges.select("start", "end", row=places))  # some cross, or are moments
    above, level = parent, parent.is_not_null().cast(pl.Int64)
    while above.null_count() < len(above):  # of an ancestor twice as far away each time
        level, above = level + level.gather(above).fill_null(0), above.gather(above)
    return pl.DataFrame({"at": places, "parent": parent, "level": level})


def _tightest(ranges: pl.DataFrame) -> pl.Series:
    """The parent of each of `ranges`, which may cross: row, start, end."""
    length, row = pl.col("end") - pl.col("start"), ranges.get_column("row")
    tightest = ranges.sort(length, "row", descending=[False, True]).get_column("row")
    rank, asked = row.scatter(tightest, row), ranges.select(since="start", until="end", inner="row")
    best = pl.Series([None], dtype=pl.UInt32).new_from_index(0, ranges.height)
    for batch in pairs(ranges, asked):
        # a containing range has a lower row; drops the range itself, and equal ranges after it
        others = batch.filter(pl.col("range_row") < pl.col("inner"))
        others = others.select("inner", rank=rank.gather(others.get_column("range_row")))
        inner, new = others.group_by("inner").agg(pl.col("rank").min()).get_columns()
        known = best.gather(inner)
        best = best.scatter(inner, new.zip_with(known.is_null() | (new < known), known))
    return tightest.gather(best)


#: The key of a process.
PROCESS: Final = ("process_id",)

#: The columns of :func:`projection`.
_PROJECTED: Final = {
    "row": pl.UInt32,
    **dict.fromkeys(("projected_start_ns", "projected_ns", "busy_ns", "gpu_ops", "operations"), pl.Int64),
}


@analysis.once_per_report
def thread_ranges(report: Report) -> dict[tuple[object, ...], pl.DataFrame]:
    """The ranges of each thread that it ended itself, the outermost first, by process id and thread id."""
    own = _spans(report).filter(pl.col("end_thread_id").is_null()).drop_nulls(THREAD)
    return parts_by(outermost_first(own), THREAD)


def _spans(report: Report) -> pl.DataFrame:
    """The ranges as intervals: columns row, start, end, end_thread_id, process_id and thread_id.

    A range that was never closed lasts until the latest time of any range, as in nsys' projection.
    """
    ranges = named_ranges(report)
    latest = pl.max_horizontal(pl.col("start").max(), pl.col("end").filter(~pl.col("open")).max())
    end = pl.when("open").then(pl.max_horizontal("start", latest)).otherwise("end")
    return ranges.select("row", "start", end.alias("end"), "end_thread_id", *THREAD)


@analysis.once_per_report
def range_tree(report: Report) -> pl.DataFrame:
    """The enclosing range of each range on its thread: columns row, end, parent (its row), level; sorted by row.

    Parent and level are those of :func:`parents`.
    """
    parts = [pl.DataFrame(schema={"row": pl.UInt32, "end": pl.Int64, "parent": pl.UInt32, "level": pl.Int64})]
    for ranges in thread_ranges(report).values():
        tree, rows = parents(ranges), ranges.get_column("row")
        parent = rows.gather(tree.get_column("parent")).alias("parent")
        parts.append(ranges.select("row", "end").with_columns(parent, tree.get_column("level")))
    return pl.concat(parts).sort("row")


def launched(
    report: Report, work: pl.DataFrame, keys: Sequence[str] = THREAD
) -> dict[tuple[object, ...], pl.DataFrame]:
    """Splits `work` (rows of `operations`) by the process and thread that launched it, each part sorted by start.

    Columns: those of `work`, since and until (start and end of the launching call), call_row. Operations without a
    launching call have the key (None, None). With other `keys`, split by these alone.
    """
    work = with_facts(report, in_order(work, "start"), "call_row", "thread_id", "call_start", "call_end")
    launches = work.rename({"call_start": "since", "call_end": "until"}).with_columns(
        pl.when(pl.col("call_row").is_not_null()).then("process_id").alias("process_id")
    )
    return {key: part.drop(THREAD) for key, part in parts_by(launches, keys).items()}


def captured_work(report: Report, work: pl.DataFrame) -> dict[tuple[object, ...], pl.DataFrame]:
    """As :func:`launched`, of operations of CUDA graphs by the process and thread of the call that captured each.

    Threads and calls are those of :func:`capture_source`.
    """
    rows = gathered(capture_rows(report), work.get_column("row"))
    inside = rows.is_not_null()
    calls = rows_at(captures(report).select(*THREAD, "since", "until", "call_row"), rows.filter(inside))
    placed = in_order(work.filter(inside).drop("process_id").hstack(calls), "start").drop_nulls("thread_id")
    return {key: part.drop(THREAD) for key, part in parts_by(placed, THREAD).items()}


def projection(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The ranges that any of `work` (rows of `operations`) belongs to, in the order of their rows.

    Columns: row (of `named_ranges`); projected_start_ns and projected_ns (from the first start to the last end of its
    operations); busy_ns (union of their run times, on any device); gpu_ops (launching calls, which nsys calls GPU
    operations); operations (number).
    """
    return _projected(thread_ranges(report), launched(report, work))


def process_work(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The ranges during which any thread of their process launched any of `work`, sorted by row.

    Like :func:`projection`, but for all threads together: the launching call lies inside the range.

    Columns: row (of `named_ranges`), process_busy_ns (union of the operations' run times, on any device),
    process_operations (number).
    """
    ranges = parts_by(_spans(report).drop_nulls(PROCESS), PROCESS)  # also those that another thread ended
    projected = _projected(ranges, launched(report, work, PROCESS))
    return projected.select("row", process_busy_ns="busy_ns", process_operations="operations")


def _projected(
    threads: Mapping[tuple[object, ...], pl.DataFrame], parts: dict[tuple[object, ...], pl.DataFrame]
) -> pl.DataFrame:
    """The ranges of `threads` that the operations in `parts` belong to, by the same keys; empties `parts`."""
    projected = [pl.DataFrame(schema=_PROJECTED)]
    while parts:
        key, part = parts.popitem()  # releases each part, since those of a large report do not all fit into memory
        if key in threads:
            first = part.get_column("call_row").is_first_distinct()
            needed = part.select("start", "end", "since", "until", first.alias("first"))
            projected += map(_summed, pairs(threads[key], needed))
    return pl.concat(projected).sort("row")


def _summed(inside: pl.DataFrame) -> pl.DataFrame:
    """Sums operations by their range, `range_row`."""
    inside = inside.sort("range_row", "start")
    fresh = inside.with_columns(fresh=intervals.newly_covered(inside, "range_row"))
    sums = fresh.group_by(row="range_row").agg(
        projected_start_ns=pl.col("start").min(),
        projected_ns=pl.col("end").max() - pl.col("start").min(),
        busy_ns=pl.col("fresh").sum(),
        gpu_ops=pl.col("first").sum().cast(pl.Int64),
        operations=pl.len().cast(pl.Int64),
    )
    return sums.select(*_PROJECTED)


# Ranges by name and style, with their projection and on the host.

#: The grouping by names without the ids that emit_nvtx appends.
BY_NAME: Final = "name"

_NAMED: Final = (
    Column("range", pl.String, "Domain, colon and name, as nsys 2025 prints it; the default domain has no name."),
    Column("style", pl.String, "PushPop (nests on its thread) or StartEnd.", nullable=True),
)

#: Columns beyond nsys' table: autograd launches the backward pass on a thread of its own.
OF_PROCESS: Final = columns("""
    process_busy_ns int?: Time in which at least one operation ran that any thread of the process launched while the
        range was open (on any GPU), summed over instances.
    process_operations int?: How many operations these are.
""")

_WHOLE_GRAPHS: Final = Column(
    "whole_graphs",
    pl.Int64,
    "CUDA graphs launched whose nodes were not traced; all other columns leave them out, as nsys does, unless --graphs "
    "counts each as one operation.",
)

RANGE_GPU: Final = Table(
    "range_gpu",
    "One NVTX range by name and style: what its instances that launched GPU operations, or captured them into CUDA "
    "graphs, look like on the GPU.",
    (
        *_NAMED,
        *columns("""
            count int: Instances that launched any operation.
            total_ns int: Sum of their durations on the host.
            projected_ns int: Sum of their projections: from the first operation's start to the last end.
            avg_ns float?: Mean projection; this and the next ones are null where no instance launched any operation.
            median_ns float?: Median projection.
            min_ns int?: Shortest projection.
            max_ns int?: Longest projection.
            stddev_ns float?: Sample standard deviation of the projections; 0 for a single one.
            gpu_ops int: Calls that launched operations, which nsys counts as GPU operations.
            avg_gpu_ops float?: Mean of that per instance.
            avg_level float?: Mean number of ranges around an instance on its thread.
            avg_children float?: Mean number of ranges directly inside that launched operations, too.
            busy_ns int: Time in which at least one operation of the instance ran (on any GPU), summed over instances;
                the rest of projected_ns the GPU did other things, or waited.
            operations int: Operations: each kernel of a CUDA graph counts, too.
        """),
        _WHOLE_GRAPHS,
        *OF_PROCESS,
        *columns("""
            captured_busy_ns int: Time in which at least one operation ran that a call in the range captured into a CUDA
                graph, whatever launched the graph; summed over instances. It belongs to the launches of the graph: add
                it to no other column.
            captured_operations int: How many operations these are.
        """),
    ),
    purpose="NVTX ranges by the GPU time of their work",
    telling=("range", "projected_ns", "busy_ns", "captured_busy_ns", "count", "operations"),
    equals="nsys stats nvtx_gpu_proj_sum, where count is above 0; with --trace nvtx_gpu_proj_trace",
    groupings=(BY_NAME,),
    options=("trace", "graphs"),
)

#: The table that ``trace=True`` gives.
RANGE_GPU_TRACE: Final = Table(
    "range_gpu",
    "One instance of an NVTX range that launched GPU operations.",
    (
        *_NAMED,
        Column("projected_start_ns", pl.Int64, "Start of its first operation."),
        Column("projected_ns", pl.Int64, "From there to the end of its last operation."),
        Column("start_ns", pl.Int64, "Start of the range on the host."),
        Column("dur_ns", pl.Int64, "Its duration there."),
        Column("process_id", pl.Int64, "Process."),
        Column("thread_id", pl.Int64, "Thread that started and ended it."),
        Column("gpu_ops", pl.Int64, "Calls that launched operations, which nsys counts as GPU operations."),
        Column("level", pl.Int64, "Ranges around it on its thread, the parent and its parent and so on."),
        Column("children", pl.Int64, "Ranges directly inside it that launched operations, too."),
        Column("event_id", pl.Int64, "The range in `events`."),
        Column("parent_id", pl.Int64, "The tightest range around it; null for none.", nullable=True),
        Column("stack", pl.String, "Colon and event_id of each range from the outermost to this one."),
        Column("busy_ns", pl.Int64, "Time in which at least one of its operations ran, on any GPU."),
        Column("operations", pl.Int64, "Operations: each kernel of a CUDA graph counts, too."),
        _WHOLE_GRAPHS,
        *OF_PROCESS,
    ),
    equals="nsys stats nvtx_gpu_proj_trace",
    when="--trace",
    telling=("range", "projected_start_ns", "projected_ns", "busy_ns"),
)


def range_gpu(
    report: Report, by: str | None = None, *, trace: bool = False, graphs: bool = False, **where: Unpack[Where]
) -> pl.DataFrame:
    """The NVTX ranges in scope that launched GPU operations.

    Args:
        report: Where to look; ranges that overlap its window on the host count with all their operations.
        by: ``name`` removes the ids and sizes that emit_nvtx appends, which make every range unique.
        trace: All instances, with full names, instead of sums by name.
        graphs: Also counts whole CUDA graphs whose nodes were not traced, which nsys omits.
        where: A window, device or process to look at alone.

    Returns:
        :data:`RANGE_GPU`, the longest total projection first; or :data:`RANGE_GPU_TRACE`, by projected start.

    Raises:
        CannotTellError: The report lacks ranges, CUDA calls, or all GPU operations.
        UnknownNameError: There is no such grouping.
    """
    kinds = model.DEVICE_KINDS if graphs else tuple(kind for kind in model.DEVICE_KINDS if kind != "graph")
    report = analysis.part_of(report, where, RANGE_GPU, by, "range")
    for needed in (("api",), kinds):
        analysis.require(report, RANGE_GPU, *needed)
    launching = _launching(report, kinds)
    if not trace:
        parts = {report: launching, capture_source(report): _capturing(report, kinds)}
        if len(parts) == 1:
            parts = {report: pl.concat([launching, parts[report]], how="diagonal")}
        named = pl.concat([part if by is None else by_name(of, part) for of, part in parts.items()], how="diagonal")
        sums = named.group_by("range", pl.col("style").cast(pl.String)).agg(
            *statistics.spread("projected_ns", "", "_ns"),
            pl.col("gpu_ops", "level", "children").mean().name.prefix("avg_"),
            pl.col("projected_ns", "gpu_ops", "busy_ns", "operations", "whole_graphs", *_OF_PROCESS).sum(),
            pl.col("captured_busy_ns", "captured_operations").sum(),
            count=pl.col("projected_ns").count(),
            total_ns=pl.col("dur_ns").sum(),
        )
        order = ["projected_ns", "captured_busy_ns", "range", "style"]
        return RANGE_GPU.select(sums.sort(order, descending=[True, True, False, False]))
    # the ranges around each, as text of event ids
    tree, ids = range_tree(report), named_ranges(report).get_column("event_id")
    nodes = tree.select(path="row", outer="parent", label=ids.gather(tree.get_column("row")))
    stacks = path_texts(nodes, ":").select(row="path", stack=":" + pl.col("text"))
    parent = ids.gather(launching.get_column("parent")).alias("parent_id")
    launching = launching.with_columns(parent, start_ns="start").join(stacks, on="row", how="left")
    order = ["projected_start_ns", "projected_ns", "event_id"]
    return RANGE_GPU_TRACE.select(launching.sort(order, descending=[False, True, False]))


def by_name(report: Report, ranges: pl.DataFrame) -> pl.DataFrame:
    """`ranges` (with row, of :func:`named_ranges`) named without the ids that emit_nvtx appends.

    A name that ranges without ids also have keeps a mark: ranges of the program may enclose those of emit_nvtx, and the
    same time would count twice.
    """
    every = named_ranges(report).select("range", alone=window.without_ids(pl.col("range")))
    plain = every.filter(pl.col("range") == pl.col("alone")).get_column("range").unique()
    marked = (pl.col("alone") != pl.col("range")) & pl.col("alone").is_in(plain.implode())
    names = every.select(pl.when(marked).then(pl.col("alone") + ", op_id = …").otherwise("alone")).to_series()
    return ranges.with_columns(names.gather(ranges.get_column("row")).alias("range"))


def _launching(report: Report, kinds: tuple[str, ...]) -> pl.DataFrame:
    """The ranges in scope that launched operations of `kinds`, with all columns of the tables except the stack."""
    work = device_operations(report).select("row", "kind", "process_id", "start", "end")
    whole = projection(report, work.filter(pl.col("kind") == "graph")).select("row", whole_graphs="operations")
    launches = work if "graph" not in report.kinds else work.filter(pl.col("kind").is_in(kinds))
    projected = projection(report, launches)
    for side in (range_tree(report), whole, process_work(report, launches)):
        projected = projected.join(side, on="row", how="left", maintain_order="left")
    inside = projected.group_by(pl.col("parent").alias("row")).agg(pl.len().cast(pl.Int64).alias("children"))
    projected = projected.join(inside, on="row", how="left", maintain_order="left")
    ranges = named_ranges(report).select("event_id", "range", "style", "start", "process_id", "thread_id")
    projected = pl.concat([projected, ranges.select(pl.all().gather(projected.get_column("row")))], how="horizontal")
    projected = projected.with_columns(
        pl.col("children", "whole_graphs").fill_null(0), dur_ns=pl.col("end") - pl.col("start")
    )
    return intervals.overlapping(projected, report.scope.sides)


_OF_PROCESS: Final = tuple(column.name for column in OF_PROCESS)


def _capturing(report: Report, kinds: tuple[str, ...]) -> pl.DataFrame:
    """The ranges that captured operations of `kinds` in scope into CUDA graphs: row, range, style and sums."""
    work = exclusive_operations(report).filter(pl.col("kind").is_in(kinds))
    source, parts = capture_source(report), captured_work(report, work.select("row", "process_id", "start", "end"))
    sums = _projected(thread_ranges(source), parts)
    sums = sums.select("row", captured_busy_ns="busy_ns", captured_operations="operations")
    names = named_ranges(source).select("range", "style")
    return sums.hstack(rows_at(names, sums.get_column("row")))


# Kernels by the NVTX range that launched them.

RANGE_KERNELS: Final = Table(
    "range_kernels",
    "One kernel in one NVTX range, by range name, style and thread; a kernel counts in every range around its launch, "
    "and, as a row of its own, in every range around the call that captured it into a CUDA graph.",
    columns("""
        range text?: Domain, colon and name, as nsys 2025 prints it; null for kernels that no range launched.
        style text?: PushPop (nests on its thread) or StartEnd.
        via text: `launch`, or `capture`: the range was open when the kernel was captured; its time is that of the rows
            of the launch once more.
        process_id int?: Process that launched it; null where no launch is known.
        thread_id int?: Thread that launched it, or captured it; null where that is not known.
        kernel text?: Demangled name of the kernel.
        range_count int: Instances of the range that launched it.
        count int: How often it ran.
        total_ns int: Sum of its durations; where ranges of one name nest, once for each around it.
        avg_ns float: Mean duration; this and the following count as often as total_ns.
        median_ns float: Median duration.
        min_ns int: Shortest.
        max_ns int: Longest.
        stddev_ns float: Sample standard deviation of the durations; 0 for a single one.
        kernel_ns int: Sum of its durations, every kernel once.
    """),
    purpose="the kernels of each NVTX range",
    telling=("range", "via", "total_ns", "count"),
    equals="nsys stats nvtx_kern_sum, where via is launch",
)


@analysis.analysis
def range_kernels(report: Report) -> pl.DataFrame:
    """The kernels in scope by the ranges that launched them, sorted by range, process and thread, then by total.

    Kernels that overlap the window count in full, in all ranges around their launch, whenever those are.

    Returns:
        :data:`RANGE_KERNELS`.

    Raises:
        CannotTellError: The report lacks ranges, CUDA calls, or kernels.
    """
    for needed in ("range", "api", "kernel"):
        analysis.require(report, RANGE_KERNELS, needed)
    work = exclusive_operations(report).filter(pl.col("kind") == "kernel")
    work = work.select("row", "process_id", "dur_ns", start="began", kernel="name")
    sums, source, spans = [RANGE_KERNELS.empty()], capture_source(report), ("row", "start", "end")
    sides = (("launch", report, launched(report, work)), ("capture", source, captured_work(report, work)))
    for via, of, threads in sides:
        names = named_ranges(of).select(pl.col("range").cast(pl.Categorical), "style")
        for thread, kernels in threads.items():
            ranges = thread_ranges(of).get(thread, named_ranges(of).head(0)).select(spans)
            tables = (_sums(names, _in_ranges(ranges, part)) for part in _parts(ranges, kernels))
            keys = {**key_columns(thread), "via": pl.lit(via)}
            sums += [RANGE_KERNELS.select(rows.with_columns(**keys)) for rows in tables]
    by = ["range", "process_id", "thread_id", "total_ns", "style", "kernel", "via"]
    return pl.concat(sums).sort(by, descending=[name == "total_ns" for name in by])


def _parts(ranges: pl.DataFrame, kernels: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits the kernels of one thread into batches by name, so that a batch fits into memory once for each range."""
    begun = count_up_to(ranges.get_column("start").sort(), kernels.get_column("since").fill_null(0), equal=True)
    over = count_up_to(ranges.get_column("end").sort(), kernels.get_column("until").fill_null(0), equal=False)
    around = (begun.cast(pl.Int64) - over).clip(1).alias("around")
    names = kernels.select("kernel", around).group_by("kernel").agg(pl.col("around").sum())
    numbered = names.sort("around", "kernel").select("kernel", part=pl.col("around").cum_sum() // MOST_PAIRS)
    joined = kernels.join(numbered, on="kernel", nulls_equal=True, maintain_order="left")
    return joined.partition_by("part", include_key=False)


def _in_ranges(ranges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels of one thread with each range around their launch (or null), by start: row, kernel, dur_ns, range_row."""
    kernels = kernels.select("row", "kernel", "dur_ns", "start", "since", "until")
    joined = pl.concat([kernels.clear().with_columns(range_row=pl.lit(None, pl.UInt32)), *pairs(ranges, kernels)])
    outside = kernels.join(joined, on="row", how="anti")
    return pl.concat([joined, outside], how="diagonal").sort("start", maintain_order=True)


def _sums(names: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Sums the kernels of one thread by range, style and kernel."""
    named = names.select(pl.all().gather(ran.get_column("range_row")))
    by_range = ran.hstack(named).group_by("range", "style", "kernel")
    return by_range.agg(
        *statistics.spread("dur_ns", "", "_ns"),
        range_count=pl.col("range_row").drop_nulls().n_unique(),
        count=pl.col("row").n_unique(),
        total_ns=pl.col("dur_ns").sum(),
        kernel_ns=pl.col("dur_ns").filter(pl.col("row").is_first_distinct()).sum(),
    )


RANGES: Final = Table(
    "ranges",
    "One NVTX range by name and style, all its instances on all threads; time of ranges inside ranges counts in both.",
    (
        *_NAMED,
        *statistics.DURATION_COLUMNS,
        Column("open_count", pl.Int64, "How many were never closed; those last until the latest NVTX event."),
        Column("threads", pl.Int64, "How many threads started one."),
        Column("cross_thread_count", pl.Int64, "How many another thread ended; these have no place in range_gpu."),
        *OF_PROCESS,
    ),
    purpose="NVTX ranges by time on the host",
    telling=("range", "count", "total_ns", "share", "avg_ns"),
    equals="nsys stats nvtx_sum",
    groupings=(BY_NAME,),
)


def ranges(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The NVTX ranges in scope by name and style, the longest total time first: :data:`RANGES`.

    Args:
        report: Where to look; ranges that overlap its window count in full; of a device, those of processes that used
            it.
        by: ``name`` removes the ids and sizes that emit_nvtx appends, which make every range unique.
        where: A window, device or process to look at alone.

    Raises:
        CannotTellError: The report records no ranges.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, RANGES, by, "range")
    in_scope = of_used_processes(report, intervals.overlapping(named_ranges(report), report.scope.sides))
    in_scope = in_scope if by is None else by_name(report, in_scope)
    if "api" in report.kinds and set(model.DEVICE_KINDS).intersection(report.kinds):
        # the work that any thread launched while each range was open
        work = process_work(report, device_operations(report).select("row", "process_id", "start", "end"))
        in_scope = in_scope.join(work, on="row", how="left", maintain_order="left")
        in_scope = in_scope.with_columns(pl.col(_OF_PROCESS).fill_null(0))
    lengths = in_scope.with_columns(dur_ns=pl.col("end") - pl.col("start"))
    sums = lengths.group_by("range", "style").agg(
        *statistics.duration_statistics(),
        *(statistics.known_sum(name) for name in _OF_PROCESS if name in in_scope.columns),
        open_count=pl.col("open").sum(),
        threads=pl.struct("process_id", "thread_id").n_unique(),
        cross_thread_count=pl.col("end_thread_id").count(),
    )
    order = RANGES.completed(sums.with_columns(statistics.share_of_total(), pl.col("style").cast(pl.String)))
    return RANGES.select(order.sort("total_ns", "range", "style", descending=[True, False, False]))
