"""Rules for texts: what is removed, and its replacement; what is kept stands in allowed.toml."""

import tomllib
from pathlib import Path
from typing import Any, Final

#: What may stay of each kind of report, and the names that are looked for.
ALLOWED: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).parents[1].joinpath("allowed.toml").read_text(encoding="utf-8")
)


def words(text: str) -> frozenset[str]:
    """The words of `text`, as lists of words are written."""
    return frozenset(text.split())
