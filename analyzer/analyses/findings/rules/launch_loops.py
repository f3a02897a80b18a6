"""Loops of the host around small kernels: a launch for each row where one could have a grid over all, or one array."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import merged
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    LIBRARY,
    in_pytorch,
    per_iteration,
    place_of,
    written_with,
)
from kanalyze.analyses.host._worlds import CUDA, CUPY, JAX, NUMBA, OPENACC, OPENMP, PYTHON, PYTORCH, spoken, world
from kanalyze.analyses.idle._blocking_calls import WAITING, blocking_calls
from kanalyze.analyses.memory._allocations import allocating_calls
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.report import Report

#: The fewest turns in a row; the most kernels of a turn, and the most blocks of each, of the program's own kernels and
#: of array libraries, whose operations are kernels. A time step of a simulation has more of both, and cannot be one.
_TURNS: Final = 32
_OWN: Final = (2, 4)
_OF_ARRAYS: Final = 16

#: An SM has room for so many threads of such kernels at least.
_THREADS: Final = 1024

#: What waits or allocates in so many of the turns is told by other findings: of directives each region waits.
_OFTEN: Final = 0.5
_WAITS: Final = (OPENMP, OPENACC)

_REMEDY: Final = (
    "One launch whose grid covers what the loop does one by one. Where a turn needs the result of the one before, let "
    "the loop run inside the kernel, or replay it as a CUDA graph."
)

#: Action by world, the program's own kernels; and of libraries.
_ACTIONS: Final = {
    CUDA: "one launch over all turns: dim3 grid(blocks, turns), blockIdx.y for i",
    PYTORCH: "one launch with a grid over the loop: kernel[(turns, blocks)](…)",
    NUMBA: "one launch over all turns: kernel[(blocks, turns), threads](…)",
    PYTHON: "one launch, or one operation on the whole array, in place of the loop",
    OPENMP: "the loop inside the region: target teams distribute over it, collapse(2)",
    OPENACC: "the loop inside the region: parallel loop gang over it, collapse(2)",
}
_OF_LIBRARY: Final = "one batched call, such as cublasSgemmStridedBatched, in place of the loop"

#: The same of loops over parts of an array.
_WHOLE: Final = "whole arrays in place of slices in a loop: x.sum(axis=1, keepdims=True)"
_WHOLE_REMEDY: Final = (
    "Let the loop's index be a dimension of the arrays: axis= and keepdims=True of reductions, broadcasting, einsum."
)


def host_grid_loop(report: Report) -> list[Finding]:
    """At most one finding per device, on all loops together: of array libraries ``repeated-work``."""
    found = []
    for (device,), own in _loops(report).partition_by("device", as_dict=True, maintain_order=True).items():
        groups = _joined(own)
        spans = own.group_by("run").agg(pl.col("start").min(), pl.col("end").max())
        stake = intervals.length(intervals.union(spans)) - total(groups.unique("group"), "merged_ns")
        if stake > 0:
            found.append(_finding(report, int(str(device)), own, groups, stake))
    return found


def _finding(report: Report, device: int, own: pl.DataFrame, groups: pl.DataFrame, stake: int) -> Finding:
    runs = own.group_by("run", "period").agg(turns=pl.len() // pl.col("period").first(), ns=pl.col("dur_ns").sum())
    most = own.group_by("name").agg(pl.col("dur_ns").sum(), pl.col("blocks").max()).sort("dur_ns", "name").row(-1)
    name, blocks = str(most[0]), int(most[2])
    usual = int(own.group_by("period").len().sort("len", "period").item(-1, "period"))
    what = "One kernel is" if usual == 1 else f"{count(usual)} kernels are"
    took, launches = intervals.length(intervals.union(own)), per_iteration(report).plural(own.height, "launch")
    text = (
        f"{what} launched over and over with nothing else between: {launches} in "
        f"{plural(runs.height, 'loop')} of up to {count(int(str(runs.get_column('turns').max())))} turns, most {{0}} "
        f"with {plural(blocks, 'block')}. GPU {device} works in them for {time(took)} and idles between for the rest; "
        f"in one launch each they would take about {time(total(groups.unique('group'), 'merged_ns'))}."
    )
    library = written_with(report, name) in (LIBRARY, COMPILED)
    arrays = library and world(report) in _ARRAYS
    action = _OF_LIBRARY if library and world(report) == CUDA else spoken(report, _ACTIONS, _ACTIONS[PYTHON])
    headline = f"{launches} of {plural(blocks, 'block')} each, in a loop"
    if arrays:
        headline = f"The same {plural(usual, 'kernel')} run for one slice after the other"
    return Finding(
        "repeated-work" if arrays else "host-grid-loop",
        device,
        stake,
        text,
        _WHOLE_REMEDY if arrays else _REMEDY,
        "kernels",
        (name,),
        headline=headline,
        action=_WHOLE if arrays else action,
        where=place_of(report, pl.col("row").is_in(own.get_column("row").implode())),
        mending=partial(_in_one, own=own),
        claims=own.group_by("run").agg(pl.col("start").min(), pl.col("end").max()).select("start", "end"),
    )


def _in_one(report: Report, own: pl.DataFrame) -> Mending:
    """Each kernel of a loop is launched once, and the host does nothing else in it."""
    del report
    sides = {"start": pl.col("call_start").min(), "end": pl.col("call_start").max()}
    return merged(_joined(own))._replace(host=own.group_by("process_id", "run").agg(**sides))


def _joined(own: pl.DataFrame) -> pl.DataFrame:
    """Rows for :func:`merged`: of each loop the launches of one kernel, as many side by side as SMs have room for."""
    on_each = (_THREADS // pl.col("threads")).clip(lower_bound=1)
    beside = (pl.col("sms") * on_each // pl.col("blocks")).clip(lower_bound=1)
    waves = (pl.len() / beside.first()).ceil()
    merged_ns = (pl.col("dur_ns").median() * waves).cast(pl.Int64)
    keys = ["run", "place"]
    sums = own.group_by(keys).agg(merged_ns=merged_ns).with_row_index("group").with_columns(kept=pl.lit(1))
    return own.join(sums, on=keys).sort("group", "start").select("group", "row", "dur_ns", "kept", "merged_ns")


@once_per_report
def _loops(report: Report) -> pl.DataFrame:
    """Kernels in such loops, with the copies between arrays in them, and device, run, place (in the turn) and period.

    Columns besides: row, kind, name, start, end, dur_ns, blocks, threads (of a block), sms (of the device).
    """
    blocks, threads = (
        (pl.col(f"{of}_x") * pl.col(f"{of}_y") * pl.col(f"{of}_z")).cast(pl.Int64).fill_null(1)
        for of in ("grid", "block")
    )
    work = exclusive_operations(report, "stream", "call_row", "call_start", "shape", *SHAPE)
    alone = pl.col("call_row").is_not_null() & (pl.len().over("call_row") == 1)  # not those of a graph
    within = (pl.col("detail").cast(pl.String) == "Device-to-Device").fill_null(value=False)  # x[i] = y, of arrays
    kernels = ((pl.col("kind") == "kernel") & alone) | (within & (world(report) in _ARRAYS))
    devices = report.devices.select("device", sms="sm_count").drop_nulls()
    line = work.select(
        *_STREAM,
        "row",
        "name",
        "start",
        "end",
        "dur_ns",
        "call_start",
        "shape",
        "kind",
        blocks=blocks,
        threads=threads,
        kernel=kernels,
    )
    line = line.join(devices, on="device").sort(*_STREAM, "start")
    found = [line.clear().with_columns(run=pl.lit(0, pl.UInt32), place=pl.lit(0, pl.Int64), period=pl.lit(0))]
    for period in range(1, (_OF_ARRAYS if world(report) in _ARRAYS else _OWN[0]) + 1):
        known = _of_period(line, period).select(found[0].columns)
        line = line.join(known.select("row"), on="row", how="anti", maintain_order="left")
        loops = [own for _, own in known.group_by("run", maintain_order=True) if _is_loop(report, own)]
        last = longest(found[-1], "run")
        found += [own.with_columns(run=pl.lit(last + place, pl.UInt32)) for place, own in enumerate(loops, 1)]
    return pl.concat(found)


#: Worlds in which operations on arrays are kernels.
_ARRAYS: Final = (CUPY, PYTHON)

_STREAM: Final = ("device", "process_id", "stream")


def _of_period(line: pl.DataFrame, period: int) -> pl.DataFrame:
    """Kernels in a row of which each is the same as `period` before: with run, place (in a turn) and period."""
    alike = [pl.col(key).eq_missing(pl.col(key).shift(period).over(_STREAM)) for key in ("name", "shape")]
    told = line.with_columns(same=pl.all_horizontal("kernel", *alike).fill_null(value=False))
    another = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in ("same", *_STREAM))
    runs = told.with_columns(run=another.cum_sum().cast(pl.UInt32)).filter("same")
    place = pl.int_range(pl.len()).over("run") % period
    long = runs.with_columns(place=place, period=pl.lit(period))
    return long.filter(pl.len().over("run") >= (_TURNS - 1) * period)


def _is_loop(report: Report, own: pl.DataFrame) -> bool:
    """Whether launches in a row are small kernels that could be one, and nothing else takes part in the turns."""
    names = own.filter(pl.col("kind") == "kernel").get_column("name").unique().cast(pl.String)
    others = [written_with(report, name) in (LIBRARY, COMPILED) for name in names]
    arrays = all(others) and world(report) in _ARRAYS
    most = pl.col("sms") - 1 if arrays else pl.min_horizontal(_OWN[1], pl.col("sms") - 1)
    small = own.select((pl.col("blocks") <= most).all()).item() and others
    long = int(own.item(0, "period")) > _OWN[0] and not arrays
    if not small or long or world(report) == JAX or (in_pytorch(report) and all(others)):
        return False
    first, last = own.get_column("call_start").min(), own.get_column("call_start").max()
    turns = own.height / int(own.item(0, "period"))
    waits = blocking_calls(report).filter(pl.col("scope").is_in(WAITING) & pl.col("start").is_between(first, last))
    allocations = allocating_calls(report).filter(pl.col("start").is_between(first, last))
    waited = waits.height if world(report) not in _WAITS else 0
    return max(waited, allocations.height) < _OFTEN * turns


RULES: Final = (host_grid_loop,)
