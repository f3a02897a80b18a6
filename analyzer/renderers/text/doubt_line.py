"""A one-line warning about unreliable data, for commands that print figures without health checks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kanalyze import units

if TYPE_CHECKING:
    import polars as pl

#: Most doubts listed, and characters of each.
_NAMED: Final = 6
_WIDE: Final = 120


#: Doubts reported by the tool itself; they have no count.
_SAID: Final = "nsys: "


def render(file: str, doubts: pl.DataFrame) -> str:
    """The warning for the report in `file`, from doubtful rows of the table `health`; empty if there are none."""
    told = [_told(*row) for row in doubts.head(_NAMED).select("check", "count", "ns").iter_rows()]
    if not told:
        return ""
    more = doubts.height - len(told)
    rest = f"; and {units.count(more)} more" if more else ""
    return f"{file}: not all of this can be trusted: {'; '.join(told)}{rest}. See `{command(file)}`"


def command(file: str) -> str:
    """The command that prints the full health checks of `file`."""
    return f"kanalyze show health {shlex.quote(file)}"


def _told(check: str, count: int, ns: int | None) -> str:
    text = check.rstrip(".")
    text = text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
    once = count == 1 and text.startswith(_SAID)
    return ("" if once else f"{units.count(count)} ") + text + (f" ({units.time(ns)})" if ns else "")
