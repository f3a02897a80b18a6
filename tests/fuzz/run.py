"""Damages reports by the thousand and counts what becomes of them: `python tests/fuzz/run.py --cases 100000`.

Every case runs in a worker process with a limit of memory; a worker that takes too long for one, or that ends by
itself, is replaced, and that is the outcome of the case.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.cases import SEEDS, cases  # noqa: E402 - the path comes first

#: Not from outcomes.py: this process needs neither polars nor kanalyze.
OUTCOMES = ("error", "same", "word", "silent", "traceback", "hang", "abort")

#: No case takes a second of CPU time. A machine may have other work: a worker that waits for its turn is not hung,
#: unless it has been silent for far longer.
HANG_S = 60
SILENT_S = 900

#: What a worker may map, and what each case may not need.
MEMORY_BYTES = 12 << 30


@dataclass
class Found:
    """What became of all cases so far: outcomes by format and kind of damage, and what must not be."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    silent: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, form, damage, number, outcome, why):
        self.counts[form, damage, outcome] += 1
        if outcome in ("traceback", "hang", "abort"):
            self.bad.append(f"{form} | {damage} | {number} | {outcome} | {why}")
        if outcome == "silent":
            self.silent[form, damage, why] += 1


def run(form, first, count, found):
    """Let `count` cases of a format, the first of which is number `first`, run in workers."""
    planned = list(islice(cases(form, first), count))
    done = 0
    while done < len(planned):
        with _start(form, planned[done].number, len(planned) - done) as worker:
            while done < len(planned):
                told = _told(worker)
                found.add(form, planned[done].damage, planned[done].number, *told)
                done += 1
                if told[0] in ("hang", "abort"):
                    break
            worker.kill()


def _start(form, first, count):
    command = [sys.executable, __file__, "--worker", form, str(first), str(count)]
    environment = os.environ | {"POLARS_MAX_THREADS": "1", "PYTHONUTF8": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)  # noqa: S603 - this very file


def _told(worker):
    """What became of the worker's next case; or of the worker, where it ended or says nothing for too long."""
    assert worker.stdout is not None
    begun, used_s = time.monotonic(), _cpu_s(worker.pid)
    while not select.select([worker.stdout], [], [], HANG_S)[0]:
        busy_s, silent_s = _cpu_s(worker.pid) - used_s, time.monotonic() - begun
        if max(busy_s, silent_s * HANG_S / SILENT_S) >= HANG_S:
            return "hang", f"nothing for {silent_s:.0f} s, {busy_s:.0f} s of them at work"
    line = worker.stdout.readline()
    if not line.endswith(b"\n"):
        return "abort", f"status {worker.wait()}"
    outcome, why = json.loads(line)
    return outcome, why


def _cpu_s(process):
    """CPU time of a process; without /proc, that of the clock."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def work(form, first, count):
    """What a worker does: each case in turn, a line of JSON about each."""
    import resource  # noqa: PLC0415 - in workers only

    from fuzz.outcomes import outcome  # noqa: PLC0415 - in workers only

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for case in islice(cases(form, first), count):
        with tempfile.TemporaryDirectory(prefix="kanalyze-fuzz-") as folder:
            print(json.dumps(outcome(case.write(Path(folder)), case.seed)), file=out)


def table(found, *, by_damage=False):
    """The outcomes as a table of Markdown, a row for each format, or for each kind of damage to it."""
    keys = sorted({(form, damage if by_damage else "") for form, damage, _ in found.counts})
    lines = [f"| format | {'damage | ' if by_damage else ''}cases | {' | '.join(OUTCOMES)} |"]
    lines.append("|" + " --- |" * (lines[0].count("|") - 1))
    for form, damage in keys:
        row = Counter[str]()
        for (of, how, outcome), count in found.counts.items():
            if of == form and (not by_damage or how == damage):
                row[outcome] += count
        cells = [form, *([damage] if by_damage else []), f"{row.total():,}", *(f"{row[name]:,}" for name in OUTCOMES)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="in all")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each format")
    parser.add_argument("--formats", nargs="*", default=list(SEEDS), choices=list(SEEDS))
    parser.add_argument("--by-damage", action="store_true", help="a row for each kind of damage")
    parser.add_argument("--worker", nargs=3, metavar=("FORMAT", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        form, first, count = options.worker
        work(form, int(first), int(count))
        return
    found, rest = Found(), options.cases
    for index, form in enumerate(options.formats):
        share = rest // (len(options.formats) - index)
        rest -= share
        run(form, options.first, share, found)
        print(table(found, by_damage=options.by_damage), *found.bad, sep="\n", flush=True)
    for (form, damage, why), count in found.silent.most_common(40):
        print(f"silent {count}: {form} | {damage} | {why}")
    sys.exit(1 if found.bad else 0)


if __name__ == "__main__":
    main()
