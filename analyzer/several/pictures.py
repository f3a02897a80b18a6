"""Opens the reports that an HTML file or a trace is of: the ranks of a job, or two sides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.analyses import declarations, homes_of_jobs, homes_of_sides
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.page.file_page import FilePage
from kanalyze.analyses.ranks._job_findings import late_ranks
from kanalyze.analyses.timeline._slices import Slices, of_ranks, slices
from kanalyze.analyses.timeline._tracks import Timeline, on_one_clock, timeline
from kanalyze.errors import CannotTellError
from kanalyze.reduction.baselines import SUFFIX
from kanalyze.report import Meta, Report
from kanalyze.several import Asked, jobs, sides

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison
    from kanalyze.analyses.ranks._job import Job

#: Ranks that a timeline has room for.
_MOST_DRAWN: Final = 16


def file_page_of_job(given: Sequence[Report | Path], asked: Asked, most: int) -> FilePage[Job]:
    """The content of an HTML report of a job: its page, its tables, and a timeline with the ranks on one clock.

    Each report is opened once, unless there are more ranks than a timeline has room for: which of them are drawn is
    known when the job is put together.

    Args:
        given: Reports of its ranks, open ones or paths, folders of them, captures, or what ``kanalyze reduce`` left.
        asked: How they are read.
        most: Events of the timeline, about; each rank has its part.

    Raises:
        NoJobError: No report has a rank.
        KanalyzeError: As :func:`kanalyze.several.jobs.job`.
    """
    count = sum(1 if isinstance(one, Report) else len(jobs.runs_at(one, asked)) for one in given)
    drawn: dict[str, tuple[Meta, Timeline] | None] = {}  # by report; None of one in which nothing happens

    def draw(report: Report) -> None:
        path = str(report.meta.path)
        if path not in drawn:
            drawn[path] = None
            with suppress(CannotTellError):
                drawn[path] = report.meta, timeline(report, most // min(max(count, 1), _MOST_DRAWN))

    found = jobs.job(given, asked._replace(done=draw) if count <= _MOST_DRAWN else asked)
    shifts, wanted, known = jobs.shifts_ns(found), _drawn_ranks(found), jobs.ranks_by_report(found)
    looked_at = {known[path] for path in drawn if path in known}
    for _, report in jobs.reports_of_ranks(given, asked, found, wanted - looked_at):
        draw(report)
    pictures = {known[path]: one for path, one in drawn.items() if one is not None and path in known}
    shown = [(rank, *pictures[rank]) for rank in sorted(pictures) if rank in wanted]
    together = [(f"rank {rank}", shifts[rank], one) for rank, _, one in shown]
    return FilePage(
        found,
        [meta for _, meta, _ in shown],
        [(declarations(module)[name], found.table(name)) for name, module in homes_of_jobs().items()],
        on_one_clock(together) if together else None,
        rank_steps=found.table("rank_steps"),
        ranks_left_out=found.ranks.get_column("rank").n_unique() - len(shown),
    )


def slices_of_job(given: Sequence[Path], asked: Asked) -> Slices | None:
    """The events of all ranks of a job as slices, on the clock of the job; None where no report names its rank.

    Args:
        given: Reports of its ranks, folders of them, or captures.
        asked: How they are read.

    Raises:
        NoJobError: No report has a rank.
        KanalyzeError: As :func:`kanalyze.several.jobs.job`.
    """
    found = jobs.job(given, asked)
    shifts = jobs.shifts_ns(found)
    made = {rank: slices(report) for rank, report in jobs.reports_of_ranks(given, asked, found, {*shifts})}
    return of_ranks([(rank, shifts[rank], made[rank]) for rank in sorted(made)]) if made else None


def _drawn_ranks(found: Job) -> set[int]:
    """The ranks that a timeline has room for: all, or the late ones and others at equal distances."""
    every = found.ranks.get_column("rank").unique().sort().to_list()
    late = [one.rank for one in late_ranks(found)][: _MOST_DRAWN // 2]
    step = -(-len(every) // (_MOST_DRAWN // 2))
    return {*every} if len(every) <= _MOST_DRAWN else {*late, *every[::step]}


def file_page_of_sides(base: Sequence[Path], new: Sequence[Path], asked: Asked, most: int) -> FilePage[Comparison]:
    """The content of an HTML report of two sides: the comparison, its tables, and a timeline of a run of each.

    Both begin their first steady iteration at the same place; without such, their first work on a device.

    Args:
        base: The runs of base.
        new: The runs of new.
        asked: How they are read and compared.
        most: Events of the timeline, about; each side has half of them.

    Raises:
        IncomparableError: As :func:`kanalyze.several.sides.comparison`.
    """
    found = sides.comparison(base, new, asked)
    drawn = [(name, *one) for name, side in (("base", base), ("new", new)) for one in _first_drawn(side, asked, most)]
    places = [(name, drawn[0][1] - anchor_ns, own) for name, anchor_ns, own, _ in drawn]
    return FilePage(
        found,
        [meta for *_, meta in drawn],
        [(declarations(module)[name], found.table(name)) for name, module in homes_of_sides().items()],
        on_one_clock(places) if places else None,
    )


def _first_drawn(side: Sequence[Path], asked: Asked, most: int) -> list[tuple[int, Timeline, Meta]]:
    """The timeline of the first run of a side that has one, with where its work begins; none of a baseline."""
    for path in side:
        if path.suffix == SUFFIX:
            continue
        for opened in sides.opened_of(path, asked):
            if opened.meta.timeless:
                continue
            report = opened.narrow(**asked.where)
            steady = known_steady_part(report)
            drawn = timeline(report, most // 2)
            begins = drawn.start_ns if steady is None else steady.window.start_ns
            return [(drawn.start_ns if begins is None else begins, drawn, report.meta)]
    return []
