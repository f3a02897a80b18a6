"""Progress events of a run; the command line decides how to display them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """A progress event.

    Attributes:
        kind: Step started, step running, step ended, or a note.
        step: The step; of a note, the pass.
        text: The tool's last output, the step's result, or the note.
        elapsed_s: Seconds since the step began.
    """

    kind: Literal["begin", "tick", "end", "note"]
    step: str
    text: str = ""
    elapsed_s: float = 0.0


Progress = Callable[[Event], object]


def silent(event: Event) -> None:
    """Ignores progress."""
    del event
