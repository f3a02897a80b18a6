"""Estimates of a step without the profiler held against runs without one: a table of docs/whatif.md.

CAPTURES has folders of `kanalyze collect`, or such folders packed (.tar.xz), each with a run without a profiler: what
that run took is hidden from the recordings beside it. What `benchmarks/diagnosis/measured.json` has of the same program
was timed alone, at another time.

Run: python benchmarks/unprofiled_table.py [CAPTURES] [--all]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.replay._unprofiled import busy_ns, estimated, iteration_of
from kanalyze.readers.capture.read_capture import bare_runs, reports_in, run_of, trace_of, traces_in
from kanalyze.report import BareRuns, Report

HERE: Final = Path(__file__).parent / "diagnosis"

#: Two times of one program that are no further apart than this agree; so wide may an estimate be to both sides.
AGREE: Final = 0.15

#: Of a program that the host limits the GPU works for less than this part of the recorded step.
OF_HOST: Final = 0.8


class Row(NamedTuple):
    """A recording of a program (ms of a step): its own run without a profiler, the time alone, and what is told."""

    name: str
    tool: str
    own: float
    at_least: bool  # whether the own run only tells that the step takes so long at least
    alone: float | None
    recorded: float
    busy: float
    low: float
    usual: float
    high: float

    @property
    def true(self) -> float | None:
        """What the step takes: by the own run, else by the time alone."""
        return self.alone if self.at_least else self.own

    @property
    def sure(self) -> bool:
        """Whether the two times agree, or one says nothing more, and the recording is not quicker than they are."""
        if self.at_least or self.alone is None:
            return self.true is not None
        least, most = sorted((self.own, self.alone))
        return most <= least * (1 + AGREE) and most <= self.recorded * (1 + AGREE)

    @property
    def holds(self) -> bool:
        """Whether the estimate holds what the step takes."""
        return self.true is not None and self.low <= self.true <= self.high

    @property
    def width(self) -> float:
        """How far the estimate reaches to both sides, as a part."""
        return (self.high - self.low) / 2 / self.usual


def recordings(capture: Path) -> Iterator[Report]:
    """A capture's first recording by each tool, without its runs without a profiler."""
    opened = [run_of(capture, path) for path in reports_in(capture)[:1]]
    opened += [trace_of(capture, path, cache=False) for path in traces_in(capture)[:1]]
    for report in opened:
        yield replace(report, bare=BareRuns)


def rows_of(capture: Path, alone: float | None) -> list[Row]:
    """The recordings of a capture whose run without a profiler tells a step."""
    found = []
    for report in recordings(capture):
        steady = steady_part(report)
        if steady is None:
            continue
        busy = busy_ns(report, steady)
        own = iteration_of(bare_runs(capture).marked, report.meta.rank, steady, busy)
        told = estimated(report.narrow(window=steady.window), steady)
        if own is not None and told is not None:
            times = (steady.ns / steady.number, busy, told.low_ns, told.usual_ns, told.high_ns)
            tool = report.meta.tool
            found.append(Row(capture.name, tool, own.ns / 1e6, own.by_device, alone, *(ns / 1e6 for ns in times)))
    return found


def rows_at(path: Path, alone: float | None) -> list[Row]:
    """The rows of a capture's folder, or of a packed one."""
    if path.is_dir():
        return rows_of(path, alone)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
        return rows_of(next(Path(folder).iterdir()), alone)


def half(name: str) -> int:
    """The half of the programs that one is in, by a hash of its name."""
    return hashlib.sha256(name.encode()).digest()[-1] % 2


def counts(rows: list[Row]) -> str:
    """How many estimates hold what was measured, and how wide they are."""
    known = [row for row in rows if row.true is not None]
    sure = [row for row in known if row.sure]
    halves = [[row for row in known if half(row.name) == one] for one in (0, 1)]
    parts = ", ".join(f"{sum(row.holds for row in one)} of {len(one)}" for one in halves)
    alone = [row.low <= row.alone <= row.high for row in rows if row.alone is not None]
    narrow = sum(row.width <= AGREE for row in rows)
    return (
        f"{rows[0].tool}: {sum(row.holds for row in known)} of {len(known)} hold what was measured (by half of the "
        f"programs {parts}), {sum(row.holds for row in sure)} of {len(sure)} where both times agree; {sum(alone)} of "
        f"{len(alone)} hold the time alone; {narrow} of {len(rows)} are at most ± {AGREE:.0%} wide, the widest "
        f"± {max(row.width for row in rows):.1%}"
    )


def table(rows: list[Row], tools: list[str]) -> None:
    """Prints a row for each program, with all recordings of it."""
    heads = [f"{tool}: {what}" for tool in tools for what in ("recorded", "estimate")]
    print(f"| {' | '.join(['program', 'own run', 'alone', *heads])} |")
    print(f"| {' | '.join(['---'] + ['--:'] * (2 + len(heads)))} |")
    for name in dict.fromkeys(row.name for row in rows):
        own = {row.tool: row for row in rows if row.name == name}
        first = next(iter(own.values()))
        least = "≥ " if first.at_least else ""
        cells = [name, f"{least}{first.own:.3g}", "" if first.alone is None else f"{first.alone:.3g}"]
        for tool in tools:
            one = own.get(tool)
            mark = "" if one is None or one.holds else " ✗"
            cells += ["", ""] if one is None else [f"{one.recorded:.3g}", f"{one.low:.3g} to {one.high:.3g}{mark}"]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Prints the table of programs that the host limits, and how often the estimates hold what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path, nargs="?", default=HERE / "captures")
    parser.add_argument("--all", action="store_true", help="also rows of programs that the GPU limits")
    options = parser.parse_args()
    timed = json.loads((HERE / "measured.json").read_text())
    paths = sorted(options.captures.iterdir())
    alone = [timed.get(path.name.removesuffix(".tar.xz"), {}).get("fault", [None])[0] for path in paths]
    with ProcessPoolExecutor(2) as pool:
        rows = [row for found in pool.map(rows_at, paths, alone) for row in found]
    tools = list(dict.fromkeys(row.tool for row in rows))
    hosts = {row.name for row in rows if row.busy < OF_HOST * row.recorded}
    table([row for row in rows if options.all or row.name in hosts], tools)
    for tool in tools:
        own = [row for row in rows if row.tool == tool]
        print(f"\n{counts(own)}")
        off = [math.log(row.true / row.usual) for row in own if row.true is not None]
        print(f"median of what was measured by what is usual: {math.exp(sorted(off)[len(off) // 2]):.3f}")


if __name__ == "__main__":
    main()
