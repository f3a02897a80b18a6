"""NVTX ranges by the names that users give them: ``domain:name``, and one instance of several as ``name#3``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Between a domain and the name of a range, and between that and the number of an instance.
_DOMAIN: Final = ":"
_NUMBER: Final = "#"

#: What stands for every instance of a range.
EVERY: Final = "*"


def named(events: pl.DataFrame, details: pl.DataFrame) -> pl.DataFrame:
    """Every range of `events` (of kind range) with its `details` (range_detail), sorted by start, then event_id.

    Columns: row (its number here), event_id, range (domain, colon and name, as nsys 2025 prints it: ``:step`` in the
    default domain), name (without domain), style, domain, start, end (of one that was never closed: the latest time of
    any NVTX event), open (whether it was never closed), process_id, thread_id (that started it), end_thread_id (that
    ended it, where that is another one).
    """
    known = events.select("event_id", "name", "start_ns", "dur_ns", "process_id", "thread_id").join(
        details.select("event_id", "style", "domain", "end_thread_id", "open_until_ns"), on="event_id", how="left"
    )
    text, domain = pl.col("name").cast(pl.String), pl.col("domain").cast(pl.String)
    until = pl.max_horizontal("open_until_ns", "start_ns")
    frame = known.sort("start_ns", "event_id").with_row_index("row")
    return frame.select(
        "row",
        "event_id",
        (domain.fill_null("") + _DOMAIN + text.fill_null("")).alias("range"),
        text.alias("name"),
        "style",
        domain.alias("domain"),
        start="start_ns",
        end=pl.when(pl.col("dur_ns").is_null()).then(until).otherwise(pl.col("start_ns") + pl.col("dur_ns")),
        open=pl.col("dur_ns").is_null(),
        process_id="process_id",
        thread_id="thread_id",
        end_thread_id="end_thread_id",
    )


def parsed(text: str) -> tuple[str, str]:
    """A range's name and what follows its last ``#``: a number, :data:`EVERY`, or nothing."""
    name, mark, which = text.rpartition(_NUMBER)
    if mark and name and (which == EVERY or (which.isascii() and which.isdigit())):
        return name, which
    return text, ""


def instances(ranges: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of :func:`named` that `name` means: ``domain:name`` as it stands, else in the default or any domain."""
    for meant in (pl.col("range") == name, pl.col("range") == _DOMAIN + name, pl.col("name") == name):
        found = ranges.filter(meant)
        if found.height:
            break
    return found


def plain(name: str) -> str:
    """A range's name as people read it: without the colon of the default domain."""
    return name.removeprefix(_DOMAIN)


def names(ranges: pl.DataFrame) -> Iterable[str]:
    """The names that there are, the most frequent first."""
    counted = ranges.drop_nulls("range").group_by("range", maintain_order=True).len()
    most = counted.sort("len", descending=True, maintain_order=True).get_column("range")
    return [plain(name) or name for name in most]
