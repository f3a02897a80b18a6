"""The reports of one program: duplicates removed, those of one tool merged, grouped around each that gives the time.

Where reports are merged, times are shifted so that each begins where the one before it ends: they serve to look up what
launched which kernel, and are not times of the program.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Final

import polars as pl

from kanalyze import counter_model, errors, model, outlets, tools
from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.operators._kernel_groups import kernels_in
from kanalyze.analyses.shared.analysis import name_of, once_per_report
from kanalyze.decoder.fields import shortened
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table


def different_files(reports: Sequence[Report]) -> list[Report]:
    """Removes repeated files from `reports`: keeps the one in a capture, which says more, else the first."""
    kept: dict[object, Report] = {}
    for number, report in enumerate(reports):
        path = report.meta.read_from or report.meta.path
        key = (report.meta.tool, os.path.realpath(path), report.scope) if os.path.exists(path) else number  # noqa: PTH110 - raises nothing
        if key not in kept or (kept[key].meta.capture is None and report.meta.capture is not None):
            kept[key] = report
    return list(kept.values())


def different(reports: Sequence[Report]) -> list[Report]:
    """Removes repeated measurements from `reports` of one tool: files, copies of traces, parts of an ncu report.

    Of reports with the same kernels the one that belongs to a capture is kept.
    """
    files = different_files(reports)
    order = sorted(range(len(files)), key=lambda at: (-files[at].kind("kernel").height, files[at].meta.capture is None))
    kept: list[int] = []
    for at in order:
        if not any(_same_trace(files[at], files[of]) or _part_of(files[at], files[of]) for of in kept):
            kept.append(at)
    return [files[at] for at in sorted(kept)]


def _same_trace(report: Report, other: Report) -> bool:
    """Whether two traces have the same kernels at the same times; never for ranks and cycles of one capture."""
    if report.meta.timeless or other.meta.timeless:
        return False
    if report.meta.capture == other.meta.capture is not None or report.meta.rank != other.meta.rank:
        return False
    first, second = (one.seen("kernel").select("name", "start_ns", "dur_ns") for one in (report, other))
    return first.height > 0 and first.equals(second)


def _part_of(report: Report, other: Report) -> bool:
    """Whether an ncu report is contained in another; one of them may have shortened names and rounded durations."""
    if not (report.meta.timeless and other.meta.timeless):
        return False
    run, held = kernels_in(report), kernels_in(other).rename(lambda name: f"{name}_other")
    if run.is_empty() or run.height > held.height or run.get_column("dur_ns").has_nulls():
        return False
    places = held.head(held.height - run.height + 1).with_row_index("at").join(run.head(1), how="cross")
    begins = places.filter(_same_but_names()).get_column("at")
    for at in begins:
        both = pl.concat([run, held.slice(at, run.height)], how="horizontal")
        names = both.select(pl.col("name", "name_other").fill_null("")).iter_rows()
        if both.select(_same_but_names().all()).item() and all(shortened(a, b) or shortened(b, a) for a, b in names):
            return True
    return False


def _same_but_names() -> pl.Expr:
    """Whether the two launches of a row agree in all but their names: shape, process and duration.

    Durations may be rounded as ncu prints them: to hundredths of their unit.
    """
    same = [pl.col(name).eq_missing(pl.col(f"{name}_other")) for name in SHAPE]
    process = (pl.col("process_id") == pl.col("process_id_other")).fill_null(value=True)
    one, other = pl.col("dur_ns"), pl.col("dur_ns_other")
    longer = pl.max_horizontal(one, other)
    step = pl.lit(1)
    # ncu's details page prints a duration in the largest unit not above it
    for unit in (1_000, 1_000_000, 1_000_000_000):
        step = pl.when(longer >= unit).then(unit // 100).otherwise(step)
    rounded = (one % step == 0) | (other % step == 0)
    alike = (one == other) | (rounded & (2 * (one - other).abs() <= step))
    return pl.all_horizontal(*same, process, alike.fill_null(value=False))


_TIMES: Final = ("start_ns", "open_until_ns")

#: The largest event id, the first start and the last end of events.
_BOUNDS: Final = (
    pl.col("event_id").max().fill_null(-1),
    pl.col("start_ns").min().fill_null(0),
    (pl.col("start_ns") + pl.col("dur_ns").fill_null(0)).max().fill_null(0).alias("end"),
)

#: Tables of things that the reports share, each with the columns to deduplicate by.
_COMMON: Final = {"devices": ["device"], "source_files": ["file"], "symbols": None, "compiled_kernels": None}


def pooled(reports: Sequence[Report]) -> Report | None:
    """Merges `reports`, all of one tool; None for none. Cached: the same reports give the same object."""
    if not reports:
        return None
    return _pool(*reports) if len(reports) > 1 else reports[0]


@once_per_report
def _pool(first: Report, *others: Report) -> Report:
    reports = (first, *others)
    selective = counter_model.measured_some([one.meta.selective for one in reports])
    # no single recording is as long as all of them together
    return Report(replace(first.meta, selective=selective, end_ns=None), _Pool(reports))


class _Pool:
    """A source that concatenates the tables of several reports; see :class:`kanalyze.schema.Source`."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = reports

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in model.KINDS if any(kind in one.kinds for one in self._reports))

    def events(self, kind: str) -> pl.DataFrame:
        return model.EVENTS.select(self._concatenated(lambda one: one.kind(kind)))

    def table(self, name: str) -> pl.DataFrame:
        rows = self._concatenated(partial(self._table_of, name))
        if name in _COMMON:
            rows = rows.unique(_COMMON[name], keep="first", maintain_order=True)
        return model.READER_TABLES[name].select(rows)

    def close(self) -> None:
        for one in self._reports:
            one.close()

    def notes_of_read(self) -> pl.DataFrame:
        return self._concatenated(lambda one: one.notes_of_read())

    def _table_of(self, name: str, report: Report) -> pl.DataFrame:
        """A table of one report; without the launch numbers of another capture, which number other launches."""
        rows = report.table(name)
        elsewhere = report.meta.capture != self._reports[0].meta.capture
        return rows.clear() if name == "launch_numbers" and elsewhere else rows

    def _concatenated(self, table: Callable[[Report], pl.DataFrame]) -> pl.DataFrame:
        """Concatenates a table of all reports, with event ids, process ids and times shifted to be distinct."""
        frames = [table(one) for one in self._reports]
        return pl.concat(
            frame.with_columns(pl.col(name) + by for name, by in moves.items() if name in frame.columns)
            for frame, moves in zip(frames, self._moves, strict=True)
        )

    @cached_property
    def _moves(self) -> list[dict[str, int]]:
        """The shifts of each report, by column; that of process ids is 0 unless an earlier report has one of them."""
        shifts, first_id, end, seen = list[dict[str, int]](), 0, 0, set[int]()
        for report in self._reports:
            kinds = [frame for kind in report.kinds if (frame := report.kind(kind)).height] or [model.EVENTS.empty()]
            processes = {number for frame in kinds for number in frame.get_column("process_id").drop_nulls().unique()}
            last_ids, starts, ends = zip(*(frame.select(_BOUNDS).row(0) for frame in kinds), strict=True)
            start = end - min(starts) if shifts else 0
            process = 0 if processes.isdisjoint(seen) else 1 + max(seen) - min(processes)
            moves = dict.fromkeys(("event_id", "parent_id"), first_id) | dict.fromkeys(_TIMES, start)
            shifts.append(moves | {"process_id": process})
            first_id, end = first_id + 1 + max(last_ids), max(ends) + start
            seen |= {one + process for one in processes}
        return shifts


REPORT: Final = Column("report", pl.String, "Path of the report that gives the time.")


@dataclass(frozen=True)
class Together:
    """The reports of one program, by what they provide."""

    base: Report  # that provides the time: of nsys, else of torch.profiler
    torch: Report | None  # the merged torch.profiler report, unless it is the base
    ncu: Report | None  # the merged ncu report
    given: tuple[Report, ...]  # as they were given, without duplicates

    @property
    def operators(self) -> Report | None:
        """The report that has operators."""
        return next((one for one in (self.torch, self.base) if one is not None and "op" in one.kinds), None)

    @property
    def reports(self) -> list[Report]:
        """The report of each tool."""
        return [one for one in (self.base, self.torch, self.ncu) if one is not None]


def together(
    table: Table | str,
    reports: Sequence[Report],
    where: Where,
    fits: Callable[[Report, Report], bool] = lambda *_: True,
) -> list[Together]:
    """Groups the given reports around each that provides the time; `where` narrows that one.

    Several nsys reports, or without any several of torch.profiler, are runs or ranks with a time of their own. All
    others are merged: traces of ranks beside one nsys report, measurements of ncu. If there are as many traces as nsys
    reports, they are paired in the order given, if each `fits` its one; else a report has all traces that fit it. A
    report in a capture's folder belongs only to the reports of that capture, if one of them provides the time.
    Duplicates are removed.

    Raises:
        CannotTellError: No report provides the time.
    """
    files = different_files(reports)
    timed = [[report for report in files if report.meta.tool == tool.name] for tool in tools.TOOLS if tool.timed]
    bases, *others = [some for some in timed if some] or [[]]
    if not bases:
        raise errors.CannotTellError.without_time(name_of(table), [report.meta.path for report in reports])
    traces, counters = list(chain(*others)), [report for report in files if report.meta.timeless]
    captures = {report.meta.capture for report in bases} - {None}
    report_sets = []
    for at, base in enumerate(bases):
        elsewhere = captures - {base.meta.capture}
        beside = ([report for report in some if report.meta.capture not in elsewhere] for some in (traces, counters))
        own, ncu = map(different, beside)
        paired = len(own) == len(bases) > 1 and all(report.meta.capture is None for report in (*own, *bases))
        paired = paired and all(map(fits, bases, own))
        own = own[at : at + 1] if paired else [report for report in own if fits(base, report)]
        ncu = [report for report in ncu if fits(base, report)]
        report_sets.append(Together(base.narrow(**where), pooled(own), pooled(ncu), (base, *own, *ncu)))
    return report_sets


def several(table: Table) -> Table:
    """The form of `table` for several reports that each provide a time, with a column `report`."""
    columns = (REPORT, *table.columns)
    return replace(table, columns=columns, when="where several reports give time, each its own", groupings=())


def of_each(table: Table, report_sets: Sequence[Together], make: Callable[[Together], pl.DataFrame]) -> pl.DataFrame:
    """Concatenates the tables that `make` gives for each set of reports; of several sets, with the column `report`."""
    if len(report_sets) == 1:
        return make(report_sets[0])
    parts = [
        make(report_set).with_columns(pl.lit(outlets.name(report_set.base.meta.path)).alias(REPORT.name))
        for report_set in report_sets
    ]
    return several(table).select(pl.concat(parts))
