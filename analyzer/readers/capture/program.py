"""Reads what the collector noted of the program itself: runs without a profiler, and the lines that threads were in.

How long each run without a profiler took, and when its recurring parts began, is in ``bare.json``, ``bare-2.json``… as
bare_run.py and nvtx_marks.c write them, and in the pass ``bare`` of the manifest. Lines are in
``lines-nsys.json.gz``, ``lines-torch-rank0.json.gz``… by the recording that they belong to, as source_lines.py of the
collector writes them.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from kanalyze.errors import DamagedReportError, KanalyzeError
from kanalyze.files.regular import open_regular, readable
from kanalyze.model import LOOP_PASSES, READER_TABLES, SOURCE_LINES
from kanalyze.readers.ncu.asked_launches import read_manifest
from kanalyze.report import BareRun, BareRuns

#: What another form of a file makes its readers raise.
MISSHAPEN: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)

#: So many occurrences of a name are kept at most; so much of a file is read, which no run fills.
KEPT: Final = 20_000
_LARGEST_MARKS_BYTES: Final = 1 << 27

#: The file of a run, and of a rank of it.
_FILE: Final = re.compile(r"bare(?:-(?P<number>\d+))?(?:-rank(?P<rank>\d+))?\.json")


def bare_runs(folder: Path) -> BareRuns:
    """The runs without a profiler in the capture in `folder`; none without such a pass.

    Of those whose file is damaged there are no marks, but the reason.
    """
    if not (programs_ns := _durations_ns(folder)):
        return BareRuns()
    try:
        return BareRuns(programs_ns, tuple(_marked(folder)))
    except KanalyzeError as error:
        return BareRuns(programs_ns, damage=error)


def _marked(folder: Path) -> Iterator[BareRun]:
    """The runs of which there are marks, in order."""
    with readable(folder):
        named = [(path, found) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name))]
    numbers = [(int(found["number"] or 1), int(found["rank"] or -1), path) for path, found in named]
    for number, rank, path in sorted(numbers):
        yield BareRun(number, None if rank < 0 else rank, _starts(path))


def _durations_ns(folder: Path) -> tuple[int, ...]:
    """How long each run of the program took, from start to end of the process, by the manifest."""
    try:
        passes = read_manifest(folder)["passes"]
        steps = [step for one in passes if one["name"] == "bare" for step in one["steps"] if step["exit_status"] == 0]
        return tuple(_time_ns(step["duration_ns"]) for step in steps)
    except (OSError, *MISSHAPEN):
        return ()


def _starts(path: Path) -> dict[str, list[int]]:
    """When occurrences began, by name; without names of which some may be left out."""
    with readable(path), open_regular(path) as file:
        text = file.read(_LARGEST_MARKS_BYTES)
    try:
        starts: dict[str, Any] = json.loads(text.decode(errors="replace"))["starts_ns"]
        return {name: sorted(map(_time_ns, times)) for name, times in starts.items() if len(times) < KEPT}
    except MISSHAPEN as error:
        raise DamagedReportError.at(path, "the marks of a run without a profiler", "of another form") from error


def _time_ns(value: object) -> int:
    """A time in ns.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError
    return value


#: The tables of a file of lines.
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
        *(*MISSHAPEN, IndexError, EOFError, OverflowError),
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
