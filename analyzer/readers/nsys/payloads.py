"""Payloads of NCCL's own NVTX ranges: communicator, message size, peer and root of each call.

A payload has a header of 32 bytes (number of payloads, schema, size, offset; each 8 bytes), then the fields at the
offsets that NVTX_PAYLOAD_SCHEMA_ENTRIES gives. The export has them with ``--include-blobs=true``; else they are null.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kanalyze.model import COMMUNICATOR_CALLS

if TYPE_CHECKING:
    from kanalyze.readers.storage import TableFile

#: Entries of schemas by name: the column, and how the value is packed.
_FIELDS: Final = {
    "NCCL communicator ID": ("communicator", "<Q"),
    "Message size [bytes]": ("message_bytes", "<Q"),
    "Peer rank": ("peer_rank", "<i"),
    "Root": ("root_rank", "<i"),
    "No. of ranks": ("size", "<i"),
    "Rank": ("rank", "<i"),
}

_HEADER: Final = struct.Struct("<4Q")
_LARGEST: Final = (1 << 63) - 1


class _Field(NamedTuple):
    """A field of a payload: column, format, offset."""

    column: str
    packed: str
    offset: int


def communicator_calls(database: TableFile, first_id: int, undecoded: dict[str, int]) -> pl.DataFrame:
    """The calls of NCCL with a payload: :data:`kanalyze.model.COMMUNICATOR_CALLS`.

    Args:
        database: The export.
        first_id: The event id of the first row of NVTX_EVENTS.
        undecoded: Takes how many payloads cannot be decoded.
    """
    schemas = _schemas(database)
    if not schemas or "binaryData" not in database.columns("NVTX_EVENTS"):
        return COMMUNICATOR_CALLS.empty()
    blobs = database.frame("NVTX_EVENTS", {"binaryData": pl.Object}).get_column("binaryData").to_list()
    made = [{} if blob is None else _fields(blob, schemas) for blob in blobs]
    rows = [{"event_id": first_id + at, **found} for at, found in enumerate(made) if found]
    undecoded["payloads of ranges that cannot be decoded"] = made.count(None)
    return pl.DataFrame(rows, schema=COMMUNICATOR_CALLS.schema)


def _schemas(database: TableFile) -> dict[int, list[_Field]]:
    """The fields of each schema that has a communicator."""
    wanted = {"schemaId": pl.Int64, "type": pl.Int64, "name": pl.String, "offset": pl.Int64}
    found: dict[int, dict[str, _Field]] = {}
    for schema, _, name, offset in database.frame("NVTX_PAYLOAD_SCHEMA_ENTRIES", wanted).iter_rows():
        if schema is not None and name in _FIELDS:
            column, packed = _FIELDS[name]
            found.setdefault(schema, {})[column] = _Field(column, packed, offset or 0)
    return {schema: [*fields.values()] for schema, fields in found.items() if "communicator" in fields}


def _fields(blob: object, schemas: dict[int, list[_Field]]) -> dict[str, Any] | None:
    """The fields of a payload; none where it is none of NCCL's, None where it is shorter than its schema says."""
    data = blob.encode() if isinstance(blob, str) else blob
    if not isinstance(data, bytes) or len(data) < _HEADER.size:
        return None
    number, schema, size, begin = _HEADER.unpack_from(data)
    if number == 0 or begin + size > len(data):
        return None
    told: dict[str, Any] = {}
    for one in schemas.get(schema, ()):
        if one.offset < 0 or one.offset + struct.calcsize(one.packed) > size:
            return None
        value = struct.unpack_from(one.packed, data, begin + one.offset)[0]
        told[one.column] = f"{value:016x}" if one.column == "communicator" else value if value <= _LARGEST else None
    return told
