"""Text building blocks of pages and tables: grids, names, headings."""
