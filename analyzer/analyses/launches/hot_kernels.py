"""The hottest kernels for the page: shares of window and busy time, launch shape, whether launch-bound."""

from typing import Final

import polars as pl

from kanalyze import model, schema
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.report import Report

TABLE: Final = schema.Table(
    "hot_kernels",
    "One kernel, or one whole graph whose kernels are not known, by the time that is its own.",
    (
        *schema.columns("""
            name text?: Demangled name of the kernel, or the graph; with its process where graphs of several have one
                name.
            exclusive_ns int: Time in which it was what its device was doing.
            window_share float: That time as a part of the windows of all devices.
            busy_share float: That time as a part of the time in which the devices were busy.
            count int: Launches.
            avg_ns float: Mean duration.
            shapes int: Different launch shapes; 0 where they are not known.
        """),
        *(
            schema.Column(shape.name, pl.Int64, f"{shape.doc} Of the commonest shape.", nullable=True)
            for shape in model.LAUNCH_SHAPE
        ),
        *schema.columns("""
            launch_bound bool: Its launch takes longer than it runs, in the median of warm launches.
            family text?: What its name says it does: gemm, elementwise, communication…; other where it does not say.
                Null for a graph.
        """),
    ),
    purpose="kernels by the time that is theirs alone",
    telling=("exclusive_ns", "window_share", "count", "avg_ns", "launch_bound"),
)


@analysis
def hot_kernels(report: Report) -> pl.DataFrame:
    """Kernels and whole graphs in scope, the hottest first: :data:`TABLE`.

    Raises:
        CannotTellError: The report records neither kernels nor graphs.
    """
    require(report, TABLE, "kernel", "graph")
    everything = _operations.exclusive_operations(report)
    work = everything.filter(pl.col("kind").is_in(["kernel", "graph"]))
    # graph numbers are per process; a kernel name is the same function in all processes
    owner = pl.when(pl.col("kind") == "graph").then("process_id").alias("owner")
    sums = work.group_by("name", owner).agg(
        pl.col("exclusive_ns").sum(),
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur_ns").mean().alias("avg_ns"),
        (pl.col("bucket") == "communication").any().alias("communicates"),
        (pl.col("kind") == "graph").all().alias("is_graph"),
    )
    shapes = _operations.kernel_shapes(report).group_by("name", *_operations.SHAPE).agg(pl.col("count").sum())
    shapes = shapes.sort("count", *_operations.SHAPE, descending=[True, *(False for _ in _operations.SHAPE)])
    commonest = shapes.group_by("name", maintain_order=True)
    shapes = commonest.agg(pl.len().cast(pl.Int64).alias("shapes"), pl.col(_operations.SHAPE).first())
    window = _windows.windows(report).select((pl.col("end") - pl.col("start")).sum()).item() or 1
    bound = launch_costs(report).bound.select("name").unique().with_columns(launch_bound=pl.lit(value=True))
    joined = sums.join(shapes, on="name", how="left", nulls_equal=True)
    joined = joined.join(bound, on="name", how="left", nulls_equal=True)
    # graphs of several processes with the same name are named with the process
    name, several = pl.col("name").cast(pl.String), pl.col("owner").n_unique().over("name") > 1
    whose = pl.when(several & pl.col("owner").is_not_null()).then(pl.format("{} of process {}", name, "owner"))
    named = joined.with_columns(
        whose.otherwise(name).alias("name"),
        (pl.col("exclusive_ns") / window).alias("window_share"),
        (pl.col("exclusive_ns") / (everything.get_column("exclusive_ns").sum() or 1)).alias("busy_share"),
        pl.col("shapes").fill_null(0),
        pl.col("launch_bound").fill_null(value=False),
        pl.when("is_graph")
        .then(None)
        .when("communicates")
        .then(pl.lit("communication"))
        .otherwise(_operations.families(joined.get_column("name")))
        .alias("family"),
    )
    return TABLE.select(named.sort("exclusive_ns", "count", "name", descending=[True, False, False]))
