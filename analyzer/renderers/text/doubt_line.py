"""What of a report is in doubt, in one line: for commands that print figures, and not how far they can be trusted."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kanalyze import units

if TYPE_CHECKING:
    import polars as pl

#: So many doubts are named, each in so many characters.
_NAMED: Final = 6
_WIDE: Final = 120


#: What a tool itself says; of that there is no number.
_SAID: Final = "nsys: "


def render(file: str, doubts: pl.DataFrame) -> str:
    """The line about the report in `file`, some of whose rows of the table `health` are in doubt; nothing for none."""
    told = [_told(*row) for row in doubts.head(_NAMED).select("check", "count", "ns").iter_rows()]
    if not told:
        return ""
    more = doubts.height - len(told)
    rest = f"; and {units.count(more)} more" if more else ""
    return f"{file}: not all of this can be trusted: {'; '.join(told)}{rest}. See `{command(file)}`"


def command(file: str) -> str:
    """The command that shows how far the report in `file` can be trusted."""
    return f"kanalyze show health {shlex.quote(file)}"


def _told(check: str, count: int, ns: int | None) -> str:
    text = check.rstrip(".")
    text = text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
    once = count == 1 and text.startswith(_SAID)
    return ("" if once else f"{units.count(count)} ") + text + (f" ({units.time(ns)})" if ns else "")
