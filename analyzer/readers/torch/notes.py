"""Health notes of a torch.profiler trace: missing data, and a count of every event that no table holds."""

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

#: Meaning of the decoder's counters.
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

#: Most unknown categories listed separately.
_TOLD: Final = 10

#: Longest category name shown, in characters.
_WIDE: Final = 60

#: Frames that no kind of event has, and why that is no loss.
_HELD_ASIDE: Final = {
    "Counter": ("samples of counters of GPUs", "they are in gpu_metrics"),
    "GraphNode": ("nodes of CUDA graphs that are no work", "they call the host or record an event"),
}

#: Frames without a table of their own, used by other tables.
_LINKS: Final = ("Link", "Launch")

_LOST: Final = "what stood there is lost"


def notes(frames: Frames) -> pl.DataFrame:
    """One note per thing missing from the trace or ignored in it, as :data:`kanalyze.model.NOTES`."""
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
        *_shared_ids(frames),
        *_limits(frames),
    ]
    return NOTES.select(pl.DataFrame(found, schema=NOTES.schema, orient="row"))


def _all_events(frames: Frames) -> Iterable[Note]:
    """The number of events in the file, total and by kind."""
    entries = frames.counts.get("entries")
    if entries:
        held = {kind: frames.events[name].height for name, kind in FRAME_KINDS.items() if name in frames.events}
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(held.items(), key=lambda one: -one[1]) if count)
        yield "events in the trace", entries, None, f"{sum(held.values()):,} are in the tables: {told or 'none'}"


def _aside(frames: Frames) -> Iterable[Note]:
    """Counts of entries that are not events of their own, such as flows and metadata."""
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
    for name, (check, effect) in _HELD_ASIDE.items():
        if height := _height(frames, name):
            yield check, height, None, effect
    marks = counts.get("name", 0) + counts.get("mark", 0) + _height(frames, "Span")
    if marks:
        yield "names and marks", marks, None, "names of processes and threads, and where the recording began and ended"


def _categories(frames: Frames) -> Iterable[Note]:
    """Events of unknown categories, most frequent first."""
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


def _shared_ids(frames: Frames) -> Iterable[Note]:
    """Operators with the id of another one of their process: each has its own, of which calls tell their operator."""
    if _height(frames, "Op"):
        ids = frames.events["Op"].filter(pl.col("external_id") != 0).select("external_id", "pid")
        if shared := ids.height - ids.n_unique():
            yield "operators with the id of another one", shared, None, "which operator launched what is wrong"


def _odd_times(frames: Frames) -> Iterable[Note]:
    """Events without a duration or with impossible times."""
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


#: Kinds whose durations are checked only here.
_ON_HOST: Final = ("op", "range", "python", "overhead", "sync")


def _height(frames: Frames, name: str) -> int:
    return frames.events[name].height if name in frames.events else 0
