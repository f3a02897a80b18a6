"""Cache of decoded traces: the frames of a large trace, so that opening it again needs no decoding.

One folder per trace (named by :mod:`kanalyze.readers.shared.user_cache`), with an Arrow file per frame and the rest as
JSON. It is written under a temporary name and moved when complete; an unreadable or corrupt entry counts as missing.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kanalyze.readers.shared.user_cache import (
    MOST_BYTES,
    alone,
    cache_folder,
    checksum,
    digest,
    kept,
    make_room,
    name_of,
    scratch,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers.torch.frames import Frames

#: Version of the cache format: raise it when frames change, to invalidate what older versions cached.
_SCHEMA: Final = 7

#: Traces below this size, in bytes, decode as fast as the cache loads.
_LEAST_BYTES: Final = 2 << 20

#: File names of a cache entry.
_MOST_BYTES: Final = MOST_BYTES

_SUFFIX: Final = f".trace{_SCHEMA}"
_REST, _COLLECTIVES, _FRAME = "rest.json", "collectives.arrow", ".frame.arrow"


class TraceCache:
    """The cache entry of one trace, keyed by the trace's state at construction."""

    def __init__(self, path: Path) -> None:
        """The cache entry of the trace at `path`."""
        self._path = path
        self._name = name_of(path)
        self._large = path.stat().st_size >= _LEAST_BYTES

    @property
    def _place(self) -> Path:
        return cache_folder() / f"{self._name}{_SUFFIX}"

    def load(self) -> Frames | None:
        """Load the cached frames; None if there are none."""
        place = self._place
        if not self._large or not kept(place) or not place.is_dir():
            return None
        from polars.exceptions import PolarsError  # noqa: PLC0415 - not before a trace is decoded that is not kept

        try:
            frames = _read(place)
            os.utime(place)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, PolarsError):
            return None
        return frames

    def keep(self, frames: Frames) -> None:
        """Cache `frames`, unless the trace has changed since or there is no room."""
        if not self._large or name_of(self._path) != self._name:
            return
        cache = cache_folder()
        with suppress(OSError), scratch(cache) as folder:
            made = folder / "trace"
            made.mkdir(mode=0o700)
            _write(frames, made)
            with alone(cache):
                if make_room(cache, self._name.partition("-")[0], _MOST_BYTES):
                    made.rename(self._place)


def _write(frames: Frames, place: Path) -> None:
    for kind, frame in frames.events.items():
        frame.write_ipc(place / f"{kind}{_FRAME}", compression="uncompressed")
    frames.collectives.write_ipc(place / _COLLECTIVES, compression="uncompressed")
    rest = {
        "properties": frames.properties,
        "names": frames.names,
        "counts": frames.counts,
        "damage": frames.damage,
        "events": list(frames.events),
        "sums": {file.name: checksum(file) for file in place.iterdir()},
    }
    text = json.dumps(rest).encode()
    (place / _REST).write_bytes(digest(text).encode() + b"\n" + text)


def _read(place: Path) -> Frames:
    import polars as pl  # noqa: PLC0415 - as above

    from kanalyze.readers.torch.frames import Frames  # noqa: PLC0415 - imports polars

    told, _, text = (place / _REST).read_bytes().partition(b"\n")
    if told != digest(text).encode():
        raise ValueError(_REST)
    rest: dict[str, Any] = json.loads(text)
    for name, known in rest["sums"].items():
        if checksum(place / name) != known:
            raise ValueError(name)
    return Frames(
        events={kind: pl.read_ipc(place / f"{kind}{_FRAME}") for kind in rest["events"]},
        collectives=pl.read_ipc(place / _COLLECTIVES),
        properties=rest["properties"],
        names=[(pid, tid, name) for pid, tid, name in rest["names"]],
        counts=rest["counts"],
        damage=rest["damage"],
    )
