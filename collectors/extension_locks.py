"""The lock files of torch's extension builds: one that a stopped build leaves makes every later run wait for ever."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

#: torch's folder has one for each extension, below one for each Python and CUDA where it chose the place itself.
_PATTERNS: Final = ("lock", "*/lock", "*/*/lock")


def folder() -> Path:
    """Where torch builds extensions."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "torch_extensions"


def notes(began_unix_s: float) -> list[str]:
    """What to say of the lock files that are there after a run was stopped that began at that time."""
    told = []
    for path in sorted({path for pattern in _PATTERNS for path in folder().glob(pattern)}):
        with suppress(OSError):
            if path.stat().st_mtime >= began_unix_s:
                told.append(
                    f"{path} is left of a build that was stopped: remove it, or later runs wait for it for ever"
                )
            else:
                told.append(
                    f"{path} is older than this run, which may have waited for it: remove it, unless something is built"
                )
    return told
