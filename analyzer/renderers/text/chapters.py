"""A chapter of a page: what is said of one kernel, as texts without layout."""

from __future__ import annotations

from typing import NamedTuple

#: What stands above the advice.
LEGEND = "at most this part of the duration; in brackets: of one unit of the GPU"


class Advice(NamedTuple):
    """One piece of advice: what it is worth, what was found (and by whom), and what to do."""

    worth: str
    sentence: str
    remedy: str


class Chapter(NamedTuple):
    """What is said of one kernel: its name, a line about its launch, a conclusion, facts by label, and advice."""

    name: str
    launch: str
    conclusion: str
    facts: list[tuple[str, str]]
    advice: list[Advice]
    more: str = ""
    legend: str = LEGEND
