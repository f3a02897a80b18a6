"""Times putting a job of many ranks together: `python benchmarks/run_ranks.py 8 64 1000`.

For each number of ranks a job is made up (tests/support/synthetic_job.py) with 5,000 collectives on each rank, and the
reductions are written as `kanalyze reduce` would. A new process reads them one after the other, puts the job together
and makes the tables that its page needs. What is printed is its CPU time, by what it did, and the most memory that it
took. A table of the collectives of all ranks is printed only by `--rows`, which makes it too.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import polars as pl

from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._late_ranks import late_ranks
from kanalyze.reduction import TABLES, Reduction
from support.synthetic_job import DATA_PARALLEL_OPS, MIXED_OPS, Plan, Straggler, play

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Collectives of each rank.
COLLECTIVES = 5_000

#: Ranks of a host.
OF_HOST = 8

#: What a page reads.
READ = ("ranks", "rank_steps", "collective_summary", "clocks")

BYTES_PER_MB = 1_000_000


def main() -> None:
    """Times each number of ranks in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="*", default=[8, 32, 125, 500, 1000])
    parser.add_argument("--recorded", default="order", choices=["id", "seq", "order"])
    parser.add_argument("--mixed", action="store_true", help="tensor and data parallel groups and pairs")
    parser.add_argument("--rows", action="store_true", help="make the table of collectives as well")
    parser.add_argument("--combine", type=Path, help="only put the job of this folder together")
    given = parser.parse_args()
    if given.combine is not None:
        combine(given.combine, rows=given.rows)
        return
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), ranks, given.recorded, mixed=given.mixed)
            command = [sys.executable, __file__, "--combine", folder, *(["--rows"] if given.rows else [])]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"| {ranks:,} {ran.stdout.strip()}", flush=True)


def write(folder: Path, ranks: int, recorded: str, *, mixed: bool) -> None:
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
        own = folder / f"{rank:05}"
        own.mkdir()
        for name, table in one.tables():
            table.write_parquet(own / f"{name}.parquet", compression="lz4")


def read(folder: Path) -> Iterator[Reduction]:
    """The reductions in a folder, one after the other."""
    for own in sorted(folder.iterdir()):
        yield Reduction(**{name: pl.read_parquet(own / f"{name}.parquet") for name in [*TABLES]})


def combine(folder: Path, *, rows: bool) -> None:
    """Puts a job together, and prints what that took."""
    started = time.process_time()
    for _ in read(folder):
        pass
    times = [time.process_time() - started]
    before = time.process_time()
    job = job_of(read(folder))
    times.append(time.process_time() - before - times[0])
    before = time.process_time()
    for name in READ:
        job.table(name)
    late = late_ranks(job)
    times.append(time.process_time() - before)
    if rows:
        before = time.process_time()
        job.table("collectives")
        times.append(time.process_time() - before)
    if not late:
        raise SystemExit("the straggler was not found")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / BYTES_PER_MB
    unmatched = job.rows.get_column("match").null_count()
    columns = [f"{job.rows.height:,}", *(f"{one:.1f} s" for one in times), f"{sum(times):.1f} s", f"{peak:,.0f} MB"]
    print(" | ".join(["", *columns, f"{unmatched:,}", ""]).strip())


if __name__ == "__main__":
    main()
