"""Parses numbers and units as ncu prints them: thousands separators of any locale, and SI prefixes.

ncu separates thousands as the locale does (``16,896.50``, ``16.896,50``, ``16 896,50``) and says nowhere which one that
was. It prints no number with three decimals on the details page, and six of them or two on the raw page, so that a
group of three digits behind a separator is one of thousands; where only such numbers occur, and all with points, it
could still be a number of another program's making, and nothing is guessed.

Unless it is told ``--print-units base``, ncu divides a value by 1,000 for each step of the prefix that it puts before
the unit, wherever that stands: ``2614 %/byte`` becomes ``2.614 %/Kbyte``. That is undone as it was done.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable


class Separators(NamedTuple):
    """The thousands separator and the decimal separator."""

    thousands: str
    decimal: str


POINT: Final = Separators(",", ".")
COMMA: Final = Separators(".", ",")

#: Characters that can only be thousands separators.
_SPACES: Final = "[\\s\u00a0\u2009\u202f'\u2019]"

#: Unambiguous numbers for one decimal separator ({1}; {0} is the other sign).
_SURE: Final = (
    r"^[+-]?\d{{1,3}}(?:{0}\d{{3}})+{1}\d+$"  # both signs
    r"|^[+-]?\d{{1,3}}(?:{0}\d{{3}}){{2,}}$"  # a sign that occurs twice separates thousands
    r"|^[+-]?\d+{1}(?:\d{{1,2}}|\d{{4,}})(?:[eE][+-]?\d+)?$"  # not three digits
    r"|^[+-]?(?:0|\d{{4,}}){1}\d+(?:[eE][+-]?\d+)?$"  # no group of thousands before it
)
_SURE_POINT: Final = _SURE.format(",", r"\.")
_SURE_COMMA: Final = _SURE.format(r"\.", ",")
_GROUP: Final = r"^[+-]?[1-9]\d{{0,2}}{0}\d{{3}}$"
_COMMA_GROUP, _POINT_GROUP = _GROUP.format(","), _GROUP.format(r"\.")

#: Printed for a metric that could not be collected.
MISSING: Final = ("", "n/a", "N/A", "no data")

#: Printed after the sum of a metric's instances, with ``--print-metric-instances``.
_INSTANCES: Final = r"^(\S+) \(.*\)$"


class AmbiguousError(ValueError):
    """Numbers whose separators are ambiguous or contradictory; says which."""


def plainly(column: str) -> pl.Expr:
    """Parses a text column as plain numbers: decimal points, no thousands separators.

    Null for texts that are not numbers; infinities and NaN may remain.
    """
    return pl.col(column).str.replace_all(POINT.thousands, "", literal=True).cast(pl.Float64, strict=False)


def separators(texts: pl.Series, known: Iterable[tuple[str, int]] = ()) -> Separators:
    """Detects the separators used in `texts`.

    Args:
        texts: All values of a file, numbers and others.
        known: Values that are known from elsewhere in the file, with their texts; they decide where nothing else does.

    Raises:
        AmbiguousError: Some are written one way and some the other, or all of them can be read either way.
    """
    every = texts.drop_nulls().unique().str.replace_all(_SPACES, "")
    every = every.filter(every.str.contains("[.,]"))  # without either a number is the same any way
    point, comma, comma_groups, point_groups = (
        every.filter(every.str.contains(pattern)) for pattern in (_SURE_POINT, _SURE_COMMA, _COMMA_GROUP, _POINT_GROUP)
    )
    if len(point) and len(comma):
        raise AmbiguousError(f"{point.sort()[0]!r} has a decimal point, {comma.sort()[0]!r} a decimal comma")
    if len(point):
        return POINT
    if len(comma):
        return COMMA
    if not len(point_groups):
        return POINT
    sizes = [(text, size) for text, size in known if size]
    for way in (POINT, COMMA):
        if any(_is(text, value, way) for text, value in sizes):
            return way
    found = point_groups.sort()[0]
    other = f", and {comma_groups.sort()[0]!r} occurs, too" if len(comma_groups) else ""
    raise AmbiguousError(f"{found!r} can be a number of thousands or one with decimals{other}")


def _is(text: str, value: int, way: Separators) -> bool:
    """Whether a text with separators has this value when parsed with the separators `way`."""
    plain = re.sub(_SPACES, "", text)
    if not re.search("[.,]", plain):
        return False
    try:
        return float(plain.replace(way.thousands, "").replace(way.decimal, ".")) == value
    except ValueError:
        return False


def numbers(column: str, way: Separators) -> pl.Expr:
    """Parses a text column with given separators; null where it is not a finite number."""
    plain = pl.col(column).str.replace(_INSTANCES, "${1}").str.replace_all(_SPACES, "")
    plain = plain.str.replace_all(way.thousands, "", literal=True).str.replace_all(way.decimal, ".", literal=True)
    value = plain.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def missing(column: str) -> pl.Expr:
    """Whether a text means "no value": empty, n/a or NaN."""
    text = pl.col(column)
    return text.is_null() | text.is_in(MISSING) | text.str.contains(r"^[+-]?(?i:nan|inf(?:inity)?)$")


#: Units that ncu scales by a prefix; other units that begin with these letters are not scaled.
_SCALED: Final = re.compile(r"([KMGTP])(byte|hz|inst|sector)|\b([numµ]?)(?:second|s)\b")
_STEPS: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {"n": 1.0, "u": 1e3, "µ": 1e3, "m": 1e6, "": 1e9}

#: Older spellings of hz and /s.
_OLD_RATES: Final = {"cycle/nsecond": (1e9, "hz"), "cycle/usecond": (1e6, "hz"), "cycle/second": (1.0, "hz")}
_PER_TIME: Final = re.compile(r"/([num]?)(?:second|s)$")
_PER: Final = {"n": 1e9, "u": 1e6, "m": 1e3, "": 1.0}


def base_unit(unit: str) -> tuple[float, str]:
    """The factor from `unit` to ncu's base unit, and that unit: ``us`` is 1,000 ``ns``."""
    if unit in _OLD_RATES:
        return _OLD_RATES[unit]
    factor, rate = 1.0, _PER_TIME.search(unit)
    if rate is not None:
        factor, unit = _PER[rate[1]], unit[: rate.start()] + "/s"
        return (factor * _scale(unit)[0], _scale(unit)[1])
    time = _SCALED.fullmatch(unit)
    if time is not None and time[1] is None:
        return _SECONDS[time[3]], "ns"
    return _scale(unit)


def _scale(unit: str) -> tuple[float, str]:
    found = _SCALED.search(unit)
    if found is None or found[1] is None:
        return 1.0, unit
    return _STEPS[found[1]], unit[: found.start()] + unit[found.start() + 1 :]
