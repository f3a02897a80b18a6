"""Changes single lines of the package, and says how many of the changes no test fails on.

In a checkout of its own, where nobody edits; the first with Python 3.12 or later and what `.[test]` installs:

    SEEN_LINES=seen PYTHONPATH=tests/mutation pytest -p seen_lines -n 2 -W ignore::ResourceWarning -o timeout=0
    python tests/mutation/mutate.py --seen seen --results results.jsonl --count 100 --seed 1

The first notes which test runs which lines, in the folder `seen`: quick ones, with `-m slow` the slow ones; run for
further tests, it adds them. The second
draws mutants from all lines of the package, or of the files that `--only` names, and runs for each the tests that run
its line, those of its own file and the quickest first, then others of their files, until one fails; no longer than
`--most-seconds`. A line that no test runs has survived. It prints every mutant that survived, and a table. What was
tried before with the same results is not tried again, but for survivors with `--again`: the table has both what the
tests killed at first, and now. A mutant that no test can tell from the program stands in equivalent.txt, with the
reason.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from mutants import mutants

ROOT = Path(__file__).parents[2]
ROOMS = {
    "analyses": "analyzer/analyses/", "readers": "analyzer/readers/", "renderers": "analyzer/renderers/",
    "cli": "analyzer/cli/", "collectors": "collectors/", "others": "analyzer/",
}  # fmt: skip
EQUIVALENT = Path(__file__).with_name("equivalent.txt")

#: How long the tests of a mutant may run: one that has no end by then fails, as it would by its own limit.
_PATIENCE_S = 900

#: The tests that are run first, for most fail.
_FIRST = 25


class Seen(NamedTuple):
    """What was noted: by file of the package the lines of each test as bits, and how long each test took."""

    lines: dict[str, dict[str, int]]
    seconds: dict[str, float]


def seen_in(folder):
    """What all processes noted; tests that failed are left out."""
    lines, seconds = defaultdict(lambda: defaultdict(int)), {}
    for file in folder.glob("*.txt"):
        test = ""
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("= "):
                test, *told = line.removeprefix("= ").split("\t")
                if told and told[1] == "passed":
                    seconds[test] = float(told[0])
            else:
                path, bits = line.split(" ")
                lines[path][test] |= int(bits, 16)
    known = {path: {one: bits for one, bits in by.items() if one in seconds} for path, by in lines.items()}
    return Seen(known, seconds)


class Uses:
    """Where names of the package are read: what a line of a module itself sets is seen by the functions that do."""

    def __init__(self):
        self._lines = defaultdict(list)
        self._sets = {}
        for path in files():
            self._read(path, ast.parse((ROOT / path).read_bytes()))

    def _read(self, path, tree):
        inner, sets = set(), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner.update(range(node.body[0].lineno, node.end_lineno + 1))
        for statement in tree.body:
            names = {node.id for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)
                     and isinstance(node, ast.Name)} | {getattr(statement, "name", "")} - {""}  # fmt: skip
            sets |= {line: frozenset(names) for line in range(statement.lineno, statement.end_lineno + 1)}
        self._sets[path] = {line: names for line, names in sets.items() if line not in inner}
        for node in ast.walk(tree):
            name = getattr(node, "attr", getattr(node, "id", None))
            if name and not isinstance(getattr(node, "ctx", None), ast.Store):
                own = self._sets[path].get(node.lineno, frozenset())
                self._lines[name].append((path, node.lineno, own))

    def of(self, path, line):
        """The lines in functions that read what is set at a line; that line itself where it is in a function."""
        if line not in self._sets[path]:
            return {(path, line)}
        found, todo, done = set(), [*self._sets[path][line]], set()
        while todo:
            name = todo.pop()
            done.add(name)
            for used, at, own in self._lines[name]:
                if at not in self._sets[used]:
                    found.add((used, at))
                todo += own - done
        return found


def files():
    rooms = [ROOT / "analyzer", ROOT / "collectors"]
    return sorted(str(path.relative_to(ROOT)) for room in rooms for path in room.rglob("*.py"))


def tests_of(one, seen, uses, most_s):
    """The tests that run a mutant's line, the likeliest first, then others of their files."""
    bits = defaultdict(int)
    for path, line in uses.of(one.path, one.line):
        bits[path] |= 1 << line
    run = {test for path, wanted in bits.items() for test, own in seen.lines.get(path, {}).items() if own & wanted}
    beside = {test.partition("::")[0] for test in run}
    rest = {test for test in seen.seconds if test.partition("::")[0] in beside} - run
    return within([*in_order(one, run, seen), *in_order(one, rest, seen)], seen.seconds, most_s)


def in_order(one, tests, seen):
    """Tests of files that are called as the module first, then the quickest."""
    stem = Path(one.path).stem.strip("_")
    return sorted(tests, key=lambda test: (stem not in test.partition("::")[0], seen.seconds[test], test))


def within(tests, seconds, most_s):
    """The first of the `tests`, which take no longer together; at least one."""
    ends = accumulate(seconds[test] for test in tests)
    return [test for number, (test, end) in enumerate(zip(tests, ends, strict=True)) if end <= most_s or not number]


def outcome(one, tests):
    """`killed` if a test fails on the mutant, or runs without an end, else `survived`; and what killed it."""
    file = ROOT / one.path
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[: one.start] + one.text.encode() + whole[one.end :])
        for part in (tests[:_FIRST], tests[_FIRST:]):
            by = fails(part) if part else ""
            if by:
                return "killed", by
    finally:
        file.write_bytes(whole)
    return "survived", "" if tests else "no test runs it"


def fails(tests):
    """The first of the tests that fails, or how else they ended; empty where they pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "chosen_tests", *_OPTIONS]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    wanted = {"CHOSEN_TESTS": json.dumps(tests), "PYTHONPATH": paths}
    names = [*dict.fromkeys(test.partition("::")[0] for test in tests)]
    try:
        ran = subprocess.run(
            [*command, *names],
            cwd=ROOT,
            env=os.environ | wanted,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_PATIENCE_S} s"
    if ran.returncode in {0, 5}:  # 5: none of them is there any more
        return ""
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"status {ran.returncode}: {ran.stderr[-200:]}"


_OPTIONS = ("-m", "", "--hypothesis-profile=mutants", "-W", "ignore::pytest.PytestCacheWarning")


def room_of(one):
    return next(room for room, folder in ROOMS.items() if one.path.startswith(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""], help="files or folders, such as analyzer/analyses/idle/")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=150, help="of tests for each")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    asked = parser.parse_args()
    seen, uses = seen_in(asked.seen), Uses()
    rows = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.exists() else []
    known = defaultdict(list)
    for row in rows:
        known[row["name"], row["line"]].append(row["outcome"])
    drawn_from = [path for path in files() if path.startswith(tuple(asked.only))]
    every = [one for path in drawn_from for one in mutants(path, (ROOT / path).read_bytes())]
    chosen = random.Random(asked.seed).sample(every, min(asked.count, len(every)))  # noqa: S311 - seeded, and no secret
    for one in chosen:
        tried = known[one.name, one.line]
        if not tried or (asked.again and tried[-1] == "survived" and one.name not in equivalent()):
            ended, by = outcome(one, tests_of(one, seen, uses, asked.most_seconds))
            row = {"name": one.name, "line": one.line, "kind": one.kind, "outcome": ended, "by": by}
            with asked.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            tried.append(ended)
        if tried[-1] == "survived" and one.name not in equivalent():
            print(f"{one.path}:{one.line}: {one.old} → {one.new}", flush=True)
    print(table(chosen, known))


def equivalent():
    """The names of mutants that no test can tell from the program."""
    return {line.partition("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}


def table(chosen, known):
    """What became of the mutants of each room."""
    counts = {room: Counter() for room in [*ROOMS, "all"]}
    for one in chosen:
        tried = known[one.name, one.line]
        same = one.name in equivalent()
        said = ["changes", "equivalent"] if same else ["changes", f"first {tried[0]}", f"now {tried[-1]}"]
        for room in (room_of(one), "all"):
            counts[room].update(said)
    lines = ["", "| room | changes | equivalent | killed at first | killed now | of those not equivalent |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for room, own in counts.items():
        told, first, now = own["changes"] - own["equivalent"], own["first killed"], own["now killed"]
        share = f"{first / told:.0%}, now {now / told:.0%}".replace("%", " %") if told else "-"
        lines.append(f"| {room} | {own['changes']} | {own['equivalent']} | {first} | {now} | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
