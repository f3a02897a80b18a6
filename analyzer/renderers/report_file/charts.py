"""Lays out the pictures of measured kernels and of copies: where each point, line and bar stands."""

from __future__ import annotations

from functools import partial
from math import ceil, floor, log10, sqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kanalyze import outlets, units
from kanalyze.renderers.tables.plots import roofs
from kanalyze.renderers.text.grid import text_of
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kanalyze.analyses.joining._roof_points import RoofPoints
    from kanalyze.analyses.page.file_page import CopyPoints, Measured

#: Height of a label.
_LABEL: Final = 20.0

#: Room around the outermost values, as a factor.
_MARGIN: Final = 2.0

#: Labels of an axis, about, and powers of ten that are few for one; radii of points; those that are numbered, listed.
_TICKS: Final = 7
_FEW: Final = 3
_LARGEST: Final = 16.0
_SMALLEST: Final = 3.5
_LISTED: Final = 6

#: Width of kernel names, in characters.
_NAME: Final = 70

#: Classes of points by the direction of a copy.
_DIRECTIONS: Final = {"Host-to-Device": "to-device", "Device-to-Host": "to-host", "Device-to-Device": "on-device"}


class Point(NamedTuple):
    """A point: where, how large, of which class, what it says, and its number where it is listed."""

    x: float
    y: float
    size: float
    kind: str
    text: str
    number: int | None = None


class Line(NamedTuple):
    """A line from one place to another, with what it says."""

    points: Sequence[tuple[float, float]]
    text: str

    @property
    def place(self) -> tuple[float, float]:
        """Anchor of the text: the right end of a level line, else the middle."""
        (x, y), (other_x, other_y) = self.points
        return (max(x, other_x), y) if y == other_y else ((x + other_x) / 2, (y + other_y) / 2)


class _Axes:
    """Two logarithmic axes around values, in a picture of a size with margins, in units of its view box."""

    wide, high = 900, 400
    left, right, top, bottom = 92, 880, 22, 354

    def __init__(self, across: Iterable[float], up: Iterable[float]) -> None:
        self.x_low, self.x_high = _ends(across)
        self.y_low, self.y_high = _ends(up)

    def x(self, value: float) -> float:
        share = log10(value / self.x_low) / log10(self.x_high / self.x_low)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        share = log10(value / self.y_low) / log10(self.y_high / self.y_low)
        return self.bottom - share * (self.bottom - self.top)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.x(x), self.y(y)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = [*values]
    return min(known) / _MARGIN, max(known) * _MARGIN


def _ticks(low: float, high: float, text: Callable[[float], str]) -> list[tuple[float, str]]:
    """Powers of ten between two values, with their texts; fewer where there are many, between them where few."""
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    parts = (1, 2, 5) if len(powers) <= _FEW else (1,)
    places = [part * 10.0**power for power in powers for part in parts if low <= part * 10.0**power <= high]
    ticks = []
    for place in places[:: max(ceil(len(places) / _TICKS), 1)]:
        number, _, unit = text(place).partition(" ")
        ticks.append((place, f"{float(number.replace(',', '')):g} {unit}".rstrip()))  # no zeros after its point
    return ticks


def roofline(found: RoofPoints) -> dict[str, Any]:
    """The kernels under their roofs: FLOP/s by FLOP for each byte of DRAM traffic."""
    rows = found.points.to_dicts()
    speed, peaks, ridges = roofs(rows)
    axes = _Axes(
        [row["intensity_flop_per_byte"] for row in rows] + ridges,
        [row["achieved_flop_per_s"] for row in rows] + [*peaks.values()],
    )
    whole = sum(row["time_ns"] for row in rows) or 1
    longest = max(row["time_ns"] for row in rows) or 1
    names = shorten([row["name"] or "(no name)" for row in rows], _NAME)
    points = [
        Point(
            *axes.at(row["intensity_flop_per_byte"], row["achieved_flop_per_s"]),
            max(_LARGEST * sqrt(row["time_ns"] / longest), _SMALLEST),
            row["bound"] or "unbound",
            _kernel_text(outlets.short(name), row, whole),
            number if number <= _LISTED else None,
        )
        for number, (row, name) in enumerate(zip(rows, names, strict=True), 1)
    ]
    left = f"; without {units.plural(found.left_out, 'kernel')} that did no such work" if found.left_out else ""
    remark = f"{units.plural(len(rows), 'kernel')}{left}; area: time by {found.time_from}; at the clocks of ncu's runs"
    return _scatter(axes, points, _roofs(axes, speed, peaks), partial(text_of, "flop_per_s"), "{:g}".format) | {
        "remark": remark,
        "across": "FLOP for each byte of DRAM traffic",
        "up": "FLOP/s",
        "title": "Roofline",
        "key": [("memory", "bound by memory"), ("compute", "bound by compute"), ("unbound", "not known")],
    }


def _kernel_text(name: str, row: Mapping[str, Any], whole: int) -> str:
    share = f", {units.percent(row['roof_share'])} of its roof" if row["roof_share"] is not None else ""
    flops = text_of("achieved_flop_per_s", row["achieved_flop_per_s"])
    return f"{name}: {units.percent(row['time_ns'] / whole)} of the time, {flops}{share}"


def _roofs(axes: _Axes, speed: float, peaks: Mapping[str, float]) -> list[Line]:
    """The memory's roof up to the highest peak, and that of each precision from there on."""
    lines = []
    if speed:
        top = max(peaks.values(), default=axes.y_high)
        low, high = max(axes.x_low, axes.y_low / speed), min(axes.x_high, top / speed)
        if low < high:
            ends = [axes.at(low, low * speed), axes.at(high, high * speed)]
            lines.append(Line(ends, f"DRAM {units.rate(speed)}"))
    for precision, peak in peaks.items():
        start = max(axes.x_low, peak / speed) if speed else axes.x_low
        text = outlets.short(f"{precision} {units.flop(peak, units.operations(precision))}/s")
        lines.append(Line([axes.at(axes.x_high, peak), axes.at(min(start, axes.x_high), peak)], text))
    return lines


def copies(found: CopyPoints) -> dict[str, Any]:
    """Copies by size and bandwidth, under the most of each direction."""
    rows = found.points.to_dicts()
    links = found.links.to_dicts()
    axes = _Axes(
        [row["size_bytes"] for row in rows],
        [row["bandwidth_bytes_per_s"] for row in (*rows, *links)],
    )
    longest = max(row["total_ns"] for row in rows) or 1
    points = [
        Point(
            *axes.at(row["size_bytes"], row["bandwidth_bytes_per_s"]),
            max(_LARGEST * sqrt(row["total_ns"] / longest), _SMALLEST),
            _DIRECTIONS.get(row["direction"] or "", "other-way"),
            _copy_text(row),
        )
        for row in rows
    ]
    lines = [
        Line(
            [axes.at(axes.x_high, row["bandwidth_bytes_per_s"]), axes.at(axes.x_low, row["bandwidth_bytes_per_s"])],
            outlets.short(f"{row['direction'] or 'copies'}: {units.rate(row['bandwidth_bytes_per_s'])}"),
        )
        for row in links
    ]
    left = f"; without {units.plural(found.left_out, 'copy')} of further sizes" if found.left_out else ""
    most = "lines: the most that a copy of 1 MiB or more reached here, as far as there was one"
    shown = {point.kind for point in points}
    kinds = {kind: name for name, kind in _DIRECTIONS.items()} | {"other-way": "other"}
    return _scatter(axes, points, lines, units.rate, units.size) | {
        "remark": f"{most}; no report says what the link can do; area: time{left}",
        "across": "size of a copy",
        "up": "bandwidth",
        "title": "Copies against the link",
        "key": [(kind, name) for kind, name in kinds.items() if kind in shown],
    }


def _copy_text(row: Mapping[str, Any]) -> str:
    memories = " to ".join(filter(None, (row["source_memory"], row["target_memory"])))
    told = f"{row['direction'] or 'copy'}{memories and f', {memories}'}: {units.count(row['count'])} × "
    return outlets.short(
        f"{told}{units.size(row['size_bytes'])} at {units.rate(row['bandwidth_bytes_per_s'])}, "
        f"{units.time(row['total_ns'])} in all"
    )


def _scatter(
    axes: _Axes,
    points: Sequence[Point],
    lines: Sequence[Line],
    up: Callable[[float], str],
    across: Callable[[float], str],
) -> dict[str, Any]:
    """Points as the template draws them, the largest at the back."""
    return {
        "axes": axes,
        "columns": [(axes.x(at), text) for at, text in _ticks(axes.x_low, axes.x_high, across)],
        "rows": [(axes.y(at), text) for at, text in _ticks(axes.y_low, axes.y_high, up)],
        "points": sorted(points, key=lambda one: -one.size),
        "listed": [(point.number, point.text) for point in points if point.number],
        "lines": _labelled(lines),
    }


def _labelled(lines: Sequence[Line]) -> list[tuple[Line, float, float]]:
    """Lines with the places of their texts above them; of those that lie close together one below the other."""
    made: list[tuple[Line, float, float]] = []
    free = 0.0
    for line in sorted(lines, key=lambda one: one.place[1]):
        x, y = line.place
        free = max(y - 6, free)
        made.append((line, x - 6, free))
        free += _LABEL
    return made


def kernels(found: Measured) -> list[dict[str, Any]]:
    """The measured kernels with most time: what their warps wait for, and the lines that they are at."""
    rows = found.kernels.to_dicts()
    names = shorten([row["name"] or "(no name)" for row in rows], _NAME)
    made = []
    for row, name in zip(rows, names, strict=True):
        own = {
            part: rows.filter(rows.get_column("event_id") == row["event_id"]).to_dicts()
            for part, rows in (("reasons", found.reasons), ("lines", found.lines))
        }
        time = f"{units.time(row['time_ns'])} by {found.time_from}" if row["time_ns"] is not None else ""
        made.append({"name": name, "time": time, **own})
    return [one for one in made if one["reasons"] or one["lines"]]
