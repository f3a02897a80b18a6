"""How a program launches less often, by what it is written in and whether it has CUDA graphs already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.host._worlds import CUPY, JAX, NUMBA, OPENACC, OPENMP, PYTHON, PYTORCH, spoken
from kanalyze.analyses.launches._graph_launches import graph_operations, has_graphs
from kanalyze.analyses.shared.cached import once_per_report

if TYPE_CHECKING:
    from kanalyze.report import Report


class LaunchLess(NamedTuple):
    """The remedy of one kind of program.

    Attributes:
        action: What to do, as a phrase.
        remedy: What to do about short kernels, as a sentence.
        capture: How to replay a sequence that repeats, as a sentence; None where that depends on its stream.
        ahead: What to do about many short stretches of host time, as a sentence.
        ahead_action: The same as a phrase; empty where it is `action`.
    """

    action: str
    remedy: str
    capture: str | None
    ahead: str
    ahead_action: str = ""


_OF_TORCH: Final = LaunchLess(
    action='torch.compile(…, mode="reduce-overhead")',
    remedy=(
        'Launch less often: torch.compile(mode="reduce-overhead") fuses kernels and replays CUDA graphs; larger '
        "batches."
    ),
    capture=(
        'Let torch.compile(mode="reduce-overhead") capture and replay it as a CUDA graph, or do so with '
        "torch.cuda.graph; shapes stay, and inputs are copied into the same tensors."
    ),
    ahead=(
        "Launch less often, so that the host keeps ahead of the GPU: torch.compile fuses operators, and with "
        'mode="reduce-overhead" replays them as CUDA graphs; larger batches give each launch more to do.'
    ),
)
_OF_CUDA: Final = LaunchLess(
    action="fuse them, or use cudaStreamBeginCapture",
    remedy="Launch less often: fuse kernels, batch work, or replay it as a CUDA graph.",
    capture=None,
    ahead="Launch less often, so that the host keeps ahead: fuse kernels, or replay them as a CUDA graph.",
)
_OF_JAX: Final = LaunchLess(
    action="jax.jit around the whole step, jax.lax.scan over several",
    remedy="Launch less often: one function under jax.jit for the whole step; XLA fuses what is in it.",
    capture="Put the sequence under one jax.jit: XLA fuses it, and replays what is left as a CUDA graph.",
    ahead="Dispatch less often: one function under jax.jit for the whole step, and jax.lax.scan over several steps.",
)
_OF_DIRECTIVES: Final = LaunchLess(
    action="one region for several loops: fuse them, collapse(2), nowait or async",
    remedy="Launch less often: fuse loops, collapse nested ones, and put what stays into one region.",
    capture="Put the loop over these kernels into one: fuse loops, or collapse the outer one into them.",
    ahead="Launch less often: fuse loops, collapse nested ones, and let kernels follow each other by nowait or async.",
)


def _of_arrays(action: str) -> LaunchLess:
    """The remedy where operations on arrays are kernels."""
    remedy = (
        "Launch less often: fuse operations on one array into a kernel, and loops over parts into operations on all."
    )
    return LaunchLess(action=action, remedy=remedy, capture=remedy, ahead=remedy)


#: The remedy by world; elsewhere that of CUDA.
_BY_WORLD: Final = {
    PYTORCH: _OF_TORCH,
    JAX: _OF_JAX,
    CUPY: _of_arrays("@cupy.fuse or one ElementwiseKernel; whole arrays, not rows in a loop"),
    NUMBA: _of_arrays("one kernel that loops inside, in place of a loop around kernels"),
    PYTHON: _of_arrays("one kernel for several operations; whole arrays, not parts in a loop"),
    OPENMP: _OF_DIRECTIVES,
    OPENACC: _OF_DIRECTIVES,
}
_BESIDE_GRAPHS_IN_TORCH: Final = _OF_TORCH._replace(
    action="torch.compile what is in no CUDA graph yet",
    remedy=(
        "Some kernels are replayed as CUDA graphs already: compile or capture the rest of the step, too, such as the "
        "optimizer."
    ),
    capture=(
        "Some kernels are replayed as CUDA graphs already: compile or capture this sequence, too, such as the step of "
        "the optimizer; shapes stay, and inputs are copied into the same tensors."
    ),
    ahead=(
        "Some kernels are replayed as CUDA graphs already: compile or capture the rest of the step, too, such as the "
        "optimizer, so that the host keeps ahead of the GPU."
    ),
)
_BESIDE_GRAPHS: Final = _OF_CUDA._replace(
    action="capture what is in no CUDA graph yet",
    remedy="Some kernels are replayed as CUDA graphs already: capture the rest, too, or fuse kernels.",
    ahead="Some kernels are replayed as CUDA graphs already: capture the rest, too, so that the host keeps ahead.",
)

#: What to do where graphs run most of the time, and the host launches them too late.
_MOSTLY_GRAPHS: Final = {
    "ahead": "The kernels are replayed as CUDA graphs: put more into each, and launch the next before you wait.",
    "ahead_action": "more work in each CUDA graph; launch the next one before you wait",
}

#: Shares of a device's kernel time from which graphs are some of it, and most of it.
_SOME: Final = 0.05
_MOST: Final = 0.5


def launch_less(report: Report, device: int) -> LaunchLess:
    """The remedy for many short launches on a device in a report's window."""
    share = share_of_graphs(report).get(device, 0.0)
    if share < _SOME:
        return spoken(report, _BY_WORLD, _OF_CUDA)
    beside = spoken(report, _BY_WORLD | {PYTORCH: _BESIDE_GRAPHS_IN_TORCH}, _BESIDE_GRAPHS)
    return beside._replace(**_MOSTLY_GRAPHS) if share > _MOST else beside


@once_per_report
def share_of_graphs(report: Report) -> dict[int, float]:
    """The share of the window's kernel time that is of CUDA graphs, traced whole or node by node, by device."""
    if not has_graphs(report):
        return {}
    ran = exclusive_operations(report).filter(pl.col("kind").is_in(["kernel", "graph"]))
    replayed, ns = pl.col("row").is_in(graph_operations(report).get_column("row").implode()), pl.col("exclusive_ns")
    shares = ran.group_by("device").agg(share=ns.filter(replayed).sum() / ns.sum().clip(lower_bound=1))
    return dict(shares.iter_rows())
