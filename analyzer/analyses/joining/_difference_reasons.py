"""Reasons for which two tools that record every launch report different figures for one program.

Definitions: docs/counters.md, One kernel, three tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.joining._counts_apart import COUNTS, NOTHING, alike, tuned
from kanalyze.analyses.joining._kernel_groups import groups_with_config
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.joining._counts_apart import Steps
    from kanalyze.report import Report

    Row = dict[str, Any]
    #: The reason, a key of :data:`EXPLANATIONS`, and the evidence for it.
    Explained = tuple[str, str]

#: The reasons for a difference, and what each means.
EXPLANATIONS: Final = {
    "spread": "as far apart as launches of one kernel are in one run",
    "compile": "launched while torch.compile compiled and measured variants, in one of both runs or in both",
    "autotuner": "trials of Triton's autotuner, which tries each variant as often as time allows",
    "steps": "they recorded other steps, of which each launches the same, or one of them some of the program's steps",
    "window": "of the report that gives the time a part is looked at, of the others all; in the whole of it nothing is "
    "unexplained",
    "filter": "ncu was told to measure some of the launches",
    "clocks": "the SMs ran slower under ncu, by the clock that it measured, than the GPU may run",
    "caches": "ncu empties the caches before each launch, unless told not to; with it goes what others left there",
    "page faults": "pages of managed memory moved while it ran; under ncu they were there",
    "beside others": "the GPU did other work at the same time; ncu runs each kernel alone",
    "samples": "as near as samples of another run tell: 10 %, and 1 % of the unit's peak, as they are in whole percent",
    "replay": "ncu runs a kernel alone, with empty caches and maybe at other clocks; how much that is was not measured",
}

#: The spread assumed where no kernel was launched twice: the median of the 76 kernels that the sample captures launch
#: several times, as a part of their mean, and at least in nanoseconds.
_SEEN_SHARE: Final = 0.08
_SEEN_NS: Final = 370.0


@dataclass(frozen=True)
class Spread:
    """The usual spread of the launches of one kernel, the median over kernels: as a part of the mean, and in ns."""

    share: float
    ns: float

    @classmethod
    def of(cls, reports: Sequence[Report]) -> Spread:
        """The spread over all kernels that these reports launched several times."""
        groups = pl.concat(groups_with_config(one).select("count", "duration", "low", "high") for one in reports)
        apart = pl.col("high") - pl.col("low")
        several = groups.filter((pl.col("count") > 1) & (pl.col("duration") > 0))
        share, ns = several.select((apart / pl.col("duration")).median(), apart.median().alias("ns")).row(0)
        return cls(_SEEN_SHARE, _SEEN_NS) if share is None else cls(share, ns)

    def around(self, row: Row, suffix: str = "") -> tuple[float, float]:
        """The least and the greatest duration to expect of a launch: nine in ten of those seen, and half the spread.

        Two runs of one program differ by more than launches within one run do: a kernel launched once shows no spread,
        and buffers lie at other addresses.
        """
        low, high = row[f"low{suffix}"], row[f"high{suffix}"]
        half = max(self.share * high, self.ns) / 2
        return max(low - half, 0.0), high + half


@dataclass(frozen=True)
class Reasons:
    """Explains differences between two tools that record every launch.

    Attributes:
        tools: Names of both tools.
        spread: The usual spread of launches of one kernel.
        tuned: Kernels that Triton's autotuner tried variants of.
        steps: Numbers of the steps that the second report was recorded in; empty for none.
        shared: The steps of each report that both have; None where there are none.
    """

    tools: tuple[str, str]
    spread: Spread
    tuned: list[str]
    steps: list[int]
    shared: tuple[Steps, Steps] | None

    @classmethod
    def between(cls, base: Report, other: Report, shared: tuple[Steps, Steps] | None) -> Reasons:
        """Collects what explains differences between the two reports; `shared` are the steps that both have."""
        steps = other.steps().sort("start").get_column("step").unique(maintain_order=True).to_list()
        return cls((base.meta.tool, other.meta.tool), Spread.of([base, other]), tuned(base), steps, shared)

    def of(self, row: Row) -> Explained | None:
        """The reason why this row's figures differ; None if unknown."""
        if row["figure"] == "duration":
            return self._duration(row)
        return self._count(row) if row["figure"] in COUNTED else None

    def _duration(self, row: Row) -> Explained | None:
        (low, high), (low_other, high_other) = self.spread.around(row), self.spread.around(row, "_other")
        if low > high_other or low_other > high:
            return None
        ranges = (f"{time(start)} to {time(end)}" for start, end in ((low, high), (low_other, high_other)))
        return "spread", f"{next(ranges)} by {self.tools[0]}, {next(ranges)} by {self.tools[1]}"

    def _count(self, row: Row) -> Explained | None:
        first, second = row["first"] or 0, row["second"] or 0
        for reason, kinds in (("compile", ["compiling"]), ("autotuner", ["compiling", "trial"])):
            some = [max(row[kind] or 0 for kind in kinds), max(row[f"{kind}_other"] or 0 for kind in kinds)]
            if any(some) and first - some[0] == second - some[1]:
                each = zip(some, (first, second), self.tools, strict=True)
                told = [f"{one:,.0f} of {every:,.0f} by {tool}" for one, every, tool in each if one]
                of = f", of {', '.join(self.tuned)}" if reason == "autotuner" else ""
                return reason, f"{' and '.join(told)}{of}; the rest is equal"
        if self.shared is not None:
            return self._by_step(row, *self.shared)
        if self.steps and second < first:
            return "steps", f"{plural(len(self.steps), 'step')}, from {self.steps[0]} on"
        return None

    def _by_step(self, row: Row, first: Steps, second: Steps) -> Explained | None:
        """The reason `steps`: both reports have the same number per step, but recorded different numbers of steps."""
        ours, theirs = (
            {name: (None if row[side] is None else row[f"{name}{suffix}"]) or NOTHING[name] for name in COUNTS}
            for side, suffix in (("first", ""), ("second", "_other"))
        )
        numbers = first.spans.height, second.spans.height
        if not alike(ours, theirs, numbers):
            return None
        few = ours if numbers[0] <= numbers[1] else theirs
        low, high = min(few["in"]), max(few["in"])
        each = count(low) if low == high else f"{count(low)} to {count(high)}"
        recorded = " and ".join(
            f"{count(number)} ({name}) by {tool}"
            for number, name, tool in zip(numbers, (first.name, second.name), self.tools, strict=True)
        )
        return (
            "steps",
            f"{each} a step in both, of {recorded}; beside them {count(ours['beside'])} and {count(theirs['beside'])}",
        )


#: Figures that are counts or sums of bytes.
COUNTED: Final = ("launches", "copies", "bytes copied")
