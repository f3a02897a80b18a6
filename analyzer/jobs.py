"""Opens the reports of a job's ranks, one after the other, and reduces each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.errors import KanalyzeError, NoJobError
from kanalyze.readers.capture.read_capture import accepts
from kanalyze.readers.capture.runs import runs_of
from kanalyze.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kanalyze.analyses.ranks._job import Job
    from kanalyze.readers import Progress
    from kanalyze.readers.capture.runs import Run
    from kanalyze.reduction import Reduction

#: The tools that record ranks; of a job that several recorded, the one with most reports is read, then the first here.
_TOOLS: Final = ("torch", "nsys")


class Asked(NamedTuple):
    """How the reports of a job are read.

    Attributes:
        one_host: Whether all ranks ran on one host, so that their clocks are one.
        cache: Whether what was decoded is kept, and used.
        progress: Told of the progress of opening a report.
        done: Told of each report before it is closed.
        left_out: Told of each report that cannot be read; without it that is an error.
    """

    one_host: bool = False
    cache: bool = True
    progress: Progress | None = None
    done: Callable[[Report], object] | None = None
    left_out: Callable[[KanalyzeError], object] | None = None


def job(given: Sequence[Report | Path], asked: Asked) -> Job:
    """The job whose ranks are in reports, folders of them, or captures.

    Raises:
        NoJobError: No report has a rank.
        KanalyzeError: A report cannot be read.
    """
    found = [reduction for one in given for reduction in _reductions(one, asked)]
    if not found:
        raise NoJobError.empty()
    paths = tuple(str(one.meta.path if isinstance(one, Report) else one) for one in given)
    return replace(job_of(found, one_host=asked.one_host), paths=paths)


def _reductions(one: Report | Path, asked: Asked) -> Iterator[Reduction]:
    """The reduction of each report at a path; a report is closed before the next one is opened."""
    if isinstance(one, Report):
        yield reduced(one)
        return
    runs = runs_of(one, asked.progress, cache=asked.cache)
    for run in _of_one_tool([run for run in runs if run.number == 1] if accepts(one, b"") else runs):
        try:
            with run.opened() as report:
                yield reduced(report)
                if asked.done is not None:
                    asked.done(report)
        except KanalyzeError as error:
            if asked.left_out is None:
                raise
            asked.left_out(error)


def _of_one_tool(runs: Sequence[Run]) -> list[Run]:
    """The runs of the tool that wrote most reports; what no reader opens as it is."""
    by_tool = {tool: [run for run in runs if run.tool == tool] for tool in _TOOLS}
    known = max(_TOOLS, key=lambda tool: (len(by_tool[tool]), -_TOOLS.index(tool)))
    return by_tool[known] or [*runs]
