"""Measured against predicted: the tables of docs/whatif.md, from times and recordings of the programs in this folder.

FOLDER has times.jsonl, what `whatif all measure` or `whatif_training.py time` prints, and recordings of each program as
it is: SCENARIO.sqlite of nsys, SCENARIO.json.gz of torch.profiler.

Run: python benchmarks/whatif_table.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import kanalyze
from kanalyze.errors import KanalyzeError

CLOSE, MODEST = 0.03, 0.05
MINUS = "\N{MINUS SIGN}"

#: How recordings of a scenario end.
ENDINGS = {"nsys": ".sqlite", "trace": ".json.gz"}

#: What the programs are.
TITLES = {
    "device": "the device is the limit",
    "host": "the host is the limit",
    "blocking": "`cudaMemcpy` each step",
    "streams": "two streams, events",
    "launches": "100 kernels of 1.5 µs, a wait",
    "graph": "a CUDA graph of 40 kernels",
    "copies": "copies on a stream of their own",
    "threads": "two threads take turns",
    "ahead": "the host runs ahead",
    "item": "the host waits in `.item()`",
    "upload": "32 MB from pageable memory each step",
    "uploaditem": "8 MB from pageable memory, and `.item()`",
    "download": "16 MB to pageable memory each step",
    "late": "2 ranks, one is late",
    "slow": "2 ranks, kernels of one are slower",
}


class Timed(NamedTuple):
    """A variant's times of an iteration, µs: the median of the blocks, and the middle half of them."""

    median: float
    low: float
    high: float


class Row(NamedTuple):
    """A change: what was measured, and of each recording what was predicted with its bounds (µs an iteration)."""

    scenario: str
    change: str
    timed: Timed
    predicted: dict[str, tuple[float, float, float, float]]


def times(folder: Path, name: str) -> dict[tuple[str, str], Timed]:
    """The variants of each scenario, in the order of the file; the first line of each counts."""
    found: dict[tuple[str, str], Timed] = {}
    for line in (folder / name).read_text().splitlines():
        row = json.loads(line)
        if "us" in row:
            low, middle, high = statistics.quantiles(row["us"], n=4) if len(row["us"]) > 1 else row["us"] * 3
        else:
            low, middle, high = row["low_us"], row["median_us"], row["high_us"]
        found.setdefault((row["scenario"], row["arguments"]), Timed(middle, low, high))
    return found


def options(change: str) -> dict[str, Any]:
    """The options of the command as arguments of :func:`kanalyze.whatif`."""
    faster: dict[str, float] = {}
    without: list[str] = []
    words = iter(change.split())
    given: dict[str, Any] = {"faster": faster, "without": without}
    for word in words:
        if word == "--faster":
            name, factor = next(words).rsplit("=", 1)
            faster[name] = float(factor)
        elif word == "--without":
            without.append(next(words))
        else:
            given[word.removeprefix("--")] = True
    return given


def predicted(path: Path, change: str, measured_us: float) -> tuple[float, float, float, float] | None:
    """Then, low, high and by Amdahl's law (µs an iteration); None where the report has nothing of the kind."""
    with kanalyze.read(path) as report:
        try:
            found = kanalyze.whatif(report, measured=f"{measured_us}us", window="steady", **options(change))
        except KanalyzeError as error:
            print(path.name, change, error, file=sys.stderr)
            return None
    each = 1000 * (found.iterations or 1)
    return tuple(ns / each for ns in (found.then_ns, found.low_ns, found.high_ns, found.amdahl_ns))


def rows(folder: Path, name: str) -> list[Row]:
    """All changes of which there is a recording."""
    known = times(folder, name)
    found = []
    for (scenario, change), timed in known.items():
        base = known[scenario, ""].median
        paths = {kind: folder / f"{scenario}{end}" for kind, end in ENDINGS.items()}
        told = {kind: predicted(path, change, base) for kind, path in paths.items() if path.exists()}
        found.append(Row(scenario, change, timed, {kind: one for kind, one in told.items() if one}))
    return found


def table(rows: list[Row], kinds: list[str]) -> None:
    """The table in Markdown."""
    alone = len(kinds) == 1
    heads = ["program", "change", "measured (spread)"]
    for kind in kinds:
        heads += ["predicted" if alone else kind, "off", "bounds"]
    print(f"| {' | '.join([*heads, 'by Amdahl'])} |\n| {' | '.join(['---'] * (len(heads) + 1))} |")
    before = ""
    for row in rows:
        title = "" if row.scenario == before else TITLES.get(row.scenario, row.scenario)
        before = row.scenario
        middle, low, high = row.timed
        cells = [
            title,
            f"`{row.change}`" if row.change else "(as it is)",
            f"{middle:,.0f} ({(high - low) / middle * 100:.1f} %)",
        ]
        for kind in kinds:
            one = row.predicted.get(kind)
            cells += ["", "", ""] if one is None else _cells(middle, one)
        first = next(iter(row.predicted.values()), None)
        cells.append(_percent(first[3] / middle - 1) if first and row.change else "")
        print(f"| {' | '.join(cells)} |")


def _cells(middle: float, one: tuple[float, float, float, float]) -> list[str]:
    then, least, most, _ = one
    return [f"{then:,.0f}", _percent(then / middle - 1), f"{least:,.0f} to {most:,.0f}"]


def _percent(share: float) -> str:
    told = f"{share:+.1%}".replace("%", " %")
    return "0.0 %" if told in {"+0.0 %", "-0.0 %"} else told.replace("-", MINUS)


def counts(rows: list[Row], kind: str) -> str:
    """How many predictions are close, and how many measured times within what was told."""
    known = [(row.timed.median, row.predicted[kind]) for row in rows if row.change and kind in row.predicted]
    off = [abs(one[0] / middle - 1) for middle, one in known]
    by_law = [abs(one[3] / middle - 1) for middle, one in known]
    within = {
        share: sum(one[1] * (1 - share) <= middle <= one[2] * (1 + share) for middle, one in known)
        for share in (0, 0.01, CLOSE)
    }
    close, modest, law = (sum(x <= most for x in y) for y, most in ((off, CLOSE), (off, MODEST), (by_law, CLOSE)))
    return (
        f"{kind}: of {len(known)} changes {close} within 3 %, {modest} within 5 %, by Amdahl {law} within 3 %; "
        f"within the bounds {within[0]}, {within[0.01]} but for 1 %, {within[CLOSE]} but for 3 %"
    )


def main() -> int:
    """Prints them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", default="times.jsonl")
    args = parser.parse_args()
    found = rows(args.folder, args.times)
    kinds = [kind for kind in ENDINGS if any(kind in row.predicted for row in found)]
    table(found, kinds)
    for kind in kinds:
        print(f"\n{counts(found, kind)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
