"""Rules: each detects one kind of problem and estimates its cost, no more than the ledger's buckets hold."""

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import outlets
from kanalyze.analyses.host._call_kinds import world
from kanalyze.analyses.replay._changes import Mending
from kanalyze.report import Report

#: The action for images in NCHW, which ends conversions, kernels per channel and products of rows of pixels.
CHANNELS_LAST: Final = "model.to(memory_format=torch.channels_last)"

#: The maximum length of a headline and of an action, kernel names aside: a line of 80 columns beside the time.
HEADLINE_LONGEST: Final = 60
ACTION_LONGEST: Final = 76

#: Words of so many characters are names, which a headline shortens, and what is left of one at least; a headline of
#: plain words is cut only where it is longer than an action.
_NAME: Final = 20
_NAME_SHORTEST: Final = 8

#: Parts of a sentence that no cut may divide: escaped braces, placeholders, single characters.
_PARTS: Final = re.compile(r"\{\{|\}\}|\{\d+\}|.", re.DOTALL)


#: The words of all rules, by what they are of.
WORDS: Final = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def literal(text: str) -> str:
    """`text` with its braces escaped, which are placeholders in sentences of a :class:`Finding`; long ones are cut."""
    return outlets.cut(text, 400).replace("{", "{{").replace("}", "}}")


class Finding(NamedTuple):
    """One finding, with its evidence; texts have names of the program escaped with :func:`literal`."""

    rule: str  # stable name of the kind of finding
    device: int  # the GPU to whose window `at_stake_ns` refers
    at_stake_ns: int  # the time in that window that the problem takes
    text: str  # one sentence with the evidence; ``{0}``, ``{1}``… stand for `names`
    remedy: str  # what to do about it, one sentence
    table: str  # the table with the rows behind it, for ``kanalyze show``
    names: tuple[str, ...] = ()  # full kernel names of the sentence; a renderer may shorten them
    headline: str = ""  # the trouble in at most :data:`HEADLINE_LONGEST` characters, with placeholders as `text`
    action: str = ""  # what to do in at most :data:`ACTION_LONGEST` characters, as code or a command if that says it
    where: str = ""  # the range, operator or line of code that it lies in, or most of it; empty if unknown
    at_most: bool = False  # whether no way to mend it can gain more than `at_stake_ns`
    #: What the remedy changes in the report, or a function of it that says so; None where that is not known.
    mending: Mending | Callable[[Report], Mending | None] | None = None
    #: What the window gets shorter by without the profiler, by a replay with that change, if one was made; and the
    #: least and the most, by what is not known of the host's time and of lags.
    replayed_ns: int | None = None
    replayed_low_ns: int | None = None
    replayed_high_ns: int | None = None
    vague: bool = False  # whether it says what the ledger says, without a cause of its own
    shortens: bool = False  # whether its remedy only makes kernels shorter: little while the device waits for the host
    #: The time of the device that it explains, idle or busy: start, end (ns), rows in any order that may overlap. No
    #: less specific finding tells it again. None for no time of its own.
    claims: pl.DataFrame | None = None
    general: bool = False  # whether its remedy helps whatever the cause: it is told of what the specific ones leave
    curtailed: bool = False  # whether others claim more than a hundredth of its time: its gain is on top of theirs
    #: The finding on a part of its claims (a span set), or None; else the same part of `at_stake_ns` is at stake.
    retold: "Callable[[pl.DataFrame], Finding | None] | None" = None
    unmended_ns: int | None = None  # what that window takes without profiler and remedy, by the same replay
    line: str = ""  # the line of the program that most of what it claims comes from; no rule gives it

    def change(self, report: Report) -> Mending | None:
        """What the remedy changes in the report; None where that is not known."""
        return self.mending(report) if callable(self.mending) else self.mending

    @property
    def place(self) -> str:
        """Where it lies, with the line of the program: ``aten::item in train.py:88``; escaped as `text`."""
        return " in ".join(part for part in (self.where, self.line) if part)

    @property
    def definition(self) -> str:
        """The command of kanalyze that says what the finding means, how it is told, and what to do."""
        return f"explain {self.rule}"

    @property
    def gain_ns(self) -> int:
        """Sort key of findings: the remedy's gain by replay, else the time at stake."""
        return self.at_stake_ns if self.replayed_ns is None else self.replayed_ns

    @property
    def replayed(self) -> tuple[int | None, int | None, int | None]:
        """Gain of its remedy by a replay: usual, least and most (ns)."""
        return self.replayed_ns, self.replayed_low_ns, self.replayed_high_ns

    def over(self, times: float, which: str) -> "Finding":
        """The finding on a sample of iterations (`which`) at the times of so many times as many."""
        gains = ("replayed_ns", "replayed_low_ns", "replayed_high_ns", "unmended_ns")
        more: dict[str, Any] = {name: int(ns * times) for name in gains if (ns := getattr(self, name)) is not None}
        text = f"{self.text} Counts and longest times are those of {literal(which)}."
        return self._replace(at_stake_ns=int(self.at_stake_ns * times), text=text, **more)

    @property
    def brief(self) -> "Finding":
        """The finding with a headline that fits its line."""
        return self._replace(headline=_fitted(self.headline))


#: What rules give, one by one; None says nothing.
Findings = Iterator[Finding | None]


class Rule:
    """Makes a rule of a function that gives the findings of a report one by one, or None."""

    def __init__(self, find: Callable[[Report], Findings], worlds: Sequence[str] = ()) -> None:
        """The rule has the name and the docstring of `find`; it is for programs of some worlds, or of any."""
        self._find, self._worlds, self.name = find, worlds, find.__name__
        update_wrapper(self, find)

    @classmethod
    def of(cls, *worlds: str) -> "Callable[[Callable[[Report], Findings]], Rule]":
        """Makes rules for programs of some worlds."""
        return partial(cls, worlds=worlds)

    def __call__(self, report: Report) -> list[Finding]:
        """All findings of a report that have any time at stake."""
        own = not self._worlds or world(report) in self._worlds
        return [one for one in self._find(report) if one is not None and one.at_stake_ns > 0] if own else []


def row_of(name: str) -> dict[str, Any]:
    """A row of findings in words.toml; what it does not have is as in the row of its rule."""
    return {**WORDS["findings"].get(name.partition(":")[0], {}), **WORDS["findings"][name]}


def phrases(name: str) -> dict[str, Any]:
    """One of the tables of phrases in words.toml, each one text or several; empty where there is none of that name."""
    return one_line(WORDS["phrases"].get(name, {}))


def one_line(words: dict[str, Any]) -> dict[str, Any]:
    """The words without the line breaks of the file."""
    return {
        name: " ".join(value.split()) if isinstance(value, str) else tuple(" ".join(text.split()) for text in value)
        for name, value in words.items()
    }


def _fitted(headline: str) -> str:
    """The headline in its line: its longest word, a name of the program, without its middle, or else cut at the end."""
    parts = _PARTS.findall(headline)
    words = [_PARTS.findall(word) for word in headline.split(" ")]
    at = max(range(len(words)), key=lambda one: len(words[one]))
    kept = len(words[at]) - (len(parts) - HEADLINE_LONGEST) - 1
    if len(parts) <= HEADLINE_LONGEST or (len(words[at]) < _NAME and len(parts) <= ACTION_LONGEST):
        return headline
    if len(words[at]) < _NAME or kept < _NAME_SHORTEST:  # its beginning, up to a word
        start = "".join(parts[: HEADLINE_LONGEST - 1])
        return f"{start.rpartition(' ')[0] or start}…"
    words[at] = [*words[at][: kept - kept // 2], "…", *words[at][len(words[at]) - kept // 2 :]]
    return " ".join("".join(word) for word in words)
