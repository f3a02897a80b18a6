"""Columnar access to tables in an SQLite file or in a folder, whatever tool wrote them."""
