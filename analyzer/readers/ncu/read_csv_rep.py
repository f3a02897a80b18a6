"""Reads ``.ncu-rep`` reports, CSV pages of ``ncu --csv``, also from a log with other output, and folders of either.

``kanalyze collect`` writes a report ``NAME.ncu-rep`` and its pages ``NAME.details.csv``, ``NAME.raw.csv`` and
``NAME.source.csv``; of a program that it had to run again for other kernels, the same as ``NAME-2``. The files of one
run are read together, and several runs make one report. Where the module is missing, the installed ncu prints the pages
of a report.
"""

import csv
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, takewhile
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import polars as pl

from kanalyze import errors, outlets, readers, tools
from kanalyze.counter_model import INSTRUCTIONS, LAUNCH_NUMBERS
from kanalyze.files import regular
from kanalyze.machinery import ending_with
from kanalyze.readers.ncu import csv as ncu_csv, module as ncu_module
from kanalyze.readers.ncu.csv import POINT, Page, content, looks_like_ncu, numbers, pages_in
from kanalyze.readers.ncu.tables import COUNTED, Measured, NcuTables, damaged
from kanalyze.readers.nsys.read_rep import newest
from kanalyze.report import Meta, Report

Runner = Callable[[Sequence[str]], subprocess.CompletedProcess[bytes]]

#: Suffixes of reports, compressed ones among them, and of pages and logs; a page may have any name.
REPORT: Final = ".ncu-rep"
_REPORTS: Final = (REPORT, REPORT + "z")
#: The file that marks a folder as a capture.
MANIFEST: Final = "manifest.json"
#: How the files of a run are called behind its name.
_SOURCE: Final = ".source.csv"
_PAGES: Final = {"details": ".details.csv", "raw": ".raw.csv"}


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is a report, a page or a log of ncu, or a folder of such that is no capture."""
    if path.is_dir():
        return not (path / MANIFEST).is_file() and bool(runs_in(path))
    if head.startswith((ncu_module.MAGIC, b'"ID","')) or not head:
        return bool(head)
    return path.suffix in _REPORTS or (path.suffix in (".csv", ".log", ".txt") and looks_like_ncu(content(path)))


def open_report(path: Path, progress: readers.Progress, *, cache: bool) -> Report:
    """Opens all runs in the folder at `path`, or the report or page there.

    Of a report that nothing here can read the pages beside it are opened; a page is joined with those of its run.

    Raises ExportError if neither the module nor a program is here to read a report with, or it cannot read this one;
    UnknownFormatError if ncu profiled nothing, or only the page of sources is there; DamagedReportError if the pages of
    a run are of different runs, or are invalid.
    """
    del cache  # reading it again is as fast as a cache
    if path.is_dir():
        return report_of(path, runs_in(path), progress)
    with path.open("rb") as file:
        is_report = path.suffix in _REPORTS or file.read(len(ncu_module.MAGIC)) == ncu_module.MAGIC
    if not is_report:
        return _report_of_page(path)
    return report_of(path, [Run(path, _pages_of(path.with_name(path.name.removesuffix(REPORT))))], progress)


class Run(NamedTuple):
    """The files of one run: its report, its pages by kind, and their common stem."""

    report: Path | None
    pages: dict[str, Path]
    name: str = ""

    @property
    def file(self) -> Path:
        """The file that stands for it: its report, else a page."""
        return self.report or next(iter(self.pages.values()))


def runs_in(folder: Path, beginning: str = "") -> list[Run]:
    """The runs with files in `folder` whose stems begin with `beginning`, sorted by name."""
    files_of_run: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob(f"{beginning}*")):
        for ending in (REPORT, *_PAGES.values()):
            if path.name.endswith(ending):
                files_of_run.setdefault(path.name.removesuffix(ending), {})[ending] = path
    return [
        Run(files.get(REPORT), {kind: files[ending] for kind, ending in _PAGES.items() if ending in files}, name)
        for name, files in sorted(files_of_run.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def report_of(
    path: Path, runs: Sequence[Run], progress: readers.Progress, asked: "Mapping[str, Selection] | None" = None
) -> Report:
    """Concatenates `runs` into one report of `path`.

    `asked` holds the launch selection of each run, by name, if they are of a capture.

    Raises ExportError if one is in ncu's own format, which nothing here can read; UnknownFormatError if one has no
    kernels; DamagedReportError if the pages of one are not of one run, or are invalid.
    """
    measured = [with_numbers(_measured(run, progress), (asked or {}).get(run.name)) for run in runs]
    return Report(Meta(path, "ncu", capture=path if asked is not None else None), NcuTables(path, _joined(measured)))


def with_numbers(measured: Measured, asked: "Selection | None") -> Measured:
    """Adds the program's launch numbers to the kernels of a run."""
    if asked is None or measured.launches.get_column("process_id").n_unique() > 1:
        return measured
    numbers = asked.numbers_of(measured.launches.get_column("name").to_list())
    numbered = measured.launches.select("event_id", number=pl.Series(numbers, dtype=pl.Int64)).drop_nulls()
    symbols = pl.lit(list(asked.symbols), dtype=pl.List(pl.String))
    return replace(measured, numbers=LAUNCH_NUMBERS.select(numbered.with_columns(symbols=symbols)))


def _measured(run: Run, progress: readers.Progress) -> Measured:
    """Reads one run, preferring the report, which holds more, over its pages."""
    library = None
    if run.report:
        regular(run.report)
        library = ncu_module.module()
    if run.report and library:
        try:
            opened, cut = ncu_module.actions(run.report, library)
            return ncu_module.measured(run.report, library, opened, cut=cut)
        except errors.ExportError as error:
            if not run.pages:
                raise
            measured = _of_pages(run.pages)
            left_out = ("report left out", 1, None, f"its pages are read: {error}")
            return replace(measured, notes=[*measured.notes, left_out])
    if run.pages or not run.report:
        return _of_pages(run.pages)
    return through_program(run.report, progress)


def _of_pages(pages: Mapping[str, Path]) -> Measured:
    """Reads a run from its pages, keyed by kind, with names and instructions of the source page."""
    files = {kind: pages_in(path) for kind, path in pages.items()}
    return _named(ncu_csv.measured(files.get("details"), files.get("raw")), _stem(next(iter(pages.values()))))


def _pages_of(stem: Path) -> dict[str, Path]:
    """The pages whose names begin with `stem`, by kind."""
    every = {kind: stem.with_name(stem.name + ending) for kind, ending in _PAGES.items()}
    return {kind: page for kind, page in every.items() if page.is_file()}


def _stem(page: Path) -> Path | None:
    """What the pages of a run have in common of their names; None for a page that is not named so."""
    ending = next((ending for ending in (*_PAGES.values(), _SOURCE) if page.name.endswith(ending)), None)
    return page.with_name(page.name.removesuffix(ending)) if ending else None


def _report_of_page(path: Path) -> Report:
    """The report of the page at `path` with those of its run; of a source page that of a page beside it."""
    stem = _stem(path)
    beside = _pages_of(stem) if stem else {}
    if beside and path.name.endswith(_SOURCE):
        page = next(iter(beside.values()))
        report = _report_of_page(page)
        return replace(report, meta=replace(report.meta, path=path, read_from=page))
    pages = None if path.name.endswith(_SOURCE) else pages_in(path)
    files = {kind: pages for kind in _PAGES if pages and pages.of(kind)}
    if not files:
        remedy = "Give the details page or the raw page with it: `ncu --import REPORT --csv --page details`."
        raise errors.UnknownFormatError.of(path, "ncu's page of sources, which tells no counters of kernels", remedy)
    others = {kind: page for kind, page in beside.items() if kind not in files}
    try:
        more = {kind: pages_in(page) for kind, page in others.items()}
        run = ncu_csv.measured(**{**dict.fromkeys(_PAGES), **files, **more})
    except errors.DamagedReportError as error:
        if not others:
            raise
        run = ncu_csv.measured(**{**dict.fromkeys(_PAGES), **files})
        run = replace(run, notes=[*run.notes, ("page beside it left out", len(others), None, str(error))])
    return Report(Meta(path, "ncu"), NcuTables(path, _named(run, stem)))


def _named(measured: Measured, stem: Path | None) -> Measured:
    """Adds full names and instructions from the source page, where it has them."""
    source = stem.with_name(stem.name + _SOURCE) if stem else None
    if source is None or not source.is_file():
        return measured
    launches = with_whole_names(measured.launches, names_of_sources(content(source)))
    names = launches.get_column("name").to_list()
    return replace(measured, launches=launches, instructions=partial(instructions_of_page, source, names))


def _joined(runs: Sequence[Measured]) -> Measured:
    """Concatenates runs, renumbering the kernels of later ones."""
    if len(runs) == 1:
        return runs[0]
    firsts = [*accumulate((run.launches.height for run in runs[:-1]), initial=0)]

    def together(part: Callable[[Measured], pl.DataFrame]) -> pl.DataFrame:
        """A table of all runs, of which the later ones' kernels have further numbers."""
        moved = (pl.col("event_id") + first for first in firsts)
        return pl.concat([part(run).with_columns(column) for run, column in zip(runs, moved, strict=True)])

    return Measured(
        together(lambda run: run.launches),
        together(lambda run: run.metrics),
        together(lambda run: run.rules),
        list(dict.fromkeys(note for run in runs for note in run.notes)),
        instructions=lambda: together(lambda run: run.instructions()),
        files=lambda: pl.concat([run.files() for run in runs]).unique("file", keep="first", maintain_order=True),
        numbers=together(lambda run: run.numbers),
    )


def find() -> Path | None:
    """The ncu on PATH, else the newest where installers put it; None if there is none."""
    return newest("ncu", tools.NCU_FOLDERS)


def run_program(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; OSError if it cannot be started."""
    return subprocess.run(  # noqa: S603 - ncu, with the report's path and no shell
        list(command), stdin=subprocess.DEVNULL, capture_output=True, check=False, preexec_fn=ending_with(os.getpid())
    )


def through_program(path: Path, progress: readers.Progress, runner: Runner = run_program) -> Measured:
    """Reads the report at `path` through the installed ncu.

    Raises ExportError if there is none, or it cannot read the report.
    """
    program = find()
    if program is None:
        raise errors.ExportError(
            f"{path}: an Nsight Compute report, and there is nothing here that can read it (no module ncu_report, no "
            "ncu).",
            "Install the module, `pip install 'kanalyze[ncu]'` (it needs no GPU and no toolkit); or put its ncu "
            "on PATH; or print the report where it was recorded and give that: "
            f"`{outlets.command('ncu', '--import', path, '--csv', '--page', 'raw', '--print-units', 'base')}`.",
        )
    files = {}
    for number, kind in enumerate(_PAGES):
        progress(f"reading {path.name} with {program}", number / len(_PAGES))
        files[kind] = pages_in(path, printed(path, kind, program, runner))
    progress(f"reading {path.name} with {program}", 1.0)
    return ncu_csv.measured(files["details"], files["raw"])


def printed(path: Path, page: str, program: Path, runner: Runner = run_program) -> bytes:
    """Prints one page of the report at `path` with the ncu `program`, in base units.

    Raises ExportError if it cannot read the report, or not be started.
    """
    options = ("--import", str(path.absolute()), "--csv", "--page", page, "--print-units", "base")
    try:
        # full names, as other tools print them; older versions lack the option, and do not shorten
        ended = runner((str(program), *options, "--rename-kernels", "off"))
        if ended.returncode and b"rename-kernels" in ended.stderr + ended.stdout:
            ended = runner((str(program), *options))
    except OSError as error:
        raise ncu_module.unreadable(path, str(program), [error.strerror or str(error)]) from error
    if ended.returncode:
        lines = (ended.stderr + ended.stdout).decode(errors="replace").splitlines()
        raise ncu_module.unreadable(path, str(program), lines)
    return ended.stdout


#: ncu flags with a value that do not affect which launches are profiled.
_HARMLESS: Final = frozenset(
    (
        *("--set", "--section", "--metrics", "--import-source", "--source-folders", "--clock-control"),
        *("--cache-control", "--export", "-o", "--log-file", "--print-units", "--page", "--target-processes"),
    )
)

#: Flags that select launches, and their short forms.
_SHORT: Final = {"-k": "--kernel-name", "-s": "--launch-skip", "-c": "--launch-count"}
_CHOOSING: Final = ("--kernel-id", "--kernel-name-base", "--profile-from-start", *_SHORT.values())

#: `nsys profile` flags that do not affect which launches are recorded, nor their order.
_HARMLESS_IN_NSYS: Final = re.compile(
    r"--(cuda-um-(cpu|gpu)-page-faults|sample|cpuctxsw|output|duration|export|stats|force-overwrite)=.*"
    r"|--trace=(.*,)?cuda(,.*)?|--cuda-graph-trace=node|--capture-range-end=stop"
)
#: The words of `nsys profile` and a program.
_LEAST: Final = 3
#: A regular expression that matches exactly one mangled name.
_ESCAPED: Final = r"(?:\w|\\[.$])+"
#: Whether ncu counts launches from program start, by the value of --profile-from-start.
_STARTS: Final = {"on": True, "yes": True, "1": True, "off": False, "no": False, "0": False}


class Selection(NamedTuple):
    """The launches selected by one ncu run."""

    numbers: tuple[int, ...] | None  # the launch numbers, counted from 1 per function; None for the first launches
    skip: int = 0  # how many launches are skipped before the first ones; if any, the launches are of one function
    #: whether launches are counted from the call of cudaProfilerStart on, not from program start
    from_call: bool = False
    symbols: tuple[str, ...] = ()  # mangled names of the functions that pass the filter; empty if unknown

    def numbers_of(self, names: Sequence[str | None]) -> list[int | None]:
        """The launch number (from 1, per function) of each profiled kernel; None where the report contradicts this."""
        seen: Counter[str | None] = Counter()
        counts, launch_numbers = Counter(names), list[int | None]()
        for name in names:
            seen[name] += 1
            if name is None or (self.numbers is not None and counts[name] != len(self.numbers)):
                launch_numbers.append(None)
            else:
                launch_numbers.append(self.skip + seen[name] if self.numbers is None else self.numbers[seen[name] - 1])
        return launch_numbers if not self.skip or len(counts) == 1 else [None] * len(launch_numbers)


def selection(command: Sequence[str]) -> Selection | None:
    """Parses the launch selection of an ncu command line; None where it cannot be determined."""
    flags = _flags(command)
    if flags is None or (from_start := _from_start(flags)) is None:
        return None
    mangled = flags.get("--kernel-name-base") == "mangled"
    if "--kernel-id" in flags:  # in any context and on any stream
        of_all = re.fullmatch(r"::(.+):(\d+(?:\|\d+)*)", flags["--kernel-id"])
        numbers = {int(number) for number in of_all[2].split("|")} if of_all else {0}
        if of_all is None or 0 in numbers or not mangled or {*_SHORT.values()} & flags.keys():
            return None
        return Selection(tuple(sorted(numbers)), 0, not from_start, _symbols(of_all[1]))
    # the first launches that pass a name filter, after skipped ones if it names one function
    skip, count = (flags.get(flag, "0") for flag in ("--launch-skip", "--launch-count"))
    symbols = _symbols(flags.get("--kernel-name", "")) if mangled else ()
    if not (skip.isdecimal() and count.isdecimal()) or (int(skip) and len(symbols) != 1):
        return None
    return Selection(None, int(skip), not from_start, symbols)


def chooses(command: Sequence[str]) -> bool | None:
    """Whether an ncu command line profiles only a subset of the launches; None if unknown."""
    flags = _flags(command)
    if flags is None:
        return None
    if flags.keys() - {"--profile-from-start", "--kernel-name-base"}:
        return True
    from_start = _from_start(flags)
    return None if from_start is None else not from_start


def _from_start(flags: Mapping[str, str]) -> bool | None:
    """Whether launches are counted from program start; None for an unknown value of the flag."""
    return _STARTS.get(flags.get("--profile-from-start", "on"))


def _symbols(pattern: str) -> tuple[str, ...]:
    """The mangled names in a name filter: a plain name, ``regex:^NAME$`` or ``regex:^(NAME|NAME)$``; else none."""
    if re.fullmatch(r"[\w$.]+", pattern):
        return (pattern,)
    whole = re.fullmatch(rf"regex:\^(?:\(({_ESCAPED}(?:\|{_ESCAPED})*)\)|({_ESCAPED}))\$", pattern)
    return tuple((whole[1] or whole[2]).replace("\\", "").split("|")) if whole else ()


def _flags(command: Sequence[str]) -> dict[str, str] | None:
    """The flags that select launches, with values; None if any flag is unknown or repeated."""
    if not command or not PurePath(command[0]).name.startswith("ncu"):
        return None
    flags: dict[str, str] = {}
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-"):
            return flags
        flag, equals, value = word.partition("=")
        if flag in ("--csv", "--force-overwrite", "-f", "--nvtx") and not equals:
            continue
        value, flag = value if equals else next(words, ""), _SHORT.get(flag, flag)
        if flag in _CHOOSING and flag not in flags:
            flags[flag] = value
        elif flag not in _HARMLESS:
            return None
    return None  # there is no program


def counts_from_call(command: Sequence[str]) -> bool | None:
    """Whether an `nsys profile` command records from cudaProfilerStart on; None where it records otherwise.

    False if it records from program start. Either way every launch from there on has to be recorded, with graph nodes
    recorded individually.
    """
    if len(command) < _LEAST or not PurePath(command[0]).name.startswith("nsys") or command[1] != "profile":
        return None
    flags = [*takewhile(lambda word: word.startswith("-"), command[2:])]
    others = [flag for flag in flags if flag != "--capture-range=cudaProfilerApi"]
    return None if any(_HARMLESS_IN_NSYS.fullmatch(flag) is None for flag in others) else len(others) < len(flags)


# The source page: instructions of kernels, and full names, which ncu shortens on its pages of launches.


def instructions_of_page(path: Path, names: list[str | None]) -> pl.DataFrame:
    """The instructions of the kernels `names` on the source page at `path`.

    Empty if the page does not list these kernels in this order.

    Raises UnknownFormatError if it is no such page; DamagedReportError if it is no CSV.
    """
    page = content(path)
    blocks = pages_in(path, page).of("source")
    indices = places(names, names_of_sources(page))
    if indices is None:
        return INSTRUCTIONS.empty()
    parts = [_of_block(path, event_id, blocks[place]) for event_id, place in enumerate(indices)]
    return pl.concat([INSTRUCTIONS.empty(), *parts])


def _of_block(path: Path, event_id: int, page: Page) -> pl.DataFrame:
    if "Source" not in page.rows.columns:
        raise damaged(path, f"the page of {page.kernel or 'a kernel'}", "no column 'Source'")
    headings = {column: heading for column, (_, heading) in COUNTED.items()}
    headings["stalled_samples"] = "Warp Stall Sampling (Not-issued Samples)"
    known = {
        column: numbers(heading, POINT).cast(pl.Int64, strict=False).fill_null(0)
        for column, heading in headings.items()
        if heading in page.rows.columns
    }
    # from static analysis of the assembly: on pages of some versions only, never in the module's metrics
    live = next((heading for heading in ("Live Registers", "# Live Registers") if heading in page.rows.columns), None)
    if live is not None:
        known["live_registers"] = numbers(live, POINT).cast(pl.Int64, strict=False)
    sass = pl.col("Source").fill_null("").str.strip_chars()
    rows = page.rows.with_row_index("number").select("number", event_id=pl.lit(event_id), sass=sass, **known)
    return INSTRUCTIONS.select(INSTRUCTIONS.completed(rows))


# Full kernel names, which ncu shortens on its pages of launches but not on the source page.
#
# For example, ``void at::native::vectorized_elementwise_kernel<(int)4, …>`` becomes ``void
# at::vectorized_elementwise_kernel<4, …>``: some namespaces and casts are dropped, occasionally a bracket. nsys, torch
# and NVIDIA's module print full names.

_WORD: Final = re.compile(r"\w+")


def names_of_sources(text: bytes) -> list[str]:
    """The kernel names on a source page, in order; a kernel of several functions has several blocks."""
    lines = re.findall(rb'^"Kernel Name",".*', text, re.MULTILINE)
    return [row[1] for row in csv.reader(line.decode(errors="replace") for line in lines)]


def with_whole_names(launches: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """`launches` with full names from `names`, matched in order; unchanged unless every launch has a match."""
    indices = places(launches.get_column("name").to_list(), names)
    if indices is None:
        return launches
    return launches.with_columns(pl.Series("name", [names[place] for place in indices], dtype=pl.String))


def places(short: Sequence[str | None], whole: Sequence[str]) -> list[int] | None:
    """The index of each launch's full name, matched in order; None unless every launch has a match.

    A kernel of which ncu prints the block several times has them one after the other.
    """
    numbered = enumerate(whole)
    every = (next((place for place, one in numbered if name and _shortened(name, one)), None) for name in short)
    indices = [place for place in every if place is not None]
    return indices if len(indices) == len(short) else None


def _shortened(name: str, whole: str) -> bool:
    """Whether `name` is `whole` with words left out."""
    words = iter(_WORD.findall(whole))
    return all(word in words for word in _WORD.findall(name))
