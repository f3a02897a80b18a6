"""The last output of a step; of a program without the messages of the tool around it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base import process
from kanalyze.collectors.tools import ncu, nsys

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from kanalyze.collectors.base.step import Step

#: Lines shown of a failure's output.
_LINES: Final = 12

#: Lines at the end of a log that are searched: a tool may print much after the program's end.
_LOOKED_AT: Final = 200

#: Patterns of each tool's own messages, by the first word of a step's name.
_OWN: Final[dict[str, Callable[[str], re.Match[str] | None]]] = {
    "nsys": nsys.OWN_LINE.search,
    "ncu": ncu.OWN_LINE.search,
}


def last_words(step: Step, *, of_program: bool = False) -> list[str]:
    """The last lines of a step's log; with `of_program` only the program's own, if there are any.

    The temporary capture folder is removed from paths, since it is renamed at the end.
    """
    said = process.tail(step.log, _LOOKED_AT)
    is_own = _OWN.get(step.name.partition("-")[0])
    if of_program and is_own is not None:
        said = [line for line in said if not is_own(line)] or said
    inside = f"{step.log.parent.parent}{os.sep}"
    return [line.replace(inside, "") for line in said[-_LINES:]]
