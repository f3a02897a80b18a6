"""Splits records of ncu's raw page: one row per launch, about 2,200 columns, one per metric.

Building a frame of that many columns takes far longer than reading them. ncu quotes every field; where no field
contains a quotation mark, a record is split at ``","``, and its metrics stay a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Columns that identify a launch.
KEYS: Final = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size")

#: Launch columns that precede the metrics.
OF_LAUNCH: Final = (
    *KEYS,
    *("Process Name", "Host Name", "Kernel Time", "Context", "Stream", "Device", "CC", "Demangled Name"),
    *("thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",),
)


@dataclass(frozen=True)
class Cells:
    """The metrics of a raw page: names, and per record (the first holds units) one text per name."""

    names: Sequence[str]
    records: Sequence[Sequence[str | None]]


def split(records: bytes) -> tuple[pl.DataFrame, Cells] | None:
    """Splits records into launch columns and metrics, without a CSV parser.

    None if a record has another number of fields than the header, or a field is unquoted or contains a quotation mark.
    """
    lines = records.decode(errors="replace").removesuffix("\n").split("\n")
    fields = [line[1:-1].split('","') for line in lines]
    head = fields[0]
    if len(set(head)) != len(head) or not all(head):
        return None
    # a record of these has two quotation marks per field at least, and just two where none is within a field
    regular = all(
        len(line) > 1 and line[0] == line[-1] == '"' and len(row) == len(head)
        for line, row in zip(lines, fields, strict=True)
    )
    if not regular or records.count(b'"') != 2 * len(head) * len(lines):
        return None
    first = next((place for place, name in enumerate(head) if name not in OF_LAUNCH), len(head))
    if any(name in OF_LAUNCH for name in head[first:]):
        return None
    of_launch = pl.DataFrame(
        [row[:first] for row in fields[1:]], schema=dict.fromkeys(head[:first], pl.String), orient="row"
    )
    return of_launch, Cells(head[first:], [row[first:] for row in fields[1:]])


def of_frame(rows: pl.DataFrame) -> tuple[pl.DataFrame, Cells]:
    """Splits a raw page that was parsed as a frame, as :func:`split` does."""
    of_launch = [name for name in rows.columns if name in OF_LAUNCH]
    names = [name for name in rows.columns if name not in OF_LAUNCH]
    return rows.select(of_launch), Cells(names, rows.select(names).rows())
