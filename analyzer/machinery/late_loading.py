"""Modules that load when something of them is first asked for, not when they are imported."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import LazyLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


@contextmanager
def loading_late(*names: str) -> Iterator[None]:
    """Lets modules that are first imported in here load when first used, as `importlib.util.LazyLoader` does.

    For what a library imports as a whole (``import a.b``) and most programs never use.
    """
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds some modules where they usually are."""

    def __init__(self, names: Sequence[str]) -> None:
        """For modules of these names."""
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec of a module, but for its loader."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec
