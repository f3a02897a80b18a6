"""Pictures for print: ledgers, iterations, durations, laws, comparisons, timelines, a job's ranks, the roofline."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import errors, outlets, units
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.renderers.page import COLOURS, DARK, kernel_names, wrapped
from kanalyze.renderers.page.comparison import by_bucket, signed

if TYPE_CHECKING:
    from kanalyze.analyses.timeline._tracks import Counter, Timeline

    Axes = Any  # matplotlib's, which is not installed everywhere

FORMATS: Final = ("svg", "png", "pdf")

#: Steps of a waterfall beside the rest, and most sizes of graphs with colours of their own.
_STEPS, _SIZES = 9, 10

_MS: Final = 1_000_000

#: Colours of what ranks exchange.
_EXCHANGE: Final = {"wait": "#c51b8a", "transfer": "#e08cc2", "unmatched": "#d9d9d9"}


@contextmanager
def _picture(form: str, high: float, wide: float = 9.0) -> Iterator[tuple[Axes, io.BytesIO]]:
    """A pair of axes and what takes their picture, sizes in inches; raises OutputError without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise errors.OutputError.without_package("a picture", "matplotlib", "plot") from error
    dated = {"svg": "Date", "pdf": "CreationDate"}
    titles: dict[Any, Any] = {"axes.titlesize": 10, "axes.titlelocation": "left", "axes.titleweight": "bold"}
    with (
        mpl.rc_context({"svg.hashsalt": "kanalyze", "svg.fonttype": "none", "font.size": 9, **titles}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph")  # a box stands for what the font lacks
        figure = Figure(figsize=(wide, high), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        out = io.BytesIO()
        yield axes, out
        figure.savefig(out, format=form, dpi=160, metadata={dated[form]: None} if form in dated else None)


def _legend(axes: Axes, names: Iterable[str], place: float = 1.01) -> None:
    """A legend of buckets, or of what ranks exchange, beside the picture."""
    from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

    handles = [Patch(color=(COLOURS | _EXCHANGE)[name], label=name) for name in names]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(place, 1), frameon=False, fontsize=8)


def _note(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: object) -> None:
    """A text that stands so many points beside a place."""
    axes.annotate(text, at, shift, textcoords="offset points", **style)


def _stacked(
    axes: Axes,
    side: str,
    places: Sequence[int],
    parts: Mapping[str, Iterable[int]],
    label: Callable[[int, int], str] | None = None,
    **style: object,
) -> list[float]:
    """Bars at these places of parts by name, ns, the first at the axis; where they end. A part may have a label."""
    ends = [0.0] * len(places)
    for name, values in parts.items():
        times = list(values)
        colour, draw = (COLOURS | _EXCHANGE)[name], axes.barh if side == "left" else axes.bar
        bars = draw(places, [ns / _MS for ns in times], **{side: ends}, color=colour, **style)
        if label:
            ink = "white" if name in DARK else "black"
            axes.bar_label(bars, [*map(label, places, times)], label_type="center", fontsize=8, color=ink)
        ends = [end + ns / _MS for end, ns in zip(ends, times, strict=True)]
    return ends


def ledger(rows: pl.DataFrame, form: str) -> bytes:
    """A bar for each device (of each report): its window by bucket, those labelled that have room."""
    keys = [name for name in ("report", "instance", "device") if name in rows.columns]
    bars = {}
    for key, part in rows.group_by(keys, maintain_order=True):
        named = (f"GPU {value}" if name == "device" else str(value) for name, value in zip(keys, key, strict=True))
        sums = part.group_by(pl.col("bucket").cast(pl.String)).agg(pl.col("ns").sum())
        bars[", ".join(named)] = dict(sums.iter_rows())
    parts = {bucket: [sums.get(bucket, 0) for sums in bars.values()] for bucket in BUCKETS}
    wholes = [sum(sums.values()) or 1 for sums in bars.values()]

    def share(at: int, ns: int) -> str:
        return units.percent(ns / wholes[at]) if ns > 0.065 * max(wholes) else ""  # else there is no room

    with _picture(form, 1.6 + 0.45 * max(len(bars), 1)) as (axes, out):
        _stacked(axes, "left", range(len(bars)), parts, share, edgecolor="white", linewidth=0.5)
        axes.set_yticks(range(len(bars)), [*map(outlets.picture, bars)])
        axes.invert_yaxis()
        axes.set(xlabel="ms", title="Where the time went")
        _legend(axes, (bucket for bucket, times in parts.items() if any(times)))
    return out.getvalue()


def steps(rows: pl.DataFrame, form: str) -> bytes:
    """A bar for each iteration, in order of time: its ledger; a warm-up that does not fit says how long it is."""
    line = rows.sort("start_ns")
    parts = {bucket: line.get_column(f"{bucket}_ns") for bucket in BUCKETS}
    with _picture(form, 3.6) as (axes, out):
        totals = _stacked(axes, "bottom", range(1, line.height + 1), parts, width=0.85)
        names = " and ".join(outlets.picture(name) for name in line.get_column("name").unique(maintain_order=True))
        axes.set(xlabel="in order of time", ylabel="ms", title=f"Iterations: {names}")
        axes.margins(x=0.01)
        usual = [ms for ms, kind in zip(totals, line.get_column("kind"), strict=True) if kind != "warm-up"]
        top = max(usual, default=0.0) * 1.15
        if usual and max(totals) > top:
            axes.set_ylim(0, top)
            for at, ms in enumerate(totals, 1):
                if ms > top:
                    axes.text(at, top, f" ↑ {units.time(round(ms * _MS))}", ha="left", va="bottom", fontsize=7)
        _legend(axes, (bucket for bucket, values in parts.items() if values.sum()))
    return out.getvalue()


def laws(points: pl.DataFrame, form: str) -> bytes:
    """Times of steps on the GPU by the tokens in the cache, or by those in the step, and lines of their law."""
    across, by_size = ("kv", True) if points.get_column("kv").n_unique() > 1 else ("n", False)
    with _picture(form, 3.8) as (axes, out):
        groups = points.sort("n", across).partition_by("n", as_dict=True, maintain_order=True) if by_size else {}
        few = len(groups) <= _SIZES
        for number, ((size,), part) in enumerate((groups if few and groups else {("",): points.sort(across)}).items()):
            ms = [part.get_column(name) / _MS for name in ("ns", "law_ns")]
            label, at = f"graph of {size:,}" if size else None, part.get_column(across)
            if size and part.item(0, "tokens_are") != "padded":
                label = units.plural(size, "token")
            axes.scatter(at, ms[0], s=9, color=f"C{number}", alpha=0.5, linewidths=0, label=label)
            if size or not by_size:
                axes.plot(at, ms[1], color=f"C{number}", linewidth=1.2)
        by = " by graph" if points.height and points.item(0, "mode") == "graph" else ""
        name = outlets.picture(f"Steps: {points.item(0, 'kind')}{by}" if points.height else "no kind of step has a law")
        axes.set(xlabel="tokens in the cache" if by_size else "tokens", ylabel="ms of the GPU", title=name)
        axes.set_ylim(bottom=0)
        if few and groups:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return out.getvalue()


def durations(name: str, values: pl.Series, form: str) -> bytes:
    """How long the launches of a kernel took, as counts, with median and 95th percentile."""
    (short,) = kernel_names.shorten([name], 90)
    us = values / 1000
    marked = us.to_frame("us").select(median=pl.col("us").median(), late=pl.col("us").quantile(0.95, "linear")).row(0)
    with _picture(form, 3.4) as (axes, out):
        axes.hist(us.to_list(), bins=60, color=COLOURS["kernel"], edgecolor="white", linewidth=0.3)
        for value, label, style in zip(marked, ("median", "95 %"), ("-", "--"), strict=True):
            axes.axvline(value, color="#333333", linestyle=style, linewidth=1, label=f"{label}: {value:.2f} µs")
        axes.legend(frameon=False, fontsize=8)
        axes.set(xlabel="µs", ylabel="launches", title=outlets.picture(f"{short}: {units.plural(len(us), 'launch')}"))
    return out.getvalue()


def waterfall(rows: pl.DataFrame, form: str) -> bytes:
    """From base to new: what each bucket adds or takes away, the largest first."""
    shown = by_bucket(rows, _STEPS).filter(pl.col("delta_ns") != 0)
    base, new = (rows.get_column(name).sum() for name in ("base_ns", "new_ns"))
    deltas = shown.get_column("delta_ns").to_list()
    levels = [ns / _MS for ns in accumulate([base, *deltas])]
    with _picture(form, 3.6) as (axes, out):
        axes.bar([0, len(deltas) + 1], [base / _MS, new / _MS], color="#555555")
        for place, (delta, level, after) in enumerate(zip(deltas, levels, levels[1:], strict=False), 1):
            colour = COLOURS["launch" if delta > 0 else "kernel"]
            axes.bar(place, abs(after - level), bottom=min(level, after), color=colour)
            axes.plot([place - 0.6, place + 0.4], [level, level], color="#999999", linewidth=0.7)
            _note(axes, signed(delta), (place, max(level, after)), (0, 3), ha="center", fontsize=7)
        names = ["base", *shown.get_column("bucket"), "new"]
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.margins(y=0.12)
        axes.set(ylabel="ms", title="From base to new, by bucket")
    return out.getvalue()


# What ran when: the timeline of a window, and the steps of a job's ranks.

#: Rows of a picture, and lanes of a track.
_ROWS, _LANES = 28, 4

#: Heights in inches: a row, a counter, all but the rows; half that of a box, in rows.
_ROW, _REST, _HALF = 0.24, 1.1, 0.42

#: Colours of what is no bucket; ranges, operators and Python differ by name.
_TONES: Final = COLOURS | {"iteration": "#5f8fc7", "odd": "#c07d55", "call": "#b08d57"}
_BY_NAME: Final = ("#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#fb9a99", "#e3d18a", "#b3e2cd", "#d9d9d9")


def timeline(recording: Timeline, form: str) -> bytes:
    """Timeline: a row for each track and lane; a box of several short events is as high as they cover of it."""
    # label and events of each row: the tracks in order, each with its outermost lanes
    parts = recording.events.filter(pl.col("lane") < _LANES).partition_by("track", "lane", as_dict=True)
    rows = []
    for (number, lane), events in sorted(parts.items(), key=lambda one: one[0]):
        track = recording.tracks[int(number)]
        label = track.label if track.kind in ("iteration", "path") else f"{track.group}, {track.label}"
        rows.append((label if lane == 0 else "", events))
    shown, left = rows[:_ROWS], max(len(rows) - _ROWS, 0)
    counters = [one for one in recording.counters if one.points.height][: max(_ROWS - len(shown), 4)]
    labels = [label for label, _ in shown] + [f"{counter.group}, {counter.label}" for counter in counters]
    length = recording.end_ns - recording.start_ns
    with _picture(form, _REST + _ROW * len(labels)) as (axes, out):
        place = axes.get_yaxis_transform()  # x is a part of the width, y a row
        for at, label in enumerate(labels):
            if at < len(shown):
                _boxes(axes, at, shown[at][1], recording)
            else:
                _level(axes, at, counters[at - len(shown)], recording)
            axes.text(-0.008, at, outlets.picture(label), ha="right", va="center", fontsize=7, transform=place)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, length / _MS)
        further = f", {units.plural(left, 'row')} left out" if left else ""
        began = units.instant(recording.start_ns, recording.zero_ns)
        axes.set(xlabel=f"ms since {began}", title=f"Timeline of {units.time(length)}{further}")
        tones = {str(tone) for _, events in shown for tone in events.get_column("tone").unique()}
        _legend(axes, (bucket for bucket in BUCKETS if bucket in tones), 1.07)
    return out.getvalue()


def _boxes(axes: Axes, at: int, events: pl.DataFrame, recording: Timeline) -> None:
    """Boxes of a row, with names in those that are wide."""
    from matplotlib.collections import PolyCollection  # noqa: PLC0415 - an extra

    boxes, colours = [], []
    length, floor = recording.end_ns - recording.start_ns, at + _HALF
    texts = pl.col("tone", "name").cast(pl.String)
    for start, end, covered, tone, name in events.select("start", "end", "covered_ns", texts).iter_rows():
        left, right = ((ns - recording.start_ns) / _MS for ns in (start, end))
        top = floor - 2 * _HALF * (covered / (end - start) if end > start else 1.0)
        boxes.append([(left, floor), (right, floor), (right, top), (left, top)])
        colours.append(_TONES.get(tone) or _BY_NAME[sum(map(ord, (name or "")[:99])) % len(_BY_NAME)])
        if end - start > 0.04 * length and covered == end - start:  # there is room for a name
            (short,) = kernel_names.shorten([name or tone], max(int((end - start) / length * 95), 4))
            style = {"ha": "center", "va": "center", "fontsize": 6, "clip_on": True}
            ink = "white" if tone in DARK else "black"
            axes.text((left + right) / 2, at, outlets.picture(short), color=ink, **style)
    drawn = PolyCollection(boxes, facecolors=colours, edgecolors="none", linewidths=0)
    drawn.set_snap(False)  # or what is shorter than a pixel becomes one
    axes.add_collection(drawn)


def _level(axes: Axes, at: int, counter: Counter, recording: Timeline) -> None:
    """A counter as a filled line; the highest value beside it."""
    times = [(t - recording.start_ns) / _MS for t in counter.points.get_column("t_ns")]
    values = counter.points.get_column("value").to_list()
    most = 1.0 if counter.unit == "share" else max(*values, 0.0) or 1.0
    floor = at + _HALF
    heights = [floor - 2 * _HALF * max(value, 0) / most for value in values]
    colour = COLOURS["kernel" if counter.unit == "share" else "memcpy"]
    axes.fill_between(times, [floor] * len(times), heights, step="post", color=colour, linewidth=0)
    label = {"share": units.percent, "B/s": units.rate}.get(counter.unit, units.size)(most)
    style = {"ha": "left", "va": "center", "fontsize": 6, "color": "#666666"}
    axes.text(1.006, at, label, transform=axes.get_yaxis_transform(), **style)


def ranks(rows: pl.DataFrame, form: str) -> bytes:
    """A bar for each rank of a job, what the time of its steps went to; late ones say by how much."""
    line = rows.sort("late_ns", "rank", descending=[True, False]).head(48).sort("rank")
    parts = {name: line.get_column(f"{name}_ns") for name in (*_EXCHANGE, *BUCKETS) if f"{name}_ns" in line.columns}
    parts = {name: values for name, values in parts.items() if values.sum()}
    with _picture(form, _REST + _ROW * max(line.height, 6)) as (axes, out):
        left = _stacked(axes, "left", range(line.height), parts, edgecolor="white", linewidth=0.4)
        for at, (end, late) in enumerate(zip(left, line.get_column("late_ns"), strict=True)):
            if late:
                _note(axes, f"late by {units.time(late)}", (end, at), (4, 0), va="center", fontsize=7)
        axes.set_yticks(range(line.height), [f"rank {rank}" for rank in line.get_column("rank")])
        axes.invert_yaxis()
        axes.margins(x=0.14)
        some = f", {units.count(line.height)} of {units.count(rows.height)}, the latest"
        title = f"Ranks: where the time of their steps went{some if line.height < rows.height else ''}"
        axes.set(xlabel="ms", title=title)
        _legend(axes, parts)
    return out.getvalue()


# The roofline: every kernel under its GPU's roofs, marker area by total time.


def roofline(chart: Mapping[str, Any], form: str) -> bytes:
    """The kernels under their roofs, where the HTML report draws them, too."""
    place = chart["axes"]
    with _picture(form, 6.2, 11.0) as (axes, out):
        axes.set(xlim=(place.left, place.right), ylim=(place.bottom, place.top))
        remark = outlets.picture(f"{chart['remark']}; blue: memory-bound, red: compute-bound")
        axes.set(xlabel=f"{chart['across']}\n{remark}", ylabel=chart["up"], title=outlets.picture(chart["title"]))
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        for ticks, put in ((chart["columns"], axes.set_xticks), (chart["rows"], axes.set_yticks)):
            put([at for at, _ in ticks], [text for _, text in ticks])
        for line, x, y in chart["lines"]:
            axes.plot(*zip(*line["points"], strict=True), color="#333333", linewidth=1.4)
            axes.text(x, y, outlets.picture(line["text"]), ha="right", color="#333333")
        for point in chart["points"]:  # the longest at the back, numbered and listed
            at, number = (point["x"], point["y"]), point["number"]
            label = "\n    ".join(wrapped(outlets.picture(f"{number}  {point['text']}"), 44)) if number else None
            colour = {"memory": "#2a6fbb", "compute": "#c8553d"}.get(point["kind"], "#888888")
            look = {"color": colour, "alpha": 0.55, "edgecolors": "white"}
            axes.scatter(*at, s=6 * point["size"] ** 2, label=label, linewidths=0.8, **look)
            if number:
                _note(axes, str(number), at, (point["size"] + 4, -3), fontsize=8, fontweight="bold")
        if chart["points"]:
            legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
            for handle in legend.legend_handles:
                handle.set_sizes([40])
        else:
            axes.text(0.5, 0.5, "no kernel did floating-point work", transform=axes.transAxes, ha="center")
    return out.getvalue()
