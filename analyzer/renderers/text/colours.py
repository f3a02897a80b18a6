"""Colours of the ledger's buckets in pictures and HTML."""

from typing import Final

#: A colour for each bucket, and for what is left of a ledger beside its largest ones.
COLOURS: Final = {
    "kernel": "#2ca25f",
    "communication": "#c51b8a",
    "memcpy": "#2b8cbe",
    "memset": "#41b6c4",
    "profiler": "#969696",
    "loading": "#fdae61",
    "allocation": "#e0b400",
    "launch": "#d73027",
    "queued": "#9e6ebd",
    "sync": "#f46d43",
    "api": "#66c2a5",
    "host": "#4575b4",
    "unknown": "#bdbdbd",
    "rest": "#bdbdbd",
}
