"""Sections of GPU work and CUDA calls: exposed time, kernels, copies, launches, calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import units
from kanalyze.renderers.text.grid import Grid, Head, Section, number, of, operation, telling_apart

if TYPE_CHECKING:
    from collections.abc import Mapping

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
_WHOSE: Final = {"process_id": "process", "thread_id": "thread", "device": "GPU"}


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
        *(Head(_WHOSE[column]) for column in whose),
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
