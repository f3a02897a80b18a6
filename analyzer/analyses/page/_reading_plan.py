"""Plan of the page's reading: what is read before its analyses begin, and when a large report's tables go again.

A report is read at once, from half a million calls on in two threads. A large one would not fit: each table of the
page is read when its turn comes (:func:`kanalyze.analyses.shared.requirements.require`), and what only one of them
needs goes after it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kanalyze.analyses.device._launch_shapes import kernel_shapes, shape_numbers
from kanalyze.analyses.host._launching_call import launching_calls
from kanalyze.analyses.host._thread_names import forget_names
from kanalyze.analyses.host._thread_timeline import threads
from kanalyze.analyses.idle._window_ledgers import attributed
from kanalyze.analyses.idle.culprits import SAMPLED
from kanalyze.analyses.iterations._marks import launched_work
from kanalyze.analyses.launches._graph_launches import told_graphs
from kanalyze.analyses.shared.workers import at_once, many, many_events
from kanalyze.analyses.streams._waited_for import ended_last
from kanalyze.machinery.memory import give_back
from kanalyze.model import COMMUNICATOR_CALLS, COPY_DETAIL, KERNEL_CONFIG, KINDS, READER_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kanalyze.analyses.shared.cached import Remembered
    from kanalyze.report import Report
    from kanalyze.schema import Table

#: Read before everything else: by their numbers of rows a report is large.
_COUNTED: Final = ("api", "op", "python")

#: Read only where a report turns out to hold several ranks of a job, or samples of the host: of others it would cost,
#: and tell nothing.
LATER: Final = (COMMUNICATOR_CALLS.name, *SAMPLED)

#: Side tables and the events of the same rows, in the order in which a reader may decode them in one pass.
_TOGETHER: Final = (
    (KERNEL_CONFIG.name, "kernel"),
    (COPY_DETAIL.name, "memcpy", "memset"),
    ("sync_detail", "sync"),
    ("memory_detail", "memory"),
)

#: Cached answers to compute first: slow for a large report, with small intermediate tables.
_FIRST: Final[tuple[Remembered[Any], ...]] = (kernel_shapes, threads)


def reads_of(tables: Iterable[Table], *more: str) -> tuple[str, ...]:
    """Names of all that `tables` declare as read, always or in some reports, and `more`; in reading order.

    Without what is read :data:`LATER`.
    """
    wanted = {name for table in tables for name in (*table.reads, *table.may_read)} | {*more}
    return tuple(name for name in (*KINDS, *READER_TABLES) if name in wanted and name not in LATER)


def read_first(report: Report, reads: Iterable[str]) -> None:
    """Reads what the page is computed from; of a large report, only what has to be known first."""
    held = report.holds(KERNEL_CONFIG.name)
    report.read_ahead(_TOGETHER[0])
    if many(report.kind("kernel").height):
        _settle_shapes(report, held=held)
    report.read_ahead(_COUNTED)
    if not many_events(report):
        wanted = set(reads)
        groups = [tuple(name for name in group if name in wanted) for group in _TOGETHER]
        alone = [(name,) for name in reads if not any(name in group for group in _TOGETHER)]
        at_once(report, [partial(_read, names=names) for names in (*groups, *alone)])


def _read(report: Report, names: Sequence[str]) -> None:
    report.read_ahead(names)


def _settle_shapes(report: Report, *, held: bool) -> None:
    """Computes what depends on the table of kernel configurations, and releases that table unless it was `held` before.

    It is one of the largest tables; its memory is free again before the calls are read, and so is that of reading it.
    """
    shape_numbers(report)
    told_graphs(report)
    if not held:  # a caller that read it before may need it again after the file is closed
        report.release(KERNEL_CONFIG.name)
    at_once(report, _FIRST)
    give_back()


def forget_threads(report: Report) -> None:
    """Drops the answers that only culprits need, which take as much memory as the calls."""
    for forget in (forget_names, threads.forget, ended_last.forget, launching_calls.forget):
        forget(report)


def forget_iterations(report: Report) -> None:
    """Drops the answers that only iterations and their parts need, which take 0.5 of 3.7 GB at 1 GB."""
    launched_work.forget(report)
    launching_calls.forget(report)
    attributed.forget(report.whole)
    give_back()
