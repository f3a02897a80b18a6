"""Times the page of a job of many ranks: `python benchmarks/run_ranks.py 8 64 1000`.

For each number of ranks a job is made up (tests/support/synthetic_job.py) with 5,000 collectives on each rank, and its
reductions are written as `kanalyze reduce` would. `kanalyze ranks` of their folder is then run in a new process; its
wall time, its CPU time, the most memory that it took, and the collectives that were not matched are printed. `--rows`
does the same with `kanalyze show collectives`, written as Parquet.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kanalyze.reduction.tables import Origin, packed, write
from support.synthetic_job import DATA_PARALLEL_OPS, MIXED_OPS, Plan, Straggler, play

#: Collectives of each rank.
COLLECTIVES = 5_000

#: Ranks of a host.
OF_HOST = 8

BYTES_PER_MB = 1_000_000


def main() -> None:
    """Times each number of ranks in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="*", default=[8, 32, 125, 500, 1000])
    parser.add_argument("--recorded", default="order", choices=["id", "seq", "order"])
    parser.add_argument("--mixed", action="store_true", help="tensor and data parallel groups and pairs")
    parser.add_argument("--rows", action="store_true", help="time the table of all collectives instead of the page")
    given = parser.parse_args()
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), ranks, given.recorded, mixed=given.mixed)
            told = table(Path(folder)) if given.rows else page(Path(folder))
        print(f"| {ranks:,} | {told} |", flush=True)


def make(folder: Path, ranks: int, recorded: str, *, mixed: bool) -> None:
    """Makes a job up, and writes the reduction of each rank."""
    ops = MIXED_OPS if mixed else DATA_PARALLEL_OPS
    plan = Plan(
        ranks=ranks,
        hosts=-(-ranks // OF_HOST),
        tp=math.gcd(ranks, OF_HOST),
        steps=COLLECTIVES // len(ops),
        ops=ops,
        stragglers=(Straggler(ranks // 2, 100, 120, 4_000_000, "host"),),
        recorded=recorded,
    )
    for rank, one in enumerate(play(plan).reductions()):
        write(packed(one, Origin(f"/made/rank{rank}.json", "made", 0, 0, f"{rank:016x}")), folder)


def page(folder: Path) -> str:
    """The page of a job: what it took, and how many collectives were not matched."""
    took, page = timed(["ranks", str(folder)])
    told = " ".join(page.decode().split())
    if "LATE RANKS" not in told:
        raise SystemExit("the straggler was not found")
    alone = re.search(r"collectives without a partner: ([\d,]+)", told)
    return f"{took} | {alone[1] if alone else 0}"


def table(folder: Path) -> str:
    """The table of all collectives, written as Parquet: what it took."""
    took, _ = timed(
        ["show", "collectives", str(folder), "-o", str(folder / "collectives.parquet"), "--format", "parquet"]
    )
    return took


def timed(arguments: list[str]) -> tuple[str, bytes]:
    """Wall time, CPU time and peak memory of a command, and what it printed."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([sys.executable, "-m", "kanalyze", *arguments], stdout=out)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        if status:
            raise SystemExit(f"kanalyze {arguments[0]} failed")
        out.seek(0)
        told = out.read()
    peak = used.ru_maxrss * 1024 / BYTES_PER_MB
    return f"{wall:.1f} s | {used.ru_utime + used.ru_stime:.1f} s | {peak:,.0f} MB", told


if __name__ == "__main__":
    main()
