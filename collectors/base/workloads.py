"""The reference workloads, shipped as ``kanalyze.kernels``; each describes itself in its first comment."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Beside the collectors, in a checkout and when installed; the import system finds the package only when installed.
_FOLDER: Final = Path(__file__).parents[1].with_name("kernels")

_SUFFIXES: Final = (".cu", ".py")

#: The leading comment of a CUDA source: ``/* … */`` or lines of ``//``.
_COMMENT: Final = re.compile(r"\s*(?:/\*+(?P<block>.*?)\*/|(?P<lines>(?:[ \t]*//[^\n]*\n?)+))", re.DOTALL)
#: The line that lists the values of ``--variant``.
_VARIANTS: Final = re.compile(r"^Variants: (.+)$", re.MULTILINE)

_MARGIN: Final = re.compile(r"^[ \t]*(?://+!?|\*+)?[ \t]?", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """A reference workload.

    Attributes:
        name: What it is called.
        path: Its file.
        teaches: What its profile demonstrates, one sentence.
        variants: Values of its ``--variant``; empty if it has none.
        doc: The whole text of its first comment.
    """

    name: str
    path: Path
    teaches: str
    variants: tuple[str, ...]
    doc: str


def references() -> list[Reference]:
    """All reference workloads by name, without helpers, whose names begin with an underscore."""
    files = sorted(_FOLDER.iterdir()) if _FOLDER.is_dir() else []
    return [_described(file) for file in files if file.suffix in _SUFFIXES and not file.name.startswith("_")]


def reference(text: str) -> Reference | None:
    """The reference workload `text`, with or without file suffix; None if there is none."""
    named = (known for known in references() if text in (known.name, known.path.name))
    return next(named, None)


def _described(file: Path) -> Reference:
    source = file.read_text(encoding="utf-8", errors="replace")
    doc = ""
    if file.suffix == ".py":
        with suppress(SyntaxError):
            doc = ast.get_docstring(ast.parse(source)) or ""
    elif comment := _COMMENT.match(source):
        doc = _MARGIN.sub("", comment["block"] or comment["lines"]).strip()
    listed = _VARIANTS.search(doc)
    variants = tuple(word.strip() for word in listed[1].rstrip(".").split(",")) if listed else ()
    return Reference(file.stem, file, " ".join(doc.partition("\n\n")[0].split()), variants, doc)
