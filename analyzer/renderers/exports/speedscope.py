"""Writes slices as a file of speedscope: a profile for each track, in which calls open and close.

Format: https://www.speedscope.app/file-format-schema.json. Times are whole nanoseconds from the first slice on, since
programs in JavaScript know no larger whole numbers than 2**53.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.slices.slices import edges

if TYPE_CHECKING:
    from typing import BinaryIO

    from kanalyze.analyses.slices.slices import Slices, Track

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

#: Events that are written at one time.
_CHUNK: Final = 1 << 18


def write(trace: Slices, file: BinaryIO, name: str) -> None:
    """Writes a trace; `name` is what speedscope calls it."""
    names = trace.slices.get_column("name").cast(pl.String)
    frames = names.unique(maintain_order=True)
    numbers = names.replace_strict(
        frames, pl.int_range(len(frames), dtype=pl.UInt32, eager=True), return_dtype=pl.UInt32
    )
    first = trace.slices.get_column("start").min() if trace.slices.height else 0
    line = edges(trace.slices).with_columns(pl.col("t") - first)
    line = line.with_columns(frame=numbers.gather(line.get_column("slice")))
    shared = {"frames": [{"name": frame} for frame in frames]}
    head = {"$schema": _SCHEMA, "exporter": "kanalyze", "name": name, "activeProfileIndex": 0, "shared": shared}
    file.write(json.dumps(head).removesuffix("}").encode() + b', "profiles": [')
    busiest = line.group_by("track").len().sort("len", "track", descending=[True, False]).get_column("track")
    for number, (track,) in enumerate(busiest.to_frame().iter_rows()):
        file.write(b",\n" if number else b"\n")
        _write_profile(file, _title(trace, trace.tracks[track]), line.filter(pl.col("track") == track))
    file.write(b"\n]}\n")


def _title(trace: Slices, track: Track) -> str:
    """A track in words, with its device and process."""
    where = [] if track.device is None else [f"GPU {track.device}"]
    if track.process is not None:
        where.append(f"{trace.processes.get((track.rank, track.process), 'process')} {track.process}")
    if track.rank is not None:
        where.append(f"rank {track.rank}")
    return ", ".join([track.label, *where])


def _write_profile(file: BinaryIO, title: str, line: pl.DataFrame) -> None:
    low, high = line.item(0, "t"), line.get_column("t").max()
    head = {"type": "evented", "name": title, "unit": "nanoseconds", "startValue": low, "endValue": high}
    file.write(json.dumps(head).removesuffix("}").encode() + b', "events": [')
    kind = pl.when("begins").then(pl.lit("O")).otherwise(pl.lit("C"))
    text = pl.format('{{"type":"{}","frame":{},"at":{}}}', kind, "frame", "t")
    for at in range(0, line.height, _CHUNK):
        texts = line.slice(at, _CHUNK).select(text).to_series()
        file.write((b"," if at else b"") + ",".join(texts.to_list()).encode())
    file.write(b"]}")
