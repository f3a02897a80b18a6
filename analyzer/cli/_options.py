"""Options that several commands have, declared once."""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict, TypeVar, cast
from weakref import ref

import click

from kanalyze import outlets
from kanalyze.cli import _complete
from kanalyze.cli._late import late
from kanalyze.cli._output import (
    InputPath,
    OutputPath,
    print_doubts,
    print_message,
    register_figures,
    stderr_is_terminal,
)
from kanalyze.units import plural

with late():
    from kanalyze import readers, window
    from kanalyze.analyses.unprofiled import _correction
    from kanalyze.machinery import one_thread
    from kanalyze.readers.capture import reports as captures
    from kanalyze.several import jobs, sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kanalyze.readers import Progress
    from kanalyze.report import Meta, Report
    from kanalyze.report import Where as Part
    from kanalyze.several.jobs import Asked
    from kanalyze.several.sides import Asked as AskedOfSides

#: In reports of fewer bytes doubts are looked for in all of it; of those in NVIDIA's own format, and of compressed
#: ones, ten times as much is made.
_SMALL_BYTES: Final = 1 << 21

#: Reports of fewer bytes are worked on in threads of ours alone, without those of polars (benchmarks/).
_ONE_THREAD_BYTES: Final = 1 << 25

#: Key of whether doubts about a report are looked for in all of it, in the command's context.
_EVERYTHING: Final = "kanalyze.everything"

#: No report that is small consists of so many files.
_MANY_FILES: Final = 1 << 12

#: A path that is read, and a file that is written.
READ: Final = InputPath(path_type=Path)
WRITTEN: Final = OutputPath(path_type=Path, dir_okay=False)


class _Count(click.IntRange):
    """How many there are at most; more than 31 bits say is as good as all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """The number."""
        return min(super().convert(value, param, ctx), (1 << 31) - 1)


COUNT: Final = _Count(min=1)

#: The number of a row.
NUMBER: Final = click.IntRange(0, (1 << 63) - 1)

F = TypeVar("F", bound="Callable[..., object]")


class Where(TypedDict):
    """The part of a report that the user asked for; what :func:`scope` adds to a command."""

    window: str | None
    device: int | None
    process: int | None
    no_cache: bool
    without_profiler: NotRequired[bool]


#: A report as it is.
WHOLE: Final = Where(window=None, device=None, process=None, no_cache=False)


def where_of(options: dict[str, Any]) -> Where:
    """The part of a report that is asked for by some of the options of a command."""
    window, device, process, no_cache = (options[name] for name in WHOLE)
    unprofiled = bool(options.get("without_profiler"))
    return Where(window=window, device=device, process=process, no_cache=no_cache, without_profiler=unprofiled)


def scope(command: F) -> F:
    """Add ``--window``, ``--device`` and ``--process``; and ``--no-cache``, which all commands that read have, too."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Read the report itself, not what is kept of it; keep nothing."),
        click.option("--process", type=int, metavar="PID", help="Only this process."),
        click.option("--device", type=int, metavar="GPU", help="Only this GPU."),
        click.option(
            "--window",
            metavar="START..END|RANGE",
            shell_complete=_complete.windows,
            help="Only this part: two times with units (120ms..250ms, ..1.5s; +1ms..+2ms since the first event), a "
            "range, one of several (step#3; step#* is each of them), or a step of a profiler (step:5; steps is each).",
        ),
    ):
        command = option(command)
    return command


without_profiler: Final = click.option(
    "--without-profiler", is_flag=True, help="Times as without the profiler, by the run without one of a capture."
)

#: The report's path, and the paths of one report or more.
report_argument: Final = click.argument("report", type=READ)
reports_argument: Final = click.argument("reports", nargs=-1, required=True, type=READ)


def output_to(help_text: str, *, required: bool = False) -> Callable[[F], F]:
    """Add ``-o``, the file to write."""
    return click.option("-o", "--output", type=WRITTEN, required=required, metavar="FILE", help=help_text)


output: Final = output_to("Write to FILE, all of it or nothing.")

no_formulas: Final = click.option(
    "--no-formulas", is_flag=True, help="In CSV put an apostrophe before texts that a spreadsheet would run."
)


def formats(*names: str) -> Callable[[F], F]:
    """Add ``--format``; without it a command prints for the terminal."""
    return click.option("--format", "form", type=click.Choice(["terminal", *names]), default="terminal")


def top(default: int | None, help_text: str) -> Callable[[F], F]:
    """Add ``--top``."""
    return click.option("--top", type=COUNT, default=default, metavar="N", help=help_text)


def tool_paths(command: F) -> F:
    """Add an option for the path of each tool that collects."""
    file = click.Path(path_type=Path)
    for name, attribute, text in (
        ("--ncu", "ncu", "The ncu to use."),
        ("--nsys", "nsys", "The nsys to use."),
        ("--nvcc-path", "nvcc", "The nvcc to use."),
        ("--python", "python", "The Python that runs a script."),
    ):
        command = click.option(name, attribute, type=file, metavar="FILE", help=text)(command)
    return command


def in_one_thread_if_small(command: F) -> F:
    """Decorator of commands that read reports: all but large reports are worked on without polars' threads.

    Doubts about the reports are printed at the end.
    """

    @wraps(command)
    def chosen(*arguments: object, **options: object) -> object:
        paths = cast("Sequence[Path]", options["reports"] if "reports" in options else [options["report"]])
        size = sum(map(_bytes, paths))
        click.get_current_context().meta[_EVERYTHING] = size < _SMALL_BYTES

        def work() -> object:
            try:
                found = command(*arguments, **options)
            except click.exceptions.Exit:  # with a status that is an answer
                print_doubts_early()
                raise
            print_doubts_early()
            return found

        in_one_thread = one_thread.in_one_thread  # loads polars as a command is to have it, for large reports, too
        return work() if size >= _ONE_THREAD_BYTES else in_one_thread(work)

    return cast("F", chosen)


def print_doubts_early() -> None:
    """Prints doubts about the reports so far and releases them, for commands that go through many."""
    print_doubts(everything=click.get_current_context().meta.get(_EVERYTHING, False))


def _bytes(report: Path) -> int:
    """Size of a file or of a folder's files in bytes, capped where it is large.

    0 where it is unknown; the reader raises the error.
    """
    try:
        files = report.rglob("*") if report.is_dir() else (report,)
        total = 0
        for number, file in enumerate(files):
            total += file.stat().st_size
            if total >= _ONE_THREAD_BYTES or number > _MANY_FILES:
                return _ONE_THREAD_BYTES
    except (OSError, ValueError):
        return 0
    return total


def opened_counters(report: Path, where: Where) -> dict[str | None, Report]:
    """Parts as of :func:`opened_parts`, for commands about counters: of a capture, the reports of ncu."""
    found = closed_at_end(captures.counters_at(report, progress_shown(), cache=not where["no_cache"]))
    if found.meta.timeless and where["window"] is not None:
        # whatever it is, no table is of a part of that
        return {None: found.narrow(window=window.Window(), device=where["device"], process=where["process"])}
    return parts_of(found, where)


def opened_together(reports: Sequence[Path], where: Where, *, runs: bool = True) -> list[Report]:
    """The reports of one program: all that are given, each path once, and of a capture those of each tool; whole.

    With `runs` of a nsys pass that ran several times each of its runs.
    """
    every, cache = captures.every_report, not where["no_cache"]
    return [
        closed_at_end(one)
        for path in different(reports)
        for one in every(path, progress_shown(), cache=cache, runs=runs, left_out=print_left_out)
    ]


def different(reports: Sequence[Path]) -> list[Path]:
    """The paths without those that lead to the same file or folder as one before."""
    paths: dict[str, Path] = {}  # by os.path, which raises nothing of a link to itself
    for path in reports:
        paths.setdefault(os.path.realpath(path), path)
    return [*paths.values()]


def closed_at_end(report: Report) -> Report:
    """The `report`, which is closed when the command ends, and before where nothing holds it any more.

    The command prints figures of it, and says what of them is in doubt.
    """
    register_figures(report)
    held = ref(report.source)

    def close() -> None:
        if source := held():
            source.close()

    click.get_current_context().call_on_close(close)
    return report


def print_left_out(error: Exception) -> None:
    """Prints that a report of a folder was left out."""
    print_message(f"kanalyze: left out: {outlets.line(str(error))}")


def several_ranks(metas: Iterable[Meta]) -> bool:
    """Whether reports are of several ranks of a job."""
    return len({meta.rank for meta in metas if meta.rank is not None and (meta.world_size or 0) > 1}) > 1


def part(where: Where) -> Part:
    """Window, device and process of `where`, as analyses take them."""
    return {"window": where["window"], "device": where["device"], "process": where["process"]}


def refuse_part(where: Where, message: str) -> None:
    """Refuses a window, device or process of what is whole, with a `message`."""
    if any(value is not None for value in part(where).values()):
        raise click.UsageError(message)


def asked_of_job(where: Where) -> Asked:
    """How the reports of a job are read: what cannot be read is left out with a word."""
    return jobs.Asked(cache=not where["no_cache"], progress=progress_shown(), left_out=print_left_out)


def asked_of_sides(where: Where) -> AskedOfSides:
    """How the sides of a comparison are read: what is in doubt or left out is printed."""
    return sides.Asked(part(where), not where["no_cache"], progress_shown(), doubted, left_out=print_left_out)


def progress_shown() -> Progress | None:
    """Shows the progress of opening a report on one line, where standard error is a terminal."""

    def shown(what: str, share: float) -> None:
        print_message(f"\r{outlets.line(what)}: {share:.0%}", newline=share >= 1)

    return shown if stderr_is_terminal() else None


def opened(report: Path, where: Where) -> Report:
    """The whole report at a path."""
    return closed_at_end(readers.read(report, progress_shown(), cache=not where["no_cache"]))


def opened_parts(report: Path, where: Where) -> dict[str | None, Report]:
    """The report at a path for each window that the user asked for, by its name.

    One without a name, unless the window is a range that occurs several times.
    """
    return parts_of(opened(report, where), where)


def parts_of(whole: Report, where: Where) -> dict[str | None, Report]:
    """Parts as of :func:`opened_parts`, of a report that is open."""
    if where.get("without_profiler"):
        whole = _correction.without(whole)
    whole, text = whole.narrow(device=where["device"], process=where["process"]), where["window"]
    windows = [None] if text is None else whole.windows(text)
    if text is not None and (left_out := len(whole.instances(text)) - len(windows)):
        print_message(
            f"kanalyze: --window {outlets.line(repr(text))}: left out {plural(left_out, 'range')} without duration."
        )
    if len(windows) == 1:
        return {None: whole.narrow(window=windows[0])}
    return {window.name: whole.narrow(window=window) for window in windows if window}


def doubted(report: Report) -> None:
    """Prints what is in doubt about a report while it is open."""
    register_figures(report)
    print_doubts_early()
