"""Kernel time by decoded kernel name, by which rules about wrong kernels tell whether there is anything to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.columns.grouping import grouped
from kanalyze.columns.lookup import sure
from kanalyze.columns.ordering import in_order
from kanalyze.decoder.decode import decode

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def without(self, report: Report, chosen: Chosen, rows: pl.Series) -> Chosen:
        """The `chosen` kernels but for some `rows` of operations."""
        work = exclusive_operations(report).filter(chosen.operations(self.device))
        left = work.filter(~pl.col("row").is_in(rows.implode()))
        sums = [pl.len().cast(pl.Int64).alias("count"), pl.col("exclusive_ns").sum()]
        found = grouped(left.select("name", "exclusive_ns"), ["name"], sums)
        named = found.with_columns(pl.col("name").cast(pl.String)).sort(
            "exclusive_ns", "name", descending=[True, False]
        )
        return Chosen(named, total(named, "count"), total(named, "exclusive_ns"), self.kernel_ns, rows)


class Chosen(NamedTuple):
    """Some kernels of a device.

    Attributes:
        rows: Sums by kernel: name, count, exclusive_ns, the longest time first.
        launches: How many.
        ns: Their exclusive time.
        of_ns: The exclusive time of all kernels of the device.
        but: Rows of operations of these kernels that are not among them; None if all are.
    """

    rows: pl.DataFrame
    launches: int
    ns: int
    of_ns: int
    but: pl.Series | None = None

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
        known = (pl.col("device") == device) & (pl.col("kind") == "kernel") & pl.col("name").is_in(names.implode())
        return known if self.but is None else known & ~pl.col("row").is_in(self.but.implode())


@once_per_report
def kernel_sums(report: Report) -> list[DeviceKernels]:
    """The kernels in scope of each device that ran any."""
    work = exclusive_operations(report).lazy().filter(pl.col("kind") == "kernel")
    events = work.select("device", "name", "exclusive_ns").drop_nulls("name").collect(engine="in-memory")
    sums = grouped(events, ["device", "name"], [pl.len().cast(pl.Int64).alias("count"), pl.col("exclusive_ns").sum()])
    named = sums.with_columns(pl.col("name").cast(pl.String)).sort(
        "device", "exclusive_ns", "name", descending=[False, True, False]
    )
    known = {device: (name or "", _capability(text)) for device, name, text in _devices(report)}
    found = []
    for (device,), rows in named.partition_by("device", as_dict=True, maintain_order=True).items():
        name, capability = known.get(device, ("", (0, 0)))
        found.append(DeviceKernels(device, name, capability, total(rows, "exclusive_ns"), rows.drop("device")))
    return found


def is_compiled(said: KernelName) -> bool:
    """Whether torch.compile made a kernel."""
    return said.library == "inductor"


def decoded_as(work: pl.DataFrame, wanted: Callable[[KernelName], bool]) -> pl.Series:
    """Whether the decoded name of each operation of `work` (name) is `wanted`."""
    names = work.get_column("name")
    different = names.unique().drop_nulls()
    known = different.filter(pl.Series([wanted(decode(name)) for name in different.cast(pl.String)], dtype=pl.Boolean))
    return sure(names.is_in(known.implode())) if len(known) else pl.Series([False]).new_from_index(0, len(names))


def stream_lines(report: Report, devices: list[int]) -> pl.DataFrame:
    """The operations in scope of some devices, stream by stream, in order of their start."""
    columns = ("event_id", "row", "kind", "name", "start", "exclusive_ns", "device", "process_id", "stream")
    placed = exclusive_operations(report, "stream").select(columns).filter(pl.col("device").is_in(devices))
    for key in ("start", "stream", "process_id", "device"):  # most are in order, and all at once takes longer
        placed = in_order(placed, key)
    return placed


def _devices(report: Report) -> list[tuple[int, str | None, str | None]]:
    return report.devices.select("device", "name", "compute_capability").rows()


def _capability(text: str | None) -> tuple[int, int]:
    """The compute capability as numbers; (0, 0) for a text that is none."""
    major, dot, minor = (text or "").partition(".")
    return (int(major), int(minor)) if dot and major.isdecimal() and minor.isdecimal() else (0, 0)
