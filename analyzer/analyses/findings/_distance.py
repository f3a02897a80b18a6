"""Bounds the gains of findings on kernels by the distance of these to their roof, where shapes of operators tell it."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.work.roofs import has_shapes
from kanalyze.analyses.work.work import least_times
from kanalyze.report import Report

#: Rules whose remedy leaves kernels the same work, and the type that it is done in then; empty for the same.
_SAME_WORK: Final = {
    **dict.fromkeys(("unaligned-gemm", "old-architecture-gemm", "no-tensor-cores", "uncoalesced"), ""),
    **dict.fromkeys(("small-grid", "tail", "low-occupancy", "few-sms", "idle-tensor-cores", "clock-drop"), ""),
    **dict.fromkeys(("padded-products", "skinny-products", "far-from-roof"), ""),
    "no-tf32": "tf32",
}


def within_distance(report: Report, found: list[Finding]) -> list[Finding]:
    """The findings, none on kernels of the same work with more at stake, or saved by its remedy, than the distance."""
    bounded = [one for one in found if one.rule in _SAME_WORK and one.claims is not None]
    if not bounded or not has_shapes(report):
        return found
    return [_within(report, one) if one in bounded else one for one in found]


def _within(report: Report, one: Finding) -> Finding:
    least = least_times(report, _SAME_WORK[one.rule])
    claims = pl.DataFrame() if one.claims is None else one.claims.select("start", "end").unique()
    claimed = least.filter(device=one.device).join(claims, on=["start", "end"], how="semi")
    beyond = pl.col("exclusive_ns") * (1 - pl.col("least_ns").fill_null(0) / pl.col("dur_ns").clip(lower_bound=1))
    distance = int(claimed.select(beyond.clip(lower_bound=0).sum()).item()) if claimed.height else one.at_stake_ns

    def bounded(whole: Report) -> Mending | None:
        change = one.change(whole)
        if change is None or change.shorter is None:
            return change
        most = least.select("row", most=(pl.col("dur_ns") - pl.col("least_ns")).clip(lower_bound=0))
        known = change.shorter.with_columns(pl.col("row").cast(least.schema["row"]))
        known = known.join(most, on="row", how="left", maintain_order="left")
        return change._replace(shorter=known.select("row", saved_ns=pl.min_horizontal("saved_ns", "most")))

    return one._replace(at_stake_ns=min(one.at_stake_ns, distance), mending=bounded if one.mending else None)
