"""Modules that load when something of them is first asked for, with the memory and threads that a command needs.

Without any of it every table and page stays the same.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, Final

from kanalyze.machinery.processes import workers

#: What polars imports to look for a plugin that reads Iceberg tables: 5 ms of the 0.26 s of a small page.
_RARELY_USED: Final = "importlib.metadata"

#: Where OpenBLAS, which comes with NumPy, looks for how many threads it may have.
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"

#: One arena, in which large blocks stay with the others, and what is free goes back after three seconds.
_SPARING: Final = "narenas:1,oversize_threshold:0,dirty_decay_ms:3000,muzzy_decay_ms:0"

#: What was imported by :func:`sparing_memory`: nothing where kanalyze is a library of another program.
_imported: set[str] = set()


def modules(package: str, folders: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Room, name and dotted name of each module one level below the `folders` of a package; imports nothing."""
    rooms = ((folder, room.name) for folder in folders for room in pkgutil.iter_modules([folder]) if room.ispkg)
    for folder, room in rooms:
        for module in pkgutil.iter_modules([str(Path(folder, room))]):
            if not module.ispkg:
                yield room, module.name, f"{package}.{room}.{module.name}"


def late() -> AbstractContextManager[None]:
    """Lets modules of kanalyze be imported in here, by ``from package import module``, and load when first used.

    For what commands use and --help need not wait for: above all what imports polars, which takes longer than the rest
    of the start together; and of formats and kinds of page the one that is used.
    """
    return loading_late("kanalyze", within=_sparing)


@contextmanager
def _sparing() -> Iterator[None]:
    with sparing_memory(), loading_late(_RARELY_USED):
        yield


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
    """Finds some modules, and those in packages of these names, where they usually are."""

    def __init__(self, names: Sequence[str], within: Callable[[], AbstractContextManager[object]]) -> None:
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
    """Makes modules that load themselves, by their `usual` loader and in a context."""

    def __init__(self, usual: Loader, within: Callable[[], AbstractContextManager[object]]) -> None:
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


@contextmanager
def sparing_memory() -> Iterator[None]:
    """Lets polars be imported in here, where it is, with an allocator that keeps less, and with few threads.

    The page of a report of 23 MB takes 255 MB instead of 295, and the same CPU time; benchmarks/ has the rest. jemalloc
    reads its options when it is loaded, polars when it starts its threads; no other program is to have them.
    """
    if "polars" in sys.modules:
        with one_blas_thread():
            yield
        return
    with _in_environment(_RJEM_MALLOC_CONF=_SPARING, POLARS_MAX_THREADS=str(workers()), **{_BLAS_THREADS: "1"}):
        yield
        if polars := sys.modules.get("polars"):
            polars.thread_pool_size()
            _imported.add("polars")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Lets NumPy be imported in here without threads for linear algebra, in a process of kanalyze's own.

    Such a process is one in which :func:`sparing_memory` imported polars; others may multiply matrices. OpenBLAS starts
    a thread for each processor but one, and each looks for work in a loop before it sleeps: on 2 processors for 0.07 s
    of the 1.4 s of CPU time that the page of a report of 23 MB takes.
    """
    own = "numpy" not in sys.modules and bool(_imported)
    with _in_environment(**({_BLAS_THREADS: "1"} if own else {})):
        yield


@contextmanager
def _in_environment(**chosen: str) -> Iterator[None]:
    """Has variables in the environment meanwhile, those that the user set aside."""
    unset = {name: value for name, value in chosen.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)
