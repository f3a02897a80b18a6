"""Sections of the page of time: GPU work, CUDA calls, idle culprits, ranges, graphs, memory, streams, operators."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import units
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, located, plain
from kanalyze.renderers.text.grid import Column, Section, of, operation, section, telling_apart, words
from kanalyze.renderers.text.kernel_names import short_forms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kanalyze.renderers.text.grid import Row

    Tables = Mapping[str, pl.DataFrame]

_FOOT: Final = 78  # width of a line below a table, in characters, on the narrowest usual page

#: Headings of columns that tell apart rows which are otherwise called the same.
_WHOSE: Final = {
    "process_id": "process",
    "thread_id": "thread",
    "context_id": "context",
    "device": "GPU",
    "graph_exec_id": "executable",
}


def _whose(table: pl.DataFrame, names: Sequence[str], columns: Iterable[str]) -> list[Column]:
    """Those of `columns` that tell apart rows of equal `names`."""
    return [Column(_WHOSE[name], name) for name in telling_apart(table, names, columns)]


def exposure(tables: Tables, top: int) -> Section:
    """Section of total and exposed time; all rows."""
    del top
    table = tables["exposure"]
    many = table.get_column("device").n_unique() > 1
    alone = pl.col("detail").count().over("device", "category") == 1  # which says what its category does

    def name(row: Row) -> str:
        return f"  {row['detail']}" if row["detail"] else f"{_gpu(row) if many else ''}{row['category']}"

    columns = (
        Column("", name, left=True),
        Column("total", "total_ns"),
        Column("at once", "union_ns", wide=True),
        Column("exposed", "exposed_ns"),
        Column("hidden", "hidden_share"),
    )
    late = (table.get_column("category") == "launch") & (table.get_column("exposed_ns") > table.get_column("total_ns"))
    remark = "hidden: behind more useful work"
    if late.any():  # exposed time of launches is a ledger bucket, which extends beyond the calls
        remark = "hidden: behind useful work; exposed launches with latency"
    return section("TOTAL AND EXPOSED", table.filter(pl.col("detail").is_null() | ~alone), columns, remark=remark)


def kernels(tables: Tables, top: int) -> Section:
    """Section of the heaviest kernels."""
    table = tables["hot_kernels"]
    columns = (
        Column("time", "exclusive_ns", wide=True),
        Column("window", "window_share"),
        Column("busy", "busy_share"),
        Column("count", "count"),
        Column("average", "avg_ns"),
        Column("grid × block", _shape, left=True, spare=True),
        words("kernel", "name"),
    )
    return section("KERNELS", table, columns, top, "share of window and of busy time", _families(table), named=True)


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


def _shape(row: Row) -> str:
    if not row["shapes"] or not row["grid_x"] or not row["block_x"]:  # 0 if the tool does not record it
        return ""
    return launch_shape(row) + (f" +{row['shapes'] - 1}" if row["shapes"] > 1 else "")


def launch_shape(row: Row, told: str = "{} × {}") -> str:
    """Grid and block of a row, as in `told`; empty where they are not known."""
    if row["grid_x"] is None:
        return ""
    return told.format(*(dimensions([row[f"{what}_{axis}"] for axis in "xyz"]) for what in ("grid", "block")))


def dimensions(sizes: list[int]) -> str:
    """Formats a launch dimension without trailing ones: 4096, or 32,1,8."""
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return ",".join(str(size) for size in sizes)


def copies(tables: Tables, top: int) -> Section:
    """Section of copies and memsets."""
    columns = (
        Column("time", "total_ns"),
        Column("exposed", "exclusive_ns"),
        Column("count", "count", spare=True),
        Column("bytes", "total_bytes"),
        Column("average", "avg_bytes", wide=True),
        Column("rate", "bandwidth_bytes_per_s"),
        words("operation", "operation", operation),
    )
    return section("COPIES", tables["copies"], columns, top, cut=True)


def launches(tables: Tables, top: int) -> Section:
    """Section of launches by host time."""
    table = tables["launch_summary"].sort("charged_api_ns", descending=True)
    hot = tables["hot_kernels"]
    bound = set(hot.filter(pl.col("launch_bound")).get_column("name"))
    # the process may matter in any row, the thread only where rows would be equal
    names = ("kernel", "api")
    whose = _whose(table, names, ["process_id"])
    whose += _whose(table.head(top), (*names, *(["process_id"] if whose else [])), ["thread_id", "device"])
    columns = (
        Column("host time", "charged_api_ns"),
        Column("count", "count", spare=bool(whose)),
        Column("call", "api_median_ns"),
        Column("queue", "queue_median_ns", spare=True),
        Column("kernel", "kernel_median_ns", spare=True),
        Column("", lambda row: "!" if row["kernel"] in bound else "", left=True),
        *whose,
        Column("call", "api", left=True, wide=True, missing="(no name)"),
        words("kernel", "kernel"),
    )
    marked = "; ! launch-bound" if {*table.head(top).get_column("kernel")} & bound else ""
    return section("LAUNCHES", table, columns, top, f"medians of call, queue and kernel{marked}", named=True)


def calls(tables: Tables, top: int) -> Section:
    """Section of CUDA calls by host time."""
    columns = (
        Column("host time", "total_ns"),
        Column("count", "count"),
        Column("average", "avg_ns"),
        Column("median", "median_ns", wide=True),
        Column("longest", "max_ns"),
        words("call", "name"),
    )
    return section("CUDA CALLS", tables["api"], columns, top, cut=True)


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
    short = short_forms(names, _SHORT)
    several = shown.filter(pl.struct("bucket", "culprit").is_duplicated()).select("bucket", "culprit").unique().rows()
    columns = (
        Column("time", "ns"),
        Column("share", "share"),
        Column("times", "gaps", units.count),
        Column("longest", "longest_ns", wide=True),
        Column("bucket", "bucket", left=True),
        Column("in range", "range", left=True, wide=True),
        Column(
            "culprit", lambda row: _culprit(row, short, several=(row["bucket"], row["culprit"]) in several), left=True
        ),
    )
    return section("WHY IT WAITED", table, columns, shown.height, "idle time by what held it up", cut=True)


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
    columns = (
        Column("host time", "total_ns"),
        Column("count", "count", spare=others),
        Column("median", "median_ns", spare=True),
        Column("on GPU", "projected_ns", _or_nothing),
        Column("GPU busy", "busy_ns", _or_nothing),
        *([Column("any thread", "process_busy_ns", _or_nothing)] if others else []),
        Column("GPU ops", "gpu_ops", units.count, wide=True),
        Column("range", lambda row: plain(row["range"]) or "(no name)", left=True),
    )
    foot = _ANY_THREAD if others else ""
    return section("NVTX RANGES", table, columns, top, "on GPU: first to last operation", foot, cut=True)


def _or_nothing(ns: int) -> str:
    return units.time(ns) if ns else ""


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


def graphs(tables: Tables, top: int) -> Section:
    """Section of CUDA graphs: host cost per launch, GPU time."""
    table = tables["graphs"]
    # whole graphs are listed as kernels, with their CUDA ids where known
    whole = table.get_column("kernels_per_launch").null_count() == table.height
    numbered = "graph_id" if whole and not table.get_column("graph_id").has_nulls() else "graph"
    whose = _whose(table, (numbered,), ("process_id", "device", "graph_exec_id"))
    columns = (
        Column("launches", "launches", units.count),
        Column("nodes", "nodes", units.count, spare=bool(whose)),
        Column("call", "api_median_ns"),
        Column("span", "span_median_ns"),
        Column("busy", "busy_ns"),
        Column("idle in it", "idle_ns", wide=True),
        *whose,
        Column("graph", lambda row: f"graph {row[numbered]}", left=True),
    )
    remark = "medians of call and span; busy and idle in all"
    return section("CUDA GRAPHS", table, columns, min(top, _FEWER), remark)


def unified_memory(tables: Tables, top: int) -> Section:
    """Section of unified memory migrations."""
    del top
    columns = (
        Column("to GPU", "h2d_bytes"),
        Column("to host", "d2h_bytes"),
        Column("again", "again_bytes", spare=True),
        Column("copies", "moves", units.count, spare=True),
        Column("time", "total_ns"),
        Column("CPU faults", "cpu_faults", units.count),
        Column("GPU faults", "gpu_faults", units.count),
    )
    remark = "again: moved more than once in a direction"
    return section("UNIFIED MEMORY", tables["migration_totals"], columns, remark=remark)


def memory(tables: Tables, top: int, zero_ns: int = 0) -> Section:
    """Section of memory by kind: peak, allocations and frees; times relative to `zero_ns`."""
    table = tables["memory"]

    def place(row: Row) -> str:
        return f"{row['memory']}, {'host' if row['device'] is None else 'GPU ' + str(row['device'])}"

    columns = (
        Column("peak", "peak_bytes"),
        Column("at", "peak_at_ns", partial(units.instant, zero_ns=zero_ns), spare=True),
        Column("allocated", "allocated_bytes", wide=True),
        Column("calls", "allocations", units.count),
        Column("in a loop", "loop_allocations", units.count),
        Column("held at the end", "held_bytes", spare=True),
        *_whose(table, ("memory", "device"), ["process_id"]),
        Column("memory", place, left=True),
    )
    return section("MEMORY", table, columns, min(top, _FEWER))


def streams(tables: Tables, top: int) -> Section:
    """Section of CUDA streams: busy time, and time without overlap."""
    table = tables["concurrency"].sort("busy_ns", descending=True)

    def name(row: Row) -> str:
        number = "migrations" if row["stream"] is None else f"stream {row['stream']}"
        return f"GPU {row['device']} {number}" + (f" ({row['name']})" if row.get("name") else "")

    columns = (
        Column("busy", "busy_ns"),
        Column("alone", "alone_ns"),
        Column("with kernels", "overlap_kernel_ns"),
        Column("with copies", "overlap_memcpy_ns", spare=True),
        Column("operations", "operations", units.count, spare=True),
        *_whose(table, ("device", "stream"), ("process_id", "context_id")),
        Column("stream", name, left=True),
    )
    return section("STREAMS", table, columns, min(top, _FEWER), "alone, or beside others' work", cut=True)


def operators(tables: Tables, top: int) -> Section:
    """Section of operators by device time; by host time if there is none."""
    table = tables["ops"]
    on_device = bool(table.get_column("exclusive_device_ns").sum())
    device = (
        Column("device", "exclusive_device_ns"),
        Column("share", "exclusive_share"),
        Column("launched", "operations", units.count, spare=True),
    )
    columns = (
        *(device if on_device else ()),
        Column("own host", "self_cpu_ns"),
        Column("host", "cpu_ns", wide=True),
        Column("count", "count"),
        words("operator", "name", missing="(no operator)"),
    )
    remark = "share of busy time; own: without what it called" if on_device else "own: without what it called"
    return section("OPERATORS", table, columns, top, remark, cut=True)


def steps(tables: Tables, top: int) -> Section:
    """Section of steps in order; if many, warm-up and outliers first, then those furthest from the median."""
    table = tables["steps"]
    length, usual = pl.col("dur_ns"), ~pl.col("warm_up") & ~pl.col("odd")
    median = length.filter(usual).median().over("process_id", "device")
    known = table.with_columns(ratio=pl.when(median > 0).then(length / median), away=(length - median).abs())
    marked = pl.col("warm_up") | pl.col("odd")
    chosen = known.sort(marked, "away", descending=True, maintain_order=True).head(top)
    shown = chosen.sort("start_ns", "device", maintain_order=True)
    several = table.get_column("device").n_unique() > 1

    def idle(row: Row) -> str:
        return f"{row['idle_in']} {units.time(row[row['idle_in'] + '_ns'])}" if row["idle_in"] else ""

    def mark(row: Row) -> str:
        odd = f"odd ({row['cause']})" if row["cause"] else "odd" if row["odd"] else ""
        return "warm-up" if row["warm_up"] else odd

    columns = (
        *_whose(table, ("step", "device"), ["process_id"]),
        Column("step", lambda row: f"{_gpu(row) if several else ''}{row['step']}"),
        Column("time", "dur_ns"),
        Column("of median", "ratio", units.times),
        Column("GPU busy", "busy_share"),
        Column("launched", "operations", units.count, spare=True),
        Column("runs on", "late_ns", _or_nothing, spare=True),
        Column("idle most in", idle, left=True),
        Column("", mark, left=True),
    )
    rows = shown.to_dicts()
    kept = [one for one in columns if any(map(one.text, rows))]
    remark = of(shown.height, table.height, "furthest from the median" if shown.height < table.height else "")
    return section("STEPS", shown, kept, remark=remark)


def _gpu(row: Row) -> str:
    return "" if row["device"] is None else f"GPU {row['device']} "
