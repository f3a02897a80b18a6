"""What NVIDIA's module gives of a damaged report: errors of many kinds, nothing, or texts that are none."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: What its functions raise where a part of a report makes no sense.
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
    """How many parts of a report could not be read."""

    def __init__(self) -> None:
        """None yet."""
        self.count = 0

    def told(self, ask: Callable[[], T], otherwise: T) -> T:
        """What `ask` gives; `otherwise`, and one part more, where it fails."""
        with suppress(*DAMAGE):
            return ask()
        self.count += 1
        return otherwise

    def text(self, said: object) -> str:
        """A text, as :func:`text` gives it; one part more where that has to mend it."""
        found = text(said)
        self.count += found != str(said)
        return found

    def notes(self, path_name: str) -> list[tuple[str, int | None, int | None, str]]:
        """What health says of it."""
        if not self.count:
            return []
        effect = f"{path_name} is damaged: they are left out, and what is left may be wrong, too; copy it again"
        return [("parts of a report that make no sense", self.count, None, effect)]


def text(said: object) -> str:
    """A text of the module, which can have bytes in it that are no text; these are replaced."""
    found = str(said)
    return found if found.isascii() else found.encode(errors="replace").decode()


def count(value: int) -> int | None:
    """A count; None for what no table can hold, which cannot be right."""
    return value if -_MOST <= value < _MOST else None
