"""The sentence of a page on the critical path: what the end of a step waited for."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.units import percent
from kanalyze.window import WORDS, with_article

#: Causes of time on the path in words.
_WORDS: Final = {
    "kernel": "kernels",
    "communication": "communication",
    "transfer": "communication",
    "memcpy": "copies",
    "memset": "memsets",
    "stream order": "the order of work on the GPU",
    "graph order": "the order of work on the GPU",
    "event wait": "the order of work on the GPU",
    "launch latency": "launches",
    "launch": "launches",
    "return of a wait": "the return of blocking calls",
    "call": "other CUDA calls",
    "host": "the program's own code",
    "unknown": "what the report does not show",
}

_WORK: Final = (*BUSY_BUCKETS, "transfer")

#: What has a smaller share of the path is not told, and the whole is not where the busy part of the path and that of
#: the ledger differ by less.
_NOTABLE: Final = 0.1

#: At most so many causes, and longer names of what has most of the host's time are left out.
_TOLD: Final = 2
_LONGEST: Final = 24


def path_answer(each: str, tables: dict[str, pl.DataFrame]) -> str:
    """Sentence on what the end of an iteration waited for, where the ledger answers otherwise; else empty."""
    path, ledger = tables.get("critical_path"), tables.get("ledger")
    if path is None or ledger is None or path.is_empty() or ledger.is_empty():
        return ""
    work = pl.col("cause").is_in(_WORK)
    on_path = float(path.select(pl.col("share").filter(work).sum()).item())
    busy = ledger.select(pl.col("ns").filter(pl.col("bucket").is_in(BUSY_BUCKETS)).sum() / pl.col("ns").sum()).item()
    if abs(on_path - float(busy)) < _NOTABLE:
        return ""
    words = pl.col("cause").cast(pl.String).replace_strict(_WORDS, return_dtype=pl.String).alias("words")
    sums = path.group_by(words).agg(pl.col("share").sum()).sort("share", "words", descending=[True, False])
    told = [
        f"{what} ({percent(share)}{_mostly(path) if what == _WORDS['host'] else ''})"
        for what, share in sums.head(_TOLD).iter_rows()
        if share >= _NOTABLE
    ]
    what = with_article(each) if each in WORDS else f"each {each!r}"
    return f"The end of {what} waited for {' and '.join(told)}." if told else ""


def _mostly(path: pl.DataFrame) -> str:
    """Name of most of the host's time on the path, if that is most of it and has a short name."""
    name, ns, most = path.filter(pl.col("cause") == "host").select("mostly", "ns", "mostly_ns").row(0)
    short = name is not None and len(name) <= _LONGEST and not name.startswith(("between ", "after ", "before "))
    return f", most in {name}" if short and 2 * most >= ns else ""
