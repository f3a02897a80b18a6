"""Plots the roofline: every kernel under its GPU's roofs, marker area by total time."""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any, Final

from kanalyze import outlets, units
from kanalyze.renderers.tables.plots import FORMATS as PICTURES
from kanalyze.renderers.tables.plots import picture
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from kanalyze.analyses.joining._roof_points import RoofPoints

FORMATS: Final = (*PICTURES, "html")

#: Height and width in inches.
_SIZE: Final = (6.2, 11.0)
_NAME: Final = 34
_LISTED: Final = 12
_LARGEST: Final = 1600.0
_SMALLEST: Final = 30.0
_COLOURS: Final = {"memory": "#2a6fbb", "compute": "#c8553d"}
_MARGIN: Final = 4.0
_HEADROOM: Final = 2.5

#: Content security policy of the page: the picture's own styles, no script, and nothing from elsewhere.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(found: RoofPoints, form: str) -> bytes:
    """Renders the plot in one of :data:`FORMATS`.

    Raises:
        OutputError: matplotlib is not installed.
    """
    drawn = picture(partial(_draw, found), "svg" if form == "html" else form, *_SIZE)
    return _page(found, drawn) if form == "html" else drawn


def _draw(found: RoofPoints, axes: Any) -> None:  # noqa: ANN401 - matplotlib is not installed everywhere
    rows = found.points.to_dicts()
    axes.set(xscale="log", yscale="log", xlabel="FLOP for each byte of DRAM traffic", ylabel="FLOP/s")
    axes.set_title(outlets.picture(f"Roofline of {found.title}"))
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    if rows:
        _roofs(axes, rows)
        _points(axes, rows)
    else:
        axes.text(0.5, 0.5, "no kernel did floating-point work", transform=axes.transAxes, ha="center")
    left = f"; {units.plural(found.left_out, 'kernel')} without FLOP left out" if found.left_out else ""
    axes.set_title(
        outlets.picture(f"area: time by {found.time_from}; blue: memory-bound, red: compute-bound{left}"),
        loc="right",
        fontsize=8,
        fontweight="normal",
        color="#666666",
    )


def _roofs(axes: Any, rows: list[dict[str, Any]]) -> None:  # noqa: ANN401 - as above
    """Draws the memory roof, and the roof of each precision that limits a kernel."""
    speed = max((row["peak_dram_bytes_per_s"] or 0 for row in rows), default=0)
    peaks: dict[str, float] = {}
    for row in rows:
        if row["precision"] and row["peak_flop_per_s"]:
            peaks[row["precision"]] = max(peaks.get(row["precision"], 0), row["peak_flop_per_s"])
    ridges = [peak / speed for peak in peaks.values()] if speed else []
    across = [row["intensity_flop_per_byte"] for row in rows] + ridges
    low, high = min(across) / _MARGIN, max(across) * _MARGIN
    top = max(peaks.values(), default=speed * high)
    if speed:
        end = min(high, top / speed)
        axes.plot([low, end], [low * speed, end * speed], color="#333333", linewidth=1.4)
        middle = sqrt(low * end)
        axes.annotate(
            f"DRAM {units.rate(speed)}",
            (middle, middle * speed),
            (-8, 4),
            textcoords="offset points",
            ha="right",
            color="#333333",
        )
    for precision, peak in peaks.items():
        start = max(low, peak / speed) if speed else low
        axes.plot([start, high], [peak, peak], color="#333333", linewidth=1.4)
        axes.annotate(
            outlets.picture(f"{precision} {units.flop(peak, units.operations(precision))}/s"),
            (high, peak),
            (-4, 4),
            textcoords="offset points",
            ha="right",
        )
    bottom = min(row["achieved_flop_per_s"] for row in rows)
    axes.set(xlim=(low, high), ylim=(bottom / _MARGIN, top * _HEADROOM))


def _points(axes: Any, rows: list[dict[str, Any]]) -> None:  # noqa: ANN401 - as above
    """Draws the kernels, longest at the back; the longest ones are numbered and listed."""
    longest = max(row["time_ns"] for row in rows) or 1
    names = shorten([row["name"] or "(no name)" for row in rows], _NAME)
    whole = sum(row["time_ns"] for row in rows) or 1
    for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
        at = (row["intensity_flop_per_byte"], row["achieved_flop_per_s"])
        size = max(_LARGEST * row["time_ns"] / longest, _SMALLEST)
        listed = number <= _LISTED
        roof = f", {units.percent(row['roof_share'])} of the roof" if row["roof_share"] is not None else ""
        label = (
            f"{number}  {outlets.picture(name)}\n    {units.percent(row['time_ns'] / whole)} of the time{roof}"
            if listed
            else None
        )
        colour = _COLOURS.get(row["bound"], "#888888")
        axes.scatter(*at, s=size, color=colour, alpha=0.55, edgecolors="white", linewidths=0.8, label=label)
        if listed:
            shift = (sqrt(size) / 2 + 2, -3)
            axes.annotate(str(number), at, shift, textcoords="offset points", fontsize=8, fontweight="bold")
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    for handle in legend.legend_handles:
        handle.set_sizes([40])


def _page(found: RoofPoints, picture: bytes) -> bytes:
    """Embeds the SVG picture, without its XML prolog, in an HTML page."""
    svg = picture[picture.index(b"<svg") :].decode()
    title = outlets.html(f"Roofline of {found.title}")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return f'<!doctype html>\n<meta charset="utf-8">\n{policy}\n<title>{title}</title>\n{svg}\n'.encode()
