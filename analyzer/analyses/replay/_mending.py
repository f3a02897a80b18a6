"""Changes by the remedy of a finding: single operations and calls, in place of patterns of names."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

#: Rows of no operation, and of no call.
NO_ROWS: Final = pl.Series("row", [], dtype=pl.UInt32)


class Mending(NamedTuple):
    """Changes that a remedy makes."""

    #: Operations that take less: row (of the operations), saved_ns; below 0 those that take longer.
    shorter: pl.DataFrame | None = None
    #: Rows of operations that nothing launches any more: their calls go with them, and the host's work for each.
    gone: pl.Series = NO_ROWS
    calls: pl.Series = NO_ROWS  # rows (of the api events) of calls that are not made any more
    unwaited: pl.Series = NO_ROWS  # rows of calls that launch, and no longer wait for what they launched
    host: pl.DataFrame | None = None  # host time that is spared: process_id, start, end
    graph: bool = False  # whether each repeated sequence of launches becomes one

    def with_all_of(self, other: Mending) -> Mending:
        """What both change: an operation that both shorten takes less by the more of the two, one that is gone nothing.

        What both spare of the host is spared once.
        """
        gone = pl.concat([self.gone, other.gone]).unique()
        parts = [
            one.group_by("row").agg(pl.col("saved_ns").sum())
            for one in (self.shorter, other.shorter)
            if one is not None
        ]
        shorter = pl.concat(parts).group_by("row").agg(pl.col("saved_ns").max()) if parts else None
        spans = [one.select("process_id", "start", "end") for one in (self.host, other.host) if one is not None]
        return Mending(
            shorter=shorter.filter(~pl.col("row").is_in(gone.implode())) if shorter is not None else None,
            gone=gone,
            calls=pl.concat([self.calls, other.calls]).unique(),
            unwaited=pl.concat([self.unwaited, other.unwaited]).unique(),
            host=pl.concat(spans) if spans else None,
            graph=self.graph or other.graph,
        )
