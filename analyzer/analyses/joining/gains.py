"""Advice about kernels, ranked by what the whole program would gain."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze.analyses.counters.advice import CAPPED, advice
from kanalyze.analyses.device._operations import SHAPE, SHAPE_COLUMNS
from kanalyze.analyses.joining._report_set import Together, of_each, several, together
from kanalyze.analyses.joining.joined import joined_of
from kanalyze.errors import CannotTellError
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

TABLE: Final = Table(
    "gains",
    "One piece of advice about one kernel that ncu measured, with what the program would gain.",
    (
        Column("name", pl.String, "Its name, as the tool that gives the time writes it.", nullable=True),
        Column("device", pl.Int64, "The GPU, as the process itself numbers it.", nullable=True),
        *SHAPE_COLUMNS,
        *columns("""
            event_id int: The launch that ncu measured, in the tables of that report.
            ncu_match text: How sure it is that ncu saw the same kernel, as in `joined`.
            window_share float?: Part of the window that the kernel takes.
            exclusive_ns int?: The same as time.
            gain_share float?: Part of the window that is saved at most: window_share times possible_share.
            gain_ns int?: The same as time; null for a local estimate, or without time.
            source text: Whose rule it is: ncu or kanalyze.
            rule text: Name of the rule.
            scope text?: What the estimate is of: global (the duration) or local.
            speedup_share float?: The part of it that the rule estimates can be saved.
            roof_share float?: How near the launch comes to its roof, as in `roofline`.
        """),
        *CAPPED,
        Column("sentence", pl.String, "What was found."),
        Column("remedy", pl.String, "What to do about it; null where the sentence of ncu says so.", nullable=True),
        Column("evidence", pl.String, "The counters that prove it, for our rules.", nullable=True),
    ),
    purpose="what advice of ncu saves of the whole program",
    telling=("gain_share", "gain_ns", "rule"),
    together=True,
)

SEVERAL: Final = several(TABLE)


def gains(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """Advice about the longest launch of each kernel that ncu measured, the largest gain for the program first.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Returns:
        :data:`TABLE`. First the estimates for a kernel's whole duration: capped by its distance to the roof, times the
        kernel's share of the window. Then those that do not translate into a gain of the program, by the kernel's
        share.

    Raises:
        CannotTellError: No report provides the time, or none has counters.
    """

    def make(found: Together) -> pl.DataFrame:
        if found.ncu is None:
            raise CannotTellError.without_counters(TABLE.name, found.base.meta.path)
        return gains_among(joined_of(found), found.ncu)

    return of_each(TABLE, together(TABLE, reports, where), make)


def gains_among(rows: pl.DataFrame, ncu: Report) -> pl.DataFrame:
    """:func:`gains` for the kernels in `rows` of the table `joined`, measured by `ncu`."""
    keys = ("name", "device", *SHAPE, "event_id", "ncu_match", "window_share", "exclusive_ns", "roof_share")
    kernels = rows.filter(pl.col("event_id").is_not_null()).select(keys)
    said = advice(ncu).drop("name", "device", "at_stake_ns", "kind")
    possible = pl.col("possible_share")
    every = kernels.join(said, on="event_id").with_columns(
        gain_share=pl.col("window_share") * possible, gain_ns=pl.col("exclusive_ns") * possible
    )
    order = ["gain_ns", "exclusive_ns", "speedup_share", "event_id", "source", "rule", "sentence"]
    return TABLE.select(every.sort(order, descending=[True] * 3 + [False] * 4, nulls_last=True))
