"""Opens the reports of a job's ranks, one after the other, and reduces each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.errors import KanalyzeError, NoJobError
from kanalyze.readers.capture.read_capture import accepts
from kanalyze.readers.capture.reports import reports_in_folder
from kanalyze.readers.capture.runs import runs_of
from kanalyze.reduction_files import load_each, origin_of, reductions_at
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
    """The job whose ranks are in reports, folders of them, captures, or what ``kanalyze reduce`` left.

    Raises:
        NoJobError: No report has a rank.
        KanalyzeError: A report cannot be read; with `left_out` none of them, and the first reason.
    """
    failed: list[KanalyzeError] = []
    if asked.left_out is not None:
        asked = asked._replace(left_out=_both(failed.append, asked.left_out))
    paths = [one for one in given if not isinstance(one, Report)]
    stored = {folder.name: reduction for path in paths for folder, reduction in _stored(path, asked)}
    found = [*stored.values(), *(new for one in given for new in _reductions(one, asked, {*stored}))]
    if not any(one.ranks.height for one in found):
        raise failed[0] if failed else NoJobError.empty()
    names = tuple(str(one.meta.path if isinstance(one, Report) else one) for one in given)
    return replace(job_of(found, one_host=asked.one_host), paths=names)


def _both(*told: Callable[[KanalyzeError], object]) -> Callable[[KanalyzeError], object]:
    """Tells all of them."""

    def tell(error: KanalyzeError) -> None:
        for one in told:
            one(error)

    return tell


def _stored(path: Path, asked: Asked) -> Iterator[tuple[Path, Reduction]]:
    """What ``kanalyze reduce`` left at a path."""
    for folder, found in load_each(reductions_at(path)):
        if not isinstance(found, KanalyzeError):
            yield folder, found
        elif asked.left_out is None:
            raise found
        else:
            asked.left_out(found)


def _reductions(one: Report | Path, asked: Asked, known: set[str]) -> Iterator[Reduction]:
    """The reduction of each report at a path but those that are `known`; each is closed before the next is opened."""
    if isinstance(one, Report):
        yield reduced(one)
        return
    stored = reductions_at(one)
    if stored and not reports_in_folder(one):
        return
    for run in runs_of_ranks(one, asked.progress, cache=asked.cache):
        try:
            if known and origin_of(run.file).folder in known:
                continue
            with run.opened() as report:
                yield reduced(report)
                if asked.done is not None:
                    asked.done(report)
        except KanalyzeError as error:
            if asked.left_out is None:
                raise
            asked.left_out(error)


def runs_of_ranks(path: Path, progress: Progress | None, *, cache: bool) -> list[Run]:
    """The reports of ranks at a path, unopened: of a capture those of its first run, of several tools those of one."""
    runs = runs_of(path, progress, cache=cache)
    return _of_one_tool([run for run in runs if run.number == 1] if accepts(path, b"") else runs)


def _of_one_tool(runs: Sequence[Run]) -> list[Run]:
    """The runs of the tool that wrote most reports; what no reader opens as it is."""
    by_tool = {tool: [run for run in runs if run.tool == tool] for tool in _TOOLS}
    known = max(_TOOLS, key=lambda tool: (len(by_tool[tool]), -_TOOLS.index(tool)))
    return by_tool[known] or [*runs]
