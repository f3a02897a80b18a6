"""Reports of one program by different tools: which of them gives the time, the operators, the counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report, Where


@dataclass(frozen=True)
class Together:
    """Reports of one program.

    Attributes:
        base: The one that gives the time: of nsys, or else of torch.profiler.
        torch: That of torch.profiler, where it does not give the time.
        ncu: That of ncu.
    """

    base: Report
    torch: Report | None
    ncu: Report | None

    @property
    def operators(self) -> Report | None:
        """The one that knows operators."""
        return next((one for one in (self.torch, self.base) if one is not None and "op" in one.kinds), None)

    @property
    def reports(self) -> list[Report]:
        """All of them."""
        return [one for one in (self.base, self.torch, self.ncu) if one is not None]


def together(table: str, reports: Sequence[Report], where: Where) -> Together:
    """The reports by what they give; what `where` names narrows the one that gives the time.

    Raises:
        CannotTellError: Several are of one tool, or none gives time.
    """
    by_tool: dict[str, Report] = {}
    for report in reports:
        if report.meta.tool in by_tool:
            raise CannotTellError.of_one_tool(table, report.meta.tool, report.meta.path)
        by_tool[report.meta.tool] = report
    timed = [one for tool in ("nsys", "torch.profiler") if (one := by_tool.get(tool)) is not None]
    if not timed:
        raise CannotTellError.without_time(table, [one.meta.path for one in reports])
    return Together(timed[0].narrow(**where), timed[1] if len(timed) > 1 else None, by_tool.get("ncu"))
