"""What a trace of torch.profiler says about its own gaps, and what of it no table holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.model import NOTES

if TYPE_CHECKING:
    from kanalyze.readers.torch_frames import Frames

    Note = tuple[str, int | None, int | None, str]

#: Words of the decoder, and what they mean.
_WORDS: Final = {
    "repaired": ("characters or numbers that JSON does not allow", "they were replaced; names may differ there"),
    "unreadable": ("damaged places of the file", "the events there are lost"),
    "unreadable bytes": ("bytes of events that cannot be read", "what they say is lost"),
    "no time": ("events without a time", "they are left out"),
    "no object": ("entries that are no event", "they are left out"),
}

#: Instants that mark the recording itself.
_MARKS: Final = "no category"


def notes(frames: Frames) -> pl.DataFrame:
    """One row per thing that the trace cannot tell, or that was left out of it, as :data:`kanalyze.model.NOTES`."""
    found: list[Note] = [(sentence, 1, None, "what stood there is lost") for sentence in frames.damage]
    for word, count in sorted(frames.counts.items()):
        if word in _WORDS:
            check, effect = _WORDS[word]
            found.append((check, count, None, effect))
        elif word.startswith("category "):
            found.append((f"events of the {word}", count, None, "no table holds them"))
    found += _without_length(frames)
    found += _unread(frames)
    return NOTES.select(pl.DataFrame(found, schema=NOTES.schema, orient="row"))


def _without_length(frames: Frames) -> list[Note]:
    found: list[Note] = []
    for name, frame in frames.events.items():
        if "dur_ns" in frame.columns and name not in {"Memory", "Unread"}:
            missing = frame.get_column("dur_ns").null_count()
            if missing:
                found.append((f"events without a duration ({name})", missing, None, "they count as instants"))
    return found


def _unread(frames: Frames) -> list[Note]:
    unread = frames.events.get("Unread")
    if unread is None:
        return []
    effect = "work of other devices and tools, which no table holds"
    return [("events of other categories", unread.height, int(unread.get_column("dur_ns").sum()), effect)]
