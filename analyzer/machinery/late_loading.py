"""Modules that load when something of them is first asked for, not when they are imported."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from importlib.abc import Loader
from importlib.machinery import PathFinder
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec


@contextmanager
def loading_late(*names: str, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """Lets modules that are first imported in here load when first used.

    For what is imported as a whole (``import a.b``, ``from a import b``) and most programs never use. As with
    `importlib.util.LazyLoader`, but that the import of a module leaves the packages around it unloaded, too.

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
        spec.loader = _LateLoader(spec.loader, self._within)
        return spec


class _LateLoader(Loader):
    """Makes modules that load themselves."""

    def __init__(self, usual: Loader, within: Callable[[], AbstractContextManager[object]]) -> None:
        """With the loader that they have then, and the context in which it loads."""
        self.usual = usual
        self.within = within
        self._lock, self._loads = RLock(), False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The empty module."""
        return self.usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Leaves it empty, but for its usual loader, which knows its data."""
        spec = _spec_of(module)
        spec.loader_state, spec.loader = self, self.usual
        module.__loader__ = self.usual
        module.__class__ = _Late

    def load(self, module: ModuleType) -> None:
        """Loads it as usual, once, whichever thread asks first; a module that failed will try anew."""
        with self._lock:
            if self._loads or module.__class__ is ModuleType:  # asked for something of its own, or by another thread
                return
            self._loads = True
            try:
                with self.within():
                    self.usual.exec_module(module)
            finally:
                self._loads = False
            module.__class__ = ModuleType


class _Late(ModuleType):
    """A module that loads when it is asked for what it does not have yet: anything but its name, spec and path."""

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of any type
        if name in ("__doc__", "__dict__"):  # which is None, and nearly empty, until then
            self.__getattr__(name)
        return ModuleType.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        folders = ModuleType.__getattribute__(self, "__dict__").get("__path__")
        if name == "__path__" or (folders and PathFinder.find_spec(f"{self.__name__}.{name}", folders)):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")  # it is imported next
        _spec_of(self).loader_state.load(self)
        return ModuleType.__getattribute__(self, name)


def _spec_of(module: ModuleType) -> ModuleSpec:
    assert module.__spec__ is not None, "it is imported"  # noqa: S101 - by a finder of ours
    return module.__spec__
