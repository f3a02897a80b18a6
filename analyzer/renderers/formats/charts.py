"""Pictures of measured kernels and of copies: where each point and line stands, in the HTML report and in print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, floor, log10, sqrt
from typing import TYPE_CHECKING, Any, Final

from kanalyze import outlets, units
from kanalyze.renderers.page import kernel_names, text_of

if TYPE_CHECKING:
    from kanalyze.analyses.joining.joined import RoofPoints
    from kanalyze.analyses.page.file_page import CopyPoints

    Place = tuple[float, float]

    #: A point: where, the time that its area is, its class, what it says. A line: its ends, and what it says.
    Dot = tuple[Place, int, str, str]
    Line = tuple[Place, Place, str]

#: Width of kernel names in pictures, in characters.
CHART_NAME: Final = 70

#: Classes of points by the direction of a copy.
_DIRECTIONS: Final = {"Host-to-Device": "to-device", "Device-to-Host": "to-host", "Device-to-Device": "on-device"}


class _Axes:
    """Two logarithmic axes around values, in a picture of a size with margins, in units of its view box."""

    wide, high = 900, 400
    left, right, top, bottom = 92, 880, 22, 354

    def __init__(self, across: Sequence[float], up: Sequence[float]) -> None:
        self.across, self.up = ((min(values, default=1.0) / 2, max(values, default=1.0) * 2) for values in (across, up))

    def at(self, x: float, y: float) -> Place:
        """Where a point stands."""
        share_x, share_y = (log10(at / low) / log10(high / low) for at, (low, high) in ((x, self.across), (y, self.up)))
        return self.left + share_x * (self.right - self.left), self.bottom - share_y * (self.bottom - self.top)


def _ticks(ends: Place, text: Callable[[float], str]) -> list[tuple[float, str]]:
    """Powers of ten between two values, with their texts; fewer where there are many, between them where few."""
    low, high = ends
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    parts = (1, 2, 5) if len(powers) <= 3 else (1,)  # noqa: PLR2004 - few for an axis
    places = [part * 10.0**power for power in powers for part in parts if low <= part * 10.0**power <= high]
    ticks = []
    for place in places[:: max(ceil(len(places) / 7), 1)]:
        number, _, unit = text(place).partition(" ")
        ticks.append((place, f"{float(number.replace(',', '')):g} {unit}".rstrip()))  # no zeros after its point
    return ticks


def roofline_chart(points: RoofPoints, listed: int = 6) -> dict[str, Any]:
    """The kernels under their roofs, the first ones listed: FLOP/s by FLOP for each byte of DRAM traffic."""
    rows = points.points.to_dicts()
    # bandwidth of the memory (0 if unknown), and FLOP/s of each precision that limits a kernel
    speed = max((row["peak_dram_bytes_per_s"] or 0 for row in rows), default=0)
    peaks: dict[str, float] = {}
    for row in rows:
        if row["precision"] and row["peak_flop_per_s"]:
            peaks[row["precision"]] = max(peaks.get(row["precision"], 0), row["peak_flop_per_s"])
    axes = _Axes(
        [row["intensity_flop_per_byte"] for row in rows] + [peak / speed for peak in peaks.values() if speed],
        [row["achieved_flop_per_s"] for row in rows] + [*peaks.values()],
    )
    whole = sum(row["time_ns"] for row in rows) or 1
    names = kernel_names.shorten([row["name"] or "(no name)" for row in rows], CHART_NAME)
    dots = []
    for row, name in zip(rows, names, strict=True):
        share = f", {units.percent(row['roof_share'])} of its roof" if row["roof_share"] is not None else ""
        flops = text_of("achieved_flop_per_s", row["achieved_flop_per_s"])
        text = f"{outlets.short(name)}: {units.percent(row['time_ns'] / whole)} of the time, {flops}{share}"
        place = row["intensity_flop_per_byte"], row["achieved_flop_per_s"]
        dots.append((place, row["time_ns"], row["bound"] or "unbound", text))
    left = f"; without {units.plural(points.left_out, 'kernel')} that did no such work" if points.left_out else ""
    kernels = units.plural(len(rows), "kernel")
    # the memory's roof up to the highest peak, and that of each precision from there on
    lines: list[Line] = []
    (left_end, right_end), (bottom, top) = axes.across, axes.up
    if speed:
        low, high = max(left_end, bottom / speed), min(right_end, max(peaks.values(), default=top) / speed)
        if low < high:
            lines.append(((low, low * speed), (high, high * speed), f"DRAM {units.rate(speed)}"))
    for precision, peak in peaks.items():
        start = max(left_end, peak / speed) if speed else left_end
        label = outlets.short(f"{precision} {units.flop(peak, units.operations(precision))}/s")
        lines.append(((right_end, peak), (min(start, right_end), peak), label))
    return {
        **_scatter(axes, dots, lines, partial(text_of, "flop_per_s"), "{:g}".format, listed),
        "remark": f"{kernels}{left}; area: time by {points.time_from}; at the clocks of ncu's runs",
        "across": "FLOP for each byte of DRAM traffic",
        "up": "FLOP/s",
        "title": "Roofline",
        "key": [("memory", "bound by memory"), ("compute", "bound by compute"), ("unbound", "not known")],
    }


def copies_chart(copies: CopyPoints) -> dict[str, Any]:
    """Copies by size and bandwidth, under the most of each direction."""
    rows, links = copies.points.to_dicts(), copies.links.to_dicts()
    axes = _Axes([row["size_bytes"] for row in rows], [row["bandwidth_bytes_per_s"] for row in (*rows, *links)])
    dots = []
    for row in rows:
        memories = " to ".join(filter(None, (row["source_memory"], row["target_memory"])))
        direction = f"{row['direction'] or 'copy'}{memories and f', {memories}'}"
        size, rate = units.size(row["size_bytes"]), units.rate(row["bandwidth_bytes_per_s"])
        text = f"{direction}: {units.count(row['count'])} × {size} at {rate}, {units.time(row['total_ns'])} in all"
        kind = _DIRECTIONS.get(row["direction"] or "", "other-way")
        dots.append(((row["size_bytes"], row["bandwidth_bytes_per_s"]), row["total_ns"], kind, outlets.short(text)))
    least, most = axes.across
    rates = [(row["direction"] or "copies", row["bandwidth_bytes_per_s"]) for row in links]
    lines = [((most, at), (least, at), outlets.short(f"{way}: {units.rate(at)}")) for way, at in rates]
    left = f"; without {units.plural(copies.left_out, 'copy')} of further sizes" if copies.left_out else ""
    reached = "lines: the most that a copy of 1 MiB or more reached here, as far as there was one"
    shown = {kind for _, _, kind, _ in dots}
    kinds = {kind: name for name, kind in _DIRECTIONS.items()} | {"other-way": "other"}
    return {
        **_scatter(axes, dots, lines, units.rate, units.size),
        "remark": f"{reached}; no report says what the link can do; area: time{left}",
        "across": "size of a copy",
        "up": "bandwidth",
        "title": "Copies against the link",
        "key": [(kind, name) for kind, name in kinds.items() if kind in shown],
    }


def _scatter(  # noqa: PLR0913 - what is in the picture
    axes: _Axes,
    dots: Sequence[Dot],
    lines: Sequence[Line],
    up: Callable[[float], str],
    across: Callable[[float], str],
    listed: int = 0,
) -> dict[str, Any]:
    """Points as the template draws them, the largest at the back; texts of lines that lie close are below each other.

    The text of a level line is at its right end, that of another in its middle. The first points are numbered.
    """
    longest = max((ns for _, ns, _, _ in dots), default=0) or 1
    points: list[dict[str, Any]] = []
    for number, (place, ns, kind, text) in enumerate(dots, 1):
        x, y = axes.at(*place)
        size = max(16.0 * sqrt(ns / longest), 3.5)
        named = {"kind": kind, "text": text, "number": number if number <= listed else None}
        points.append({"x": x, "y": y, "size": size, **named})
    placed = []
    for start, end, text in lines:
        (x, y), (other_x, other_y) = ends = [axes.at(*start), axes.at(*end)]
        middle = (max(x, other_x), y) if y == other_y else ((x + other_x) / 2, (y + other_y) / 2)
        placed.append(({"points": ends, "text": text}, middle))
    labelled, free = [], 0.0
    for line, (x, y) in sorted(placed, key=lambda one: one[1][1]):
        free = max(y - 6, free)
        labelled.append((line, x - 6, free))
        free += 20.0
    return {
        "axes": axes,
        "columns": [(axes.at(value, axes.up[0])[0], text) for value, text in _ticks(axes.across, across)],
        "rows": [(axes.at(axes.across[0], value)[1], text) for value, text in _ticks(axes.up, up)],
        "points": sorted(points, key=lambda one: -one["size"]),
        "listed": [(point["number"], point["text"]) for point in points[:listed]],
        "lines": labelled,
    }
