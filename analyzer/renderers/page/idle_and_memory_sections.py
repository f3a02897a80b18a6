"""Optional sections of the page: idle culprits, ranges, graphs, memory, streams."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from kanalyze import units
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, located, plain
from kanalyze.renderers.text.grid import Grid, Head, Section, number, of, operation, telling_apart
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tables = Mapping[str, pl.DataFrame]

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
_WHOSE: Final = {"process_id": "process", "context_id": "context"}


def streams(tables: Tables, top: int) -> Section:
    """Section of CUDA streams: busy time, and time without overlap."""
    table = tables["concurrency"].sort("busy_ns", descending=True)
    whose = telling_apart(table, ("device", "stream"), _WHOSE)
    heads = (
        Head("busy"),
        Head("alone"),
        Head("with kernels"),
        Head("with copies", spare=True),
        Head("operations", spare=True),
        *(Head(_WHOSE[column]) for column in whose),
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
