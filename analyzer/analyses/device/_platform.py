"""The programming interface (CUDA or HIP) that the program used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.wording import CUDA, HIP, RUNTIME, is_amd

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Pattern of the call names of each interface.
_CALLS: Final = {HIP: r"^hip(?:[A-Z]|rtc)", CUDA: r"^cu(?:da)?[A-Z]"}


@once_per_process
def interface(report: Report) -> str:
    """CUDA, HIP or RUNTIME (:mod:`kanalyze.wording`), by names of calls; without calls by names of GPUs."""
    names = report.kind("api").get_column("name").unique().cast(pl.String).drop_nulls()
    for found, pattern in _CALLS.items():
        if names.str.contains(pattern).any():
            return found
    if len(names):
        return RUNTIME
    gpus = report.devices.select("name", "threads_per_warp").rows()
    return HIP if gpus and all(is_amd(name, width) for name, width in gpus) else CUDA
