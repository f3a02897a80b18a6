"""Pictures of what ran when, for print: the timeline of a window, and the steps of a job's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import outlets, units
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.renderers.tables.plots import picture
from kanalyze.renderers.text.colours import COLOURS, DARK
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from kanalyze.analyses.timeline._counters import Counter
    from kanalyze.analyses.timeline._tracks import Timeline

#: Rows of a picture, and lanes of a track.
_ROWS: Final = 28
_LANES: Final = 4

#: Heights in inches: a row, a counter, all but the rows.
_ROW: Final = 0.24
_REST: Final = 1.1

#: A box is labelled from this part of the width on, by so many characters for all of it.
_LABELLED: Final = 0.04
_CHARACTERS: Final = 95

#: Colours of what is no bucket; ranges, operators and Python differ by name.
_TONES: Final = {"iteration": "#5f8fc7", "odd": "#c07d55", "call": "#b08d57"}
_NAMED: Final = ("#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#fb9a99", "#e3d18a", "#b3e2cd", "#d9d9d9")

#: Ranks of a picture, and what their steps are made of beside the buckets.
_RANKS: Final = 48
_EXCHANGE: Final = {"wait": "#c51b8a", "transfer": "#e08cc2", "unmatched": "#d9d9d9"}

_MS: Final = 1_000_000


def timeline(found: Timeline, form: str) -> bytes:
    """Timeline: a row for each track and lane; a box of several short events is as high as they cover of it."""
    rows = _rows(found)
    shown, left = rows[:_ROWS], max(len(rows) - _ROWS, 0)
    told = [one for one in found.counters if one.points.height][: max(_ROWS - len(shown), 4)]

    def draw(axes: Any) -> None:  # noqa: ANN401 - matplotlib is not installed everywhere
        for at, (label, events) in enumerate(shown):
            _boxes(axes, at, events, found)
            axes.text(-0.008, at, outlets.picture(label), ha="right", va="center", fontsize=7, transform=_beside(axes))
        for at, counter in enumerate(told, len(shown)):
            _level(axes, at, counter, found)
            label = f"{counter.group}, {counter.label}"
            axes.text(-0.008, at, outlets.picture(label), ha="right", va="center", fontsize=7, transform=_beside(axes))
        axes.set_ylim(len(shown) + len(told) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, (found.end_ns - found.start_ns) / _MS)
        further = f", {units.plural(left, 'row')} left out" if left else ""
        began = units.instant(found.start_ns, found.zero_ns)
        axes.set(xlabel=f"ms since {began}", title=f"Timeline of {units.time(found.end_ns - found.start_ns)}{further}")
        _legend(axes, {str(tone) for _, events in shown for tone in events.get_column("tone").unique()})

    return picture(draw, form, _REST + _ROW * (len(shown) + len(told)))


def _beside(axes: Any) -> Any:  # noqa: ANN401 - as above
    """Coordinates in which x is a part of the width, and y a row."""
    return axes.get_yaxis_transform()


def _rows(found: Timeline) -> list[tuple[str, pl.DataFrame]]:
    """Label and events of each row: the tracks in order, each with its outermost lanes."""
    parts = found.events.partition_by("track", "lane", as_dict=True)
    rows = []
    for (number, lane), events in sorted(parts.items(), key=lambda one: one[0]):
        track = found.tracks[int(number)]
        if lane < _LANES:
            label = track.label if track.kind in ("iteration", "path") else f"{track.group}, {track.label}"
            rows.append((label if lane == 0 else "", events))
    return rows


def _boxes(axes: Any, at: int, events: pl.DataFrame, found: Timeline) -> None:  # noqa: ANN401 - as above
    """Boxes of a row, with names in those that are wide."""
    from matplotlib.collections import PolyCollection  # noqa: PLC0415 - an extra

    boxes, colours = [], []
    length = found.end_ns - found.start_ns
    columns = events.select(
        "start", "end", "covered_ns", pl.col("tone").cast(pl.String), pl.col("name").cast(pl.String)
    )
    for start, end, covered, tone, name in columns.iter_rows():
        left, right = ((ns - found.start_ns) / _MS for ns in (start, end))
        top = at + 0.42 - 0.84 * (covered / (end - start) if end > start else 1.0)
        boxes.append([(left, at + 0.42), (right, at + 0.42), (right, top), (left, top)])
        colours.append(_colour(tone, name or ""))
        if end - start > _LABELLED * length and covered == end - start:
            (short,) = shorten([name or tone], max(int((end - start) / length * _CHARACTERS), 4))
            ink = "white" if tone in DARK else "black"
            axes.text(
                (left + right) / 2,
                at,
                outlets.picture(short),
                ha="center",
                va="center",
                fontsize=6,
                color=ink,
                clip_on=True,
            )
    drawn = PolyCollection(boxes, facecolors=colours, edgecolors="none", linewidths=0)
    drawn.set_snap(False)  # or what is shorter than a pixel becomes one
    axes.add_collection(drawn)


def _colour(tone: str, name: str) -> str:
    return COLOURS.get(tone) or _TONES.get(tone) or _NAMED[sum(map(ord, name[:99])) % len(_NAMED)]


def _level(axes: Any, at: int, counter: Counter, found: Timeline) -> None:  # noqa: ANN401 - as above
    """A counter as a filled line; the highest value beside it."""
    times = [(t - found.start_ns) / _MS for t in counter.points.get_column("t_ns")]
    values = counter.points.get_column("value").to_list()
    most = 1.0 if counter.unit == "share" else max(*values, 0.0) or 1.0
    heights = [at + 0.42 - 0.84 * max(value, 0) / most for value in values]
    floor = [at + 0.42] * len(times)
    colour = COLOURS["kernel" if counter.unit == "share" else "memcpy"]
    axes.fill_between(times, floor, heights, step="post", color=colour, linewidth=0)
    told = {"share": units.percent, "B/s": units.rate}.get(counter.unit, units.size)(most)
    axes.text(1.006, at, told, ha="left", va="center", fontsize=6, color="#666666", transform=_beside(axes))


def _legend(axes: Any, tones: set[str]) -> None:  # noqa: ANN401 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

    handles = [Patch(color=COLOURS[bucket], label=bucket) for bucket in BUCKETS if bucket in tones]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.07, 1), frameon=False, fontsize=8)


def ranks(rows: pl.DataFrame, form: str) -> bytes:
    """A bar for each rank of a job, what the time of its steps went to; late ones say by how much."""
    line = rows.sort("late_ns", "rank", descending=[True, False]).head(_RANKS).sort("rank")
    parts = {name: line.get_column(f"{name}_ns") for name in (*_EXCHANGE, *BUCKETS) if f"{name}_ns" in line.columns}
    parts = {name: values for name, values in parts.items() if values.sum()}
    colours = COLOURS | _EXCHANGE

    def draw(axes: Any) -> None:  # noqa: ANN401 - as above
        from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

        left = [0.0] * line.height
        for name, values in parts.items():
            own = [ns / _MS for ns in values]
            axes.barh(range(line.height), own, left=left, color=colours[name], edgecolor="white", linewidth=0.4)
            left = [start + ms for start, ms in zip(left, own, strict=True)]
        for at, (end, late) in enumerate(zip(left, line.get_column("late_ns"), strict=True)):
            if late:
                axes.annotate(
                    f"late by {units.time(late)}",
                    (end, at),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
        axes.set_yticks(range(line.height), [f"rank {rank}" for rank in line.get_column("rank")])
        axes.invert_yaxis()
        axes.margins(x=0.14)
        some = (
            f", {units.count(line.height)} of {units.count(rows.height)}, the latest"
            if line.height < rows.height
            else ""
        )
        axes.set(xlabel="ms", title=f"Ranks: where the time of their steps went{some}")
        handles = [Patch(color=colours[name], label=name) for name in parts]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)

    return picture(draw, form, _REST + _ROW * max(line.height, 6))
