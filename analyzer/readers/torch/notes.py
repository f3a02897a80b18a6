"""What a trace of torch.profiler says about its own gaps, and what of it no table holds: all of its events, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import device_limits
from kanalyze.model import NOTES
from kanalyze.readers.torch.frames import FRAME_KINDS
from kanalyze.readers.torch.machine import impossible_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kanalyze.readers.torch.frames import Frames

    Note = tuple[str, int | None, int | None, str]

#: Words of the decoder, and what they mean.
_WORDS: Final = {
    "repaired": ("characters that JSON does not allow", "they were replaced or left out; names may differ there"),
    "unreadable": ("events that cannot be read", "they are lost: times and counts are too low"),
    "unreadable bytes": ("bytes of events that cannot be read", "what they say is lost"),
    "no time": ("events without a time", "they are left out: times and counts are too low"),
    "no object": ("entries that are no event", "they are left out"),
    "no event": ("entries that are no event of a trace", "they are left out"),
    "no category": ("events without a category", "they are left out: what they are is not said"),
}

_CATEGORY: Final = "category "

#: So many categories that no table holds are told apart.
_TOLD: Final = 10

#: How much of a category's name is shown.
_WIDE: Final = 60

#: Frames that are in no table of events, but say something that the tables tell.
_LINKS: Final = ("Link", "Launch")

_LOST: Final = "what stood there is lost"


def notes(frames: Frames) -> pl.DataFrame:
    """One row per thing that the trace cannot tell, or that was left out of it, as :data:`kanalyze.model.NOTES`."""
    found = [
        *_all_events(frames),
        *_aside(frames),
        *((sentence, 1, None, _LOST) for sentence in frames.damage),
        *(
            (check, frames.counts[word], None, effect)
            for word, (check, effect) in _WORDS.items()
            if frames.counts.get(word)
        ),
        *_categories(frames),
        *_unread(frames),
        *_odd_times(frames),
        *_limits(frames),
    ]
    return NOTES.select(pl.DataFrame(found, schema=NOTES.schema, orient="row"))


def _all_events(frames: Frames) -> Iterable[Note]:
    """How many events the file has, and how many of them are in which kind."""
    entries = frames.counts.get("entries")
    if entries:
        held = {kind: frames.events[name].height for name, kind in FRAME_KINDS.items() if name in frames.events}
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(held.items(), key=lambda one: -one[1]) if count)
        yield "events in the trace", entries, None, f"{sum(held.values()):,} are in the tables: {told or 'none'}"


def _aside(frames: Frames) -> Iterable[Note]:
    """What is no event of its own."""
    counts = frames.counts
    arrows = counts.get("flow", 0) + sum(_height(frames, name) for name in _LINKS)
    if arrows:
        yield "arrows between events", arrows, None, "ids join the same events; backward operators are joined by them"
    drawn = frames.events.get("Projection")
    if drawn is not None:
        length = int(drawn.get_column("dur_ns").sum())
        yield "ranges drawn on devices", drawn.height, length, "where the work of a range ran; no work of their own"
    records = _height(frames, "Record")
    if records:
        yield "recordings of CUDA events", records, None, "they tell what a wait waited for"
    marks = counts.get("name", 0) + counts.get("mark", 0) + _height(frames, "Span")
    if marks:
        yield "names and marks", marks, None, "names of processes and threads, and where the recording began and ended"


def _categories(frames: Frames) -> Iterable[Note]:
    """Events of categories that nobody knows, those with most events first."""
    found = [(count, word) for word, count in frames.counts.items() if word.startswith(_CATEGORY) and count]
    found.sort(key=lambda one: (-one[0], one[1]))
    for count, word in found[:_TOLD]:
        name = word.removeprefix(_CATEGORY)
        shown = name if len(name) <= _WIDE else name[: _WIDE - 1] + "…"
        yield f"events of the category {shown}", count, None, "no table holds them"
    rest = found[_TOLD:]
    if rest:
        yield f"events of {len(rest)} more categories", sum(count for count, _ in rest), None, "no table holds them"


def _unread(frames: Frames) -> Iterable[Note]:
    unread = frames.events.get("Unread")
    if unread is not None:
        length = int(unread.get_column("dur_ns").sum())
        yield "events of other devices and tools", unread.height, length, "no table holds them"


def _limits(frames: Frames) -> Iterable[Note]:
    count = impossible_limits(frames)
    if count:
        yield device_limits.IMPOSSIBLE, count, None, device_limits.EFFECT


def _odd_times(frames: Frames) -> Iterable[Note]:
    """Events without a duration, and such whose times cannot be."""
    for name, kind in FRAME_KINDS.items():
        frame = frames.events.get(name)
        if frame is None or kind == "memory":
            continue
        endless = frame.get_column("dur_ns").null_count()
        if endless:
            yield (
                f"{kind} events without a duration",
                endless,
                None,
                f"they count as instants: times of {kind} are too low",
            )
        early = frame.filter(pl.col("start_ns") < 0)
        if early.height:
            length = int(early.get_column("dur_ns").sum())
            yield f"{kind} events at negative times", early.height, length, "their times may be wrong"
        if kind in _ON_HOST:
            short = frame.filter(pl.col("dur_ns") < 0)
            if short.height:
                length = -int(short.get_column("dur_ns").sum())
                yield f"{kind} events of negative duration", short.height, length, "their times cannot be right"


#: The kinds whose durations no other check looks at.
_ON_HOST: Final = ("op", "range", "python", "overhead", "sync")


def _height(frames: Frames, name: str) -> int:
    return frames.events[name].height if name in frames.events else 0
