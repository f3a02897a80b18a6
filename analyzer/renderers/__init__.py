"""Renderers: tables in, text out. They compute nothing, open nothing and know no tool."""
