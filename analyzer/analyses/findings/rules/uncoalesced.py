"""Kernels that take far longer than reading and writing all that is there, with a long piece of it for each thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._telling import CUDA, place_of_kernel, written_with
from kanalyze.analyses.replay._mending import Mending
from kanalyze.columns.exact import product
from kanalyze.units import count, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A kernel at the memory's limit takes so many times what its bytes do at the peak bandwidth, and one whose accesses
#: are apart at least so many times.
_USUAL: Final = 1.3
_FAR: Final = 3.0

#: Neighbouring threads begin so far apart (bytes), or read the same.
_APART: Final = 512

#: Shorter kernels are launched rather than run (ns).
_LEAST_NS: Final = 20_000


def far_apart(report: Report) -> list[Finding]:
    """One finding per device on the kernels that alone worked on what was copied or set before."""
    found = []
    for device, name, launches, ns, threads, bytes_there, least_ns in _slow(report).iter_rows():
        stake = ns - int(launches * least_ns * _USUAL)
        text = (
            f"{{0}} takes {time(ns / launches)} where all that was copied or set before it ran, {size(bytes_there)}, "
            f"is read in {time(least_ns)} at the GPU's bandwidth. Each of its {count(threads)} threads has "
            f"{size(bytes_there / threads)} of it: where that is a row, neighbours read a row apart, and each "
            "reads a whole sector of 32 bytes for 4. Counters of ncu prove it (`kanalyze collect --with nsys,ncu`)."
        )
        found.append(
            Finding(
                "uncoalesced",
                device,
                stake,
                text,
                "Let neighbouring threads access neighbouring elements: a warp or a block for each row, or another "
                "layout (a structure of arrays, the transposed matrix).",
                "kernels",
                (name,),
                headline=f"A thread for {size(bytes_there / threads)}: accesses are uncoalesced in {{0}}",
                action="a warp for each row: x[row * n + lane], lanes side by side",
                where=place_of_kernel(report, device, name, stake),
                mending=partial(_side_by_side, device=device, name=name, share=stake / ns),
                claims=_launches(report, device, name).select("start", "end"),
                shortens=True,
                at_most=True,
            )
        )
    return found


def _launches(report: Report, device: int, name: str) -> pl.DataFrame:
    own = (pl.col("device") == device) & (pl.col("kind") == "kernel") & (pl.col("name").cast(pl.String) == name)
    return exclusive_operations(report).filter(own)


def _side_by_side(report: Report, device: int, name: str, share: float) -> Mending:
    saved = (pl.col("dur_ns") * share).floor().cast(pl.Int64)
    return Mending(shorter=_launches(report, device, name).select("row", saved_ns=saved))


def _slow(report: Report) -> pl.DataFrame:
    """Such kernels: device, name, launches, ns, threads (of a launch), bytes_there, least_ns (of these bytes)."""
    every = operations(report, "size_bytes").sort("start")
    kernels = every.filter(pl.col("kind").is_in(["kernel", "graph"]))
    first = kernels.unique("device", keep="first", maintain_order=True).select("device", name="name", first="start")
    own = [written_with(report, str(name)) == CUDA for name in first.get_column("name")]
    alone = first.filter(pl.Series(own, dtype=pl.Boolean))
    before = every.filter(pl.col("kind").is_in(["memcpy", "memset"])).join(alone, on="device")
    there = before.filter(pl.col("start") < pl.col("first")).group_by("device").agg(pl.col("size_bytes").sum())
    fast = report.devices.select("device", bandwidth="memory_bandwidth_bytes_per_s", sms="sm_count").drop_nulls()
    known = alone.join(there, on="device").join(fast, on="device")
    blocks, threads = (product(*axes) for axes in (map(pl.col, SHAPE[:3]), map(pl.col, SHAPE[3:])))
    work = exclusive_operations(report, *SHAPE).filter(pl.col("kind") == "kernel").join(known, on=["device", "name"])
    seconds = pl.col("size_bytes") / pl.col("bandwidth")
    sums = work.group_by("device", "name").agg(
        launches=pl.len(),
        ns=pl.col("dur_ns").sum(),
        threads=(blocks * threads).first(),
        blocks=blocks.first(),
        sms=pl.col("sms").first(),
        bytes_there=pl.col("size_bytes").first(),
        least_ns=(seconds * 1e9).first(),
    )
    each = pl.col("ns") / pl.col("launches")
    far = (each >= _FAR * pl.col("least_ns")) & (each >= _LEAST_NS) & (pl.col("blocks") >= pl.col("sms"))
    rows = sums.filter(far & (pl.col("bytes_there") >= _APART * pl.col("threads")))
    columns = ("launches", "ns", "threads", "bytes_there", "least_ns")
    return rows.select("device", pl.col("name").cast(pl.String), *columns).sort("device")


RULES: Final = (far_apart,)
