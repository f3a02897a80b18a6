"""Renders what findings mean, and what kernel names say, for a terminal and for programs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.decoder.fields import OTHER, KernelName

if TYPE_CHECKING:
    from kanalyze.explanations import Explanation

_INDENT: Final = "  "
_FENCE: Final = "```"

#: Fields that are sizes, printed as 128 × 64 × 32.
_SIZES: Final = ("tile", "warps", "warpgroups", "cluster", "instruction")

#: What renders explanations, and words of a page with their meanings, for programs: a section or an object for each.
FORMATS: Final = {
    "markdown": lambda every: "\n".join(f"## {one.name}\n\n{one.headline}\n\n{one.text}" for one in every),
    "json": lambda every: outlets.json([one._asdict() for one in every]),
}
WORDS: Final = {
    "markdown": lambda meanings: "".join(f"**{word}**: {text}\n" for word, text in meanings),
    "json": lambda meanings: outlets.json([{"word": word, "meaning": text} for word, text in meanings]),
}


def _ended(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def headlines(explanations: Sequence[Explanation], width: int) -> str:
    """Renders a line per explanation for a terminal: name and headline, which wraps."""
    room = max(len(one.name) for one in explanations) + len(_INDENT)
    return _ended(
        line
        for one in explanations
        for line in textwrap.wrap(
            _plain(one.headline), width, initial_indent=one.name.ljust(room), subsequent_indent=" " * room
        )
    )


def terminal(one: Explanation, width: int) -> str:
    """Renders an explanation for a terminal: paragraphs and lists wrapped, code as it is."""
    lines = [one.name, *textwrap.wrap(_plain(one.headline), width, initial_indent=_INDENT, subsequent_indent=_INDENT)]
    for part in re.split(r"^(```.*?^```)$", one.text, flags=re.MULTILINE | re.DOTALL):
        if part.startswith(_FENCE):  # it keeps its empty lines
            lines += ["", *(f"{_INDENT * 2}{line}" if line else "" for line in part.splitlines()[1:-1])]
            continue
        for block in filter(None, re.split(r"\n\n+", part.strip())):
            items = filter(None, re.split(r"^(?=- )", block, flags=re.MULTILINE))
            lines += ["", *(line for item in items for line in _paragraph(item, width))]
    return outlets.lines(_ended(lines))


def words(meanings: Sequence[tuple[str, str]], width: int) -> str:
    """Renders what words of a page mean for a terminal."""
    return outlets.lines(_ended(line for word, text in meanings for line in (word, *_paragraph(text, width))))


def _paragraph(text: str, width: int) -> list[str]:
    more = _INDENT * 2 if text.startswith("- ") else _INDENT
    return textwrap.wrap(
        _plain(" ".join(text.split())),
        width,
        initial_indent=_INDENT,
        subsequent_indent=more,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """A text without marks of code, and of links the text alone."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


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
        lines += [f"  {field.replace('_', ' '):<{column}}{first}", *(f"{'':{column + 2}}{line}" for line in rest)]
    return _ended(lines)


def _text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return (" × " if field in _SIZES else ", ").join(outlets.line(str(part)) for part in value)
    return f"{value} (the name does not say)" if (field, value) == ("family", OTHER) else outlets.line(str(value))


def decoded_json(names: Sequence[tuple[str, KernelName]]) -> str:
    """Renders a JSON list with one object per name; unknown fields are null or empty lists."""
    return outlets.json([{"name": name.encode("utf-8", "replace").decode(), **said._asdict()} for name, said in names])
