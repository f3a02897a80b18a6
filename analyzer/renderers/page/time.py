"""Builds the pages of a whole timeline report and of all instances of a range: their sections, ledgers and findings."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from kanalyze import outlets, tools, units
from kanalyze.analyses.page.overview_page import Summary
from kanalyze.analyses.ranges.instances import Instances
from kanalyze.renderers import page
from kanalyze.renderers.page import Column, Page, Row, Section, kernel_names, numbers, overview, section, some, words
from kanalyze.renderers.page.overview import ENGINE, Make, Tables, by_either, captured_section, section_of
from kanalyze.window import ALL_STEPS, STEP_PREFIX, PerIteration, Scope, Window, located, plain

#: Most rows of sections of secondary interest.
_FEWER: Final = 5

#: A time, and nothing of none.
_TIME: Final = some(units.time)


def _whose(table: pl.DataFrame, names: Sequence[str], columns: Iterable[str]) -> list[Column]:
    """Those of `columns` that tell apart rows of equal `names`."""
    titles = {"device": "GPU", "graph_exec_id": "executable"}
    return [Column(titles.get(one, one.removesuffix("_id")), one) for one in page.telling_apart(table, names, columns)]


def _gpu(row: Row) -> str:
    return "" if row["device"] is None else f"GPU {row['device']} "


def exposure(tables: Tables, _: int) -> Section:
    """Section of total and exposed time; all rows."""
    table = tables["exposure"]
    many = table.get_column("device").n_unique() > 1
    alone = pl.col("detail").count().over("device", "category") == 1  # which says what its category does
    columns = (
        Column(
            "",
            lambda row: f"  {row['detail']}" if row["detail"] else f"{_gpu(row) if many else ''}{row['category']}",
            left=True,
        ),
        *numbers(total="total_ns", at_once="union_ns wide", exposed="exposed_ns", hidden="hidden_share"),
    )
    # exposed time of launches is a ledger bucket, which extends beyond the calls
    late = table.filter(pl.col("exposed_ns") > pl.col("total_ns"), category="launch").height
    remark = "hidden: behind useful work; exposed launches with latency" if late else "hidden: behind more useful work"
    return section("TOTAL AND EXPOSED", table.filter(pl.col("detail").is_null() | ~alone), columns, remark=remark)


def _shape(row: Row) -> str:
    if not row["shapes"] or not row["grid_x"] or not row["block_x"]:  # 0 if the tool does not record it
        return ""
    return launch_shape(row) + (f" +{row['shapes'] - 1}" if row["shapes"] > 1 else "")


def launch_shape(row: Row, template: str = "{} × {}") -> str:
    """Grid and block of a row, as in `template`, without trailing ones: 4096, or 32,1,8; empty where not known."""
    if row["grid_x"] is None:
        return ""
    sizes = (",".join(str(row[f"{what}_{axis}"]) for axis in "xyz") for what in ("grid", "block"))
    return template.format(*(re.sub(r"(,1){1,2}$", "", text) for text in sizes))


def launches(tables: Tables, top: int) -> Section:
    """Section of launches by host time."""
    table = tables["launch_summary"].sort("charged_api_ns", descending=True)
    bound = {*tables["hot_kernels"].filter("launch_bound").get_column("name")}
    # the process may matter in any row, the thread only where rows would be equal
    whose = _whose(table, ("kernel", "api"), ["process_id"])
    whose += _whose(table.head(top), (("kernel", "api", *(["process_id"] if whose else []))), ["thread_id", "device"])
    columns = (
        *numbers(host_time="charged_api_ns", count=f"count{' spare' if whose else ''}", call="api_median_ns"),
        *numbers(queue="queue_median_ns spare", kernel="kernel_median_ns spare"),
        Column("", lambda row: "!" if row["kernel"] in bound else "", left=True),
        *whose,
        Column("call", "api", left=True, wide=True, missing="(no name)"),
        words("kernel", "kernel"),
    )
    marked = "; ! launch-bound" if {*table.head(top).get_column("kernel")} & bound else ""
    return section("LAUNCHES", table, columns, top, f"medians of call, queue and kernel{marked}", named=True)


def culprits(tables: Tables, top: int) -> Section:
    """Section of idle culprits: summed over GPUs, as a share of all windows."""
    keys = ("bucket", "culprit", "range")
    windows_ns = max(int(tables["ledger"].get_column("ns").sum()), 1)
    sums = tables["culprits"].group_by(keys).agg(pl.col("ns", "gaps").sum(), pl.col("longest_ns").max())
    table = sums.with_columns(share=pl.col("ns") / windows_ns).sort("ns", *keys, descending=[True, *[False] * 3])
    shown = table.head(min(top, _FEWER)).with_columns(several=pl.struct("bucket", "culprit").is_duplicated())
    short = kernel_names.short_forms(filter(None, shown.filter(bucket="launch").get_column("culprit")), 40)
    columns = (
        *numbers(time="ns", share="share", times="gaps", longest="longest_ns wide"),
        Column("bucket", "bucket", left=True),
        Column("in range", "range", left=True, wide=True),
        Column("culprit", partial(_culprit, short), left=True),
    )
    remark = page.of(shown.height, table.height, "idle time by what held it up")
    return section("WHY IT WAITED", shown, columns, remark=remark, cut=True)


def _culprit(short: Mapping[str, str], row: Row) -> str:
    """Formats a culprit, with its range if it occurs in several."""
    culprit = row["culprit"] or "(no name)"
    if row["bucket"] == "host" and culprit == row["range"]:
        return f"in {culprit}"
    if row["bucket"] == "host" and not row["several"]:
        return located(page.unversioned(page.without_folders(culprit)), row["range"])
    where = (f"in {row['range']}: " if row["range"] else "in no range: ") if row["several"] else ""
    if row["bucket"] == "profiler":
        return where + page.UNNAMED.get(culprit, culprit)
    return where + page.operation(short.get(culprit, page.unversioned(culprit)))


def ranges(tables: Tables, top: int) -> Section:
    """Section of NVTX ranges: host time, and the GPU work launched in them."""
    table, keys = tables["ranges"], ["range", "style"]
    if "range_gpu" in tables:
        work = tables["range_gpu"].select(*keys, "projected_ns", "busy_ns", "gpu_ops", "captured_busy_ns")
        table = table.join(work, on=keys, how="left", maintain_order="left")
    else:
        table = table.with_columns(projected_ns=None, busy_ns=None, gpu_ops=None, captured_busy_ns=0)
    # profiler steps, which have unique names in the default domain, are one row
    steps = pl.col("range").str.starts_with(f":{STEP_PREFIX}").fill_null(value=False)
    if table.select(steps.any()).item():
        sums = ("total_ns", "count", "projected_ns", "busy_ns", "gpu_ops", "process_busy_ns", "captured_busy_ns")
        known = [pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in sums]
        together = table.filter(steps).select(pl.lit(f":{ALL_STEPS}").alias("range"), *known)
        rows = pl.concat([together, table.filter(~steps).select("range", "median_ns", *sums)], how="diagonal_relaxed")
        table = rows.sort("total_ns", descending=True, maintain_order=True)
    inside = bool(table.get_column("captured_busy_ns").sum())
    others = bool(table.select((pl.col("process_busy_ns") > pl.col("busy_ns").fill_null(0)).any()).item())
    columns = (
        *numbers(host_time="total_ns", count=f"count{' spare' if others else ''}", median="median_ns spare"),
        Column("on GPU", "projected_ns", _TIME),
        Column("GPU busy", "busy_ns", _TIME),
        *([Column("in graphs", "captured_busy_ns", _TIME, spare=True)] if inside else []),
        *([Column("any thread", "process_busy_ns", _TIME)] if others else []),
        *numbers(GPU_ops="gpu_ops wide"),
        Column("range", lambda row: plain(row["range"]) or "(no name)", left=True),
    )
    foot = "any thread: GPU busy with what any thread of the process launched meanwhile" if others else ""
    foot = foot or ("in graphs: GPU busy with what was captured in it" if inside else "")
    return section("NVTX RANGES", table, columns, top, "on GPU: first to last operation", foot, cut=True)


def _graph(table: pl.DataFrame) -> list[Column]:
    """The columns of CUDA graphs: host cost per launch, GPU time, and which graph."""
    # whole graphs are listed as kernels, with their CUDA ids where known
    whole = table.get_column("kernels_per_launch").null_count() == table.height
    numbered = "graph_id" if whole and not table.get_column("graph_id").has_nulls() else "graph"
    whose = _whose(table, (numbered,), ("process_id", "device", "graph_exec_id"))
    return [
        *numbers(launches="launches", nodes=f"nodes{' spare' if whose else ''}", call="api_median_ns"),
        *numbers(span="span_median_ns", busy="busy_ns", idle_in_it="idle_ns wide"),
        *whose,
        Column("graph", numbered, "graph {}".format, left=True, missing="graph None"),
    ]


def memory(tables: Tables, top: int, zero_ns: int = 0) -> Section:
    """Section of memory by kind: peak, allocations and frees; times relative to `zero_ns`."""
    table = tables["memory"]
    columns = (
        Column("peak", "peak_bytes"),
        Column("at", "peak_at_ns", partial(units.instant, zero_ns=zero_ns), spare=True),
        *numbers(allocated="allocated_bytes wide", calls="allocations", in_a_loop="loop_allocations"),
        *numbers(held_at_the_end="held_bytes spare"),
        *_whose(table, ("memory", "device"), ["process_id"]),
        Column("memory", lambda row: f"{row['memory']}, {_gpu(row).rstrip() or 'host'}", left=True),
    )
    return section("MEMORY", table, columns, min(top, _FEWER))


def _stream(row: Row) -> str:
    number = "migrations" if row["stream"] is None else f"stream {row['stream']}"
    return f"GPU {row['device']} {number}" + (f" ({row['name']})" if row.get("name") else "")


def operators(tables: Tables, top: int) -> Section:
    """Section of operators by device time; by host time if there is none."""
    table, inside = by_either(tables["ops"], "exclusive_device_ns", "captured_device_ns")
    on_device = bool(table.get_column("exclusive_device_ns").sum())
    device = numbers(device="exclusive_device_ns", share="exclusive_share", launched="operations spare")
    columns = (
        *(device if on_device else ()),
        *([Column("in graphs", "captured_device_ns", _TIME, spare=True)] if inside else []),
        *numbers(own_host="self_cpu_ns", host="cpu_ns wide", count="count"),
        words("operator", "name", missing="(no operator)"),
    )
    remark = f"{'share of busy time; ' if on_device else ''}own: without what it called"
    return section("OPERATORS", table, columns, top, remark, cut=True)


def steps(tables: Tables, top: int) -> Section:
    """Section of steps in order; if many, warm-up and outliers first, then those furthest from the median."""
    table = tables["steps"]
    length, marked = pl.col("dur_ns"), pl.col("warm_up") | pl.col("odd")
    median = length.filter(~marked).median().over("process_id", "device")
    known = table.with_columns(ratio=pl.when(median > 0).then(length / median), away=(length - median).abs())
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
        *numbers(GPU_busy="busy_share", launched="operations spare"),
        Column("runs on", "late_ns", _TIME, spare=True),
        Column("idle most in", idle, left=True),
        Column("", mark, left=True),
    )
    rows = shown.to_dicts()
    remark = page.of(shown.height, table.height, "furthest from the median" if shown.height < table.height else "")
    return section("STEPS", shown, [one for one in columns if any(map(one.text, rows))], remark=remark)


#: Sections in page order, by the table that each needs; empty ones are omitted.
_SECTIONS: Final[dict[str, Make]] = {
    **ENGINE,
    "culprits": culprits,
    "steps": steps,
    "ranges": ranges,
    "exposure": exposure,
    "hot_kernels": section_of(
        "hot_kernels",
        "KERNELS",
        *numbers(time="exclusive_ns wide", window="window_share", busy="busy_share", count="count", average="avg_ns"),
        Column("grid × block", _shape, left=True, spare=True),
        words("kernel", "name"),
        remark="share of window and of busy time",
        named=True,
    ),
    "ops": operators,
    "graphs": section_of(
        "graphs", "CUDA GRAPHS", _graph, most=_FEWER, remark="medians of call and span; busy and idle in all"
    ),
    "captured": lambda tables, top: captured_section(
        tables["captured"], numbers(time="exclusive_ns", share="share", count="count"), top
    ),
    "copies": section_of(
        "copies",
        "COPIES",
        *numbers(time="total_ns", exposed="exclusive_ns", count="count spare", bytes="total_bytes"),
        *numbers(average="avg_bytes wide", rate="bandwidth_bytes_per_s"),
        words("operation", "operation", page.operation),
        cut=True,
    ),
    "migration_totals": section_of(
        "migration_totals",
        "UNIFIED MEMORY",
        *numbers(to_GPU="h2d_bytes", to_host="d2h_bytes", again="again_bytes spare", copies="moves spare"),
        *numbers(time="total_ns", CPU_faults="cpu_faults", GPU_faults="gpu_faults"),
        remark="again: moved more than once in a direction",
    ),
    "memory": memory,
    "concurrency": section_of(
        "concurrency",
        "STREAMS",
        *numbers(busy="busy_ns", alone="alone_ns", with_kernels="overlap_kernel_ns"),
        *numbers(with_copies="overlap_memcpy_ns spare", operations="operations spare"),
        lambda table: _whose(table, ("device", "stream"), ("process_id", "context_id")),
        Column("stream", _stream, left=True),
        rows=lambda table: table.sort("busy_ns", descending=True),
        most=_FEWER,
        remark="alone, or beside others' work",
        cut=True,
    ),
    "launch_summary": launches,
    "api": section_of(
        "api",
        "CUDA CALLS",
        *numbers(host_time="total_ns", count="count", average="avg_ns", median="median_ns wide", longest="max_ns"),
        words("call", "name"),
        cut=True,
    ),
}
#: Tables of GPU activity.
_OF_GPU: Final = ("ledger", "exposure", "hot_kernels", "copies", "launch_summary")


def page_of(summary: Summary, top: int) -> Page:
    """Builds the page of a summary, at most `top` rows per table."""
    meta, tables, window = summary.meta, summary.tables, summary.scope.window
    models = summary.windows.group_by("name", "compute_capability", "sm_count", maintain_order=True).len()
    heading = [meta.path.name, meta.recorded_by]
    heading += [f"{f'{count} × ' if count > 1 else ''}{gpu(*model)}" for *model, count in models.iter_rows()]
    heading += [f"driver {meta.driver_version}"] if meta.driver_version else []
    heading += [units.plural(summary.process_count, "process"), *page.rank_of(meta)]
    heading += [f"window {window.name}"] if window is not None and window.name else []
    heading += [page.health_line(tables["health"])]
    makers = _SECTIONS | {"memory": partial(memory, zero_ns=summary.zero_ns)}
    shown = []
    for name, made in ((name, make(tables, top)) for name, make in makers.items() if len(tables.get(name, ()))):
        title = tools.worded(made.title if meta.recorder.nvtx else made.title.removeprefix("NVTX "), summary.interface)
        shown.append(made._replace(title=title, foot=summary.remarks.get(name, made.foot)))
    per = PerIteration(None, "")
    points = [overview.point(one, per, beside) for one, beside in overview.to_do(summary.findings)[:top]]
    told = [f"findings in sentences: {show('findings', meta.path, scope=summary.scope)}"] if points else []
    table = show("ledger" if "ledger" in tables else "health", meta.path, scope=summary.scope)
    missing = list(summary.cannot_tell.values())
    if "ledger" in summary.cannot_tell:  # a single sentence for all tables of GPU activity
        *names, last = (name for name in _OF_GPU if name in summary.cannot_tell)
        others = [reason for name, reason in summary.cannot_tell.items() if name not in _OF_GPU]
        missing = [f"Without what the GPU did there is no table {', '.join(names)} or {last}.", *others]
    return Page(
        heading=heading,
        answer=summary.answer,
        ledgers=[_ledger(summary, row) for row in summary.windows.iter_rows(named=True)],
        sections=shown,
        points=points,
        points_remark=overview.points_remark(per, points),
        cannot_tell=missing,
        more="\n".join([*told, f"any table, such as: {table}", "all tables: kanalyze show"]),
    )


def show(table: str, *paths: Path, scope: Scope) -> str:
    """The command that shows `table` of the part in `scope` of the reports at `paths`."""
    return outlets.command("kanalyze", "show", table, *paths, *page.options(scope))


def gpu(name: str | None, capability: str | None, sms: int | None) -> str:
    """A GPU with its number of SMs and its architecture, as far as known."""
    known = tools.processor(name, capability, sms)
    return (name or "GPU") + (f", {known}" if known else "")


def _ledger(summary: Summary, window: dict[str, int]) -> page.Ledger:
    """The ledger of a device, with its busy share over time."""
    start, end = (units.instant(window[side], summary.zero_ns) for side in ("start_ns", "end_ns"))
    busy = summary.tables["utilisation"].filter(device=window["device"]).get_column("busy_share").to_list()
    return overview.ledger_of(summary, PerIteration(None, ""), window)._replace(busy=busy, span=(start, end))


def instances_page(instances: Instances, top: int) -> Page:
    """Builds the page of a range's instances: time breakdown, outliers and slowest ones."""
    figures = numbers(share="share", median="median_ns", least="min_ns", most="max_ns", deviation="stddev_ns wide")
    columns, sections = (Column("bucket", "bucket", left=True), *figures), []
    keys = instances.spread.select("process_id", "device").unique(maintain_order=True)
    many = keys.get_column("process_id").n_unique() > 1
    for process, device in keys.iter_rows():
        here = pl.col("process_id").eq_missing(process) & (pl.col("device") == device)
        rows = instances.instances.filter(here)
        usual = rows.filter(~pl.col("warm_up"), ~pl.col("odd"))  # those in medians and shares
        which = units.plural(usual.height, "instance")
        which = which if usual.height == rows.height else f"{usual.height} usual instances"
        whose = f", process {process}" if many else ""
        remark = f"GPU {device}{whose}, {which}"
        sections += [section("WHERE THE TIME WENT", instances.spread.filter(here), columns, remark=remark)]
        sections += [_slowest(rows, usual, top, instances.zero_ns)]
    first = instances.instances.item(0, "window") if instances.instances.height else ""
    scope, window = replace(instances.scope, window=Window(name=first)), instances.scope.window
    return Page(
        heading=[
            instances.meta.path.name,
            instances.meta.recorded_by,
            f"window {window.name if window else instances.name}",
        ],
        answer=instances.answer,
        sections=sections,
        more=outlets.command("kanalyze", "summarize", instances.meta.path, *page.options(scope)),
    )


def _slowest(rows: pl.DataFrame, usual: pl.DataFrame, top: int, zero_ns: int) -> Section:
    """Section of instances: outliers first, then longest."""
    median = float(usual.select(pl.col("dur_ns").median()).item())
    order = rows.sort("odd", (pl.col("dur_ns") - median).abs(), "instance", descending=[True, True, False])
    # the window, or the number that every window ends in, where all are of one name
    window, number = pl.col("window"), pl.format("#{}", "instance")
    one = order.get_column("window").str.replace(r"#\d+$", "").n_unique() == 1
    numbered = (window.str.ends_with(number) & one) | (window.fill_null("") == "")
    columns = (
        Column("instance", "called"),
        Column("start", "start_ns", partial(units.instant, zero_ns=zero_ns)),
        Column("time", "dur_ns"),
        Column("of median", "dur_ns", lambda ns: units.times(ns / max(median, 1))),
        Column("", lambda row: "warm-up" if row["warm_up"] else "odd" if row["odd"] else "", left=True),
        Column("most in", "cause", left=True),
    )
    table = order.with_columns(called=pl.when(numbered).then(number).otherwise(window))
    return section("INSTANCES", table, columns, top, "furthest from the median first")
