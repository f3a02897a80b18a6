"""A part of a report's time, and the texts that users write for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kanalyze.errors import BadWindowError
from kanalyze.units import instant, parse_time_ns

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Times are 64-bit nanoseconds, and differences of them must be, too: some 146 years.
_LATEST_NS: Final = (1 << 62) - 1

_STEPS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


@dataclass(frozen=True)
class Window:
    """A part of the report's time, ``[start_ns, end_ns)``; None leaves a side open.

    `name` is the range that it is an instance of, where it was asked for by name; `group` is what all windows that were
    asked for with it are called together, where their names do not say; `process` is the one whose range it is.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    name: str | None = None
    group: str | None = field(default=None, compare=False)
    process: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Its name, or its times as users write them: ``120ms..250ms``."""
        return self.name or "..".join(map(_side_text, (self.start_ns, self.end_ns)))

    @property
    def empty(self) -> bool:
        """Whether it has no duration, as a range may that began and ended within one tick of the clock."""
        return self.start_ns is not None and self.end_ns is not None and self.end_ns <= self.start_ns

    def refuse_outside(self, text: str, path: Path, recorded: Iterable[tuple[int, int]], zero_ns: int) -> None:
        """Raise :class:`BadWindowError` if nothing lies in it of what was `recorded`, from when to when in each part.

        `text` is what the user wrote of the report at `path`, and `zero_ns` what its times are counted from.
        """
        known = []
        for span in recorded:  # each may have to be read first
            known.append(span)
            if self._overlaps(min(first for first, _ in known), max(last for _, last in known)):
                return
        if known:
            edges = min(first for first, _ in known), max(last for _, last in known)
            raise BadWindowError.outside(text, path, *(instant(edge, zero_ns) for edge in edges))

    def _overlaps(self, first_ns: int, last_ns: int) -> bool:
        """Whether anything from `first_ns` to `last_ns`, both included, lies in it."""
        begins = self.start_ns is None or self.start_ns <= last_ns
        return begins and (self.end_ns is None or self.end_ns > first_ns)

    @classmethod
    def parse(cls, text: str, first_ns: int = 0) -> Window:
        """The window that `text` names: ``120ms..250ms``, ``..1.5s``, ``300us..``, ``+10ms..+20ms``.

        A time with a plus sign is counted from `first_ns` on.

        Raises:
            BadWindowError: No ``..``, a time without unit, or an end that is not after the start.
        """
        start, dots, end = text.partition("..")
        if not dots:
            raise BadWindowError.of(text, "there is no '..' between start and end")
        window = cls(_side_ns(text, start, first_ns), _side_ns(text, end, first_ns))
        if window.start_ns is not None and window.end_ns is not None and window.end_ns <= window.start_ns:
            raise BadWindowError.of(text, "the end is not after the start")
        return window


@dataclass(frozen=True)
class Scope:
    """What the user asked for: a window, a device, a process; None is everything."""

    window: Window | None = None
    device: int | None = None
    process: int | None = None

    def __str__(self) -> str:
        """What it is in words: ``window 'step#3', GPU 0``; empty for everything."""
        parts = {"window": self.window and repr(str(self.window)), "GPU": self.device, "process": self.process}
        return ", ".join(f"{name} {part}" for name, part in parts.items() if part is not None)


def _side_ns(text: str, side: str, first_ns: int) -> int | None:
    if not side.strip():
        return None
    found = parse_time_ns(side)
    if found is None:
        raise BadWindowError.of(text, f"{side.strip()!r} is not a time with a unit (ns, us, ms or s)")
    found += first_ns if relative(side) else 0
    if abs(found) > _LATEST_NS:
        raise BadWindowError.of(text, f"{side.strip()!r} is later than any time of a report")
    return found


def _side_text(side_ns: int | None) -> str:
    """A side of a window as :func:`_side_ns` reads it, in the largest unit that needs no decimals."""
    if side_ns is None:
        return ""
    scale, unit = next((scale, unit) for scale, unit in _STEPS if side_ns % scale == 0)
    return f"{side_ns // scale}{unit}"


def relative(side: str) -> bool:
    """Whether a side of a window is counted from the report's first event on."""
    return side.lstrip().startswith("+")


def lasting(text: str, windows: list[Window]) -> list[Window]:
    """The `windows` that have a duration, of all those that `text` names."""
    found = [window for window in windows if not window.empty]
    if not found:
        raise BadWindowError.empty(text, len(windows))
    return found
