"""Display options: width and colour."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """Display options of text: width in columns, and whether ANSI colour codes are allowed."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        """`text` in an SGR colour, or unchanged without colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text
