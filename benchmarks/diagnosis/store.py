"""Makes captures small enough to be kept, redacted, as OUT/NAME.tar.xz; of larger ones the first iterations alone.

What begins after those goes from the export of nsys, from the trace of torch.profiler and from the marks of
the run without a profiler, as if the program had run fewer steps; logs and tables of averages go whole.

Run: python benchmarks/diagnosis/store.py CAPTURES OUT [NAME…] [--keep 0.5] [--largest 0.5]
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from score import FEW, page_claims

import kanalyze
import tools
from kanalyze.errors import KanalyzeError
from kanalyze.redact import redact

#: A steady part needs some iterations, and the first ones warm up.
FEWEST: Final = 9

_LEFT_OUT: Final = shutil.ignore_patterns("logs", "*.key_averages.txt", "*.nsys-rep", "*.qdstrm")
_DEVICE: Final = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}


class Cut(NamedTuple):
    """Where a recording is cut: the time on its own clock and since 1970, and which part of its iterations stays."""

    end_ns: int
    unix_ns: int
    part: float


def cut_of(path: Path, keep: float) -> Cut | None:
    """Where the first iterations of a recording end; None where it has no more than are kept."""
    report = kanalyze.read(path)
    try:
        found = kanalyze.iterations(report).sort("start_ns")
    except KanalyzeError:
        return None
    count = max(math.ceil(found.height * keep), FEWEST)
    if found.height <= count:
        return None
    last = found.row(count - 1, named=True)
    end_ns = last["start_ns"] + last["dur_ns"]
    return Cut(end_ns, (report.meta.origin_unix_ns or 0) + end_ns, count / found.height)


def cut_export(path: Path, end_ns: int) -> None:
    """Deletes what began later from an export of nsys, operations with the calls that launched them."""
    with closing(sqlite3.connect(path)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')} for name in tables}
        calls = "CUPTI_ACTIVITY_KIND_RUNTIME"
        later = f"SELECT correlationId FROM {calls} WHERE start >= {end_ns}"
        timed = [name for name in tables if "start" in columns[name] and name != calls]
        for name in timed:
            launched = calls in tables and {"correlationId", "deviceId"} <= columns[name]
            condition = f"correlationId IN ({later})" if launched else f"start >= {end_ns}"
            database.execute(f'DELETE FROM "{name}" WHERE {condition}')
        if calls in tables:
            database.execute(f"DELETE FROM {calls} WHERE start >= {end_ns}")
    with closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM")


def cut_trace(path: Path, end_ns: int) -> None:
    """Drops what began later from a trace of torch.profiler, operations with the calls that launched them."""
    with gzip.open(path) as file:
        trace = json.load(file)
    events: list[dict[str, Any]] = trace["traceEvents"]
    end = end_ns / 1000
    calls = [event for event in events if str(event.get("cat", "")).startswith("cuda_") and event["ts"] >= end]
    later = {event["args"].get("correlation") for event in calls}

    def stays(event: dict[str, Any]) -> bool:
        launched = event["args"].get("correlation") if event.get("cat") in _DEVICE else None
        launched = event.get("id") if event.get("cat") == "ac2g" else launched
        return event["ph"] == "M" or (event.get("ts", 0) < end if launched is None else launched not in later)

    trace["traceEvents"] = [event for event in events if stays(event)]
    path.write_bytes(gzip.compress(json.dumps(trace, separators=(",", ":")).encode()))


def cut_marks(path: Path, part: float) -> None:
    """Drops the marks of later iterations from a run without a profiler."""
    run = json.loads(path.read_text(encoding="utf-8"))
    run["starts_ns"] = {mark: starts[: round(len(starts) * part)] for mark, starts in run.get("starts_ns", {}).items()}
    path.write_text(json.dumps(run), encoding="utf-8")


def cut_lines(path: Path, unix_ns: int) -> None:
    """Drops later lines and passes of loops from those that the program ran."""
    noted = json.loads(gzip.decompress(path.read_bytes()))
    (began_unix_ns, began_ns), _ = noted["clocks"]
    end_ns = unix_ns - began_unix_ns + began_ns
    noted["clocks"][1] = [unix_ns, end_ns]
    for told in (thread[part] for thread in noted["threads"] for part in ("lines", "loops")):
        count = sum(time_ns < end_ns for time_ns in accumulate(told["times"]))
        told.update(times=told["times"][:count], places=told["places"][:count])
    path.write_bytes(gzip.compress(json.dumps(noted).encode()))


def cut(capture: Path, keep: float) -> None:
    """Cuts all files of a capture after the same iteration."""
    part = 1.0
    for pattern, cut_one in (("nsys*.sqlite", cut_export), ("torch*.json.gz", cut_trace)):
        for recording in sorted(capture.glob(pattern)):
            if found := cut_of(recording, part if part < 1 else keep):
                part = found.part
                cut_one(recording, found.end_ns)
                lines = recording.with_name(f"lines-{recording.name.split('.')[0]}.json.gz")
                if lines.exists():
                    cut_lines(lines, found.unix_ns)
    for run in sorted(capture.glob("bare*.json")):
        cut_marks(run, part)


def loosen(path: Path) -> None:
    """Writes a gzipped file anew without compressing it, which xz does better."""
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content, compresslevel=0, mtime=0))


def first_rules(capture: Path) -> list[str]:
    """What the page of a capture says first."""
    page = json.loads(tools.kanalyze(capture))
    return [claim.cause for claim in page_claims(page)][:FEW]


def pack(capture: Path, packed: Path, keep: float) -> bool:
    """Writes a capture with a part of its iterations; says whether its page begins as that of the whole."""
    with tempfile.TemporaryDirectory() as folder:
        copy, redacted = Path(folder) / "copy", Path(folder) / capture.name
        shutil.copytree(capture, copy, ignore=_LEFT_OUT)
        if keep < 1:
            cut(copy, keep)
        lines = [Path(shutil.move(file, folder)) for file in copy.glob("lines-*")]  # of the benchmark's own programs
        redact(copy, redacted)
        for file in lines:
            shutil.move(file, redacted)
        for file in redacted.rglob("*.gz"):
            loosen(file)
        with tarfile.open(packed, "w:xz", preset=9) as archive:
            archive.add(redacted, capture.name)
        return keep == 1 or first_rules(redacted) == first_rules(capture)


def store(capture: Path, out: Path, keep: float, small_mb: float, largest_mb: float) -> str:
    """Writes one capture, cut if it is not small and says the same then, unless it is too large; says what was done."""
    packed, said = out / f"{capture.name}.tar.xz", "whole"
    before_mb = sum(file.stat().st_size for file in capture.rglob("*") if file.is_file()) / 1e6
    if before_mb > small_mb:
        said = "cut" if pack(capture, packed, keep) else "whole: cut it says something else"
    if said != "cut":
        pack(capture, packed, 1)
    size_mb = packed.stat().st_size / 1e6
    if size_mb > largest_mb:
        packed.unlink()
        said += f", left out: above {largest_mb} MB"
    return f"{capture.name}: {before_mb:.2f} MB, stored {size_mb:.2f} MB, {said}"


def main() -> None:
    """Stores the captures of a folder, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=float, default=0.5, help="this part of the iterations; at least 9 are kept")
    parser.add_argument("--small", type=float, default=2.5, help="what is smaller than this, in MB, is not cut")
    parser.add_argument("--largest", type=float, default=0.5, help="leave out what is larger than this, in MB")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.names or sorted(folder.name for folder in options.captures.iterdir() if folder.is_dir())
    sizes = {"small_mb": options.small, "largest_mb": options.largest}
    one = partial(store, out=options.out, keep=options.keep, **sizes)
    with ProcessPoolExecutor(2) as pool:
        for line in pool.map(one, [options.captures / name for name in names]):
            print(line, flush=True)
    total = sum(file.stat().st_size for file in options.out.glob("*.tar.xz"))
    print(f"{total / 1e6:.1f} MB in all", file=sys.stderr)


if __name__ == "__main__":
    main()
