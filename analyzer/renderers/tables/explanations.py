"""Renders what findings mean: Markdown as it is, and as plain text wrapped for a terminal."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

from kanalyze import outlets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.explanations import Explanation

_INDENT: Final = "  "
_CODE_INDENT: Final = "    "
_FENCE: Final = "```"

#: A link, whose text stays; marks of code, which go.
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_MARKS: Final = re.compile(r"`")


def markdown(explanations: Sequence[Explanation]) -> str:
    """Renders every explanation as a Markdown section."""
    return "\n".join(f"## {one.name}\n\n{one.headline}\n\n{one.text}" for one in explanations)


def headlines(explanations: Sequence[Explanation], width: int) -> str:
    """Renders a line per explanation for a terminal: name and headline, which wraps."""
    room = max(len(one.name) for one in explanations) + len(_INDENT)
    lines = [
        textwrap.wrap(_plain(one.headline), width, initial_indent=one.name.ljust(room), subsequent_indent=" " * room)
        for one in explanations
    ]
    return "".join(f"{line}\n" for wrapped in lines for line in wrapped)


def terminal(one: Explanation, width: int) -> str:
    """Renders an explanation for a terminal: paragraphs and lists wrapped, code as it is."""
    lines = [one.name, *textwrap.wrap(_plain(one.headline), width, initial_indent=_INDENT, subsequent_indent=_INDENT)]
    for block in _blocks(one.text):
        lines += ["", *_block(block, width)]
    return outlets.lines("".join(f"{line}\n" for line in lines))


def _blocks(text: str) -> list[str]:
    """Splits Markdown into paragraphs, lists and fenced code; a fence keeps its empty lines."""
    parts = re.split(r"^(```.*?^```)$", text, flags=re.MULTILINE | re.DOTALL)
    return [
        block
        for part in parts
        for block in ([part] if part.startswith(_FENCE) else re.split(r"\n\n+", part.strip()))
        if block
    ]


def _block(block: str, width: int) -> list[str]:
    if block.startswith(_FENCE):
        return [_CODE_INDENT + line if line else "" for line in block.splitlines()[1:-1]]
    items = re.split(r"^(?=- )", block, flags=re.MULTILINE)
    return [line for item in items if item for line in _paragraph(item, width)]


def _paragraph(text: str, width: int) -> list[str]:
    more = f"{_INDENT}{_INDENT}" if text.startswith("- ") else _INDENT
    said = _plain(" ".join(text.split()))
    return textwrap.wrap(
        said, width, initial_indent=_INDENT, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    )


def _plain(text: str) -> str:
    return _MARKS.sub("", _LINK.sub(r"\1", text))
