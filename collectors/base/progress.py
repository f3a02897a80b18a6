"""Progress events of a run; the command line decides how to display them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """A progress event.

    Attributes:
        kind: A step begins, goes on, or ended; or a remark.
        step: Which step; for a remark, which pass.
        text: What the tool said last, how the step ended, or the remark.
        elapsed_s: Since the step began.
    """

    kind: Literal["begin", "tick", "end", "note"]
    step: str
    text: str = ""
    elapsed_s: float = 0.0


Progress = Callable[[Event], object]


def silent(event: Event) -> None:
    """Ignores progress."""
    del event
