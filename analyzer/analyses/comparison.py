"""What tells several reports apart, in a line: how long each took against the first, and where it differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.units import plural, time, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.summary import Summary

#: So many buckets, those that differ most, are named.
_NAMED: Final = 3
#: A bucket that differs by less than this part of the longer window is not worth naming.
_WORTH_NAMING: Final = 0.01


def comparison(summaries: Sequence[Summary]) -> str:
    """One sentence per report after the first; empty for fewer than two. Windows of several devices are added up."""
    if not summaries:
        return ""
    first, *others = summaries
    return " ".join(_against(first, other) for other in others)


def _against(first: Summary, other: Summary) -> str:
    name, base = other.meta.path.name, first.meta.path.name
    before, after = _window(first), _window(other)
    if not before or not after:
        idle = base if not before else name
        return f"{name} cannot be compared with {base}: no GPU did anything in {idle}."
    ratio = after / before
    longer = f"{times(ratio)} as long as" if ratio >= 1 else f"{times(1 / ratio)} shorter than"
    sentence = f"{name}: {time(after)} of GPU window, {longer} {base} ({time(before)})"
    return f"{sentence}; {_differences(first, other)}."


def _window(summary: Summary) -> int:
    return int(summary.windows.get_column("window_ns").sum())


def _differences(first: Summary, other: Summary) -> str:
    both = _buckets(other).join(_buckets(first), on="bucket", how="full", coalesce=True, suffix="_before").fill_null(0)
    changed = both.select("bucket", change=pl.col("ns") - pl.col("ns_before"))
    least = _WORTH_NAMING * max(_window(first), _window(other))
    changed = changed.filter(pl.col("change").abs() >= least)
    most = changed.sort(pl.col("change").abs(), "bucket", descending=[True, False]).head(_NAMED)
    told = [f"{bucket} {'+' if change > 0 else '-'}{time(abs(change))}" for bucket, change in most.iter_rows()]
    more = changed.height - len(told)
    if not told:
        return "no bucket differs by 1 % or more"
    return ", ".join(told) + (f" and {plural(more, 'bucket')} more" if more else "")


def _buckets(summary: Summary) -> pl.DataFrame:
    ledger = summary.tables["ledger"]
    return ledger.group_by(pl.col("bucket").cast(pl.String)).agg(pl.col("ns").sum())
