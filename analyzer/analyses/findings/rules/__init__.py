"""Rules: each detects one kind of problem and estimates its cost.

A rule is a function ``(report: Report) -> list[Finding]`` in the ``RULES`` of a module here, which
:mod:`kanalyze.analyses.findings.findings` finds. A rule claims only what the report's rows show, and never more time
than the ledger's buckets hold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: The maximum length of a user-chosen name in a sentence.
_LONGEST: Final = 400


def literal(text: str) -> str:
    """Escapes `text` for a :class:`Finding`'s sentence, in which braces are placeholders for names.

    Longer texts are cut at the end.
    """
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return text.replace("{", "{{").replace("}", "}}")


class Finding(NamedTuple):
    """One finding, with its evidence.

    Attributes:
        rule: Stable name of the kind of finding.
        device: The GPU to whose window `at_stake_ns` refers.
        at_stake_ns: The time in that window that the problem takes, in ns.
        text: One sentence with the evidence; ``{0}``, ``{1}``… stand for `names`; all other names of the program are
            escaped with :func:`literal`.
        names: Full kernel names of the sentence; a renderer may shorten them.
        remedy: What to do about it, one sentence.
        table: The table with the rows behind it, for ``kanalyze show``.
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
        """Link to the documentation that defines the finding and its time at stake."""
        return f"docs/findings.md#{self.rule}"
