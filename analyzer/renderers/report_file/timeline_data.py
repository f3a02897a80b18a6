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
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import outlets
from kanalyze.analyses.timeline._reduced import fewer
from kanalyze.analyses.timeline._tracks import TONES

if TYPE_CHECKING:
    from kanalyze.analyses.timeline._counters import Counter
    from kanalyze.analyses.timeline._tracks import Timeline

#: Longest name in the file, in characters, and all names together.
_NAME: Final = 1000
_ALL_NAMES: Final = 1_000_000

#: Points of a counter, of more the highest and the last of each slice stay; and of all together.
_POINTS: Final = 2000
_ALL_POINTS: Final = 40_000

#: Significant figures of a mean.
_FIGURES: Final = 4

#: What stands for a name that there is no room for.
_LEFT_OUT: Final = "(name left out of this file)"

#: A timeline with fewer events is not reduced; and how far it is reduced beyond what the room asks for.
_FEWEST: Final = 1000
_MARGIN: Final = 0.85

_LANE: Final = ("track", "lane", "several")
_LOW: Final = 0xFFFFFFFF
_LEVEL: Final = 6


def fitted(timeline: Timeline, room: int) -> tuple[Timeline, str]:
    """The timeline with as many events as `room` bytes have room for, and its data."""
    data = encoded(timeline)
    while len(data) > room and timeline.events.height > _FEWEST:
        timeline = fewer(timeline, int(timeline.events.height * min(room / len(data), 1) * _MARGIN))
        data = encoded(timeline)
    return timeline, data


def encoded(timeline: Timeline) -> str:
    """The timeline as base64 text."""
    events = timeline.events
    texts = _Texts()
    first = events.select(pl.struct(_LANE) != pl.struct(_LANE).shift(1)).to_series().fill_null(value=True)
    start = events.get_column("start") - timeline.start_ns
    steps = start.diff().fill_null(0).set(first, 0)
    most = max(min(_POINTS, _ALL_POINTS // max(len(timeline.counters), 1)), 2)
    launch = events.select(pl.col("launch").fill_null(-1) + 1).to_series()
    columns = {
        "step": steps,
        "length": events.get_column("end") - events.get_column("start"),
        "name": texts.numbers(events.get_column("name")),
        "note": texts.numbers(events.get_column("note")),
        "tone": events.get_column("tone").to_physical().cast(pl.Int64),
        "launch": launch,
    }
    several = events.get_column("several").arg_true()
    sums = events[several].select("covered_ns", "count")
    head: dict[str, Any] = {
        "length_ns": timeline.end_ns - timeline.start_ns,
        "offset_ns": timeline.start_ns - timeline.zero_ns,
        "begin": _begin(timeline),
        "window": timeline.one_clock,
        "tones": TONES,
        "tracks": [track._asdict() for track in timeline.tracks],
        "lanes": _lanes(events, first, start),
        "several": several.len(),
        "counters": [_counter(one, timeline, most) for one in timeline.counters],
    }
    columns |= {
        "at": several.cast(pl.Int64).diff().fill_null(several.first() if several.len() else 0),
        "covered": sums.get_column("covered_ns"),
        "count": sums.get_column("count").cast(pl.Int64),
    }
    return _packed(head, columns, texts)


def _begin(timeline: Timeline) -> list[int]:
    """Interval shown at first: the windows of the devices."""
    ledgers = [number for number, track in enumerate(timeline.tracks) if track.kind == "ledger"]
    own = timeline.events.filter(pl.col("track").is_in(ledgers))
    low, high = own.select(pl.col("start").min() - timeline.start_ns, pl.col("end").max() - timeline.start_ns).row(0)
    return [low, high] if own.height else [0, timeline.end_ns - timeline.start_ns]


def _lanes(events: pl.DataFrame, first: pl.Series, start: pl.Series) -> list[dict[str, Any]]:
    """Each lane: its track, place, first event and the start of that, and whether events stand for several."""
    rows = first.arg_true()
    told = events[rows].select(*_LANE, at=rows, start=start.gather(rows))
    return [{**row, "several": int(row["several"])} for row in told.iter_rows(named=True)]


def _counter(counter: Counter, timeline: Timeline, most: int) -> dict[str, Any]:
    """A counter's points, times since the start of the timeline.

    Of too many the means of neighbouring bins stay; of what is no mean the highest and the last per slice.
    """
    points = counter.points.select(t=pl.col("t_ns") - timeline.start_ns, value=pl.col("value"))
    bins = -(-points.height // most)
    if counter.bin_ns:
        end = points.tail(1)
        rows = points.head(points.height - 1).group_by(pl.int_range(pl.len()) // bins, maintain_order=True)
        means = rows.agg(pl.col("t").first(), pl.col("value").mean().round_sig_figs(_FIGURES))
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
        self._numbers: dict[str, int] = {"": 0}
        self._room = _ALL_NAMES

    def numbers(self, names: pl.Series) -> pl.Series:
        """The number of each name."""
        known = names.unique(maintain_order=True).drop_nulls()
        codes = [self._number(name) for name in known.cast(pl.String)]
        table = pl.DataFrame([known, pl.Series("number", codes, dtype=pl.Int64)])
        found = names.to_frame().join(table, on=names.name, how="left", maintain_order="left")
        return found.get_column("number").fill_null(0)

    def _number(self, name: str) -> int:
        text = drawn_name(name)
        if text not in self._numbers and self._room < len(text):
            text = _LEFT_OUT
        if text not in self._numbers:
            self._room -= len(text)
            self._numbers[text] = len(self._numbers)
        return self._numbers[text]

    @property
    def all(self) -> list[str]:
        """The texts by number."""
        return [*self._numbers]


def _packed(head: dict[str, Any], columns: dict[str, pl.Series], texts: _Texts) -> str:
    """Header and columns, deflated."""
    import numpy as np  # noqa: PLC0415 - notebooks load this module, too

    blocks, told = [], []
    for name, column in columns.items():
        values = column.cast(pl.Int64).to_numpy()
        high = values >> 32
        beyond = np.flatnonzero(high)
        low = (values & _LOW).astype("<u4")
        width = max((int(low.max()).bit_length() + 7) // 8, 1) if low.size else 1
        told.append(
            {
                "name": name,
                "count": int(low.size),
                "width": width,
                "beyond": [[int(at), int(high[at])] for at in beyond],
            }
        )
        blocks.append(low.view(np.uint8).reshape(-1, 4)[:, :width].T.tobytes())
    head |= {"texts": texts.all, "columns": told}
    header = json.dumps(head, ensure_ascii=True, separators=(",", ":")).encode()
    data = b"".join([len(header).to_bytes(4, "little"), header, *blocks])
    return b64encode(zlib.compress(data, _LEVEL)).decode("ascii")
