"""Why a device waited: each idle interval, the operation that ended it, and the thread that is walked.

Definitions: definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.host._recording_start import unseen_starts
from kanalyze.frames import constant, count_up_to, of_parts

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What an idle interval is spent in from its launch call on.
PHASES: Final = ("call", "latency", "queued", "unseen")


def idle_intervals(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The idle intervals within ``[low, high)`` of the device whose operations are `work`.

    Columns: start, end, row (of the operation that ends it; null for the last one) and process_id (of that operation,
    or of the one that ended last; of several, of the one with the highest event_id).
    """
    real = work.select("start", "end", "rank", "row", "process_id")
    if not real.select((pl.col("end") > pl.col("start")).all()).item():
        real = real.filter(pl.col("end") > pl.col("start"))
    if not real.get_column("start").is_sorted():
        real = real.sort("start", maintain_order=True)
    same = pl.col("start") == pl.col("start").shift(1)
    if not constant(real, "rank") and real.select((same & (pl.col("rank") < pl.col("rank").shift(1))).any()).item():
        real = real.sort("start", "rank", "row")  # by several columns, which takes many times as long
    # sorted like this, the first operation to begin after all before it have ended is the one that ends the interval
    first, last, time = pl.lit(low, dtype=pl.Int64), pl.lit(high, dtype=pl.Int64), pl.col("end").cum_max()
    gaps = real.select("row", "process_id", start=time.shift(1, fill_value=first), end="start")
    final = real.filter(pl.col("end") == pl.col("end").max()).sort("row").tail(1)
    ended = pl.DataFrame({"row": [None], "process_id": final.get_column("process_id").to_list() or [None]})
    rest = ended.select(
        pl.col("row").cast(pl.UInt32),
        pl.col("process_id").cast(pl.Int64),
        start=pl.lit(real.get_column("end").max(), dtype=pl.Int64) if final.height else first,
        end=last,
    )
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in (gaps, rest)])


def with_launches(report: Report, idle: pl.DataFrame, launching: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """`idle` with thread_id, call_start and call_end of the launch of the operation that ends each interval.

    And with `unseen`: whether that operation waited for what was launched before the recording began.

    `launching` are the calls of :func:`kanalyze.analyses.host._launching_call.launching_calls`.
    An operation without launch, and the last interval, take the thread of their process's most recent launch, or of
    its next one, and no call.
    """
    calls = calls_of(report, idle.get_column("row"), "thread_id", "call_start", "call_end")
    missing = calls.get_column("call_start").is_null().arg_true()
    if len(missing) and launching:
        nearest = of_parts(
            idle.select("process_id", "end")[missing],
            ["process_id"],
            pl.Int64,
            lambda process, part: _nearest_thread(launching.get(process[0]), part.get_column("end")),
        )
        calls = calls.with_columns(calls.get_column("thread_id").clone().scatter(missing, nearest))
    unseen = idle.get_column("row").is_in(unseen_starts(report).implode()).fill_null(value=False)
    return idle.with_columns(*calls, unseen.alias("unseen"))


def _nearest_thread(calls: pl.DataFrame | None, at: pl.Series) -> pl.Series:
    """The thread of the call that started last before each of `at`, or else of the first one."""
    if calls is None:
        return pl.Series("thread_id", [None], dtype=pl.Int64).new_from_index(0, len(at))
    before = count_up_to(calls.get_column("call_start"), at, equal=True).cast(pl.Int64) - 1
    return calls.get_column("thread_id").gather(before.clip(lower_bound=0))


def with_phases(idle: pl.DataFrame) -> pl.DataFrame:
    """Idle intervals with `begun` and `returned`, when their launch calls did so within them, `late` and `lost`.

    Until `begun` the call had not begun; from then to `returned` it was in it. `late` says what follows: ``latency``
    where the call began within the interval, ``queued`` where it began before that, ``unseen`` where what was waited
    for was launched before the recording began. `lost` says that the operation itself was.
    """
    # which is the end where there is no call: a null is neither the least nor the greatest
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within = pl.col("call_start") >= pl.col("start")
    hidden = pl.when(within & pl.col("unseen")).then(_phase("unseen"))
    late = hidden.when(within).then(_phase("latency")).otherwise(_phase("queued"))
    lost = pl.col("unseen") & pl.col("call_start").is_null()
    phases = {"begun": begun, "returned": pl.max_horizontal(begun, returned), "late": late, "lost": lost}
    return idle.with_columns(**phases).drop("unseen")


def clip_phases(idle: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """What :func:`with_phases` gives inside ``[low, high)``; `idle` is in the order of time."""
    if idle.is_empty() or (idle.item(0, "start") >= low and idle.item(-1, "end") <= high):
        return idle
    sides = ("start", "begun", "returned", "end")
    return idle.with_columns(pl.col(*sides).clip(low, high)).filter(pl.col("end") > pl.col("start"))


def launch_pieces(launched: pl.DataFrame) -> pl.DataFrame:
    """Idle intervals from their launch calls on (begun, returned, end, late) as pieces: start, end, phase, the rest.

    In the order of time.
    """
    others = [name for name in launched.columns if name not in ("begun", "returned", "end", "late")]
    parts = (
        launched.select(pl.col("begun").alias("start"), pl.col("returned").alias("end"), _phase("call"), *others),
        launched.select(pl.col("returned").alias("start"), "end", pl.col("late").alias("phase"), *others),
    )
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in parts]).sort("start")


def _phase(name: str) -> pl.Expr:
    return pl.lit(name, dtype=pl.Enum(PHASES)).alias("phase")
