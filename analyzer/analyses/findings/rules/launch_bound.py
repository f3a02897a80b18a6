"""Launch-bound kernels: their launch takes longer than they run, so that the device waits for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report


def find(report: Report) -> list[Finding]:
    """One finding per device with launch-bound kernels for which it waited."""
    found = []
    for (device,), bound in (
        launch_costs(report).bound.partition_by("device", as_dict=True, maintain_order=True).items()
    ):
        waiting = bound.filter(pl.col("launch_ns") > 0)
        if waiting.is_empty():
            continue
        top = waiting.row(0, named=True)
        most = f"most for {{0}}: {time(top['api_ns'])} to launch, {time(top['kernel_ns'])} to run"
        which = f"{plural(waiting.height, 'kernel')} in {plural(total(waiting, 'count'), 'warm launch')}"
        text = f"Launch-bound: {which} run shorter than their launch takes, and the GPU waited for it ({most})."
        remedy = "Launch less often: fuse kernels, batch work, or replay it as a CUDA graph."
        stake = total(waiting, "launch_ns")
        found.append(Finding("launch-bound", device, stake, text, remedy, "launch_summary", (str(top["name"]),)))
    return found
