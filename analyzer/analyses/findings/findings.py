"""Findings ranked by the time at stake, and by what a replay of the recording says that their remedies gain."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import rules
from kanalyze.analyses.findings._claims import shared_out, with_replays
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import LIBRARY, REACHED, kernel_sums
from kanalyze.analyses.findings.rules._telling import with_lines
from kanalyze.analyses.findings.rules.compiling import ONE_TIME
from kanalyze.analyses.findings.rules.occupancy import SAMPLED
from kanalyze.analyses.host._call_kinds import JAX, interface, spoken, world
from kanalyze.analyses.host._range_lines import has_shapes
from kanalyze.analyses.host.engine_marks import engine_marks
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.iterations.phases import known_steady_part
from kanalyze.analyses.launches._launch_costs import WORTH_SAYING, least_worth_saying
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require, side_by_side
from kanalyze.errors import KanalyzeError
from kanalyze.machinery import late
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Table, columns
from kanalyze.tools import worded

with late():  # of reports with shapes of operators
    from kanalyze.analyses.work import work

TABLE: Final = Table(
    "findings",
    "One finding: a sentence with its evidence and the nanoseconds at stake.",
    columns("""
        rule text: Stable name of the kind of finding, which `kanalyze explain` takes.
        device int: The GPU whose window the time is part of.
        at_stake_ns int: The time in the window that it takes; of `at_most`, the most that mending it can gain.
        at_most bool: Whether no way to mend it can gain more; if not, more may follow.
        per_iteration_ns int?: The mean of that time per iteration, rounded, in a window of iterations.
        replayed_ns int?: How much shorter the device's window gets by the remedy, without the profiler, by a replay;
            null where none was made.
        share float: That time as a part of the device's window.
        headline text: What was found, in a line.
        action text: What to do about it, in a line: as code or a command where that says it.
        where text?: The range, operator or line of code that it lies in, or most of it.
        sentence text: What was found, with the evidence.
        remedy text: What to do about it.
        table text: What to give `kanalyze show` to see the rows behind it.
        definition text: What to give `kanalyze` to read what it means and what to do.
        replayed_low_ns int?: The least that it gets shorter by, as far as is known.
        replayed_high_ns int?: The most.
    """),
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
    names = [module.name for module in pkgutil.iter_modules(rules.__path__) if not module.name.startswith("_")]
    needed = [name for name in names if name not in _NEEDS or _NEEDS[name](report)]
    modules = [import_module(f"{rules.__name__}.{name}") for name in needed]
    every = [rule for module in modules for rule in vars(module).values() if isinstance(rule, rules.Rule)]
    # by name: what needs most memory (graph_candidate) comes before what keeps most (pageable_copy), 0.3 GB at 1 GB
    return _worth_saying(report, sorted(every, key=lambda rule: rule.name))


def _recorded(report: Report) -> bool:
    """Whether frameworks or programs record what they do, here or in the trace beside."""
    return report.whole.beside() is not None or any(report.kind(kind).height for kind in ("op", "range"))


def _launched(report: Report, fewest: int, *kinds: str) -> bool:
    """Whether so many operations of some kinds were launched: what the driver moves by itself is not."""
    unified = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
    return operations(report).filter(pl.col("kind").is_in(kinds) & ~unified).height >= fewest


#: What a report needs for the rules of some files to find anything: in others these are not entered.
_NEEDS: Final[dict[str, Callable[[Report], bool]]] = {
    # as many operations as any loop has
    **dict.fromkeys(
        ("arrays", "loops", "cpu_work", "small_copies"),
        lambda report: _launched(report, 8, *DEVICE_KINDS) or _recorded(report),
    ),
    **dict.fromkeys(
        ("needless_kernels", "slower_kernels", "unfused"),
        lambda report: any(one.launches(LIBRARY != "") for one in kernel_sums(report)) or _recorded(report),
    ),
    "pageable_copies": lambda report: _launched(report, 1, "memcpy") or _recorded(report),
    "roofs": has_shapes,
    "xla": lambda report: world(report) == JAX,
    "serving": lambda report: engine_marks(report).height > 0,
}


def _worth_saying(report: Report, every: Sequence[rules.Rule]) -> list[rules.Finding]:
    """The findings of some rules with enough time at stake, the costliest first, in the terms of the program."""
    found = within_distance(report, [finding for some in side_by_side(report, every) for finding in some])
    least, once = least_worth_saying(report), {device: WORTH_SAYING * ns for device, ns in _lengths(report).items()}
    enough = {(one.rule, one.device): max((once if one.rule in ONE_TIME else least)[one.device], 1) for one in found}
    worth = [one for one in found if one.at_stake_ns >= enough[one.rule, one.device]]
    left = shared_out(worth, enough)
    # what is at stake of a part of a finding's claims, the distance of that part tells
    parts = iter(within_distance(report, [one for one in left if one.curtailed]))
    left = [next(parts) if one.curtailed else one for one in left]
    in_words = [_in_terms_of(report, one) for one in with_lines(report, left)]
    return sorted(in_words, key=lambda one: (-one.at_stake_ns, one.rule, one.device))


def _in_terms_of(report: Report, one: rules.Finding) -> rules.Finding:
    """The finding with headline and action, in the terms of the program's world and programming interface."""
    brief = in_words_of(report, one).brief
    text, remedy, headline, action = (
        worded(part, interface(report)) for part in (brief.text, brief.remedy, brief.headline, brief.action)
    )
    return brief._replace(text=text, remedy=remedy, headline=headline, action=action)


def ranked_with_samples(report: Report) -> list[rules.Finding]:
    """The same, and after them those on the GPU's units in the run that nsys sampled, of a capture with one.

    What they have at stake is the same part of this report's window as it is of that run's.
    """
    found = ranked(report)
    try:
        if (other := _sampled_run(report)) is None:
            return found
        own, theirs, sampled = _lengths(report), _lengths(other), _worth_saying(other, SAMPLED)
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
    busy = {device: float(busy_ns.get(device, 0) / max(length, 1)) for device, length in lengths.items()}
    return sorted(found, key=lambda one: -weighed_ns(one, busy.get(one.device, 0.0)))


def weighed_ns(one: rules.Finding, busy: float) -> float:
    """Weight of a finding in their order (ns), where the GPU is busy for such a part of the time."""
    counts = busy if one.shortens and one.replayed_ns is None else _COUNTS.get(one.rule, 1.0)
    return one.gain_ns * (_VAGUE if one.vague else min(_GENERAL, counts) if one.general else counts)


def _sampled_run(report: Report) -> Report | None:
    """The run with samples of GPU counters beside a whole report or its steady part, and of that run the same."""
    if report.scope.process is not None or report.table("gpu_metrics").height:
        return None
    other, window = report.whole.sampled(), None
    if other is None or other.table("gpu_metrics").is_empty():
        return None
    if report.scope.window is not None:
        own, theirs = known_steady_part(report.whole), known_steady_part(other)
        if own is None or theirs is None or own.window != report.scope.window:
            return None
        window = theirs.window
    return other.narrow(window=window, device=report.scope.device)


@analysis
def findings(report: Report) -> pl.DataFrame:
    """All findings about the report, what gains most first; kernel names are not shortened.

    That is what a replay says that the remedy gains, and where none was made the time at stake. Of a capture, the GPU's
    units are those of its run with samples; what they have at stake is the same part of the window.

    Returns:
        :data:`TABLE`; empty if there are none.

    Raises:
        CannotTellError: The report records no device operations.
    """
    lengths, iterations = _lengths(report), report.scope.window and report.scope.window.count
    rows = [
        one._asdict()
        | {
            "per_iteration_ns": (2 * one.at_stake_ns + iterations) // (2 * iterations) if iterations else None,
            "share": one.at_stake_ns / max(lengths[one.device], 1),
            "headline": one.headline.format(*one.names),
            "where": one.place.format() or None,
            "sentence": one.text.format(*one.names),
            "definition": one.definition,
        }
        for one in by_gain(report, _MOST_REPLAYED)
    ]
    return TABLE.select(
        pl.DataFrame([[row[name] for name in TABLE.schema] for row in rows], TABLE.schema, orient="row")
    )


#: Rules whose remedy leaves kernels the same work, and the type that it is done in then; empty for the same.
_SAME_WORK: Final = {
    **dict.fromkeys(("unaligned-gemm", "old-architecture-gemm", "no-tensor-cores", "uncoalesced"), ""),
    **dict.fromkeys(("small-grid", "tail", "low-occupancy", "few-sms", "idle-tensor-cores", "clock-drop"), ""),
    **dict.fromkeys(("padded-products", "skinny-products", "far-from-roof"), ""),
    "no-tf32": "tf32",
}


def within_distance(report: Report, found: list[Finding]) -> list[Finding]:
    """The findings, none on kernels of the same work with more at stake, or saved by its remedy, than the distance."""
    bounded = [one for one in found if one.rule in _SAME_WORK and one.claims is not None]
    if not bounded or not has_shapes(report):
        return found
    return [_within(report, one) if one in bounded else one for one in found]


def _within(report: Report, one: Finding) -> Finding:
    least = work.least_times(report, _SAME_WORK[one.rule]).filter(device=one.device)
    if _SAME_WORK[one.rule]:  # other kernels, which come as near to their roof as products do
        least = least.with_columns(
            pl.min_horizontal("dur_ns", pl.col("least_ns") / REACHED["products"]).cast(pl.Int64).alias("least_ns")
        )
    claims = pl.DataFrame(schema=intervals.SPANS) if one.claims is None else one.claims.select("start", "end")
    if one.curtailed:  # whose claims are cut, or several kernels in a row
        inside = intervals.overlap(least.get_column("start"), least.get_column("end"), intervals.union(claims))
        part = inside / pl.max_horizontal(pl.col("end") - pl.col("start"), 1)
        claimed = least.with_columns(part=part).filter(pl.col("part") > 0)
    else:
        claimed = least.join(claims.unique(), on=["start", "end"], how="semi").with_columns(part=pl.lit(1.0))
    beyond = pl.col("exclusive_ns") * (1 - pl.col("least_ns").fill_null(0) / pl.col("dur_ns").clip(lower_bound=1))
    distance = claimed.select((beyond.clip(lower_bound=0) * pl.col("part")).sum()).item()
    at_stake_ns = min(one.at_stake_ns, int(distance)) if claimed.height else one.at_stake_ns

    def bounded(whole: Report) -> Mending | None:
        change = one.change(whole)
        if change is None or change.shorter is None:
            return change
        most = least.select("row", most=(pl.col("dur_ns") - pl.col("least_ns")).clip(lower_bound=0))
        known = change.shorter.with_columns(pl.col("row").cast(least.schema["row"]))
        known = known.join(most, on="row", how="left", maintain_order="left")
        return change._replace(shorter=known.select("row", saved_ns=pl.min_horizontal("saved_ns", "most")))

    return one._replace(at_stake_ns=at_stake_ns, mending=bounded if one.mending else None)


def in_words_of(report: Report, one: rules.Finding) -> rules.Finding:
    """The finding with action and remedy in the language of the program's world."""
    action, remedy = spoken(report, rules.in_other_worlds(one.rule), ("", ""))
    return one._replace(action=action, remedy=remedy) if action else one
