"""Reduces a report to the digests of its processes: the times of the iterations that a comparison is of."""

import math
from dataclasses import replace
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze.analyses.counters.counters import counters
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.device._operations import exclusive_operations, launch_shapes, shape_text
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.compiling import ONE_TIME
from kanalyze.analyses.host import _captures, _range_lines
from kanalyze.analyses.host.calls import api
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.idle.syncs import scope_of
from kanalyze.analyses.iterations import _marks, iterations, phases
from kanalyze.analyses.iterations.sample import sample_of
from kanalyze.analyses.memory.memory import memory
from kanalyze.analyses.operators import _work, tree
from kanalyze.analyses.operators._host_tree import ARROW, host_tree, labelled_paths, operator_paths, path_texts
from kanalyze.analyses.ranges.captured import captured_as
from kanalyze.analyses.replay._unprofiled import SAME, bare_of, corrected, estimated
from kanalyze.analyses.serving.engine_steps import compared_steps
from kanalyze.analyses.shared.analysis import named_ranges, recorded_kinds, require
from kanalyze.columns import gathered, told_of
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.reduction.baselines import FINDINGS, LAUNCHES, MEMORY, STEADY, STEPS, TABLES, WHOLE, About, Digest, Part
from kanalyze.report import Report
from kanalyze.window import NUMBER, STEP_PREFIX, plain

#: Most operations of a typical iteration that are kept apart; of more, those of one name and place are one.
_MOST_SLOTS: Final = 60_000

#: The step of a profiler in names of ranges and operators.
_STEP: Final = "step"


class _View(NamedTuple):
    """The part of a report that a digest is of."""

    report: Report  # its view, of the device's work
    host: Report  # the same of the host's part, which lies earlier where the host runs ahead
    steady: phases.SteadyPart | None  # the steady part that it is, if it is one


def digests_of(report: Report, part: Part = STEADY) -> list[Digest]:
    """One digest for each process of a report that used a GPU: of the window in scope, else of this part of it.

    Raises:
        CannotTellError: The report records no device operations.
    """
    if report.meta.timeless:
        return [_counted(report)]
    require(report, "compare", *DEVICE_KINDS)
    work = exclusive_operations(report)
    if work.is_empty():
        raise CannotTellError.without("compare", report.meta.path, DEVICE_KINDS, report.meta.tool)
    sums = work.group_by("process_id", "device").agg(pl.col("exclusive_ns").sum())
    main = sums.sort("exclusive_ns", "device", descending=[True, False]).unique("process_id", maintain_order=True)
    several = main.height > 1
    digests = []
    for rank, (process, device) in enumerate(main.sort("device", "process_id").select("process_id", "device").rows()):
        own = report.narrow(process=process) if several and process is not None else report
        number = report.meta.rank if report.meta.rank is not None and not several else rank
        digests.append(_digest(own, _view(own, device, part), number))
    return digests


def unprofiled_digests(report: Report) -> list[Digest]:
    """The digests without the profiler, where a run without it tells how long an iteration takes; else none.

    `report` is all of the recording of a run, or of some processes and GPUs in it.
    """
    plain: Report | None = report
    if report.meta.slower is None:
        bare = bare_of(report)
        one = None if bare is None else bare.iteration
        if one is None or one.recorded_ns > one.ns * (1 + SAME):  # else it took hardly longer while recorded
            plain = None if one is None else corrected(report)
    if plain is None:
        return []
    digests = digests_of(plain.narrow(device=report.scope.device, process=report.scope.process))
    if any(one.about.scope != STEADY for one in digests):
        return []
    return [replace(one, about=replace(one.about, unprofiled=True)) for one in digests]


def _view(report: Report, device: int, part: Part) -> _View:
    """The steady part of a process on its main device, the window in scope, or all of it."""
    window, steady = report.scope.window, None
    if part != WHOLE and (window is None or window.name == STEADY):
        steady = phases.steady_part_by_launches(report) if part == LAUNCHES else phases.steady_part(report)
    if steady is None:
        own = report.narrow(device=device)
        return _View(own, own, None)
    device = device if steady.device is None else steady.device
    view = report.narrow(window=steady.window, device=device)
    host = view if steady.host == steady.window else report.narrow(window=steady.host, device=device)
    return _View(view, host, steady)


def _digest(report: Report, view: _View, rank: int) -> Digest:
    device = view.report.scope.device
    of_device = pl.col("device") == device
    buckets = ledger(view.report).filter(of_device)
    steady, window, tables = view.steady, report.scope.window, {"steps": _steps_in_window(report)}
    attributes: dict[str, str | float] = {"scope": WHOLE if window is None else str(report.scope)}
    if steady is not None:
        kernels_ns = [rows.select(pl.col("kernels_ns").mean()).item() or 1 for rows in (steady.run, steady.usual)]
        tables = {
            "steps": phases.lengths_ns(steady.usual).to_frame().filter(pl.col("dur_ns") > 0),
            "ranges": phases.parts_of_step(report, steady._replace(window=steady.host)),
        }
        attributes = {
            "scope": STEADY,
            "each": steady.each,
            "found_by": steady.found_by,
            "iterations": steady.number,
            "typical": kernels_ns[0] / kernels_ns[1],
            "recorded_iterations": steady.rows.filter(pl.col("name") == steady.each).height,
            **_estimate(view.report, steady, buckets),
        }
    elif window is not None and window.count:
        attributes |= {"each": window.each or "", "iterations": window.count}
    tables |= {"buckets": buckets, "slots": _slots(view), "memory": _memory(view), "findings": _findings(view)}
    tables["engine"] = compared_steps(report, device)
    if "op" in {*view.report.kinds, *_captures.capture_source(view.report).kinds}:
        tables["ops"] = _ops(view)
    if "api" in view.host.kinds:
        calls = api(view.host)
        blocking = [scope_of(name) is not None for name in calls.get_column("name")]
        tables["calls"] = calls.with_columns(blocking=pl.Series(blocking, dtype=pl.Boolean))
    ns = int(buckets.get_column("ns").sum())
    about = _about(report, of_device, **attributes, ns=ns, recorded=recorded_kinds(report), rank=rank)
    return Digest(about, **{name: TABLES[name].select(table) for name, table in tables.items()})


def _estimate(view: Report, steady: phases.SteadyPart, buckets: pl.DataFrame) -> dict[str, int]:
    """The range of an iteration without the profiler, by estimate, of a recording with it.

    None where ranks communicate: how long they wait for each other without it, no single one tells.
    """
    if view.meta.slower is not None or "communication" in buckets.get_column("bucket"):
        return {}
    estimate = estimated(view, steady)
    return {} if estimate is None else {"least_ns": int(estimate.least_ns), "most_ns": math.ceil(estimate.most_ns)}


def _steps_in_window(report: Report) -> pl.DataFrame:
    """The iterations in a window of several; empty in any other window."""
    window = report.scope.window
    if window is None or (window.count or 1) < 2:  # noqa: PLR2004 - one is the window
        return STEPS.empty()
    end = pl.col("start_ns") + pl.col("dur_ns")
    inside = (pl.col("start_ns") >= window.start_ns) & (end <= window.end_ns) & (pl.col("name") == window.each)
    if window.process is not None:
        inside = inside & _marks.of_process(window.process)
    return iterations.judged_iterations(report).filter(inside & (pl.col("dur_ns") > 0)).sort("start_ns")


#: The scope of reports of ncu, which have no timeline: their kernels, one after the other.
COUNTED: Final = "kernels"

#: Counters that are compared: columns of `counters` and of `roofline`.
_COUNTERS: Final = (
    "dur_ns", "cycles", "sm_clock_hz", "compute_share", "memory_share", "dram_share", "dram_bytes_per_s",
    "dram_read_bytes", "dram_write_bytes", "l1_hit_share", "l2_hit_share", "occupancy_share",
    "achieved_occupancy_share", "registers_per_thread",
)  # fmt: skip
_ROOF: Final = ("flop", "intensity_flop_per_byte", "roof_share")


def _counted(report: Report) -> Digest:
    """The digest of a report of ncu: its launches in their order, with the durations alone, and their counters."""
    launches = counters(report).with_columns(pl.col("name").cast(pl.String))
    for more in (
        roofline(report).select("event_id", *_ROOF),
        report.kernel_config.select("event_id", shape=shape_text("{} × {}")),
    ):
        launches = launches.join(more, on="event_id", how="left", maintain_order="left")
    ns = pl.col("dur_ns").fill_null(0)
    slots = launches.select(
        "name", "shape", kind=pl.lit("kernel"), bucket=pl.lit("kernel"), range=pl.lit(None, dtype=pl.String),
        op=pl.lit(None, dtype=pl.String), lane=pl.lit(0, dtype=pl.Int64), place=pl.int_range(pl.len()).cast(pl.Float64),
        count=pl.lit(1, dtype=pl.Int64), exclusive_ns=ns, bytes=pl.lit(0, dtype=pl.Int64),
    )  # fmt: skip
    names = [name for name in (*_COUNTERS, *_ROOF) if launches.schema[name].is_numeric()]
    long = launches.select("name", "shape", pl.col(names).cast(pl.Float64)).unpivot(
        names, index=["name", "shape"], variable_name="counter", value_name="value"
    )
    sums = long.drop_nulls("value").group_by("name", "shape", "counter", maintain_order=True)
    means = sums.agg(launches=pl.len(), mean=pl.col("value").mean())
    total = int(slots.get_column("exclusive_ns").sum())
    buckets = pl.DataFrame({"bucket": ["kernel"], "detail": [None], "ns": [total]})
    tables = {"buckets": buckets, "slots": slots, "counters": means}
    about = _about(report, pl.lit(value=True), scope=COUNTED, ns=total)
    return Digest(about, **{name: TABLES[name].select(table) for name, table in tables.items()})


def _about(report: Report, chosen: pl.Expr, **attributes: Any) -> About:  # noqa: ANN401 - its attributes are checked
    """Metadata of any run: its tool, the first of the `chosen` GPUs and programs, its turn, and what else is told."""
    meta, turn = report.meta, report.meta.turn
    gpus = report.devices.filter(chosen)
    model, clock = gpus.select("name", "clock_hz").row(0) if gpus.height else (None, None)
    names = report.processes.filter(chosen).get_column("name").drop_nulls()
    return About(
        name=str(meta.path),
        tool=" ".join(filter(None, (meta.tool, meta.tool_version))),
        gpu=model or "",
        driver=meta.driver_version or "",
        clock_hz=clock or 0,
        program=names.item(0) if len(names) else "",
        turn=turn.number if turn else 0,
        collection=turn.collection if turn else "",
        side=turn.side if turn else "",
        **attributes,
    )


def _slots(view: _View) -> pl.DataFrame:
    """The operations of the view on its device, summed over its iterations: :data:`SLOTS`."""
    report = view.report
    work = exclusive_operations(report, "call_start", "thread_id", "context_id", "stream", "shape", "size_bytes")
    work = work.with_columns(at=pl.coalesce("call_start", "start"))
    starts, each = pl.Series([], dtype=pl.Int64), None
    if view.steady is not None:
        starts, each = view.steady.usual.get_column("start_ns").sort(), view.steady.each
    shapes = launch_shapes(report).select(shape=shape_text("{} × {}").cast(pl.Categorical)).to_series()
    placed = work.select(
        *("kind", "bucket", "name", "start", "exclusive_ns", "context_id", "stream", "at"),
        # of what a CUDA graph ran those of its capture, which an eager program has, too
        _range_names(report, work, each),
        _operator_paths(report, work),
        gathered(shapes, work.get_column("shape")),
        # that launched it; 0 where nothing repeats
        iteration=starts.search_sorted(work.get_column("at"), side="right"),
        bytes=pl.col("size_bytes").fill_null(0),
    )
    first = placed.group_by("context_id", "stream").agg(pl.col("at").min()).sort("at", "stream").with_row_index("lane")
    placed = placed.join(first.drop("at"), on=("context_id", "stream"), how="left", nulls_equal=True)
    placed = placed.sort("at", "start").with_columns(place=pl.int_range(pl.len()).over("iteration"))
    what = ["kind", "bucket", "name", "shape", "range", "op", "lane"]
    placed = placed.with_columns(ordinal=pl.int_range(pl.len()).over("iteration", *what))
    if placed.select(pl.struct(*what, "ordinal").n_unique()).item() > _MOST_SLOTS:
        placed = placed.with_columns(ordinal=0)
    sums = placed.group_by(*what, "ordinal").agg(
        pl.col("place").mean(), pl.len().alias("count"), pl.col("exclusive_ns", "bytes").sum()
    )
    return sums.sort("lane", "place", *what, nulls_last=True)


def _range_names(report: Report, points: pl.DataFrame, each: str | None) -> pl.Series:
    """The innermost range at each launch, its numbers masked; null where that is the iteration itself."""
    if "range" not in report.kinds:
        return pl.repeat(None, points.height, dtype=pl.String, eager=True).alias("range")
    names = named_ranges(report).get_column("range")
    known = told_of(names, lambda text: None if (name := _masked(text)) in (_STEP, each) else name, pl.Categorical)
    launched = gathered(known, _range_lines.ranges_at(report, points)).alias("range")
    captured = told_of(captured_as(report, points.get_column("row"), "range"), _masked, pl.Categorical)
    return captured.zip_with(captured.is_not_null(), launched).alias("range")


def _masked(name: str) -> str:
    """The name of a range, with the same text for all iterations of a loop."""
    bare = plain(name) or name
    return _STEP if bare.startswith(STEP_PREFIX) else NUMBER.sub("#", bare)


def _operator_paths(report: Report, work: pl.DataFrame) -> pl.Series:
    """The operators around the launch of each operation, outermost first; null where no operators are recorded."""
    source = _captures.capture_source(report)
    if "op" not in {*report.kinds, *source.kinds}:
        return pl.repeat(None, work.height, dtype=pl.String, eager=True).alias("op")
    ran, captured = _work.launched_work(report), _work.captured_work(report).select("event_id", captured="operator")
    ran = ran.join(captured, on="event_id", how="left", maintain_order="left")
    ops = work.select("event_id").join(ran, on="event_id", how="left", maintain_order="left")
    sides = [(source, ops.get_column("captured")), (report, ops.get_column("operator"))]
    texts = [_texts_at(operators, *operator_paths(host_tree(side).rows)) for side, operators in sides]
    return pl.select(pl.coalesce(texts).cast(pl.Categorical).alias("op")).to_series()


def _texts_at(operators: pl.Series, numbers: pl.Series, texts: pl.DataFrame) -> pl.Series:
    """The path of each of `operators`, rows of a host tree, as text."""
    paths = gathered(numbers, operators).alias("path").to_frame()
    return paths.join(texts, on="path", how="left", maintain_order="left").get_column("text")


def _ops(view: _View) -> pl.DataFrame:
    """The operators and annotations by their path in the call tree.

    Calls and host time are of the host's part, device time is of the device's, as the buckets are. Python functions are
    told with the operator or annotation that called them.
    """
    sums = ("count", "self_host_ns", "device_ns")
    on_host = _by_path(view.host)
    on_device = on_host if view.report is view.host else _by_path(view.report)
    on_device = pl.concat([on_device.select("path", "device_ns"), _from_replays(view.report)])
    parts = [on_host.with_columns(device_ns=0), on_device.with_columns(count=0, self_host_ns=0)]
    both = pl.concat(parts, how="diagonal_relaxed").group_by("path").agg(pl.col(sums).sum())
    return both.filter(pl.any_horizontal(pl.col(sums) != 0)).sort("path")


def _by_path(report: Report) -> pl.DataFrame:
    """The operators and annotations in scope by their path."""
    every, host = tree.nodes(report), pl.col("kind").cast(pl.String).is_in(["op", "range"])
    names = every.filter(host).get_column("name").cast(pl.String).unique().drop_nulls()
    labels = {name: f"{ARROW}{_masked(name)}" for name in names if name}
    label = pl.col("name").cast(pl.String).replace_strict(labels, default="", return_dtype=pl.String)
    every = every.with_columns(label=pl.when(host).then(label).fill_null(""))
    texts = path_texts(every, separator="").select("path", pl.col("text").str.strip_prefix(ARROW))
    sums = every.join(texts, on="path").group_by(path="text").agg(
        pl.col("count").filter(host).sum(), pl.col("self_host_ns").sum(), device_ns=pl.col("self_device_ns").sum()
    )  # fmt: skip
    return sums.filter(pl.col("path") != "").sort("path")


def _from_replays(report: Report) -> pl.DataFrame:
    """The device time of CUDA graphs by path: taken from operators that replay them, given to those in the capture."""
    captured, time = _work.captured_work(report).drop_nulls("operator"), pl.col("exclusive_ns")
    if captured.is_empty():
        return pl.DataFrame(schema={"path": pl.String, "device_ns": pl.Int64})
    ran = _work.launched_work(report).select("event_id", "operator")
    replayed = captured.drop("operator").join(ran, on="event_id", how="left", maintain_order="left")
    source = _captures.capture_source(report)
    less = replayed.select(_masked_paths(report, replayed.get_column("operator")), device_ns=-time)
    more = captured.select(_masked_paths(source, captured.get_column("operator")), device_ns=time)
    return pl.concat([less, more]).drop_nulls("path")


def _masked_paths(report: Report, operators: pl.Series) -> pl.Series:
    """The path of operators and annotations to each of `operators`, rows of the host tree of `report`, as text."""
    tree_of_host = host_tree(report)
    labels = told_of(tree_of_host.rows.get_column("name"), _masked)
    paths = labelled_paths(tree_of_host.rows, tree_of_host.of_kinds(*_work.OPERATOR_KINDS), labels)
    return _texts_at(operators, *paths).alias("path")


def _memory(view: _View) -> pl.DataFrame:
    """The memory of the device by kind; empty where the report records none."""
    try:
        rows = memory(view.report)
    except CannotTellError:
        return MEMORY.empty()
    own = rows.filter(pl.col("device").eq_missing(view.report.scope.device)).group_by("memory")
    return own.agg(pl.col("allocations").sum(), pl.col("peak_bytes").max()).sort("memory")


def _findings(view: _View) -> pl.DataFrame:
    part, times, _ = sample_of(view.report)
    rows = [
        (one.rule, one.brief.headline.format(*one.names), one.where or None, int(one.at_stake_ns * times))
        for one in ranked(part)
        if one.device == view.report.scope.device and one.rule not in ONE_TIME
    ]
    return pl.DataFrame(rows, schema=FINDINGS.schema, orient="row")
