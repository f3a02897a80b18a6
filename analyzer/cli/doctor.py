"""``kanalyze doctor``: what a full capture needs, and whether it is here."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze import outlets
from kanalyze.cli._late import late
from kanalyze.cli._options import tool_paths
from kanalyze.cli._output import emit, width

with late():
    from kanalyze import collectors
    from kanalyze.collectors.tools import doctor as doctors

if TYPE_CHECKING:
    from kanalyze.collectors.tools.doctor import Examined


@click.command()
@tool_paths
def doctor(**told: Any) -> None:  # noqa: ANN401 - as of Options
    """Check what `kanalyze collect` needs: found or missing, what for, and how to get it.

    The exit status is 1 if anything is missing that a capture needs; what only CPU samples and GPU metrics need is
    told too.
    """
    lines = doctors.doctor(collectors.Options(**told))
    emit("".join(_text(line) for line in lines), None)
    sys.exit(0 if doctors.complete(lines) else 1)


#: Width of the names, and of names with what was found of them.
_NAME: Final = 16
_HEAD: Final = 25


def _text(line: Examined) -> str:
    """One thing: what was found, what for, and how to get it where it is missing."""
    state = "found" if line.ok else "not here" if line.optional else "MISSING"
    first = f"{line.found}: {line.means}" if line.ok else line.found
    rows = [_filled(first, f"{line.name:<{_NAME}}{state}".ljust(_HEAD))]
    if not line.ok:
        rows += [_filled(f"What for: {line.means}."), _filled(f"To get it: {line.remedy}.")]
    return "".join(f"{row}\n" for row in rows)


def _filled(text: str, head: str = " " * _HEAD) -> str:
    return textwrap.fill(outlets.line(text), width(), initial_indent=head, subsequent_indent=" " * _HEAD)
