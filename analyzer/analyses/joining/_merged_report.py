"""Several reports of one tool as one: ranks or cycles of a trace, or what ncu measured in several runs.

Times are moved, so that each report begins where the one before it ends: they are for looking up what launched which
kernel, and not a time of the program.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.cached import once_together
from kanalyze.counter_model import measured_some
from kanalyze.model import EVENTS, KINDS, READER_TABLES
from kanalyze.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Columns that number events.
_EVENT_IDS: Final = ("event_id", "parent_id")
_TIMES: Final = ("start_ns", "open_until_ns")

#: Tables of things that the reports have in common, by what tells these apart.
_COMMON: Final = {"devices": ["device"], "source_files": ["file"], "symbols": None, "compiled_kernels": None}


def pooled(reports: Sequence[Report]) -> Report | None:
    """All of `reports`, which are of one tool, as one; None for none. The same one for the same reports."""
    if not reports:
        return None
    return _pool(*reports) if len(reports) > 1 else reports[0]


@once_together
def _pool(first: Report, *others: Report) -> Report:
    reports = (first, *others)
    selective = measured_some([one.meta.selective for one in reports])
    # no recording is as long as all of them
    return Report(replace(first.meta, selective=selective, end_ns=None), _Pool(reports))


class _Pool:
    """The tables of several reports one after the other; see :class:`kanalyze.source.Source`."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = reports

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if any(kind in one.kinds for one in self._reports))

    def events(self, kind: str) -> pl.DataFrame:
        return EVENTS.select(self._moved(lambda one: one.kind(kind)))

    def table(self, name: str) -> pl.DataFrame:
        found = self._moved(partial(self._told, name))
        if name in _COMMON:
            found = found.unique(_COMMON[name], keep="first", maintain_order=True)
        return READER_TABLES[name].select(found)

    def close(self) -> None:
        for one in self._reports:
            one.close()

    def notes_of_read(self) -> pl.DataFrame:
        return self._moved(lambda one: one.notes_of_read())

    def _told(self, name: str, report: Report) -> pl.DataFrame:
        """A table of one of them; without numbers of launches of another capture, which are other launches."""
        found = report.table(name)
        elsewhere = report.meta.capture != self._reports[0].meta.capture
        return found.clear() if name == "launch_numbers" and elsewhere else found

    def _moved(self, table: Callable[[Report], pl.DataFrame]) -> pl.DataFrame:
        """A table of all reports, with events and processes numbered through and times one after the other."""
        parts = []
        for one, first, start, offset in zip(
            self._reports, self._first_ids, self._starts, self._process_offsets, strict=True
        ):
            frame = table(one)
            moves = {**dict.fromkeys(_EVENT_IDS, first), **dict.fromkeys(_TIMES, start), "process_id": offset}
            parts.append(frame.with_columns(pl.col(name) + by for name, by in moves.items() if name in frame.columns))
        return pl.concat(parts)

    @cached_property
    def _first_ids(self) -> list[int]:
        return [0, *accumulate(1 + max((_most(one, "event_id") for one in _frames(report)), default=-1)
                               for report in self._reports[:-1])]  # fmt: skip

    @cached_property
    def _starts(self) -> list[int]:
        """What to add to the times of each report."""
        moves, end = [0], None
        for before, after in zip(self._reports, self._reports[1:], strict=False):
            end = max((_most(one.with_columns(end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)), "end")
                       for one in _frames(before)), default=0) + moves[-1]  # fmt: skip
            least = min((-_most(one.select(back=-pl.col("start_ns")), "back") for one in _frames(after)), default=0)
            moves.append(end - least)
        return moves

    @cached_property
    def _process_offsets(self) -> list[int]:
        """What to add to the processes of each report: 0 unless another one has such, too."""
        offsets, seen = list[int](), set[int]()
        for report in self._reports:
            own = {number for one in _frames(report) for number in one.get_column("process_id").drop_nulls().unique()}
            offset = 0 if own.isdisjoint(seen) else 1 + max(seen) - min(own)
            seen |= {process + offset for process in own}
            offsets.append(offset)
        return offsets


def _frames(report: Report) -> list[pl.DataFrame]:
    """The events of a report by kind, those kinds that it has any of."""
    return [frame for kind in report.kinds if (frame := report.kind(kind)).height]


def _most(frame: pl.DataFrame, column: str) -> int:
    return int(frame.get_column(column).max() or 0)  # type: ignore[arg-type] # it is a number
