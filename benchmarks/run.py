"""Times the page of a large report, and of a small one, against what else reads them, on this machine.

    python benchmarks/run.py big.sqlite --nsys /path/to/nsys

A peer that is not installed is left out, with a word. Each command is started afresh, its output thrown away, and its
best wall time of several runs counts: whatever else the machine does can only make a run slower. Peak memory is the
most that any one process of the command had resident in any run, as the operating system counts it (`wait4`); nothing
below this script's own, about 17 MB, can be told apart.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HERE: Final = Path(__file__).parent
SMALL: Final = HERE.parent / "tests" / "reports" / "add.sqlite"

#: The reports of nsys that give what the first page gave: kernels, copies, calls and launches.
FIVE_REPORTS: Final = (
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_api_sum",
    "cuda_kern_exec_sum",
)

#: Those that give what the page gives today, as far as nsys has it.
NSYS_REPORTS: Final = (*FIVE_REPORTS, "nvtx_sum", "nvtx_gpu_proj_sum", "um_total_sum")

_BLOCK_BYTES: Final = 1 << 20
_MEGABYTE: Final = 10**6
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in kB on Linux
_SHOWN_ERROR: Final = 300


@dataclass(frozen=True)
class Command:
    """Something to time: what it is called in the table, and how it is started."""

    name: str
    arguments: Sequence[str]


@dataclass(frozen=True)
class Cost:
    """Cost of one run."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


class FailedError(Exception):
    """The command ended with another status than 0."""


def main() -> None:
    """Time everything that is installed, and print one table per report."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        big = [*_pages(options.report), *_nsys(options.nsys, options.report), *_step(Path(folder), options.report)]
        small = [
            *_pages(options.small),
            Command("python -c 'import polars'", [sys.executable, "-c", "import polars"]),
        ]
        tables = [
            table(measured(commands, report, options.runs, options.patience))
            for commands, report in ((big, options.report), (small, options.small))
        ]
    print(machine())
    for report, rows in zip((options.report, options.small), tables, strict=True):
        print(f"\n{report.name}, {report.stat().st_size / _MEGABYTE:,.1f} MB:\n")
        print("\n".join(markdown(rows) if options.markdown else aligned(rows)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time kanalyze against its peers.")
    parser.add_argument("report", type=Path, help="a large report, such as make_report.py makes")
    parser.add_argument("--small", type=Path, default=SMALL, help="a small one (default: the sample add.sqlite)")
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="the nsys program (default: the one on PATH)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default: 5)")
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds after which a command is not started again (default: 120)"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    for path in (options.report, options.small):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    return options


# What is timed


def _pages(report: Path) -> list[Command]:
    """The first page, and the one with all sections."""
    command = [sys.executable, "-m", "kanalyze", "summarize", str(report)]
    return [Command("kanalyze summarize", command), Command("kanalyze summarize --full", [*command, "--full"])]


def _nsys(program: str | None, report: Path) -> list[Command]:
    if program is None or shutil.which(program) is None:
        left_out("nsys stats", "give the program with --nsys")
        return []
    some, five = ([part for name in names for part in ("--report", name)] for names in (NSYS_REPORTS, FIVE_REPORTS))
    return [
        Command("nsys stats, the page's content", [program, "stats", *some, str(report)]),
        Command("nsys stats, five reports", [program, "stats", *five, str(report)]),
        Command("nsys stats, its default set", [program, "stats", str(report)]),
    ]


def _step(folder: Path, report: Path) -> list[Command]:
    """The C program that steps through the rows, compiled in `folder`."""
    compiler, program = shutil.which("cc"), folder / "step"
    if compiler is None:
        left_out("the C loop", "there is no C compiler (cc)")
        return []
    source = str(HERE / "step.c")
    for library in ("-l:libsqlite3.so.0", "-lsqlite3"):
        arguments = [compiler, "-O2", "-o", str(program), source, library]
        if subprocess.run(arguments, capture_output=True, check=False).returncode == 0:
            return [Command("SQLite, stepping in C", [str(program), str(report)])]
    left_out("the C loop", "it cannot be linked with SQLite")
    return []


def left_out(what: str, why: str) -> None:
    """Say on standard error what is not timed."""
    print(f"left out: {what}; {why}", file=sys.stderr)


# How it is timed


def measured(
    commands: Iterable[Command], report: Path, runs: int, patience_s: float
) -> list[tuple[str, Cost | FailedError]]:
    """The best run of each command, all of them with the report in the page cache."""
    _read_once(report)
    return [(command.name, _best(command, runs, patience_s)) for command in commands]


def _read_once(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(_BLOCK_BYTES):
            pass


def _best(command: Command, runs: int, patience_s: float) -> Cost | FailedError:
    began = time.perf_counter()
    costs: list[Cost] = []
    while not costs or (len(costs) < runs and time.perf_counter() - began < patience_s):
        try:
            costs.append(_run(command))
        except FailedError as error:
            return error
    fastest = min(costs, key=lambda cost: cost.wall_s)
    return Cost(fastest.wall_s, fastest.cpu_s, max(cost.peak_bytes for cost in costs))


def _run(command: Command) -> Cost:
    """Start the command and wait for it.

    Raises:
        FailedError: It did not end with status 0.
    """
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command.arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise FailedError(errors.read().decode(errors="replace").strip()[-_SHOWN_ERROR:])
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * _RSS_UNIT)


# How it is told


def table(costs: list[tuple[str, Cost | FailedError]]) -> list[tuple[str, ...]]:
    """The rows of the table, its head first; ratios are to the first command's costs."""
    rows: list[tuple[str, ...]] = [("command", "wall", "CPU", "peak memory", "wall ratio", "memory ratio")]
    base = costs[0][1]
    for name, cost in costs:
        if isinstance(cost, FailedError):
            left_out(name, f"it failed: {cost}")
            continue
        times = (f"{cost.wall_s:.3f} s", f"{cost.cpu_s:.3f} s", f"{cost.peak_bytes / _MEGABYTE:,.0f} MB")
        ratios = ("", "")
        if isinstance(base, Cost):
            ratios = (f"{cost.wall_s / base.wall_s:.2g}", f"{cost.peak_bytes / base.peak_bytes:.2g}")
        rows.append((name, *times, *ratios))
    return rows


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def markdown(rows: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table in Markdown."""
    head, *body = rows
    rule = [":--", *["--:" for _ in head[1:]]]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def machine() -> str:
    """The machine and the programs, for whoever reads the table later."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
