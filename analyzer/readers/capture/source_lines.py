"""Reads the lines that a program's threads were in, as the collector noted them beside a recording of a capture.

Files: ``lines-nsys.json.gz``, ``lines-torch-rank0.json.gz``… by the recording that they belong to, as source_lines.py
of the collector writes them.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.errors import DamagedReportError
from kanalyze.files.regular import open_regular, readable
from kanalyze.model import SOURCE_LINES

if TYPE_CHECKING:
    from pathlib import Path

#: So much of an unpacked file is read, which no program fills.
_LARGEST_BYTES: Final = 1 << 28

#: What of a recording's name is not in that of its lines.
_ENDINGS: Final = re.compile(r"(-cycle\d+)?\.(json(\.gz)?|sqlite)$")


def lines_file(recording: Path) -> Path:
    """The file of the lines of a recording in a capture."""
    return recording.with_name(f"lines-{_ENDINGS.sub('', recording.name)}.json.gz")


def source_lines(recording: Path, origin_unix_ns: int | None) -> pl.DataFrame:
    """The table of the lines of a recording, whose time 0 is at `origin_unix_ns`; empty without any.

    Raises:
        DamagedReportError: The file is not what the collector writes.
        UnreadableReportError: It cannot be read.
    """
    path = lines_file(recording)
    if origin_unix_ns is None or not path.exists():
        return SOURCE_LINES.empty()
    try:
        with readable(path), open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as file:
            content = json.loads(file.read(_LARGEST_BYTES))
        return SOURCE_LINES.check(_rows(content, origin_unix_ns))
    except (
        *(ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, EOFError, OverflowError),
        *(gzip.BadGzipFile, zlib.error, pl.exceptions.PolarsError),
    ) as error:
        raise DamagedReportError.at(path, "the lines of the program", "not what the collector writes") from error


def _rows(content: dict[str, Any], origin_unix_ns: int) -> pl.DataFrame:
    """The rows of a file: each thread's times on the clock of the recording, until its next line or the end."""
    (began_unix_ns, began_ns), (ended_unix_ns, ended_ns) = content["clocks"]
    drift_ns = (ended_unix_ns - ended_ns) - (began_unix_ns - began_ns)
    length_ns = max(ended_ns - began_ns, 1)
    names = pl.DataFrame(content["places"], schema=["file", "line", "function", "text"], orient="row")
    files = pl.Series("file", content["files"], dtype=pl.String)
    places = names.select(
        place=pl.int_range(pl.len(), dtype=pl.Int64),
        file=files.gather(names.get_column("file")) if len(files) else pl.lit("", dtype=pl.String),
        line=pl.col("line").cast(pl.Int64),
        function="function",
        text="text",
    )
    times = dict.fromkeys(("process_id", "thread_id", "start_ns", "dur_ns", "place"), pl.Int64)
    parts = [pl.DataFrame(schema=times)]
    for thread in content["threads"]:
        times = pl.Series("time", thread["times"], dtype=pl.Int64).cum_sum()
        since = times - began_ns
        starts = times + (began_unix_ns - began_ns - origin_unix_ns) + since * drift_ns // length_ns
        last = ended_unix_ns - origin_unix_ns
        parts.append(
            pl.DataFrame([starts.alias("start_ns"), pl.Series("place", thread["places"], dtype=pl.Int64)]).select(
                process_id=pl.lit(content["process"], dtype=pl.Int64),
                thread_id=pl.lit(thread["id"], dtype=pl.Int64),
                start_ns="start_ns",
                dur_ns=(pl.col("start_ns").shift(-1, fill_value=last) - pl.col("start_ns")).clip(lower_bound=0),
                place="place",
            )
        )
    rows = pl.concat(parts).filter(pl.col("dur_ns") > 0).join(places, on="place", maintain_order="left")
    return SOURCE_LINES.select(rows.with_columns(pl.col("file", "function", "text").cast(pl.Categorical)))
