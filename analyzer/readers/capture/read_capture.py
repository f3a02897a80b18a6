"""Reads a capture folder written by ``kanalyze collect``: its nsys report and its tables of compiled kernels.

docs/collect.md describes the contents of such a folder.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

import polars as pl

from kanalyze import counter_model, errors, model, readers, schema
from kanalyze.files import open_regular, readable, regular
from kanalyze.readers.capture import ptx
from kanalyze.readers.ncu import read_csv_rep
from kanalyze.readers.nsys.read_sqlite_folder import report_of
from kanalyze.readers.storage.table_files import SqliteFile
from kanalyze.report import BareRun, BareRuns, Batches, ReachedRates, Report

#: The commands of a capture, keyed by step name, as :func:`commands` returns them.
Commands = Mapping[str, Sequence[str]]

T = TypeVar("T")
_TRACE: Final = re.compile(r"torch(?!-run)(-\w+)*\.json(\.gz)?")


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder with a manifest."""
    del head
    return os.path.isfile(path / read_csv_rep.MANIFEST)  # noqa: PTH113 - Path.is_file raises of a name that is too long


def open_report(path: Path, progress: readers.Progress, *, cache: bool) -> Report:
    """Opens the capture in the folder `path`; with several nsys runs, the first one.

    Without an nsys pass it is the ncu report, or else the first trace of torch.profiler.

    Raises UnknownFormatError if the capture has no report of any tool; DamagedReportError if the report is truncated,
    or its list of tables cannot be read.
    """
    if runs := reports_in(path) or samples_in(path):
        report = run_of(path, runs[0], cache=cache)
        return replace(report, meta=replace(report.meta, path=path, read_from=runs[0]))
    if counters := read_csv_rep.runs_in(path, "ncu"):
        return counters_of(path, counters, progress)
    if not (traces := traces_in(path)):
        remedy = "Collect it again with the nsys pass; `kanalyze doctor` says what is missing for that."
        raise errors.UnknownFormatError.of(path, "a capture without a report of nsys", remedy)
    report = trace_of(path, traces[0], progress, cache=cache)
    return replace(report, meta=replace(report.meta, path=path, read_from=traces[0]))


def run_of(folder: Path, run: Path, *, cache: bool = True) -> Report:
    """Opens a run of nsys, with the capture's compiled kernels, and its trace, samples and counters beside it.

    Raises DamagedReportError if it is truncated, or its list of tables cannot be read.
    """
    report = report_of(SqliteFile(run))
    beside = Beside(report, traces_in(folder), partial(trace_of, folder, cache=cache))
    sampled = Beside(report, [one for one in samples_in(folder) if one != run], partial(run_of, folder))
    named = Beside(report, [one for one in samples_in(folder, "names") if one != run], partial(run_of, folder))
    added = _lines_of(run, report.meta.origin_unix_ns) | {model.COMPILED_KERNELS.name: partial(_compiled, folder)}
    counted = counted_beside(report, folder)
    source = CaptureTables(report.source, added, beside, sampled, named, counted)
    meta = replace(report.meta, capture=folder, partial=not recorded_all(commands(folder)))
    report = replace(report, meta=meta, source=source, beside=beside, sampled=sampled, captured_in=named)
    return replace(report, counted=counted, bare=partial(bare_runs, folder), reached=partial(_reached, folder))


def _lines_of(recording: Path, origin_unix_ns: int | None) -> dict[str, Callable[[], pl.DataFrame]]:
    """The tables of the program's lines, of which one file is read once for both."""
    tables = cache(partial(lines_tables, recording, origin_unix_ns))
    return {name: partial(lambda name: tables()[name], name) for name in LINES}


def trace_of(folder: Path, trace: Path, progress: readers.Progress | None = None, *, cache: bool = True) -> Report:
    """Opens a trace of the capture in `folder`, with the program's lines, and its runs without a profiler.

    Raises as :func:`kanalyze.readers.read` does.
    """
    opened = readers.read(regular(trace), progress, cache=cache)
    counted = counted_beside(opened, folder)
    source = CaptureTables(opened.source, _lines_of(trace, opened.meta.origin_unix_ns), counted)
    opened = replace(opened, source=source, meta=replace(opened.meta, capture=folder), counted=counted)
    return replace(opened, bare=partial(bare_runs, folder), reached=partial(_reached, folder))


def counted_beside(report: Report, folder: Path) -> "Beside":
    """What ncu counted in the capture in `folder`, beside one of its reports."""
    runs = read_csv_rep.runs_in(folder, "ncu")
    return Beside(report, [run.file for run in runs[:1]], lambda _: counters_of(folder, runs, None))


def counters_of(folder: Path, runs: Sequence[read_csv_rep.Run], progress: readers.Progress | None) -> Report:
    """Opens the given ncu runs of a capture as one report, with launch numbers where the manifest gives them.

    Raises ExportError if one is in ncu's own format, which nothing here can read; UnknownFormatError if one has no
    kernels; DamagedReportError if the pages of one are not of one run, or are invalid.
    """
    command_lines = commands(folder)
    report = read_csv_rep.report_of(folder, runs, progress or (lambda *_: None), selections(command_lines))
    return replace(report, meta=replace(report.meta, selective=selective(command_lines, [run.name for run in runs])))


def traces_in(folder: Path) -> list[Path]:
    """The torch.profiler traces of a capture, one per rank and cycle; else the traces that the program wrote itself.

    Traces of the recipe tensorboard are only in the folder of that name.
    """
    names = [path for path in folder.glob("torch*.json*") if _TRACE.fullmatch(path.name)]
    ours = [path for path in names if "-own" not in path.name] + [*folder.glob("tensorboard/*.pt.trace.json*")]
    return sorted(ours or names, key=lambda path: (len(path.name), path.name))


def reports_in(folder: Path) -> list[Path]:
    """The nsys reports of a capture, one per run of the nsys pass, in run order."""
    return sorted(folder.glob("nsys*.sqlite"), key=lambda path: (len(path.name), path.name))


def samples_in(folder: Path, of: str = "samples") -> list[Path]:
    """The report of the pass of samples in a capture, or of that of names, in which only names count; none without."""
    return [path for path in [folder / f"{of}.sqlite"] if path.is_file()]


# Tables that a capture adds to its nsys report: the kernels compiled by Triton and inductor.


class Beside:
    """Another report of the same program in a capture, opened when first asked for, unless it is open already."""

    def __init__(self, owner: Report, files: Sequence[Path], opened: Callable[[Path], Report]) -> None:
        """`opened` opens the only one of `files`; of several traces nothing tells which belongs to a process of nsys.

        The `owner`, beside which it is, notes what is damaged.
        """
        self._owner, self._files, self._opened = owner, files, opened
        self._lock, self._asked, self._own = RLock(), False, False
        self._found: Report | None = None

    def __call__(self) -> Report | None:
        """The report; None without one, or with one that cannot be read, which is noted."""
        with self._lock:
            if not self._asked and len(self._files) == 1:
                self._own = True
                try:
                    self.use(self._opened(self._files[0]))
                except errors.KanalyzeError as error:
                    self._owner.go_without(self._files[0].name, error)
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


class CaptureTables:
    """Tables of a report in a capture, and those that the capture adds; see :class:`kanalyze.schema.Source`."""

    def __init__(self, source: schema.Source, added: Mapping[str, Callable[[], pl.DataFrame]], *beside: Beside) -> None:
        """The tables of `source` and those `added`, by name; closed with the reports `beside`."""
        self._source, self._added, self._beside = source, added, beside
        self.events, self.notes_of_read = source.events, source.notes_of_read
        if isinstance(source, schema.PartedSource):
            self.mapped = source.mapped

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of events that were recorded."""
        return self._source.kinds

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        return self._added[name]() if name in self._added else self._source.table(name)

    def close(self) -> None:
        """Close the report, and those beside it."""
        self._source.close()
        for beside in self._beside:
            beside.close()


def _compiled(folder: Path) -> pl.DataFrame:
    """The table of compiled kernels; empty without a file of them if compilation was observed."""
    path = folder / "compiled.json"
    if not os.path.lexists(path):
        if any(folder.glob("torch-run*.json")):  # of a Python workload under torch.profiler, which observes it
            return model.COMPILED_KERNELS.empty()
        raise errors.CannotTellError.without_capture("compiled", folder)
    with readable(path):
        content = regular(path).read_bytes()
    try:
        rows = json.loads(content.decode())["kernels"]
        # backend and architecture become one text
        parts = ([str(row[key]) for key in ("backend", "arch") if row.get(key) is not None] for row in rows)
        kernels = [
            {name: row.get(name) for name in model.COMPILED_KERNELS.schema}
            | {"arch": ":".join(part) or None, **_told_by_code(folder, row.get("ptx"))}
            for row, part in zip(rows, parts, strict=True)
        ]
        return model.COMPILED_KERNELS.check(pl.DataFrame(kernels, schema=model.COMPILED_KERNELS.schema))
    except (*MISSHAPEN, pl.exceptions.PolarsError) as error:
        raise errors.DamagedReportError.at(path, "the rows of kernels", "not what the collector writes") from error


def _told_by_code(folder: Path, ptx_name: object) -> dict[str, str | int | float]:
    """The columns of a kernel that its PTX tells; empty where it does not."""
    path = folder / "triton" / Path(str(ptx_name)).name
    if not isinstance(ptx_name, str) or not path.is_file() or path.stat().st_size > 1 << 22:
        return {}
    with readable(path):
        return ptx.told_by(regular(path).read_bytes().decode(errors="replace"))


#: What another form of a file makes its readers raise.
MISSHAPEN: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
#: So many occurrences of a name are kept at most; so much of a file is read, which no run fills.
KEPT, _LARGEST_MARKS_BYTES = 20_000, 1 << 27
#: A line of a file with an extension; the file of a run, and of a rank of it.
_LINE: Final = re.compile(r".+\.\w+:\d{1,9}")
_FILE: Final = re.compile(r"bare(?:-(\d+))?(?:-rank(\d+))?\.json")


def bare_runs(folder: Path) -> BareRuns:
    """The runs without a profiler in the capture in `folder`; none without such a pass.

    Of those whose file is damaged there are no marks, but the reason.
    """
    if not (programs_ns := _durations_ns(folder)):
        return BareRuns()
    try:
        with readable(folder):
            named = [(match, path) for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))]
        files = sorted((int(match[1] or 1), int(match[2] or -1), path) for match, path in named)
        runs = (BareRun(number, None if rank < 0 else rank, *_marks(path)) for number, rank, path in files)
        return BareRuns(programs_ns, tuple(runs))
    except errors.KanalyzeError as error:
        return BareRuns(programs_ns, damage=error)


_MOST_PER_S: Final = 1e18  # no GPU does more in a second


def _reached(folder: Path) -> ReachedRates:
    """What the GPU was measured to reach, by the manifest; nothing where that was not measured."""

    def rates(roofs: Any) -> ReachedRates:  # noqa: ANN401 - whatever is in a manifest
        known = {kind: rate for kind, rate in roofs["rates"].items() if kind.isascii() and 0 < rate < _MOST_PER_S}
        return ReachedRates(str(roofs["name"]), {kind: float(rate) for kind, rate in known.items()})

    return from_manifest(folder, "roofs", rates, ReachedRates())


def _durations_ns(folder: Path) -> tuple[int, ...]:
    """How long each run of the program took, from start to end of the process, by the manifest."""

    def durations(passes: Any) -> tuple[int, ...]:  # noqa: ANN401 - whatever is in a manifest
        steps = [step for one in passes if one["name"] == "bare" for step in one["steps"]]
        return tuple(_time_ns(step["duration_ns"]) for step in steps if step["exit_status"] == 0)

    return from_manifest(folder, "passes", durations, ())


def _marks(path: Path) -> tuple[dict[str, list[int]], Batches, str]:
    """When occurrences began, by name, without names of which some may be left out; batches; the profiler's line."""
    with readable(path), open_regular(path) as file:
        text = file.read(_LARGEST_MARKS_BYTES)
    try:
        marks: dict[str, Any] = json.loads(text.decode(errors="replace"))
        starts: dict[str, Any] = marks["starts_ns"]
        kept = {name: sorted(map(_time_ns, times)) for name, times in starts.items() if len(times) < KEPT}
        given: dict[str, Any] = marks.get("batches", {})
        batches = Batches(str(given.get("line", "")), tuple(map(_filled, given.get("filled", ()))))
        line = marks.get("profiler")
        return kept, batches, line if isinstance(line, str) and _LINE.fullmatch(line) else ""
    except MISSHAPEN as error:
        raise errors.DamagedReportError.at(path, "the marks of a run without a profiler", "of another form") from error


def _filled(batch: Any) -> tuple[int, tuple[int, ...]]:  # noqa: ANN401 - whatever is in a file
    """Width and filled positions of a batch's rows; raises ValueError or TypeError if it is none."""
    width, rows = batch
    if type(width) is not int or not rows or not all(type(one) is int and 0 < one <= width < 1 << 31 for one in rows):
        raise ValueError
    return width, tuple(rows)


def _time_ns(value: object) -> int:
    """A time in ns; raises ValueError if it is none."""
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError
    return value


#: The tables of a file of lines.
LINES: Final = (model.SOURCE_LINES.name, model.LOOP_PASSES.name)
#: So much of an unpacked file is read, which no program fills.
_LARGEST_BYTES: Final = 1 << 28
#: No clock is later, in ns.
_LATEST_NS: Final = 1 << 61
#: Files of code that inductor generates: c and the hash of what is in them.
_GENERATED: Final = r"(?:^|/)c[a-z2-7]{51}\.py$"


def lines_file(recording: Path) -> Path:
    """The file of the lines of a recording in a capture."""
    name = re.sub(r"(-cycle\d+)?\.(json(\.gz)?|sqlite)$", "", recording.name)
    return recording.with_name(f"lines-{name}.json.gz")


def lines_tables(recording: Path, origin_unix_ns: int | None) -> dict[str, pl.DataFrame]:
    """The tables of the lines and loops of a recording, whose time 0 is at `origin_unix_ns`; empty without any.

    Raises DamagedReportError if the file is not what the collector writes; UnreadableReportError if it cannot be read.
    """
    path = lines_file(recording)
    if origin_unix_ns is None or not path.exists():
        return {name: model.READER_TABLES[name].empty() for name in LINES}
    with readable(path), open_regular(path) as file:
        packed = file.read()
    try:
        return _tables(json.loads(gzip.GzipFile(fileobj=io.BytesIO(packed)).read(_LARGEST_BYTES)), origin_unix_ns)
    except (
        *(*MISSHAPEN, IndexError, EOFError, OverflowError),
        *(gzip.BadGzipFile, zlib.error, pl.exceptions.PolarsError),
    ) as error:
        raise errors.DamagedReportError.at(path, "the lines of the program", "not what the collector writes") from error


def _tables(content: dict[str, Any], origin_unix_ns: int) -> dict[str, pl.DataFrame]:
    names = pl.DataFrame(content["places"], schema=["file", "line", "function", "text"], orient="row")
    files = pl.Series("file", content["files"], dtype=pl.String)
    places = names.select(
        place=pl.int_range(pl.len(), dtype=pl.Int64),
        file=files.gather(names.get_column("file")) if len(files) else pl.lit("", dtype=pl.String),
        line=pl.col("line").cast(pl.Int64),
        function="function",
        text="text",
    ).with_columns(pl.col("file", "function", "text").cast(pl.Categorical))
    generated = places.filter(pl.col("file").cast(pl.String).str.contains(_GENERATED)).get_column("place")
    last = content["clocks"][1][0] - origin_unix_ns
    length = pl.col("time_ns").shift(-1).fill_null(last).over("thread_id") - pl.col("time_ns")
    rows = _times(content, "lines", origin_unix_ns).with_columns(start_ns="time_ns", dur_ns=length.clip(lower_bound=0))
    # what runs generated code is the line of the program before it, in the same thread
    program = pl.when(~pl.col("place").is_in(generated.implode())).then("place")
    rows = rows.with_columns(place=program.forward_fill().over("thread_id"))
    rows = rows.filter(pl.col("dur_ns") > 0).join(places, on="place", maintain_order="left")
    passes = _times(content, "loops", origin_unix_ns).filter(~pl.col("place").is_in(generated.implode()))
    passes = passes.join(places, on="place", maintain_order="left")
    frames = {model.SOURCE_LINES: rows, model.LOOP_PASSES: passes}
    return {table.name: table.check(table.select(frame)) for table, frame in frames.items()}


def _times(content: dict[str, Any], part: str, origin_unix_ns: int) -> pl.DataFrame:
    """When threads came to places, on the clock of the recording: process_id, thread_id, time_ns, place."""
    (began_unix_ns, began_ns), (ended_unix_ns, ended_ns) = content["clocks"]
    if not (0 <= began_ns <= ended_ns < _LATEST_NS and 0 <= began_unix_ns <= ended_unix_ns < _LATEST_NS):
        raise ValueError
    drift = ((ended_unix_ns - ended_ns) - (began_unix_ns - began_ns)) / max(ended_ns - began_ns, 1)
    frames = [pl.DataFrame(schema=dict.fromkeys(("process_id", "thread_id", "time_ns", "place"), pl.Int64))]
    for thread in content["threads"]:
        times = pl.Series("time_ns", thread[part]["times"], dtype=pl.Int64).cum_sum()
        if not times.is_between(0, _LATEST_NS).all() or not times.is_sorted():
            raise ValueError
        moved = times + (began_unix_ns - began_ns - origin_unix_ns) + ((times - began_ns) * drift).cast(pl.Int64)
        own = pl.DataFrame([moved, pl.Series("place", thread[part]["places"], dtype=pl.Int64)])
        keys = {"process_id": content["process"], "thread_id": thread["id"]}
        numbers = (pl.lit(value, dtype=pl.Int64).alias(name) for name, value in keys.items())
        frames.append(own.select(*numbers, "time_ns", "place"))
    return pl.concat(frames).sort("thread_id", "time_ns", maintain_order=True)  # two may have one number


# The commands of a capture's passes, read from its manifest.


def from_manifest(folder: Path, part: str, made: Callable[[Any], T], otherwise: T) -> T:
    """What is made of a part of the manifest of the capture in `folder`; else where it lacks that, or is damaged."""
    with suppress(OSError, *MISSHAPEN), open_regular(folder / read_csv_rep.MANIFEST) as file:
        return made(json.loads(file.read())[part])
    return otherwise


def commands(folder: Path) -> dict[str, list[str]]:
    """The successful commands in the manifest, keyed by step name; of a repeated name the last one.

    Empty if the manifest is missing or lacks commands, which only makes matches less certain.
    """

    def of_passes(passes: Any) -> dict[str, list[str]]:  # noqa: ANN401 - as above
        steps = [step for done in passes for step in done["steps"] if step["exit_status"] == 0]
        return {step["name"]: [*map(str, step["command"])] for step in steps if isinstance(step["name"], str)}

    return from_manifest(folder, "passes", of_passes, {})


def recorded_all(command_lines: Commands) -> bool:
    """Whether the nsys pass recorded the whole program run, judged by its command line."""
    command = command_lines.get("nsys", [])
    flags = takewhile(lambda word: word.startswith("-"), command[2:])
    return read_csv_rep.counts_from_call(command) is False and not any(flag.startswith("--duration") for flag in flags)


def selections(command_lines: Commands) -> dict[str, read_csv_rep.Selection]:
    """The launch selection of each ncu run, keyed by the stem of its files, where the command line determines it.

    The launch numbers are those of the capture's nsys pass, which has to have recorded from the same moment on.
    """
    from_call = read_csv_rep.counts_from_call(command_lines.get("nsys", []))
    asked = {name: read_csv_rep.selection(command) for name, command in command_lines.items() if name.startswith("ncu")}
    return {name: one for name, one in asked.items() if one is not None and one.from_call is from_call}


def selective(command_lines: Commands, names: Iterable[str]) -> bool | None:
    """Whether these ncu runs profiled only a subset of the launches; None where the commands do not say."""
    return counter_model.measured_some([read_csv_rep.chooses(command_lines.get(name, [])) for name in names])
