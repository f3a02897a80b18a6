"""Several processes with kernels on one GPU at the same time, really or apparently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.analyses.device._sharing import shared_devices
from kanalyze.analyses.findings.rules import Finding
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.analyses.device._sharing import Shared
    from kanalyze.report import Report


def find(report: Report) -> list[Finding]:
    """One finding per GPU with simultaneously active kernels of several processes."""
    return [_finding(shared) for shared in shared_devices(report) if shared.together_ns]


def _finding(shared: Shared) -> Finding:
    *others, last = map(str, shared.processes)
    text = (
        f"Processes {', '.join(others)} and {last} share GPU {shared.device}: for {time(shared.together_ns)} kernels "
        f"of more than one had begun and not ended, and the next was another's {plural(shared.turns, 'time')}."
    )
    names: tuple[str, ...] = ()
    if (slowed := shared.slowed) is not None:
        took = f"takes up to {time(slowed.longest_ns)} then, {time(slowed.alone_ns)} else (median)"
        text += f" {{0}} of process {slowed.process} {took}."
        names = (slowed.name,)
    text += " Without MPS or MIG they run in turn, in time slices, and a kernel's duration holds the other's slices."
    remedy = (
        "If MPS is off, start it (nvidia-cuda-mps-control -d), so that kernels of several processes run side by side; "
        "or give each process a GPU, or a MIG instance, of its own."
    )
    return Finding("shared-gpu", shared.device, shared.together_ns, text, remedy, "concurrency", names)
