"""Large SQLite tables, read page by page: a sealed room, which only :class:`.SqliteFile` opens (:mod:`.table_scan`)."""

from __future__ import annotations

from typing import Final

#: Larger tables are decoded by pages; below, importing numpy costs more than it saves (see docs).
PAGES_FROM_ROWS: Final = 40_000

#: The same where numpy is imported anyway, for a larger table: decoding by pages begins to save time here.
PAGES_ANYWAY_FROM_ROWS: Final = 2_000
