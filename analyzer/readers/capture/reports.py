"""Finds and opens the reports of one program, those of each tool and run: of a capture, a folder, or a path alone."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from kanalyze.errors import KanalyzeError
from kanalyze.files import readable
from kanalyze.machinery import late
from kanalyze.readers import Progress, read, room_at, unpacked
from kanalyze.readers.capture import read_capture
from kanalyze.readers.capture.read_capture import Beside, counters_of, from_manifest, samples_in, trace_of, traces_in
from kanalyze.readers.ncu.read_csv_rep import runs_in
from kanalyze.reduction import is_reduction
from kanalyze.report import Report
from kanalyze.tools import NAMES, SIDES, Tool, Turn, tool_of

with late():
    from kanalyze.readers.torch.pieces import is_trace

T = TypeVar("T")
#: The tool of the pass of samples: nsys, in a run of its own, of which only the tables are asked that no other has.
SAMPLES: Final = "samples"
#: How the files of reports that have a timeline end.
_NSYS, _EXPORT = ".nsys-rep", ".sqlite"
_REPORTS: Final = (_NSYS, _EXPORT, ".json", ".json.gz")
#: How files end that are read by themselves: those, reports of ncu, the first of its pages, and baselines.
_READ: Final = (*_REPORTS, ".ncu-rep", ".details.csv", ".kz")


def several_tools(path: Path) -> bool:
    """Whether `path` is a capture with a timeline (nsys or torch) and reports of further tools."""
    return len({run.recorder for run in ways(path)}) > 1


class Run(NamedTuple):
    """A report of one run of a program, unopened."""

    tool: str  # ``nsys``, :data:`SAMPLES`, ``torch`` or ``ncu``; empty where no reader opens the file
    file: Path  # the file or folder that is read
    opened: Callable[[], Report]  # opens the report; raises as :func:`kanalyze.readers.read` does
    common: Path  # what reports of one run have in common: a path, that of a report alone is its own
    turn: Turn | None = None  # the place in an interleaved collection
    #: the number among the runs under that tool, from 1; traces of the ranks or cycles of one run share it
    number: int = 1

    @property
    def recorder(self) -> Tool:
        """The tool that wrote it."""
        return tool_of("nsys" if self.tool == SAMPLES else self.tool)

    @property
    def name(self) -> str:
        """What the report is called where it cannot be read: of ncu it has several files."""
        return f"of {self.tool}" if self.recorder.counts else self.file.name


def reports_below(root: Path, most: int) -> Iterator[tuple[Path, int]]:
    """The reports and captures in a folder and those in it, with their bytes; of at most so many folders, no links.

    Hidden folders are left out, and files that end as reports do and begin as no report.
    """
    for number, (place, below, names) in enumerate(os.walk(root)):
        here, whole = Path(place), "manifest.json" in names
        if whole or number > most:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))
        files = [here / name for name in names if whole or name.endswith(_READ)]
        sizes = {file: file.stat().st_size for file in files if not file.is_symlink() and (whole or is_report(file))}
        yield from [(here, sum(sizes.values()))] if whole else sizes.items()


def is_report(file: Path) -> bool:
    """Whether a file begins as a report or a baseline does; JSON that is no trace does not."""
    with suppress(OSError, KanalyzeError):
        room = file.suffix == ".kz" or room_at(file)
        return bool(room) and (room != "torch" or is_trace(file))
    return True  # why it cannot be read shows when it is opened


def ways(folder: Path, progress: Progress | None = None, *, cache: bool = True, runs: bool = False) -> list[Run]:
    """The reports of the capture in `folder`, each unopened: nsys, samples, torch.profiler (ranks and cycles), ncu.

    Of several nsys runs there is only the first one, with `runs` all of them. Without any, that of samples is nsys'.
    None of what is no capture.
    """
    given, folder = folder, unpacked(folder)
    if not read_capture.accepts(folder, b""):
        return []
    sampled, counters = samples_in(folder), runs_in(folder, "ncu")
    recorded = read_capture.reports_in(folder)
    recorded, sampled = (recorded, sampled) if recorded else (sampled, [])
    rows: list[tuple[str, Path, Callable[[], Report]]] = [
        *(("nsys", run, partial(read, folder, progress, cache=cache)) for run in recorded[:1]),
        *(("nsys", run, partial(read_capture.run_of, folder, run)) for run in recorded[1:] if runs),
        *((SAMPLES, run, partial(read_capture.run_of, folder, run)) for run in sampled),
        *(("torch", trace, partial(trace_of, folder, trace, progress, cache=cache)) for trace in traces_in(folder)),
        *(("ncu", run.file, partial(counters_of, folder, counters, progress)) for run in counters[:1]),
    ]
    reports = [Run(tool, file, opened, folder / (file.stem if tool == "nsys" else tool)) for tool, file, opened in rows]
    if folder == given:
        return reports
    # of an unpacked archive, by whose path it is asked again
    return [one._replace(opened=partial(_with_meta, one.opened, path=given)) for one in reports]


def _with_meta(opened: Callable[[], Report], **meta: object) -> Report:
    report = opened()
    return replace(report, meta=replace(report.meta, **meta))  # type: ignore[arg-type]


def reports_in_folder(path: Path) -> list[Path]:
    """The paths of the reports in a folder that is no report itself, by name; none for any other path.

    Folders in it count where they are reports, such as captures. Of a report of nsys and its export beside it there is
    only the export.
    """
    path = unpacked(path)
    if not _is_folder(path) or read_capture.accepts(path, b"") or is_reduction(path):
        return []
    with readable(path):
        entries = sorted(path.iterdir())
    files = [entry for entry in entries if entry.name.endswith(_REPORTS) and not _is_folder(entry)]
    if not files and room_at(path):
        return []
    exported = {entry.stem for entry in files if entry.suffix == _EXPORT}
    files = [entry for entry in files if entry.suffix != _NSYS or entry.stem not in exported]
    folders = [entry for entry in entries if _is_folder(entry) and not is_reduction(entry) and room_at(entry)]
    return sorted([*files, *folders, *(run.file for run in runs_in(path))])


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - never raises, as of a link to itself


def every_report(
    path: Path,
    progress: Progress | None = None,
    *,
    cache: bool = True,
    runs: bool = False,
    left_out: Callable[[KanalyzeError], object] | None = None,
) -> list[Report]:
    """Opens the reports at `path`; of a capture folder those of each tool, nsys first; of a folder of reports all.

    The traces of torch.profiler are those of all ranks and cycles. Of several nsys runs only the first one is opened,
    with `runs` all of them; samples beside one are not. Raises as :func:`kanalyze.readers.read` does; with `left_out`,
    further reports of a folder that fail to open are skipped and their errors passed to it.
    """
    opened = partial(_every_report, progress=progress, cache=cache, runs=runs, left_out=left_out)
    if inside := reports_in_folder(path):  # of which none is looked into again: a link may lead back here
        report_lists = _opened([partial(opened, one) for one in inside], left_out, any_first=True)
        return [one for some in report_lists for one in some]
    return opened(path)


def _every_report(
    path: Path,
    *,
    progress: Progress | None,
    cache: bool,
    runs: bool,
    left_out: Callable[[KanalyzeError], object] | None,
) -> list[Report]:
    """The same of a path that is no folder of reports."""
    if not read_capture.accepts(unpacked(path), b""):
        return [read(path, progress, cache=cache)]
    missing: dict[str, KanalyzeError] = {}

    def opened(run: Run) -> Report:
        try:
            return run.opened()
        except KanalyzeError as error:
            missing[run.name] = error
            raise

    tool_runs = [run for run in ways(path, progress, cache=cache, runs=runs) if run.tool != SAMPLES]
    reading = [partial(opened, run) for run in tool_runs] or [partial(read, path, progress, cache=cache)]
    reports = _opened(reading, left_out)  # the last one says what is missing
    for file, error in missing.items():
        reports[0].go_without(file, error)
    traces = [report for report in reports if report.meta.recorder.ranked]
    counters = [report for report in reports if report.meta.recorder.counts]
    for report in reports:
        for beside, others in ((report.beside, traces), (report.counted, counters)):
            if len(others) == 1 and isinstance(beside, Beside):
                beside.use(others[0])
    return reports


def _opened(
    ways: Sequence[Callable[[], T]], left_out: Callable[[KanalyzeError], object] | None, *, any_first: bool = False
) -> list[T]:
    """Results of the `ways`; those that fail are left out, but not the first of all, or with `any_first` not all."""
    results: list[T] = []
    failed: list[KanalyzeError] = []
    for way in ways:
        try:
            results.append(way())
        except KanalyzeError as error:
            if left_out is None or not (results or any_first):
                raise
            left_out(error)
            failed.append(error)
    if failed and not results:
        raise failed[0]
    return results


def counters_at(path: Path, progress: Progress | None = None, *, cache: bool = True) -> Report:
    """Opens the report at `path`, of a capture its ncu report; raises as :func:`kanalyze.readers.read`."""
    inside = unpacked(path)
    if not read_capture.accepts(inside, b"") or not (counters := runs_in(inside, "ncu")):
        return read(path, progress, cache=cache)
    return counters_of(inside, counters, progress)


# The runs at a path: those of a capture, of a folder of reports, or of one side of an interleaved collection.

#: In order of what their runs tell of time; the last one is of what no reader opens.
_TOOLS: Final = (*NAMES, "")
#: The folder of a repetition of the torch pass in a capture.
_REPEATED: Final = re.compile(r"torch-(\d+)")


def runs_of(path: Path, progress: Progress | None = None, *, cache: bool = True) -> list[Run]:
    """The runs at `path`: first those of nsys, then of torch, then of ncu; each in order of time, as far as names tell.

    Of a capture these are the repetitions of each tool's pass, of a folder of reports all reports in it, of any other
    path that report alone. None is opened: what is missing or damaged is an error of :attr:`Run.opened`.
    """
    unsorted = [one for report in reports_in_folder(path) or [path] for one in _runs_at(report, progress, cache=cache)]
    numbers: dict[str, dict[Path, int]] = {tool: {} for tool in _TOOLS}
    runs = []
    for run in sorted(unsorted, key=lambda one: _TOOLS.index(one.tool)):
        number = numbers[run.tool].setdefault(run.common, len(numbers[run.tool]) + 1)
        runs.append(run._replace(number=number, opened=partial(_with_meta, run.opened, turn=run.turn)))
    return runs


def sides_in(path: Path) -> tuple[Path, Path] | None:
    """The captures ``base`` and ``new`` in the folder that ``collect --against`` wrote; None for any other path."""
    base, new = (unpacked(path) / side for side in SIDES)
    return (base, new) if all(read_capture.accepts(side, b"") for side in (base, new)) else None


def _runs_at(path: Path, progress: Progress | None, *, cache: bool) -> list[Run]:
    """The reports at a path that is no folder of reports; of a capture also those of repetitions of the torch pass."""
    folder, room, runs = unpacked(path), room_at(path), list[Run]()
    if room == "capture":
        runs = [run for run in ways(folder, progress, cache=cache, runs=True) if run.tool != SAMPLES]
        named = {int(name[1]): inside for inside in folder.iterdir() if (name := _REPEATED.fullmatch(inside.name))}
        opened = partial(trace_of, folder, progress=progress, cache=cache)
        for repeated in (inside for _, inside in sorted(named.items()) if inside.is_dir()):
            runs += [Run("torch", trace, partial(opened, trace), repeated) for trace in traces_in(repeated)]
        turns = _turns(folder)
        runs = [run._replace(turn=turns.get(run.common.name)) for run in runs]
    return runs or [Run(room if room in _TOOLS else "", folder, partial(read, folder, progress, cache=cache), folder)]


def _turns(folder: Path) -> dict[str, Turn]:
    """The turn of each run of a capture, by the name of its files; empty where it was not interleaved with another."""

    def turns(against: Any) -> dict[str, Turn]:  # noqa: ANN401 - whatever is in a manifest
        collection, side = against["collection"], against["side"]
        known = side in SIDES and isinstance(collection, str)
        numbers = against["turns"].items() if known else ()
        return {name: Turn(collection, side, number) for name, number in numbers if type(number) is int}

    return from_manifest(folder, "against", turns, {})
