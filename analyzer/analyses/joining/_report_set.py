"""Sorts the reports of one program by what they provide: the time, the operators, the counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import outlets
from kanalyze.analyses.joining._deduplicate import different, different_files
from kanalyze.analyses.joining._merged_report import pooled
from kanalyze.analyses.shared.requirements import name_of
from kanalyze.errors import CannotTellError
from kanalyze.schema import Column
from kanalyze.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Report, Where
    from kanalyze.schema import Table

REPORT: Final = Column("report", pl.String, "Path of the report that gives the time.")


@dataclass(frozen=True)
class Together:
    """The reports of one program, by what they provide.

    Attributes:
        base: The report that provides the time: of nsys, else of torch.profiler.
        torch: The merged torch.profiler report, unless it is the base.
        ncu: The merged ncu report.
        given: All reports as they were given, without duplicates.
    """

    base: Report
    torch: Report | None
    ncu: Report | None
    given: tuple[Report, ...]

    @property
    def operators(self) -> Report | None:
        """The report that has operators."""
        return next((one for one in (self.torch, self.base) if one is not None and "op" in one.kinds), None)

    @property
    def reports(self) -> list[Report]:
        """The report of each tool."""
        return [one for one in (self.base, self.torch, self.ncu) if one is not None]


def together(table: Table | str, reports: Sequence[Report], where: Where) -> list[Together]:
    """Groups the given reports around each that provides the time; `where` narrows that one.

    Several nsys reports, or without any several of torch.profiler, are runs or ranks with a time of their own. All
    others are merged: traces of ranks beside one nsys report, measurements of ncu. If there are as many traces as nsys
    reports, they are paired in the order given. A report in a capture's folder belongs only to the reports of that
    capture, if one of them provides the time. Duplicates are removed.

    Raises:
        CannotTellError: No report provides the time.
    """
    files = different_files(reports)
    timed = [[one for one in files if one.meta.tool == tool.name] for tool in TOOLS if tool.timed]
    bases, *others = [some for some in timed if some] or [[]]
    if not bases:
        raise CannotTellError.without_time(name_of(table), [one.meta.path for one in reports])
    traces, counters = list(chain(*others)), [one for one in files if one.meta.timeless]
    return [_around(base, at, bases, traces, counters, where) for at, base in enumerate(bases)]


def _around(  # noqa: PLR0913 - what is given, and which of it
    base: Report,
    at: int,
    bases: Sequence[Report],
    traces: Sequence[Report],
    ncu: Sequence[Report],
    where: Where,
) -> Together:
    others = {one.meta.capture for one in bases} - {None, base.meta.capture}
    beside = [[one for one in some if one.meta.capture not in others] for some in (traces, ncu)]
    traces, ncu = map(different, beside)
    if len(traces) == len(bases) > 1 and all(one.meta.capture is None for one in (*traces, *bases)):
        traces = traces[at : at + 1]
    return Together(base.narrow(**where), pooled(traces), pooled(ncu), (base, *traces, *ncu))


def several(table: Table) -> Table:
    """The form of `table` for several reports that each provide a time, with a column `report`."""
    columns = (REPORT, *table.columns)
    return replace(table, columns=columns, when="where several reports give time, each its own", groupings=())


def of_each(table: Table, found: Sequence[Together], make: Callable[[Together], pl.DataFrame]) -> pl.DataFrame:
    """Concatenates the tables that `make` gives for each set of reports; of several sets, with the column `report`."""
    if len(found) == 1:
        return make(found[0])
    parts = [make(one).with_columns(pl.lit(outlets.name(one.base.meta.path)).alias(REPORT.name)) for one in found]
    return several(table).select(pl.concat(parts))
