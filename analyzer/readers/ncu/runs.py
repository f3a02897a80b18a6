"""Groups ncu files by run, and builds the report of one or more runs.

``kanalyze collect`` writes a report ``NAME.ncu-rep`` and its pages ``NAME.details.csv``, ``NAME.raw.csv`` and
``NAME.source.csv``; of a program that it had to run again for other kernels, the same as ``NAME-2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.counter_model import LAUNCH_NUMBERS
from kanalyze.errors import DamagedReportError, ExportError, UnknownFormatError
from kanalyze.files.regular import regular
from kanalyze.readers.ncu import csv as ncu_csv
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.ncu import module as ncu_module
from kanalyze.readers.ncu import program as ncu_program
from kanalyze.readers.ncu import source as ncu_source
from kanalyze.readers.ncu.module_process import read_apart
from kanalyze.readers.ncu.pages import content, pages_in, pages_of
from kanalyze.readers.ncu.tables import Measured, NcuTables
from kanalyze.report import Meta, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from kanalyze.readers import Progress
    from kanalyze.readers.ncu.asked_launches import Selection
    from kanalyze.readers.ncu.pages import PagesFile
    from kanalyze.readers.ncu.program import Runner

REPORT: Final = ".ncu-rep"
_SOURCE: Final = ".source.csv"
_PAGES: Final = {"details": ".details.csv", "raw": ".raw.csv"}


@dataclass(frozen=True)
class Run:
    """The files of one run: its report, its pages by kind, and their common stem."""

    report: Path | None = None
    pages: dict[str, Path] = field(default_factory=dict)
    name: str = ""


def runs_in(folder: Path, beginning: str = "") -> list[Run]:
    """The runs with files in `folder` whose stems begin with `beginning`, sorted by name."""
    found: dict[str, Run] = {}
    for path in sorted(folder.glob(f"{beginning}*")):
        endings = {REPORT: None, **{ending: kind for kind, ending in _PAGES.items()}}
        ending = next((ending for ending in endings if path.name.endswith(ending)), None)
        if ending is None:
            continue
        name, kind = path.name.removesuffix(ending), endings[ending]
        known = found.get(name, Run(name=name))
        found[name] = replace(known, **({"report": path} if kind is None else {"pages": {**known.pages, kind: path}}))
    return [found[name] for name in sorted(found, key=lambda name: (len(name), name))]


def file_of(run: Run) -> Path:
    """The file that stands for a run: its report, else a page."""
    return run.report or next(iter(run.pages.values()))


def report_of(
    path: Path, runs: Sequence[Run], progress: Progress, asked: Mapping[str, Selection] | None = None
) -> Report:
    """Concatenates `runs` into one report of `path`.

    `asked` holds the launch selection of each run, by name, if they are of a capture.

    Raises:
        ExportError: One is in ncu's own format, which nothing here can read.
        UnknownFormatError: One has no kernels.
        DamagedReportError: The pages of one are not of one run, or are invalid.
    """
    found = [with_numbers(measured(run, progress), (asked or {}).get(run.name)) for run in runs]
    capture = path if asked is not None else None
    return Report(Meta(path, "ncu", capture=capture), NcuTables(path, _joined(found)))


def with_numbers(found: Measured, asked: Selection | None) -> Measured:
    """Adds the program's launch numbers to the kernels of a run."""
    if asked is None or found.launches.get_column("process_id").n_unique() > 1:
        return found
    numbers = asked.numbers_of(found.launches.get_column("name").to_list())
    numbered = found.launches.select("event_id", number=pl.Series(numbers, dtype=pl.Int64)).drop_nulls()
    symbols = pl.lit(list(asked.symbols), dtype=pl.List(pl.String))
    return replace(found, numbers=LAUNCH_NUMBERS.select(numbered.with_columns(symbols=symbols)))


def measured(run: Run, progress: Progress) -> Measured:
    """Reads one run, preferring the report, which holds more, over its pages."""
    library = None
    if run.report:
        regular(run.report)
        library = ncu_module.module()
    if run.report and library:
        try:
            return _through_module(run.report, library)
        except ExportError as error:
            if not run.pages:
                raise
            found = _of_pages(run.pages)
            return replace(found, notes=[*found.notes, ("report left out", 1, None, f"its pages are read: {error}")])
    if run.pages:
        return _of_pages(run.pages)
    assert run.report is not None, "a run has a file"  # noqa: S101 - runs_in and the readers give one
    return through_program(run.report, progress)


def _through_module(path: Path, library: ModuleType) -> Measured:
    opened, cut = ncu_module.actions(path, library)
    return replace(
        ncu_module.measured(path, library, opened, cut=cut),
        instructions=lambda: read_apart("instructions", path, opened),
        files=lambda: read_apart("files", path, opened),
    )


def _of_pages(pages: Mapping[str, Path]) -> Measured:
    """Reads a run from its pages, keyed by kind, with names and instructions of the source page."""
    files = {kind: pages_in(path) for kind, path in pages.items()}
    found = ncu_csv.measured(files.get("details"), files.get("raw"))
    return _named(found, _stem(next(iter(pages.values()))))


def through_program(path: Path, progress: Progress, runner: Runner = ncu_program.run) -> Measured:
    """Reads the report at `path` through the installed ncu.

    Raises:
        ExportError: There is none, or it cannot read the report.
    """
    program = ncu_program.find()
    if program is None:
        raise ncu_errors.unreadable_here(path)
    files: dict[str, PagesFile] = {}
    for number, kind in enumerate(_PAGES):
        progress(f"reading {path.name} with {program}", number / len(_PAGES))
        files[kind] = pages_of(path, ncu_program.printed(path, kind, program, runner))
    progress(f"reading {path.name} with {program}", 1.0)
    return ncu_csv.measured(files["details"], files["raw"])


def pages_of_report(path: Path) -> dict[str, Path]:
    """The pages with the stem of the report at `path`."""
    return _pages_of(path.with_name(path.name.removesuffix(REPORT)))


def _pages_of(stem: Path) -> dict[str, Path]:
    """The pages whose names begin with `stem`, by kind."""
    every = {kind: stem.with_name(stem.name + ending) for kind, ending in _PAGES.items()}
    return {kind: page for kind, page in every.items() if page.is_file()}


def _stem(page: Path) -> Path | None:
    """What the pages of a run have in common of their names; None for a page that is not named so."""
    ending = next((ending for ending in (*_PAGES.values(), _SOURCE) if page.name.endswith(ending)), None)
    return page.with_name(page.name.removesuffix(ending)) if ending else None


def report_of_page(path: Path) -> Report:
    """The report of the page at `path`, with sibling pages if they are of the same run.

    Raises:
        UnknownFormatError: It has no kernels.
        DamagedReportError: It is invalid.
    """
    if path.name.endswith(_SOURCE):
        return _beside_source(path)
    given = pages_in(path)
    files = {kind: given for kind in _PAGES if given.of(kind)}
    if not files:
        raise _sources_alone(path)
    stem = _stem(path)
    others = {kind: page for kind, page in (_pages_of(stem) if stem else {}).items() if kind not in files}
    try:
        more = {kind: pages_in(page) for kind, page in others.items()}
        found = ncu_csv.measured(**{**dict.fromkeys(_PAGES), **files, **more})
    except DamagedReportError as error:
        if not others:
            raise
        found = ncu_csv.measured(**{**dict.fromkeys(_PAGES), **files})
        note = ("page beside it left out", len(others), None, str(error))
        found = replace(found, notes=[*found.notes, note])
    return Report(Meta(path, "ncu"), NcuTables(path, _named(found, stem)))


def _named(found: Measured, stem: Path | None) -> Measured:
    """Adds full names and instructions from the source page, where it has them."""
    source = stem.with_name(stem.name + _SOURCE) if stem else None
    if source is None or not source.is_file():
        return found
    launches = ncu_source.with_whole_names(found.launches, ncu_source.names_of_sources(content(source)))
    names = launches.get_column("name").to_list()
    return replace(found, launches=launches, instructions=lambda: ncu_source.instructions_of_page(source, names))


def _beside_source(path: Path) -> Report:
    """The report of the pages beside the source page at `path`, which lists no launches itself."""
    beside = next(iter(_pages_of(path.with_name(path.name.removesuffix(_SOURCE))).values()), None)
    if beside is None:
        raise _sources_alone(path)
    found = report_of_page(beside)
    return replace(found, meta=replace(found.meta, path=path, read_from=beside))


def _sources_alone(path: Path) -> UnknownFormatError:
    remedy = "Give the details page or the raw page with it: `ncu --import REPORT --csv --page details`."
    return UnknownFormatError.of(path, "ncu's page of sources, which tells no counters of kernels", remedy)


def _joined(found: Sequence[Measured]) -> Measured:
    """Concatenates runs, renumbering the kernels of later ones."""
    if len(found) == 1:
        return found[0]
    counts = [one.launches.height for one in found]
    firsts = [*accumulate(counts[:-1], initial=0)]

    def together(part: Callable[[Measured], pl.DataFrame]) -> pl.DataFrame:
        """A table of all runs, of which the later ones' kernels have further numbers."""
        moved = (pl.col("event_id") + first for first in firsts)
        return pl.concat([part(one).with_columns(column) for one, column in zip(found, moved, strict=True)])

    return Measured(
        together(lambda one: one.launches),
        together(lambda one: one.metrics),
        together(lambda one: one.rules),
        list(dict.fromkeys(note for one in found for note in one.notes)),
        instructions=lambda: together(lambda one: one.instructions()),
        files=lambda: pl.concat([one.files() for one in found]).unique("file", keep="first", maintain_order=True),
        numbers=together(lambda one: one.numbers),
    )
