"""Renderers: tables in, text out; no computation, no I/O, no knowledge of tools."""
