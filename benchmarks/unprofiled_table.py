"""Recordings without their profiler against the machine: a table of docs/whatif.md.

FOLDER has times.json, what a step of each program takes without a profiler (ms, by name), and a folder of each with
nsys.sqlite and torch.json.gz, as `kanalyze collect --with nsys,torch` writes them.

Run: python benchmarks/unprofiled_table.py FOLDER
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import polars as pl

import kanalyze
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.replay._host_time import (
    NEAR,
    fitted,
)
from kanalyze.analyses.replay._unprofiled import estimated, unprofiled
from kanalyze.analyses.replay._whatif import window_without

FILES = {"nsys": "nsys.sqlite", "torch": "torch.json.gz"}
BUSY = ("kernel", "communication", "memcpy", "memset")


class Row(NamedTuple):
    """What one recording tells of a step (ms), and shares of the corrected step."""

    recorded: float
    corrected: float
    kept: float
    shares: dict[str, float]
    least: float
    most: float


def row(path: Path, bare_ms: float) -> Row | None:
    """A recording, corrected by what a step takes; None where nothing repeats."""
    with kanalyze.read(path) as report:
        steady = steady_part(report)
        if steady is None:
            return None
        each = steady.number * 1e6
        took = cache(window_without(report.narrow(window=steady.window)))
        host = fitted(took, bare_ms * each, NEAR)
        new = unprofiled(report, host, steady.window)
        part = steady_part(new) or steady
        ledger = kanalyze.ledger(new, window=part.window).group_by("bucket").agg(pl.col("ns").sum() / part.ns)
        by_bucket = {str(bucket): share for bucket, share in ledger.iter_rows()}
        shares = {name: by_bucket.get(name, 0.0) for name in ("host", "launch")}
        shares["busy"] = sum(by_bucket.get(name, 0.0) for name in BUSY)
        told = estimated(report.narrow(window=steady.window), steady, 1 << 20)
        bounds = (told.least_ns / 1e6, told.most_ns / 1e6) if told else (0.0, 0.0)
        return Row(steady.ns / each, part.ns / part.number / 1e6, host.usual.kept, shares, *bounds)


def main() -> int:
    """Prints the table, and how often the estimates hold what was measured."""
    folder = Path(sys.argv[1])
    times = json.loads((folder / "times.json").read_text())
    columns = ("recorded", "kept", "corrected", "GPU, host, launch (%)", "estimate")
    heads = [f"{tool}: {what}" for tool in FILES for what in columns]
    print(f"| {' | '.join(['program', 'bare', *heads])} |\n| {' | '.join(['---'] * (2 + len(heads)))} |")
    held: dict[str, list[bool]] = {tool: [] for tool in FILES}
    for name, bare_ms in times.items():
        cells = [name, f"{bare_ms:.3g}"]
        for tool, file in FILES.items():
            path = folder / name / file
            found = row(path, bare_ms) if path.exists() else None
            if found is None:
                cells += [""] * 5
                continue
            shares = ", ".join(f"{100 * found.shares[one]:.0f}" for one in ("busy", "host", "launch"))
            estimate = f"{found.least:.3g} to {found.most:.3g}"
            cells += [f"{found.recorded:.3g}", f"{100 * found.kept:.0f} %", f"{found.corrected:.3g}", shares, estimate]
            held[tool].append(found.least <= bare_ms <= found.most)
        print(f"| {' | '.join(cells)} |", flush=True)
    for tool, one in held.items():
        print(f"\n{tool}: {sum(one)} of {len(one)} estimates hold what was measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
