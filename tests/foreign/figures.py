"""What a foreign report holds, by plain SQL or plain JSON: nothing of kanalyze is imported here.

``python tests/foreign/figures.py INDEX`` writes list.tsv anew from a table with the columns path, repo, commit,
path_in_repo, sha256 and tool of the files beside it.
"""

import csv
import gzip
import json
import sqlite3
import sys
from contextlib import closing, suppress
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

LIST = Path(__file__).parent / "list.tsv"
HEAD = ("repository", "commit", "path", "bytes", "sha256", "expected")

#: Files that hold no time line, or none that can be told without kanalyze: only that nothing breaks is checked.
NO_FIGURES = "-"
#: A trace of another program than torch.profiler: an error that says so, with status 2.
REFUSED = "refused"

#: What a file is by how it begins.
_GZIP, _SQLITE, _NCU = b"\x1f\x8b", b"SQLite format 3\0", b"NVR\0"

#: nsys' tables of what ran on a GPU. A graph traced whole has no kernels; it keeps the device busy all the same.
_BUSY = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "set",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "graph",
}
_NAMES = {"kernel": ("kernel", "Kernel"), "copy": ("gpu_memcpy", "Memcpy"), "set": ("gpu_memset", "Memset")}
_CATEGORIES = {category: kind for kind, names in _NAMES.items() for category in names}


def figures(path):
    """Counts and sums of kernels, copies and memsets, and the busy time of each device, in ns.

    None of a file that holds no time line (a report of ncu) or cannot be read so.
    """
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(_SQLITE):
        work = _of_nsys(path)
    elif start.startswith(_NCU) or path.suffix in {".csv", ".nsys-rep", ".qdrep", ".ncu-rep"}:
        return None
    else:
        work = _of_trace(path, compressed=start.startswith(_GZIP))
    return None if work is None else _summed(work)


def _summed(work):
    sums = {f"{kind}{what}": 0 for kind in ("kernel", "copy", "set") for what in ("_count", "_ns")}
    spans = {}
    for kind, device, begin, end in work:
        if kind in {"kernel", "copy", "set"}:
            sums[f"{kind}_count"] += 1
            sums[f"{kind}_ns"] += end - begin
        spans.setdefault(str(device), []).append((begin, end))
    return sums | {"busy_ns": {device: _union(found) for device, found in sorted(spans.items())}}


def _union(spans):
    total, reached = 0, min(begin for begin, _ in spans)
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


def _of_nsys(path):
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
        try:
            return _rows(database)
        except sqlite3.DatabaseError:
            return None


def _rows(database):
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    gpus = {}
    if "TARGET_INFO_CUDA_DEVICE" in tables:  # an event has the ordinal of its process
        with suppress(sqlite3.OperationalError):
            gpus = {(pid, own): gpu for gpu, own, pid in database.execute(
                "SELECT gpuId, cudaId, pid FROM TARGET_INFO_CUDA_DEVICE"
            )}  # fmt: skip
    work = []
    for table, kind in _BUSY.items():
        if table not in tables:
            continue
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        process = "globalPid" if "globalPid" in columns else "0"
        for begin, end, device, owner in database.execute(f'SELECT start, "end", deviceId, {process} FROM {table}'):
            pid = (owner or 0) >> 24 & 0xFFFFFF
            work.append((kind, gpus.get((pid, device), device), begin, end))
    return work


def _of_trace(path, *, compressed):
    content = path.read_bytes()
    try:
        text = (gzip.decompress(content) if compressed else content).decode("utf-8", "replace")
        told = json.loads(text, strict=False, parse_float=Decimal)
    except (OSError, EOFError, ValueError):
        return None
    events = told.get("traceEvents") if isinstance(told, dict) else told
    return list(_events(events)) if isinstance(events, list) else None


def _events(events):
    for event in events:
        kind = _CATEGORIES.get(event.get("cat", "")) if isinstance(event, dict) and event.get("ph") == "X" else None
        if kind is None:
            continue
        args = event.get("args") or {}
        device = args.get("device", event.get("pid"))
        begin, length = _ns(event["ts"]), _ns(event.get("dur", 0))
        yield kind, device, begin, begin + length


def _ns(microseconds):
    return int((Decimal(str(microseconds)) * 1000).to_integral_value(ROUND_HALF_EVEN))


def rows_of(table):
    """The rows of a table of tabs: list.tsv, or an index."""
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def record(index):
    """Write list.tsv from the index of a folder."""
    rows = []
    for row in rows_of(index):
        path = index.parent / row["path"]
        if row["tool"] == "nsys-rep" or not path.exists():
            continue  # needs nsys to be exported
        told = figures(path)
        expected = NO_FIGURES if told is None else json.dumps(told, separators=(",", ":"))
        expected = REFUSED if row["tool"] == "chrome-other" else expected
        rows.append((row["repo"], row["commit"], row["path_in_repo"], path.stat().st_size, row["sha256"], expected))
    lines = ["\t".join(map(str, row)) for row in (HEAD, *sorted(rows))]
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
