"""How text may look where it is shown: its width, and whether it may be coloured."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """How the page may look: its width in columns, and whether escape codes for colour are welcome."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        """`text` in the colour of an SGR code, or as it is."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text
