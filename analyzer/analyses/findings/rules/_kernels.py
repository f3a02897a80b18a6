"""Kernel time by decoded name, findings on kernels chosen by it, and what remedies change in a recording."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, launch_rows, with_facts
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._telling import per_iteration, place_of
from kanalyze.analyses.occupancy.occupancy import launch_occupancy
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import grouped
from kanalyze.columns.lookup import sure
from kanalyze.columns.ordering import in_order
from kanalyze.decoder.decode import decode
from kanalyze.units import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report


class DeviceKernels(NamedTuple):
    """The kernels in scope of one device.

    Attributes:
        device: The GPU.
        name: Its name; empty where the report does not say.
        capability: Its compute capability, such as (9, 0); (0, 0) where the report does not say, or for other makers'.
        kernel_ns: Exclusive time of all its kernels.
        rows: Sums by kernel: name (text), count, exclusive_ns.
    """

    device: int
    name: str
    capability: tuple[int, int]
    kernel_ns: int
    rows: pl.DataFrame

    def chosen(self, wanted: Callable[[KernelName], bool]) -> Chosen:
        """The kernels whose decoded names are `wanted`."""
        rows = self.rows.filter(
            pl.Series([wanted(decode(name)) for name in self.rows.get_column("name")], dtype=pl.Boolean)
        )
        return Chosen(rows, total(rows, "count"), total(rows, "exclusive_ns"), self.kernel_ns)


class Chosen(NamedTuple):
    """Some kernels of a device.

    Attributes:
        rows: Sums by kernel: name, count, exclusive_ns, the longest time first.
        launches: How many.
        ns: Their exclusive time.
        of_ns: The exclusive time of all kernels of the device.
    """

    rows: pl.DataFrame
    launches: int
    ns: int
    of_ns: int

    @property
    def share(self) -> float:
        """Their part of all kernel time."""
        return self.ns / max(self.of_ns, 1)

    @property
    def longest(self) -> str:
        """The name of the kernel with most time."""
        return str(self.rows.item(0, "name"))

    def operations(self, device: int) -> pl.Expr:
        """Rows of their device operations."""
        names = self.rows.get_column("name").cast(pl.Categorical)
        return (pl.col("device") == device) & (pl.col("kind") == "kernel") & pl.col("name").is_in(names.implode())


@once_per_report
def kernel_sums(report: Report) -> list[DeviceKernels]:
    """The kernels in scope of each device that ran any."""
    work = exclusive_operations(report).lazy().filter(pl.col("kind") == "kernel")
    events = work.select("device", "name", "exclusive_ns").drop_nulls("name").collect(engine="in-memory")
    sums = grouped(events, ["device", "name"], [pl.len().cast(pl.Int64).alias("count"), pl.col("exclusive_ns").sum()])
    named = sums.with_columns(pl.col("name").cast(pl.String)).sort(
        "device", "exclusive_ns", "name", descending=[False, True, False]
    )
    devices = report.devices.select("device", "name", "compute_capability").iter_rows()
    known = {device: (name or "", _capability(text)) for device, name, text in devices}
    found = []
    for (device,), rows in named.partition_by("device", as_dict=True, maintain_order=True).items():
        name, capability = known.get(device, ("", (0, 0)))
        found.append(DeviceKernels(device, name, capability, total(rows, "exclusive_ns"), rows.drop("device")))
    return found


def is_compiled(said: KernelName) -> bool:
    """Whether torch.compile made a kernel."""
    return said.library == "inductor"


def is_layout(said: KernelName) -> bool:
    """Whether cuDNN converts images between layouts, so that they are not in channels_last."""
    return said.library == "cudnn" and said.operation == "layout" and bool(said.layout)


def decoded_as(work: pl.DataFrame, wanted: Callable[[KernelName], bool]) -> pl.Series:
    """Whether the decoded name of each operation of `work` (name) is `wanted`."""
    names = work.get_column("name")
    different = names.unique().drop_nulls()
    known = different.filter(pl.Series([wanted(decode(name)) for name in different.cast(pl.String)], dtype=pl.Boolean))
    return sure(names.is_in(known.implode())) if len(known) else pl.Series([False]).new_from_index(0, len(names))


def stream_lines(report: Report, devices: list[int]) -> pl.DataFrame:
    """The operations in scope of some devices, stream by stream, in order of their start."""
    columns = ("event_id", "row", "kind", "name", "start", "end", "exclusive_ns", "device", "process_id", "stream")
    placed = exclusive_operations(report, "stream").select(columns).filter(pl.col("device").is_in(devices))
    for key in ("start", "stream", "process_id", "device"):  # most are in order, and all at once takes longer
        placed = in_order(placed, key)
    return placed


def _capability(text: str | None) -> tuple[int, int]:
    """The compute capability as numbers; (0, 0) for a text that is none."""
    major, dot, minor = (text or "").partition(".")
    return (int(major), int(minor)) if dot and major.isdecimal() and minor.isdecimal() else (0, 0)


#: What a kernel takes that has nothing to do, about: no remedy makes one shorter.
_LEAST_NS: Final = 1000


def times_of(report: Report, rows: pl.Series) -> pl.DataFrame:
    """When some operations (rows) ran in the window: start, end."""
    work = exclusive_operations(report)
    return work.filter(pl.col("row").is_in(rows.implode())).select("start", "end")


def without(rows: pl.DataFrame) -> Mending:
    """The operations `rows` (row) are launched no more."""
    return Mending(gone=rows.get_column("row").cast(pl.UInt32))


def merged(groups: pl.DataFrame) -> Mending:
    """Some operations do the work of all, and the others are gone.

    `groups` has row, dur_ns, and by group, in order: kept (how many operations do the work) and merged_ns (what they
    take in all). The first ones of each group are kept.
    """
    work = groups.with_columns(
        place=pl.int_range(pl.len()).over("group"), part_ns=pl.col("merged_ns") // pl.col("kept")
    ).with_columns(pl.col("row").cast(pl.UInt32))
    stays = pl.col("place") < pl.col("kept")
    kept = work.filter(stays).select("row", saved_ns=pl.col("dur_ns") - pl.col("part_ns"))
    return Mending(shorter=kept, gone=work.filter(~stays).get_column("row"))


def of_shapes(report: Report, device: int, shapes: pl.DataFrame) -> pl.DataFrame:
    """The kernels of a device in scope of some launch shapes: row, name, start, end, dur_ns, columns of `shapes`."""
    kernels = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
    work = with_facts(report, kernels.select("row", "name", "start", "end", "dur_ns"), *SHAPE)
    named = shapes.with_columns(pl.col("name").cast(pl.Categorical))
    return work.join(named, on=["name", *SHAPE], nulls_equal=True, maintain_order="left")


def by_shape(report: Report, device: int, shapes: pl.DataFrame, stake: str) -> Mending:
    """Kernels of a device take less by the time `stake` of their launch shape in `shapes`, each by the same share.

    None gets shorter than a kernel that does nothing.
    """
    work = of_shapes(report, device, shapes.group_by("name", *SHAPE).agg(pl.col(stake).sum()))
    share = (pl.col(stake) / pl.col("dur_ns").sum().over("name", *SHAPE)).clip(upper_bound=1.0)
    most = (pl.col("dur_ns") - _LEAST_NS).clip(lower_bound=0)
    saved = pl.min_horizontal((pl.col("dur_ns") * share).floor().cast(pl.Int64), most)
    return Mending(shorter=work.select("row", saved_ns=saved))


def calls_within(report: Report, spans: pl.DataFrame) -> pl.Series:
    """Rows (of the api events) of the calls that began in `spans` (process_id, thread_id, start, end) of their thread.

    Spans of a thread do not overlap.
    """
    begun = spans.select(*THREAD, "end", at="start").sort("at")
    calls = report.kind("api").select(*THREAD, at="start_ns").with_row_index("row").sort("at")
    found = calls.join_asof(begun, on="at", by=list(THREAD), check_sortedness=False)
    return found.filter(pl.col("at") < pl.col("end")).get_column("row").sort()


def nothing_within(report: Report, spans: pl.DataFrame) -> Mending:
    """Host code, calls and operations of threads in `spans` (process_id, thread_id, start, end) are gone."""
    calls = calls_within(report, spans)
    gone = launch_rows(report).is_in(calls.implode()).fill_null(value=False).arg_true().cast(pl.UInt32)
    return Mending(gone=gone, calls=calls, host=spans.select("process_id", "start", "end"))


def fills(report: Report, device: DeviceKernels, chosen: Chosen) -> bool:
    """Whether most of the chosen kernels' time, as far as it is known, is in launches with a block for each SM."""
    shapes = launch_occupancy(report).filter(pl.col("device") == device.device)
    own = shapes.filter(pl.col("name").cast(pl.String).is_in(chosen.rows.get_column("name").implode()))
    full = own.filter((pl.col("blocks") >= pl.col("sm_count")).fill_null(value=True))
    return own.is_empty() or 2 * total(full, "exclusive_ns") >= total(own, "exclusive_ns")


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
        claims=exclusive_operations(report).filter(chosen.operations(device.device)).select("start", "end"),
    )


def _mending(report: Report, device: int, chosen: Chosen, left: float) -> Mending:
    """The kernels take so much of their time, or are not launched at all."""
    work = exclusive_operations(report).filter(chosen.operations(device))
    if not left:
        return Mending(gone=work.get_column("row"))
    saved = (pl.col("dur_ns") * (1 - left)).floor().cast(pl.Int64)
    return Mending(shorter=work.select("row", saved_ns=saved))
