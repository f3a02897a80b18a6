"""Memory that is free, and that the C library keeps for later."""

from __future__ import annotations

import sys


def give_back() -> None:
    """Let the system have it: after a large report was read that is as much as a third of what was read.

    Only glibc has a function for that; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - for large reports only

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
