"""Modules that load when something of them is first asked for, not when they are imported."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from importlib.util import LazyLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec
    from types import ModuleType


@contextmanager
def loading_late(*names: str, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """Lets modules that are first imported in here load when first used, as `importlib.util.LazyLoader` does.

    For what is imported as a whole (``import a.b``, ``from a import b``) and most programs never use.

    Args:
        names: Modules, and packages with all that is in them.
        within: Makes the context in which each of them loads.
    """
    finder = _Finder(names, within)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds some modules where they usually are."""

    def __init__(self, names: Sequence[str], within: Callable[[], AbstractContextManager[object]]) -> None:
        """For modules of these names, and those in packages of these names."""
        self._names = names
        self._within = within

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec of a module, but for its loader."""
        wanted = any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)
        spec = PathFinder.find_spec(fullname, path, target) if wanted else None
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader  # of this import alone
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with self._within():
                load(module)

        loader.exec_module = exec_module
        spec.loader = LazyLoader(loader)
        return spec
