"""Large SQLite tables, read page by page: a sealed room, which only :class:`.SqliteFile` opens (:mod:`.blocks`).

Another process may decode them (:mod:`.shared_tables`), for :mod:`kanalyze.readers.storage.decoded_ahead`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Larger tables are decoded by pages; below, importing numpy costs more than it saves (see docs).
PAGES_FROM_ROWS: Final = 40_000

#: The same in a file that has such a table: numpy is imported anyway, and decoding by pages begins to save time here.
PAGES_ANYWAY_FROM_ROWS: Final = 2_000


def worth_decoding(rows: int, largest_rows: Callable[[], int]) -> bool:
    """Whether a table of so many rows is read faster by pages; `largest_rows` counts those of the file's largest."""
    return rows > PAGES_FROM_ROWS or (rows > PAGES_ANYWAY_FROM_ROWS and largest_rows() > PAGES_FROM_ROWS)
