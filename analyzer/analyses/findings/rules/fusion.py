"""Chains of elementwise kernels that one fused kernel could replace, with one read and one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.fusion._chains import chains
from kanalyze.analyses.fusion.fusion import fusion
from kanalyze.analyses.operators._paths import ARROW
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import plural, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Of longer chains, this many operators are named at either end.
_ENDS: Final = 2

_FOREACH: Final = "aten::_foreach_"


def find(report: Report) -> list[Finding]:
    """One finding per device with chains whose fusion would save time."""
    if not {"op", "kernel"}.issubset(report.kinds):
        return []
    ran = chains(report).group_by("device").agg(pl.col("exclusive_ns").sum())
    most = dict(ran.iter_rows())
    found = []
    for (device,), rows in fusion(report).partition_by("device", as_dict=True, maintain_order=True).items():
        worth = rows.filter(pl.col("saved_ns") > 0)
        if worth.is_empty():
            continue
        stake = min(total(worth, "saved_ns"), most[device])
        launches, occurrences = total(worth, "launches"), total(worth, "count")
        text = (
            f"{plural(launches, 'elementwise kernel')} in {plural(occurrences, 'chain')} pass their results through "
            f"memory: {time(total(worth, 'total_ns'))}. Most: {_most(worth.row(0, named=True))}."
        )
        found.append(Finding("fusion", device, stake, literal(text), _remedy(worth), "fusion"))
    return found


def _most(top: dict[str, Any]) -> str:
    """The chain with the largest saving, with its figures."""
    operators = top["chain"].split(ARROW)
    ends = operators if len(operators) <= 2 * _ENDS else [*operators[:_ENDS], "…", *operators[-_ENDS:]]
    moved = f" and moving {size(top['moved_bytes'])}" if top["moved_bytes"] is not None else ""
    least = f", which would move {size(top['fused_bytes'])}" if top["fused_bytes"] is not None else ""
    known = "at least" if top["fused_bytes"] is not None else "about"
    return (
        f"{ARROW.join(ends)}, {plural(top['kernels'], 'kernel')} {plural(top['count'], 'time')}, taking "
        f"{time(top['total_ns'])}{moved}; {known} {time(top['fused_ns'])} as one kernel each{least}"
    )


def _remedy(rows: pl.DataFrame) -> str:
    remedy = "Fuse them: torch.compile does, or one Triton or CUDA kernel."
    if rows.head(1).item(0, "chain").startswith(_FOREACH):
        remedy += " PyTorch's optimizers take fused=True."
    return remedy
