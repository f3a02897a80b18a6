"""Builds the page of a noise floor: how much runs of one program differ, and how many repeats show a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze import units
from kanalyze.renderers.page.time import Page
from kanalyze.renderers.text.grid import Grid, Head, Section, of

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._noise import Noise
    from kanalyze.analyses.comparing._statistics import NoiseFloor


def noise_page(found: Noise, top: int) -> Page:
    """Builds the page of a noise floor, at most `top` rows per table."""
    step = found.step
    needed = ", ".join(f"{effect:.0%}: {_runs(number)}".replace("%", " %") for effect, number in step.repeats.items())
    answer = (
        f"Between {units.plural(step.runs, 'run')} an iteration ({found.each}) of {units.time(found.mean_ns)} varies "
        f"by {units.percent(step.spread)} (standard deviation; at most {units.percent(step.spread_high)} in 95 of 100 "
        f"cases). Two single runs lie within {units.percent(found.floor)} of each other. Runs of each side that show "
        f"a change nine times in ten: {needed}."
    )
    heads = (Head("mean"), Head("varies by"), Head("two runs within"), Head("2 % needs", spare=True))
    sections = []
    for title, what, rows in (("BUCKETS", "bucket", found.buckets), ("KERNELS AND COPIES", "kernel", found.kernels)):
        cells = [_row(name, *one) for name, one in [*rows.items()][:top]]
        grid = Grid((*heads, Head(what, left=True)), cells, named=rows is found.kernels)
        sections += [Section(title, of(len(cells), len(rows), "between runs"), grid)] if rows else []
    more = "kanalyze compare --noise RUN… -o floor.json\nkanalyze compare BASE NEW --floor floor.json"
    return Page([f"noise of {found.name}"], answer, sections, more)


def _runs(number: int | None) -> str:
    return "more than 1,000" if number is None else str(number)


def _row(name: str, mean_ns: float, floor: NoiseFloor) -> tuple[str, ...]:
    within = units.percent(floor.least_ratio - 1)
    return units.time(mean_ns), units.percent(floor.spread), within, _runs(floor.repeats.get(0.02)), name
