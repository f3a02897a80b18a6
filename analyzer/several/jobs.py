"""Opens the reports of a job's ranks, one after the other: to reduce each, and to draw those of a file or a trace."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from kanalyze import outlets, readers
from kanalyze.analyses import declarations, homes_of_jobs
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.ranks import _job_findings, _reducing, tables
from kanalyze.analyses.ranks._job import Job, job_of
from kanalyze.analyses.replay._unprofiled import corrected
from kanalyze.errors import BadReductionError, CannotTellError, KanalyzeError, NoJobError
from kanalyze.machinery import late
from kanalyze.readers.capture.read_capture import accepts
from kanalyze.readers.capture.reports import Run, is_report, reports_in_folder, runs_of
from kanalyze.reduction.tables import Reduction, checked, load, origin_of, reductions_at, together
from kanalyze.report import Meta, Report
from kanalyze.several import Asked
from kanalyze.tools import TOOLS, tool_of

with late():  # what draws is for files and traces alone
    from kanalyze.analyses.page import file_page
    from kanalyze.analyses.timeline import _slices, _tracks

#: Reductions that are read at once.
_AT_ONCE: Final = 64

#: The tools that record ranks; of a job that several recorded, the one with most reports is read, then the first here.
_TOOLS: Final = sorted((one for one in TOOLS if one.timed), key=lambda one: not one.ranked)


def job(sources: Sequence[Report | Path], asked: Asked) -> Job:
    """The job whose ranks are in reports, folders of them, captures, or what ``kanalyze reduce`` left.

    Raises NoJobError if no report has a rank; KanalyzeError if a report cannot be read; with `left_out` none of them,
    and the first reason.
    """
    failed: list[KanalyzeError] = []

    def leave_out(error: KanalyzeError) -> None:
        if asked.left_out is None:
            raise error
        failed.append(error)
        asked.left_out(error)

    numbers: dict[Path, list[int | None]] = {}
    places = {folder.name: folder for source in sources if isinstance(source, Path) for folder in reductions_at(source)}
    for folder in places.values():
        try:
            numbers[folder] = checked(folder)
        except BadReductionError as error:
            leave_out(error)
    # in the order of their ranks, so that rows need no sort; those without a number are numbered in the order given
    folders = sorted(numbers, key=lambda folder: next((number for number in numbers[folder] if number is not None), -1))
    reductions = [part for part in _made(sources, asked, {folder.name for folder in folders}, leave_out) if part]
    opened = [together(reductions)] if reductions else []
    reductions.clear()  # which `opened` holds as one

    def read(names: Collection[str]) -> Iterator[Reduction]:
        yield from (load(folders[at : at + _AT_ONCE], names) for at in range(0, len(folders), _AT_ONCE))
        yield from opened

    try:
        put_together = job_of(read, one_host=asked.one_host)
    except NoJobError:
        raise (failed[0] if failed else NoJobError.empty()) from None
    names = tuple(str(source.meta.path if isinstance(source, Report) else source) for source in sources)
    beside = sum(_beside(source, asked) for source in sources if not isinstance(source, Report))
    left_out = "they are left out: of a job the reports of the tool with most of them are read; give these alone"
    doubts = (("reports of another tool", beside, left_out),) if beside else ()
    return replace(put_together, paths=names, doubts=put_together.doubts + doubts)


def _made(
    sources: Sequence[Report | Path], asked: Asked, stored: set[str], leave_out: Callable[[KanalyzeError], object]
) -> Iterator[Reduction]:
    """The reduction of each report, closed before the next; of those alone that are not `stored` in a folder."""
    for source in sources:
        for run in (runs := [source] if isinstance(source, Report) else runs_at(source, asked)):
            try:
                if not isinstance(run, Report) and stored and origin_of(run.file).folder in stored:
                    continue
                with nullcontext(run) if isinstance(run, Report) else run.opened() as report:
                    reduction = _reducing.reduced(report)
                    # how ranks wait for each other without the recorder, one report of them all alone tells
                    alone = len(sources) == len(runs) == 1 and reduction and reduction["ranks"].height > 1
                    if new := corrected(report) if alone else None:
                        reduction = _reducing.reduced(new)
                    if asked.done is not None:
                        asked.done(report)
                yield reduction
            except KanalyzeError as error:
                leave_out(error)


def of_ranks(opened: Sequence[Report]) -> bool:
    """Whether open reports of nsys, which number no ranks, are of one job."""
    times = []
    for report in opened:
        work = device_operations(report).filter(pl.col("bucket") == "communication")
        origin = report.meta.origin_unix_ns
        if origin is None or report.meta.recorder.ranked:
            return False
        times.append(work.select(pl.col("start").min() + origin, pl.col("end").max() + origin))
    return len(times) > 1 and _communicate_at_once(pl.concat(times))


def _communicate_at_once(times: pl.DataFrame) -> bool:
    """Whether all reports communicate, and at one time: start and end of that of each, null of one that does not."""
    start, end = pl.col("start"), pl.col("end")
    return bool(times.select(start.is_not_null().all() & (start.max() < end.min())).item())


def reports_of_one_tool(opened: Sequence[Report]) -> list[Report]:
    """Those of open reports that can be of ranks, of the tool that wrote most of them."""
    able = [report for report in opened if report.meta.rank is not None or not report.meta.recorder.ranked]
    return max(([report for report in able if report.meta.recorder == tool] for tool in _TOOLS), key=len)


def path_of_ranks(paths: Sequence[Path], asked: Asked) -> pl.DataFrame:
    """The part of each rank of the critical path over the ranks of a job: ``critical_path --by rank``.

    Raises NoJobError if no report has a rank; KanalyzeError if a report cannot be read; with `left_out` none of them,
    and the first reason.
    """
    whole_job = job(paths, asked)
    return tables.rank_path(whole_job, reports_of_ranks(paths, asked, whole_job, {*whole_job.ranks.get_column("rank")}))


def shifts_ns(whole_job: Job) -> dict[int, int]:
    """By how much the times of each rank are moved to be on the clock of the job."""
    return dict(whole_job.offsets.select("rank", "shift_ns").iter_rows())


def ranks_by_report(whole_job: Job) -> dict[str, int]:
    """The rank of each report of a job that is of one alone, by its path.

    Reports of nsys, which number no ranks, count where all of them communicate, and at one time, as far as the windows
    of their ranks tell.
    """
    alone = whole_job.ranks.filter(pl.col("rank").n_unique().over("report") == 1)
    numbered = ~pl.col("tool").is_in([tool.name for tool in _TOOLS if not tool.ranked])
    communicates = pl.when(pl.col("communication_ns") > 0)
    times = alone.filter(~numbered).select(start=communicates.then("start_ns"), end=communicates.then("end_ns"))
    if not _communicate_at_once(times):
        alone = alone.filter(numbered)
    return dict(alone.select("report", "rank").iter_rows())


def reports_of_ranks(
    sources: Sequence[Report | Path], asked: Asked, whole_job: Job, ranks: set[int]
) -> Iterator[tuple[int, Report]]:
    """Each of the wanted ranks with its report; one that is opened for that is open until the next.

    Without the ranks that share a report with others.
    """
    missing, rank_of = {*ranks}, ranks_by_report(whole_job)
    every = ([source] if isinstance(source, Report) else runs_at(source, asked) for source in sources)
    for run in (run for runs in every for run in runs):
        if not missing:
            break
        # what cannot be read was told when the job was put together
        with suppress(KanalyzeError), nullcontext(run) if isinstance(run, Report) else run.opened() as report:
            rank = rank_of.get(outlets.name(report.meta.path))
            if rank is not None and rank in missing:
                missing.remove(rank)
                yield rank, report


def runs_at(path: Path, asked: Asked) -> list[Run]:
    """The reports of ranks at a path; none of one that has only what ``kanalyze reduce`` left."""
    if reductions_at(path) and not reports_in_folder(path):
        return []
    return runs_of_ranks(path, asked.progress, cache=asked.cache)


def runs_of_ranks(path: Path, progress: readers.Progress | None, *, cache: bool) -> list[Run]:
    """The reports of ranks at a path, unopened: of a capture those of its first run, of several tools those of one."""
    return _of_one_tool(_first_runs(path, progress, cache=cache))


def _first_runs(path: Path, progress: readers.Progress | None, *, cache: bool) -> list[Run]:
    runs = runs_of(path, progress, cache=cache)
    return [run for run in runs if run.number == 1] if accepts(readers.unpacked(path), b"") else runs


def _beside(path: Path, asked: Asked) -> int:
    """How many reports of ranks at a path are left out, since another tool recorded more of them."""
    if reductions_at(path):
        return 0
    runs = _first_runs(path, None, cache=asked.cache)
    files, kept = ({run.file for run in some if tool_of(run.tool) in _TOOLS} for some in (runs, _of_one_tool(runs)))
    return len(files - kept)


def _of_one_tool(runs: Sequence[Run]) -> list[Run]:
    """The runs of the tool that wrote most reports; what no reader opens as it is.

    Beside reports of nsys, JSON that is no trace counts as none, and is kept to be named when it is opened.
    """
    by_tool = [[run for run in runs if run.tool == tool.short] for tool in _TOOLS]
    traces, others = by_tool[0], by_tool[1:]
    foreign = [run for run in traces if any(others) and not is_report(run.file)]
    longest = max([run for run in traces if run not in foreign], *others, key=len)  # the first of the longest
    return [*longest, *foreign] or [*runs]


# What a file or a trace is of.

#: Ranks that a timeline has room for.
_MOST_DRAWN: Final = 16


def file_page_of_job(reports: Sequence[Report], asked: Asked, most: int) -> "file_page.FilePage":
    """The content of an HTML report of a job: its page, its tables, and a timeline with the ranks on one clock.

    The timeline has about `most` events, of which each rank has its part. Raises what :func:`job` does.
    """
    whole_job = job(reports, asked)
    shifts, drawn_ranks = shifts_ns(whole_job), _drawn_ranks(whole_job)
    drawn: dict[int, tuple[Meta, _tracks.Timeline]] = {}
    for rank, report in reports_of_ranks(reports, asked, whole_job, drawn_ranks):
        with suppress(CannotTellError):  # nothing happens in it
            drawn[rank] = report.meta, _tracks.timeline(report, most // min(len(reports), _MOST_DRAWN))
    shown = sorted(drawn)
    together = [(f"rank {rank}", shifts[rank], drawn[rank][1]) for rank in shown]
    return file_page.FilePage(
        whole_job,
        [drawn[rank][0] for rank in shown],
        [(declarations(module)[name], whole_job.table(name)) for name, module in homes_of_jobs().items()],
        _tracks.on_one_clock(together) if together else None,
        rank_steps=whole_job.table("rank_steps"),
        ranks_left_out=whole_job.ranks.get_column("rank").n_unique() - len(shown),
    )


def _drawn_ranks(whole_job: Job) -> set[int]:
    """The ranks that a timeline has room for: all, or the late ones and others at equal distances."""
    ranks = whole_job.ranks.get_column("rank").unique().sort().to_list()
    late = [one.rank for one in _job_findings.late_ranks(whole_job)][: _MOST_DRAWN // 2]
    step = -(-len(ranks) // (_MOST_DRAWN // 2))
    return {*ranks} if len(ranks) <= _MOST_DRAWN else {*late, *ranks[::step]}


def slices_of_job(paths: Sequence[Path], asked: Asked) -> "_slices.Slices | None":
    """The events of all ranks of a job as slices, on the clock of the job; None where no report names its rank.

    Raises what :func:`job` does.
    """
    whole_job = job(paths, asked)
    shifts = shifts_ns(whole_job)
    by_rank = {rank: _slices.slices(report) for rank, report in reports_of_ranks(paths, asked, whole_job, {*shifts})}
    return _slices.of_ranks([(rank, shifts[rank], by_rank[rank]) for rank in sorted(by_rank)]) if by_rank else None
