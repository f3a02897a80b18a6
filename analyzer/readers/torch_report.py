"""The report of a trace of torch.profiler: its tables, and what is known of the trace as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.readers.torch_machine import whole, without_echoes
from kanalyze.readers.torch_tables import TorchTables
from kanalyze.report import Meta, Report

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers.torch_frames import Frames


def report_of(path: Path, frames: Frames) -> Report:
    """The report that `frames` are, which were read from `path`."""
    return Report(_meta(path, frames), TorchTables(path, without_echoes(frames)))


def _meta(path: Path, frames: Frames) -> Meta:
    told = frames.properties
    schema, ranks = told.get("schemaVersion"), told.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    return Meta(
        path=path,
        tool="torch.profiler",
        schema_version=None if schema is None else str(schema),
        origin_unix_ns=whole(told.get("baseTimeNanoseconds")),
        duration_ns=_length_ns(frames),
        rank=whole(ranks.get("rank")),
        world_size=whole(ranks.get("world_size")),
    )


def _length_ns(frames: Frames) -> int | None:
    """How long the profiler recorded; where several did, the one that did for longest."""
    spans = frames.events.get("Span")
    lengths = None if spans is None else spans.get_column("dur_ns").drop_nulls()
    return int(lengths.max()) if lengths is not None and len(lengths) else None  # type: ignore[arg-type]
