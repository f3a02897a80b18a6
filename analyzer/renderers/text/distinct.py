"""Shortens texts that are no kernel names, such as ranges and paths, so that no two look alike."""

from __future__ import annotations

from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GAP: Final = "…"


def distinct(texts: Sequence[str], width: int) -> list[str]:
    """The texts in at most `width` characters each, different ones different; one that fits stays as it is.

    What is left out stands in the middle, or where that is what tells two of them apart at one of the ends.
    """
    owners = {text: text for text in texts if len(text) <= width}
    for text in texts:
        if len(text) > width and text not in owners.values():
            owners[next(form for form in _forms(text, width) if form not in owners)] = text
    return [*map({text: form for form, text in owners.items()}.__getitem__, texts)]


def _forms(text: str, width: int) -> Iterator[str]:
    """Shorter forms of a text, the first the best; endless, with a number at last."""
    kept = width - len(_GAP)
    front = (kept + 1) // 2
    yield text[:front] + _GAP + text[len(text) - (kept - front) :]
    yield _GAP + text[-kept:]
    yield text[:kept] + _GAP
    for number in count(2):
        mark = f"{_GAP}#{number}"
        yield text[: max(width - len(mark), 0)] + mark


def short_paths(paths: Sequence[str]) -> list[str]:
    """The ends of paths that tell them apart, of as many parts as that takes; equal paths stay equal."""
    parts = {path: PurePath(path).parts for path in paths}
    found: dict[str, str] = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        length = next((n for n in range(1, len(own)) if all(own[-n:] != other[-n:] for other in others)), len(own))
        found[path] = str(PurePath(*own[-length:])) if own else path
    return [found[path] for path in paths]
