"""Memory that allocators keep for later, and threads that libraries start: fewer, and memory back after large work."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kanalyze.machinery.processors import workers

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where polars' allocator looks for its options.
_ALLOCATOR: Final = "_RJEM_MALLOC_CONF"

#: Where polars looks for how many threads it may have.
_THREADS: Final = "POLARS_MAX_THREADS"

#: Where OpenBLAS, which comes with NumPy, looks for how many threads it may have.
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"

#: What was imported by :func:`sparing_memory`: nothing where kanalyze is a library of another program.
_imported: set[str] = set()

#: One arena, in which large blocks stay with the others, and what is free goes back after three seconds.
_SPARING: Final = "narenas:1,oversize_threshold:0,dirty_decay_ms:3000,muzzy_decay_ms:0"


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
    chosen = {_ALLOCATOR: _SPARING, _THREADS: str(workers()), _BLAS_THREADS: "1"}
    with _in_environment(chosen):
        yield
        if polars := sys.modules.get("polars"):
            polars.thread_pool_size()
            _imported.add("polars")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Lets NumPy be imported in here without threads for linear algebra, in a process of kanalyze's own.

    Such a process is one in which :func:`sparing_memory` imported polars.

    OpenBLAS starts one for each processor but one, and each looks for work in a loop before it sleeps: on 2 processors
    for 0.07 s of the 1.4 s of CPU time that the page of a report of 23 MB takes. A program that has kanalyze as a
    library may multiply matrices.
    """
    if "numpy" in sys.modules or not _imported:
        yield
        return
    with _in_environment({_BLAS_THREADS: "1"}):
        yield


@contextmanager
def _in_environment(chosen: dict[str, str]) -> Iterator[None]:
    """Has variables in the environment meanwhile, those that the user set aside."""
    own = {name: value for name, value in chosen.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


def give_back() -> None:
    """Returns memory to the system that was freed and is kept for later.

    The page of a trace of 330 MB takes 570 MB with it, after decoding, and 760 without. Only glibc has a function for
    that; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - for large reports only

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
