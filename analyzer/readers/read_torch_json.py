"""Reads a Chrome trace of torch.profiler, compressed or not: ``trace.json``, ``trace.json.gz``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.torch_cache import TraceCache
from kanalyze.readers.torch_frames import frames_of
from kanalyze.readers.torch_machine import whole
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

#: What a list that has nothing to do with a trace consists of, as the decoder counts it.
_NO_EVENTS: Final = frozenset({"entries", "no object", "no event", "repaired", "unreadable", "unreadable bytes"})


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
        if text.around.bare and not frames.events and frames.counts and _NO_EVENTS.issuperset(frames.counts):
            raise UnknownFormatError.no_trace(path)
        if cache:
            kept.keep(frames)
    return Report(_meta(path, frames), TorchTables(path, frames))


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
