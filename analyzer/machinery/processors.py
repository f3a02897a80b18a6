"""Number of processors to work with."""

from __future__ import annotations

import os
from typing import Final

#: More threads wait for each other: for Python's lock, and for memory.
_MOST_WORKERS: Final = 4


def processors() -> int:
    """Number of processors that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Number of threads that work side by side."""
    return min(processors(), _MOST_WORKERS)
