"""Times the page of a job of several ranks against HolisticTraceAnalysis, on the same traces.

    python benchmarks/run_job.py FOLDER --hta /path/to/python
    python benchmarks/run_job.py FOLDER --hta /path/to/python --copies 20

FOLDER has a trace of torch.profiler for each rank. With `--copies` each is made longer by make_trace.py first. How it
is timed is said in run.py, what is run of HolisticTraceAnalysis in load_hta.py; its Python is made by ``python -m venv
DIR`` and ``DIR/bin/pip install HolisticTraceAnalysis``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from run import HERE, Command, aligned, left_out, machine, markdown, measured, table

_MEGABYTE: Final = 10**6


def main() -> None:
    """Time both, and print one table."""
    parser = argparse.ArgumentParser(description="Time kanalyze against HolisticTraceAnalysis on traces of a job.")
    parser.add_argument("folder", type=Path, help="a folder with a trace per rank")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--copies", type=int, default=1, help="how many times each trace is repeated (default: 1)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each command (default: 3)")
    parser.add_argument("--patience", type=float, default=60, help="seconds after which none is started again")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        traces = _traces(options.folder, Path(scratch) / "traces", options.copies)
        folder = str(traces[0].parent)
        page = [sys.executable, "-m", "kanalyze", "ranks", folder]
        commands = [
            Command("kanalyze ranks, first look", [*page, "--no-cache"]),
            Command("kanalyze ranks, second look", page),
            *_hta(options.hta, folder),
        ]
        subprocess.run(page, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = table(measured(commands, traces[0], options.runs, options.patience))
        size = sum(one.stat().st_size for one in traces) / _MEGABYTE
    print(machine())
    print(f"\n{len(traces)} ranks, {size:,.1f} MB:\n")
    print("\n".join(markdown(rows) if options.markdown else aligned(rows)))


def _traces(given: Path, folder: Path, copies: int) -> list[Path]:
    """The traces of a folder in another one, each `copies` times as long."""
    folder.mkdir()
    for trace in sorted(given.glob("*.json*")):
        if copies == 1:
            shutil.copyfile(trace, folder / trace.name)
            continue
        longer = folder / trace.name.removesuffix(".gz")
        words = [sys.executable, str(HERE / "make_trace.py"), str(trace), str(longer), "--copies", str(copies)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    found = sorted(folder.iterdir())
    if not found:
        raise SystemExit(f"no trace in {given}")
    return found


def _hta(python: str | None, folder: str) -> list[Command]:
    if python is None:
        left_out("HolisticTraceAnalysis", "give a Python that has it with --hta")
        return []
    return [Command("HolisticTraceAnalysis", [python, str(HERE / "load_hta.py"), folder])]


if __name__ == "__main__":
    main()
