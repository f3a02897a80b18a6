"""Reads the lines that a program's threads were in, as the collector noted them beside a recording of a capture.

Files: ``lines-nsys.json.gz``, ``lines-torch-rank0.json.gz``… by the recording that they belong to, as source_lines.py
of the collector writes them.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.errors import DamagedReportError
from kanalyze.files.regular import open_regular, readable
from kanalyze.model import LOOP_PASSES, READER_TABLES, SOURCE_LINES

if TYPE_CHECKING:
    from pathlib import Path

#: The tables of such a file.
LINES: Final = (SOURCE_LINES.name, LOOP_PASSES.name)

#: So much of an unpacked file is read, which no program fills.
_LARGEST_BYTES: Final = 1 << 28

#: No clock is later, in ns.
_LATEST_NS: Final = 1 << 61

#: What of a recording's name is not in that of its lines.
_ENDINGS: Final = re.compile(r"(-cycle\d+)?\.(json(\.gz)?|sqlite)$")


def lines_file(recording: Path) -> Path:
    """The file of the lines of a recording in a capture."""
    return recording.with_name(f"lines-{_ENDINGS.sub('', recording.name)}.json.gz")


def lines_tables(recording: Path, origin_unix_ns: int | None) -> dict[str, pl.DataFrame]:
    """The tables of the lines and loops of a recording, whose time 0 is at `origin_unix_ns`; empty without any.

    Raises:
        DamagedReportError: The file is not what the collector writes.
        UnreadableReportError: It cannot be read.
    """
    path = lines_file(recording)
    if origin_unix_ns is None or not path.exists():
        return {name: READER_TABLES[name].empty() for name in LINES}
    with readable(path), open_regular(path) as file:
        packed = file.read()
    try:
        content = json.loads(gzip.GzipFile(fileobj=io.BytesIO(packed)).read(_LARGEST_BYTES))
        return _tables(content, origin_unix_ns)
    except (
        *(ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, EOFError, OverflowError),
        *(gzip.BadGzipFile, zlib.error, pl.exceptions.PolarsError),
    ) as error:
        raise DamagedReportError.at(path, "the lines of the program", "not what the collector writes") from error


def _tables(content: dict[str, Any], origin_unix_ns: int) -> dict[str, pl.DataFrame]:
    names = pl.DataFrame(content["places"], schema=["file", "line", "function", "text"], orient="row")
    files = pl.Series("file", content["files"], dtype=pl.String)
    places = names.select(
        place=pl.int_range(pl.len(), dtype=pl.Int64),
        file=files.gather(names.get_column("file")) if len(files) else pl.lit("", dtype=pl.String),
        line=pl.col("line").cast(pl.Int64),
        function="function",
        text="text",
    ).with_columns(pl.col("file", "function", "text").cast(pl.Categorical))
    last = content["clocks"][1][0] - origin_unix_ns
    length = pl.col("time_ns").shift(-1).fill_null(last).over("thread_id") - pl.col("time_ns")
    rows = _times(content, "lines", origin_unix_ns).with_columns(start_ns="time_ns", dur_ns=length.clip(lower_bound=0))
    rows = rows.filter(pl.col("dur_ns") > 0).join(places, on="place", maintain_order="left")
    passes = _times(content, "loops", origin_unix_ns).join(places, on="place", maintain_order="left")
    return {
        table.name: table.check(table.select(told)) for table, told in ((SOURCE_LINES, rows), (LOOP_PASSES, passes))
    }


def _times(content: dict[str, Any], part: str, origin_unix_ns: int) -> pl.DataFrame:
    """When threads came to places, on the clock of the recording: process_id, thread_id, time_ns, place."""
    (began_unix_ns, began_ns), (ended_unix_ns, ended_ns) = content["clocks"]
    if not (0 <= began_ns <= ended_ns < _LATEST_NS and 0 <= began_unix_ns <= ended_unix_ns < _LATEST_NS):
        raise ValueError
    drift = ((ended_unix_ns - ended_ns) - (began_unix_ns - began_ns)) / max(ended_ns - began_ns, 1)
    found = [pl.DataFrame(schema=dict.fromkeys(("process_id", "thread_id", "time_ns", "place"), pl.Int64))]
    for thread in content["threads"]:
        times = pl.Series("time_ns", thread[part]["times"], dtype=pl.Int64).cum_sum()
        if not times.is_between(0, _LATEST_NS).all() or not times.is_sorted():
            raise ValueError
        drifted = ((times - began_ns) * drift).cast(pl.Int64)
        moved = times + (began_unix_ns - began_ns - origin_unix_ns) + drifted
        own = pl.DataFrame([moved, pl.Series("place", thread[part]["places"], dtype=pl.Int64)])
        keys = {"process_id": content["process"], "thread_id": thread["id"]}
        numbers = (pl.lit(value, dtype=pl.Int64).alias(name) for name, value in keys.items())
        found.append(own.select(*numbers, "time_ns", "place"))
    return pl.concat(found).sort("thread_id", "time_ns", maintain_order=True)  # two may have one number
