"""Threads, processors, memory and imports: what makes work faster or smaller, and gives no figure another value."""

import os
import pkgutil
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from threading import RLock
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor

J = TypeVar("J")
R = TypeVar("R")

#: The environment variable that names the process with which a command ends.
PARENT: Final = "KANALYZE_PARENT"

_places: set[Path] = set()

#: Held while something is made: what is made after a signal would stay.
_making: Final = RLock()
_signals: list[int] = []


def processors() -> int:
    """Number of processors that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Number of threads that work side by side."""
    return min(processors(), 4)  # more wait for each other: for Python's lock, and for memory


def in_order(pool: "Executor", work: Callable[[J], R], jobs: Iterable[J], ahead: int) -> Iterator[R]:
    """The results of `work` for `jobs`, in their order; so many are begun `ahead`, the first ones at once."""
    left = iter(jobs)
    begun = deque(pool.submit(work, job) for job in islice(left, ahead))

    def results() -> Iterator[R]:
        while begun:
            result = begun.popleft().result()
            begun.extend(pool.submit(work, job) for job in islice(left, 1))
            yield result

    return results()


def give_back() -> None:
    """Returns memory to the system that was freed and is kept for later.

    The page of a trace of 330 MB takes 570 MB with it, after decoding, and 760 without. Only glibc has a function for
    that; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - for large reports only

        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


def end_with(parent: int) -> None:
    """Ends this process as soon as `parent` ends, the process that started it, of whose end nothing else may tell."""
    ending_with(parent)()


def ending_with(parent: int) -> Callable[[], None]:
    """What a child calls to end as soon as `parent` does; all that it needs is loaded before the fork.

    Linux alone can do that. Elsewhere children go on until their work is done.
    """
    if sys.platform != "linux":
        return lambda: None
    import ctypes  # noqa: PLC0415 - costs milliseconds, for commands with children only

    prctl = ctypes.CDLL(None).prctl

    def end_with_parent() -> None:
        prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return end_with_parent


@contextmanager
def unfinished(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """A new file or folder beside `target`, to be filled and moved there; removed after the block and by signals.

    Raises OSError if it cannot be made.
    """
    place = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}")  # no name may be longer than 255 bytes
    try:
        with _making:
            if _signals:
                raise KeyboardInterrupt
            _places.add(place)
            place.mkdir() if folder else place.touch(exist_ok=False)
        yield place
    finally:
        _remove(place)
        _places.discard(place)


def remove_forgotten(folder: Path, beginning: str) -> None:
    """Removes what killed programs left unfinished in a folder a day ago or earlier, by how its names begin."""
    for left in folder.glob(f"{beginning}*"):
        with suppress(OSError):
            # left by programs that were killed
            if time.time() - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left, ignore_errors=True)


def remove_at_signals() -> None:
    """Lets signals that end this process, Ctrl-C among them, remove what is unfinished first; those ignored stay so."""
    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end_by)


def end_by(number: int, frame: FrameType | None) -> None:
    """Removes what is unfinished and lets the signal do what it does by default."""
    with _making:
        _signals.append(number)
        for place in [*_places]:
            _remove(place)
    if number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _remove(place: Path) -> None:
    # another thread may go on writing into a folder that is removed
    for _ in range(20):
        if not os.path.lexists(place):
            return
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):
            place.unlink()


# Modules that load when something of them is first asked for, with the memory and threads that a command needs.

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
    return loading_late("kanalyze", within=sparing_memory)


@contextmanager
def loading_late(*names: str, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """Lets modules that are first imported in here load when first used.

    For what is imported as a whole (``import a.b``, ``from a import b``) and most programs never use. As with
    `importlib.util.LazyLoader`, but that the import of a module leaves the packages around it unloaded, too. A package
    is named for all that is in it; `within` makes the context in which each of them loads.
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
        is_late = any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)
        spec = PathFinder.find_spec(fullname, path, target) if is_late else None
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
    variables = {"_RJEM_MALLOC_CONF": _SPARING, "POLARS_MAX_THREADS": str(workers()), _BLAS_THREADS: "1"}
    # polars imports importlib.metadata to look for a plugin of Iceberg tables: 8 ms of the 430 of a small page
    with _in_environment(**variables), loading_late("importlib.metadata"):
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
    with _in_environment(**({_BLAS_THREADS: "1"} if _imported and "numpy" not in sys.modules else {})):
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
