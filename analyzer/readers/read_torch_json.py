"""Reads a Chrome trace of torch.profiler, compressed or not: ``trace.json``, ``trace.json.gz``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.readers.torch_cache import TraceCache
from kanalyze.readers.torch_frames import frames_of
from kanalyze.readers.torch_tables import TorchTables
from kanalyze.readers.trace_pool import decoded
from kanalyze.readers.trace_text import open_text
from kanalyze.report import Meta, Report

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.readers.torch_frames import Frames

_GZIP: Final = b"\x1f\x8b"
_MARK: Final = b"\xef\xbb\xbf"


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is JSON, or compressed (of what, :func:`open_report` finds out)."""
    del path
    return head.startswith(_GZIP) or head.removeprefix(_MARK).lstrip()[:1] in {b"{", b"["}


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report in the trace at `path`.

    Raises:
        UnknownFormatError: It is JSON, but no trace.
    """
    kept = TraceCache(path)
    frames = kept.load() if cache else None
    if frames is None:
        text = open_text(path)
        frames = frames_of(decoded(text, progress))
        frames.properties, frames.damage = text.around.properties, text.around.damage
        if cache:
            kept.keep(frames)
    return Report(_meta(path, frames), TorchTables(path, frames))


def _meta(path: Path, frames: Frames) -> Meta:
    told = frames.properties
    origin, schema = told.get("baseTimeNanoseconds"), told.get("schemaVersion")
    spans = frames.events.get("Span", pl.DataFrame())
    ranks = told.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    return Meta(
        path=path,
        tool="torch.profiler",
        schema_version=None if schema is None else str(schema),
        origin_unix_ns=origin if isinstance(origin, int) else None,
        duration_ns=spans.item(0, "dur_ns") if spans.height else None,
        rank=_whole(ranks.get("rank")),
        world_size=_whole(ranks.get("world_size")),
    )


def _whole(value: Any) -> int | None:  # noqa: ANN401 - what a file says
    return value if isinstance(value, int) else None
