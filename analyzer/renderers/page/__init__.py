"""Builds pages, as sections without layout, for every kind of summary."""
