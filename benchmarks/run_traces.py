"""Times the page of a large trace of torch.profiler against what else reads it, on this machine.

    python benchmarks/make_trace.py trace.json big.json --copies 143
    python benchmarks/run_traces.py big.json --hta /path/to/python

How it is timed is said in run.py. HolisticTraceAnalysis is heavy: give a Python that has it (``pip install
HolisticTraceAnalysis``), or it is left out.
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
    """Time everything that is installed, and print one table."""
    parser = argparse.ArgumentParser(description="Time kanalyze against its peers on a trace of torch.profiler.")
    parser.add_argument("trace", type=Path, help="a large trace, such as make_trace.py makes")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--runs", type=int, default=3, help="runs of each command (default: 3)")
    parser.add_argument("--patience", type=float, default=60, help="seconds after which none is started again")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    trace = options.trace.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["XDG_CACHE_HOME"] = scratch
        summarize = [sys.executable, "-m", "kanalyze", "summarize", str(trace)]
        commands = [
            Command("kanalyze summarize, first look", [*summarize, "--no-cache"]),
            Command("kanalyze summarize, second look", summarize),
            Command("kanalyze summarize --full, second look", [*summarize, "--full"]),
            *_walk(folder, trace),
            Command("json.load", [sys.executable, "-c", f"import json; json.load(open({str(trace)!r}))"]),
            *_hta(options.hta, folder, trace),
        ]
        subprocess.run(summarize, check=True, stdout=subprocess.DEVNULL)
        rows = table(measured(commands, trace, options.runs, options.patience))
    print(machine())
    print(f"\n{trace.name}, {trace.stat().st_size / _MEGABYTE:,.1f} MB:\n")
    print("\n".join(markdown(rows) if options.markdown else aligned(rows)))


def _walk(folder: Path, trace: Path) -> list[Command]:
    """The C++ program that walks over all events with simdjson, compiled in `folder`."""
    compiler, program = shutil.which("c++"), folder / "walk"
    arguments = [str(compiler), "-O3", "-std=c++17", "-o", str(program), str(HERE / "walk.cpp"), "-lsimdjson"]
    if compiler is None or subprocess.run(arguments, capture_output=True, check=False).returncode:
        left_out("the walk with simdjson", "it needs a C++ compiler and simdjson with its headers")
        return []
    return [Command("simdjson, walking in C++", [str(program), str(trace)])]


def _hta(python: str | None, folder: Path, trace: Path) -> list[Command]:
    if python is None:
        left_out("HolisticTraceAnalysis", "give a Python that has it with --hta")
        return []
    traces = folder / "traces"
    traces.mkdir()
    (traces / "rank0.json").symlink_to(trace)
    return [Command("HolisticTraceAnalysis", [python, str(HERE / "load_hta.py"), str(traces)])]


if __name__ == "__main__":
    main()
