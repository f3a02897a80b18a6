"""Copies of pinned memory that ran alone between kernels of their own stream, though submitted together with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.memory._serial_copies import hidden_at_most, serial_copies
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import plural, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

_REMEDY: Final = (
    "Copy in a stream of its own, into a second buffer, while kernels work on the first; order what depends by events."
)


def find(report: Report) -> list[Finding]:
    """One finding per device with such copies."""
    if not any(worth_saying(report, ns) for ns in ledger(report).filter(bucket="memcpy").get_column("ns")):
        return []
    found = []
    for (device,), copies in serial_copies(report).partition_by("device", as_dict=True, maintain_order=True).items():
        stake = total(hidden_at_most(report, copies), "ns")
        if stake:
            streams = copies.get_column("stream").unique().sort()
            where = ", ".join(map(str, streams))
            text = (
                f"{plural(copies.height, 'copy')} of pinned memory, {size(total(copies, 'size_bytes'))}, ran alone for "
                f"{time(total(copies, 'exclusive_ns'))} between kernels of the same stream ({where}); the host had "
                "submitted both by then, and only the stream's order kept them apart."
            )
            found.append(Finding("serial-copy", device, stake, text, _REMEDY, "concurrency"))
    return found
