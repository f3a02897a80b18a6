"""The texts that tools make of a capture: what `score.py` holds against the fault, and `agents.py` gives to a model.

A tool's program is looked for on the PATH, or named by an environment variable: NSYS, NSYS_AI, TRACELENS (its
`TraceLens_generate_perf_report_pytorch`), and HTA_PYTHON, a Python in which HolisticTraceAnalysis is installed.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from truth import BLIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from truth import Program

_TIMEOUT_S: Final = 300

#: All that HolisticTraceAnalysis tells of one rank, printed in full.
_HTA: Final = """
import logging, sys
import pandas as pd
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
pd.set_option("display.width", 200, "display.max_columns", None, "display.max_colwidth", 100, "display.max_rows", 50)
trace = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
plain = {"visualize": False}
questions = [
    ("temporal breakdown", trace.get_temporal_breakdown, plain),
    ("idle time breakdown", trace.get_idle_time_breakdown, plain | {"ranks": [0], "show_idle_interval_stats": True}),
    ("kernel breakdown", trace.get_gpu_kernel_breakdown, plain),
    ("communication and computation overlap", trace.get_comm_comp_overlap, plain),
    ("kernel launch statistics", trace.get_cuda_kernel_launch_stats, plain | {"ranks": [0]}),
    ("queue length", trace.get_queue_length_summary, {"ranks": [0]}),
    ("memory bandwidth", trace.get_memory_bw_summary, {"ranks": [0]}),
]
if len(sys.argv) > 2:
    questions.append(("ranks that may be slow", trace.get_potential_stragglers, {}))
for title, ask, options in questions:
    print(f"## {title}")
    try:
        answer = ask(**options)
    except Exception as error:
        print(f"not told: {error}")
        continue
    for one in answer if isinstance(answer, tuple) else (answer,):
        if isinstance(one, dict):
            one = one.get(0)
        print(one.head(50).to_string() if hasattr(one, "to_string") else one)
"""


class UnreadableError(Exception):
    """The capture has nothing that the tool reads."""


def _output(command: list[str | Path]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return done.stdout or done.stderr


def _program(variable: str, name: str) -> str:
    """Where a tool's program is; ends the command where it is nowhere."""
    program = os.environ.get(variable) or shutil.which(name)
    if not program:
        sys.exit(f"{name} is not installed; {variable} may name it")
    return program


def _files(capture: Path, *patterns: str) -> list[Path]:
    files = sorted({file for pattern in patterns for file in capture.rglob(pattern)})
    if not files:
        raise UnreadableError(f"{capture}: no {' or '.join(patterns)}")
    return files


def kanalyze(capture: Path) -> str:
    """The default page as JSON, whose findings are ranked as on the page."""
    return _output([sys.executable, "-m", "kanalyze", "summarize", capture, "--format", "json"])


def page(capture: Path) -> str:
    """The default page."""
    return _output([sys.executable, "-m", "kanalyze", "summarize", capture])


def nsys(capture: Path) -> str:
    """`nsys analyze`, which has what there is of advice, and then `nsys stats`, each with what it does unasked."""
    program, report = _program("NSYS", "nsys"), _files(capture, "nsys*.sqlite")[0]
    texts = [_output([program, command, "--quiet", "--format", "column", report]) for command in ("analyze", "stats")]
    return "\n".join(texts)


def hta(capture: Path) -> str:
    """What HolisticTraceAnalysis tells of the traces of torch.profiler."""
    python = _program("HTA_PYTHON", "hta-python")
    return _output([python, "-c", _HTA, *_files(capture, "torch*.json.gz", "torch*.json")])


def tracelens(capture: Path) -> str:
    """The tables of TraceLens' report of a trace of torch.profiler, one after the other."""
    program = _program("TRACELENS", "TraceLens_generate_perf_report_pytorch")
    trace = _files(capture, "torch*.json.gz", "torch*.json")[0]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--short_kernel_study", "--detect_recompute", "--output_csvs_dir", folder]
        said = _output([program, "--profile_json_path", trace, *options])
        tables = [f"## {file.stem}\n{file.read_text(encoding='utf-8')}" for file in sorted(Path(folder).glob("*.csv"))]
    return "\n".join(tables) or said


def nsys_ai(capture: Path) -> str:
    """The root causes and then the ranked findings of nsys-ai, without a model."""
    program = _program("NSYS_AI", "nsys-ai")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(shutil.copy(_files(capture, "nsys*.sqlite")[0], folder))  # it writes its cache beside it
        causes = _output([program, "skill", "run", "root_cause_matcher", report])
        return causes + _output([program, "diagnose", report, "--session", Path(folder) / "session"])


#: Each tool by its name; `text` is the page of kanalyze as those of the others are read.
TEXTS: Final[dict[str, Callable[[Path], str]]] = {
    "kanalyze": kanalyze,
    "text": page,
    "nsys": nsys,
    "hta": hta,
    "tracelens": tracelens,
    "nsys-ai": nsys_ai,
}


def unpacked(captures: Path, one: Program, capture: Path) -> None:
    """Puts the capture of a program at another place, whose name does not give the fault away."""
    if (captures / one.name).is_dir():
        capture.symlink_to((captures / one.name).resolve(), target_is_directory=True)
        return
    with tarfile.open(captures / f"{one.name}.tar.xz") as archive:
        archive.extractall(capture.parent, filter="data")
    (capture.parent / one.name).rename(capture)


def blind_copy(captures: Path, one: Program, capture: Path) -> None:
    """Copies the capture of a program, without its name in the files."""
    with tempfile.TemporaryDirectory() as folder:
        unpacked(captures, one, Path(folder) / BLIND)
        shutil.copytree(Path(folder) / BLIND, capture)
    for file in capture.rglob("*.json*"):
        packed = file.suffix == ".gz"
        content = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
        blind = one.blind(content.decode()).encode()
        file.write_bytes(gzip.compress(blind) if packed else blind)
    for file in capture.rglob("*.sqlite"):
        with closing(sqlite3.connect(file)) as database, database:
            database.create_function("blind", 1, one.blind)
            for table, column in (("StringIds", "value"), ("META_DATA_CAPTURE", "value"), ("PROCESSES", "name")):
                if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone():
                    database.execute(
                        f"UPDATE {table} SET {column} = blind({column}) WHERE {column} LIKE ?", [f"%{one.name}%"]
                    )


def answer(tool: str, one: Program, captures: Path, texts: Path | None) -> str:
    """What a tool says of a program: the page as JSON of kanalyze, a text of any other; kept in `texts` if given."""
    kept = texts / tool / f"{one.name}.txt" if texts else None
    if kept and kept.exists():
        return kept.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / BLIND
        unpacked(captures, one, capture)
        said = TEXTS[tool](capture)
    said = one.blind(said)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(said, encoding="utf-8")
    return said
