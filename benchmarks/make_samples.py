"""Makes an nsys report with many CPU samples of a real one: each recorded sample again and again, until the next one.

    python benchmarks/make_samples.py tests/reports/sampled_host.sqlite big.sqlite --samples 100000000 --depth 2

All else stays that of the real report, so that host time by function has the same shares.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

#: Numbers from 0 to below :many.
_NUMBERS = "WITH RECURSIVE n(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k + 1 < :many)"


def main() -> None:
    """Make the report that the command line asks for, and say what is in it."""
    parser = argparse.ArgumentParser(description="Make an nsys report with many CPU samples of a real one.")
    parser.add_argument("report", type=Path, help="the real one: an .sqlite file of nsys with CPU samples")
    parser.add_argument("out", type=Path, help="the file to write; replaced if it is there")
    parser.add_argument("--samples", type=int, default=20_000_000, help="how many, about (default: 20,000,000)")
    parser.add_argument("--depth", type=int, default=1 << 20, help="functions of a stack, the innermost (default: all)")
    options = parser.parse_args()
    shutil.copyfile(options.report, options.out)
    with closing(sqlite3.connect(options.out, isolation_level=None)) as connection:
        for statement in ("PRAGMA journal_mode = off", "PRAGMA synchronous = off", "BEGIN"):
            connection.execute(statement)
        repeat(connection, options.samples, options.depth)
        connection.execute("COMMIT")
        for table in ("COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"):
            print(f"{connection.execute(f'SELECT max(rowid) FROM {table}').fetchone()[0]:>13,}  {table}")
    print(f"{options.out.stat().st_size:>13,}  bytes")


def repeat(connection: sqlite3.Connection, wanted: int, depth: int) -> None:
    """Write the samples and their stacks anew, in the order of time; stacks without nsys' index."""
    connection.execute("CREATE TEMP TABLE samples AS SELECT * FROM COMPOSITE_EVENTS ORDER BY start")
    connection.execute("CREATE TEMP TABLE frames AS SELECT * FROM SAMPLING_CALLCHAINS WHERE stackDepth < ?", (depth,))
    connection.execute("CREATE INDEX temp.of_sample ON frames (id)")
    connection.execute("DELETE FROM COMPOSITE_EVENTS")
    connection.execute("DROP TABLE SAMPLING_CALLCHAINS")
    connection.execute("CREATE TABLE SAMPLING_CALLCHAINS AS SELECT * FROM frames LIMIT 0")
    known = connection.execute("SELECT id, start FROM samples").fetchall()
    ends = [start for _, start in known[1:]] + [known[-1][1] + 1]
    many = max(wanted // len(known), 1)
    for place, ((sample, start), end) in enumerate(zip(known, ends, strict=True)):
        values = {"many": many, "sample": sample, "first": 1 + place * many, "length": end - start}
        connection.execute(
            f"{_NUMBERS} INSERT INTO COMPOSITE_EVENTS SELECT :first + k, start + k * :length / :many, cpu, "
            "threadState, globalTid, cpuCycles FROM n CROSS JOIN samples WHERE id = :sample",
            values,
        )
        connection.execute(
            f"{_NUMBERS} INSERT INTO SAMPLING_CALLCHAINS SELECT :first + k, symbol, module, kernelMode, "
            "thumbCode, unresolved, specialEntry, originalIP, unwindMethod, stackDepth "
            "FROM n CROSS JOIN frames WHERE id = :sample",
            values,
        )


if __name__ == "__main__":
    main()
