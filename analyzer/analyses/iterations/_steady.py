"""The steady part of a program: the longest run of steady iterations, one directly after the other.

Definitions: docs/definitions.md, section 4, "Iterations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.idle._window_ledgers import window_ledgers
from kanalyze.analyses.iterations._marks import launched_work, of_process
from kanalyze.analyses.iterations.iterations import STEADY, iterations_by_launches, judged_iterations
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.columns.grouping import grouped
from kanalyze.errors import CannotTellError
from kanalyze.intervals import BEFORE_ALL
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
        rows: All iterations of this process, as :func:`judged_iterations` gives them.
        adjoining: Whether each iteration of the steady part begins where the one before ended.
        lengths: How long each steady iteration of this name takes, in the steady part and elsewhere, in ns; where the
            host runs ahead, until the device has done its work from when it had done that of the one before.
    """

    window: Window
    process_id: int | None
    device: int | None
    found_by: str
    first: str
    last: str
    rows: pl.DataFrame
    adjoining: bool
    lengths: pl.Series

    @property
    def number(self) -> int:
        """The number of iterations in the steady part."""
        return self.window.count or 1

    @property
    def each(self) -> str:
        """Name of one iteration."""
        return self.window.each or "iteration"

    @property
    def ns(self) -> int:
        """The length of the steady part."""
        return (self.window.end_ns or 0) - (self.window.start_ns or 0)

    @property
    def run(self) -> pl.DataFrame:
        """The iterations of the steady part."""
        usual = self.usual.sort("start_ns")
        first, last = (usual.get_column("window").index_of(window) for window in (self.first, self.last))
        return usual.slice(first or 0, (last or 0) - (first or 0) + 1)

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
    return _steady_part_of(report, judged_iterations(report))


def steady_part_by_launches(report: Report) -> SteadyPart | None:
    """The :func:`steady_part` of the iterations that launches tell, where the program has marks, too."""
    return _steady_part_of(report, iterations_by_launches(report))


def _steady_part_of(report: Report, rows: pl.DataFrame) -> SteadyPart | None:
    took = (pl.col("end") - pl.col("start")).sum().alias("ns")
    ran = grouped(device_operations(report), ["process_id"], [took])
    found = rows.filter(pl.col("kind") == STEADY).join(ran, on="process_id", how="inner", nulls_equal=True)
    if found.is_empty():
        return None
    process = found.sort("ns", "process_id", descending=[True, False]).item(0, "process_id")
    every = rows.filter(of_process(process))
    usual = (
        every.filter(pl.col("kind") == STEADY)
        .group_by("name", maintain_order=True)
        .agg(pl.col("kernels_ns", "device_ns").sum())
    )
    name = usual.sort("kernels_ns", "device_ns", descending=True, maintain_order=True).item(0, "name")
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
    first, last, device = run.item(0, "window"), run.item(-1, "window"), run.item(0, "device")
    adjoining = run.get_column("dur_ns").sum() == run.item(-1, "end") - run.item(0, "start_ns")
    lengths = _lengths(report, process, every, name)
    return SteadyPart(window, process, device, run.item(0, "found_by"), first, last, every, adjoining, lengths)


def _lengths(report: Report, process: int | None, rows: pl.DataFrame, name: str) -> pl.Series:
    """How long each steady iteration of one name takes; what the device takes for each, where the host runs ahead.

    Of one that follows no other, nothing tells when the device had done what was launched before.
    """
    end = pl.col("start_ns") + pl.col("dur_ns")
    follows = (pl.col("start_ns") == end.shift(1)).fill_null(value=False)
    own = rows.with_columns(end=end, follows=follows).filter((pl.col("kind") == STEADY) & (pl.col("name") == name))
    work = _work_of(report, process)
    since, until = (done_before(work, own.get_column(side)) for side in ("start_ns", "end"))
    done = own.with_columns(since=since, until=until)
    late = done.select((pl.col("until") - pl.col("end")).median()).item()
    lengths = done.filter("follows").select(pl.col("until") - pl.col("since")).to_series()
    lengths = lengths.filter(lengths > 0)
    ahead = late >= _NOTABLE * median_of(own, "dur_ns") and len(lengths)
    return lengths if ahead else own.get_column("dur_ns")


def known_steady_part(report: Report) -> SteadyPart | None:
    """The :func:`steady_part`; None also where the report cannot tell."""
    try:
        return steady_part(report)
    except CannotTellError:
        return None


def spread_of(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """Least and most of each bucket over the iterations of the steady part: columns bucket, min_ns and max_ns.

    Each begins and ends where the steady part would. Empty where there is time between them, since their average holds
    that.
    """
    if not steady.adjoining:
        return pl.DataFrame(schema={"bucket": pl.String, "min_ns": pl.Int64, "max_ns": pl.Int64})
    every = _spans(report, steady, steady.run)
    spans = every.filter(pl.col("end") > pl.col("start"))
    found = window_ledgers(report.whole, spans)
    columns = {f"{bucket}_ns": bucket for bucket in BUCKETS}
    own = found.filter(pl.col("device") == steady.device)
    long = own.select(*columns).unpivot(variable_name="bucket", value_name="ns")
    sums = long.group_by("bucket", maintain_order=True).agg(min_ns=pl.col("ns").min(), max_ns=pl.col("ns").max())
    if spans.height < every.height:  # of which each bucket takes nothing
        sums = sums.with_columns(min_ns=pl.lit(0, dtype=pl.Int64))
    return sums.with_columns(pl.col("bucket").replace_strict(columns)).filter(pl.col("max_ns") > 0)


def lengths_ns(report: Report, steady: SteadyPart) -> pl.Series:
    """The lengths of the steady iterations of this name, each as the steady part would begin and end it."""
    spans = _spans(report, steady, steady.usual.sort("start_ns"))
    return (spans.get_column("end") - spans.get_column("start")).alias("dur_ns")


def _spans(report: Report, steady: SteadyPart, rows: pl.DataFrame) -> pl.DataFrame:
    """Start and end of each of the steady iterations `rows`, as the steady part would begin and end it.

    Where the host runs ahead, that is when the device had done its work.
    """
    start, end = rows.get_column("start_ns"), rows.get_column("start_ns") + rows.get_column("dur_ns")
    own = steady.run.select("start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    if (own.item(0, "start_ns"), own.item(-1, "end_ns")) != (steady.window.start_ns, steady.window.end_ns):
        work = _work_of(report, steady.process_id)
        start, end = done_before(work, start), done_before(work, end)
    return pl.DataFrame({"start": start, "end": end})


def _until_work_ended(report: Report, process: int | None, run: pl.DataFrame) -> tuple[int, int]:
    """Start and end of the run; where the host runs ahead, when the device had done what was launched before them.

    So the window has the device's work of these iterations, not that of the ones before.
    """
    sides: tuple[int, int] = run.item(0, "start_ns"), run.item(-1, "end")
    done = done_before(_work_of(report, process), pl.Series(sides, dtype=pl.Int64)).to_list()
    late = max(after - side for after, side in zip(done, sides, strict=True))
    if late < _NOTABLE * median_of(run, "dur_ns") or done[1] <= done[0]:
        return sides
    return done[0], done[1]


def _work_of(report: Report, process: int | None) -> pl.DataFrame:
    return launched_work(report).filter(of_process(process))


def done_before(work: pl.DataFrame, points: pl.Series) -> pl.Series:
    """When the device had done what was launched before each of `points`, and at least the point itself."""
    ended = pl.concat([pl.Series("end", [BEFORE_ALL], dtype=pl.Int64), work.get_column("end").cum_max()])
    before = work.get_column("at").search_sorted(points, side="left")
    reached = ended.gather(before)
    return reached.zip_with(reached > points, points)


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
