"""Texts that all pages and tables use: grids, names, headings."""
