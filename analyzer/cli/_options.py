"""Options and arguments that several commands have, declared once, and the reports that they ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

import click

from kanalyze import outlets
from kanalyze.cli import _complete
from kanalyze.cli._output import (
    InputPath,
    Out,
    OutputPath,
    emit,
    print_doubts,
    print_message,
    register_figures,
    stderr_is_terminal,
)
from kanalyze.machinery import late
from kanalyze.units import plural

with late():
    from kanalyze import readers, several, window
    from kanalyze.analyses.shared import analysis
    from kanalyze.analyses.unprofiled import _correction
    from kanalyze.readers.capture import reports as captures

if TYPE_CHECKING:
    from kanalyze.readers import Progress
    from kanalyze.report import Meta, Report
    from kanalyze.report import Where as Part
    from kanalyze.several import Asked

#: In reports of fewer bytes doubts are looked for in all of it; of those in NVIDIA's own format, and of compressed
#: ones, ten times as much is made.
_SMALL_BYTES: Final = 1 << 21

#: Reports of fewer bytes are worked on in threads of ours alone, without those of polars (benchmarks/).
_ONE_THREAD_BYTES: Final = 1 << 25

#: No report that is small consists of so many files.
_MANY_FILES: Final = 1 << 12

#: Key of whether doubts about a report are looked for in all of it, in the command's context.
_EVERYTHING: Final = "kanalyze.everything"


class Where(NamedTuple):
    """The part of a report that the user asked for, and how it is read; all of it unless told."""

    window: str | None = None
    device: int | None = None
    process: int | None = None
    no_cache: bool = False
    without_profiler: bool = False

    @property
    def part(self) -> Part:
        """Window, device and process, as analyses take them."""
        return {"window": self.window, "device": self.device, "process": self.process}

    def refuse_part(self, message: str) -> None:
        """Refuses a window, device or process of what is whole, with a `message`."""
        if any(value is not None for value in self.part.values()):
            raise click.UsageError(message)


class _Count(click.IntRange):
    """How many there are at most; more than 31 bits say is as good as all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """The number."""
        return min(super().convert(value, param, ctx), (1 << 31) - 1)


COUNT: Final = _Count(min=1)

#: A path that is read, and a file that is written.
READ: Final = InputPath(path_type=Path)
WRITTEN: Final = OutputPath(path_type=Path, dir_okay=False)


def option(names: str, text: str, metavar: str | None = None, **attributes: Any) -> click.Option:  # noqa: ANN401 - of click.Option
    """An option of a command: its names, and that of its parameter where it has another one, with blanks between."""
    return click.Option(names.split(), help=text, metavar=metavar, **attributes)


def flag(names: str, text: str, *, default: bool | None = False) -> click.Option:
    """An option without a value."""
    return option(names, text, is_flag=True, default=default)


def argument(name: str, **attributes: Any) -> click.Argument:  # noqa: ANN401 - of click.Argument
    """An argument of a command."""
    return click.Argument([name], **attributes)


def output(text: str, metavar: str = "FILE", **attributes: Any) -> click.Option:  # noqa: ANN401 - of click.Option
    """The option ``-o``, what is written."""
    return option("-o --output", text, metavar, **{"type": WRITTEN, **attributes})


def formats(*names: str) -> click.Option:
    """The option ``--format``; without it a command prints for the terminal."""
    return click.Option(["--format", "form"], type=click.Choice(["terminal", *names]), default="terminal")


def top(text: str = "Rows in each table of the page.") -> click.Option:
    """The option ``--top``."""
    return option("--top", text, "N", type=COUNT)


def answering(name: str, text: str, answer: Callable[[], str]) -> click.Option:
    """An option in place of all others: it prints its answer, and that is all."""

    def print_answer(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
        if wanted and not ctx.resilient_parsing:
            emit(answer())
            ctx.exit()

    return option(name, text, is_flag=True, is_eager=True, expose_value=False, callback=print_answer)


#: The report's path, and the paths of one report or more.
REPORT: Final = argument("report", type=READ)
REPORTS: Final = argument("reports", nargs=-1, required=True, type=READ)

NO_CACHE: Final = flag("--no-cache", "Read the report itself, not what is kept of it; keep nothing.")
SCOPE: Final = (
    option(
        "--window",
        "Only this part: two times with units (120ms..250ms, ..1.5s; +1ms..+2ms since the first event), a range, one "
        "of several (step#3; step#* is each of them), or a step of a profiler (step:5; steps is each).",
        "START..END|RANGE",
        shell_complete=_complete.windows,
    ),
    option("--device", "Only this GPU.", "GPU", type=int),
    option("--process", "Only this process.", "PID", type=int),
    NO_CACHE,
)
WITHOUT_PROFILER: Final = flag(
    "--without-profiler", "Times as without the profiler, by the run without one of a capture."
)
OUTPUT: Final = output("Write to FILE, all of it or nothing.")
NO_FORMULAS: Final = flag("--no-formulas", "In CSV put an apostrophe before texts that a spreadsheet would run.")

#: An option for the path of each tool that collects.
TOOL_PATHS: Final = tuple(
    option(names, text, "FILE", type=click.Path(path_type=Path))
    for names, text in (
        ("--python", "The Python that runs a script."),
        ("--nvcc-path nvcc", "The nvcc to use."),
        ("--nsys", "The nsys to use."),
        ("--ncu", "The ncu to use."),
    )
)


def command(*params: click.Parameter, small: bool = True) -> Callable[[Callable[..., object]], click.Command]:
    """Makes a command of a function that takes its parameters by name.

    Those of :data:`SCOPE` it takes as `where`, and those of its output as `to`. A command that takes REPORTS works on
    them in one thread where they are `small`, as of :func:`_worked_on`.
    """

    def made(run: Callable[..., object]) -> click.Command:
        @wraps(run)
        def work(**options: Any) -> object:  # noqa: ANN401 - each has its own type
            for name, kind in (("where", Where), ("to", Out)):
                if given := {field: options.pop(field) for field in kind._fields if field in options}:
                    options[name] = kind(**given)
            reports = options.get("reports", [options["report"]] if "report" in options else None)
            return run(**options) if reports is None or not small else _worked_on(reports, lambda: run(**options))

        return click.command(params=[*params])(work)

    return made


def _worked_on(reports: Sequence[Path], work: Callable[[], object]) -> object:
    """Does `work` on reports, if they are small without polars' threads; prints the doubts about them at the end."""
    size = sum(map(_bytes, reports))
    click.get_current_context().meta[_EVERYTHING] = size < _SMALL_BYTES

    def work_and_doubt() -> object:
        try:
            result = work()
        except click.exceptions.Exit:  # with a status that is an answer
            print_doubts_early()
            raise
        print_doubts_early()
        return result

    in_one_thread = analysis.in_one_thread  # loads polars as a command is to have it, for large reports, too
    return work_and_doubt() if size >= _ONE_THREAD_BYTES else in_one_thread(work_and_doubt)


def print_doubts_early() -> None:
    """Prints doubts about the reports so far and releases them, for commands that go through many."""
    print_doubts(everything=click.get_current_context().meta.get(_EVERYTHING, False))


def _bytes(report: Path) -> int:
    """Size of a file or of a folder's files in bytes, capped where it is large.

    0 where it is unknown; the reader raises the error.
    """
    total = 0
    try:
        for number, file in enumerate(report.rglob("*") if report.is_dir() else (report,)):
            total += file.stat().st_size
            if total >= _ONE_THREAD_BYTES or number > _MANY_FILES:
                return _ONE_THREAD_BYTES
    except (OSError, ValueError):
        return 0
    return total


def opened(report: Path, where: Where) -> Report:
    """The whole report at a path."""
    return closed_at_end(readers.read(report, progress_shown(), cache=not where.no_cache))


def opened_parts(report: Path, where: Where) -> dict[str | None, Report]:
    """The report at a path for each window that the user asked for, by its name.

    One without a name, unless the window is a range that occurs several times.
    """
    return parts_of(opened(report, where), where)


def opened_counters(report: Path, where: Where) -> dict[str | None, Report]:
    """Parts as of :func:`opened_parts`, for commands about counters: of a capture, the reports of ncu."""
    whole = closed_at_end(captures.counters_at(report, progress_shown(), cache=not where.no_cache))
    if whole.meta.timeless and where.window is not None:
        # whatever it is, no table is of a part of that
        return {None: whole.narrow(window=window.Window(), device=where.device, process=where.process)}
    return parts_of(whole, where)


def parts_of(whole: Report, where: Where) -> dict[str | None, Report]:
    """Parts as of :func:`opened_parts`, of a report that is open."""
    if where.without_profiler:
        whole = _correction.without(whole)
    whole, text = whole.narrow(device=where.device, process=where.process), where.window
    windows = [None] if text is None else whole.windows(text)
    if text is not None and (left_out := len(whole.instances(text)) - len(windows)):
        named = outlets.line(repr(text))
        print_message(f"kanalyze: --window {named}: left out {plural(left_out, 'range')} without duration.")
    if len(windows) == 1:
        return {None: whole.narrow(window=windows[0])}
    return {window.name: whole.narrow(window=window) for window in windows if window}


def opened_together(reports: Sequence[Path], where: Where, *, runs: bool = True) -> list[Report]:
    """The reports of one program: all that are given, each path once, and of a capture those of each tool; whole.

    With `runs` of a nsys pass that ran several times each of its runs.
    """
    how: dict[str, Any] = {"cache": not where.no_cache, "runs": runs, "left_out": print_left_out}
    every = captures.every_report
    return [closed_at_end(one) for path in different(reports) for one in every(path, progress_shown(), **how)]


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


def asked(where: Where, **more: Any) -> Asked:  # noqa: ANN401 - of Asked
    """How several reports are read: what cannot be read is left out with a word."""
    return several.Asked(where.part, not where.no_cache, progress_shown(), left_out=print_left_out, **more)


def progress_shown() -> Progress | None:
    """Shows the progress of opening a report on one line, where standard error is a terminal."""

    def shown(what: str, share: float) -> None:
        print_message(f"\r{outlets.line(what)}: {share:.0%}", newline=share >= 1)

    return shown if stderr_is_terminal() else None


def doubted(report: Report) -> None:
    """Prints what is in doubt about a report while it is open."""
    register_figures(report)
    print_doubts_early()
