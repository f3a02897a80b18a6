"""Which reports answer a command: those of a folder, and of a capture the first that records what a table needs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeVar

import click

from kanalyze import outlets
from kanalyze.cli._options import (
    Where,
    closed_at_end,
    opened_counters,
    opened_parts,
    parts_of,
    print_left_out,
    progress_shown,
)
from kanalyze.cli._output import print_message
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.machinery.memory import sparing_memory
from kanalyze.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kanalyze.readers.capture.reports import Way
    from kanalyze.report import Report
    from kanalyze.schema import Table

T = TypeVar("T")

#: Key of the paths that were found in a folder, and of those of them that cannot be read, in the command's context.
_FOUND: Final = "kanalyze.found"
_FAILED: Final = "kanalyze.failed"


def expanded(reports: Sequence[Path]) -> list[Path]:
    """The paths with a folder of reports replaced by them; each of these may fail, see :func:`of_each`."""
    paths: list[Path] = []
    for path in reports:
        inside = _in_folder(path)
        click.get_current_context().meta.setdefault(_FOUND, set()).update(inside)
        paths += inside or [path]
    return paths


def _in_folder(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # noqa: PTH112 - never raises
        return []
    with sparing_memory():
        from kanalyze.readers.capture.reports import reports_in_folder  # noqa: PLC0415 - --help need not import polars

    return reports_in_folder(path)


def of_each(
    paths: Sequence[Path], work: Callable[[Path], T], *, tolerated: tuple[type[KanalyzeError], ...] = ()
) -> list[T]:
    """What `work` gives of each path; the first error where it gives nothing of any.

    Paths that were found in a folder are left out with a word where they fail, others where the error is `tolerated`.
    """
    meta = click.get_current_context().meta
    found_in_folder, failed = meta.get(_FOUND, set()), meta.setdefault(_FAILED, {})
    results: list[T] = []
    for path in paths:
        if path in failed:
            continue
        try:
            results.append(work(path))
        except KanalyzeError as error:
            if path not in found_in_folder and not (len(paths) > 1 and isinstance(error, tolerated)):
                raise
            failed[path] = error
            if len(paths) > 1:
                print_left_out(error)
    if not results and failed:
        raise next(iter(failed.values()))
    return results


def answered(path: Path, table: Table, where: Where, make: Callable[[Report], T]) -> dict[str | None, T]:
    """What `make` gives of each part of a report that was asked for, by its name.

    Of a capture it is made of the first of its reports that records what the table needs, and a word says which if it
    is not the one that gives the time of all other tables.
    """
    ways = _ways(path, where)
    if table.counted or len(ways) < 2:  # noqa: PLR2004 - one report has no other
        parts = opened_counters(path, where) if table.counted else opened_parts(path, where)
        return {name: make(part) for name, part in parts.items()}
    suited = [way for way in ways if way.tool in table.tools] or ways[:1]
    failed: CannotTellError | None = None
    for way in suited:
        whole = way.opened()
        try:
            found = {name: make(part) for name, part in parts_of(whole, where).items()}
        except CannotTellError as error:
            whole.source.close()
            failed = failed or error
            continue
        closed_at_end(whole)
        if way is not ways[0]:
            print_message(outlets.line(f"kanalyze: {_from(table.name, way, ways)}"))
        return found
    assert failed is not None, "each way gives a table or cannot tell"  # noqa: S101 - there is at least one
    raise failed


def _ways(path: Path, where: Where) -> list[Way]:
    """The reports of the capture at `path`; none of any other path."""
    if not os.path.isdir(path):  # noqa: PTH112 - as above
        return []
    with sparing_memory():
        from kanalyze.readers.capture.read_capture import accepts  # noqa: PLC0415 - as above
    from kanalyze.readers.capture.reports import ways  # noqa: PLC0415 - as above

    return ways(path, progress_shown(), cache=not where["no_cache"]) if accepts(path, b"") else []


def _from(table: str, way: Way, ways: Sequence[Way]) -> str:
    """Which report of a capture a table is from, and why."""
    same = sum(one.tool == way.tool for one in ways)
    which = f", the first of {plural(same, 'trace')}" if same > 1 else ""
    return f"{table} is from {way.file}{which}; {ways[0].file.name} does not record it."
