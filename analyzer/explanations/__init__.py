"""Explanations of findings and their remedies: a text per rule, in Markdown, beside this module.

The texts are the one source of `kanalyze explain` and of docs/findings.md. Each has a heading (the rule's name), a
headline, and paragraphs that begin with "Found when:", "At stake:" and "What to do:", with code. What other words of a
page mean is in words.toml.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze.errors import UnknownNameError

_FOLDER: Final = Path(__file__).parent


class Explanation(NamedTuple):
    """Explanation of a finding.

    Attributes:
        name: The rule of the finding.
        headline: What it is, one sentence.
        text: The rest, in Markdown.
    """

    name: str
    headline: str
    text: str


def names() -> list[str]:
    """The names of all findings, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.md"))


@cache
def words() -> dict[str, str]:
    """What each word of a page means, besides the names of findings."""
    return tomllib.loads((_FOLDER / "words.toml").read_text(encoding="utf-8"))


def meanings(word: str) -> list[tuple[str, str]]:
    """A word of a page as it stands there, and what it means; small letters may be a column, capitals a section."""
    return [(one, text) for one, text in words().items() if one.casefold() == word.casefold()]


def explanation(name: str) -> Explanation:
    """The explanation of the finding `name`.

    Raises:
        UnknownNameError: There is no such finding.
    """
    if name not in names():
        raise UnknownNameError.of("finding", name, names())
    _, headline, text = (_FOLDER / f"{name}.md").read_text(encoding="utf-8").split("\n\n", maxsplit=2)
    return Explanation(name, headline, text)
