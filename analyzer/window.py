"""Time windows, the syntax in which users write them, and how times and counts of windows of iterations are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.errors import BadWindowError
from kanalyze.units import instant, mean, parse_time_ns, plural, plural_of, time

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Bound of times, so that differences fit int64 nanoseconds: some 146 years.
_LATEST_NS: Final = (1 << 62) - 1

#: What an iteration may be called that is no name of the program, and takes an article.
WORDS: Final = ("step", "repetition", "iteration", "round", "request", "prefill", "decode", "pass")

_STEPS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


@dataclass(frozen=True)
class Window:
    """A time window ``[start_ns, end_ns)``; None leaves a side open.

    `name` is the range that it is an instance of, where it was asked for by name; `group` is what all windows that were
    asked for with it are called together, where their names do not say; `process` is the one whose range it is. Of a
    window of iterations, `count` is their number, and `each` what one of them is called (a step, the range's name).
    """

    start_ns: int | None = None
    end_ns: int | None = None
    name: str | None = None
    group: str | None = field(default=None, compare=False)
    process: int | None = field(default=None, compare=False)
    count: int | None = field(default=None, compare=False)
    each: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """The range's name, or the times in user syntax: ``120ms..250ms``."""
        return self.name or "..".join(map(_side_text, (self.start_ns, self.end_ns)))

    @property
    def empty(self) -> bool:
        """Whether the window has zero duration, as a range within one clock tick."""
        return self.start_ns is not None and self.end_ns is not None and self.end_ns <= self.start_ns

    def refuse_outside(self, text: str, path: Path, recorded: Iterable[tuple[int, int]], zero_ns: int) -> None:
        """Raise :class:`BadWindowError` if the window overlaps none of the `recorded` spans (first, last).

        `text` is the user's argument, of the report at `path`; `zero_ns` is the origin of displayed times.
        """
        known = []
        for span in recorded:  # lazily, since each span may require reading
            known.append(span)
            if self._overlaps(min(first for first, _ in known), max(last for _, last in known)):
                return
        if known:
            edges = min(first for first, _ in known), max(last for _, last in known)
            raise BadWindowError.outside(text, path, *(instant(edge, zero_ns) for edge in edges))

    def _overlaps(self, first_ns: int, last_ns: int) -> bool:
        """Whether the window overlaps ``[first_ns, last_ns]``, both inclusive."""
        begins = self.start_ns is None or self.start_ns <= last_ns
        return begins and (self.end_ns is None or self.end_ns > first_ns)

    @classmethod
    def parse(cls, text: str, first_ns: int = 0) -> Window:
        """Parses a window: ``120ms..250ms``, ``..1.5s``, ``300us..``, ``+10ms..+20ms``.

        A time with a plus sign is relative to `first_ns`.

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


#: How a mean of one is written.
_ONE: Final = ("1", "1.0")


class PerIteration(NamedTuple):
    """Times and counts of a window in words: per iteration, or in all where it is no window of iterations.

    Attributes:
        iterations: Their number; None in any other window.
        each: What one is called, such as ``step``, escaped for a sentence; empty where there are none.
    """

    iterations: int | None
    each: str

    def time(self, ns: float) -> str:
        """A time: ``10.93 ms a step``, or ``655.9 ms``."""
        return time(ns) if self.iterations is None else f"{time(ns / self.iterations)} {self._a}"

    def plural(self, number: int, noun: str, more: str = "") -> str:
        """A count: ``1,184 kernels a step``, ``2.5 kernels a step``, ``3 kernels in 60 steps``, or ``71,040 kernels``.

        A mean below one is told as a count of all, since nobody sees 0.05 kernels in a step. `more` follows the noun:
        ``2 copies of pinned memory a step``.
        """
        more = f" {more}" if more else ""
        if self.iterations is None:
            return f"{plural(number, noun)}{more}"
        if number < self.iterations:
            return f"{plural(number, noun)}{more} in {self.all}"
        if self._is_one(number):
            return f"1 {noun}{more} {self._a}"
        return f"{mean(number, self.iterations)} {plural_of(noun)}{more} {self._a}"

    def clause(self, number: int, noun: str, verb: str, more: str = "") -> str:
        """A count, as :meth:`plural` has it, with its verb: ``1 copy a step runs``, ``2 copies a step run``."""
        return f"{self.plural(number, noun, more)} {verb}{'s' if number == 1 or self._is_one(number) else ''}"

    def _is_one(self, number: int) -> bool:
        """Tells whether a count is one per iteration, by its mean as it is written."""
        return self.iterations is not None and number >= self.iterations and mean(number, self.iterations) in _ONE

    def mean(self, number: int) -> str:
        """A count where it is said elsewhere that it is per iteration: ``1,184``."""
        return mean(number, self.iterations or 1)

    def mean_time(self, ns: float) -> str:
        """A time where the sentence says elsewhere that it is per iteration: ``10.93 ms``."""
        return time(ns / (self.iterations or 1))

    @property
    def all(self) -> str:
        """The iterations: ``60 steps``, ``1 step``, ``60 × train_step``; empty where it is no window of any."""
        if self.iterations is None:
            return ""
        return plural(self.iterations, self.each) if self.each in WORDS else f"{self.iterations:,} × {self.each}"

    @property
    def _a(self) -> str:
        return with_article(self.each) if self.each in WORDS else f"per {self.each}"

    @property
    def of(self) -> str:
        """Of what a time is a part: ``of a step``, ``of each train_step``."""
        return f"of {self._a}" if self.each in WORDS else f"of each {self.each}"


def with_article(each: str) -> str:
    """One iteration: ``a step``, ``an iteration``."""
    return f"{'an' if each[:1] in 'aeiou' else 'a'} {each}"


@dataclass(frozen=True)
class Scope:
    """The selected scope: window, device, process; None selects everything."""

    window: Window | None = None
    device: int | None = None
    process: int | None = None

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """Start and end of the window (ns); None for an open side."""
        return (None, None) if self.window is None else (self.window.start_ns, self.window.end_ns)

    def __str__(self) -> str:
        """The scope in words: ``window 'step#3', GPU 0``; empty for everything."""
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
    """Formats a side of a window for :func:`_side_ns` to parse, in the largest unit without decimals."""
    if side_ns is None:
        return ""
    scale, unit = next((scale, unit) for scale, unit in _STEPS if side_ns % scale == 0)
    return f"{side_ns // scale}{unit}"


def relative(side: str) -> bool:
    """Whether a side of a window is relative to the report's first event."""
    return side.lstrip().startswith("+")


def lasting(text: str, windows: list[Window]) -> list[Window]:
    """Those of the `windows` named by `text` with a duration; BadWindowError if none has one."""
    found = [window for window in windows if not window.empty]
    if not found:
        raise BadWindowError.empty(text, len(windows))
    return found
