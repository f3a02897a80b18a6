"""Prints how large the rooms of the package are, and what a command passes on its way: `python benchmarks/house.py`.

Statements are counted by coverage.py's parser, which neither blank lines, comments nor denser lines change. Files of a
way are those of which any code is entered, on any thread, imports included; functions and levels leave out bodies of
modules and classes, lambdas and comprehensions. A level is a call of one of our functions within another, through
whatever library lies between.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from coverage.parser import PythonParser

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_reports"
PACKAGES = ("analyzer", "collectors")

#: Folders whose folders are rooms of their own.
HALLS = ("analyzer", "analyzer/analyses", "analyzer/readers")

WAYS = {
    "summarize a small nsys report": ["summarize", str(SAMPLES / "add" / "nsys.sqlite")],
    "show ops of a trace": ["show", "ops", str(SAMPLES / "mlp_train" / "torch.json.gz")],
    "collect --dry-run": ["collect", "--dry-run", "add"],
}


class Hops:
    """The code of the package that runs, and how deep its functions stand in each other."""

    def __init__(self, homes: tuple[str, ...]) -> None:
        """Looks at files below `homes` alone."""
        self.entered: set[str] = set()
        self.functions: set[tuple[str, str, int]] = set()
        self.deepest = 0
        self._homes = homes
        self._level = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Counts a call or a return; :func:`sys.setprofile` calls this."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self._homes):
            return
        self.entered.add(code.co_filename)
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            return
        level = getattr(self._level, "value", 0) + (1 if event == "call" else -1)
        self._level.value = max(level, 0)
        if event == "call":
            self.deepest = max(self.deepest, level)
            if not code.co_qualname.endswith(">"):
                self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))


def walked(arguments: list[str]) -> Hops:
    """What a command passes, in a process that has imported nothing of the package yet."""
    import kanalyze  # noqa: PLC0415 - the package alone, to know where it lies: what it imports is what is counted

    hops = Hops(tuple(str(Path(place).resolve()) for place in (*kanalyze.__path__, ROOT / "collectors")))
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        more = ["-o", str(Path(folder) / "capture")] if arguments[0] == "collect" else []
        threading.setprofile(hops)
        sys.setprofile(hops)
        try:
            from kanalyze.cli import kanalyze as command  # noqa: PLC0415 - counted

            command.main([*arguments[:1], *more, *arguments[1:]], standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return hops


def print_way(name: str) -> None:
    """Prints the row of one of the ways."""
    hops = walked(WAYS[name])
    print(f"| {name} | {len(hops.entered)} | {len(hops.functions)} | {hops.deepest} |")


def room_of(folder: str) -> str:
    """The room of a folder: the outermost one that is no hall."""
    while (above := folder.rpartition("/")[0]) and above not in HALLS:
        folder = above
    return folder


def print_rooms() -> None:
    """Prints the files, lines and statements of each room, and of all."""
    files, lines, statements = Counter[str](), Counter[str](), Counter[str]()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        room = room_of(path.parent.relative_to(ROOT).as_posix())
        text = path.read_text(encoding="utf-8")
        parser = PythonParser(text=text, filename=str(path))
        parser.parse_source()
        for place in (room, "all"):
            files[place] += 1
            lines[place] += text.count("\n")
            statements[place] += len(parser.statements)
    print("| room | files | lines | statements |\n| --- | --: | --: | --: |")
    for room in sorted(files, key=lambda room: (room == "all", room)):
        print(f"| {room} | {files[room]} | {lines[room]:,} | {statements[room]:,} |")


def main() -> None:
    """Prints both tables; each way in a process of its own, which is given its name."""
    if sys.argv[1:]:
        print_way(sys.argv[1])
        return
    print_rooms()
    print("\n| way | files | functions | levels |\n| --- | --: | --: | --: |", flush=True)
    for name in WAYS:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
