"""Which process the device events of a trace belong to.

A device event names the device where a host event names the process. In a trace of one process that is no question;
in several that were merged, a device event belongs to the process of the call with its correlation id. Processes
number their calls alike, so that most ids are those of several; then what the other events of the same device and
context belong to tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.frames import telling

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What the events of one process on one device share.
_GROUP: Final = ("pid", "device", "context")


@dataclass(frozen=True)
class Owners:
    """The processes that device events belong to.

    Attributes:
        main: The one that they belong to where nothing tells.
        calls: The calls: correlation, process, called (their start); none where there is only one process.
        groups: The process of most events of a device and context: pid, device, context, process.
    """

    main: int | None
    calls: pl.DataFrame | None = None
    groups: pl.DataFrame | None = None

    @classmethod
    def of(cls, main: int | None, calls: pl.DataFrame, work: Iterable[pl.DataFrame]) -> Owners:
        """The owners of device events, judged by those in `work`, which some of `calls` made."""
        if calls.is_empty() or calls.get_column("pid").n_unique() == 1:
            return cls(main)
        known = calls.select("correlation", process="pid", called="start_ns").drop_nulls()
        known = known.filter(pl.col("correlation") > 0)
        first = telling(known.group_by("correlation", "process").agg(pl.col("called").min()), ["correlation"])
        pairs = [frame.select(*_GROUP, "correlation", "start_ns").join(first, on="correlation") for frame in work]
        if not pairs:
            return cls(main, known)
        before = (pl.col("start_ns") < pl.col("called")).sum()
        votes = pl.concat(pairs).group_by(*_GROUP, "process").agg(joined=pl.len(), before=before)
        return cls(main, known, _elected(votes))

    def processes(self, frame: pl.DataFrame) -> pl.Series:
        """The process of each row of a frame of device events."""
        if self.calls is None or self.groups is None or "correlation" not in frame.columns:
            return pl.Series([self.main], dtype=pl.Int64).new_from_index(0, frame.height)
        keys = frame.select(*_GROUP, "correlation")
        own = self.calls.select("correlation", "process").unique()
        usual = keys.join(self.groups, on=_GROUP, how="left", nulls_equal=True, maintain_order="left")
        single = own.unique("correlation", keep="none").select("correlation", single="process")
        usual = usual.join(single, on="correlation", how="left", maintain_order="left")
        return usual.select(pl.coalesce("single", "process", pl.lit(self.main, dtype=pl.Int64))).to_series()


def _elected(votes: pl.DataFrame) -> pl.DataFrame:
    """The process of each group: one that made most of its events, and none before its call.

    Where several did, it is one that no other group belongs to; and the first group belongs to the first process, as
    ranks are started. `votes` has for each group and process how many events they share, and how many of these began
    before their calls.
    """
    most = (pl.col("joined") == pl.col("joined").max()).over(_GROUP)
    least = (pl.col("before") == pl.col("before").min()).over(_GROUP)
    line = votes.filter(most).filter(least).sort(*_GROUP, "process")
    able: dict[tuple[int | None, ...], list[int]] = {}
    for *group, process in line.select(*_GROUP, "process").iter_rows():
        able.setdefault(tuple(group), []).append(process)
    found: dict[tuple[int | None, ...], int] = {}
    while able:
        taken = set(found.values())
        free = {group: [one for one in some if one not in taken] or some for group, some in able.items()}
        surest = min(free, key=lambda group: len(free[group]))
        found[surest] = free[surest][0]
        del able[surest]
    rows = [(*group, process) for group, process in found.items()]
    return pl.DataFrame(rows, schema={**dict.fromkeys(_GROUP, pl.Int64), "process": pl.Int64}, orient="row")
