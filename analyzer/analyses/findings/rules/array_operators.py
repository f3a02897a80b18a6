"""Operations of CuPy, each a kernel of its own: chains that one kernel could do, and arrays of float64."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import Told, decoded_as, kernels_that, merged, on_kernels
from kanalyze.analyses.findings.rules._telling import per_iteration, place_of
from kanalyze.analyses.host._worlds import CUPY, world
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.statistics import total
from kanalyze.decoder.decode import decode
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import Chosen, DeviceKernels
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: What one kernel takes for each operation of a chain after the first, as a part of the longest one: other arrays that
#: it reads or writes. Of the fifth operation on half as much: most of their arrays have been read by then.
_EACH_MORE: Final = 0.25
_FIRST: Final = 4

#: A smaller part of the kernel time is left out.
_WORTH: Final = 0.03


def array_chains(report: Report) -> list[Finding]:
    """One finding per device on elementwise operations of CuPy that follow each other on arrays of one size."""
    if world(report) != CUPY:
        return []
    found = []
    for (device,), chains in _chains(report).partition_by("device", as_dict=True, maintain_order=True).items():
        groups, busy = chains.unique("group"), total(exclusive_operations(report), "exclusive_ns")
        stake = total(chains, "dur_ns") - total(groups, "merged_ns")
        if stake < _WORTH * busy:
            continue
        per = per_iteration(report)
        top = groups.sort("many", "merged_ns").row(-1, named=True)
        text = (
            f"{per.plural(chains.height, 'elementwise kernel')} of CuPy pass their results through memory, in "
            f"{per.plural(groups.height, 'chain')} of up to {top['many']} on arrays of one size: "
            f"{per.time(total(chains, 'dur_ns'))}. One kernel each would take about "
            f"{per.time(total(groups, 'merged_ns'))}."
        )
        found.append(
            Finding(
                "fusion",
                int(str(device)),
                stake,
                text,
                "Fuse them: @cupy.fuse() on the function, or one cupy.ElementwiseKernel for its arithmetic.",
                "kernels",
                headline=f"{per.plural(chains.height, 'elementwise kernel')} could be one kernel each chain",
                action="@cupy.fuse() on the function, or one cupy.ElementwiseKernel",
                where=place_of(report, pl.col("row").is_in(chains.get_column("row").implode())),
                mending=partial(_fused, chains=chains),
                claims=chains.select("start", "end"),
                general=True,
                shortens=True,
            )
        )
    return found


def _fused(report: Report, chains: pl.DataFrame) -> Mending:
    del report
    return merged(chains.select("group", "row", "dur_ns", "kept", "merged_ns"))


def _chains(report: Report) -> pl.DataFrame:
    """Kernels of such chains: device, group, row, start, end, dur_ns, kept, merged_ns and many (of the chain)."""
    stream = ("device", "process_id", "stream")
    work = exclusive_operations(report, "stream", *SHAPE).sort(*stream, "start")
    line = work.with_columns(chains=decoded_as(work, _is_elementwise))
    alike = [pl.col(key).eq_missing(pl.col(key).shift(1)) for key in (*stream, *SHAPE, "chains")]
    line = line.with_columns(group=(~pl.all_horizontal(alike)).cum_sum()).filter("chains")
    many, most = pl.len().over("group"), pl.col("dur_ns").max().over("group")
    others = many.cast(pl.Int64) - 1
    more = others.clip(upper_bound=_FIRST) + (others - _FIRST).clip(lower_bound=0) / 2
    fused = (most * (1 + _EACH_MORE * more)).cast(pl.Int64)
    told = line.with_columns(many=many, kept=pl.lit(1), merged_ns=fused)
    worth = (pl.col("many") > 1) & (pl.col("dur_ns").sum().over("group") > pl.col("merged_ns"))
    return told.filter(worth)


def _is_elementwise(said: KernelName) -> bool:
    return said.library == "cupy" and said.family in {"elementwise", "copy"}


#: Types in the names of CuPy's kernels: ``cupy_add__float64_float64_float64``.
_DOUBLE: Final = re.compile(r"cupy_\w*?__(?:\w*_)?float64")


def double_arrays(report: Report) -> list[Finding]:
    """One finding per device on operations of CuPy on arrays of float64."""
    if world(report) != CUPY:
        return []
    wide = _on_wide_arrays(report)
    return [_doubles(report, *one) for one in kernels_that(report, lambda said, _: _is_double(said, wide), _WORTH)]


def _is_double(said: KernelName, wide: set[str]) -> bool:
    return said.function in wide or bool(_DOUBLE.match(said.function))


@once_per_process
def _on_wide_arrays(report: Report) -> set[str]:
    """Kernels with a thread for each element of arrays that were copied to the GPU with 8 bytes for each.

    Only where another kernel says that it reduces doubles: other types have 8 bytes, too.
    """
    work = operations(report, "size_bytes", *SHAPE)
    kernels = work.filter(pl.col("kind") == "kernel")
    if not kernels.get_column("name").unique().cast(pl.String).str.contains(_REDUCES_DOUBLES).any():
        return set()
    copied = work.filter(pl.col("detail").cast(pl.String) == "Host-to-Device").select(bytes=pl.col("size_bytes") // 8)
    many = copied.group_by("bytes").len().filter(pl.col("bytes") >= _LARGE)
    block = pl.col("block_x").cast(pl.Int64)
    sizes = kernels.select("name", block=block, elements=block * pl.col("grid_x")).unique()
    pairs = sizes.join(many, how="cross").filter(
        pl.col("bytes").is_between(pl.col("elements") - pl.col("block"), "elements")
    )
    return {decode(name).function for name in pairs.get_column("name").cast(pl.String).unique()}


#: Names of kernels that reduce arrays of float64, and the elements of an array that counts.
_REDUCES_DOUBLES: Final = r"(?:reduce|Reduce).*\bdouble\b"
_LARGE: Final = 1 << 16


def _doubles(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    told = Told(
        "float64",
        "kernel",
        "of CuPy compute in float64 (most {0})",
        ". NumPy's arrays and Python's numbers are float64 unless told otherwise; float32 moves half of the bytes.",
        "Make arrays float32 where that is exact enough: dtype=cp.float32, x.astype(np.float32) before cp.asarray.",
        "kernels",
        f"Arrays are float64: {percent(chosen.share)} of kernel time",
        "dtype=cp.float32; x.astype(np.float32) before cp.asarray(x)",
        left=0.5,
    )
    return on_kernels(report, device, chosen, told)


RULES: Final = (array_chains, double_arrays)
