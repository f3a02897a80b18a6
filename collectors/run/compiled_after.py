"""Finds what Triton and inductor compiled in a run without the torch pass, by comparing their caches.

Such a run uses the user's own caches, as without a profiler. New entries were compiled in the run; for older entries it
is unknown whether the run used them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.in_workload import compiled
from kanalyze.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable


#: Most kernels named in a note.
_NAMED: Final = 3


def cached() -> frozenset[Path]:
    """The kernels in the user's caches, unread; to be called before the run."""
    return frozenset(path for cache in compiled.caches(os.environ) for path in cache.glob("*/*.json"))


def keep(folder: Path, before: frozenset[Path], launched: Iterable[str]) -> list[str]:
    """Write ``compiled.json`` and the PTX of new cache entries, unless the torch pass did.

    Returns:
        Notes: which of the `launched` kernels came from the caches and are not among them.
    """
    if (folder / compiled.FILE).exists():
        return []
    found = compiled.entries(compiled.caches(os.environ))
    old = frozenset(entry.metadata["hash"] for entry in found if entry.path in before)
    made = compiled.rows(found, before=old, fresh=False)
    compiled.keep(folder, found, made)
    new = {row["name"] for row in made}
    cached_names = {str(entry.metadata.get("name") or entry.path.stem) for entry in found}
    known = sorted((set(launched) & cached_names) - new)
    if not known:
        return []
    named = ", ".join(known[:_NAMED]) + (", …" if len(known) > _NAMED else "")
    told = f"{plural(len(known), 'kernel')} ({named}) came from Triton's cache, so that compiled.json does not have "
    return [f"{told}{'it' if len(known) == 1 else 'them'}; the torch pass compiles everything afresh"]


# Lock files of torch extension builds: a stale one makes every later run wait for ever.

#: One folder per extension, in the default location below one per Python and CUDA version.
_PATTERNS: Final = ("lock", "*/lock", "*/*/lock")


def folder() -> Path:
    """The folder in which torch builds extensions."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "torch_extensions"


def notes(began_unix_s: float) -> list[str]:
    """Notes on stale lock files, after a run that began at that time was stopped."""
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
