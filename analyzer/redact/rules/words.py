"""Word lists written as text."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())
