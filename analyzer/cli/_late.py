"""Modules that commands use and --help need not wait for: they load when something of them is first asked for.

What imports polars, above all, which takes longer than the rest of the start together; and of formats and kinds of page
the one that is used.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kanalyze.machinery.late_loading import loading_late
from kanalyze.machinery.memory import sparing_memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

#: What polars imports to look for a plugin that reads Iceberg tables: 5 ms of the 0.26 s of a small page.
_RARELY_USED: Final = "importlib.metadata"


def late() -> AbstractContextManager[None]:
    """Lets modules of kanalyze be imported in here, by ``from package import module``, and load later.

    They load with an allocator that keeps less memory (:mod:`kanalyze.machinery.memory`).
    """
    return loading_late("kanalyze", within=_sparing)


@contextmanager
def _sparing() -> Iterator[None]:
    with sparing_memory(), loading_late(_RARELY_USED):
        yield
