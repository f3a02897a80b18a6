"""Groups of kernel launches: what ncu measured of each, and which are the same in two reports."""

from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze.analyses.counters.advice import advice, kernel_facts
from kanalyze.analyses.device import _operations
from kanalyze.analyses.device._operations import RESOURCES, SHAPE
from kanalyze.analyses.host._call_kinds import unused_launches
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.columns import gathered
from kanalyze.decoder.fields import normalised, shortened
from kanalyze.report import Report
from kanalyze.schema import Column, columns
from kanalyze.window import Scope

#: The columns that identify a group within its report.
GROUP_KEYS: Final = ("name", "device", *SHAPE)


#: Nine in ten launches of a group take from the one to the other of these parts.
_LEAST, _MOST = 0.05, 0.95


@once_per_report
def kernel_groups(report: Report) -> pl.DataFrame:
    """The kernel groups in scope, the longest total time first.

    Columns: group (a number), name (as the tool writes it), same_name and loose_name (normalised names to join by, with
    and without parameter types), device (the process' own number), those of the launch shape (null where the tool does
    not record it), count, total_ns, exclusive_ns (0 where kernels have no timestamps), duration (the mean, in ns), low
    and high (nine in ten launches take from the one to the other), registers per thread and shared bytes per block
    (null where launches of a group differ in them).
    """
    alike = (pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in ("registers", "shared"))
    by_group = kernels_in(report).group_by(*GROUP_KEYS)
    sums = by_group.agg(
        *alike,
        pl.col("exclusive_ns").sum(),
        count=pl.len().cast(pl.Int64),
        total_ns=pl.col("dur_ns").sum(),
        duration=pl.col("dur_ns").mean(),
        low=pl.col("dur_ns").quantile(_LEAST, "nearest"),
        high=pl.col("dur_ns").quantile(_MOST, "nearest"),
    )
    named = sums.join(normalised_names(sums.get_column("name")), on="name", how="left")
    order = named.sort("exclusive_ns", "total_ns", *GROUP_KEYS, descending=[True, True, *(False for _ in GROUP_KEYS)])
    return order.with_row_index("group").with_columns(pl.col("group").cast(pl.Int64))


def normalised_names(names: pl.Series) -> pl.DataFrame:
    """The distinct names, normalised: name, same_name, and loose_name (without parameter types)."""
    different = names.unique().cast(pl.String).drop_nulls().to_list()
    rows = [(name, normalised(name), normalised(name, parameters=False)) for name in different]
    return pl.DataFrame(rows, schema=dict.fromkeys(("name", "same_name", "loose_name"), pl.String), orient="row")


@once_per_report
def kernels_in(report: Report) -> pl.DataFrame:
    """The kernels in scope: event_id, process_id, name, device, launch shape, registers, shared, dur_ns, exclusive_ns.

    The device is the process' own ordinal, where the report has one for all processes: other tools know no other.
    Registers are of a thread, shared memory is of a block, in bytes.
    """
    devices = report.processes.select("device", "cuda_ordinal").drop_nulls().unique()
    agreed = all(devices.get_column(name).is_unique().all() for name in devices.columns)
    nothing = _operations.device_operations(report).with_columns(exclusive_ns=0)
    work = nothing if report.meta.timeless else _operations.exclusive_operations(report)
    return _operations.with_facts(report, work.filter(pl.col("kind") == "kernel"), *SHAPE, *RESOURCES).select(
        *("event_id", "process_id", *SHAPE, "dur_ns"),
        pl.col("exclusive_ns").cast(pl.Int64),
        pl.col("name").cast(pl.String),
        pl.col("device").replace(dict(devices.iter_rows()) if agreed else {}).cast(pl.Int64),
        registers="registers_per_thread",
        shared=pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes"),
    )


@once_per_report
def grouped_kernels(report: Report) -> pl.DataFrame:
    """:func:`kernels_in`, each with the number of its group."""
    numbers = kernel_groups(report).select("group", *GROUP_KEYS)
    return kernels_in(report).join(numbers, on=GROUP_KEYS, how="left", nulls_equal=True, maintain_order="left")


@once_per_report
def makers_of_groups(report: Report) -> pl.DataFrame:
    """The operator and nn.Module that launched most of the time of each kernel group.

    Columns: :data:`GROUP_KEYS`; operator, operators (how many different ones), path (enclosing operators), module (with
    enclosing modules); null where there is none.
    """
    rows = _host_tree.host_tree(report).rows
    names = rows.get_column("name").cast(pl.String)
    is_module, label = _host_tree.modules(rows)
    ran = _work.launched_work(report).filter(pl.col("kind") == "kernel")
    by, maker = ran.get_column("operator"), ran.get_column("maker")
    numbers, paths = _host_tree.operator_paths(rows)
    around, module_paths = _host_tree.labelled_paths(rows, is_module, label)
    makers = {"operator": gathered(names, by), "path": gathered(numbers, by), "module": gathered(around, maker)}
    own = ran.select("event_id", "exclusive_ns").with_columns(**makers)
    kernels = kernels_in(report).drop("exclusive_ns").join(own, on="event_id")
    parts = kernels.group_by(*GROUP_KEYS, "operator", "path", "module").agg(pl.col("exclusive_ns").sum())
    order = parts.sort("exclusive_ns", "operator", "path", "module", descending=[True, False, False, False])
    by_group, number = order.group_by(*GROUP_KEYS, maintain_order=True), pl.col("operator").n_unique().cast(pl.Int64)
    most = by_group.agg(pl.col("operator", "path", "module").first(), operators=number)
    for column, texts in (("path", paths), ("module", module_paths)):
        most = most.join(texts.rename({"path": column}), on=column, how="left").drop(column).rename({"text": column})
    return most


#: Columns of the tables `counters` and `roofline` that are shown beside the time.
FACTS: Final = columns("""
    registers_per_thread int32?: Registers that a thread uses.
    static_shared_bytes int?: Static shared memory of a block.
    dynamic_shared_bytes int?: Dynamic shared memory of a block.
    compute_share float?: Compute (SM) Throughput of its peak.
    memory_share float?: Memory Throughput of its peak.
    dram_share float?: DRAM Throughput of its peak.
    dram_bytes_per_s float?: Achieved bandwidth.
    occupancy_share float?: Theoretical Occupancy.
    achieved_occupancy_share float?: Achieved Occupancy.
    limiter text?: What limits the resident blocks.
    waves float?: Waves Per SM.
    top_stall text?: What warps wait for longest.
    achieved_flop_per_s float?: Work by the duration.
    bound text?: What takes longer at its peak: memory or compute.
    roof_share float?: The least time by the duration: 1 is on the roof.
""")

MEASURED: Final = (
    Column("event_id", pl.Int64, "Its longest launch that ncu measured, in the tables of that report.", nullable=True),
    Column("ncu_count", pl.Int64, "Launches that ncu measured.", nullable=True),
    Column("ncu_dur_ns", pl.Int64, "The longest of them, alone and under replay.", nullable=True),
    *(replace(column, doc=f"{column.doc} Of that launch.") for column in FACTS),
)

RULES: Final = columns("""
    best_rule text?: The rule that can save most of the whole duration.
    best_source text?: Whose rule it is: ncu or kanalyze.
    best_speedup_share float?: The part of the duration that it can save at most: its estimate, but no more than the
        roof leaves.
    best_from text?: Which of the two that is: estimate or roof.
""")


@once_per_report
def measured_groups(report: Report) -> pl.DataFrame:
    """The kernel groups that ncu measured.

    Columns: group and :data:`GROUP_KEYS`, :data:`MEASURED`, :data:`RULES`.
    """
    launches = grouped_kernels(report).sort("dur_ns", "event_id", descending=[True, False], nulls_last=True)
    longest = launches.group_by("group", maintain_order=True).agg(
        pl.col("event_id").first(), ncu_dur_ns=pl.col("dur_ns").first(), ncu_count=pl.len().cast(pl.Int64)
    )
    numbers = kernel_groups(report).select("group", *GROUP_KEYS)
    facts = kernel_facts(report).select("event_id", *(column.name for column in FACTS))
    told = advice(report).drop_nulls("possible_share")
    order = told.sort("possible_share", "speedup_share", descending=True, maintain_order=True)
    best = order.unique("event_id", keep="first", maintain_order=True).select(
        "event_id",
        best_rule="rule",
        best_source="source",
        best_speedup_share="possible_share",
        best_from="possible_from",
    )
    groups = numbers.join(longest, on="group", how="left")
    return groups.join(facts, on="event_id", how="left").join(best, on="event_id", how="left")


# Matches the kernels of two reports: groups by name and launch shape, and single launches by ncu's numbers of them.
#
# Definitions: docs/definitions.md, section 9; docs/counters.md, One kernel, three tools.

_LAUNCHES: Final = {"right": pl.Int64, "number": pl.Int64, "left": pl.Int64}

#: What all launches of a function must have in common for their order to be the same in every run.
_SAME_FOR_ALL: Final = ("process_id", "thread_id", "context_id", "device")


@once_per_report
def same_launches(base: Report, ncu: Report) -> pl.DataFrame:
    """Matches the kernels that ncu measured with the launches of `base`, as far as ncu's command identifies them.

    The n-th launch in one run of the program is the n-th in another if one thread makes all launches of a function on
    one GPU, and `base` has every launch as an event of its own. Columns: right (event_id in `ncu`), number (the
    launch's index among those of its function), left (event_id in `base`; null where that launch has another shape or
    is missing, so that the two runs differ). Kernels in no row could not be identified.
    """
    numbers = ncu.table("launch_numbers")
    if numbers.is_empty() or not _of_one_capture(base, ncu) or not complete(base):
        return pl.DataFrame(schema=_LAUNCHES)
    named = kernels_in(ncu).join(numbers, on="event_id").with_columns(pl.col("name").replace(whole_names(base, ncu)))
    measured = named.join(_unique_names(named.get_column("name")), on="name")
    launches = _numbered(base.whole, measured.get_column("same_name").unique())
    counted = measured.join(launches, on="same_name", how="semi")
    both = counted.join(launches, on=["same_name", "number"], how="left", suffix="_left")
    missing, by_one_call = pl.col("alone").is_null(), pl.col("alone").eq_missing(other=False)
    fits = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_left")) for name in SHAPE)
    in_doubt = (~by_one_call & (missing | ~fits)).any().over("same_name")
    named = both.with_columns(left=pl.when(~in_doubt).then("event_id_left"), right="event_id").filter(~by_one_call)
    return named.select(pl.col(name).cast(dtype) for name, dtype in _LAUNCHES.items())


def whole_names(base: Report, ncu: Report) -> dict[str, str]:
    """Full names by the shortened ones on ncu's pages, for those that only one function in ncu's command fits."""
    numbers, symbols = ncu.table("launch_numbers"), base.table("symbols")
    if numbers.is_empty() or not _of_one_capture(base, ncu):
        return {}
    full_names: dict[str, str] = {}
    measured = kernels_in(ncu).join(numbers, on="event_id").select("name", "symbols").unique().drop_nulls()
    for name, symbols_of_name in measured.iter_rows():
        names = symbols.filter(pl.col("symbol").is_in(symbols_of_name)).get_column("name").unique().to_list()
        if normalised(name) not in map(normalised, names):
            fits = [full for full in names if shortened(name, full)]
            full_names |= {name: fits[0]} if len(fits) == 1 else {}
    return full_names


def _of_one_capture(base: Report, ncu: Report) -> bool:
    return base.meta.recorder.every_launch and base.meta.capture is not None and base.meta.capture == ncu.meta.capture


@once_per_report
def complete(base: Report) -> bool:
    """Whether the report has every launch, each as an event of its own."""
    whole = base.whole
    partial = base.scope.process is not None or whole.kind("graph").height
    return not partial and unused_launches(whole).filter(~pl.col("captured")).is_empty()


def _unique_names(names: pl.Series) -> pl.DataFrame:
    """Columns name and same_name of the `names` whose normalised name is unique."""
    return normalised_names(names).filter(pl.len().over("same_name") == 1).select("name", "same_name")


def _numbered(base: Report, functions: pl.Series) -> pl.DataFrame:
    """Numbers the launches of `functions`: same_name, number, event_id, alone, and the launch shape.

    `alone` is false for several launches of a function by one call (graph nodes): their order is unknown.
    """
    kernels = base.kind("kernel")
    doubled = base.table("symbols").filter(pl.len().over("name") > 1).select("name")
    names = _unique_names(kernels.get_column("name")).join(doubled, on="name", how="anti")
    names_of_functions = names.filter(pl.col("same_name").is_in(functions.implode()))
    of_functions = kernels.filter(pl.col("name").is_in(names_of_functions.get_column("name").to_list()))
    columns = ("event_id", "process_id", "context_id", "device")
    named = of_functions.select(*columns, pl.col("name").cast(pl.String)).join(names_of_functions, on="name")
    calls = _operations.operations(base, "call_row", "thread_id", "call_start", *SHAPE)
    calls = calls.select("event_id", "call_row", "thread_id", "call_start", *SHAPE)
    launched = named.join(calls, on="event_id", how="left")
    in_order = pl.all_horizontal(pl.col(name).n_unique().over("same_name") == 1 for name in _SAME_FOR_ALL)
    known = pl.col("call_start").is_not_null().all().over("same_name")
    order = launched.filter(in_order & known).sort("call_start", "call_row", "event_id")
    numbered = order.with_columns(number=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("same_name"))
    launches = numbered.with_columns(alone=pl.len().over("call_row", "same_name") == 1).sort("event_id")
    return launches.select("same_name", "number", "event_id", "alone", *SHAPE)


#: From the surest on. `exact`: same name and shape, and the launches are known to be the same: equally many, so that
#: each has its partner, or identified by the launch numbers in ncu's command. `shape`: same name and shape. `name`:
#: only the name matches, or a name that a tool shortened, and there is one candidate. `none`: no candidate, or several.
QUALITIES: Final = ("exact", "shape", "name", "none")

_PAIRS: Final = pl.Schema({"left": pl.Int64, "right": pl.Int64, "match": pl.String})
_BY_NAME: Final = pl.lit("name")
_COLUMNS: Final = ("group", "name", "same_name", "loose_name", "device", *SHAPE, "count")


@once_per_report
def same_kernels(left: Report, right: Report) -> pl.DataFrame:
    """Matches the kernel groups of `left` with those of `right`; those that are in no row have no partner.

    Columns: left and right (numbers of groups, each at most once), match (one of :data:`QUALITIES` except none).
    """
    whole, one_gpu = _has_every_launch(left, right), _has_one_gpu(left) and _has_one_gpu(right)
    if not right.meta.timeless:
        return matched(kernel_groups(left), kernel_groups(right), whole=whole, one_gpu=one_gpu)
    names = whole_names(left, right)
    groups = kernel_groups(right)
    for column, parameters in (("same_name", True), ("loose_name", False)) if names else ():
        spelled = {short: normalised(name, parameters=parameters) for short, name in names.items()}
        groups = groups.with_columns(pl.col("name").replace_strict(spelled, default=pl.col(column)).alias(column))
    return _by_launches(matched(kernel_groups(left), groups, whole=whole, one_gpu=one_gpu), left, right)


def _by_launches(pairs: pl.DataFrame, left: Report, right: Report) -> pl.DataFrame:
    """Raises matches to `exact`, or lowers them to `shape`, by the launches that ncu's command identifies."""
    matches = same_launches(left, right)
    of_left, of_right = (grouped_kernels(report).select("event_id", "group") for report in (left, right))
    identified = matches.select(launch="right", event_id="left", told=pl.lit(value=True))
    launches = of_right.select(launch="event_id", right="group").join(identified, on="launch", how="left")
    launches = launches.join(of_left.rename({"group": "of"}), on="event_id", how="left").join(pairs, on="right")
    same = (pl.col("of") == pl.col("left")).fill_null(value=False)
    each = launches.group_by("right").agg(sure=same.all(), wrong=(pl.col("told") & ~same).any())
    lowered = pl.when(pl.col("wrong") & (pl.col("match") == "exact")).then(pl.lit("shape")).otherwise("match")
    match = pl.when("sure").then(pl.lit("exact")).otherwise(lowered)
    return pairs.join(each, on="right", how="left", maintain_order="left").select("left", "right", match=match)


def matched(left: pl.DataFrame, right: pl.DataFrame, *, whole: bool | None, one_gpu: bool) -> pl.DataFrame:
    """:func:`same_kernels` for two tables of groups.

    By name and shape; by name in spite of another shape, where one group of each report is left with that name; by
    shape and name without parameter types, unless the report has several such overloads; and by shape and a name that a
    tool shortened, where only one full name fits. `whole` says whether `left` has every launch of the program (None if
    unknown, so that `right` decides), `one_gpu` whether each report has only one GPU, whatever its number.
    """
    first, second = left.select(_COLUMNS), right.select(_COLUMNS)
    if one_gpu and first.height:
        second = second.with_columns(device=pl.lit(first.item(0, "device"), dtype=first.schema["device"]))
    both, equal = _alone_with(first, second, ["same_name", "device", *SHAPE]), pl.col("count") == pl.col("count_right")
    all_alike = both.height == left.height == right.height == both.filter(equal).height
    exact = equal if whole or (all_alike and whole is None) else pl.lit(value=False)
    pairs = _pairs(both, pl.when(exact).then(pl.lit("exact")).otherwise(pl.lit("shape")))

    def left_over() -> tuple[pl.DataFrame, pl.DataFrame]:
        return (
            first.join(pairs, left_on="group", right_on="left", how="anti"),
            second.join(pairs, left_on="group", right_on="right", how="anti"),
        )

    pairs = pl.concat([pairs, _pairs(_alone_with(*left_over(), ["same_name", "device"]))])
    loose = ["loose_name", "device", *SHAPE]
    taken = first.join(pairs, left_on="group", right_on="left", how="semi").select(loose).unique()
    free, rest = left_over()
    pairs = pl.concat([pairs, _pairs(_alone_with(free.join(taken, on=loose, how="anti"), rest, loose))])
    shortened_ones = _pairs(_with_shortened_name(first, left_over()[1])).join(pairs, on="left", how="anti")
    return pl.concat([pairs, shortened_ones]).sort("left")


def _alone_with(left: pl.DataFrame, right: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The groups of both that share `keys` which no other group of their report has: group and group_right."""
    own, other = (groups.filter(pl.len().over(keys) == 1) for groups in (left, right))
    return own.join(other, on=keys, suffix="_right")


def _pairs(both: pl.DataFrame, match: pl.Expr = _BY_NAME) -> pl.DataFrame:
    """The columns of :func:`same_kernels` of the groups in each row."""
    return both.select(left="group", right="group_right", match=match).cast(_PAIRS)


def _has_every_launch(left: Report, right: Report) -> bool | None:
    """Whether `left` has every launch of the program: a complete nsys report; None if unknown, so that `right` decides.

    Equal counts in ncu's report and in a part of nsys' do not show that it was the same part.
    """
    if left.scope != Scope():
        return False
    if left.meta.recorder.every_launch and not left.meta.partial and complete(left):
        return True
    return False if left.meta.recorder.every_launch and right.meta.timeless else None


def _has_one_gpu(report: Report) -> bool:
    """Whether all kernels of the report, in scope or not, ran on one GPU; several GPUs are matched by number."""
    return report.whole.kind("kernel").get_column("device").fill_null(0).n_unique() == 1


def _with_shortened_name(left: pl.DataFrame, rest: pl.DataFrame) -> pl.DataFrame:
    """Groups of one shape where a name of `rest` is a shortened one of `left`, and no other: group and group_right."""
    near = left.join(rest, on=["device", *SHAPE], suffix="_right").drop_nulls(["name", "name_right"])
    names = near.select("name", "name_right").unique()
    fits = [shortened(short, whole) for whole, short in names.iter_rows()]
    kept = near.join(names.filter(pl.Series(fits, dtype=pl.Boolean)), on=["name", "name_right"])
    return kept.filter((pl.len().over("group") == 1) & (pl.len().over("group_right") == 1))
