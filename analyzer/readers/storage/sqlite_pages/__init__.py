"""Large SQLite tables, read page by page: a sealed room, which only :class:`.SqliteFile` opens (:mod:`.blocks`)."""
