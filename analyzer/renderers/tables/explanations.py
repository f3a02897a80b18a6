"""Renders what findings mean, and what kernel names say, for a terminal and for programs."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.decoder.fields import OTHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.decoder.fields import KernelName
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


def words(meanings: Sequence[tuple[str, str]], width: int) -> str:
    """Renders what words of a page mean for a terminal."""
    lines = [line for word, text in meanings for line in (word, *_paragraph(text, width))]
    return outlets.lines("".join(f"{line}\n" for line in lines))


def markdown_words(meanings: Sequence[tuple[str, str]]) -> str:
    """Renders what words of a page mean as Markdown."""
    return "".join(f"**{word}**: {text}\n" for word, text in meanings)


def as_json(explanations: Sequence[Explanation]) -> str:
    """Renders every explanation as an object of a JSON list."""
    return outlets.json([one._asdict() for one in explanations])


def json_words(meanings: Sequence[tuple[str, str]]) -> str:
    """Renders what words of a page mean as objects of a JSON list."""
    return outlets.json([{"word": word, "meaning": text} for word, text in meanings])


#: What renders explanations, and words of a page, for a format.
FORMATS: Final = {"markdown": markdown, "json": as_json}
WORDS: Final = {"markdown": markdown_words, "json": json_words}


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


#: Fields that are sizes, printed as 128 × 64 × 32.
_SIZES: Final = ("tile", "warps", "warpgroups", "cluster", "instruction")


def decoded(names: Sequence[tuple[str, KernelName]], width: int) -> str:
    """Renders each name in full with its known fields below."""
    return "\n".join(_name(name, said, width) for name, said in names)


def _name(name: str, said: KernelName, width: int) -> str:
    lines = textwrap.wrap(outlets.line(name), width, break_on_hyphens=False) or ["(no name)"]
    fields = {field: _text(field, value) for field, value in said._asdict().items() if value not in (None, ())}
    if fields["function"] in {"", name}:
        del fields["function"]
    column = max(map(len, fields)) + 2
    for field, text in fields.items():
        first, *rest = textwrap.wrap(text, max(width - column - 2, 20), break_on_hyphens=False) or [""]
        lines.append(f"  {field.replace('_', ' '):<{column}}{first}")
        lines += [" " * (column + 2) + line for line in rest]
    return "".join(f"{line}\n" for line in lines)


def _text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return (" × " if field in _SIZES else ", ").join(outlets.line(str(part)) for part in value)
    return f"{value} (the name does not say)" if (field, value) == ("family", OTHER) else outlets.line(str(value))


def decoded_json(names: Sequence[tuple[str, KernelName]]) -> str:
    """Renders a JSON list with one object per name; unknown fields are null or empty lists."""
    return outlets.json([{"name": name.encode("utf-8", "replace").decode(), **said._asdict()} for name, said in names])
