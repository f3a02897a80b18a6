"""What a step said last: of a program, without what the tool around it says in the same log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base import process
from kanalyze.collectors.tools import ncu, nsys

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from kanalyze.collectors.base.step import Step

#: So much of what was said is shown where something failed.
_LINES: Final = 12

#: So much of a log is looked at: a tool may say a good deal after the program's end.
_LOOKED_AT: Final = 200

#: What each tool says of its own, by the first word of a step's name.
_OWN: Final[dict[str, Callable[[str], re.Match[str] | None]]] = {
    "nsys": nsys.OWN_LINE.search,
    "ncu": ncu.OWN_LINE.search,
}


def last_words(step: Step, *, of_program: bool = False) -> list[str]:
    """The last lines of a step's log; the program's own where it has any, if they are asked for.

    The folder that the capture is made in has another name in the end: files in it are told without it.
    """
    said = process.tail(step.log, _LOOKED_AT)
    is_own = _OWN.get(step.name.partition("-")[0])
    if of_program and is_own is not None:
        said = [line for line in said if not is_own(line)] or said
    inside = f"{step.log.parent.parent}{os.sep}"
    return [line.replace(inside, "") for line in said[-_LINES:]]
