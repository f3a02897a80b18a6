"""Reports of one program by different tools: which of them gives the time, the operators, the counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.joining._deduplicate import different, different_files
from kanalyze.analyses.joining._merged_report import pooled
from kanalyze.errors import CannotTellError
from kanalyze.schema import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Report, Where
    from kanalyze.schema import Table

#: The tools that give the time, the better one first.
_TIMED: Final = ("nsys", "torch.profiler")

REPORT: Final = Column("report", pl.String, "Path of the report that gives the time.")


@dataclass(frozen=True)
class Together:
    """Reports of one program.

    Attributes:
        base: The one that gives the time: of nsys, or else of torch.profiler.
        torch: That of torch.profiler, where it does not give the time; all of them as one.
        ncu: That of ncu; all of them as one.
        given: All of them, as they were given; what was given twice once.
    """

    base: Report
    torch: Report | None
    ncu: Report | None
    given: tuple[Report, ...]

    @property
    def operators(self) -> Report | None:
        """The one that knows operators."""
        return next((one for one in (self.torch, self.base) if one is not None and "op" in one.kinds), None)

    @property
    def reports(self) -> list[Report]:
        """One of each tool."""
        return [one for one in (self.base, self.torch, self.ncu) if one is not None]


def together(table: str, reports: Sequence[Report], where: Where) -> list[Together]:
    """The reports by what they give, around each that gives the time; what `where` names narrows that one.

    Several of nsys, or without any of nsys several of torch.profiler, are runs or ranks that each have a time of their
    own. The others are added up: traces of ranks beside one report of nsys, measurements of ncu. As many traces as
    reports of nsys belong to these one by one, in the order in which they are given. A report in the folder of a
    capture belongs to those of that capture alone, where one of them gives time. What is given twice counts once.

    Raises:
        CannotTellError: None gives time.
    """
    files = different_files(reports)
    by_tool = {tool: [one for one in files if one.meta.tool == tool] for tool in (*_TIMED, "ncu")}
    bases = next((by_tool[tool] for tool in _TIMED if by_tool[tool]), None)
    if bases is None:
        raise CannotTellError.without_time(table, [one.meta.path for one in reports])
    traces = by_tool["torch.profiler"] if bases is not by_tool["torch.profiler"] else []
    return [_around(base, at, bases, traces, by_tool["ncu"], where) for at, base in enumerate(bases)]


def _around(  # noqa: PLR0913 - what is given, and which of it
    base: Report, at: int, bases: Sequence[Report], traces: Sequence[Report], ncu: Sequence[Report], where: Where
) -> Together:
    others = {one.meta.capture for one in bases} - {None, base.meta.capture}
    traces, ncu = (different([one for one in some if one.meta.capture not in others]) for some in (traces, ncu))
    if len(traces) == len(bases) > 1 and all(one.meta.capture is None for one in (*traces, *bases)):
        traces = traces[at : at + 1]
    return Together(base.narrow(**where), pooled(traces), pooled(ncu), (base, *traces, *ncu))


def several(table: Table) -> Table:
    """The form of `table` where several reports give time, each its own."""
    columns = (REPORT, *table.columns)
    return replace(table, columns=columns, when="where several reports give time, each its own", groupings=())


def of_each(table: Table, found: Sequence[Together], make: Callable[[Together], pl.DataFrame]) -> pl.DataFrame:
    """What `make` gives of each that has a time; of several one after the other, told apart by a column."""
    if len(found) == 1:
        return make(found[0])
    parts = [make(one).with_columns(pl.lit(str(one.base.meta.path)).alias(REPORT.name)) for one in found]
    return several(table).select(pl.concat(parts))
