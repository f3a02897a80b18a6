"""Options that several commands have, declared once."""

from __future__ import annotations

import os
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, cast
from weakref import ref

import click

from kanalyze import outlets
from kanalyze.cli._output import figures_of, tell, tell_doubts, told_on_terminal
from kanalyze.machinery.memory import sparing_memory
from kanalyze.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.readers import Progress
    from kanalyze.report import Report
    from kanalyze.report import Where as Part

#: Reports of fewer bytes are read and looked at in one thread (benchmarks/); of those in NVIDIA's own format, and of
#: compressed ones, ten times as much is made.
_SMALL_BYTES: Final = 1 << 21

#: No report that is small consists of so many files.
_MANY_FILES: Final = 1 << 12

F = TypeVar("F", bound="Callable[..., object]")


class Where(TypedDict):
    """The part of a report that the user asked for; what :func:`scope` adds to a command."""

    window: str | None
    device: int | None
    process: int | None
    no_cache: bool


def scope(command: F) -> F:
    """Add ``--window``, ``--device`` and ``--process``; and ``--no-cache``, which all commands that read have, too."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Read the report itself, not what is kept of it; keep nothing."),
        click.option("--process", type=int, metavar="PID", help="Only this process."),
        click.option("--device", type=int, metavar="GPU", help="Only this GPU."),
        click.option(
            "--window",
            metavar="START..END|RANGE",
            help="Only this part: two times with units (120ms..250ms, ..1.5s; +1ms..+2ms since the first event), a "
            "range, one of several (step#3; step#* is each of them), or a step of a profiler (step:5; steps is each).",
        ),
    ):
        command = option(command)
    return command


def report_argument(command: F) -> F:
    """Add the report's path."""
    return click.argument("report", type=click.Path(path_type=Path))(command)


def reports_argument(command: F) -> F:
    """Add the paths of one report or more."""
    return click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))(command)


def in_one_thread_if_small(command: F) -> F:
    """Let a command that takes one of these do all its work in one thread if the reports are small.

    In the end it says what of them is in doubt.
    """

    @wraps(command)
    def chosen(*arguments: object, **options: object) -> object:
        paths = cast("Sequence[Path]", options.get("reports") or [options["report"]])
        small = sum(map(_bytes, paths)) < _SMALL_BYTES
        work = partial(_then_doubts, partial(command, *arguments, **options), everything=small)
        if not small:
            return work()
        with sparing_memory():
            from kanalyze.machinery.one_thread import in_one_thread  # noqa: PLC0415 - --help need not import polars
        return in_one_thread(work)

    return cast("F", chosen)


def _then_doubts(work: Callable[[], object], *, everything: bool) -> object:
    """What `work` gives; then what is in doubt of the reports that it printed figures of, unless it failed."""
    try:
        found = work()
    except click.exceptions.Exit:  # with a status that is an answer
        tell_doubts(everything=everything)
        raise
    tell_doubts(everything=everything)
    return found


def _bytes(report: Path) -> int:
    """How many bytes a file has, or all that is in a folder, up to what is no longer small.

    0 where that cannot be told, as its reader will say.
    """
    try:
        files = report.rglob("*") if report.is_dir() else (report,)
        total = 0
        for number, file in enumerate(files):
            total += file.stat().st_size
            if total >= _SMALL_BYTES or number > _MANY_FILES:
                return _SMALL_BYTES
    except (OSError, ValueError):
        return 0
    return total


def output(command: F) -> F:
    """Add ``-o``."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("-o", "--output", type=kind, metavar="FILE", help="Write to FILE, all of it or nothing.")(
        command
    )


def no_formulas(command: F) -> F:
    """Add ``--no-formulas``."""
    return click.option(
        "--no-formulas", is_flag=True, help="In CSV put an apostrophe before texts that a spreadsheet would run."
    )(command)


def top(default: int | None, help_text: str) -> Callable[[F], F]:
    """Add ``--top``."""
    return click.option("--top", type=click.IntRange(min=1), default=default, metavar="N", help=help_text)


def opened_counters(report: Path, where: Where) -> dict[str | None, Report]:
    """What :func:`opened_parts` gives where counters are wanted: of a capture the reports of ncu."""
    with sparing_memory():
        from kanalyze.readers.capture.reports import counters_at  # noqa: PLC0415 - --help need not import polars
        from kanalyze.window import Window  # noqa: PLC0415 - as above

    found = closed_at_end(counters_at(report, _progress(), cache=not where["no_cache"]))
    if found.meta.timeless and where["window"] is not None:
        # whatever it is, no table is of a part of that
        return {None: found.narrow(window=Window(), device=where["device"], process=where["process"])}
    return parts_of(found, where)


def opened_together(reports: Sequence[Path], where: Where, *, runs: bool = True) -> list[Report]:
    """The reports of one program: all that are given, each path once, and of a capture those of each tool; whole.

    With `runs` of a nsys pass that ran several times each of its runs.
    """
    with sparing_memory():
        from kanalyze.readers.capture.reports import every_report  # noqa: PLC0415 - --help need not import polars

    cache = not where["no_cache"]
    paths: dict[str, Path] = {}  # by os.path, which raises nothing of a link to itself
    for path in reports:
        paths.setdefault(os.path.realpath(path), path)
    opened = partial(every_report, progress=_progress(), cache=cache, runs=runs, left_out=tell_left_out)
    found = map(opened, paths.values())
    return [closed_at_end(one) for some in found for one in some]


def closed_at_end(report: Report) -> Report:
    """The `report`, which is closed when the command ends, and before where nothing holds it any more.

    The command prints figures of it, and says what of them is in doubt.
    """
    figures_of(report)
    held = ref(report.source)

    def close() -> None:
        if source := held():
            source.close()

    click.get_current_context().call_on_close(close)
    return report


def tell_left_out(error: Exception) -> None:
    """Say that a report of a folder is not in what is printed."""
    tell(f"kanalyze: left out: {outlets.line(str(error))}")


def part(where: Where) -> Part:
    """What of `where` names a part of a report, as analyses take it."""
    return {"window": where["window"], "device": where["device"], "process": where["process"]}


def _progress() -> Progress | None:
    return _tell if told_on_terminal() else None


def _tell(what: str, share: float) -> None:
    """Show how far an export of a report is, on one line of the terminal."""
    tell(f"\r{outlets.line(what)}: {share:.0%}", newline=share >= 1)


def opened_parts(report: Path, where: Where) -> dict[str | None, Report]:
    """The report at a path for each window that the user asked for, by its name.

    One without a name, unless the window is a range that occurs several times.
    """
    from kanalyze.readers import read  # noqa: PLC0415 - polars takes longer to import than click to say --help

    with sparing_memory():
        whole = closed_at_end(read(report, _progress(), cache=not where["no_cache"]))
    return parts_of(whole, where)


def parts_of(whole: Report, where: Where) -> dict[str | None, Report]:
    """What :func:`opened_parts` gives, of a report that is open."""
    whole, text = whole.narrow(device=where["device"], process=where["process"]), where["window"]
    windows = [None] if text is None else whole.windows(text)
    if text is not None and (left_out := len(whole.instances(text)) - len(windows)):
        tell(f"kanalyze: --window {outlets.line(repr(text))}: left out {plural(left_out, 'range')} without duration.")
    if len(windows) == 1:
        return {None: whole.narrow(window=windows[0])}
    return {window.name: whole.narrow(window=window) for window in windows if window}
