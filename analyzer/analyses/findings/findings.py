"""Findings ranked by the time at stake, and by what a replay of the recording says that their remedies gain."""

from __future__ import annotations

import pkgutil
import re
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import rules
from kanalyze.analyses.findings._claims import shared_out
from kanalyze.analyses.findings._gains import with_replays
from kanalyze.analyses.findings._places import with_lines
from kanalyze.analyses.findings.rules._words import in_words_of
from kanalyze.analyses.findings.rules.loading import ONE_TIME
from kanalyze.analyses.findings.rules.occupancy import SAMPLED
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.launches._steady_window import WORTH_SAYING, least_worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import analysis, once_per_report
from kanalyze.analyses.shared.requirements import require
from kanalyze.analyses.shared.workers import side_by_side
from kanalyze.errors import KanalyzeError
from kanalyze.intervals import SPANS
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table
from kanalyze.wording import worded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Report

TABLE: Final = Table(
    "findings",
    "One finding: a sentence with its evidence and the nanoseconds at stake.",
    (
        Column("rule", pl.String, "Stable name of the kind of finding, which `kanalyze explain` takes."),
        Column("device", pl.Int64, "The GPU whose window the time is part of."),
        Column(
            "at_stake_ns",
            pl.Int64,
            "The time in the window that it takes; of `at_most`, the most that mending it can gain.",
        ),
        Column("at_most", pl.Boolean, "Whether no way to mend it can gain more; if not, more may follow."),
        Column(
            "per_iteration_ns",
            pl.Int64,
            "The mean of that time per iteration, rounded, in a window of iterations.",
            nullable=True,
        ),
        Column(
            "replayed_ns",
            pl.Int64,
            "How much shorter the device's window gets by the remedy, without the profiler, by a replay; null where "
            "none was made.",
            nullable=True,
        ),
        Column("share", pl.Float64, "That time as a part of the device's window."),
        Column("headline", pl.String, "What was found, in a line."),
        Column("action", pl.String, "What to do about it, in a line: as code or a command where that says it."),
        Column(
            "where", pl.String, "The range, operator or line of code that it lies in, or most of it.", nullable=True
        ),
        Column("sentence", pl.String, "What was found, with the evidence."),
        Column("remedy", pl.String, "What to do about it."),
        Column("table", pl.String, "What to give `kanalyze show` to see the rows behind it."),
        Column("definition", pl.String, "What to give `kanalyze` to read what it means and what to do."),
        Column("replayed_low_ns", pl.Int64, "The least that it gets shorter by, as far as is known.", nullable=True),
        Column("replayed_high_ns", pl.Int64, "The most.", nullable=True),
    ),
    purpose="what is worth knowing, ranked, with a remedy",
    telling=("rule", "at_stake_ns", "replayed_ns", "per_iteration_ns", "share", "where"),
)


#: Findings on the same kernels, by the shape of the grid and by sampled counters.
_SMALL_GRID: Final = "small-grid"
_FEW_SMS: Final = "few-sms"

#: Remedies are replayed of reports with at most so many operations and calls: of more it takes many seconds.
_MOST_REPLAYED: Final = 1 << 20


#: What the time of a finding counts in their order: little where it names no cause, a part where its remedy helps
#: whatever the cause, and leaves that in place; much of one that makes the times of all others hold another program's
#: work. Of those without a replay, shorter kernels count as the GPU is busy.
_VAGUE: Final = 0.02
_GENERAL: Final = 0.25
_COUNTS: Final = {"shared-gpu": 5.0}


@once_per_report
def ranked(report: Report) -> list[rules.Finding]:
    """All findings with enough time at stake in their device's window, the costliest first.

    Enough is at least :func:`least_worth_saying`; for one-time costs, the same share of the whole window.
    """
    require(report, TABLE, *DEVICE_KINDS)
    culprits(report)  # first, since the ledger, which many rules need, reuses its pass over idle time
    names = [found.name for found in pkgutil.iter_modules(rules.__path__) if not found.name.startswith("_")]
    modules = [import_module(f"{rules.__name__}.{name}") for name in names]
    # by name: what needs most memory (graph_candidate) comes before what keeps most (pageable_copy), 0.3 GB at 1 GB
    return _worth_saying(
        report, sorted((rule for module in modules for rule in module.RULES), key=lambda rule: rule.__name__)
    )


def _worth_saying(report: Report, every: Sequence[Callable[[Report], list[rules.Finding]]]) -> list[rules.Finding]:
    """The findings of some rules with enough time at stake, the costliest first."""
    found = [finding for some in side_by_side(report, every) for finding in some]
    least, once = least_worth_saying(report), {device: WORTH_SAYING * ns for device, ns in _lengths(report).items()}
    enough = {(one.rule, one.device): max((once if one.rule in ONE_TIME else least)[one.device], 1) for one in found}
    worth = [one for one in found if one.at_stake_ns >= enough[one.rule, one.device]]
    words = interface(report)
    told = with_lines(report, shared_out(_joined(worth), enough))
    told = [_worded(in_words_of(report, one).brief, words) for one in told]
    return sorted(told, key=lambda one: (-one.at_stake_ns, one.rule, one.device))


def _joined(found: Sequence[rules.Finding]) -> list[rules.Finding]:
    """The findings, those of one cause as one: what conversions of images and kernels per channel take adds up."""
    kept: dict[object, rules.Finding] = {}
    for at, one in enumerate(sorted(found, key=lambda one: -one.at_stake_ns)):
        key = (one.device, one.action) if one.action == rules.CHANNELS_LAST and one.mending else at
        kept[key] = _both(kept[key], one) if key in kept else one
    return [*kept.values()]


def _both(first: rules.Finding, other: rules.Finding) -> rules.Finding:
    """Two findings of one cause, told as the first one."""

    def mending(report: Report) -> Mending | None:
        changes = [one.mending(report) if one.mending else None for one in (first, other)]
        known = [change for change in changes if change is not None]
        return reduce(Mending.with_all_of, known) if known else None

    names = {f"{{{at}}}": f"{{{at + len(first.names)}}}" for at in range(len(other.names))}
    text = re.sub(r"\{\d+\}", lambda place: names.get(place[0], place[0]), other.text)
    return first._replace(
        at_stake_ns=first.at_stake_ns + other.at_stake_ns,
        text=f"{first.text} The same cause: {text}",
        names=(*first.names, *other.names),
        at_most=False,
        mending=mending,
        claims=pl.concat(
            [pl.DataFrame(schema=SPANS), *(one.claims for one in (first, other) if one.claims is not None)]
        ),
    )


def ranked_with_samples(report: Report) -> list[rules.Finding]:
    """The same, and after them those on the GPU's units in the run that nsys sampled, of a capture with one.

    What they have at stake is the same part of this report's window as it is of that run's.
    """
    found = ranked(report)
    other = _sampled_run(report)
    if other is None:
        return found
    try:
        own, theirs = _lengths(report), _lengths(other)
        sampled = _worth_saying(other, SAMPLED)
    except KanalyzeError:  # which is noted
        return found
    small = {name for one in found if one.rule == _SMALL_GRID for name in one.names}
    return found + [
        one._replace(
            at_stake_ns=one.at_stake_ns * own[one.device] // max(theirs[one.device], 1),
            text=f"In the run with samples: {one.text}",
        )
        for one in sampled
        if one.device in own and not (one.rule == _FEW_SMS and small.intersection(one.names))
    ]


def _lengths(report: Report) -> dict[int, int]:
    """The length of the window of each device (ns)."""
    return {device: end - start for device, start, end in windows(report).iter_rows()}


def by_gain(report: Report, most: int) -> list[rules.Finding]:
    """The :func:`ranked_with_samples` with replays of at most so many operations and calls, what gains most first."""
    return ordered(report, with_replays(report, ranked_with_samples(report), most))


def ordered(report: Report, found: list[rules.Finding]) -> list[rules.Finding]:
    """The findings in the order of what they gain, on every page and in every table."""
    work = exclusive_operations(report).group_by("device").agg(pl.col("exclusive_ns").sum())
    busy_ns, lengths = dict(work.iter_rows()), _lengths(report)

    def share(one: rules.Finding) -> float:
        return float(busy_ns.get(one.device, 0) / max(lengths.get(one.device, 1), 1))

    return sorted(found, key=lambda one: -weighed_ns(one, share(one)))


def weighed_ns(one: rules.Finding, busy: float) -> float:
    """Weight of a finding in their order (ns), where the GPU is busy for such a part of the time."""
    counts = busy if one.shortens and one.replayed_ns is None else _COUNTS.get(one.rule, 1.0)
    return one.gain_ns * (_VAGUE if one.vague else _GENERAL if one.general else counts)


def _sampled_run(report: Report) -> Report | None:
    """The run with samples of GPU counters beside a whole report or its steady part, and of that run the same."""
    if report.scope.process is not None or report.table("gpu_metrics").height:
        return None
    try:
        other = report.whole.sampled()
        if other is None or other.table("gpu_metrics").is_empty():
            return None
        window = None
        if report.scope.window is not None:
            parts = known_steady_part(report.whole), known_steady_part(other)
            if parts[0] is None or parts[1] is None or parts[0].window != report.scope.window:
                return None
            window = parts[1].window
        return other.narrow(window=window, device=report.scope.device)
    except KanalyzeError:  # as above
        return None


def _worded(one: rules.Finding, interface: str) -> rules.Finding:
    """The finding in the terms of the programming interface that the program used."""
    text, remedy, headline, action = (
        worded(told, interface) for told in (one.text, one.remedy, one.headline, one.action)
    )
    return one._replace(text=text, remedy=remedy, headline=headline, action=action)


@analysis
def findings(report: Report) -> pl.DataFrame:
    """All findings about the report, what gains most first; kernel names are not shortened.

    That is what a replay says that the remedy gains, and where none was made the time at stake. Of a capture, the GPU's
    units are those of its run with samples; what they have at stake is the same part of the window.

    Returns:
        :data:`TABLE`; empty if there are none.

    Raises:
        CannotTellError: The report records no device operations.

    Columns:
        rule, device, at_stake_ns, at_most, per_iteration_ns, replayed_ns, share, headline, action, where, sentence,
        remedy, table, definition, replayed_low_ns, replayed_high_ns.
    """
    every, lengths = by_gain(report, _MOST_REPLAYED), _lengths(report)
    iterations = report.scope.window and report.scope.window.count
    rows = [
        (
            found.rule,
            found.device,
            found.at_stake_ns,
            found.at_most,
            (2 * found.at_stake_ns + iterations) // (2 * iterations) if iterations else None,
            found.replayed_ns,
            found.at_stake_ns / max(lengths[found.device], 1),
            found.headline.format(*found.names),
            found.action,
            found.place.format() or None,
            found.text.format(*found.names),
            found.remedy,
            found.table,
            found.definition,
            found.replayed_low_ns,
            found.replayed_high_ns,
        )
        for found in every
    ]
    return TABLE.select(pl.DataFrame(rows, schema=TABLE.schema, orient="row"))
