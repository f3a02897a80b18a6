"""Colours of the ledger's buckets in pictures and HTML: each three times as light or dark as paper, in both themes."""

from typing import Final

#: A colour for each bucket, and for what is left of a ledger beside its largest ones.
COLOURS: Final = {
    "kernel": "#2ca25f",
    "communication": "#c51b8a",
    "memcpy": "#2b8cbe",
    "memset": "#1f9aaa",
    "profiler": "#707070",
    "loading": "#d5801c",
    "allocation": "#a98a00",
    "launch": "#d73027",
    "queued": "#9e6ebd",
    "sync": "#f0643a",
    "api": "#3f9f82",
    "host": "#4575b4",
    "unknown": "#929292",
    "rest": "#929292",
}

#: Buckets on whose colours white is easier to read than black.
DARK: Final = ("communication", "profiler", "launch", "host")
