"""The CUDA streams that an nsys export names: what kind each is, and its priority.

Source: the column comments of TARGET_INFO_CUDA_STREAM, whose `flag` is CUPTI's CUpti_ActivityStreamFlag, and of the
tables that name each context's null stream (TARGET_INFO_CUDA_CONTEXT_INFO, in older exports
TARGET_INFO_CUDA_NULL_STREAM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.model import STREAMS

if TYPE_CHECKING:
    from kanalyze.readers.table_file import TableFile

#: CUPTI calls a stream of cudaStreamDefault, which waits for the null stream, a "default stream".
_TYPES: Final = {1: "blocking", 2: "non-blocking", 3: "null"}

_KEYS: Final = ("processId", "contextId", "streamId")
_NULL_STREAMS: Final = {
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId",
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId",
}

#: A priority is signed, and stands in the file as an unsigned number of 32 bits.
_SIGN: Final = 1 << 31


def streams(database: TableFile) -> pl.DataFrame:
    """The streams of one export, as :data:`kanalyze.model.STREAMS`, by process, context and number."""
    whole = dict.fromkeys((*_KEYS, "priority", "flag"), pl.Int64)
    made = database.frame("TARGET_INFO_CUDA_STREAM", whole).select(
        *_KEYS,
        pl.col("flag").replace_strict(_TYPES, default=None, return_dtype=pl.String).alias("type"),
        ((pl.col("priority") + _SIGN) % (2 * _SIGN) - _SIGN).alias("priority"),
    )
    null = [
        database.frame(table, dict.fromkeys(("processId", "contextId", column), pl.Int64)).select(
            "processId", "contextId", pl.col(column).alias("streamId"), pl.lit("null").alias("type")
        )
        for table, column in _NULL_STREAMS.items()
    ]
    known = pl.concat([*null, made], how="diagonal").drop_nulls(_KEYS)
    merged = known.group_by(_KEYS).agg(pl.col("type", "priority").drop_nulls().first())
    names = database.frame("TARGET_INFO_NVTX_CUDA_STREAM", {**dict.fromkeys(_KEYS, pl.Int64), "name": pl.String})
    named = merged.join(names.unique(_KEYS, keep="last", maintain_order=True), on=_KEYS, how="left")
    return STREAMS.select(
        named.select(
            "type", "priority", "name", process_id="processId", context_id="contextId", stream="streamId"
        ).sort("process_id", "context_id", "stream")
    )
