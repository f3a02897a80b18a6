"""Times reading what ncu measured: its CSV pages against polars' reader of CSV, a report against ncu_report itself.

    python benchmarks/run_counters.py [big.ncu-rep]

The pages are those of the sample cdist, its five kernels repeated under new numbers. Everything is timed in turns and
without imports, and the best of several runs counts; a report is read in a new process each time.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.readers import read
from kanalyze.readers.ncu import module as ncu_module
from run import HERE, aligned, left_out, machine, markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SAMPLE: Final = HERE.parent / "sample_reports" / "cdist"

_MEGABYTE: Final = 10**6
_RECORD: Final = re.compile(r'^"(\d+)",', re.MULTILINE)

#: What a child prints: how long it took, and of how many values.
_TIMED: Final = """
import sys, time
{imports}
began = time.perf_counter()
{statements}
print(time.perf_counter() - began, count)
"""

#: Every metric of every kernel, as the module's documentation reads them.
_MODULE: Final = _TIMED.format(
    imports="import ncu_report",
    statements="""
report = ncu_report.load_report(sys.argv[1])
ranges = [report.range_by_idx(number) for number in range(report.num_ranges())]
actions = [part.action_by_idx(number) for part in ranges for number in range(part.num_actions())]
values = [[action.metric_by_name(name).value() for name in action.metric_names()] for action in actions]
count = sum(map(len, values))
""",
)
_OURS: Final = _TIMED.format(
    imports="import ncu_report, pathlib\nfrom kanalyze.readers import read",
    statements='count = read(pathlib.Path(sys.argv[1])).table("metrics").height',
)


def main() -> None:
    """Time the pages, and the report where one is given, and print a table."""
    parser = argparse.ArgumentParser(description="Time reading reports of ncu against what else reads them.")
    parser.add_argument("report", type=Path, nargs="?", help="a large .ncu-rep")
    parser.add_argument("--copies", type=int, default=5, help="of the sample's five kernels (default: 5)")
    parser.add_argument("--runs", type=int, default=15, help="runs of each (default: 15; of a report a third)")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    rows = [("what is read", "size", "kanalyze", "its peer", "ratio")]
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("details", "raw"):
            path = Path(folder) / f"{kind}.csv"
            path.write_text(repeated((SAMPLE / f"ncu.{kind}.csv").read_text(encoding="utf-8"), options.copies))
            rows.append(_row(f"{kind} page, polars.read_csv", path, best(options.runs, *_of_page(path))))
    if options.report is not None:
        rows += _of_report(options.report, max(options.runs // 3, 1))
    print(machine())
    print("\n".join(markdown(rows) if options.markdown else aligned(rows)))


def repeated(page: str, copies: int) -> str:
    """The page with its kernels that often, each time numbered on."""
    first = _RECORD.search(page)
    begin = len(page) if first is None else first.start()
    count = 1 + max((int(number) for number in _RECORD.findall(page)), default=0)
    records = page[begin:]
    moved = (_RECORD.sub(lambda match, by=copy * count: f'"{int(match[1]) + by}",', records) for copy in range(copies))
    return page[:begin] + "".join(moved)


def _of_page(path: Path) -> tuple[Callable[[], float], Callable[[], float]]:
    def ours() -> None:
        read(path).table("metrics")

    def theirs() -> None:
        pl.read_csv(path, infer_schema=False, truncate_ragged_lines=True)

    return (lambda: _timed(ours)), (lambda: _timed(theirs))


def _of_report(path: Path, runs: int) -> Iterable[tuple[str, ...]]:
    if ncu_module.module() is None:
        left_out("the report", "the module ncu_report is not installed (extra ncu)")
        return []
    found = best(runs, lambda: _child(_OURS, path), lambda: _child(_MODULE, path))
    return [_row("report, ncu_report's own loop", path, found)]


def _child(code: str, path: Path) -> float:
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True, text=True)
    return float(ran.stdout.split()[0])


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def best(runs: int, *works: Callable[[], float]) -> tuple[float, ...]:
    """The least that each of `works` took, in seconds, in turns."""
    times = [[work() for work in works] for _ in range(runs)]
    return tuple(min(column) for column in zip(*times, strict=True))


def _row(what: str, path: Path, seconds: tuple[float, ...]) -> tuple[str, ...]:
    ours, theirs = seconds
    size = f"{path.stat().st_size / _MEGABYTE:.1f} MB"
    return (what, size, f"{ours * 1000:.1f} ms", f"{theirs * 1000:.1f} ms", f"{ours / theirs:.2g}")


if __name__ == "__main__":
    main()
