"""Groups of kernel launches that can be joined across tools: same name, launch shape and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import RESOURCES, SHAPE, device_operations, exclusive_operations, with_facts
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import labelled_paths, operator_paths
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.operators.ops import modules
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import gathered
from kanalyze.decoder.same_name import normalised

if TYPE_CHECKING:
    from kanalyze.report import Report


#: The columns that identify a group within its report.
GROUP_KEYS: Final = ("name", "device", *SHAPE)


@once_per_report
def kernel_groups(report: Report) -> pl.DataFrame:
    """The kernel groups in scope, the longest total time first.

    Columns: group (a number), name (as the tool writes it), same_name and loose_name (normalised names to join by, with
    and without parameter types), device (the process' own number), those of the launch shape (null where the tool does
    not record it), count, total_ns, exclusive_ns (0 where kernels have no timestamps).
    """
    sums = (
        kernels_in(report)
        .group_by(*GROUP_KEYS)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("exclusive_ns").sum().alias("exclusive_ns"),
        )
    )
    names = sums.get_column("name").unique().drop_nulls().to_list()
    known = pl.DataFrame(
        {
            "name": names,
            "same_name": [normalised(name) for name in names],
            "loose_name": [normalised(name, parameters=False) for name in names],
        },
        schema=dict.fromkeys(("name", "same_name", "loose_name"), pl.String),
    )
    order = sums.join(known, on="name", how="left").sort(
        "exclusive_ns", "total_ns", *GROUP_KEYS, descending=[True, True, *(False for _ in GROUP_KEYS)]
    )
    return order.with_row_index("group").with_columns(pl.col("group").cast(pl.Int64))


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


_LEAST, _MOST = 0.05, 0.95


@once_per_report
def groups_with_config(report: Report) -> pl.DataFrame:
    """The kernel groups with registers per thread, shared bytes per block, mean duration in ns, low and high.

    Nine in ten launches take from `low` to `high`. Registers and shared memory are null where launches of a group
    differ in them.
    """
    sums = (
        grouped_kernels(report)
        .group_by("group")
        .agg(
            duration=pl.col("dur_ns").mean(),
            low=pl.col("dur_ns").quantile(_LEAST, "nearest"),
            high=pl.col("dur_ns").quantile(_MOST, "nearest"),
            **{
                name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first())
                for name in ("registers", "shared")
            },
        )
    )
    return kernel_groups(report).join(sums, on="group")
