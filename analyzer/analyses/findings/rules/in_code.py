"""Kernels that Triton compiled whose code tells why they are slow: their arithmetic, and their atomics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, compiled_kernels, with_facts
from kanalyze.analyses.findings import on_gpu
from kanalyze.analyses.findings.on_gpu import Work
from kanalyze.analyses.findings.rules import Findings, Rule, literal, words_of
from kanalyze.errors import KanalyzeError
from kanalyze.report import Report
from kanalyze.units import percent


def _in_code(
    report: Report, tells: pl.Expr, least: float, sources: tuple[str, ...] = ("triton",)
) -> Iterator[tuple[Work, dict[str, Any]]]:
    """The compiled kernel of most time of each device of whose code a row of compiled kernels `tells`, and that row.

    All that was compiled under its name has to.
    """
    try:
        compiled = compiled_kernels(report)
    except KanalyzeError as damage:
        report.go_without("of the code of compiled kernels", damage)
        return
    telling = compiled.filter(pl.col("source").is_in(sources), tells.fill_null(value=False).all().over("name"))
    telling = telling.unique("name", keep="first")
    named = pl.col("name").is_in(telling.get_column("name").implode())
    for every in on_gpu.kernels_that(report, named, least) if telling.height else ():
        work = every._replace(rows=every.rows.filter(pl.col("name") == every.most))
        if work.share >= least:
            yield work, telling.row(by_predicate=pl.col("name") == work.most, named=True)


@Rule
def float32_in_code(report: Report) -> Findings:
    """One finding per device on Triton kernels of the program whose code multiplies blocks in full float32."""
    for work, code in _in_code(report, pl.col("float32_products").is_not_null(), on_gpu.WORTH_PRODUCTS):
        left = on_gpu.TF32_LEFT.get(work.device.capability)
        if left is not None:
            yield work.finding(
                "no-tf32: code",
                f"The code of {{0}} multiplies blocks in full float32, not on tensor cores (in "
                f"{literal(code['float32_products'])}): {work.took}{words_of('no-tf32').what}",
                work.most,
                left=min(left / on_gpu.OF_PEAK, 1.0),
                where=literal(code["float32_products"]),
            )


_IN_DOUBLE: Final = pl.col("float64_share") >= 0.5  # noqa: PLR2004 - of the lines of a kernel that is in float64
_WORTH_DOUBLES: Final = 0.03  # of the kernel time; sums for accuracy are in well-made programs, too


@Rule
def float64_in_code(report: Report) -> Findings:
    """One finding per device on kernels of Triton or torch.compile whose code computes in float64."""
    for work, code in _in_code(report, _IN_DOUBLE, _WORTH_DOUBLES, ("triton", "inductor")):
        yield work.finding(
            "float64: code",
            f"The code of {{0}} computes in float64 in {percent(code['float64_share'])} of its lines with arithmetic: "
            f"{work.took}. In float32 that takes half as long at least where it is what the kernel does, and not the "
            "memory; exp, log and pow take a fraction.",
            work.most,
            left=on_gpu.HALF_LEFT,
        )


#: Additions that do not wait for each other read and write values at so large a part of the memory's bandwidth.
_AT_MEMORY: Final = 0.4


@Rule
def atomics_in_code(report: Report) -> Findings:
    """One finding per device on Triton kernels of the program whose code adds by atomics, slower than the memory."""
    for work, code in _in_code(report, pl.col("atomics").is_not_null(), on_gpu.WORTH_SUMS):
        rows = with_facts(report, work.rows, *SHAPE).join(report.devices, on="device", how="left")
        threads = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z") * pl.col("block_x")
        rate = threads * 2 * code["atomic_bytes"] / pl.col("dur_ns") * 1e9
        slow = (rate < _AT_MEMORY * pl.col("memory_bandwidth_bytes_per_s")) & (pl.col("dur_ns") >= on_gpu.SHORTEST_NS)
        if not rows.select(slow.all()).item():
            continue
        lines = str(code["atomics"])
        yield work.finding(
            "scatter-atomics: code",
            f"The code of {{0}} adds to global memory by atomics (in {literal(lines)}), a fifth of what each thread "
            f"accesses or more, and slower than the memory is: {work.took}. Where many blocks add to the same "
            "addresses, they wait for each other; whether they do, counters tell.",
            work.most,
            left=None,
            at_most=True,
            where=literal(lines.partition(", ")[0]),
        )
