"""Guards calls of NVIDIA's module, which on damaged reports raises many error types or returns invalid text."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Exceptions raised by the module's functions for damaged parts of a report.
DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)

_MOST: Final = 1 << 63


class Damage:
    """Counts the parts of a report that could not be read."""

    def __init__(self) -> None:
        """Start at zero."""
        self.count = 0

    def tried(self, ask: Callable[[], T], otherwise: T) -> T:
        """The result of `ask`; on failure `otherwise`, counted as one damaged part."""
        with suppress(*DAMAGE):
            return ask()
        self.count += 1
        return otherwise

    def text(self, said: object) -> str:
        """Valid text, as :func:`text` gives it; counted as one damaged part if it had to be repaired."""
        found = text(said)
        self.count += found != str(said)
        return found

    def notes(self, path_name: str) -> list[tuple[str, int | None, int | None, str]]:
        """The health notes about damaged parts."""
        if not self.count:
            return []
        effect = f"{path_name} is damaged: they are left out, and what is left may be wrong, too; copy it again"
        return [("parts of a report that make no sense", self.count, None, effect)]


def text(said: object) -> str:
    """Text from the module with invalid bytes replaced."""
    found = str(said)
    return found if found.isascii() else found.encode(errors="replace").decode()


def count(value: int) -> int | None:
    """A count as Int64; None if it is out of range."""
    return value if -_MOST <= value < _MOST else None
