"""Reads a capture folder written by ``kanalyze collect``: its nsys report and its tables of compiled kernels.

docs/collect.md describes the contents of such a folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import CannotTellError, DamagedReportError, KanalyzeError, UnknownFormatError
from kanalyze.files.regular import readable, regular
from kanalyze.model import COMPILED_KERNELS
from kanalyze.readers.capture.program import LINES, MISSHAPEN, bare_runs, lines_tables
from kanalyze.readers.ncu.asked_launches import MANIFEST, commands, recorded_all, selections, selective
from kanalyze.readers.ncu.read_csv_rep import Run, runs_in
from kanalyze.readers.ncu.read_csv_rep import report_of as report_of_ncu
from kanalyze.readers.nsys.read_sqlite_folder import NsysTables, report_of
from kanalyze.readers.storage.sqlite_file import SqliteFile
from kanalyze.readers.torch import read_json as read_torch_json
from kanalyze.report import Report
from kanalyze.schema import Source

if TYPE_CHECKING:
    from kanalyze.readers import Progress


_BOARD: Final = "tensorboard/*.pt.trace.json*"
_TRACE: Final = re.compile(r"torch(?!-run)(-\w+)*\.json(\.gz)?")


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder with a manifest."""
    del head
    return os.path.isfile(path / MANIFEST)  # noqa: PTH113 - Path.is_file raises of a name that is too long


def holds_reports(folder: Path) -> bool:
    """Whether the capture folder holds a report of any tool."""
    return bool(reports_in(folder) or samples_in(folder) or traces_in(folder) or runs_in(folder, "ncu"))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the capture in the folder `path`; with several nsys runs, the first one.

    Without an nsys pass it is the ncu report, or else the first trace of torch.profiler.

    Raises:
        UnknownFormatError: The capture has no report of any tool.
        DamagedReportError: The report is truncated, or its list of tables cannot be read.
    """
    found = reports_in(path) or samples_in(path)
    if found:
        report = run_of(path, found[0], cache=cache)
        return replace(report, meta=replace(report.meta, path=path, read_from=found[0]))
    if counters := runs_in(path, "ncu"):
        return counters_of(path, counters, progress)
    if not (traces := traces_in(path)):
        remedy = "Collect it again with the nsys pass; `kanalyze doctor` says what is missing for that."
        raise UnknownFormatError.of(path, "a capture without a report of nsys", remedy)
    trace = _trace_of(traces[0], progress, cache=cache)
    meta = replace(trace.meta, path=path, read_from=traces[0], capture=path)
    return replace(trace, meta=meta, bare=partial(bare_runs, path))


def run_of(folder: Path, run: Path, *, cache: bool = True) -> Report:
    """Opens a run of nsys, with the capture's tables of compiled kernels, and its trace and its samples beside it.

    Raises:
        DamagedReportError: It is truncated, or its list of tables cannot be read.
    """
    database = SqliteFile(run)
    report = report_of(database)
    trace = partial(_trace_of, progress=lambda *_: None, cache=cache)
    beside = Beside(report, traces_in(folder), trace)
    sampled = Beside(report, [one for one in samples_in(folder) if one != run], partial(run_of, folder))
    source = CaptureTables(folder, database, (beside, sampled), _lines_of(run, report.meta.origin_unix_ns))
    meta = replace(report.meta, capture=folder, partial=not recorded_all(commands(folder)))
    return replace(report, meta=meta, source=source, beside=beside, sampled=sampled, bare=partial(bare_runs, folder))


def _lines_of(recording: Path, origin_unix_ns: int | None) -> Callable[[], dict[str, pl.DataFrame]]:
    """The tables of the program's lines, of which one file is read once for both."""
    return cache(partial(lines_tables, recording, origin_unix_ns))


def _trace_of(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens a trace of a capture, with the program's lines."""
    trace = read_torch_json.open_report(path, progress, cache=cache)
    return replace(trace, source=_TraceTables(trace.source, _lines_of(path, trace.meta.origin_unix_ns)))


def counters_of(folder: Path, runs: Sequence[Run], progress: Progress | None) -> Report:
    """Opens the given ncu runs of a capture as one report, with launch numbers where the manifest gives them.

    Raises:
        ExportError: One is in ncu's own format, which nothing here can read.
        UnknownFormatError: One has no kernels.
        DamagedReportError: The pages of one are not of one run, or are invalid.
    """
    told = commands(folder)
    report = report_of_ncu(folder, runs, progress or (lambda *_: None), selections(told))
    chosen = selective(told, [run.name for run in runs])
    return replace(report, meta=replace(report.meta, selective=chosen))


def traces_in(folder: Path) -> list[Path]:
    """The torch.profiler traces of a capture, one per rank and cycle; else the traces that the program wrote itself.

    Traces of the recipe tensorboard are only in the folder of that name.
    """
    names = [path for path in folder.glob("torch*.json*") if _TRACE.fullmatch(path.name)]
    ours = [path for path in names if "-own" not in path.name] + [*folder.glob(_BOARD)]
    return sorted(ours or names, key=lambda path: (len(path.name), path.name))


def reports_in(folder: Path) -> list[Path]:
    """The nsys reports of a capture, one per run of the nsys pass, in run order."""
    return sorted(folder.glob("nsys*.sqlite"), key=lambda path: (len(path.name), path.name))


def samples_in(folder: Path) -> list[Path]:
    """The report of the pass of samples in a capture; none without one."""
    return [path for path in [folder / "samples.sqlite"] if path.is_file()]


# Tables that a capture adds to its nsys report: the kernels compiled by Triton and inductor.

_COMPILED: Final = "compiled.json"

#: Written by a Python workload under torch.profiler: there if compilation was observed, even with no kernel in it.
_LOOKED: Final = "torch-run*.json"


class Beside:
    """Another report of the same program in a capture, opened when first asked for, unless it is open already."""

    def __init__(self, owner: Report, files: Sequence[Path], opened: Callable[[Path], Report]) -> None:
        """`opened` opens the only one of `files`; of several traces nothing tells which belongs to a process of nsys.

        The `owner`, beside which it is, notes what is damaged.
        """
        self._owner, self._files, self._opened = owner, files, opened
        self._lock = RLock()
        self._found: Report | None = None
        self._asked = self._own = False

    def __call__(self) -> Report | None:
        """The report; None without one, or with one that cannot be read, which is noted."""
        with self._lock:
            if not self._asked:
                self._own = True
                for file in self._files if len(self._files) == 1 else ():
                    try:
                        self.use(self._opened(file))
                    except KanalyzeError as error:
                        self._owner.go_without(file.name, error)
                self._asked = True
            return self._found

    def use(self, report: Report) -> None:
        """Takes a report that is open, whose owner closes it."""
        with self._lock:
            if not self._asked:
                self._asked, self._found = True, report
                self._owner.use(report)

    def close(self) -> None:
        """Close the report if it was opened here."""
        with self._lock:
            if self._own and self._found is not None:
                self._found.close()
            self._asked = True


class CaptureTables(NsysTables):
    """Tables of a capture's nsys report plus its compiled kernels."""

    def __init__(
        self, folder: Path, database: SqliteFile, beside: Sequence[Beside], lines: Callable[[], dict[str, pl.DataFrame]]
    ) -> None:
        """Read compiled kernels from `folder`, the program's `lines`, and all else from `database`, the export."""
        super().__init__(database)
        self._folder, self._beside = folder, beside
        self._lines = lines

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        if name in LINES:
            return self._lines()[name]
        return self._compiled() if name == COMPILED_KERNELS.name else super().table(name)

    def close(self) -> None:
        """Close the export, and the reports beside it."""
        super().close()
        for beside in self._beside:
            beside.close()

    def _compiled(self) -> pl.DataFrame:
        """The table of compiled kernels; empty without a file of them if compilation was observed."""
        path = self._folder / _COMPILED
        if not os.path.lexists(path):
            if any(self._folder.glob(_LOOKED)):
                return COMPILED_KERNELS.empty()
            raise CannotTellError.without_capture("compiled", self._folder)
        with readable(path):
            content = regular(path).read_bytes()
        try:
            rows = json.loads(content.decode())["kernels"]
            found = [
                {name: row.get(name) for name in COMPILED_KERNELS.schema}
                # backend and architecture become one text
                | {
                    "arch": ":".join(str(row[part]) for part in ("backend", "arch") if row.get(part) is not None)
                    or None
                }
                for row in rows
            ]
            return COMPILED_KERNELS.check(pl.DataFrame(found, schema=COMPILED_KERNELS.schema))
        except (*MISSHAPEN, pl.exceptions.PolarsError) as error:
            raise DamagedReportError.at(path, "the rows of kernels", "not what the collector writes") from error


class _TraceTables:
    """Tables of a capture's trace, and the program's lines."""

    def __init__(self, trace: Source, lines: Callable[[], dict[str, pl.DataFrame]]) -> None:
        self._trace, self._lines = trace, lines
        self.kinds, self.events = trace.kinds, trace.events
        self.notes_of_read, self.close = trace.notes_of_read, trace.close

    def table(self, name: str) -> pl.DataFrame:
        return self._lines()[name] if name in LINES else self._trace.table(name)
