"""Reads torch.profiler traces, compressed or not: ``trace.json``, ``trace.json.gz``.

What was decoded of a large trace is kept in the user's cache, so that opening it again needs no decoding: one folder
per trace (named by :mod:`kanalyze.readers.user_cache`), with an Arrow file per frame and the rest as JSON. It is
written under a temporary name and moved when complete; an unreadable or corrupt entry counts as missing.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kanalyze import errors, files, outlets, readers, report
from kanalyze.readers import user_cache
from kanalyze.readers.torch.pieces import MARK, TraceText, decoded

if TYPE_CHECKING:
    from kanalyze.readers.torch.frames import Frames


#: Decoder counters of a list without any trace events.
_NO_EVENTS: Final = frozenset({"entries", "no object", "no event", "repaired", "unreadable", "unreadable bytes"})


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is JSON or gzip (:func:`open_report` checks that it is a trace)."""
    del path
    return head.startswith(readers.GZIP) or head.removeprefix(MARK).lstrip()[:1] in {b"{", b"["}


def open_report(path: Path, progress: readers.Progress, *, cache: bool) -> report.Report:
    """Opens the trace at `path`.

    Raises UnknownFormatError if it is JSON, but no trace, or one of another program; UnreadableReportError if there is
    no file.
    """
    name = user_cache.name_of(path) if files.regular(path).stat().st_size >= _LEAST_BYTES else ""
    frames = _kept(name) if cache and name else None
    if frames is None:
        frames = _decoded(path, progress)
        if cache and name and user_cache.name_of(path) == name:
            _keep(name, frames)
    _refuse_others(path, frames)
    from kanalyze.readers.torch.report import report_of  # noqa: PLC0415 - imports polars

    return report_of(path, frames)


def _decoded(path: Path, progress: readers.Progress) -> Frames:
    text = TraceText(path)
    parts = decoded(text, progress)
    from kanalyze.readers.torch.frames import frames_of  # noqa: PLC0415 - imports polars

    frames = frames_of(parts)
    frames.properties, frames.damage = text.properties, text.damage
    if text.bare and not frames.events and frames.counts and _NO_EVENTS.issuperset(frames.counts):
        raise errors.UnknownFormatError.no_trace(path)
    return frames


#: Traces below this size, in bytes, decode as fast as the cache loads.
_LEAST_BYTES: Final = 2 << 20
#: File names of a cache entry; its number is raised when frames change, to invalidate what older versions cached.
_SUFFIX: Final = ".trace10"
_REST, _COLLECTIVES, _FRAME = "rest.json", "collectives.arrow", ".frame.arrow"


def _kept(name: str) -> Frames | None:
    """The cached frames of that name; None if there are none, or they are not what was written."""
    places = user_cache.kept(files.cache_folder(), f"{name}.*{_SUFFIX}")
    if not places:
        return None
    import polars as pl  # noqa: PLC0415 - not before a trace is decoded that is not kept

    from kanalyze.readers.torch.frames import SCHEMAS, Frames  # noqa: PLC0415 - imports polars

    try:
        rest: dict[str, Any] = json.loads((places[0] / _REST).read_bytes())
        frames = Frames(
            events={kind: pl.read_ipc(places[0] / f"{kind}{_FRAME}") for kind in rest["events"]},
            collectives=pl.read_ipc(places[0] / _COLLECTIVES),
            properties=rest["properties"],
            names=[(pid, tid, called) for pid, tid, called in rest["names"]],
            counts=rest["counts"],
            damage=rest["damage"],
        )
        if any(SCHEMAS[kind].keys() != frame.schema.keys() for kind, frame in frames.events.items()):
            return None  # of another version
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pl.exceptions.PolarsError):
        return None
    return frames


def _keep(name: str, frames: Frames) -> None:
    """Cache `frames` under that name, unless there is no room."""
    cache = files.cache_folder()
    with suppress(OSError), user_cache.scratch(cache) as folder:
        entry = folder / "trace"
        entry.mkdir(mode=0o700)
        for kind, frame in frames.events.items():
            frame.write_ipc(entry / f"{kind}{_FRAME}", compression="uncompressed")
        frames.collectives.write_ipc(entry / _COLLECTIVES, compression="uncompressed")
        rest = {
            "properties": frames.properties,
            "names": frames.names,
            "counts": frames.counts,
            "damage": frames.damage,
            "events": list(frames.events),
        }
        (entry / _REST).write_text(json.dumps(rest), encoding="utf-8")
        target = cache / f"{name}.{user_cache.checksum(entry)}{_SUFFIX}"
        with user_cache.alone(cache):
            if user_cache.make_room(cache, name.partition("-")[0]):
                entry.rename(target)


# Chrome traces of other programs are refused: browsers, compilers, converters and other frameworks write them, too.
#
# Those of torch's profilers have a property or category unique to them; one with events but none of these is another's.

#: Trace properties that only Kineto writes.
_PROPERTIES: Final = frozenset(
    (
        *("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "profile_memory", "record_shapes"),
        *("schemaVersion", "traceName", "trace_id", "with_flops", "with_modules", "with_stack"),
    )
)

#: Kinds of events (:mod:`kanalyze.readers.torch.events`) that other programs may write, too.
_KINDS_OF_ANY: Final = frozenset({"Counter", "GraphNode", "Overhead", "Span", "Unread"})
#: Prefix of the decoder's counters of ignored events.
_CATEGORY: Final = "category "
_OTHER_EVENTS: Final = (_CATEGORY, "no category", "no time")
#: Most categories named in the error.
_NAMED, _WIDE = 4, 40


def _refuse_others(path: Path, frames: Frames) -> None:
    """Raise :class:`UnknownFormatError` if the events of a trace at `path` are not of torch's profilers."""
    counts = {word: count for word, count in frames.counts.items() if count and word.startswith(_OTHER_EVENTS)}
    words = sorted((word for word in counts if word.startswith(_CATEGORY)), key=lambda word: (-counts[word], word))
    categories = [word.removeprefix(_CATEGORY) for word in words]
    single = {part for name in categories for part in name.split(",")}  # an event may be counted under several
    of_torch = not _KINDS_OF_ANY.issuperset(frames.events) or not _PROPERTIES.isdisjoint(frames.properties)
    processes = [name for _, thread, name in frames.names if thread is None]
    for program in readers.other_programs("traces"):
        recognised = any(
            (
                not single.isdisjoint(program.get("categories", ())),
                not frames.properties.keys().isdisjoint(program.get("properties", ())),
                any(name.startswith(tuple(program.get("processes", ()))) for name in processes),
            )
        )
        if recognised and (program.get("surely") or not of_torch):
            raise errors.UnknownFormatError.of(path, program["what"], program["remedy"])
    if counts and not of_torch:
        some = ", ".join(f"'{outlets.line(name[:_WIDE])}'" for name in categories[:_NAMED])
        more = f", with events of the categories {some}" if some else ", whose events have no categories"
        raise errors.UnknownFormatError.of(path, f"a Chrome trace of another program than torch.profiler{more}")
