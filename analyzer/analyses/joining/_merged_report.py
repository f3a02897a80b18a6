"""Merges several reports of one tool into one: ranks or cycles of a trace, or several runs of ncu.

Times are shifted so that each report begins where the one before it ends: they serve to look up what launched which
kernel, and are not times of the program.
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

#: Columns that hold event ids.
_EVENT_IDS: Final = ("event_id", "parent_id")
_TIMES: Final = ("start_ns", "open_until_ns")

#: Tables of things that the reports share, each with the columns to deduplicate by.
_COMMON: Final = {"devices": ["device"], "source_files": ["file"], "symbols": None, "compiled_kernels": None}


def pooled(reports: Sequence[Report]) -> Report | None:
    """Merges `reports`, all of one tool; None for none. Cached: the same reports give the same object."""
    if not reports:
        return None
    return _pool(*reports) if len(reports) > 1 else reports[0]


@once_together
def _pool(first: Report, *others: Report) -> Report:
    reports = (first, *others)
    selective = measured_some([one.meta.selective for one in reports])
    # no single recording is as long as all of them together
    return Report(replace(first.meta, selective=selective, end_ns=None), _Pool(reports))


class _Pool:
    """A source that concatenates the tables of several reports; see :class:`kanalyze.source.Source`."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = reports

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if any(kind in one.kinds for one in self._reports))

    def events(self, kind: str) -> pl.DataFrame:
        return EVENTS.select(self._concatenated(lambda one: one.kind(kind)))

    def table(self, name: str) -> pl.DataFrame:
        found = self._concatenated(partial(self._table_of, name))
        if name in _COMMON:
            found = found.unique(_COMMON[name], keep="first", maintain_order=True)
        return READER_TABLES[name].select(found)

    def close(self) -> None:
        for one in self._reports:
            one.close()

    def notes_of_read(self) -> pl.DataFrame:
        return self._concatenated(lambda one: one.notes_of_read())

    def _table_of(self, name: str, report: Report) -> pl.DataFrame:
        """A table of one report; without the launch numbers of another capture, which number other launches."""
        found = report.table(name)
        elsewhere = report.meta.capture != self._reports[0].meta.capture
        return found.clear() if name == "launch_numbers" and elsewhere else found

    def _concatenated(self, table: Callable[[Report], pl.DataFrame]) -> pl.DataFrame:
        """Concatenates a table of all reports, with event ids, process ids and times shifted to be distinct."""
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
        return [0, *accumulate(1 + max((_largest(one, "event_id") for one in _frames(report)), default=-1)
                               for report in self._reports[:-1])]  # fmt: skip

    @cached_property
    def _starts(self) -> list[int]:
        """The offset of each report's times."""
        moves, end = [0], None
        for before, after in zip(self._reports, self._reports[1:], strict=False):
            end = max((_largest(one.with_columns(end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)), "end")
                       for one in _frames(before)), default=0) + moves[-1]  # fmt: skip
            least = min((-_largest(one.select(back=-pl.col("start_ns")), "back") for one in _frames(after)), default=0)
            moves.append(end - least)
        return moves

    @cached_property
    def _process_offsets(self) -> list[int]:
        """The offset of each report's process ids: 0 unless an earlier report has one of them."""
        offsets, seen = list[int](), set[int]()
        for report in self._reports:
            own = {number for one in _frames(report) for number in one.get_column("process_id").drop_nulls().unique()}
            offset = 0 if own.isdisjoint(seen) else 1 + max(seen) - min(own)
            seen |= {process + offset for process in own}
            offsets.append(offset)
        return offsets


def _frames(report: Report) -> list[pl.DataFrame]:
    """The non-empty event tables of a report, one per kind."""
    return [frame for kind in report.kinds if (frame := report.kind(kind)).height]


def _largest(frame: pl.DataFrame, column: str) -> int:
    return int(frame.get_column(column).max() or 0)  # type: ignore[arg-type] # it is a number
