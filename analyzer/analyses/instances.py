"""Every instance of a range beside the others: a ledger each, their median and spread, and the odd ones out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import median_of
from kanalyze.analyses._operations import BUSY_BUCKETS
from kanalyze.analyses.ledger import BUCKETS, ledger
from kanalyze.named_ranges import EVERY, parsed
from kanalyze.report import Window
from kanalyze.schema import Column, Table
from kanalyze.units import plural, time, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Meta, Report, Scope

#: An instance is odd if it is further from the median than so many times the median distance (which a normal
#: distribution makes 3 standard deviations), and by at least this part of the median.
_FAR: Final = 3 * 1.4826
_NOTABLE: Final = 0.1
#: Fewer instances than this have no usual one to be odd against.
_FEWEST: Final = 4
#: So many odd instances are named in a sentence.
_NAMED: Final = 3

INSTANCES: Final = Table(
    "instances",
    "One instance of a range on one device, with its ledger.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("instance", pl.Int64, "Its number, from 1 on, in the order of starts."),
        Column("start_ns", pl.Int64, "Start of the range."),
        Column("dur_ns", pl.Int64, "Its length, which the buckets add up to."),
        *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket}.") for bucket in BUCKETS),
        Column("odd", pl.Boolean, "Whether it is far from the median of all instances."),
        Column("cause", pl.String, "Of an odd one: the bucket that differs most from its own median.", nullable=True),
    ),
)

SPREAD: Final = Table(
    "instance_spread",
    "One bucket over all instances of a range on one device.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.String, "A bucket of the ledger, or total."),
        Column("median_ns", pl.Float64, "Median over the instances."),
        Column("min_ns", pl.Int64, "Least."),
        Column("max_ns", pl.Int64, "Most."),
        Column("stddev_ns", pl.Float64, "Sample standard deviation."),
        Column("total_ns", pl.Int64, "Sum over the instances."),
        Column("share", pl.Float64, "Part of all instances' time."),
    ),
)


@dataclass(frozen=True)
class Instances:
    """All instances of one range.

    Attributes:
        meta: Where the report came from.
        scope: The part of it that was looked at; its window spans all instances.
        name: The range.
        answer: One or two sentences that answer first.
        instances: :data:`INSTANCES`.
        spread: :data:`SPREAD`, the largest bucket of each device first, its total last.
    """

    meta: Meta
    scope: Scope
    name: str
    answer: str
    instances: pl.DataFrame
    spread: pl.DataFrame


def compare(parts: Sequence[Report]) -> Instances:
    """The instances of a range, each given as the report narrowed to it, in the order of their starts."""
    first = parts[0]
    name = parsed((first.scope.window and first.scope.window.name) or "")[0]
    rows = _judged(_used(pl.concat([_instance(part, number) for number, part in enumerate(parts, 1)])))
    ends = [part.scope.window.end_ns or 0 for part in parts if part.scope.window]
    start = first.scope.window.start_ns if first.scope.window else None
    scope = replace(first.scope, window=Window(start, max(ends, default=None), f"{name}#{EVERY}"))
    return Instances(first.meta, scope, name, _answer(name, rows), INSTANCES.select(rows), _spread(rows))


def _instance(part: Report, number: int) -> pl.DataFrame:
    window = part.scope.window
    start, end = (window.start_ns or 0, window.end_ns or 0) if window else (0, 0)
    rows = ledger(part)
    sums = [pl.col("ns").filter(pl.col("bucket") == bucket).sum().alias(f"{bucket}_ns") for bucket in BUCKETS]
    return rows.group_by("device").agg(sums).with_columns(instance=number, start_ns=start, dur_ns=end - start)


def _used(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the devices that did anything in any instance; of all devices where none did."""
    busy = rows.filter(pl.sum_horizontal(f"{bucket}_ns" for bucket in BUSY_BUCKETS) > 0)
    used = busy.select("device").unique()
    return (rows if used.is_empty() else rows.join(used, on="device", how="semi")).sort("device", "instance")


def _judged(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` with `odd` and `cause`."""
    length = pl.col("dur_ns")
    away = (length - length.median()).abs()
    odd = (away > _FAR * away.median()) & (away > _NOTABLE * length.median()) & (pl.len() >= _FEWEST)
    sign = pl.when(length > length.median()).then(1).otherwise(-1)
    changes = [((pl.col(f"{name}_ns") - pl.col(f"{name}_ns").median()) * sign).over("device") for name in BUCKETS]
    judged = rows.with_columns(odd.over("device").alias("odd"), pl.concat_list(changes).list.arg_max().alias("most"))
    names = pl.Series(BUCKETS).gather(judged.get_column("most"))
    return judged.with_columns(pl.when("odd").then(names).alias("cause"))


def _spread(rows: pl.DataFrame) -> pl.DataFrame:
    columns = {**{f"{bucket}_ns": bucket for bucket in BUCKETS}, "dur_ns": "total"}
    long = rows.unpivot(list(columns), index=["device", "instance"], variable_name="bucket", value_name="ns")
    sums = long.group_by("device", "bucket").agg(
        pl.col("ns").median().alias("median_ns"),
        pl.col("ns").min().alias("min_ns"),
        pl.col("ns").max().alias("max_ns"),
        pl.col("ns").std().fill_null(0.0).alias("stddev_ns"),
        pl.col("ns").sum().alias("total_ns"),
    )
    last = pl.col("bucket") == "total"
    named = sums.with_columns(pl.col("bucket").replace_strict(columns)).filter((pl.col("total_ns") > 0) | last)
    whole = pl.col("total_ns").filter(last).first().over("device")
    shares = named.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole).otherwise(0.0))
    return SPREAD.select(shares.sort("device", last, "total_ns", "bucket", descending=[False, False, True, False]))


def _answer(name: str, rows: pl.DataFrame) -> str:
    if rows.is_empty():
        return f"{name}: no GPU did anything in this report."
    device = rows.filter(pl.col("device") == rows.get_column("device").item(0))
    median = median_of(device, "dur_ns")
    least, most = device.select(pl.col("dur_ns").min(), most=pl.col("dur_ns").max()).row(0)
    text = f"{plural(device.height, 'instance')} of {name}: {time(median)} in the median"
    text += f", from {time(least)} to {time(most)}."
    odd = rows.filter("odd").unique("instance", keep="first").sort((pl.col("dur_ns") - median).abs(), descending=True)
    told = [
        f"#{row['instance']} takes {times(row['dur_ns'] / max(median, 1))} that ({row['cause']})"
        for row in odd.head(_NAMED).iter_rows(named=True)
    ]
    if told:
        more = f" and {odd.height - len(told)} more" if odd.height > len(told) else ""
        text += f" Odd ones out: {', '.join(told)}{more}."
    return text
