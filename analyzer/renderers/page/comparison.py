"""Builds the pages of changes: a comparison (verdict, where the difference went), a noise floor, a replayed change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import units, window
from kanalyze.outlets import command
from kanalyze.renderers import page
from kanalyze.renderers.page import ARROW, ROWS, Block, Column, Page, Row, Section, numbers, section, unversioned, words
from kanalyze.renderers.page.kernel_names import short_forms

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison, Noise, Profiled, Verdict
    from kanalyze.analyses.comparing._pair import Side
    from kanalyze.analyses.replay._whatif import WhatIf

#: Lines of all sections together, and those of a section that are no rows.
_LINES, _AROUND = 31, 3

#: Half the width of the bars of the waterfall.
_BAR: Final = 12

#: Factors below this one have three digits behind the point, those above the other none.
_CLOSE, _LARGE = 1.2, 100

#: Counters on the page, the most telling one first: what they are called there, and how their values are told.
_COUNTED: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "roof_share": ("of roof", units.percent),
    "intensity_flop_per_byte": ("FLOP per byte", "{:,.4g}".format),
    "flop": ("FLOP", units.flop),
    "dram_read_bytes": ("DRAM read", units.size),
    "dram_write_bytes": ("DRAM written", units.size),
    "memory_share": ("memory", units.percent),
    "compute_share": ("compute", units.percent),
    "achieved_occupancy_share": ("occupancy", units.percent),
    "l1_hit_share": ("L1 hits", units.percent),
    "l2_hit_share": ("L2 hits", units.percent),
    "registers_per_thread": ("registers", "{:,.4g}".format),
    "sm_clock_hz": ("SM clock", units.frequency),
}


def comparison_page(comparison: Comparison, top: int) -> Page:
    """Builds the page of a comparison, at most `top` rows per table.

    Sections have fewer rows each than the usual number where all together would be too long, and the last ones are left
    out if one row each is still too much.
    """
    about, (base, new) = comparison.base.about, comparison.paths
    tool = about.tool if len(comparison.tools) == 1 else " and ".join(comparison.tools)
    parts = [f"base {comparison.names[0]}", f"new {comparison.names[1]}", tool, *([about.gpu] if about.gpu else [])]
    parts += [f"times {comparison.times}"] if comparison.times else []
    parts += [f"rank {about.rank} of {len(comparison.pairs)}"] if len(comparison.pairs) > 1 else []
    single = len(base) == len(new) == 1
    sides = [*base, *new] if single else [*(word for path in base for word in ("--base", path)), *new]
    sides += page.options(comparison.scope)
    table = "compare_kernels" if len(comparison.tools) == 1 else "compare_families"
    more = [command("kanalyze", "show", table, *sides)] if single else []
    for rows in range(top, 0, -1):
        sections = [one for one in (_waterfall(comparison, rows), *_tables(comparison, rows)) if one.grid.rows]
        lines = [*accumulate(len(one.grid.rows) + _AROUND for one in sections)]
        if top > ROWS or lines[-1] <= _LINES:
            break
        sections = [one for one, last in zip(sections, lines, strict=True) if last <= _LINES]
    return Page(
        heading=["kanalyze compare", *parts],
        answer=answer(comparison),
        sections=sections,
        more="\n".join([*more, command("kanalyze", "compare", *sides, *comparison.options, "--format", "markdown")]),
        blocks=[] if comparison.gate is None else [Block("GATE", comparison.gate.sentence)],
    )


# The sentences.


def answer(comparison: Comparison) -> str:
    """The verdict in a sentence with its interval, and where the difference went."""
    each, verdict = comparison.base.about.each, comparison.verdict
    sentences = [
        f"Not the same on both sides: {'; '.join(one.text for one in comparison.doubts)}." if comparison.doubts else "",
        f"The whole recordings are compared, since {comparison.reason}." if comparison.reason else "",
        f"{comparison.note[0].upper()}{comparison.note[1:]}." if comparison.note else "",
        f"{_verdict(comparison)}{_where(comparison)}.",
    ]
    if mix := comparison.other_mix:
        sentences.append(f"{mix[0].upper()}{mix[1:]}: all tables but ENGINE STEPS are of what each served.")
    if verdict.basis == "steps":
        sentences.append("One run a side does not show how much runs vary: repeat both to be sure.")
    elif verdict.low is None:
        sentences.append(f"{_no_interval(comparison.timed.base, comparison.timed.new)}: repeat both.")
    else:
        if varying := comparison.varying:
            sentences.append(f"Runs of {varying[0]} differ among themselves by {units.percent(varying[1])}.")
        sentences += [f"{units.plural(verdict.repeats, 'run')} of each side would tell."] if verdict.repeats else []
    if comparison.quick is not None:
        those = units.plural_of(each) if each in window.WORDS else f"of each {each!r}"
        quick = _judged(comparison, comparison.quick, "are", "take")
        sentences.append(f"The quicker {those} (the lower quartile of each run) {quick}.")
    differs = verdict.word != "same" and not (verdict.low or 0) <= 1 <= (verdict.high or 0)
    if comparison.profiled is not None and (differs or len(comparison.tools) > 1):
        sentences.append(_profiled(comparison, comparison.profiled))
    if comparison.apart:
        sentences.append(
            "No kernel is on both sides: these are different programs, or one whose kernels were all replaced."
        )
    return " ".join(filter(None, sentences))


def _profiled(comparison: Comparison, cost: Profiled) -> str:
    """What of the difference as recorded the profilers' cost would explain: at most so much, by estimate."""
    base_ns, new_ns = cost.recorded_ns
    tool, costs = (comparison.tools[0], "costs") if len(comparison.tools) == 1 else ("the profilers", "cost")
    (least_ns, most_ns), apart = cost.explains_ns, abs(new_ns - base_ns)
    of = "all" if most_ns >= apart else units.time(most_ns)
    if not cost.estimated:
        notable = most_ns >= comparison.pair.limits.least_effect * max(base_ns, new_ns)
        return f"Up to {of} of the difference may be what {tool} {costs}." if notable else ""
    base, new = (" to ".join(map(units.time, one)) for one in (cost.base_ns, cost.new_ns))
    explains = f"explains at most {of} of the difference" if most_ns > 0 else "explains nothing of the difference"
    if most_ns >= apart:
        explains = (
            f"alone {'explains the difference, and more' if least_ns > apart else 'could explain the difference'}"
        )
    return f"Without {tool} it takes {base} in base and {new} in new, by estimate: what {tool} {costs} {explains}."


def _verdict(comparison: Comparison) -> str:
    """``A step is 1.61 × faster (1.58 to 1.64, 4 against 4 runs): 12.4 ms less``."""
    verdict, about, each = comparison.verdict, comparison.base.about, comparison.base.about.each
    if about.scope == "kernels":
        what = "The sum of all kernels"
    elif not each:
        what = f"The {'whole recording' if about.scope == 'whole' else about.scope}"
    else:
        what = f"A{'n' * each.startswith('i')} {each}" if each in window.WORDS else f"Each {each!r}"
    if len(comparison.pairs) > 1:
        what += f" of {f'rank {about.rank}' if comparison.job is None else f'{len(comparison.pairs):,} ranks'}"
    base, new = (side.digests for side in (comparison.timed.base, comparison.timed.new))
    if verdict.basis == "steps":
        numbers = [(side[0].about.iterations, side[0].steps.height) for side in (base, new)]
        averaged = " and ".join(f"{n:,} of {every:,}" if n < every else f"{every:,}" for n, every in numbers)
        runs = f"1 run a side, by {averaged} of it"
    elif len(base) == len(new) == 1:
        runs = "1 run a side"
    else:
        paired = ", interleaved" if verdict.basis == "paired runs" else ""
        runs = f"{len(base)} against {len(new)} runs{paired}"
    if verdict.ratio is None:
        return f"{what} took no time in base and {units.time(verdict.new_ns)} in new"
    if verdict.low is None or verdict.high is None:
        return f"{what} takes {units.time(verdict.new_ns)} in new and {units.time(verdict.base_ns)} in base ({runs})"
    if verdict or verdict.word == "same":
        return f"{what} {_judged(comparison, verdict, 'is', 'takes', runs)}"
    inner = f"{what[0].lower()}{what[1:]}"
    if verdict.basis == "steps" and not verdict.low <= 1 <= verdict.high:
        return f"These two runs differ, {inner} by {units.change(verdict.ratio)} ({_ends(verdict, runs)})"
    return f"Cannot tell whether {inner} is faster or slower ({_ends(verdict, runs)})"


def _judged(comparison: Comparison, verdict: Verdict, be: str, take: str, *more: str) -> str:
    """``is 1.61 × faster (1.58 to 1.64, 4 runs)``, or ``takes the same time: within 2 % (−0.3 % to +0.4 %)``."""
    if not verdict:
        within = units.percent(comparison.pair.limits.least_effect)
        return f"{take} the same time: within {within} ({_ends(verdict, *more)})"
    ends = (verdict.ratio or 1, verdict.low or 1, verdict.high or 1)
    ratio, *between = (1 / end for end in ends) if verdict.word == "faster" else ends
    interval = " to ".join(map(_factor, sorted(between)))
    return f"{be} {_factor(ratio)} × {verdict.word} ({', '.join([interval, *more])})"


def _ends(verdict: Verdict, *more: str) -> str:
    """``−0.3 % to +0.4 %, 4 against 4 runs``."""
    return ", ".join([" to ".join(map(units.change, (verdict.low or 1, verdict.high or 1))), *more])


def _factor(ratio: float) -> str:
    """A factor with three digits behind the point where it is close to 1."""
    return f"{ratio:,.3f}" if ratio < _CLOSE else f"{ratio:,.2f}" if ratio < _LARGE else f"{ratio:,.0f}"


def _where(comparison: Comparison) -> str:
    """``: 12.4 ms less: launch −9.1 ms, kernel −1.8 ms``."""
    verdict = comparison.verdict
    delta = verdict.new_ns - verdict.base_ns
    if verdict.word == "same" or not delta:
        return ""
    less = f"{units.time(abs(delta))} {'less' if delta < 0 else 'more'}"
    if comparison.other_mix:
        return f": {less} of the same mix"
    sums = by_bucket(comparison.table("compare")).select("bucket", "delta_ns").rows()
    least = 0.05 * max((abs(ns) for _, ns in sums), default=0)
    named = [f"{bucket} {signed(ns)}" for bucket, ns in sums if abs(ns) >= max(least, 1)]
    rank = f" in rank {comparison.base.about.rank}" if comparison.job is not None else ""
    return f": {less}{rank}: {', '.join(named[:3])}"


def _no_interval(base: Side, new: Side) -> str:
    """Why nothing says how sure a ratio is."""
    runs = [len(side.digests) for side in (base, new)]
    if min(runs) == 1 < max(runs):
        return f"{runs[0]} of base against {runs[1]} of new do not show how much runs vary, two or more of each do"
    steps = [side.digests[0].steps.height for side in (base, new)]
    if max(runs) > 1:
        return "A run without any time has no ratio"
    each = base.about.each
    if min(steps) > 1:
        return f"Iterations ({each}) within one run a side vary too much to say anything"
    if not any(steps) or not each:
        return "One run a side without iterations says nothing of how much runs vary"
    counts = f"{steps[0]:,} in base and {steps[1]:,} in new"
    return f"One run a side with too few iterations ({each}: {counts}) says nothing of how much they vary"


# The tables.


def signed(ns: float) -> str:
    """A difference of times with its sign: ``−9.1 ms``."""
    return f"{'−' if ns < 0 else '+' if ns else ''}{units.time(abs(ns))}"


def by_bucket(table: pl.DataFrame, most: int | None = None) -> pl.DataFrame:
    """The sums of the table `compare` by bucket, those that differ most first; those beyond `most` are the ``rest``."""
    bucket, times = pl.col("bucket").cast(pl.String), ("base_ns", "new_ns", "delta_ns")
    sums = table.group_by(bucket, maintain_order=True).agg(pl.col(times).sum())
    rows = sums.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    if most is None or rows.height <= most:
        return rows
    rest = rows.slice(most).select(pl.lit("rest").alias("bucket"), pl.col(times).sum())
    return pl.concat([rows.head(most), rest])


def _waterfall(comparison: Comparison, top: int) -> Section:
    """The buckets in the order of their difference, with a bar each, and the sum."""
    rows = by_bucket(comparison.table("compare").filter((pl.col("base_ns") > 0) | (pl.col("new_ns") > 0)), top + 2)
    largest = max(1, *map(abs, rows.get_column("delta_ns").head(1)))
    base_ns, new_ns = comparison.pair.ns
    together = {"bucket": "together", "base_ns": base_ns, "new_ns": new_ns, "delta_ns": new_ns - base_ns}
    lines = [*rows.to_dicts(), together]

    def bar(row: Row) -> str:
        """A bar to the left of a middle for less, to the right for more."""
        part = row["delta_ns"] / largest
        bar = "█" * round(abs(part) * _BAR)
        return "" if row is together else f"{bar:>{_BAR}}|" if part < 0 else f"{'':>{_BAR}}|{bar}"

    columns = (
        Column("bucket", "bucket", left=True),
        *numbers(base="base_ns", new="new_ns"),
        Column("difference", "delta_ns", signed),
        Column("", bar, left=True),
    )
    runs = f"{units.plural(len(comparison.base.digests), 'run')} and {len(comparison.new.digests)}"
    remark = f"per {comparison.each}, mean of {runs}" if comparison.base.about.each else ""
    # tables in which nothing changed; the others have a section
    tables = {"kernels and copies": "compare_kernels", "operators": "compare_ops", "ranges": "compare_ranges"}
    same = {title: comparison.table(name) for title, name in tables.items()}
    same["engine steps"] = comparison.table("compare_steps")
    same["calls that wait"] = comparison.table("compare_calls").filter("blocking")
    unchanged = [f"{title} ({one.height:,})" for title, one in same.items() if one.height and not one["changed"].any()]
    foot = f"Within noise: {', '.join(unchanged)}." if unchanged else ""
    return section("WHERE THE DIFFERENCE WENT", lines, columns, remark=remark, foot=foot)


def _tables(comparison: Comparison, top: int) -> Iterator[Section]:
    """What changed in each table, in the order of the page; without rows where nothing did."""
    changes = partial(_changes, top)
    steps = comparison.table("compare_steps").sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    yield changes("ENGINE STEPS", steps, "step", _step)
    # other GPUs and tools may give other names to the same kernels
    if comparison.base.about.gpu != comparison.new.about.gpu or len(comparison.tools) > 1:
        yield changes("FAMILIES OF KERNELS", comparison.table("compare_families"), "family", "family")
    kernels = comparison.table("compare_kernels")
    names = _short_names(kernels.filter("changed").head(top))
    yield changes("KERNELS AND COPIES", kernels, "kernel", partial(_kernel, names))
    yield changes("OPERATORS", comparison.table("compare_ops"), "operator", _operator)
    yield _counters(comparison, top + 1)
    yield changes("RANGES", comparison.table("compare_ranges"), "range", "range")
    calls = comparison.table("compare_calls").filter("blocking")
    yield changes("CALLS THAT WAIT", calls, "call", lambda row: unversioned(row["name"] or "(no name)"))
    findings = comparison.table("compare_findings").filter("changed", pl.col("change").cast(pl.String) != "stays")
    kinds = findings.get_column("change").cast(pl.String).to_list()
    columns: tuple[Column, ...] = (
        Column("", "change", left=True),
        Column("at stake", lambda row: units.time(max(row["base_ns"], row["new_ns"]))),
        Column("finding", "headline", left=True),
    )
    remark = f"{kinds.count('gone')} gone, {kinds.count('new')} new"
    yield section("FINDINGS", findings.head(top), columns, remark=remark, cut=True)
    columns = (
        Column("peak", partial(_became, "peak_bytes", units.size)),
        Column("allocations", partial(_became, "allocations", number)),
        words("memory", "memory", missing="(not told)"),
    )
    yield section("MEMORY", comparison.table("compare_memory").filter("changed"), columns, top)
    ranks = comparison.table("compare_ranks")
    if len(comparison.pairs) > 1 and ranks.get_column("changed").any():
        order = ranks.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
        columns = (
            Column("rank", "rank"),
            Column("difference", "delta_ns", signed),
            *numbers(base="base_ns", new="new_ns"),
            Column("verdict", "verdict", left=True),
        )
        yield section("RANKS", order, columns, top)


def _changes(top: int, title: str, table: pl.DataFrame, plain: str, value: str | Callable[[Row], str]) -> Section:
    """The rows of a table that changed, the others counted."""
    changed = table.filter("changed")
    columns = (
        Column("difference", "delta_ns", signed),
        *([Column("", "change", left=True)] if "change" in table.columns else []),
        Column("count", lambda row: "" if row["base_count"] is None else _became("count", number, row)),
        Column("time", partial(_became, "ns", units.time), spare=True),
        Column(plain, value, left=True),
    )
    remark = f"{units.plural(changed.height, 'change')}, {table.height - changed.height:,} within noise"
    return section(title, changed.head(top), columns, remark=remark, cut=True, broken=plain == "kernel")


def _became(what: str, say: Callable[[Any], str], row: Row) -> str:
    return f"{say(row[f'base_{what}'])}{ARROW}{say(row[f'new_{what}'])}"


def _short_names(rows: pl.DataFrame) -> dict[str, str]:
    names = pl.concat([rows.get_column(f"{side}_kernel").cast(pl.String) for side in ("base", "new")])
    return short_forms(sorted(filter(None, names.unique())), 36)


def _kernel(names: dict[str, str], row: Row) -> str:
    """The kernels of a row, before and after, and the range that launched them."""
    kernels = []
    for name, several in ((row[f"{side}_kernel"], row[f"{side}_names"]) for side in ("base", "new")):
        if several:
            kernels.append((names[name] if name else "(no name)") + (f" and {several - 1} more" if several > 1 else ""))
    text = ARROW.join(dict.fromkeys(kernels))
    return f"{text} in {row['range']}" if row.get("range") else text


def number(count: float) -> str:
    """A number of an iteration: whole where it is, else with a decimal."""
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 else f"{count:,.1f}"  # noqa: PLR2004 - shown with one


def _step(row: Row) -> str:
    """A kind of an engine's steps, its size, and what is compared of it."""
    size = "" if row["size"] is None else f", up to {units.count(row['size'])}"
    return f"{row['kind']}{size}{' (the GPU busy)' if row['part'] == 'busy_ns' else ''}"


def _operator(row: Row) -> str:
    """The operator and what is around it; of those that one side alone has, what became what under which."""
    names = (row["path"] or "").split(ARROW)
    if row["change"] == "same":
        return ARROW.join(names[-2:])
    ops = ARROW.join(one for one in (row["base_ops"], row["new_ops"]) if one)
    return f"under {names[-1]}: {ops}" if row["path"] else ops


def _counters(comparison: Comparison, top: int) -> Section:
    """The counters that changed, of the kernels with the most time first."""
    comparable = pl.col("ratio").is_not_null() | pl.col("counter").str.ends_with("_share")
    order = pl.col("counter").replace_strict({name: at for at, name in enumerate(_COUNTED)}, default=None)
    both = comparison.table("compare_counters").filter(~pl.col("change").cast(pl.String).is_in(["new", "gone"]))
    kernels = both.with_columns(at=pl.struct("change", "base_kernel", "new_kernel").rank("dense"))
    kernels = kernels.with_columns(first=pl.int_range(pl.len()).min().over("at"), order=order)
    changed = kernels.filter("changed", comparable, pl.col("order").is_not_null()).sort("first", "order")

    def change(row: Row) -> str:
        """A difference of shares, else a ratio."""
        if row["ratio"] is not None:
            return units.times(row["ratio"])
        return f"{'−' if row['difference'] < 0 else '+'}{abs(row['difference']) * 100:.1f} points"

    columns = (
        Column("counter", lambda row: _COUNTED[row["counter"]][0], left=True),
        Column("base", lambda row: _COUNTED[row["counter"]][1](row["base"])),
        Column("new", lambda row: _COUNTED[row["counter"]][1](row["new"])),
        Column("change", change),
        Column("kernel", partial(_kernel, _short_names(changed.head(top))), left=True),
    )
    return section("COUNTERS", changed.drop("range", strict=False), columns, top, "by ncu", cut=True)


def noise_page(noise: Noise, top: int) -> Page:
    """Builds the page of a noise floor, at most `top` rows per table."""

    def repeats(number: int | None) -> str:
        return "more than 1,000" if number is None else str(number)

    step = noise.step
    needed = ", ".join(f"{effect:.0%}: {repeats(runs)}".replace("%", " %") for effect, runs in step.repeats.items())
    answer = (
        f"Between {units.plural(step.runs, 'run')} an iteration ({noise.each}) of {units.time(noise.mean_ns)} varies "
        f"by {units.percent(step.spread)} (standard deviation; at most {units.percent(step.spread_high)} in 95 of 100 "
        f"cases). Two single runs lie within {units.percent(noise.floor)} of each other. Runs of each side that show "
        f"a change nine times in ten: {needed}."
    )
    columns = (
        Column("mean", lambda row: units.time(row[1][0])),
        Column("varies by", lambda row: units.percent(row[1][1].spread)),
        Column("two runs within", lambda row: units.percent(row[1][1].least_ratio - 1)),
        Column("2 % needs", lambda row: repeats(row[1][1].repeats.get(0.02)), spare=True),
    )
    sections = []
    for title, what, rows in (("BUCKETS", "bucket", noise.buckets), ("KERNELS AND COPIES", "kernel", noise.kernels)):
        if rows:
            named = (*columns, Column(what, lambda row: row[0], left=True))
            sections.append(section(title, [*rows.items()], named, top, "between runs", named=what == "kernel"))
    more = "kanalyze compare RUN… --save runs.kz\nkanalyze compare BASE NEW --floor runs.kz"
    return Page([f"noise of {noise.name}"], answer, sections, more)


def whatif_page(whatif: WhatIf, top: int) -> Page:
    """Builds the page of a replayed change: time now and then with bounds, what is critical then, single changes."""
    per = window.PerIteration(whatif.iterations, whatif.each)

    def gain(then_ns: float) -> str:
        return per.mean_time(whatif.now_ns - then_ns)

    critical = (
        Column("now", lambda one: per.mean_time(one.now_ns)),
        Column("then", lambda one: per.mean_time(one.then_ns)),
        Column("of then", lambda one: units.percent(one.then_ns / whatif.then_ns) if whatif.then_ns else ""),
        Column("", lambda one: one.name or one.cause, left=True),
    )
    single = (
        Column("gain", lambda one: gain(one.then_ns)),
        Column("then", lambda one: per.mean_time(one.then_ns)),
        Column("at least", lambda one: gain(one.high_ns), wide=True),
        Column("at most", lambda one: gain(one.low_ns), wide=True),
        Column("by Amdahl", lambda one: gain(one.amdahl_ns)),
        Column("change", lambda one: one.change, left=True),
    )
    sections = []
    if whatif.changes or not whatif.single:
        title, remark = "CRITICAL PATH", "what the end waits for, adding up to all of it"
        if whatif.remark and whatif.changes:
            title, remark = whatif.each.upper(), "what it takes by its law (kanalyze show step_laws)"
        sections.append(section(title, whatif.critical, critical, top, remark, named=True))
    sections += [section("CHANGES", whatif.single, single, top, "each alone", cut=True)] if whatif.single else []
    heading = ["kanalyze whatif", whatif.meta.path.name, whatif.meta.tool, *whatif.changes]
    given = [*(["--faster", "NAME=2"] if whatif.single else ["--each"]), *page.options(whatif.scope)]
    given += ["--without-profiler"] * (whatif.meta.slower is not None)
    if whatif.measured_ns is not None:
        given += ["--measured", f"{whatif.measured_ns / (whatif.iterations or 1):.0f}ns"]
    more = command("kanalyze", "whatif", whatif.meta.path, *given)
    return Page(heading, " ".join(filter(None, (_replayed(whatif, per), whatif.remark))), sections, more)


def _replayed(whatif: WhatIf, per: window.PerIteration) -> str:
    """Time now and then, the bounds, what Amdahl's law would have promised, and what was measured."""
    measured = ""
    if whatif.measured_ns is not None:  # how much of the host's time is left without the profiler, how well known
        low, usual, high = map(units.percent, (whatif.host_kept_low, whatif.host_kept, whatif.host_kept_high))
        measured = " No shorter time of the host explains the measured time."
        if whatif.host_kept < 1:
            measured = f" Without the profiler {usual} ({low} to {high}) of the host's time is taken to be left."
        elif whatif.host_kept_low < 1:
            untold = "How much shorter the host's time is without the profiler cannot be told from the measured time"
            measured = f" {untold}: the bounds take {low} to {high} of it."
    if not whatif.changes:
        return f"The recording takes {per.time(whatif.now_ns)}.{measured}"
    then, low, high = map(per.mean_time, (whatif.then_ns, whatif.low_ns, whatif.high_ns))
    gained, gain = "nothing is gained", abs(whatif.gain_ns)
    if whatif.now_ns and gain * 1000 >= whatif.now_ns:
        less = "less" if whatif.gain_ns > 0 else "more"
        gained = f"{per.mean_time(gain)} {less}, {units.percent(gain / whatif.now_ns)}"
    promised = whatif.now_ns - whatif.amdahl_ns
    apart = abs(promised - whatif.gain_ns) > 0.1 * max(abs(promised), abs(whatif.gain_ns), 1)
    less = "less" if promised >= 0 else "more"
    amdahl = f" By Amdahl's law it would be {per.mean_time(abs(promised))} {less}." if apart else ""
    return f"Now {per.time(whatif.now_ns)}, then {then} ({low} to {high}): {gained}.{amdahl}{measured}"
