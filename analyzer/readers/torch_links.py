"""What made what in a trace: a call's operator, a Python function's caller, a backward operator's forward one.

Everything here is told by event ids: the first of each frame, and so on row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.frames import constant, first_rows, telling
from kanalyze.readers.torch_kinds import FRAME_KINDS, ON_DEVICE

if TYPE_CHECKING:
    from kanalyze.readers.torch_frames import Frames
    from kanalyze.readers.torch_owners import Owners

#: Where an event begins on the host.
_PLACE: Final = ("pid", "tid", "start_ns")


@dataclass(frozen=True)
class Links:
    """The links between the events of `frames`; device events belong to the processes that `owners` tells."""

    frames: Frames
    owners: Owners

    @cached_property
    def first_ids(self) -> dict[str, int]:
        """The event id of the first row of each frame."""
        first, ids = 0, {}
        for name in FRAME_KINDS:
            ids[name] = first
            first += self._frame(name).height
        return ids

    def ids(self, name: str) -> pl.Expr:
        """The event ids of a frame's rows."""
        first = self.first_ids[name]
        return pl.int_range(first, first + pl.len(), dtype=pl.Int64)

    def parents(self, name: str) -> pl.Series:
        """The event that each of a frame is part of: by External id the operator or range, by Python id the caller."""
        frame = self._frame(name)
        if name == "Python":
            return self._callers(frame)
        if name == "Kernel" and "Launch" in self.frames.events:
            return self._launching(frame)
        if name in {"Op", "Annotation"} or "external_id" not in frame.columns:
            return _nothing(frame)
        return self._makers(name, frame)

    def _callers(self, frame: pl.DataFrame) -> pl.Series:
        known = frame.select(caller="python_id", pid="pid", parent=self.ids("Python")).drop_nulls()
        known = known.unique(["caller", "pid"], keep="first")
        keys = frame.select("caller", "pid")
        return keys.join(known, on=["caller", "pid"], how="left", maintain_order="left").get_column("parent")

    def _makers(self, name: str, frame: pl.DataFrame) -> pl.Series:
        """The operator or range that made each call or device event.

        From torch 1.11 to 2.2 (2.5 where there was no operator) `External id` is the event's own correlation id, which
        says nothing. Later versions leave it out where there was no operator; there the two are the same by chance,
        but for synchronisations, of which it still is the event's own.
        """
        told = pl.col("external_id") != pl.col("correlation").fill_null(-1)
        told = told | pl.lit(name != "Sync" and self._external_ids_may_lack)
        pid = self.owners.processes(frame) if name in ON_DEVICE else frame.get_column("pid")
        keys = frame.select(pl.when(told).then("external_id").alias("external_id"), pid.alias("pid"))
        known = self._by_external_id
        if constant(known, "pid") and constant(keys, "pid") and known.item(0, "pid") == keys.item(0, "pid"):
            rows = first_rows(known.get_column("external_id"), keys.get_column("external_id"))
            return known.get_column("event_id").gather(rows)
        known = known.unique(["external_id", "pid"], keep="first")
        found = keys.join(known, on=["external_id", "pid"], how="left", maintain_order="left")
        return found.get_column("event_id")

    @cached_property
    def _external_ids_may_lack(self) -> bool:
        """Whether any call or device event has no `External id`, as where it was made in no operator."""
        frames = (self._frame(name) for name in ("Call", "Kernel", "Copy", "Memset"))
        return any(frame.get_column("external_id").has_nulls() for frame in frames if frame.height)

    @cached_property
    def _by_external_id(self) -> pl.DataFrame:
        """The operators and ranges with External id and process; 0 is nobody's, and of equal ones the first counts."""
        parts = [pl.DataFrame(schema={"external_id": pl.Int64, "pid": pl.Int64, "event_id": pl.Int64})]
        for name in ("Op", "Annotation"):
            frame = self._frame(name)
            if frame.height:
                parts.append(frame.select("external_id", "pid", event_id=self.ids(name)))
        return pl.concat(parts).filter(pl.col("external_id") != 0)

    def _launching(self, kernels: pl.DataFrame) -> pl.Series:
        """The operator of each kernel in traces of the first profilers, which link a kernel to the operator's start.

        The kernel bears the operator's name there, and stands for all that the operator ran on the device.
        """
        links = self.frames.events["Launch"]
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", "tid", "start_ns") for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_op").drop("id")
        ops = self._frame("Op").select("name", tid_op="tid", start_ns_op="start_ns", event_id=self.ids("Op"))
        at = ["tid_op", "start_ns_op"]
        ops = telling(ops.unique([*at, "name"], keep="last", maintain_order=True), at)
        known = linked.join(ops, on=at).unique(["tid", "start_ns", "name"], keep="last")
        keys = ["tid", "start_ns", "name"]
        found = kernels.select(keys).join(known.select(*keys, "event_id"), on=keys, how="left", maintain_order="left")
        return found.get_column("event_id")

    def forwards(self) -> pl.Series:
        """For each operator the one that the trace links it to as its forward operator; null for none."""
        op, links = self._frame("Op"), self._frame("Link")
        if links.is_empty():
            return _nothing(op)
        # of the operators that start together on a thread the innermost one, which is recorded last, has the link
        linked_at = pl.col("start_ns").is_in(links.get_column("start_ns").unique().implode())
        at = op.select(*_PLACE, event_id=self.ids("Op")).filter(linked_at).unique(_PLACE, keep="last")
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", *_PLACE) for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_forward")
        before = [f"{name}_forward" for name in _PLACE]
        known = linked.join(at, left_on=before, right_on=_PLACE).select(*_PLACE, forward_id="event_id")
        known = known.unique(_PLACE, keep="first").join(at, on=_PLACE).select("event_id", "forward_id")
        rows = known.get_column("event_id") - self.first_ids["Op"]
        return _nothing(op).alias("forward_id").scatter(rows, known.get_column("forward_id"))

    def _frame(self, name: str) -> pl.DataFrame:
        return self.frames.events.get(name, pl.DataFrame())


def _nothing(frame: pl.DataFrame) -> pl.Series:
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, frame.height)
