"""Asynchronous copies of pageable memory: they block the caller and overlap nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import total
from kanalyze.analyses._launch import calls_of
from kanalyze.analyses._lookup import beside
from kanalyze.analyses._operations import exclusive_operations
from kanalyze.analyses.rules import Finding
from kanalyze.units import plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

_PAGEABLE: Final = "Pageable"
_PINNED: Final = "Pinned"
#: Pinned copies smaller than this say nothing of the bandwidth that pinning gives.
_COMPARABLE_BYTES: Final = 1 << 20
_NS_PER_S: Final = 1_000_000_000


def find(report: Report) -> list[Finding]:
    """One finding per device that such copies kept from other work."""
    found = []
    copies = _asynchronous(report)
    for (device,), part in copies.partition_by("device", as_dict=True, maintain_order=True).items():
        pageable = part.filter(pl.col("memory") == _PAGEABLE)
        stake = total(pageable, "exclusive_ns")
        if stake:
            alike = pl.col("detail").is_in(pageable.get_column("detail").unique().implode())
            pinned = part.filter((pl.col("memory") == _PINNED) & alike & (pl.col("size_bytes") >= _COMPARABLE_BYTES))
            against = f", pinned ones {rate(_bandwidth(pinned))}" if pinned.height else ""
            moved, calling = total(pageable, "size_bytes"), total(pageable, "call_ns")
            text = (
                f"{plural(pageable.height, 'asynchronous copy')} of pageable memory, {size(moved)} at "
                f"{rate(_bandwidth(pageable))}{against}: their calls took {time(calling)} of host time."
            )
            remedy = (
                "Copy from pinned memory: cudaHostAlloc, or pin_memory() and DataLoader(pin_memory=True) in PyTorch."
            )
            found.append(Finding("pageable-copy", device, stake, text, remedy, "copies"))
    return found


def _bandwidth(copies: pl.DataFrame) -> float:
    return total(copies, "size_bytes") * _NS_PER_S / max(total(copies, "dur_ns"), 1)


def _asynchronous(report: Report) -> pl.DataFrame:
    """Copies launched by an …Async call, with the host memory they read or write (`memory`)."""
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    calls = calls_of(report, work.get_column("row"), "call_name", "call_ns")
    names = calls.get_column("call_name").unique().cast(pl.String).drop_nulls()
    wanted = names.filter(names.str.contains("Async", literal=True)).to_list()
    work = pl.concat([work, calls], how="horizontal").filter(pl.col("call_name").is_in(wanted))
    host = pl.when(pl.col("source_memory").is_in([_PAGEABLE, _PINNED])).then("source_memory").otherwise("target_memory")
    known = beside(work, report.copy_detail.with_columns(memory=host), "size_bytes", "memory")
    return known.drop_nulls("size_bytes").sort("device")
