"""The reference workloads: what ships as ``kanalyze.kernels``, each file with what it teaches in its first comment."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Beside the collectors, in a checkout as where it is installed; Python's import system finds it in the latter only.
_FOLDER: Final = Path(__file__).parents[1].with_name("kernels")

_SUFFIXES: Final = (".cu", ".py")

#: The comment that a CUDA source begins with: ``/* … */`` or lines of ``//``.
_COMMENT: Final = re.compile(r"\s*(?:/\*+(?P<block>.*?)\*/|(?P<lines>(?:[ \t]*//[^\n]*\n?)+))", re.DOTALL)
#: The line that lists what ``--variant`` takes.
_VARIANTS: Final = re.compile(r"^Variants: (.+)$", re.MULTILINE)

_MARGIN: Final = re.compile(r"^[ \t]*(?://+!?|\*+)?[ \t]?", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """One reference workload.

    Attributes:
        name: What it is called.
        path: Its file.
        teaches: What a profile of it shows, one sentence.
        variants: What its ``--variant`` takes; empty where it has none.
        doc: All that its file says of itself.
    """

    name: str
    path: Path
    teaches: str
    variants: tuple[str, ...]
    doc: str


def references() -> list[Reference]:
    """Every reference workload by name; helpers of theirs begin with an underscore and are none."""
    files = sorted(_FOLDER.iterdir()) if _FOLDER.is_dir() else []
    return [_described(file) for file in files if file.suffix in _SUFFIXES and not file.name.startswith("_")]


def reference(text: str) -> Reference | None:
    """The reference workload that `text` names, with or without its file's ending; None where there is none."""
    named = (known for known in references() if text in (known.name, known.path.name))
    return next(named, None)


def _described(file: Path) -> Reference:
    source = file.read_text(encoding="utf-8", errors="replace")
    doc = _docstring(source) if file.suffix == ".py" else _first_comment(source)
    listed = _VARIANTS.search(doc)
    variants = tuple(word.strip() for word in listed[1].rstrip(".").split(",")) if listed else ()
    return Reference(file.stem, file, " ".join(doc.partition("\n\n")[0].split()), variants, doc)


def _docstring(source: str) -> str:
    try:
        return ast.get_docstring(ast.parse(source)) or ""
    except SyntaxError:
        return ""


def _first_comment(source: str) -> str:
    found = _COMMENT.match(source)
    text = (found["block"] or found["lines"]) if found else ""
    return _MARGIN.sub("", text).strip()
