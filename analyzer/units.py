"""Formats quantities as text, and parses them: the only module that does.

Values are rounded nowhere else, and never misleadingly: a share that is not 0 or 1 never prints as 0 % or 100 %.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

from kanalyze.tools import TOOLS

_NS_PER_UNIT: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
#: Python does not read numbers of thousands of digits.
_TIME: Final = r"(?a)\s*([+-]?)(\d{1,300})(?:\.(\d{1,300}))?\s*(ns|us|µs|μs|ms|s)\s*"

#: The slowest that a change makes operations: the times of longer ones would not go into 64 bits.
SLOWEST: Final = 0.001
_SLOWEST_RATE: Final = 1000

_BYTES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_TIME_STEPS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
#: Smallest total in each unit for which times are given in it: a few seconds are given in ms.
_LEAST: Final = {"s": 100, "ms": 1, "µs": 1}
_PREFIXES: Final = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_PER_MILLE: Final = 0.001
#: What a tool itself says of a report.
_SAID: Final = tuple(f"{one.name}: " for one in TOOLS if one.warns)


def parse_time_ns(text: str) -> int | None:
    """Parses a time with unit, such as ``1.5 ms``, to ns; None if invalid, or beyond 64 bits.

    Digits below a nanosecond are truncated.
    """
    match = re.fullmatch(_TIME, text)
    if match is None:
        return None
    sign, whole, fraction, unit = match.groups()
    scale = _NS_PER_UNIT[unit]
    size = int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
    # the longest time of 64 bits
    return (-size if sign == "-" else size) if size <= (1 << 63) - 1 else None


def parse_percent(text: str) -> float | None:
    """Parses a percentage, such as ``50%``, to a share; None if invalid."""
    match = re.fullmatch(r"(?a)\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    return float(match[1]) / 100 if match else None


def parse_rate(text: str) -> float | None:
    """Parses a bandwidth, such as ``50 GB/s``, to bytes per second; None if invalid, or below 1 kB/s."""
    match = re.fullmatch(r"(?a)\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B/s\s*", text)
    rate = float(match[1]) * _BYTES[match[2]] if match else 0
    return rate if _SLOWEST_RATE <= rate < math.inf else None


def time(ns: float) -> str:
    """Formats a duration with a suitable unit and four digits: ``57.26 ms``, ``209.8 µs``, ``904 ns``."""
    return _scaled(ns, _TIME_STEPS) or f"{ns:.{int(ns != int(ns))}f} ns"


def _scaled(value: float, steps: Sequence[tuple[int, str]], unit: str = "") -> str:
    """A value in the largest unit of which it is about one, with four digits; empty where it is less than all."""
    for step, name in steps:
        if abs(value) >= step * 0.9995:
            size = abs(value / step)
            places = 3 if size < 9.9995 else 2 if size < 99.995 else 1  # noqa: PLR2004 - where the fourth digit is
            return f"{value / step:.{places}f} {name}{unit}"
    return ""


def instead(after_ns: float, before_ns: float) -> str:
    """Formats what a duration would become: ``1.6 ms instead of 5.9``, with as few digits as tell them apart."""
    step, unit = next(((step, unit) for step, unit in _TIME_STEPS if before_ns >= step), (1, "ns"))
    for digits in (2, 3, 4):
        after, before = (_significant(ns / step, digits) for ns in (after_ns, before_ns))
        if after != before:
            return f"{after} {unit} instead of {before}"
    return f"{time(after_ns)} instead of {time(before_ns)}"


def _significant(value: float, digits: int) -> str:
    """A value with so many significant digits."""
    places = digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2]) if value else 0
    return f"{round(value, places):,.{max(places, 0)}f}"


def size(count_bytes: float) -> str:
    """Formats a size in decimal units: ``8.389 MB``, ``512 B``."""
    return _scaled(count_bytes, _PREFIXES[1:], "B") or f"{count_bytes:.0f} B"


def rate(bytes_per_s: float) -> str:
    """Formats a bandwidth: ``30.84 GB/s``."""
    return f"{size(bytes_per_s)}/s"


def frequency(hz: float) -> str:
    """Formats a frequency in MHz: ``1,500 MHz``."""
    return f"{hz / 1e6:,.0f} MHz"


def flop(count: float, unit: str = "FLOP") -> str:
    """Formats a count of operations, by default floating-point: ``17.18 GFLOP``."""
    return _scaled(count, _PREFIXES, unit) or f"{count:.0f} {unit}"


def operations(precision: str | None) -> str:
    """The unit of operations in a precision of the table `roofline`: integer operations are not FLOP."""
    return "OP" if precision is not None and precision.startswith("tensor int") else "FLOP"


def percent(share: float) -> str:
    """Formats a share as percent with one decimal; only 0 and 1 print as 0 % and 100 %."""
    if 0 < share < _PER_MILLE / 2:
        return "<0.1 %"
    return ">99.9 %" if 1 - _PER_MILLE / 2 < share < 1 else f"{share * 100:.1f} %"


def change(ratio: float) -> str:
    """Formats a ratio as a signed change: ``−4.2 %``, ``+0.3 %``, ``>−0.1 %`` and ``<+0.1 %`` next to none."""
    text, less = percent(abs(ratio - 1)), ratio < 1
    bound = text.lstrip("<>")
    side = "" if text == bound else "<" if text.startswith(">" if less else "<") else ">"
    return f"{side}{'−' if less else '+'}{bound}"


def times(ratio: float) -> str:
    """Formats a ratio: ``1.20 ×``, ``8.42 ×``, ``1,104 ×``."""
    places = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0  # noqa: PLR2004 - three digits
    return f"{ratio:,.{places}f} ×"


def instant(ns: int, zero_ns: int = 0) -> str:
    """Formats a time stamp to the microsecond: ``317.837 ms``, ``7.071573 s``.

    Relative to another origin, `zero_ns`, it is signed: ``+317.837 ms``.
    """
    sign, ns = ("+" if zero_ns else ""), ns - zero_ns
    return f"{ns / 10**6:{sign}.3f} ms" if abs(ns) < _NS_PER_UNIT["s"] else f"{ns / 10**9:{sign}.6f} s"


def moment(ns: int, zero_ns: int = 0) -> str:
    """Formats a time stamp for a sentence: ``317.8 ms``; signed if relative to `zero_ns`."""
    return f"+{time(ns - zero_ns)}" if zero_ns else time(ns)


def adding_up(parts_ns: Sequence[int], total_ns: int) -> list[str]:
    """Formats times in the unit of their total, rounded such that the printed digits sum to the printed total.

    Each is rounded up or down to three decimals, those with the largest remainders up; what would print as nothing
    and is not prints as ``<0.001``.
    """
    unit, step = next(((name, step) for step, name in _TIME_STEPS if total_ns >= step * _LEAST[name]), ("ns", 1))
    if step == 1:
        return [f"{part} {unit}" for part in parts_ns]
    digit = step // 1000
    return [
        f"{value / 1000:.3f} {unit}" if value or not part else f"<0.001 {unit}"
        for value, part in zip(apportioned(parts_ns, (sum(parts_ns) + digit // 2) // digit), parts_ns, strict=True)
    ]


def least_to_most(least_ns: int, most_ns: int, total_ns: int) -> str:
    """Formats two times in the unit of a total, as :func:`adding_up` chooses it, without that: ``17.8 to 24.9``."""
    step = next((step for step, name in _TIME_STEPS if total_ns >= step * _LEAST[name]), 1)
    ends = (f"{ns / step:.3g}" if ns < 100 * step else f"{ns / step:,.0f}" for ns in (least_ns, most_ns))
    return " to ".join(ends)


def apportioned(parts: Sequence[int], whole: int) -> list[int]:
    """Apportions `whole` to integers in proportion to `parts`, by largest remainder; the sum is exact."""
    total = sum(parts)
    if not total:
        return [0 for _ in parts]
    cut = [part * whole // total for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(parts[i] * whole % total), i))
    for i in by_remainder[: whole - sum(cut)]:
        cut[i] += 1
    return cut


def nearest(values: Iterable[float]) -> list[int]:
    """The whole numbers nearest to means of times and sizes, which tables have as whole numbers."""
    return [round(value) for value in values]


def count(number: int) -> str:
    """Formats an integer with thousands separators: ``270,336``."""
    return f"{number:,}"


def short_count(number: int) -> str:
    """Formats an integer for a narrow column: ``950``, ``33.6 k``, ``1.05 M``."""
    return next((f"{number / step:.3g} {prefix}" for step, prefix in _PREFIXES[1:] if number >= step), str(number))


def mean(number: int, of: int) -> str:
    """Formats the mean of a count: ``1,184``, ``12.3``, ``2.5``; decimals tell that it is one, below a hundred."""
    return count(round(number / of)) if number % of == 0 or number >= 100 * of else f"{number / of:.1f}"


def shortened(text: str, longest: int) -> str:
    """The text, without its middle if it is longer: names differ at both ends."""
    kept = longest - 1
    return text if len(text) <= longest else f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def plural(number: int, noun: str) -> str:
    """Formats a count with its noun: ``1 kernel``, ``3,000 kernels``."""
    return f"1 {noun}" if number == 1 else f"{count(number)} {plural_of(noun)}"


def plural_of(noun: str) -> str:
    """The plural of a noun: ``kernels``, ``copies``, ``launches``."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}{'es' if noun.endswith(('s', 'ch', 'sh')) else 's'}"


def checked(check: str, number: int) -> str:
    """Formats a check of the table `health` with its count: ``2 operations without a launch``, ``1 kernel that …``.

    What a tool said once is told without a count.
    """
    text = check.rstrip(".")
    if number != 1:
        return f"{count(number)} {text}"
    if text.startswith(_SAID):
        return text
    words = text.replace(" that overlap ", " that overlaps ").split(" ")
    for place, word in enumerate(words[:2]):  # of which one is the noun
        if re.fullmatch(r"[a-z-]{2,}[a-rt-z]s|[a-z]+sses", word):  # a plural
            ends_in_es = word.endswith(("ches", "shes", "sses"))
            words[place] = f"{word[:-3]}y" if word.endswith("ies") else word[: -2 if ends_in_es else -1]
            break
    return f"1 {' '.join(words)}"
