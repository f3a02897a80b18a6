"""Changes single lines of the package, and says how many of the changes no test fails on.

In a checkout of its own, where nobody edits; with Python 3.12 or later and what `.[test]` installs:

    SEEN_LINES=seen.json PYTHONPATH=tests/mutation pytest -p seen_lines --hypothesis-profile=seen
    python tests/mutation/mutate.py --seen seen.json --count 100 --seed 1 --results results.jsonl

The first tells which files of tests run which lines. The second makes as many mutants of each room as it is told, at
random, and runs for each the tests that run its line, the quickest first, until one fails. It prints a table, and
every mutant that survived; what was tried before with the same results is not tried again. A mutant that no test can
tell from the program stands in equivalent.txt, with the reason.
"""

import argparse
import ast
import json
import random
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import accumulate
from math import inf
from pathlib import Path

from mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
ROOMS = {"analyses": "analyzer/analyses", "readers": "analyzer/readers", "collectors": "collectors"}
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
_PATIENCE_S = 900


def executed(seen: dict, folder: str) -> list[tuple[Mutant, list[str]]]:
    """The mutants of lines of a room that tests run, each with the files of these tests, the quickest first."""
    found = []
    for path, by in sorted(seen["lines"].items()):
        if path.startswith(f"{folder}/"):
            for one in mutants(path, (ROOT / path).read_bytes()):
                tests = [test for test, lines in by.items() if one.line in lines]
                # a line of the module itself runs once, when it is imported
                tests = sorted(by, key=lambda test: -len(by[test])) if one.line in _top(path) and tests else tests
                if tests:
                    found.append((one, sorted(tests, key=partial(_order, seen["seconds"], path))))
    return found


def _order(seconds: dict[str, float], path: str, test: str) -> tuple[bool, float]:
    """The tests that are called as the module first, then the quickest."""
    return Path(path).stem.strip("_") not in test, seconds.get(test, 0.0)


def within(tests: list[str], seconds: dict[str, float], most_s: float) -> list[str]:
    """The first of the `tests`, which take no longer together; at least one."""
    ends = accumulate(seconds.get(test, 0.0) for test in tests)
    return [test for number, (test, end) in enumerate(zip(tests, ends, strict=True)) if end <= most_s or not number]


_tops: dict[str, set[int]] = {}


def _top(path: str) -> set[int]:
    """The lines of a module that are in no function."""
    if path not in _tops:
        tree = ast.parse((ROOT / path).read_bytes())
        inner = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.Lambda)
            for line in range(
                node.body[0].lineno if isinstance(node, ast.FunctionDef) else node.lineno, node.end_lineno + 1
            )
        }
        _tops[path] = set(range(1, (ROOT / path).read_bytes().count(b"\n") + 2)) - inner
    return _tops[path]


def outcome(one: Mutant, tests: list[str]) -> tuple[str, str]:
    """`killed` if a test fails on the mutant, or runs without an end, else `survived`; and what killed it."""
    file = ROOT / one.path
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[: one.start] + one.text.encode() + whole[one.end :])
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            *_OPTIONS,
            *tests,
        ]
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, timeout=_PATIENCE_S, check=False, encoding="utf-8", errors="replace"
        )
    except subprocess.TimeoutExpired:
        return "killed", f"no end within {_PATIENCE_S} s"
    finally:
        file.write_bytes(whole)
    if ran.returncode == 0:
        return "survived", ""
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "killed", failed[0] if failed else f"status {ran.returncode}"


_OPTIONS = (
    "--import-mode=importlib",
    "-m",
    "not slow",
    "--hypothesis-profile=mutants",
    "-o",
    "timeout=0",
    "-W",
    "ignore::pytest.PytestCacheWarning",
)


def main() -> None:
    """Try mutants, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=inf, help="of tests for each; a survivor may be none")
    parser.add_argument("--room", choices=ROOMS, action="append")
    asked = parser.parse_args()
    seen = json.loads(asked.seen.read_text())
    rows = map(json.loads, asked.results.read_text().splitlines()) if asked.results.exists() else ()
    known = {(row["name"], row["line"]): row["outcome"] for row in rows}
    same = {line.partition("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    table = {}
    for room in asked.room or ROOMS:
        every = executed(seen, ROOMS[room])
        chosen = random.Random(asked.seed).sample(every, min(asked.count, len(every)))  # noqa: S311 - seeded, and no secret
        table[room] = Counter()
        for one, tests in chosen:
            ended = "equivalent" if one.name in same else known.get((one.name, one.line))
            if ended is None:
                ended, by = outcome(one, within(tests, seen["seconds"], asked.most_seconds))
                row = {"name": one.name, "line": one.line, "kind": one.kind, "outcome": ended, "by": by}
                with asked.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            table[room][ended] += 1
            if ended == "survived":
                print(f"{one.path}:{one.line}: {one.old} → {one.new}", flush=True)
    print("\n| room | mutants | killed | survived | equivalent | killed of those that are not |")
    print("| --- | --- | --- | --- | --- | --- |")
    for room, counts in table.items():
        told = counts["killed"] + counts["survived"]
        share = f"{counts['killed'] / told:.0%}" if told else "-"
        figures = (counts.total(), counts["killed"], counts["survived"], counts["equivalent"], share)
        print(f"| {room} | {' | '.join(map(str, figures))} |")


if __name__ == "__main__":
    main()
