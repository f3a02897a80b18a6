"""The program without its profiler: measured by a run of the capture without one, or estimated for its tool.

Definitions: docs/definitions.md, section 12, "Without the profiler".
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.unprofiled._bare import without_profiler
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.units import time

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.analyses.replay._slowing import Unslowed
    from kanalyze.report import Report

#: Reports of more operations and calls are not corrected: each of some ten replays takes 3 µs of each.
_MOST: Final = 1 << 18

#: Recordings that take longer by less than this part are as the program is.
_SAME: Final = 0.02

#: Two runs of a program differ by so much.
NEAR: Final = 0.03


class Correction(NamedTuple):
    """A report without its profiler, by a run without one.

    Attributes:
        report: The whole report at the times without the profiler.
        host: What is left of the host's time, and within which bounds the run explains it.
        slower: How many times as long an iteration took while recorded.
    """

    report: Report
    host: Unslowed
    slower: float


@once_per_process
def corrected(report: Report) -> Correction | None:
    """The report as it would be without its profiler.

    None where its capture has no run without one that tells iterations, where the recording took hardly longer, and of
    reports of more than 262,144 operations and calls.
    """
    steady = known_steady_part(report)
    if steady is None or not replayable(report, _MOST):
        return None
    bare = without_profiler(report, steady, busy_ns(report, steady))
    one = None if bare is None else bare.iteration
    if one is None or one.recorded_ns <= one.ns * (1 + _SAME):
        return None
    from kanalyze.analyses.replay._slowing import fitted  # noqa: PLC0415 - most reports have no such run
    from kanalyze.analyses.replay._whatif import window_without  # noqa: PLC0415 - as above
    from kanalyze.analyses.unprofiled._moved import unprofiled  # noqa: PLC0415 - imports numpy

    took = cache(window_without(report.narrow(window=steady.window)))
    spread = max(NEAR, (one.spread_ns / one.ns) / 2)
    host = fitted(took, one.ns * steady.number, spread)
    slower = one.recorded_ns / one.ns
    return Correction(unprofiled(report, host.usual, slower), host, slower)


def without(report: Report) -> Report:
    """The whole report without its profiler.

    Raises:
        CannotTellError: Its capture has no run without a profiler that tells how long an iteration takes, or it has
            more than 262,144 operations and calls.
    """
    correction = corrected(report)
    if correction is None:
        raise CannotTellError(
            f"{report.meta.path}: cannot tell times without the profiler, because no run without one tells how much "
            "shorter an iteration is, or the report has more operations and calls than are replayed.",
            "Record with `kanalyze collect`, which makes such a run first, and give the folder that it writes.",
        )
    return correction.report


def replayable(report: Report, most: int) -> bool:
    """Whether a report has times, and at most so many operations and calls."""
    if not {*DEVICE_KINDS} & {*report.kinds} or report.meta.timeless:
        return False
    return operations(report).height + report.kind("api").height <= most


def busy_ns(report: Report, steady: SteadyPart) -> float:
    """Time in which the GPU of the iterations is busy in one of them."""
    work = exclusive_operations(report.narrow(window=steady.window)).filter(pl.col("device").eq_missing(steady.device))
    return float(work.get_column("exclusive_ns").sum()) / steady.number


class Estimate(NamedTuple):
    """What an iteration takes without the profiler, as estimated for its tool (ns)."""

    usual_ns: float
    least_ns: float
    most_ns: float


def estimated(report: Report, steady: SteadyPart, most: int) -> Estimate | None:
    """An iteration without the profiler; None of tools of which no cost is known, and of larger reports."""
    from kanalyze.analyses.replay._slowing import BY_TOOL  # noqa: PLC0415 - as above
    from kanalyze.analyses.replay._whatif import window_without  # noqa: PLC0415 - as above

    host = BY_TOOL.get(report.meta.tool)
    if host is None or not replayable(report, most):
        return None
    took = window_without(report.narrow(window=steady.window))
    usual, least, longest = (took(one) / steady.number for one in host)
    return Estimate(usual, least * (1 - NEAR), longest * (1 + NEAR))


def estimated_sentence(estimate: Estimate, recorded_ns: float, tool: str) -> str:
    """A sentence on what an iteration takes without `tool`, beside a report of it."""
    if estimate.least_ns >= recorded_ns * (1 - _SAME - NEAR):
        return f"Without {tool} it takes about as long, by estimate."
    return f"Without {tool} it takes {time(estimate.least_ns)} to {time(estimate.most_ns)}, by estimate."
