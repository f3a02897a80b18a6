"""The steady part of a program: the longest run of steady iterations, one directly after the other.

Definitions: docs/definitions.md, section 4, "Iterations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.iterations._marks import launched_work
from kanalyze.analyses.iterations.iterations import STEADY, all_iterations
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.window import Window

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Fewest iterations of a run that adjoin each other, for a run to be one of these.
_FEWEST: Final = 3


#: The host runs ahead where the device's work ends later than its iteration by this part of an iteration.
_NOTABLE: Final = 0.1


class SteadyPart(NamedTuple):
    """The steady part of a report, and the iterations that it is one of.

    Attributes:
        window: Its window, with the number of iterations and what one is called.
        process_id: The process whose iterations they are.
        device: The GPU on which that process was busy longest.
        found_by: How the iterations were found.
        first: What gives its first iteration as a window.
        last: What gives its last iteration as a window.
        rows: All iterations of this process, of the table `iterations`.
    """

    window: Window
    process_id: int | None
    device: int | None
    found_by: str
    first: str
    last: str
    rows: pl.DataFrame

    @property
    def number(self) -> int:
        """The number of iterations in the steady part."""
        return self.window.count or 1

    @property
    def each(self) -> str:
        """What one iteration is called."""
        return self.window.each or "iteration"

    @property
    def ns(self) -> int:
        """The length of the steady part."""
        return (self.window.end_ns or 0) - (self.window.start_ns or 0)

    @property
    def usual(self) -> pl.DataFrame:
        """All steady iterations of this name, in the steady part and elsewhere."""
        return self.rows.filter((pl.col("kind") == STEADY) & (pl.col("name") == self.each))


@once_per_report
def steady_part(report: Report) -> SteadyPart | None:
    """The steady part of the process in scope that kept the devices in scope busy longest; None if nothing repeats.

    Of several names the one whose steady iterations launched most kernel time, and of several runs of these the one
    with most of them; of equal ones the first.
    """
    rows = all_iterations(report)
    ran = device_operations(report).group_by("process_id").agg(ns=(pl.col("end") - pl.col("start")).sum())
    found = rows.filter(pl.col("kind") == STEADY).join(ran, on="process_id", how="inner", nulls_equal=True)
    if found.is_empty():
        return None
    process = found.sort("ns", "process_id", descending=[True, False]).item(0, "process_id")
    every = rows.filter(pl.col("process_id").eq_missing(pl.lit(process, pl.Int64)))
    usual = (
        every.filter(pl.col("kind") == STEADY)
        .group_by("name", maintain_order=True)
        .agg(pl.col("kernel_ns", "device_ns").sum())
    )
    name = usual.sort("kernel_ns", "device_ns", descending=True, maintain_order=True).item(0, "name")
    run = _longest_run(every, name, adjoining=True)
    if run.height < _FEWEST:
        run = _longest_run(every, name, adjoining=False)
    start, end = _until_work_ended(report, process, run)
    window = Window(
        start,
        end,
        name=STEADY,
        process=process,
        count=run.height,
        each=run.item(0, "name"),
    )
    first, last = run.item(0, "window"), run.item(-1, "window")
    return SteadyPart(window, process, run.item(0, "device"), run.item(0, "found_by"), first, last, every)


def _until_work_ended(report: Report, process: int | None, run: pl.DataFrame) -> tuple[int, int]:
    """Start and end of the run; where the host runs ahead, when the device had done what was launched before them.

    So the window has the device's work of these iterations, not that of the ones before.
    """
    sides: tuple[int, int] = run.item(0, "start_ns"), run.item(-1, "end")
    work = launched_work(report).filter(pl.col("process_id").eq_missing(pl.lit(process, pl.Int64)))
    at, ended = work.get_column("at"), work.get_column("end").cum_max()
    done = []
    for side in sides:
        before = int(at.search_sorted(side, side="left"))
        done.append(max(side, ended[before - 1]) if before else side)
    late = max(after - side for after, side in zip(done, sides, strict=True))
    if late < _NOTABLE * median_of(run, "dur_ns") or done[1] <= done[0]:
        return sides
    return done[0], done[1]


def _longest_run(rows: pl.DataFrame, name: str, *, adjoining: bool) -> pl.DataFrame:
    """Of the runs of steady iterations of one name the one with most of them, then the one that takes longest.

    With `adjoining` each begins where the one before ended; else there may be time between, but no other iteration.
    """
    end = pl.col("start_ns") + pl.col("dur_ns")
    own = rows.with_columns(end=end, usual=(pl.col("kind") == STEADY) & (pl.col("name") == name))
    near = pl.col("start_ns") == pl.col("end").shift(1) if adjoining else pl.lit(value=True)
    goes_on = (near & pl.col("usual") & pl.col("usual").shift(1)).fill_null(value=False)
    runs = own.with_columns(run=(~goes_on).cum_sum()).filter("usual")
    sums = runs.group_by("run", maintain_order=True).agg(pl.len(), pl.col("dur_ns").sum())
    best = sums.sort("len", "dur_ns", descending=True, maintain_order=True).item(0, "run")
    return runs.filter(pl.col("run") == best)
