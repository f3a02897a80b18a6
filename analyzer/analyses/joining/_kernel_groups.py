"""Groups of kernel launches that can be joined across tools, and what ncu measured of each."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.counters.advice import advice, kernel_facts
from kanalyze.analyses.device._operations import RESOURCES, SHAPE, device_operations, exclusive_operations, with_facts
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import labelled_paths, operator_paths
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.operators.ops import modules
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import gathered
from kanalyze.decoder.fields import normalised
from kanalyze.report import Report
from kanalyze.schema import Column, columns

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
    sums = (
        kernels_in(report)
        .group_by(*GROUP_KEYS)
        .agg(
            count=pl.len().cast(pl.Int64),
            total_ns=pl.col("dur_ns").sum(),
            exclusive_ns=pl.col("exclusive_ns").sum(),
            duration=pl.col("dur_ns").mean(),
            low=pl.col("dur_ns").quantile(_LEAST, "nearest"),
            high=pl.col("dur_ns").quantile(_MOST, "nearest"),
            **{
                name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first())
                for name in ("registers", "shared")
            },
        )
    )
    order = sums.join(normalised_names(sums.get_column("name")), on="name", how="left").sort(
        "exclusive_ns", "total_ns", *GROUP_KEYS, descending=[True, True, *(False for _ in GROUP_KEYS)]
    )
    return order.with_row_index("group").with_columns(pl.col("group").cast(pl.Int64))


def normalised_names(names: pl.Series) -> pl.DataFrame:
    """The distinct names, normalised: name, same_name, and loose_name (without parameter types)."""
    different = names.unique().cast(pl.String).drop_nulls().to_list()
    found = [(name, normalised(name), normalised(name, parameters=False)) for name in different]
    return pl.DataFrame(found, schema=dict.fromkeys(("name", "same_name", "loose_name"), pl.String), orient="row")


@once_per_report
def kernels_in(report: Report) -> pl.DataFrame:
    """The kernels in scope: event_id, process_id, name, device, launch shape, registers, shared, dur_ns, exclusive_ns.

    The device is the process' own ordinal, where the report has one for all processes: other tools know no other.
    Registers are of a thread, shared memory is of a block, in bytes.
    """
    nothing = device_operations(report).with_columns(exclusive_ns=0)
    work = nothing if report.meta.timeless else exclusive_operations(report)
    memory = pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")
    kernels = with_facts(report, work.filter(pl.col("kind") == "kernel"), *SHAPE, *RESOURCES)
    return kernels.select(
        *("event_id", "process_id", *SHAPE, "dur_ns"),
        pl.col("exclusive_ns").cast(pl.Int64),
        pl.col("name").cast(pl.String),
        pl.col("device").replace(_ordinals(report)).cast(pl.Int64),
        registers="registers_per_thread",
        shared=memory,
    )


@once_per_report
def grouped_kernels(report: Report) -> pl.DataFrame:
    """:func:`kernels_in`, each with the number of its group."""
    numbers = kernel_groups(report).select("group", *GROUP_KEYS)
    return kernels_in(report).join(numbers, on=GROUP_KEYS, how="left", nulls_equal=True, maintain_order="left")


def _ordinals(report: Report) -> dict[int, int]:
    """The processes' ordinal of each GPU, if all processes agree on it and no two GPUs share one; else empty."""
    told = report.processes.select("device", "cuda_ordinal").drop_nulls().unique()
    if (
        told.is_empty()
        or not (told.get_column("device").is_unique() & told.get_column("cuda_ordinal").is_unique()).all()
    ):
        return {}
    return dict(told.iter_rows())


@once_per_report
def makers_of_groups(report: Report) -> pl.DataFrame:
    """The operator and nn.Module that launched most of the time of each kernel group.

    Columns: :data:`GROUP_KEYS`; operator, operators (how many different ones), path (enclosing operators), module (with
    enclosing modules); null where there is none.
    """
    rows = host_tree(report).rows
    names = rows.get_column("name").cast(pl.String)
    is_module, label = modules(rows)
    ran = launched_work(report).filter(pl.col("kind") == "kernel")
    by, maker = ran.get_column("operator"), ran.get_column("maker")
    numbers, paths = operator_paths(rows)
    around, module_paths = labelled_paths(rows, is_module, label)
    own = ran.select("event_id", "exclusive_ns", operator=gathered(names, by)).with_columns(
        path=gathered(numbers, by), module=gathered(around, maker)
    )
    known = kernels_in(report).drop("exclusive_ns").join(own, on="event_id")
    parts = known.group_by(*GROUP_KEYS, "operator", "path", "module").agg(pl.col("exclusive_ns").sum())
    most = (
        parts.sort("exclusive_ns", "operator", "path", "module", descending=[True, False, False, False])
        .group_by(*GROUP_KEYS, maintain_order=True)
        .agg(pl.col("operator", "path", "module").first(), operators=pl.col("operator").n_unique().cast(pl.Int64))
    )
    for column, texts in (("path", paths), ("module", module_paths)):
        most = most.join(texts.rename({"path": column}), on=column, how="left").drop(column).rename({"text": column})
    return most


#: Columns of the tables `counters` and `roofline` that are shown beside the time.
_FACTS: Final = (
    ("registers_per_thread", pl.Int32, "Registers that a thread uses."),
    ("static_shared_bytes", pl.Int64, "Static shared memory of a block."),
    ("dynamic_shared_bytes", pl.Int64, "Dynamic shared memory of a block."),
    ("compute_share", pl.Float64, "Compute (SM) Throughput of its peak."),
    ("memory_share", pl.Float64, "Memory Throughput of its peak."),
    ("dram_share", pl.Float64, "DRAM Throughput of its peak."),
    ("dram_bytes_per_s", pl.Float64, "Achieved bandwidth."),
    ("occupancy_share", pl.Float64, "Theoretical Occupancy."),
    ("achieved_occupancy_share", pl.Float64, "Achieved Occupancy."),
    ("limiter", pl.String, "What limits the resident blocks."),
    ("waves", pl.Float64, "Waves Per SM."),
    ("top_stall", pl.String, "What warps wait for longest."),
    ("achieved_flop_per_s", pl.Float64, "Work by the duration."),
    ("bound", pl.String, "What takes longer at its peak: memory or compute."),
    ("roof_share", pl.Float64, "The least time by the duration: 1 is on the roof."),
)

MEASURED: Final = (
    Column("event_id", pl.Int64, "Its longest launch that ncu measured, in the tables of that report.", nullable=True),
    Column("ncu_count", pl.Int64, "Launches that ncu measured.", nullable=True),
    Column("ncu_dur_ns", pl.Int64, "The longest of them, alone and under replay.", nullable=True),
    *(Column(name, dtype, f"{doc} Of that launch.", nullable=True) for name, dtype, doc in _FACTS),
)  # fmt: skip

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
    facts = kernel_facts(report).select("event_id", *(name for name, _, _ in _FACTS))
    best = (
        advice(report)
        .filter(pl.col("possible_share").is_not_null())
        .sort("possible_share", "speedup_share", descending=True, maintain_order=True)
        .group_by("event_id", maintain_order=True)
        .agg(
            best_rule=pl.col("rule").first(),
            best_source=pl.col("source").first(),
            best_speedup_share=pl.col("possible_share").first(),
            best_from=pl.col("possible_from").first(),
        )
    )
    found = numbers.join(longest, on="group", how="left")
    return found.join(facts, on="event_id", how="left").join(best, on="event_id", how="left")
