"""Columns of millions of rows: lookups, groups and order, where plain polars takes longer.

Each function says what it replaces and what that is worth; what was within noise is plain polars where it is needed.
"""
