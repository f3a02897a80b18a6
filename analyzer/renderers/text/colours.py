"""Colours of the ledger's buckets: in pictures and HTML three times as light or dark as paper, in both themes."""

from typing import Final

#: A colour and the SGR code of a terminal's, for each bucket, and for what is left beside the largest ones.
_BUCKETS: Final = {
    "kernel": ("#2ca25f", "32"),
    "communication": ("#c51b8a", "35"),
    "memcpy": ("#2b8cbe", "34"),
    "memset": ("#1f9aaa", "36"),
    "profiler": ("#707070", "90"),
    "loading": ("#d5801c", "33"),
    "allocation": ("#a98a00", "93"),
    "launch": ("#d73027", "31"),
    "queued": ("#9e6ebd", "95"),
    "sync": ("#f0643a", "91"),
    "api": ("#3f9f82", "96"),
    "host": ("#4575b4", "94"),
    "unknown": ("#929292", "37"),
    "rest": ("#929292", "37"),
}
COLOURS: Final = {bucket: colour for bucket, (colour, _) in _BUCKETS.items()}
CODES: Final = {bucket: code for bucket, (_, code) in _BUCKETS.items()}

#: Buckets on whose colours white is easier to read than black.
DARK: Final = ("communication", "profiler", "launch", "host")
