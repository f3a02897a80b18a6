"""Counts the files, functions and levels of the package on the way of a command: `python benchmarks/hops.py`.

Functions are those that run, modules those of them; bodies of modules and classes, which run at import, are left out.
A level is a call of one of our functions within another, through whatever library lies between. docs/architecture.md
has the figures.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import kanalyze
from kanalyze.cli import kanalyze as command

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_reports"
HOMES = [str(Path(place).resolve()) for place in (*kanalyze.__path__, ROOT / "collectors")]

WAYS = {
    "summarize a small nsys report": ["summarize", str(SAMPLES / "add" / "nsys.sqlite")],
    "show ops of a trace": ["show", "ops", str(SAMPLES / "mlp_train" / "torch.json.gz")],
    "collect --dry-run": ["collect", "--dry-run", "add"],
}


class Hops:
    """The functions of the package that run, and how deep they stand in each other."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.seen: set[tuple[str, str, int]] = set()
        self.deepest = 0
        self._level = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Counts a call or a return; :func:`sys.setprofile` calls this."""
        code = frame.f_code
        if (
            event not in ("call", "return")
            or not code.co_flags & inspect.CO_OPTIMIZED  # the body of a module or of a class
            or not code.co_filename.startswith(tuple(HOMES))
        ):
            return
        level = getattr(self._level, "value", 0) + (1 if event == "call" else -1)
        self._level.value = max(level, 0)
        if event == "call":
            self.seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))
            self.deepest = max(self.deepest, level)


def walked(arguments: list[str]) -> Hops:
    """Modules that a command passes."""
    hops = Hops()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        more = ["-o", str(Path(folder) / "capture")] if arguments[0] == "collect" else []
        threading.setprofile(hops)
        sys.setprofile(hops)
        try:
            command.main([*arguments[:1], *more, *arguments[1:]], standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return hops


def main() -> None:
    """Print a row for each of the ways."""
    print("| way | files | functions | levels |\n| --- | --- | --- | --- |")
    for name, arguments in WAYS.items():
        hops = walked(arguments)
        own = {seen for seen in hops.seen if not seen[1].endswith(">")}  # no lambdas and comprehensions
        print(f"| {name} | {len({file for file, *_ in own})} | {len(own)} | {hops.deepest} |")


if __name__ == "__main__":
    main()
