"""A sample of a large report's steady part: some iterations, one after the other, that take as long as all do.

What looks at calls one by one, as causes and replays do, looks at these alone. Definitions: docs/definitions.md,
section 4, "Iterations".
"""

from dataclasses import replace
from typing import Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.iterations.phases import SteadyPart, steady_part
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.columns import rows_at
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Derived, Report

#: A steady part with more events, and of twice as many iterations as a sample at the least, has one.
_LARGE: Final = 1 << 17

#: A sample has so many iterations, or more that have so few events; fewer of more events than that, but at least these.
#: Of what varies, as lengths of texts, each kind has to come again for a CUDA graph of it to be worth its capture.
_ITERATIONS: Final = 64
_EVENTS: Final = range(1 << 15, 1 << 18)
_FEWEST: Final = 8
_COUNTED: Final = ("api", "op", "range", *DEVICE_KINDS)

_LAUNCH: Final = ("process_id", "correlation_id")


class Sample(NamedTuple):
    """A part of a report, how many times as many iterations the whole has, and which ones it has; "" for all."""

    part: Report
    times: float = 1.0
    which: str = ""


class Cut(Derived):
    """A source without other iterations than those of the sample, `before` and `after` it; all else stays."""

    def __init__(self, whole: Report, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Takes the whole report, and from when to when the iterations are that are cut."""
        super().__init__(whole)
        self._before, self._after = before, after

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, with what reaches into the sample, and the calls that launched what is left."""
        rows = self.whole.kind(kind)
        ended = (self._before[1] >= intervals.END).fill_null(value=True)
        before, after = (pl.col("start_ns").is_between(*hole, closed="left") for hole in (self._before, self._after))
        cut = rows.select(cut=(before & ended) | after).to_series()
        if kind == "api":
            left = pl.concat(self.events(work).select(_LAUNCH) for work in DEVICE_KINDS if work in self.kinds).unique()
            ids, numbers = left.get_column("correlation_id"), rows.get_column("correlation_id")
            at = (cut & numbers.is_between(ids.min(), ids.max())).arg_true().alias("at")
            launches = rows_at(rows.select(_LAUNCH), at).with_columns(at).join(left, on=_LAUNCH, how="semi")
            cut = cut.scatter(launches.get_column("at"), values=False)
        return rows.filter(~cut)


def sample_of(view: Report) -> Sample:
    """A sample of a report's steady part where that is large, else all of the report.

    Of all stretches of so many iterations the one whose mean is nearest to that of the steady part.
    """
    return _sample(view) or Sample(view)


@once_per_report
def _sample(view: Report) -> Sample | None:
    window, whole = view.scope.window, view.whole
    steady = steady_part(whole) if window is not None and window.count else None
    if steady is None or window != steady.window or (sample := _of_whole(whole)) is None:
        return None
    return sample._replace(part=sample.part.narrow(device=view.scope.device))


@once_per_report
def _of_whole(whole: Report) -> Sample | None:
    """The sample of the steady part of a whole report, shared by all views of that; None where that is small."""
    steady, everything = steady_part(whole), whole.everywhere
    if steady is None:
        return None
    low, high = steady.span
    starts = (everything.kind(kind).get_column("start_ns") for kind in _COUNTED)
    events = sum(int(of_kind.is_between(low, high, closed="left").sum()) for of_kind in starts)
    least, most = (many * steady.number // max(events, 1) for many in (_EVENTS.start, _EVENTS.stop))
    number = max(min(max(_ITERATIONS, least), most), _FEWEST)
    if events < _LARGE or 2 * number > steady.number:
        return None
    first, start, end = _stretch(steady, number)
    names = steady.run.get_column("window")
    cut = everything.with_source(Cut(everything, (low, start), (end, high)))
    sides = replace(steady.window, start_ns=start, end_ns=end, count=number)
    return Sample(
        cut.narrow(window=sides, process=whole.scope.process),
        steady.number / number,
        f"{names[first]} to {names[first + number - 1]}, {number:,} of {steady.number:,}",
    )


def _stretch(steady: SteadyPart, number: int) -> tuple[int, int, int]:
    """The first of so many iterations with the mean of all (its place in the run), and when they start and end."""
    starts = steady.run.select(start="since_ns").with_row_index("first")
    bounds = [*starts.get_column("start"), steady.span[1]]
    stretches = starts.with_columns(end=pl.Series(bounds).shift(-number).head(starts.height)).drop_nulls("end")
    usual_ns = steady.ns / steady.number * number
    apart = (pl.col("end") - pl.col("start") - usual_ns).abs()
    first, start, end = stretches.row(stretches.select(apart.arg_min()).item())
    return first, start, end
