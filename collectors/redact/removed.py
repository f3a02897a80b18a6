"""What a redaction took out: how often, of what kind, and what was left out whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Removed:
    """The tally of one redaction.

    Attributes:
        counts: How many places of each kind were removed or replaced, such as ``paths``: 12.
        left_out: Files of a folder that the redacted one does not have, with the reason.
        notes: What the user should know besides.
    """

    counts: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, count: int = 1) -> None:
        """Count `count` more places of the kind `what`."""
        if count:
            self.counts[what] += count

    def include(self, other: Removed) -> None:
        """Add the tally of another file."""
        self.counts.update(other.counts)
        self.left_out.update(other.left_out)
        self.notes.extend(note for note in other.notes if note not in self.notes)
