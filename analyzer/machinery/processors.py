"""Number of processors to work with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: More threads wait for each other: for Python's lock, and for memory.
_MOST_WORKERS: Final = 4


def processors() -> int:
    """Number of processors that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Number of threads that work side by side."""
    return min(processors(), _MOST_WORKERS)


def one_is_idle() -> bool:
    """Whether a processor has nothing to do at this moment, as far as Linux tells; False elsewhere.

    What runs or waits for a processor is counted on the whole machine, this process with it.
    """
    try:
        running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
        return int(running) < processors()
    except (OSError, ValueError, IndexError):
        return False
