"""Large SQLite tables, read page by page: a sealed room behind :mod:`.blocks`."""
