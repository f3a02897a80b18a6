"""Builds the page of a noise floor: how much runs of one program differ, and how many repeats show a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze import units
from kanalyze.renderers.page.time import Page
from kanalyze.renderers.text.grid import Column, section

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._noise import Noise


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
    columns = (
        Column("mean", lambda row: units.time(row[1][0])),
        Column("varies by", lambda row: units.percent(row[1][1].spread)),
        Column("two runs within", lambda row: units.percent(row[1][1].least_ratio - 1)),
        Column("2 % needs", lambda row: _runs(row[1][1].repeats.get(0.02)), spare=True),
    )
    sections = []
    for title, what, rows in (("BUCKETS", "bucket", found.buckets), ("KERNELS AND COPIES", "kernel", found.kernels)):
        if rows:
            own = (*columns, Column(what, lambda row: row[0], left=True))
            sections.append(section(title, [*rows.items()], own, top, "between runs", named=rows is found.kernels))
    more = "kanalyze compare --noise RUN… -o floor.json\nkanalyze compare BASE NEW --floor floor.json"
    return Page([f"noise of {found.name}"], answer, sections, more)


def _runs(number: int | None) -> str:
    return "more than 1,000" if number is None else str(number)
