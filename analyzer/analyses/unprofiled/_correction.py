"""The program without its profiler: measured by a run of the capture without one, or estimated for its tool.

Definitions: docs/definitions.md, section 12, "Without the profiler".
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.unprofiled._bare import without_profiler
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.analyses.replay._changes import Unslowed
    from kanalyze.analyses.unprofiled._bare import Bare
    from kanalyze.report import Report

#: Reports of more operations and calls are not corrected: each of some ten replays takes 3 µs of each.
_MOST: Final = 1 << 18

#: Where so little may be left of the host's time, or less, nothing is known of it.
_NOTHING: Final = 0.15

#: Recordings that take longer by less than this part are as the program is.
SAME: Final = 0.02


@runtime_checkable
class _Unprofiled(Protocol):
    """A source whose times are without the profiler."""

    host: Unslowed
    """What may be left of the host's time as it is there, by what is known of it."""


@once_per_process
def bare_of(report: Report) -> Bare | None:
    """The runs without a profiler in the report's capture, with an iteration of its steady part; None without any."""
    steady = known_steady_part(report) if report.bare().programs_ns else None
    return without_profiler(report, steady, 0.0 if steady is None else busy_ns(report, steady))


@once_per_process
def _measured(report: Report) -> Unslowed | None:
    """What is left of the host's time by a run without the profiler; None where no such run tells an iteration."""
    bare, steady = bare_of(report), known_steady_part(report)
    if bare is None or bare.iteration is None or steady is None or not replayable(report, _MOST):
        return None
    from kanalyze.analyses.replay._changes import NEAR, fitted  # noqa: PLC0415 - most reports have no such run
    from kanalyze.analyses.replay._whatif import window_without  # noqa: PLC0415 - as above

    one = bare.iteration
    took = cache(window_without(report.narrow(window=steady.window)))
    return fitted(took, one.ns * steady.number, max(NEAR, one.spread_ns / one.ns / 2))


def hosts_of(report: Report) -> Unslowed:
    """What is left of the host's time of a report, or a part of one, without its profiler: measured, else estimated."""
    from kanalyze.analyses.replay._changes import BY_TOOL, UNCHANGED, Unslowed  # noqa: PLC0415 - as above

    estimate = BY_TOOL.get(report.meta.tool, UNCHANGED)
    known = report.source.host if isinstance(report.source, _Unprofiled) else _measured(report)
    if known is None:
        return estimate
    if known.least.kept > _NOTHING:
        return known
    # the device limits the program whatever the host takes, which tells nothing of the host but how much it is at most
    return Unslowed(*(one if one.kept < known.most.kept else known.most for one in estimate))


@once_per_process
def corrected(report: Report) -> Report | None:
    """The whole report as it would be without its profiler.

    None where its capture has no run without one that tells iterations, where the recording took hardly longer, of
    reports of more than 262,144 operations and calls, and of one that is without its profiler.
    """
    bare, steady = bare_of(report), known_steady_part(report)
    one = None if bare is None or report.meta.slower is not None else bare.iteration
    if steady is None or one is None or one.recorded_ns <= one.ns * (1 + SAME):
        return None
    host = _measured(report)
    if host is None:
        return None
    from kanalyze.analyses.unprofiled._moved import unprofiled  # noqa: PLC0415 - imports numpy

    new = unprofiled(report, host, steady.window)
    part = known_steady_part(new)
    ns = one.ns if part is None else part.ns / part.number
    return replace(new, meta=replace(new.meta, slower=one.recorded_ns / max(ns, 1)))


def without(report: Report) -> Report:
    """The whole report without its profiler; itself, if it is that.

    Raises:
        CannotTellError: Its capture has no run without a profiler that tells how long an iteration takes, or it has
            more than 262,144 operations and calls.
    """
    if report.meta.slower is not None:
        return report.whole
    new = corrected(report)
    if new is None:
        raise CannotTellError(
            f"{report.meta.path}: cannot tell times without the profiler, because no run without one tells how much "
            "shorter an iteration is, or the report has more operations and calls than are replayed.",
            "Record with `kanalyze collect`, which makes such a run first, and give the folder that it writes.",
        )
    return new


def replayable(report: Report, most: int) -> bool:
    """Whether a report has times, and at most so many operations and calls."""
    if not {*DEVICE_KINDS} & {*report.kinds} or report.meta.timeless:
        return False
    return operations(report).height + report.kind("api").height <= most


def busy_ns(report: Report, steady: SteadyPart) -> float:
    """Time in which the GPU of the iterations is busy in one of them."""
    work = exclusive_operations(report.narrow(window=steady.window)).filter(pl.col("device").eq_missing(steady.device))
    return float(work.get_column("exclusive_ns").sum()) / steady.number
