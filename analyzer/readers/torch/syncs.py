"""Synchronisations in a trace: their names, and the recorded CUDA event that they waited for.

Kineto names the recording that a wait waits for by the correlation id of the call that made it, and the stream that it
was recorded into; both in the context of the wait itself (libkineto/src/CuptiActivityProfiler.cpp). -1 is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.model import EVENT_RECORDS, SYNC_DETAIL

if TYPE_CHECKING:
    from kanalyze.readers.torch.links import Owners

#: Kineto's names of synchronisations, mapped to nsys' names.
_NAMES: Final = {
    "Event Sync": "Event sync",
    "Stream Wait Event": "Stream wait sync",
    "Stream Sync": "Stream sync",
    "Context Sync": "Context sync",
    "Unknown Sync": "Unknown",
}

#: CUPTI's invalid id, which some versions write as -1.
_NO_ID: Final = 0xFFFFFFFF


def sync_name() -> pl.Expr:
    """The name of a synchronisation as nsys gives it."""
    return pl.col("name").cast(pl.String).replace(_NAMES)


def known_id(ids: pl.Expr) -> pl.Expr:
    """Ids with invalid ones replaced by null."""
    return pl.when(ids.is_between(0, _NO_ID, closed="left")).then(ids)


def sync_detail(syncs: pl.DataFrame, ids: pl.Expr) -> pl.DataFrame:
    """Stream or event that each of `syncs` waited for: :data:`kanalyze.model.SYNC_DETAIL`; `ids` are event ids."""
    event = known_id(pl.col("cuda_event_id"))
    return SYNC_DETAIL.select(syncs.select(event_id=ids, cuda_event_id=event, record_id=_recording()))


def event_records(syncs: pl.DataFrame, records: pl.DataFrame, owners: Owners) -> pl.DataFrame:
    """Recorded CUDA events, as :data:`kanalyze.model.EVENT_RECORDS`.

    They are `records` where the trace has them (Kineto since November 2025), and those that `syncs` waited for. A
    recording is numbered by the call that made it.
    """
    found = [EVENT_RECORDS.empty()]
    if records.height:
        made = records.with_columns(
            process_id=owners.processes(records),
            context_id="context",
            stream=known_id(pl.col("stream")),
            correlation_id="correlation",
            record_id="correlation",
        )
        found.append(EVENT_RECORDS.select(made))
    if syncs.height:
        made = syncs.with_columns(process_id=owners.processes(syncs), record_id=_recording()).drop_nulls("record_id")
        made = made.with_columns(
            context_id="context",
            stream=known_id(pl.col("record_stream")),
            correlation_id="record_id",
            cuda_event_id=known_id(pl.col("cuda_event_id")),
        )
        found.append(EVENT_RECORDS.select(made))
    return pl.concat(found).unique(["process_id", "record_id"], keep="first", maintain_order=True)


def _recording() -> pl.Expr:
    """The recorded CUDA event each synchronisation waited for, provided that it was recorded before."""
    record = pl.col("record_correlation")
    return pl.when((record > 0) & (record < pl.col("correlation"))).then(record)
