"""What is true of the benchmark's programs, and how a text names it: causes, marked lines, functions around them."""

from __future__ import annotations

import ast
import re
import tarfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent

#: How far a named line may be from the fault's.
PLACE_NEAR: Final = 2

#: What stands for a program's name in all that tools say, since many names give the fault away.
BLIND: Final = "program"

_LINE: Final = re.compile(rf"\b{BLIND}\.(?:py|cu)[:\"(, line]{{1,9}}(\d+)(?:-(\d+))?")

#: Lines of a text that name a cause to say that it is not there, and rows of tables, which name none.
_DENIED: Final = re.compile(
    r"\b(no|not|none|without) (problems?|issues?|any|applicable|detected|found)\b|skipped|n/a", re.IGNORECASE
)
_CELLS: Final = re.compile(r"\S(?: {2,}|\t|,(?! )| ?\| ?)(?=\S)")
_MOST_CELLS: Final = 3

#: Functions that every program has, and which are therefore no place.
_ANY: Final = {"main", "step", "build", "forward", "__init__"}


@dataclass(frozen=True)
class Program:
    """A program of the benchmark: what is wrong with it, and where; functions with their first and last lines.

    `recorded` says whether its capture has the lines that it ran.
    """

    name: str
    path: Path
    cause: str
    also: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    functions: tuple[tuple[str, int, int], ...] = ()
    recorded: bool = False

    def blind(self, text: str) -> str:
        """A text without the program's name and its path; a name that is a plain word may mean something else."""
        name = re.escape(self.name)
        bare = rf"|(?<![\w-]){name}(?![\w-])" if "_" in self.name else ""
        return re.sub(rf"[\w./~-]*/{name}(?![\w-])|(?<![\w-]){name}(?=\.(?:py|cu)\b){bare}", BLIND, text)

    def place_right(self, text: str) -> str:
        """How well a blind text says where the fault is: `line`, `function`, or nothing."""
        named = [(int(first), int(last or first)) for first, last in _LINE.findall(text)]
        if any(first - PLACE_NEAR <= at <= last + PLACE_NEAR for first, last in named for at in self.lines):
            return "line"
        inside = any(first <= line <= last for line, _ in named for _, first, last in self.functions)
        called = any(re.search(rf"\b{name}(\(|<| \()|{BLIND}\.\w+[: (]+{name}\b", text) for name, *_ in self.functions)
        return "function" if inside or called else ""


def causes() -> dict[str, tuple[str, re.Pattern[str]]]:
    """Each cause with its sentence and the words that name it."""
    listed = tomllib.loads((HERE / "causes.toml").read_text(encoding="utf-8"))
    spelled = {
        name: rf"(?<![\w-]){name}(?![\w-])|{words.replace(' ', chr(92) + 's+')}" for name, (_, words) in listed.items()
    }
    return {name: (listed[name][0], re.compile(words, re.IGNORECASE)) for name, words in spelled.items()}


def sentences(text: str) -> str:
    """The text with blank lines in place of those that deny a cause, and of rows of tables."""
    lines = text.splitlines()
    return "\n".join("" if _DENIED.search(line) or len(_CELLS.findall(line)) >= _MOST_CELLS else line for line in lines)


def program(path: Path) -> Program:
    """Reads a program's constants, its marked lines and the functions around them."""
    text = path.read_text(encoding="utf-8")
    says = dict(re.findall(r"^(?:// )?(CAUSE|ALSO)\b *[:=] *(.*)$", text, re.MULTILINE))
    cause, also = (re.findall(r"[a-z][\w-]+", says.get(key, "").partition("  #")[0]) for key in ("CAUSE", "ALSO"))
    lines = [at for at, line in enumerate(text.splitlines(), 1) if re.search(r"(#|//) fault\b", line)]
    spans = _functions(text, path.suffix)
    around = [[span for span in spans if span[1] <= at <= span[2]] for at in lines]
    inner = {min(those, key=lambda span: span[2] - span[1]) for those in around if those}
    inner = {span for span in inner if span[0] not in _ANY}
    return Program(path.stem, path, cause[0] if cause else "", tuple(also), tuple(lines), tuple(sorted(inner)))


def programs_in(folder: Path, captures: Path, only: str = "") -> list[Program]:
    """The programs of a folder that have a capture, by name."""
    files = sorted(file for file in folder.iterdir() if file.suffix in {".py", ".cu"} and file.name[0] != "_")
    chosen = [
        file
        for file in files
        if any((captures / (file.stem + end)).exists() for end in ("", ".tar.xz")) and re.search(only, file.stem)
    ]
    return [replace(program(file), recorded=_has_lines(captures, file.stem)) for file in chosen]


def _has_lines(captures: Path, name: str) -> bool:
    """Whether a capture, a folder or packed, has the lines that its program ran."""
    if (captures / name).is_dir():
        return any((captures / name).glob("lines-*"))
    with tarfile.open(captures / f"{name}.tar.xz") as archive:  # in the order of names: what comes later stays packed
        names = (Path(member.name).name for member in archive if member.isfile())
        return next((name for name in names if name >= "lines-"), "").startswith("lines-")


def _functions(text: str, suffix: str) -> list[tuple[str, int, int]]:
    """The functions of a program. Those of C++ begin at a line's start, and end with a brace there."""
    if suffix == ".py":
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        return [(node.name, node.lineno, node.end_lineno or node.lineno) for node in nodes]
    found, name, start = list[tuple[str, int, int]](), "", 0
    for at, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"\w[^;=]*?\b(\w+)\(", line)
        name, start = (opened[1], at) if opened else (name, start)
        if line.startswith("}") and name:
            found.append((name, start, at))
            name = ""
    return found
