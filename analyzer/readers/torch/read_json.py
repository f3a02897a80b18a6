"""Reads torch.profiler traces, compressed or not: ``trace.json``, ``trace.json.gz``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.shared.archives import GZIP
from kanalyze.readers.torch.cache import TraceCache
from kanalyze.readers.torch.decode.processes import decoding
from kanalyze.readers.torch.decode.text import open_text
from kanalyze.readers.torch.other_traces import refuse_others
from kanalyze.regular_files import regular

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.readers.torch.frames import Frames
    from kanalyze.report import Report

_MARK: Final = b"\xef\xbb\xbf"

#: Decoder counters of a list without any trace events.
_NO_EVENTS: Final = frozenset({"entries", "no object", "no event", "repaired", "unreadable", "unreadable bytes"})


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is JSON or gzip (:func:`open_report` checks that it is a trace)."""
    del path
    return head.startswith(GZIP) or head.removeprefix(_MARK).lstrip()[:1] in {b"{", b"["}


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the trace at `path`.

    Raises:
        UnknownFormatError: It is JSON, but no trace, or one of another program.
        UnreadableReportError: There is no file.
    """
    kept = TraceCache(regular(path))
    frames = kept.load() if cache else None
    if frames is None:
        frames = _decoded(path, progress)
        if cache:
            kept.keep(frames)
    refuse_others(path, frames)
    from kanalyze.readers.torch.report import report_of  # noqa: PLC0415 - imports polars

    return report_of(path, frames)


def _decoded(path: Path, progress: Progress) -> Frames:
    text = open_text(path)
    with decoding(text) as await_parts:
        # meanwhile workers start: importing polars takes a tenth of the time of a large trace
        from kanalyze.readers.torch.frames import frames_of  # noqa: PLC0415

        parts = await_parts(progress)
    frames = frames_of(parts)
    frames.properties, frames.damage = text.around.properties, text.around.damage
    if text.around.bare and not frames.events and frames.counts and _NO_EVENTS.issuperset(frames.counts):
        raise UnknownFormatError.no_trace(path)
    return frames
