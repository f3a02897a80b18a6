"""Reports that answer a command: how they are opened, which of several answers, and what is in doubt about them.

Of a folder all answer, of a capture the first with what a table needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import suppress
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import ref

import click

from kanalyze import errors, machinery, outlets, units
from kanalyze.cli._process import Session, print_message, session, stderr_is_terminal

with machinery.late():
    from kanalyze import catalog, counter_model, readers, several, window
    from kanalyze.analyses.findings import _doubts
    from kanalyze.analyses.host import _captures
    from kanalyze.analyses.iterations import phases
    from kanalyze.analyses.replay import _unprofiled
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.tables import frame
    from kanalyze.several import jobs, sides

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.report import Meta, Report, Where as Part
    from kanalyze.schema import Table

T = TypeVar("T")

#: The table that says what is in doubt.
_SAYS_ITSELF: Final = "health"

#: A trace and that of the captures of its CUDA graphs; how files of traces end.
_TWO: Final = 2

#: Most doubts listed, and characters of each.
_NAMED, _WIDE = 6, 120


class Where(NamedTuple):
    """The part of a report that the user asked for, and how it is read; all of it unless told."""

    window: str | None = None
    device: int | None = None
    process: int | None = None
    no_cache: bool = False
    without_profiler: bool = False
    capture: Path | None = None
    steps: Sequence[str] = ()

    @property
    def part(self) -> Part:
        """Window, device and process, and labels of steps, as analyses take them."""
        parts: Part = {"window": self.window, "device": self.device, "process": self.process}
        return parts | {"steps": self.steps} if self.steps else parts

    @property
    def several(self) -> bool:
        """Whether the window is each of several: ``step#*``, ``decode_*``, ``steps``."""
        return self.window is not None and ("*" in self.window or self.window == "steps")

    def refuse_part(self, message: str) -> None:
        """Refuses a window, device or process of what is whole, with a `message`."""
        if any(value is not None for value in self.part.values()):
            raise click.UsageError(message)


def open_report(report: Path, where: Where) -> Report:
    """The whole report at a path."""
    return closed_at_end(readers.read(report, progress_shown(), cache=not where.no_cache))


def opened_parts(report: Path, where: Where, *, counters: bool = False) -> dict[str | None, Report]:
    """The report at a path for each window that the user asked for, by its name; of a capture for counters ncu's.

    One without a name, unless the window is a range that occurs several times.
    """
    if not counters:
        return parts_of(open_report(report, where), where)
    whole = closed_at_end(captures.counters_at(report, progress_shown(), cache=not where.no_cache))
    if whole.meta.timeless and where.window is not None:
        # whatever it is, no table is of a part of that
        return {None: whole.narrow(window=window.Window(), device=where.device, process=where.process)}
    return parts_of(whole, where)


def per_window(reports: Sequence[Report], where: Where, make: Callable[[Where], T]) -> dict[str | None, T]:
    """Results of `make` for each window that the user asked for, of what is of several reports; as :func:`parts_of`."""
    timed = next((report for report in reports if not report.meta.timeless), None)
    if where.window is None or timed is None or not where.several:
        return {None: make(where)}
    windows = timed.narrow(**(where.part | {"window": None})).windows(where.window)
    return {window.name: make(where._replace(window=window.name)) for window in windows}


def opened_part(report: Path, where: Where, what: str) -> Report:
    """The report for the one window of `what` is drawn; refuses one that is each of several, such as ``step#*``."""
    parts = opened_parts(report, where)
    if len(parts) > 1:
        those = f"these are {len(parts):,}; name one of them, such as {next(iter(parts))}"
        raise click.UsageError(f"{what} is of one window, and {those}. `kanalyze summarize` and `show` take them all.")
    return next(iter(parts.values()))


def parts_of(whole: Report, where: Where) -> dict[str | None, Report]:
    """Parts as of :func:`opened_parts`, of a report that is open."""
    if where.without_profiler:
        whole = _unprofiled.without(whole)
    captured = where.capture and _capture_of(where, where.capture)
    whole = _captures.with_captures(whole, captured) if captured else _with_beside(whole, where)
    whole, text = whole.narrow(**(where.part | {"window": None})), where.window
    windows = [None] if text is None else whole.windows(text)
    if text is not None and (left_out := len(whole.instances(text)) - len(windows)):
        named = outlets.line(repr(text))
        print_message(f"kanalyze: --window {named}: left out {units.plural(left_out, 'range')} without duration.")
    if len(windows) == 1:
        return {None: whole.narrow(window=windows[0])}
    return {window.name: whole.narrow(window=window) for window in windows if window}


def _capture_of(where: Where, path: Path) -> Report:
    """The report at `path`, of which captures are taken; opened once."""
    return session().once(("capture", path), lambda: open_report(path, where))


def _with_beside(report: Report, where: Where) -> Report:
    """The report with captures of the other one of its folder, if both are traces of one rank and that can be read."""
    inside = session().found
    others = [path for path in inside - {report.meta.path} if path.name.endswith((".json", ".json.gz"))]
    if len(inside) == _TWO and len(others) == 1 and report.meta.recorder.ranked and _captures.lacks_captures(report):
        with suppress(errors.KanalyzeError):
            other = _capture_of(where, others[0])
            return _captures.with_captures(report, other) if other.meta.rank == report.meta.rank else report
    return report


def _named(report: Report, where: Where) -> Report:
    """The report with captures that were given for several ones, of which it may be another one: said with a word."""
    try:
        given = None if where.capture == report.meta.path else where.capture
        return _captures.with_captures(report, _capture_of(where, given)) if given else report
    except errors.OtherCaptureError as error:
        print_message(f"kanalyze: without names of captures: {outlets.line(str(error))}")
        return report


def opened_together(reports: Sequence[Path], where: Where, *, runs: bool = True) -> list[Report]:
    """The reports of one program: all that are given, each path once, and of a capture those of each tool; whole.

    With `runs` of a nsys pass that ran several times each of its runs.
    """
    how: dict[str, Any] = {"cache": not where.no_cache, "runs": runs, "left_out": print_left_out}
    read = captures.every_report
    opened = [closed_at_end(report) for path in different(reports) for report in read(path, progress_shown(), **how)]
    if where.capture is None:
        return opened
    timed = [report for report in opened if not report.meta.timeless]
    if len(timed) == 1:
        timed = [_captures.with_captures(timed[0], _capture_of(where, where.capture))]
    else:
        timed = [_named(report, where) for report in timed]
    return [*timed, *(report for report in opened if report.meta.timeless)]


def without_captures(reports: Sequence[Report]) -> Sequence[Report]:
    """Of two reports of which one has the captures of the other's CUDA graphs, that other one with them; else all."""
    for report, other in permutations(reports) if len(reports) == _TWO else ():
        if report.meta.rank == other.meta.rank and _captures.lacks_captures(report):
            with suppress(errors.KanalyzeError):
                return [_captures.with_captures(report, other)]
    return reports


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
    session().undoubted.append(report)
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


def request(where: Where, **more: Any) -> several.Asked:  # noqa: ANN401 - of Asked
    """How several reports are read: what cannot be read is left out with a word."""
    named = None if where.capture is None else partial(_named, where=where)
    how = (where.part, named, where.capture, not where.no_cache, progress_shown())
    return several.Asked(*how, left_out=print_left_out, **more)


def progress_shown() -> readers.Progress | None:
    """Shows the progress of opening a report on one line, where standard error is a terminal."""

    def shown(what: str, share: float) -> None:
        print_message(f"\r{outlets.line(what)}: {share:.0%}", newline=share >= 1)

    return shown if stderr_is_terminal() else None


# Doubts.


def print_doubts(*, everything: bool | None = None) -> None:
    """Prints the doubts about each report of which figures are printed so far, once per file, and releases the report.

    With `everything`, which is usual for small reports, checks the whole report; else what the command read of it,
    since reading the rest may take long.
    """
    current = session()
    everything = current.everything if everything is None else everything
    while current.undoubted:
        report = current.undoubted.pop(0)
        file = _file(report)
        if file in current.doubted:
            continue
        try:
            line = doubt_line(file, _doubts.doubts(report, everything=everything))
        except errors.KanalyzeError as error:  # in a table that the command did not need
            line = f"not all of it can be read: {error} See `{command(file)}`"
        if line:
            print_message(f"kanalyze: {outlets.line(line)}")
        current.doubted.add(file)


def _file(report: Report) -> str:
    """The file whose health is that of the report: of a capture it is that of nsys, so one of ncu has its own."""
    path = report.meta.path
    ways = captures.ways(path) if report.meta.timeless and os.path.isdir(path) else []  # noqa: PTH112 - never raises
    return str(next((way.file for way in ways if way.recorder.counts), path))


def doubt_line(file: str, doubts: pl.DataFrame) -> str:
    """The warning for the report in `file`, from doubtful rows of the table `health`; empty if there are none."""
    texts = [
        units.checked(outlets.cut(check.rstrip("."), _WIDE), count) + (f" ({units.time(ns)})" if ns else "")
        for check, count, ns in doubts.head(_NAMED).select("check", "count", "ns").iter_rows()
    ]
    more = f"; and {units.count(doubts.height - len(texts))} more" if doubts.height > len(texts) else ""
    return f"{file}: not all of this can be trusted: {'; '.join(texts)}{more}. See `{command(file)}`" if texts else ""


def command(file: str) -> str:
    """The command that prints the full health checks of `file`."""
    return outlets.command("kanalyze", "show", "health", file)


def doubted(report: Report) -> None:
    """Prints what is in doubt about a report while it is open."""
    session().undoubted.append(report)
    print_doubts()


# Answers.


def folder_at(path: Path) -> Path | None:
    """The folder at a path, or what an archive there holds; None where that is no folder."""
    folder = readers.unpacked(path)
    return folder if os.path.isdir(folder) else None  # noqa: PTH112 - never raises


def expanded(reports: Sequence[Path]) -> list[Path]:
    """The paths with a folder of reports replaced by them; each of these may fail, see :func:`of_each`."""
    paths: list[Path] = []
    for path in reports:
        folder = folder_at(path)
        inside = captures.reports_in_folder(folder) if folder else []
        session().found.update(inside)
        paths += inside or [path]
    return paths


def of_each(
    paths: Sequence[Path],
    work: Callable[[Path], T],
    *,
    tolerated: tuple[type[errors.KanalyzeError], ...] = (),
    lacking: Callable[[Path], None] | None = None,
) -> list[T]:
    """Results of `work` for each path; the first error where there is none.

    Paths that were found in a folder are left out with a word where they fail, others where the error is `tolerated`;
    with `lacking` that is told of these in place of the word.
    """
    in_folders, failed = session().found, session().failed
    results: list[T] = []
    missing: dict[Path, errors.KanalyzeError] = {}
    for path in paths:
        if path in failed:
            continue
        try:
            results.append(work(path))
        except errors.KanalyzeError as error:
            bearable = len(paths) > 1 and isinstance(error, tolerated)
            if path not in in_folders and not bearable:
                raise
            (missing if bearable else failed)[path] = error  # what lacks one table may give the next
            if bearable and lacking:
                lacking(path)
            elif len(paths) > 1:
                print_left_out(error)
    if not results and (failed or missing):
        raise next(iter((failed | missing).values()))
    return results


def opened_each(reports: Sequence[Path], where: Where) -> list[Report]:
    """The reports of :func:`opened_together`, of a nsys pass the first run alone; those that fail as of `of_each`."""
    each = of_each(different(reports), lambda report: opened_together([report], where, runs=False))
    return [report for some in each for report in some]


def answered(path: Path, table: Table, where: Where, make: Callable[[Report], T]) -> dict[str | None, T]:
    """Results of `make` for each part of a report that was asked for, by its name.

    Of a capture it is made of the first of its reports that records what the table needs, and a word says which if it
    is not the one that gives the time of all other tables.
    """
    held, cache = _held(), not where.no_cache
    ways = held.once((path, "ways"), lambda: captures.ways(readers.unpacked(path), progress_shown(), cache=cache))
    if table.counted or len(ways) < 2:  # noqa: PLR2004 - one report has no other
        parts = held.once((path, table.counted), lambda: opened_parts(path, where, counters=table.counted))
        return {name: make(part) for name, part in parts.items()}
    suited = [way for way in ways if way.recorder.short in table.tools] or ways[:1]
    sampled = any(table.name == one.name for one in counter_model.SAMPLED)  # none unless asked for
    failed: errors.CannotTellError | None = None
    for way in suited:
        whole = held.once((path, way), way.opened)
        if table.name == _SAYS_ITSELF:
            _try_others(path, whole, ways, held)
        try:
            parts = held.once((path, way, "parts"), partial(parts_of, whole, where))
            results = {name: make(part) for name, part in parts.items()}
        except errors.CannotTellError as error:
            failed = failed or error
        else:
            has_rows = any(len(rows) for rows in results.values() if isinstance(rows, Sized))
            if way is suited[-1] or has_rows or not sampled:
                closed_at_end(whole)
                if way is not ways[0]:
                    held.origins[table.name] = _origin(table.name, way, ways, held, whole)
                    if not held.holds:
                        print_message(outlets.line(f"kanalyze: {held.origins[table.name]}"))
                return results
        if not held.holds:
            whole.source.close()
    assert failed is not None, "each way gives a table or cannot tell"  # noqa: S101 - there is at least one
    raise failed


def _held() -> Session:
    """The session, if it holds reports for the next table; else one that does for this table alone."""
    return session() if session().holds else Session()


def _try_others(path: Path, report: Report, ways: Sequence[captures.Run], held: Session) -> None:
    """Notes the reports of a capture that do not open and that `report`, the first, does not look at itself."""
    alone = sum(way.recorder.ranked for way in ways) == 1
    for way in ways[1:]:
        try:
            if way.recorder.counts or (way.recorder.ranked and not alone):
                closed_at_end(held.once((path, way), way.opened))
        except errors.KanalyzeError as error:
            report.go_without(way.name, error)


def _origin(table: str, way: captures.Run, ways: Sequence[captures.Run], held: Session, whole: Report) -> str:
    """What is to be said of a table that is of another report of a capture than the first: why, and what that costs."""
    same = sum(one.tool == way.tool for one in ways)
    which = f", the first of {units.plural(same, 'trace')}" if same > 1 else ""
    cost = ""
    if way.tool == captures.SAMPLES:
        plain = closed_at_end(held.once((ways[0], "plain"), ways[0].opened))
        cost = f" {phases.sampling_cost(plain, whole)}"
    return f"{table} is from {way.file}{which}; {ways[0].file.name} does not record it.{cost}"


def rows_of(
    reports: Sequence[Path], declared: Table, where: Where, keywords: dict[str, Any] | None = None
) -> pl.DataFrame:
    """The table of one report or each of several, of all together, of two sides, or of a job."""
    table, keywords = declared.name, keywords or {}
    form = f"--by {keywords.get('by')}"
    of_ranks = (
        not any(where.part.values())
        and any(one.job and one.when == form for one in catalog.forms(table))
        and len(different(expanded(reports))) > 1
    )
    if where.without_profiler and (declared.sides or declared.job or declared.together or of_ranks):
        raise click.UsageError(f"--without-profiler is for tables of one report, and {table} is of several.")
    if declared.sides:
        asked = request(where)._replace(left_out=None)
        comparisons = sides.comparisons(*sides.given(reports), asked, several=where.several)
        return frame.joined({name: comparison.table(table) for name, comparison in comparisons.items()})
    if declared.job:
        return jobs.job(reports, request(where)).table(table)
    if of_ranks:
        return jobs.path_of_ranks(reports, request(where))
    if declared.together:
        base, *others = opened = _held().once(("together",), lambda: opened_together(reports, where))
        windows = per_window(opened, where, lambda at: catalog.make(base, table, *others, **keywords, **at.part))
        return frame.joined(windows)
    return _of_every_report(reports, declared, where, lambda report: catalog.make(report, table, **keywords))


def _of_every_report(
    reports: Sequence[Path], table: Table, where: Where, make: Callable[[Report], pl.DataFrame]
) -> pl.DataFrame:
    """The table of each report, one after the other; of several with a first column that names the report."""
    paths, held = different(expanded(reports)), session()

    def rows(report: Path) -> tuple[str, pl.DataFrame]:
        parts = answered(report, table, where, make)
        if table.name == _SAYS_ITSELF:
            session().undoubted.clear()
        if len(paths) > 1 and not held.holds:
            print_doubts()  # lest all of them are held
        return str(report), frame.joined(parts)

    def lacking(report: Path) -> None:
        held.left_out.setdefault(report, []).append(table.name)

    each = of_each(paths, rows, tolerated=(errors.CannotTellError,), lacking=lacking if held.quiet else None)
    return each[0][1] if len(paths) == 1 else frame.of_reports(each)
