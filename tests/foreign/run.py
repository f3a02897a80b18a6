"""Every command and every table of kanalyze over reports of other projects: no traceback, no hang, each figure equal.

``python tests/foreign/run.py FOLDER`` looks in FOLDER, at any depth and under any names, for the files that list.tsv
names by their SHA-256, and runs what can be run on each. list.tsv says where each is public (repository, commit,
path; ``!`` goes into an archive) and what it must give: counts and sums of kernels, copies and memsets and the busy
time of each device, as figures.py tells them without kanalyze. The files themselves are no part of this repository.

``--record INDEX`` writes list.tsv anew from a table with the columns path, repo, commit, path_in_repo, sha256.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from foreign.figures import figures

LIST = Path(__file__).parent / "list.tsv"
HEAD = ("repository", "commit", "path", "bytes", "sha256", "expected")

#: Files that hold no time line, or none that can be told without kanalyze: only that nothing breaks is checked.
NO_FIGURES = "-"
#: A trace of another program than torch.profiler: an error that says so, with status 2.
REFUSED = "refused"

#: Statuses of a command: done, a gate that failed, bad input.
STATUSES = (0, 1, 2)
LONGEST_S = 600

#: The command lines to run on a file, but for `show` of every table.
COMMANDS = (
    *("summarize {} --format terminal", "summarize {} --format markdown", "summarize {} --format json"),
    *("summarize {} --window +0.1ms..+50ms", "tree {}", "roofline {}", "source {} kernel", "verify {} {}"),
    *("redact {} -o {place}", "show gaps {} --format csv --top 50", "show health {} --format json"),
)


def check(path):
    """What went wrong on a file, what could be run, and the figures that kanalyze gives of it."""
    import kanalyze  # noqa: PLC0415 - the parent does without
    from kanalyze import catalog  # noqa: PLC0415
    from kanalyze.errors import KanalyzeError  # noqa: PLC0415
    from support.command import run  # noqa: PLC0415

    failures = []
    with tempfile.TemporaryDirectory() as folder:
        places = {"{}": str(path), "{place}": f"{folder}/redacted{''.join(path.suffixes[-2:])}"}
        for line in COMMANDS:
            try:
                ran = run(*(places.get(word, word) for word in line.split()))
                broken = ran.status not in STATUSES or "Traceback" in ran.said or "panicked" in ran.said
                failures += [f"{line}: status {ran.status}: {ran.said[-400:]}"] * broken
            except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
                failures.append(f"{line}: {traceback.format_exc()[-600:]}")
    try:
        report = kanalyze.read(path)
    except KanalyzeError as error:
        return {"failures": failures, "ran": len(COMMANDS), "refused": str(error)}
    tables = [(name, by) for name in catalog.names() for by in (None, *catalog.table(name).groupings)]
    for name, by in tables:
        try:
            catalog.make(report, name, **({} if by is None else {"by": by}))
        except KanalyzeError:
            continue
        except Exception:  # noqa: BLE001 - as above
            failures.append(f"{name} {by or ''}: {traceback.format_exc()[-600:]}")
    return {"failures": failures, "ran": len(COMMANDS) + len(tables), "figures": figures_of(report)}


def figures_of(report):
    """The same of an open report as figures.py tells of its file."""
    import polars as pl  # noqa: PLC0415

    import kanalyze  # noqa: PLC0415
    from kanalyze.errors import KanalyzeError  # noqa: PLC0415

    sums = {}
    for kind, name in (("kernel", "kernel"), ("memcpy", "copy"), ("memset", "set")):
        lengths = report.kind(kind).get_column("dur_ns")
        sums |= {f"{name}_count": len(lengths), f"{name}_ns": int(lengths.sum())}
    try:
        ledger = kanalyze.ledger(report)
    except KanalyzeError:
        return sums | {"busy_ns": {}}
    busy = ledger.filter(pl.col("bucket").cast(pl.String).is_in(["kernel", "communication", "memcpy", "memset"]))
    by_device = busy.group_by("device").agg(pl.col("ns").sum()).sort("device")
    return sums | {"busy_ns": {str(device): ns for device, ns in by_device.iter_rows()}}


def verdict(expected, result):
    wrong = list(result["failures"])
    if expected == REFUSED:
        return wrong if "refused" in result else [*wrong, "is read, and should be refused"]
    if "refused" in result:
        return [*wrong, f"refused: {result['refused']}"]
    told = json.loads(expected) if expected != NO_FIGURES else {}
    given = result["figures"]
    if "busy_ns" in told and not any(told["busy_ns"].values()):
        told = told | {"busy_ns": given["busy_ns"]}  # nothing ran: no ledger, or one without time
    differing = [(name, value) for name, value in told.items() if given[name] != value]
    return [*wrong, *(f"{name}: {given[name]} instead of {value}" for name, value in differing)]


def one(path):
    """The result of a file, from a process of its own that may take :data:`LONGEST_S`, and has a cache of its own."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "COLUMNS": "100"}
        command = [sys.executable, __file__, "--worker", str(path)]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=LONGEST_S, env=environment, check=False
            )
            broken = f"ended with {ended.returncode}: {ended.stderr[-600:]}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            broken = f"took more than {LONGEST_S} s"
    seconds = time.monotonic() - begin
    if broken:
        return {"failures": [broken], "ran": 0, "refused": broken, "seconds": seconds}
    return {**json.loads(ended.stdout.splitlines()[-1]), "seconds": seconds}


def by_digest(folder, wanted):
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest in wanted:
            found[digest] = path
    return found


def rows_of(table):
    """The rows of a table of tabs: list.tsv, or an index."""
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def record(index):
    """Write list.tsv from the index of a folder; what is expected comes from figures.py alone."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the files are")
    parser.add_argument("--jobs", type=int, default=1, help="files at once")
    parser.add_argument("--only", default="", help="files whose repository or path holds this")
    parser.add_argument("--record", type=Path, help="write list.tsv from this index")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(check(given.worker)))
        return 0
    if given.record:
        record(given.record)
        return 0
    rows = [row for row in rows_of(LIST) if given.only in f"{row['repository']}/{row['path']}"]
    files = by_digest(given.folder, {row["sha256"] for row in rows})
    here = [(row, files[row["sha256"]]) for row in rows if row["sha256"] in files]
    broken = ran = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for (row, path), result in zip(here, pool.map(one, [path for _, path in here]), strict=True):
            wrong = verdict(row["expected"], result)
            ran, broken = ran + result["ran"], broken + bool(wrong)
            word = "WRONG" if wrong else "ok"
            print(f"{word:5} {result['seconds']:6.1f} s {result['ran']:4} {path.name}", flush=True)
            for text in wrong:
                print("      " + text.replace("\n", "\n      "))
    print(
        f"{len(here)} of {len(rows)} files of {len({row['repository'] for row, _ in here})} repositories: "
        f"{ran} commands and tables, {broken} files wrong, {len(rows) - len(here)} not there"
    )
    return 1 if broken or not here else 0


if __name__ == "__main__":
    sys.exit(main())
