"""Rules: each looks for one kind of trouble and says what it costs, or nothing where there is none.

A rule is a module with a function ``find(report: Report) -> list[Finding]``; adding the file adds the rule
(:mod:`kanalyze.analyses.findings.findings`). A rule claims only what the report's rows show, and never more nanoseconds
than the ledger's buckets hold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: So much of a name of the program's own stands in a sentence.
_LONGEST: Final = 400


def literal(text: str) -> str:
    """`text` as part of a :class:`Finding`'s sentence: a program's own names may hold braces, which stand for names.

    Of one that no sentence has space for it is the beginning.
    """
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return text.replace("{", "{{").replace("}", "}}")


class Finding(NamedTuple):
    """One thing worth knowing, with its evidence.

    Attributes:
        rule: Stable name of the kind of finding.
        device: The GPU whose window `at_stake_ns` is part of.
        at_stake_ns: The time in that window that the trouble takes.
        text: One sentence with the evidence; ``{0}``, ``{1}``… stand for `names`; every other name of the
            program is in it by :func:`literal`.
        names: Kernel names in the sentence, whole; a renderer may shorten them.
        remedy: What to do about it, one sentence.
        table: The table that holds the rows behind it, for ``kanalyze show``.
    """

    rule: str
    device: int
    at_stake_ns: int
    text: str
    remedy: str
    table: str
    names: tuple[str, ...] = ()

    @property
    def definition(self) -> str:
        """Where it is written when this is found, and what its time at stake is."""
        return f"docs/findings.md#{self.rule}"
