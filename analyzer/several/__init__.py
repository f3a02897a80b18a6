"""Several reports: the ranks of a job, two sides; opened one after the other, reduced side by side, drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kanalyze.errors import KanalyzeError
from kanalyze.report import Report, Where

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Limits
    from kanalyze.readers import Progress


class Asked(NamedTuple):
    """How several reports are read, and put together."""

    #: The part of each report of a side.
    where: Where = {}  # noqa: RUF012 - nothing is added to it
    named: Callable[[Report], Report] | None = None  # adds the captures that another report has, to each that is read
    capture: Path | None = None  # that report
    cache: bool = True  # whether what was decoded is kept, and used
    progress: "Progress | None" = None  # told of the progress of opening a report
    done: Callable[[Report], object] | None = None  # told of each report that was read, before it is closed
    #: Told of each report that cannot be read, of a side those of ncu alone; without it that is an error.
    left_out: Callable[[KanalyzeError], object] | None = None
    one_host: bool = False  # whether all ranks of a job ran on one host, so that their clocks are one
    limits: "Limits | None" = None  # what counts as a change; the usual ones unless told
    other_ranks: bool = False  # whether one rank of base may be compared with another one of new
