"""Ends child processes with the program that started them, of whose end by SIGKILL nothing else tells them.

Linux alone can do that. Elsewhere children go on until their work is done.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: The environment variable that names the process with which a command ends.
PARENT: Final = "KANALYZE_PARENT"

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent: int) -> None:
    """Ends this process as soon as `parent` ends, the process that started it."""
    ending_with(parent)()


def ending_with(parent: int) -> Callable[[], None]:
    """What a child calls to end as soon as `parent` does; all that it needs is loaded before the fork."""
    if sys.platform != "linux":
        return lambda: None
    import ctypes  # noqa: PLC0415 - costs milliseconds, for commands with children only

    prctl = ctypes.CDLL(None).prctl

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return end_with_parent
