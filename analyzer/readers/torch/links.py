"""Links between events of a trace: call to operator, Python callee to caller, backward to forward operator.

Everything here is expressed in event ids: those of a frame are consecutive, beginning with its first row's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.columns.lookup import positions, telling
from kanalyze.model import EVENT_RECORDS
from kanalyze.readers.torch.frames import FRAME_KINDS, ON_DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kanalyze.readers.torch.frames import Frames

#: Columns that place an event's start on the host.
_PLACE: Final = ("pid", "tid", "start_ns")


@dataclass(frozen=True)
class Links:
    """Links between the events of `frames`; `owners` maps device events to processes."""

    frames: Frames
    owners: Owners

    @cached_property
    def first_ids(self) -> dict[str, int]:
        """The event id of the first row of each frame."""
        first, ids = 0, {}
        for name in FRAME_KINDS:
            ids[name] = first
            first += self.frames.frame(name).height
        return ids

    def ids(self, name: str) -> pl.Expr:
        """The event ids of a frame's rows, as an expression."""
        first = self.first_ids[name]
        return pl.int_range(first, first + pl.len(), dtype=pl.Int64)

    def parents(self, name: str) -> pl.Series:
        """The parent of each event in a frame: the operator or range by External id, the Python caller by Python id."""
        frame = self.frames.frame(name)
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
        """The operator or range that issued each call or device event.

        From torch 1.11 to 2.2 (2.5 where there was no operator) `External id` is the event's own correlation id, which
        says nothing. Later versions leave it out where there was no operator; there the two are the same by chance,
        but for synchronisations, of which it still is the event's own.
        """
        told = pl.col("external_id") != pl.col("correlation").fill_null(-1)
        told = told | pl.lit(name != "Sync" and self._external_ids_may_lack)
        pid = self.owners.processes(frame) if name in ON_DEVICE else frame.get_column("pid")
        keys = frame.select(pl.when(told).then("external_id").alias("external_id"), pid.alias("pid"))
        known = self._by_external_id
        alone = pl.col("pid").eq_missing(pid.first()).all()  # one process, as in most traces: no join by two keys
        if known.height and pid.first() is not None and keys.select(alone).item() and known.select(alone).item():
            rows = positions(known.get_column("external_id"), keys.get_column("external_id"))
            return known.get_column("event_id").gather(rows)
        known = known.unique(["external_id", "pid"], keep="first")
        found = keys.join(known, on=["external_id", "pid"], how="left", maintain_order="left")
        return found.get_column("event_id")

    @cached_property
    def _external_ids_may_lack(self) -> bool:
        """Whether any call or device event has no `External id`, as if issued outside of an operator."""
        frames = map(self.frames.frame, ("Call", "Kernel", "Copy", "Memset"))
        return any(frame.get_column("external_id").has_nulls() for frame in frames)

    @cached_property
    def _by_external_id(self) -> pl.DataFrame:
        """Operators and ranges by External id and process, without id 0; of repeated ids the first."""
        parts = (
            self.frames.frame(name).select("external_id", "pid", event_id=self.ids(name))
            for name in ("Op", "Annotation")
        )
        return pl.concat(parts).filter(pl.col("external_id") != 0)

    def _launching(self, kernels: pl.DataFrame) -> pl.Series:
        """The operator of each kernel in traces of the first profilers, which link operators to kernels by flows.

        Such a kernel has the operator's name, and stands for all device work of the operator.
        """
        links = self.frames.events["Launch"]
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", "tid", "start_ns") for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_op").drop("id")
        ops = self.frames.frame("Op").select("name", tid_op="tid", start_ns_op="start_ns", event_id=self.ids("Op"))
        at = ["tid_op", "start_ns_op"]
        ops = telling(ops.unique([*at, "name"], keep="last", maintain_order=True), at)
        known = linked.join(ops, on=at).unique(["tid", "start_ns", "name"], keep="last")
        keys = ["tid", "start_ns", "name"]
        found = kernels.select(keys).join(known.select(*keys, "event_id"), on=keys, how="left", maintain_order="left")
        return found.get_column("event_id")

    def forwards(self) -> pl.Series:
        """The forward operator of each operator, by flow events; null if none."""
        op, links = self.frames.frame("Op"), self.frames.frame("Link")
        if links.is_empty():
            return _nothing(op)
        # of the operators that start together on a thread, the innermost one (recorded last) has the flow
        linked_at = pl.col("start_ns").is_in(links.get_column("start_ns").unique().implode())
        at = op.select(*_PLACE, event_id=self.ids("Op")).filter(linked_at).unique(_PLACE, keep="last")
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", *_PLACE) for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_forward")
        before = [f"{name}_forward" for name in _PLACE]
        known = linked.join(at, left_on=before, right_on=_PLACE).select(*_PLACE, forward_id="event_id")
        known = known.unique(_PLACE, keep="first").join(at, on=_PLACE).select("event_id", "forward_id")
        rows = known.get_column("event_id") - self.first_ids["Op"]
        return _nothing(op).alias("forward_id").scatter(rows, known.get_column("forward_id"))


def _nothing(frame: pl.DataFrame) -> pl.Series:
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, frame.height)


# Assigns device events of a trace to processes.
#
# A device event names the device where a host event names the process. In a trace of one process that is no question;
# in several that were merged, a device event belongs to the process of the call with its correlation id. Processes
# number their calls alike, so that most ids are those of several; then what the other events of the same device and
# context belong to tells.

#: Key of a group of device events that belong to one process.
_GROUP: Final = ("pid", "device", "context")


@dataclass(frozen=True)
class Owners:
    """Maps device events to processes.

    Attributes:
        main: The default process.
        calls: The calls: correlation, process, called (their start); none where there is only one process.
        groups: The process of most events of a device and context: pid, device, context, process.
    """

    main: int | None
    calls: pl.DataFrame | None = None
    groups: pl.DataFrame | None = None

    @classmethod
    def of(cls, main: int | None, calls: pl.DataFrame, work: Iterable[pl.DataFrame]) -> Owners:
        """Infers the owners from the device events in `work`, joined to `calls` by correlation id."""
        if calls.is_empty() or calls.get_column("pid").n_unique() == 1:
            return cls(main)
        known = calls.select("correlation", process="pid", called="start_ns").drop_nulls()
        known = known.filter(pl.col("correlation") > 0)
        first = telling(known.group_by("correlation", "process").agg(pl.col("called").min()), ["correlation"])
        pairs = [frame.select(*_GROUP, "correlation", "start_ns").join(first, on="correlation") for frame in work]
        before = (pl.col("start_ns") < pl.col("called")).sum()
        votes = pl.concat(pairs).group_by(*_GROUP, "process").agg(joined=pl.len(), before=before)
        return cls(main, known, _elected(votes))

    def processes(self, frame: pl.DataFrame) -> pl.Series:
        """The process of each device event in a frame."""
        if self.calls is None or self.groups is None or "correlation" not in frame.columns:
            return pl.Series([self.main], dtype=pl.Int64).new_from_index(0, frame.height)
        keys = frame.select(*_GROUP, "correlation")
        own = self.calls.select("correlation", "process").unique()
        usual = keys.join(self.groups, on=_GROUP, how="left", nulls_equal=True, maintain_order="left")
        single = own.unique("correlation", keep="none").select("correlation", single="process")
        usual = usual.join(single, on="correlation", how="left", maintain_order="left")
        return usual.select(pl.coalesce("single", "process", pl.lit(self.main, dtype=pl.Int64))).to_series()


def _elected(votes: pl.DataFrame) -> pl.DataFrame:
    """Elects the process of each group: the one with most of its events, none of them before its call.

    Where several did, it is one that no other group belongs to; and the first group belongs to the first process, as
    ranks are started. `votes` has for each group and process how many events they share, and how many of these began
    before their calls.
    """
    most = (pl.col("joined") == pl.col("joined").max()).over(_GROUP)
    least = (pl.col("before") == pl.col("before").min()).over(_GROUP)
    line = votes.filter(most).filter(least).sort(*_GROUP, "process")
    able: dict[tuple[int | None, ...], list[int]] = {}
    for *group, process in line.select(*_GROUP, "process").iter_rows():
        able.setdefault(tuple(group), []).append(process)
    found: dict[tuple[int | None, ...], int] = {}
    while able:
        taken = set(found.values())
        free = {group: [one for one in some if one not in taken] or some for group, some in able.items()}
        surest = min(free, key=lambda group: len(free[group]))
        found[surest] = free[surest][0]
        del able[surest]
    rows = [(*group, process) for group, process in found.items()]
    return pl.DataFrame(rows, schema={**dict.fromkeys(_GROUP, pl.Int64), "process": pl.Int64}, orient="row")


# Synchronisations in a trace: their names, and the recorded CUDA event that they waited for.
#
# Kineto names the recording that a wait waits for by the correlation id of the call that made it, and the stream that
# it was recorded into; both in the context of the wait itself (libkineto/src/CuptiActivityProfiler.cpp). -1 is none.

#: Kineto's names of synchronisations, mapped to nsys' names.
SYNC_NAMES: Final = {
    "Event Sync": "Event sync",
    "Stream Wait Event": "Stream wait sync",
    "Stream Sync": "Stream sync",
    "Context Sync": "Context sync",
    "Unknown Sync": "Unknown",
}

#: CUPTI's invalid id, which some versions write as -1.
_NO_ID: Final = 0xFFFFFFFF


def known_id(ids: pl.Expr) -> pl.Expr:
    """Ids with invalid ones replaced by null."""
    return pl.when(ids.is_between(0, _NO_ID, closed="left")).then(ids)


def sync_detail(syncs: pl.DataFrame, ids: pl.Expr) -> pl.DataFrame:
    """Stream or event that each of `syncs` waited for: :data:`kanalyze.model.SYNC_DETAIL`; `ids` are event ids."""
    event = known_id(pl.col("cuda_event_id"))
    return syncs.select(event_id=ids, cuda_event_id=event, record_id=_recording())


def event_records(syncs: pl.DataFrame, records: pl.DataFrame, owners: Owners) -> pl.DataFrame:
    """Recorded CUDA events, as :data:`kanalyze.model.EVENT_RECORDS`.

    They are `records` where the trace has them (Kineto since November 2025), and those that `syncs` waited for. A
    recording is numbered by the call that made it.
    """
    recorded = records.with_columns(
        process_id=owners.processes(records),
        context_id="context",
        stream=known_id(pl.col("stream")),
        correlation_id="correlation",
        record_id="correlation",
    )
    awaited = syncs.with_columns(process_id=owners.processes(syncs), record_id=_recording()).drop_nulls("record_id")
    awaited = awaited.with_columns(
        context_id="context",
        stream=known_id(pl.col("record_stream")),
        correlation_id="record_id",
        cuda_event_id=known_id(pl.col("cuda_event_id")),
    )
    return pl.concat(map(EVENT_RECORDS.select, (recorded, awaited))).unique(
        ["process_id", "record_id"], keep="first", maintain_order=True
    )


def _recording() -> pl.Expr:
    """The recorded CUDA event each synchronisation waited for, provided that it was recorded before."""
    record = pl.col("record_correlation")
    return pl.when((record > 0) & (record < pl.col("correlation"))).then(record)
