"""Sections of the page of time: GPU work, CUDA calls, idle culprits, ranges, graphs, memory, streams, operators."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import polars as pl

from kanalyze import units
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, located, plain
from kanalyze.renderers.text.grid import Grid, Head, Section, number, of, operation, telling_apart
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tables = Mapping[str, pl.DataFrame]

_FOOT: Final = 78  # width of a line below a table, in characters, on the narrowest usual page


def exposure(tables: Tables, top: int) -> Section:
    """Section of total and exposed time; all rows."""
    del top
    table = tables["exposure"]
    many = table.get_column("device").n_unique() > 1
    heads = (Head("", left=True), Head("total"), Head("at once", wide=True), Head("exposed"), Head("hidden"))
    single = (
        table.filter(pl.col("detail").is_not_null()).group_by("device", "category").len().filter(pl.col("len") == 1)
    )
    lonely = set(single.select("device", "category").iter_rows())
    rows = []
    for row in table.iter_rows(named=True):
        if row["detail"] is not None and (row["device"], row["category"]) in lonely:
            continue
        where = f"GPU {row['device']} " if many else ""
        name = f"  {row['detail']}" if row["detail"] else f"{where}{row['category']}"
        hidden = "" if row["hidden_share"] is None else units.percent(row["hidden_share"])
        times = (units.time(row[f"{column}_ns"]) for column in ("total", "union", "exposed"))
        rows.append((name, *times, hidden))
    late = table.filter((pl.col("category") == "launch") & (pl.col("exposed_ns") > pl.col("total_ns")))
    remark = "hidden: behind more useful work"
    if late.height:  # exposed time of launches is a ledger bucket, which extends beyond the calls
        remark = "hidden: behind useful work; exposed launches with latency"
    return Section("TOTAL AND EXPOSED", remark, Grid(heads, rows))


def kernels(tables: Tables, top: int) -> Section:
    """Section of the heaviest kernels."""
    table = tables["hot_kernels"]
    heads = (
        Head("time", wide=True),
        Head("window"),
        Head("busy"),
        Head("count"),
        Head("average"),
        Head("grid × block", left=True, spare=True),
        Head("kernel", left=True),
    )
    rows = [
        (
            units.time(row["exclusive_ns"]),
            units.percent(row["window_share"]),
            units.percent(row["busy_share"]),
            units.count(row["count"]),
            units.time(row["avg_ns"]),
            _shape(row),
            row["name"] or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    return Section(
        "KERNELS",
        of(len(rows), table.height, "share of window and of busy time"),
        Grid(heads, rows, named=True),
        _families(table),
    )


def _families(table: pl.DataFrame) -> str:
    """Kernel families as shares of kernel time, always including kernels of unknown family."""
    known = table.filter(pl.col("family").is_not_null())
    sums = known.group_by("family").agg(pl.col("exclusive_ns").sum()).sort(["exclusive_ns", "family"], descending=True)
    whole = sums.get_column("exclusive_ns").sum()
    if not whole:
        return ""
    shares = {family: ns / whole for family, ns in sums.iter_rows()}
    other = shares.pop("other", 0.0)
    told = [f"{family} {units.percent(share)}" for family, share in shares.items()]
    texts = []
    for named in range(len(shares) + 1):
        rest = list(shares.values())[named:]
        more = [f"{len(rest)} more {units.percent(sum(rest))}"] if rest else []
        texts.append(f"families: {', '.join([*told[:named], *more, f'other {units.percent(other)}'])}")
    return next(text for text in reversed(texts) if len(text) <= _FOOT)


def _shape(row: dict[str, int]) -> str:
    if not row["shapes"] or not row["grid_x"] or not row["block_x"]:  # 0 if the tool does not record it
        return ""
    grid, block = (dimensions([row[f"{what}_{axis}"] for axis in "xyz"]) for what in ("grid", "block"))
    return f"{grid} × {block}" + (f" +{row['shapes'] - 1}" if row["shapes"] > 1 else "")


def dimensions(sizes: list[int]) -> str:
    """Formats a launch dimension without trailing ones: 4096, or 32,1,8."""
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return ",".join(str(size) for size in sizes)


def copies(tables: Tables, top: int) -> Section:
    """Section of copies and memsets."""
    table = tables["copies"]
    heads = (
        Head("time"),
        Head("exposed"),
        Head("count", spare=True),
        Head("bytes"),
        Head("average", wide=True),
        Head("rate"),
        Head("operation", left=True),
    )
    rows = [
        (
            units.time(row["total_ns"]),
            units.time(row["exclusive_ns"]),
            units.count(row["count"]),
            *("" if row[name] is None else units.size(row[name]) for name in ("total_bytes", "avg_bytes")),
            "" if row["bandwidth_bytes_per_s"] is None else units.rate(row["bandwidth_bytes_per_s"]),
            operation(row["operation"] or "(no name)"),
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    return Section("COPIES", of(len(rows), table.height), Grid(heads, rows, cut=True))


_NAMES: Final = ("kernel", "api")

#: Columns that distinguish launches of one kernel by one call, with labels.
_WHOSE_CALLS: Final = {"process_id": "process", "thread_id": "thread", "device": "GPU"}


def launches(tables: Tables, top: int) -> Section:
    """Section of launches by host time."""
    table = tables["launch_summary"].sort("charged_api_ns", descending=True)
    hot = tables["hot_kernels"]
    bound = set(hot.filter(pl.col("launch_bound")).get_column("name"))
    # the process may matter in any row, the thread only where rows would be equal
    whose = telling_apart(table, _NAMES, ("process_id",))
    whose += telling_apart(table.head(top), (*_NAMES, *whose), ("thread_id", "device"))
    heads = (
        Head("host time"),
        Head("count", spare=bool(whose)),
        Head("call"),
        Head("queue", spare=True),
        Head("kernel", spare=True),
        Head("", left=True),
        *(Head(_WHOSE_CALLS[column]) for column in whose),
        Head("call", left=True, wide=True),
        Head("kernel", left=True),
    )
    rows = [
        (
            units.time(row["charged_api_ns"]),
            units.count(row["count"]),
            units.time(row["api_median_ns"]),
            "" if row["queue_median_ns"] is None else units.time(row["queue_median_ns"]),
            units.time(row["kernel_median_ns"]),
            "!" if row["kernel"] in bound else "",
            *(number(row[column]) for column in whose),
            row["api"] or "(no name)",
            row["kernel"] or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    remark = "medians of call, queue and kernel" + ("; ! launch-bound" if any(row[5] for row in rows) else "")
    return Section("LAUNCHES", of(len(rows), table.height, remark), Grid(heads, rows, named=True))


def calls(tables: Tables, top: int) -> Section:
    """Section of CUDA calls by host time."""
    table = tables["api"]
    heads = (
        Head("host time"),
        Head("count"),
        Head("average"),
        Head("median", wide=True),
        Head("longest"),
        Head("call", left=True),
    )
    rows = [
        (
            units.time(row["total_ns"]),
            units.count(row["count"]),
            units.time(row["avg_ns"]),
            units.time(row["median_ns"]),
            units.time(row["max_ns"]),
            row["name"] or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    return Section("CUDA CALLS", of(len(rows), table.height), Grid(heads, rows, cut=True))


T = TypeVar("T")

#: Fewer rows for tables of secondary interest.
_FEWER: Final = 5
#: The version suffix of a CUDA call, omitted on the page.
_VERSION: Final = re.compile(r"_v\d{4,5}\b")
#: Folders in the file of a Python function, such as ``train/steps.py(31): step``; and an enclosing such function.
#: Anchored at word starts, since trying every letter of a long word is quadratic.
_FOLDERS: Final = re.compile(r"(?<![^\s<>])[^\s<>]*/(?=[^\s/<>]+\.py\(\d+\): )")
_AROUND: Final = re.compile(r"(?<=.) in [^\s<>]+\.py\(\d+\): \S+$")
#: nsys' name for unspecified overhead, and ours.
UNNAMED: Final = {"Unknown": "unnamed"}
#: Prefix of ranges in the default domain.
_DEFAULT_DOMAIN: Final = ":"
#: Label of work within a range that another thread launched.
_ANY_THREAD: Final = "any thread: GPU busy with what any thread of the process launched meanwhile"
#: Width of kernel names among culprits, in characters.
_SHORT: Final = 40


def known(say: Callable[[T], str], value: T | None) -> str:
    """Formats a quantity with `say`; empty if unknown."""
    return "" if value is None else say(value)


def culprits(tables: Tables, top: int) -> Section:
    """Section of idle culprits: summed over GPUs, as a share of all windows."""
    keys = ("bucket", "culprit", "range")
    windows_ns = max(int(tables["ledger"].get_column("ns").sum()), 1)
    sums = (
        tables["culprits"]
        .group_by(keys)
        .agg(pl.col("ns").sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())
        .with_columns(share=pl.col("ns") / windows_ns)
    )
    table = sums.sort("ns", *keys, descending=[True, False, False, False])
    shown = table.head(min(top, _FEWER))
    names = [name for name in shown.filter(bucket="launch").get_column("culprit") if name]
    short = dict(zip(names, shorten(names, _SHORT), strict=True))
    several = shown.filter(pl.struct("bucket", "culprit").is_duplicated()).select("bucket", "culprit").unique().rows()
    heads = (
        Head("time"),
        Head("share"),
        Head("times"),
        Head("longest", wide=True),
        Head("bucket", left=True),
        Head("in range", left=True, wide=True),
        Head("culprit", left=True),
    )
    rows = [
        (
            units.time(row["ns"]),
            units.percent(row["share"]),
            units.count(row["gaps"]),
            units.time(row["longest_ns"]),
            row["bucket"],
            row["range"] or "",
            _culprit(row, short, several=(row["bucket"], row["culprit"]) in several),
        )
        for row in shown.iter_rows(named=True)
    ]
    remark = of(len(rows), table.height, "idle time by what held it up")
    return Section("WHY IT WAITED", remark, Grid(heads, rows, cut=True))


def without_folders(culprit: str) -> str:
    """Strips folders from Python file names in a culprit."""
    return _FOLDERS.sub("", culprit)


def without_function(culprit: str) -> str:
    """Strips the enclosing Python function from a culprit, unless nothing else is left."""
    return without_folders(_AROUND.sub("", culprit))


def unversioned(call: str) -> str:
    """Strips the version suffix from a CUDA call, and makes it printable."""
    return _VERSION.sub("", call)


def _culprit(row: dict[str, str | None], short: Mapping[str, str], *, several: bool) -> str:
    """Formats a culprit, with its range if it occurs in several."""
    culprit = row["culprit"] or "(no name)"
    if row["bucket"] == "host" and culprit == row["range"]:
        return f"in {culprit}"
    if row["bucket"] == "host" and not several:
        return located(_VERSION.sub("", without_folders(culprit)), row["range"])
    where = (f"in {row['range']}: " if row["range"] else "in no range: ") if several else ""
    if row["bucket"] == "profiler":
        return where + UNNAMED.get(culprit, culprit)
    return where + operation(short.get(culprit, _VERSION.sub("", culprit)))


def ranges(tables: Tables, top: int) -> Section:
    """Section of NVTX ranges: host time, and the GPU work launched in them."""
    table, keys = tables["ranges"], ["range", "style"]
    if "range_gpu" in tables:
        work = tables["range_gpu"].select(*keys, "projected_ns", "busy_ns", "gpu_ops")
        table = table.join(work, on=keys, how="left", maintain_order="left")
    else:
        table = table.with_columns(projected_ns=None, busy_ns=None, gpu_ops=None)
    table = _steps_together(table)
    others = bool(table.select((pl.col("process_busy_ns") > pl.col("busy_ns").fill_null(0)).any()).item())
    heads = (
        Head("host time"),
        Head("count", spare=others),
        Head("median", spare=True),
        Head("on GPU"),
        Head("GPU busy"),
        *([Head("any thread")] if others else []),
        Head("GPU ops", wide=True),
        Head("range", left=True),
    )
    times = ("projected_ns", "busy_ns", *(["process_busy_ns"] if others else []))
    rows = [
        (
            units.time(row["total_ns"]),
            units.count(row["count"]),
            known(units.time, row["median_ns"]),
            *(known(units.time, row[name] or None) for name in times),
            known(units.count, row["gpu_ops"]),
            plain(row["range"]) or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    remark = of(len(rows), table.height, "on GPU: first to last operation")
    return Section("NVTX RANGES", remark, Grid(heads, rows, cut=True), _ANY_THREAD if others else "")


def _steps_together(table: pl.DataFrame) -> pl.DataFrame:
    """Merges the ranges of profiler steps, which have unique names, into one row."""
    steps = pl.col("range").str.starts_with(_DEFAULT_DOMAIN + STEP_PREFIX).fill_null(value=False)
    if not table.select(steps.any()).item():
        return table
    sums = ("total_ns", "count", "projected_ns", "busy_ns", "gpu_ops", "process_busy_ns")
    known = [pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in sums]
    together = table.filter(steps).select(pl.lit(_DEFAULT_DOMAIN + ALL_STEPS).alias("range"), *known)
    others = table.filter(~steps).select("range", "median_ns", *sums)
    rows = pl.concat([together, others], how="diagonal_relaxed")
    return rows.sort("total_ns", descending=True, maintain_order=True)


#: Columns that identify a graph.
_WHOSE_GRAPH: Final = {"process_id": "process", "device": "GPU", "graph_exec_id": "executable"}


def graphs(tables: Tables, top: int) -> Section:
    """Section of CUDA graphs: host cost per launch, GPU time."""
    table = tables["graphs"]
    # whole graphs are listed as kernels, with their CUDA ids where known
    whole = table.get_column("kernels_per_launch").null_count() == table.height
    numbered = "graph_id" if whole and not table.get_column("graph_id").has_nulls() else "graph"
    whose = telling_apart(table, (numbered,), _WHOSE_GRAPH)
    heads = (
        Head("launches"),
        Head("nodes", spare=bool(whose)),
        Head("call"),
        Head("span"),
        Head("busy"),
        Head("idle in it", wide=True),
        *(Head(_WHOSE_GRAPH[column]) for column in whose),
        Head("graph", left=True),
    )
    rows = [
        (
            units.count(row["launches"]),
            known(units.count, row["nodes"]),
            *(known(units.time, row[f"{name}_ns"]) for name in ("api_median", "span_median", "busy", "idle")),
            *(number(row[column]) for column in whose),
            f"graph {row[numbered]}",
        )
        for row in table.head(min(top, _FEWER)).iter_rows(named=True)
    ]
    remark = of(len(rows), table.height, "medians of call and span; busy and idle in all")
    return Section("CUDA GRAPHS", remark, Grid(heads, rows))


def unified_memory(tables: Tables, top: int) -> Section:
    """Section of unified memory migrations."""
    del top
    heads = (
        Head("to GPU"),
        Head("to host"),
        Head("again", spare=True),
        Head("copies", spare=True),
        Head("time"),
        Head("CPU faults"),
        Head("GPU faults"),
    )
    rows = [
        (
            *(known(units.size, row[name]) for name in ("h2d_bytes", "d2h_bytes", "again_bytes")),
            known(units.count, row["moves"]),
            known(units.time, row["total_ns"]),
            *(known(units.count, row[name]) for name in ("cpu_faults", "gpu_faults")),
        )
        for row in tables["migration_totals"].iter_rows(named=True)
    ]
    return Section("UNIFIED MEMORY", "again: moved more than once in a direction", Grid(heads, rows))


#: Columns that identify a kind of memory on a GPU.
_WHOSE_MEMORY: Final = {"process_id": "process"}


def memory(tables: Tables, top: int, zero_ns: int = 0) -> Section:
    """Section of memory by kind: peak, allocations and frees; times relative to `zero_ns`."""
    table = tables["memory"]
    whose = telling_apart(table, ("memory", "device"), _WHOSE_MEMORY)
    heads = (
        Head("peak"),
        Head("at", spare=True),
        Head("allocated", wide=True),
        Head("calls"),
        Head("in a loop"),
        Head("held at the end", spare=True),
        *(Head(_WHOSE_MEMORY[column]) for column in whose),
        Head("memory", left=True),
    )
    rows = [
        (
            known(units.size, row["peak_bytes"]),
            known(partial(units.instant, zero_ns=zero_ns), row["peak_at_ns"]),
            known(units.size, row["allocated_bytes"]),
            units.count(row["allocations"]),
            known(units.count, row["loop_allocations"]),
            known(units.size, row["held_bytes"]),
            *(number(row[column]) for column in whose),
            f"{row['memory']}, {'host' if row['device'] is None else 'GPU ' + str(row['device'])}",
        )
        for row in table.head(min(top, _FEWER)).iter_rows(named=True)
    ]
    return Section("MEMORY", of(len(rows), table.height), Grid(heads, rows))


#: Columns that distinguish streams of the same number, with labels.
_WHOSE_STREAM: Final = {"process_id": "process", "context_id": "context"}


def streams(tables: Tables, top: int) -> Section:
    """Section of CUDA streams: busy time, and time without overlap."""
    table = tables["concurrency"].sort("busy_ns", descending=True)
    whose = telling_apart(table, ("device", "stream"), _WHOSE_STREAM)
    heads = (
        Head("busy"),
        Head("alone"),
        Head("with kernels"),
        Head("with copies", spare=True),
        Head("operations", spare=True),
        *(Head(_WHOSE_STREAM[column]) for column in whose),
        Head("stream", left=True),
    )
    rows = [
        (
            units.time(row["busy_ns"]),
            units.time(row["alone_ns"]),
            units.time(row["overlap_kernel_ns"]),
            units.time(row["overlap_memcpy_ns"]),
            units.count(row["operations"]),
            *(number(row[column]) for column in whose),
            _stream(row),
        )
        for row in table.head(min(top, _FEWER)).iter_rows(named=True)
    ]
    return Section("STREAMS", of(len(rows), table.height, "alone, or beside others' work"), Grid(heads, rows, cut=True))


def _stream(row: dict[str, object]) -> str:
    number = "migrations" if row["stream"] is None else f"stream {row['stream']}"
    return f"GPU {row['device']} {number}" + (f" ({row['name']})" if row.get("name") else "")


def operators(tables: Tables, top: int) -> Section:
    """Section of operators by device time; by host time if there is none."""
    table = tables["ops"]
    on_device = bool(table.get_column("exclusive_device_ns").sum())
    device = (Head("device"), Head("share"), Head("launched", spare=True)) if on_device else ()
    heads = (*device, Head("own host"), Head("host", wide=True), Head("count"), Head("operator", left=True))
    rows = [
        (
            *(
                (
                    units.time(row["exclusive_device_ns"]),
                    units.percent(row["exclusive_share"]),
                    units.count(row["operations"]),
                )
                if on_device
                else ()
            ),
            units.time(row["self_cpu_ns"]),
            units.time(row["cpu_ns"]),
            units.count(row["count"]),
            row["name"] or "(no operator)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    remark = "share of busy time; own: without what it called" if on_device else "own: without what it called"
    return Section("OPERATORS", of(len(rows), table.height, remark), Grid(heads, rows, cut=True))


# Section of profiler steps.


def steps(tables: Tables, top: int) -> Section:
    """Section of steps in order; if many, warm-up and outliers first, then those furthest from the median."""
    table = tables["steps"]
    length, usual = pl.col("dur_ns"), ~pl.col("warm_up") & ~pl.col("odd")
    median = length.filter(usual).median().over("process_id", "device")
    known = table.with_columns(ratio=pl.when(median > 0).then(length / median), away=(length - median).abs())
    marked = pl.col("warm_up") | pl.col("odd")
    chosen = known.sort(marked, "away", descending=True, maintain_order=True).head(top)
    rows = chosen.sort("start_ns", "device", maintain_order=True).iter_rows(named=True)
    several = table.get_column("device").n_unique() > 1
    ranks = bool(telling_apart(table, ("step", "device"), ("process_id",)))
    heads = (
        Head("process"),
        Head("step"),
        Head("time"),
        Head("of median"),
        Head("GPU busy"),
        Head("launched", spare=True),
        Head("runs on", spare=True),
        Head("idle most in", left=True),
        Head("", left=True),
    )
    cells = [(number(row["process_id"]) if ranks else "", *_cells(row, several=several)) for row in rows]
    kept = [place for place in range(len(heads)) if any(row[place] for row in cells)]
    shown = [tuple(row[place] for place in kept) for row in cells]
    remark = of(len(cells), table.height, "furthest from the median" if len(cells) < table.height else "")
    return Section("STEPS", remark, Grid(tuple(heads[place] for place in kept), shown))


def _cells(row: dict[str, Any], *, several: bool) -> tuple[str, ...]:
    where = f"GPU {row['device']} " if several and row["device"] is not None else ""
    idle = f"{row['idle_in']} {units.time(row[row['idle_in'] + '_ns'])}" if row["idle_in"] else ""
    return (
        f"{where}{row['step']}",
        units.time(row["dur_ns"]),
        "" if row["ratio"] is None else units.times(row["ratio"]),
        "" if row["busy_share"] is None else units.percent(row["busy_share"]),
        units.count(row["operations"]),
        units.time(row["late_ns"]) if row["late_ns"] else "",
        idle,
        "warm-up" if row["warm_up"] else f"odd ({row['cause']})" if row["cause"] else "odd" if row["odd"] else "",
    )
