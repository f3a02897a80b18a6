"""How long each table takes, against reading the columns that it is made of: ``python benchmarks/tables.py REPORT``.

For each table a report is opened anew. The table is made once to see what it reads, then what it reads is read alone,
and then the table is made of a report that was not read yet: best of three, as seconds and as a ratio.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from kanalyze import catalog
from kanalyze.errors import CannotTellError
from kanalyze.model import READER_TABLES
from kanalyze.readers import read

if TYPE_CHECKING:
    from kanalyze.report import Report

_TRIES = 3


def main(path: str) -> None:
    """Print a line for each table that the report allows."""
    print(f"{'table':<20} {'read':>9} {'table':>9} {'ratio':>6}")
    for name in catalog.names():
        if name in READER_TABLES:
            continue
        try:
            used = _used(path, name)
        except CannotTellError:
            continue
        reading = min(_seconds_to_read(path, used) for _ in range(_TRIES))
        making = min(_seconds_to_make(path, name) for _ in range(_TRIES))
        print(f"{name:<20} {reading:>8.3f}s {making:>8.3f}s {making / max(reading, 1e-9):>6.2f}")


def _used(path: str, name: str) -> list[str]:
    report = read(path)
    catalog.make(report, name)
    return [*report._tables]  # noqa: SLF001 - what was read is nobody else's business


def _seconds_to_read(path: str, used: list[str]) -> float:
    report = read(path)
    start = perf_counter()
    for key in used:
        _read_one(report, key)
    return perf_counter() - start


def _read_one(report: Report, key: str) -> None:
    if key.startswith("events:"):
        report.kind(key.removeprefix("events:"))
    else:
        report.table(key)


def _seconds_to_make(path: str, name: str) -> float:
    report = read(path)
    start = perf_counter()
    catalog.make(report, name)
    return perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1])
