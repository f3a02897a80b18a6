"""Shows how far a run is: one line that changes on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kanalyze import outlets
from kanalyze.cli._output import tell, told_on_terminal

if TYPE_CHECKING:
    from kanalyze.collectors.base.progress import Event

_CLEAR = "\r\x1b[2K"


class Progress:
    """Draws events as they come."""

    def __init__(self) -> None:
        """Look at what standard error is."""
        self._live = told_on_terminal()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "tick":
            if self._live:
                self._draw(f"{event.step}  {_clock(event.elapsed_s)}  {event.text}")
            return
        line = {
            "begin": f"{event.step} …",
            "end": f"{event.step}: {event.text} after {_clock(event.elapsed_s)}",
            "note": f"{event.step}: {event.text}",
        }[event.kind]
        if event.kind == "begin" and self._live:
            self._draw(line)
        else:
            tell(f"{_CLEAR if self._live else ''}{outlets.line(line)}")

    def _draw(self, line: str) -> None:
        columns = shutil.get_terminal_size((80, 24)).columns
        tell(f"{_CLEAR}{outlets.line(line)[: columns - 1]}", newline=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)} min {rest:02.0f} s" if minutes else f"{rest:.1f} s"
