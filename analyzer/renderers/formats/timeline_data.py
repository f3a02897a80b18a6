"""Encodes a timeline for the HTML file: columns of numbers by byte, deflated, as base64.

The layout, which `timeline.js` decodes: the length of a JSON header (4 bytes, little endian), the header, then the
columns named in it. Each column is `count` numbers of `width` bytes, all lowest bytes first, then all second ones, and
so on, since deflate finds more in bytes of one kind. Times are differences: of a start to the start before it in its
lane, of an end to its own start; what exceeds 32 bits stands in the header.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from typing import Any, Final

import polars as pl

from kanalyze import outlets
from kanalyze.analyses.timeline._tracks import TONES, Counter, Timeline, fewer
from kanalyze.renderers.page.kernel_names import short_forms

#: Longest name in the file, in characters, and all names together.
_NAME: Final = 1000
_ALL_NAMES: Final = 1_000_000


#: Width of a kernel's short name in a box, in characters.
_BOX_NAME: Final = 60

#: A timeline with fewer events is not reduced.
_FEWEST: Final = 1000


def fitted(timeline: Timeline, room: int) -> tuple[Timeline, str]:
    """The timeline with as many events as `room` bytes have room for, and its data."""
    data = encoded(timeline)
    while len(data) > room and timeline.events.height > _FEWEST:
        timeline = fewer(timeline, int(timeline.events.height * min(room / len(data), 1) * 0.85))
        data = encoded(timeline)
    return timeline, data


def encoded(timeline: Timeline) -> str:
    """The timeline as base64 text."""
    events, texts = timeline.events, _Texts()
    lane = pl.struct("track", "lane", "several")
    first = events.select(lane != lane.shift(1)).to_series().fill_null(value=True)
    start = events.get_column("start") - timeline.start_ns
    most = max(min(2000, 40_000 // max(len(timeline.counters), 1)), 2)
    several = events.get_column("several").arg_true()
    sums = events[several]
    columns = {
        "step": start.diff().fill_null(0).set(first, 0),
        "length": events.get_column("end") - events.get_column("start"),
        "name": texts.numbers(events.get_column("name")),
        "note": texts.numbers(events.get_column("note")),
        "tone": events.get_column("tone").to_physical(),
        "launch": events.get_column("launch").fill_null(-1) + 1,
        "at": several.cast(pl.Int64).diff().fill_null(several.first() if several.len() else 0),
        "covered": sums.get_column("covered_ns"),
        "count": sums.get_column("count"),
    }
    # shown at first are the windows of the devices
    ledgers = [number for number, track in enumerate(timeline.tracks) if track.kind == "ledger"]
    windows = events.filter(pl.col("track").is_in(ledgers))
    low, high = windows.select(pl.col("start").min() - timeline.start_ns, pl.col("end").max() - timeline.start_ns).row(
        0
    )
    # each lane has its first event and the start of that, and whether its events stand for several
    lanes = events.select("track", "lane", pl.col("several").cast(pl.Int64), at=pl.int_range(pl.len()), start=start)
    head: dict[str, Any] = {
        "length_ns": timeline.end_ns - timeline.start_ns,
        "offset_ns": timeline.start_ns - timeline.zero_ns,
        "begin": [low, high] if windows.height else [0, timeline.end_ns - timeline.start_ns],
        "window": timeline.one_clock,
        "tones": TONES,
        "tracks": [track._asdict() for track in timeline.tracks],
        "lanes": lanes.filter(first).to_dicts(),
        "several": several.len(),
        "counters": [_counter(one, timeline, most) for one in timeline.counters],
        "short": _short_names(timeline, texts),
    }
    return _packed(head, columns, texts)


def _short_names(timeline: Timeline, texts: _Texts) -> dict[int, str]:
    """The short names of operations on streams, by the numbers of their texts."""
    streams = [number for number, track in enumerate(timeline.tracks) if track.kind == "stream"]
    drawn = timeline.events.filter(pl.col("track").is_in(streams)).get_column("name").unique().drop_nulls()
    names = sorted({*map(drawn_name, drawn.cast(pl.String))} & texts.all.keys())
    short = short_forms(names, _BOX_NAME)
    return {texts.all[name]: outlets.line(short[name]) for name in names if short[name] != name}


def _counter(counter: Counter, timeline: Timeline, most: int) -> dict[str, Any]:
    """A counter's points, times since the start of the timeline.

    Of too many the means of neighbouring bins stay; of what is no mean the highest and the last per slice.
    """
    points = counter.points.select(t=pl.col("t_ns") - timeline.start_ns, value=pl.col("value"))
    bins = -(-points.height // most)
    if counter.bin_ns:
        end = points.tail(1)
        rows = points.head(points.height - 1).group_by(pl.int_range(pl.len()) // bins, maintain_order=True)
        means = rows.agg(pl.col("t").first(), pl.col("value").mean().round_sig_figs(4))
        points = pl.concat([means.select("t", "value"), end])
    elif points.height > most:
        width = max((timeline.end_ns - timeline.start_ns) // (most // 2), 1)
        slices = points.group_by(pl.col("t") // width, maintain_order=True)
        top = slices.agg(t_ns=pl.col("t").get(pl.col("value").arg_max()), value=pl.col("value").max())
        last = slices.agg(t_ns=pl.col("t").last(), value=pl.col("value").last())
        points = pl.concat([top, last]).select(t="t_ns", value="value").unique().sort("t", maintain_order=True)
    return {
        "group": counter.group,
        "label": outlets.short(counter.label),
        "unit": counter.unit,
        "bin_ns": counter.bin_ns * bins,
        "t": points.get_column("t").to_list(),
        "value": points.get_column("value").to_list(),
    }


def drawn_name(name: str) -> str:
    """A name as the timeline has it: on one line, cut where it is long."""
    text = outlets.line(name[: _NAME + 1])
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}… ({len(name):,} characters)"


class _Texts:
    """All texts of the file, each once; number 0 is no text."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {"": 0}
        self._room = _ALL_NAMES

    def numbers(self, names: pl.Series) -> pl.Series:
        """The number of each name."""
        known = names.unique(maintain_order=True).drop_nulls()
        numbers = []
        for text in map(drawn_name, known.cast(pl.String)):
            room = text in self.all or self._room >= len(text)
            shown = text if room else "(name left out of this file)"
            if shown not in self.all:
                self._room -= len(shown)
                self.all[shown] = len(self.all)
            numbers.append(self.all[shown])
        return names.replace_strict(known, numbers, default=0, return_dtype=pl.Int64)


def _packed(head: dict[str, Any], columns: dict[str, pl.Series], texts: _Texts) -> str:
    """Header and columns, deflated."""
    import numpy as np  # noqa: PLC0415 - notebooks load this module, too

    blocks, told = [], []
    for name, column in columns.items():
        values = column.cast(pl.Int64).to_numpy()
        high = values >> 32
        low = (values & 0xFFFFFFFF).astype("<u4")
        width = max((int(low.max()).bit_length() + 7) // 8, 1) if low.size else 1
        far = [[int(at), int(high[at])] for at in np.flatnonzero(high)]
        told.append({"name": name, "count": int(low.size), "width": width, "beyond": far})
        blocks.append(low.view(np.uint8).reshape(-1, 4)[:, :width].T.tobytes())
    head |= {"texts": [*texts.all], "columns": told}
    header = json.dumps(head, ensure_ascii=True, separators=(",", ":")).encode()
    data = b"".join([len(header).to_bytes(4, "little"), header, *blocks])
    return b64encode(zlib.compress(data, 6)).decode("ascii")
