"""Several reports: the ranks of a job, two sides; opened one after the other, reduced side by side, drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kanalyze.errors import KanalyzeError
from kanalyze.report import Report, Where

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Limits
    from kanalyze.readers import Progress


class Asked(NamedTuple):
    """How several reports are read, and put together.

    Attributes:
        where: The part of each report of a side.
        cache: Whether what was decoded is kept, and used.
        progress: Told of the progress of opening a report.
        done: Told of each report that was read, before it is closed.
        left_out: Told of each report that cannot be read, of a side those of ncu alone; without it that is an error.
        one_host: Whether all ranks of a job ran on one host, so that their clocks are one.
        limits: What counts as a change; the usual ones unless told.
        other_ranks: Whether one rank of base may be compared with another one of new.
    """

    where: Where = {}  # noqa: RUF012 - nothing is added to it
    cache: bool = True
    progress: Progress | None = None
    done: Callable[[Report], object] | None = None
    left_out: Callable[[KanalyzeError], object] | None = None
    one_host: bool = False
    limits: Limits | None = None
    other_ranks: bool = False
