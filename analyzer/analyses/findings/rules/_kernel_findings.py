"""Findings that say of some kernels of a device what they are, how long they take, and what to do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernel_sums import kernel_sums
from kanalyze.analyses.findings.rules._places import place_of
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.replay._mending import Mending
from kanalyze.units import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kanalyze.analyses.findings.rules._kernel_sums import Chosen, DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report


class Told(NamedTuple):
    """Words of a finding on kernels: `noun` `how`: their time, their share of kernel time; then `more`.

    Attributes:
        rule: Its name.
        noun: What one of these kernels does: ``matrix product``.
        how: How it does so, with ``{0}`` for the kernel that takes most time.
        more: What follows the share in the sentence, up to its full stop.
        remedy: As in :class:`Finding`, and so are table, headline, action and at_most.
        ns: The time at stake; that of the kernels if None.
        left: What is left of each kernel by the remedy, as a share of its time; None where that is not known.
    """

    rule: str
    noun: str
    how: str
    more: str
    remedy: str
    table: str
    headline: str
    action: str
    ns: int | None = None
    at_most: bool = False
    left: float | None = None


def kernels_that(
    report: Report, wanted: Callable[[KernelName, DeviceKernels], bool], least: float
) -> Iterator[tuple[DeviceKernels, Chosen]]:
    """The devices whose kernels that are `wanted` take at least a share of `least` of all kernel time, and these."""
    for device in kernel_sums(report):
        chosen = device.chosen(lambda said, device=device: wanted(said, device))  # type: ignore[misc]
        if chosen.ns and chosen.share >= least:
            yield device, chosen


def on_kernels(report: Report, device: DeviceKernels, chosen: Chosen, told: Told) -> Finding:
    """The finding on the chosen kernels of a device."""
    per = per_iteration(report)
    text = (
        f"{per.plural(chosen.launches, told.noun)} {told.how}: {per.time(chosen.ns)}, {percent(chosen.share)} of "
        f"kernel time{told.more}"
    )
    return Finding(
        told.rule,
        device.device,
        chosen.ns if told.ns is None else told.ns,
        text,
        told.remedy,
        told.table,
        (chosen.longest,),
        headline=told.headline,
        action=told.action,
        where=place_of(report, chosen.operations(device.device)),
        at_most=told.at_most,
        mending=None if told.left is None else partial(_mending, device=device.device, chosen=chosen, left=told.left),
        shortens=told.left is None or told.left > 0,
    )


def _mending(report: Report, device: int, chosen: Chosen, left: float) -> Mending:
    """The kernels take so much of their time, or are not launched at all."""
    work = exclusive_operations(report).filter(chosen.operations(device))
    if not left:
        return Mending(gone=work.get_column("row"))
    saved = (pl.col("dur_ns") * (1 - left)).floor().cast(pl.Int64)
    return Mending(shorter=work.select("row", saved_ns=saved))
