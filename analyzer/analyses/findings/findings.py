"""Findings ranked by the time at stake, and by what a replay of the recording says that their remedies gain.

Each piece of a device's time belongs to one finding, the most specific whose cause is seen. Remedies are replayed one
after the other, so that gains add up to that of all together.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from importlib import import_module
from itertools import chain
from typing import Final

import polars as pl

from kanalyze import errors, intervals, machinery, model, schema, tools
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import busy_within, windows
from kanalyze.analyses.findings import on_host, rules, say
from kanalyze.analyses.findings.on_gpu import LIBRARY, REACHED, kernel_sums
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding, Rule, compiling, memory, occupancy
from kanalyze.analyses.host._call_kinds import BY_DRIVER, JAX, interface, spoken, world
from kanalyze.analyses.host._range_lines import has_shapes
from kanalyze.analyses.host.engine_marks import engine_marks
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import bucket_sums, hides_host
from kanalyze.analyses.iterations.iterations import STEADY
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.iterations.sample import sample_of
from kanalyze.analyses.launches._launch_costs import WORTH_SAYING, least_worth_saying
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.streams.concurrency import leaves_room
from kanalyze.report import Report
from kanalyze.units import percent

with machinery.late():  # of reports with shapes of operators, and whose remedies are replayed
    from kanalyze.analyses.findings.rules import laws
    from kanalyze.analyses.replay import _host_time, _network, _unprofiled, _whatif
    from kanalyze.analyses.work import work

TABLE: Final = schema.Table(
    "findings",
    "One finding: a sentence with its evidence and the nanoseconds at stake.",
    schema.columns("""
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

#: A loop has so many operations.
_LOOP: Final = 8

#: What the time of a finding counts in their order: little where it names no cause, a part where its remedy helps
#: whatever the cause, and leaves that in place; much of one that makes the times of all others hold another program's
#: work. Of those without a replay, shorter kernels count as the GPU is busy.
_VAGUE: Final = 0.02
_GENERAL: Final = 0.25
_COUNTS: Final = {"shared-gpu": 5.0}


@once_per_report
def ranked(report: Report) -> list[Finding]:
    """All findings with enough time at stake in their device's window, the costliest first.

    Enough is at least :func:`least_worth_saying`; for one-time costs, the same share of the whole window.
    """
    require(report, TABLE, *model.DEVICE_KINDS)
    culprits(report)  # first, since the ledger, which many rules need, reuses its pass over idle time
    names = [module.name for module in pkgutil.iter_modules(rules.__path__)]
    needed = [name for name in names if name not in _NEEDS or _NEEDS[name](report)]
    modules = [import_module(f"{rules.__name__}.{name}") for name in needed]
    every = [rule for module in modules for rule in vars(module).values() if isinstance(rule, Rule)]
    return _worth_saying(report, sorted(every, key=lambda rule: rule.name))


def _recorded(report: Report) -> bool:
    """Whether frameworks or programs record what they do, here or in the trace beside."""
    return report.whole.beside() is not None or any(report.kind(kind).height for kind in ("op", "range"))


@once_per_report
def _may_loop(report: Report) -> bool:
    """Whether a report has as many operations as any loop: what the driver moves by itself is none of them."""
    own = pl.col("kind").is_in(model.DEVICE_KINDS) & ~BY_DRIVER
    return _recorded(report) or world(report) == JAX or operations(report).filter(own).height >= _LOOP


#: What a report needs for the rules of some files to find anything: in others these are not entered.
_NEEDS: Final[dict[str, Callable[[Report], bool]]] = {
    **dict.fromkeys(("arrays", "loops", "cpu_work", "few_samples"), _may_loop),
    **dict.fromkeys(
        ("needless_kernels", "needless_products", "slower_kernels", "unfused", "weights", "windows"),
        lambda report: any(one.launches(LIBRARY != "") for one in kernel_sums(report)) or _recorded(report),
    ),
    "jax_programs": lambda report: world(report) == JAX,
    "laws": lambda report: has_shapes(report) or engine_marks(report).height > 0,
}


def _worth_saying(report: Report, every: Sequence[Rule]) -> list[Finding]:
    """The findings of some rules with enough time at stake, the costliest first, in the terms of the program."""
    candidates = [within_distance(report, finding) for rule in every for finding in rule(report)]
    least, once = least_worth_saying(report), {device: WORTH_SAYING * ns for device, ns in _lengths(report).items()}
    enough = {
        (one.rule, one.device): max((once if one.rule in compiling.ONE_TIME else least)[one.device], 1)
        for one in candidates
    }
    left = shared_out([one for one in candidates if one.at_stake_ns >= enough[one.rule, one.device]], enough)
    # what is at stake of a part of a finding's claims, the distance of that part tells
    left = [within_distance(report, one) if one.curtailed else one for one in left]
    return sorted(in_words(report, left), key=lambda one: (-one.at_stake_ns, one.rule, one.device))


def in_words(report: Report, drafts: Sequence[Finding]) -> list[Finding]:
    """The findings with their lines of the program, in the terms of its world and programming interface."""
    placed = (on_host.with_forward_line(report, one) for one in say.with_lines(report, drafts))
    briefs = (in_words_of(report, one).brief for one in placed)
    reworded = partial(tools.worded, interface=interface(report))
    return [
        one._replace(
            text=reworded(one.text),
            remedy=reworded(one.remedy),
            headline=reworded(one.headline),
            action=reworded(one.action),
        )
        for one in briefs
    ]


def ranked_with_samples(report: Report) -> list[Finding]:
    """The same, and after them those on the GPU's units in the run that nsys sampled, of a capture with one.

    What they have at stake is the same part of this report's window as it is of that run's.
    """
    ranking = ranked(report)
    try:
        if (other := _sampled_run(report)) is None:
            return ranking
        own, theirs, sampled = _lengths(report), _lengths(other), _worth_saying(other, occupancy.SAMPLED)
    except errors.KanalyzeError:  # which is noted
        return ranking
    small = {name for one in ranking if one.rule == "small-grid" for name in one.names}
    return ranking + [
        one._replace(
            at_stake_ns=one.at_stake_ns * own[one.device] // max(theirs[one.device], 1),
            text=f"In the run with samples: {one.text}",
        )
        for one in sampled
        if one.device in own and not (one.rule == "few-sms" and small.intersection(one.names))
    ]


def _lengths(report: Report) -> dict[int, int]:
    """The length of the window of each device (ns)."""
    return {device: end - start for device, start, end in windows(report).iter_rows()}


def by_gain(report: Report) -> list[Finding]:
    """The :func:`ranked_with_samples` with replays, what gains most first.

    Of a large report's steady part they are those of a sample, at the times of all.
    """
    part = sample_of(report).part
    return ordered(report, of_all_iterations(report, with_replays(part, ranked_with_samples(part)), once=True))


#: Findings on all iterations, also where causes are looked for in a sample: what is paid once, and what stands out.
OF_ALL: Final = (*compiling.ONE_TIME, "slow-steps")


def of_all_iterations(report: Report, of_sample: list[Finding], *, once: bool) -> list[Finding]:
    """The findings on a sample at the times of all iterations, and on all: with `once` on what is paid once, too."""
    _, times, which = sample_of(report)
    if not which:
        return of_sample
    own = [compiling.cold_start, memory.pinned_allocation] if once else []
    own += [laws.slow_engine_steps] if engine_marks(report).height else []
    more = with_replays(report, [one for one in _worth_saying(report, own) if one.rule in OF_ALL])
    return [*(one.over(times, which) for one in of_sample if one.rule not in OF_ALL), *more]


def ordered(report: Report, unsorted: list[Finding]) -> list[Finding]:
    """The findings in the order of what they gain, on every page and in every table."""
    work = exclusive_operations(report).group_by("device").agg(pl.col("exclusive_ns").sum())
    busy_ns, lengths = dict(work.iter_rows()), _lengths(report)
    busy = {device: float(busy_ns.get(device, 0) / max(length, 1)) for device, length in lengths.items()}
    return sorted(unsorted, key=lambda one: -weighed_ns(one, busy.get(one.device, 0.0)))


def weighed_ns(finding: Finding, busy: float) -> float:
    """Weight of a finding in their order (ns), where the GPU is busy for such a part of the time."""
    counts = busy if finding.shortens and finding.replayed_ns is None else _COUNTS.get(finding.rule, 1.0)
    # torch.compile, the remedy of formulas by hand, fuses what else it can, which is not their fault
    by_hand = finding.rule == "fusion" and not finding.general
    gain_ns = min(finding.gain_ns, finding.at_stake_ns) if by_hand else finding.gain_ns
    return gain_ns * (_VAGUE if finding.vague else min(_GENERAL, counts) if finding.general else counts)


def _sampled_run(report: Report) -> Report | None:
    """The run with samples of GPU counters beside a whole report or its steady part, and of that run the same."""
    if report.scope.process is not None or report.table("gpu_metrics").height:
        return None
    other, window = report.whole.sampled(), None
    if other is None or other.table("gpu_metrics").is_empty():
        return None
    if report.scope.window is not None:
        theirs = steady_part(other)
        if theirs is None or report.scope.window.name != STEADY or not report.scope.window.count:
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
        for one in by_gain(report)
    ]
    return TABLE.select(pl.DataFrame(rows, TABLE.schema))


#: Rules whose remedy leaves kernels the same work, and the type that it is done in then; empty for the same.
_SAME_WORK: Final = {
    **dict.fromkeys(("unaligned-gemm", "old-architecture-gemm", "no-tensor-cores", "uncoalesced"), ""),
    **dict.fromkeys(("small-grid", "tail", "low-occupancy", "few-sms", "idle-tensor-cores", "clock-drop"), ""),
    **dict.fromkeys(("padded-products", "skinny-products", "far-from-roof"), ""),
    "no-tf32": "tf32",
}


def within_distance(report: Report, finding: Finding) -> Finding:
    """The finding, on kernels of the same work with no more at stake, or saved by its remedy, than the distance."""
    if finding.rule not in _SAME_WORK or finding.claims is None or not has_shapes(report):
        return finding
    least = work.least_times(report, _SAME_WORK[finding.rule]).filter(device=finding.device)
    if _SAME_WORK[finding.rule]:  # other kernels, which come as near to their roof as products do
        near = pl.min_horizontal("dur_ns", pl.col("least_ns") / REACHED["products"]).cast(pl.Int64)
        least = least.with_columns(least_ns=pl.when(pl.col("least_ns").is_not_null()).then(near))
    claims = finding.claims.select("start", "end")
    if finding.curtailed:  # whose claims are cut, or several kernels in a row
        part = intervals.covered(least, intervals.union(claims)) / pl.max_horizontal(pl.col("end") - pl.col("start"), 1)
        claimed = least.with_columns(part=part).filter(pl.col("part") > 0)
    else:
        claimed = least.join(claims.unique(), on=["start", "end"], how="semi").with_columns(part=pl.lit(1.0))
    beyond = pl.col("exclusive_ns") * (1 - pl.col("least_ns").fill_null(0) / pl.col("dur_ns").clip(lower_bound=1))
    distance = claimed.select((beyond.clip(lower_bound=0) * pl.col("part")).sum()).item()
    at_stake_ns = min(finding.at_stake_ns, int(distance)) if claimed.height else finding.at_stake_ns

    def bounded(whole: Report) -> Mending | None:
        change = finding.change(whole)
        if change is None or change.shorter.is_empty():
            return change
        most = least.select("row", most=(pl.col("dur_ns") - pl.col("least_ns")).clip(lower_bound=0))
        saved = change.shorter.with_columns(pl.col("row").cast(least.schema["row"]))
        saved = saved.join(most, on="row", how="left", maintain_order="left")
        return change._replace(shorter=saved.select("row", saved_ns=pl.min_horizontal("saved_ns", "most")))

    return finding._replace(at_stake_ns=at_stake_ns, mending=bounded if finding.mending else None)


def in_words_of(report: Report, finding: Finding) -> Finding:
    """The finding with action and remedy in the language of the program's world, or of its kernel: Triton's."""
    every = (words.items() for names, words in rules.WORDS["worlds"].items() if finding.rule in names.split())
    words = rules.one_line(dict(chain.from_iterable(every)))
    # what Triton compiled, where that is recorded; else a plain name tells
    compiled, name = say.of_triton(report), next(iter(finding.names), "")
    of_triton = name in compiled if compiled or not name else say.written_with(report, name) == say.TRITON
    in_triton = say.TRITON in words and of_triton
    action, remedy = words[say.TRITON] if in_triton else spoken(report, words, ("", ""))
    return finding._replace(action=action, remedy=remedy) if action else finding


# Whose time it is, and what remedies gain.

#: The rules, the most specific first, as words.toml has them.
ORDER: Final = tuple(dict.fromkeys(name.partition(":")[0] for name in rules.WORDS["findings"]))

_WORTH_A_WORD: Final = 0.01  # a smaller part of a finding's time that others tell of is nothing


def shared_out(claimants: Sequence[Finding], least: Mapping[tuple[str, int], float]) -> list[Finding]:
    """The findings with what of their claims no more specific one takes, the most specific first.

    Those of one cause are one finding. A finding that loses a part of its claims loses the same part of what is at
    stake, or is told anew. It is dropped where less is left than the `least` worth saying (ns), by rule and device.
    """
    claimed: dict[int, pl.DataFrame] = {}
    kept: list[Finding] = []
    for finding in sorted(_joined(claimants), key=_specificity):
        claims = intervals.union(pl.DataFrame(schema=intervals.SPANS) if finding.claims is None else finding.claims)
        before = claimed.get(finding.device, claims.clear())
        remaining = _of_left(finding, claims, intervals.subtract(claims, before))
        if remaining is not None and remaining.at_stake_ns >= max(least[finding.rule, finding.device], 1):
            kept.append(remaining._replace(retold=None))  # which holds the report
            claimed[finding.device] = intervals.union(pl.concat([before, claims]))
    return kept


def _specificity(finding: Finding) -> tuple[float, bool, int]:
    # of a finding that is not general: a formula's casts go with the formula
    specific = None if finding.general else {"fusion": "recurring-casts"}.get(finding.rule)
    place = ORDER.index(specific or finding.rule) - (0.5 if specific else 0)
    return place, finding.general, -finding.at_stake_ns


def _joined(claimants: Sequence[Finding]) -> list[Finding]:
    """The findings by time at stake; what conversions of images and kernels per channel take adds up by device."""
    kept: dict[object, Finding] = {}
    for one in sorted(claimants, key=lambda one: -one.at_stake_ns):
        key = one.device if one.action == CHANNELS_LAST and one.mending else (len(kept),)
        kept[key] = _both(*sorted((kept[key], one), key=_specificity)) if key in kept else one
    return [*kept.values()]


def _both(first: Finding, other: Finding) -> Finding:
    """Two findings of one cause, with mendings, told as the first one."""
    text = re.sub(r"\{(\d+)\}", lambda place: f"{{{int(place[1]) + len(first.names)}}}", other.text)
    claims = [one.claims for one in (first, other) if one.claims is not None]

    def all_changes(report: Report) -> Mending | None:
        changes = [change for one in (first, other) if (change := one.change(report)) is not None]
        return reduce(Mending.with_all_of, changes) if changes else None

    return first._replace(
        at_stake_ns=first.at_stake_ns + other.at_stake_ns,
        text=f"{first.text} The same cause: {text}",
        names=(*first.names, *other.names),
        at_most=False,
        mending=all_changes,
        claims=pl.concat(claims) if claims else None,
    )


def _of_left(finding: Finding, claims: pl.DataFrame, left: pl.DataFrame) -> Finding | None:
    """A finding on what is `left` of its claims; None where that is nothing."""
    whole, rest = intervals.length(claims), intervals.length(left)
    if rest == whole:
        return finding._replace(claims=claims) if whole else finding
    if not rest:
        return None
    lost = 1 - rest / whole
    if finding.retold:
        remaining = finding.retold(left)
    else:
        text = finding.text + f" Other findings tell of {percent(lost)} of that." * (lost > _WORTH_A_WORD)
        remaining = finding._replace(at_stake_ns=finding.at_stake_ns * rest // whole, text=text)
    return remaining and remaining._replace(claims=left, curtailed=lost > _WORTH_A_WORD)


#: Remedies are replayed of reports, and of samples, with so many operations and calls at most: more take seconds.
_MOST_REPLAYED: Final = 1 << 19

#: Findings that many sound programs have, and that are told only where their remedy gains a hundredth.
_COMMON: Final = ("small-grid", "tail", "low-occupancy")
#: By times, grids and registers; counters may know better.
EXPECTED: Final = ("tail", "low-occupancy", "uncoalesced")

#: What a remedy gains differs by so large a part from what an exact replay says, at most, and what it leaves takes
#: twice as long: in four of five programs of docs/diagnosis.md, and in nineteen of twenty where it gains most.
OF_REMEDIES: Final = 0.25

#: What the window of a device gets shorter by: without the profiler as usual, with least of the host's time, with most;
#: and by how much each of them may be wrong (ns).
_Gains = list[tuple[int, int]]


def with_replays(report: Report, candidates: Sequence[Finding]) -> list[Finding]:
    """The findings on a report's window with what a replay says that each remedy gains.

    Where specific ones gain less together than one by one, none is told of more than it gains on top of those that gain
    more; no general one of more than on top of all specific ones, and none that others claim a part of, on top of those
    whose time is their own. None is replayed of more operations and calls than
    :data:`_MOST_REPLAYED`.
    """
    least = least_worth_saying(report)
    replayable = operations(report).height + report.kind("api").height <= _MOST_REPLAYED
    gains: dict[int, _Gains] = {}
    for device in {one.device for one in candidates if one.mending and replayable}:
        changes = {at: one.change(report) for at, one in enumerate(candidates) if one.device == device}
        gains |= _of_device(report, candidates, {at: change for at, change in changes.items() if change is not None})
    replayed = [_with(report, one, gains.get(at)) for at, one in enumerate(candidates)]
    # a hundredth is ten times what is worth saying of any
    return [
        one for one in replayed if not (one.general or one.rule in _COMMON) or one.gain_ns >= 10 * least[one.device]
    ]


def _of_device(report: Report, candidates: Sequence[Finding], changes: Mapping[int, Mending]) -> dict[int, _Gains]:
    """The gains of the remedies of a device, by finding."""
    gains = {at: _replayed(report, candidates[at].device, change) for at, change in changes.items()}
    later = {at for at in gains if candidates[at].general or candidates[at].curtailed}
    own = sorted(gains.keys() - later, key=lambda at: -gains[at][0][0])
    rest = sorted(later, key=lambda at: (candidates[at].general, _specificity(candidates[at])[0]))
    union = reduce(Mending.with_all_of, (changes[at] for at in own), Mending())
    before = [(0, 0)] * 3 if not own else gains[own[0]]
    if len(own) > 1:
        before = _replayed(report, candidates[own[0]].device, union)
    if sum(gains[at][0][0] for at in own) > before[0][0]:
        union, before, rest = changes[own[0]], gains[own[0]], [*own[1:], *rest]
    for at in rest:
        union = union.with_all_of(changes[at])
        after = _replayed(report, candidates[at].device, union)
        more = [(max(new - old, 0), apart) for (old, _), (new, apart) in zip(before, after, strict=True)]
        gains[at] = [min(sides) for sides in zip(more, gains[at], strict=True)]
        before = after
    return gains


def _replayed(report: Report, device: int, change: Mending) -> _Gains:
    """How much shorter the window of a device gets by a change, and how wrong that may be."""
    # what is paid once is the same with the remedy
    once = total(bucket_sums(report).filter(device=device, bucket="loading"), "ns")
    # kernels that fill the device run in turn on any streams: what the change leaves of their time
    filling = _filling(report, device).filter(~pl.col("row").is_in(change.gone.implode()))
    saved_ns = total(change.shorter.join(filling, on="row", how="semi"), "saved_ns")
    sides, least_ns = _unprofiled.sides(report)[device], intervals.length(intervals.union(filling)) - saved_ns
    network, gains = sides[0].network, []
    for side in sides:
        replay = _network.replayed(network, _whatif.mended(report, network, side.state, change))
        then = max(replay[-1], network.start + least_ns)
        gains.append((max(side.end - then, 0), int(_host_time.NEAR * max(then - network.start - once, 0))))
    return gains


@once_per_report
def _filling(report: Report, device: int) -> pl.DataFrame:
    """Kernels of several streams of the device whose grids fill it: row, start, end."""
    work = exclusive_operations(report, "stream").filter((pl.col("device") == device) & (pl.col("kind") == "kernel"))
    work = work.filter(pl.col("stream").n_unique() > 1)
    return work.filter(~leaves_room(report, work.get_column("row"))).select("row", "start", "end")


def _unreplayed(report: Report, finding: Finding) -> Finding:
    """The finding without a replay: its remedy leaves the device all other work, and gains nothing at the least."""
    if finding.vague or finding.replayed_high_ns is not None:
        return finding._replace(mending=None)
    if finding.claims is None:
        return finding._replace(mending=None, replayed_low_ns=0, replayed_high_ns=finding.at_stake_ns)
    work = exclusive_operations(report).filter(device=finding.device).select("start", "end")
    others = intervals.subtract(intervals.union(work), intervals.union(finding.claims.select("start", "end")))
    low, high = windows(report).row(by_predicate=pl.col("device") == finding.device)[1:]
    most = high - low - intervals.length(intervals.clip(others, low, high))
    bound = finding.at_stake_ns if finding.at_most else max(most, finding.at_stake_ns)
    return finding._replace(mending=None, replayed_low_ns=0, replayed_high_ns=bound)


def _with(report: Report, finding: Finding, gains: _Gains | None) -> Finding:
    """The finding with its gain, and between which bounds: those of nothing are nothing; at most it is the whole."""
    if gains is None:
        return _unreplayed(report, finding)
    side, usual = _unprofiled.sides(report)[finding.device][0], gains[0][0]
    whole = side.end - side.network.start
    low = max(min(ns - (apart if ns else 0) for ns, apart in gains), 0) * (1 - OF_REMEDIES)
    low = int(min(max(low, whole * (1 - _host_time.NEAR) - (whole - usual) * 2 if low else 0), usual))
    high = int(max(ns + (apart if ns else 0) for ns, apart in gains) * (1 + OF_REMEDIES))
    most = finding.at_stake_ns if finding.at_most or hides_host(report) else whole
    if isinstance(finding.mending, Mending) and finding.mending.host_alone:
        # the device has its work to do, however quick the host is, which differs from one run to another
        busy_ns = busy_within(report, windows(report).filter(device=finding.device)).item()
        most = min(most, max(int(whole - (1 - _host_time.DEVICES_DIFFER) * busy_ns), usual))
    usual, low, high = (min(ns, most) for ns in (usual, low, high))
    return finding._replace(
        mending=None, replayed_ns=usual, replayed_low_ns=low, replayed_high_ns=high, unmended_ns=whole
    )
