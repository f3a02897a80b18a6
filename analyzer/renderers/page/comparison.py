"""Builds the pages of a comparison (the verdict, where the difference went, what changed) and of a noise floor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import units
from kanalyze.outlets import command
from kanalyze.renderers.page.sections import unversioned
from kanalyze.renderers.page.time import Block, Page
from kanalyze.renderers.text.grid import ARROW, Column, Section, section, words
from kanalyze.renderers.text.kernel_names import short_forms
from kanalyze.window import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.analyses.comparing._comparison import Comparison, Verdict
    from kanalyze.analyses.comparing._pair import Side
    from kanalyze.renderers.text.grid import Row

    #: A column, or what makes the text of a row.
    Told = str | Callable[[Row], str]
    from kanalyze.analyses.comparing._noise import Noise

#: Rows of each table, unless told.
ROWS: Final = 6

#: Buckets that are named in the sentence.
_NAMED: Final = 3

#: A bucket is named there from this part of the largest one on.
_WORTH_NAMING: Final = 0.05

#: Most characters of a kernel's name.
_NAME: Final = 36

#: Lines of all sections together, and those of a section that are no rows.
_LINES: Final = 31
_AROUND: Final = 3

#: Half the width of the bars of the waterfall.
_BAR: Final = 12

#: Factors below this one have three digits behind the point, those above the other none.
_CLOSE: Final = 1.2
_LARGE: Final = 100

_ONE: Final = "1 run a side"


def comparison_page(found: Comparison, top: int) -> Page:
    """Builds the page of a comparison, at most `top` rows per table."""
    return Page(
        heading=_heading(found),
        answer=answer(found),
        sections=_sections(found, top),
        more=_more(found),
        blocks=[] if found.gate is None else [Block("GATE", found.gate.sentence)],
    )


def _sections(found: Comparison, top: int) -> list[Section]:
    """The sections, with fewer rows each than the usual number where all together would be too long."""
    for rows in range(top, 0, -1):
        made = [_waterfall(found, rows), *(make(found, rows) for make in _SECTIONS)]
        sections = [section for section in made if section is not None and section.grid.rows]
        if top > ROWS or sum(len(section.grid.rows) + _AROUND for section in sections) <= _LINES:
            return sections
    return [_waterfall(found, top)]


def answer(found: Comparison) -> str:
    """The verdict in a sentence with its interval, and where the difference went."""
    verdict = found.verdict
    doubts = [f"Not the same on both sides: {'; '.join(one.text for one in found.doubts)}."] if found.doubts else []
    whole = [f"The whole recordings are compared, since {found.reason}."] if found.reason else []
    note = [f"{found.note[0].upper()}{found.note[1:]}."] if found.note else []
    apart = "No kernel is on both sides: these are different programs, or one whose kernels were all replaced."
    return " ".join([
        *doubts, *whole, *note, f"{_told(found, verdict)}{_where(found)}.", *_sure(found), *_quick(found),
        *([apart] if found.apart else []),
    ])  # fmt: skip


def _told(found: Comparison, verdict: Verdict) -> str:
    """``A step is 1.61 × faster (1.58 to 1.64, 4 against 4 runs): 12.4 ms less``."""
    what = _what(found)
    runs = _runs(found.timed.base, found.timed.new, verdict)
    if verdict.ratio is None:
        return f"{what} took no time in base and {units.time(verdict.new_ns)} in new"
    if verdict.low is None or verdict.high is None:
        return f"{what} takes {units.time(verdict.new_ns)} in new and {units.time(verdict.base_ns)} in base ({runs})"
    if verdict:
        return f"{what} is {_factors(verdict, runs)}"
    if verdict.word == "same":
        return f"{what} takes the same time: {_within(found, verdict, runs)}"
    if verdict.basis == "steps" and not verdict.low <= 1 <= verdict.high:
        told = f"{what[0].lower()}{what[1:]} by {units.change(verdict.ratio)}"
        return f"These two runs differ, {told} ({_ends(verdict, runs)})"
    return f"Cannot tell whether {what[0].lower()}{what[1:]} is faster or slower ({_ends(verdict, runs)})"


def _factors(verdict: Verdict, *more: str) -> str:
    """``1.61 × faster (1.58 to 1.64, 4 against 4 runs)``."""
    ends = (verdict.ratio or 1, verdict.low or 1, verdict.high or 1)
    ratio, *between = (1 / end for end in ends) if verdict.word == "faster" else ends
    told = " to ".join(map(_factor, sorted(between)))
    return f"{_factor(ratio)} × {verdict.word} ({', '.join([told, *more])})"


def _within(found: Comparison, verdict: Verdict, *more: str) -> str:
    """``within 2 % (−0.3 % to +0.4 %, 4 against 4 runs)``."""
    return f"within {units.percent(found.pair.limits.least_effect)} ({_ends(verdict, *more)})"


def _ends(verdict: Verdict, *more: str) -> str:
    """``−0.3 % to +0.4 %, 4 against 4 runs``."""
    ends = (verdict.low or 1, verdict.high or 1)
    return ", ".join([" to ".join(map(units.change, ends)), *more])


def _quick(found: Comparison) -> list[str]:
    """The quicker iterations in a sentence, where these tell something and the mean does not."""
    verdict, each = found.quick, found.base.about.each
    if verdict is None:
        return []
    those = units.plural_of(each) if each in WORDS else f"of each {each!r}"
    told = f"are {_factors(verdict)}" if verdict else f"take the same time: {_within(found, verdict)}"
    return [f"The quicker {those} (the lower quartile of each run) {told}."]


def _factor(ratio: float) -> str:
    """A factor with three digits behind the point where it is close to 1."""
    return f"{ratio:,.3f}" if ratio < _CLOSE else f"{ratio:,.2f}" if ratio < _LARGE else f"{ratio:,.0f}"


def _what(found: Comparison) -> str:
    """Scope of the comparison, with its ranks where there are several."""
    if len(found.pairs) == 1:
        return _one(found)
    ranks = f"rank {found.base.about.rank}" if found.job is None else f"{len(found.pairs):,} ranks"
    return f"{_one(found)} of {ranks}"


def _one(found: Comparison) -> str:
    each = found.base.about.each
    if found.base.about.scope == "kernels":
        return "The sum of all kernels"
    if not each:
        return "The whole recording" if found.base.about.scope == "whole" else f"The {found.base.about.scope}"
    return f"A {each}" if each in WORDS else f"Each {each!r}"


def _runs(base: Side, new: Side, verdict: Verdict) -> str:
    if verdict.basis == "steps":
        steps = [one.digests[0].steps.height for one in (base, new)]
        return f"{_ONE}, by {steps[0]:,} and {steps[1]:,} of it"
    counts = f"{len(base.digests)} against {len(new.digests)} runs"
    if len(base.digests) == len(new.digests) == 1:
        return _ONE
    return f"{counts}, interleaved" if verdict.basis == "paired runs" else counts


def _where(found: Comparison) -> str:
    """``: 12.4 ms less: launch −9.1 ms, kernel −1.8 ms``."""
    verdict = found.verdict
    delta = verdict.new_ns - verdict.base_ns
    sums = _buckets(found).sort(pl.col("delta_ns").abs(), descending=True)
    if verdict.word == "same" or not delta:
        return ""
    least = _WORTH_NAMING * max(map(abs, sums.get_column("delta_ns").to_list()), default=0)
    named = [(bucket, ns) for bucket, ns in sums.select("bucket", "delta_ns").iter_rows() if abs(ns) >= max(least, 1)]
    told = ", ".join(f"{bucket} {signed(ns)}" for bucket, ns in named[:_NAMED])
    rank = f" in rank {found.base.about.rank}" if found.job is not None else ""
    return f": {units.time(abs(delta))} {'less' if delta < 0 else 'more'}{rank}: {told}"


def _sure(found: Comparison) -> list[str]:
    """Advice on the repeats that would tell more, and why there is no interval where there is none."""
    verdict = found.verdict
    if verdict.basis == "steps":
        return ["One run a side does not show how much runs vary: repeat both to be sure."]
    if verdict.low is None:
        return [f"{_no_interval(found.timed.base, found.timed.new)}: repeat both."]
    varying = found.varying
    told = [f"Runs of {varying[0]} differ among themselves by {units.percent(varying[1])}."] if varying else []
    return [*told, *([f"{units.plural(verdict.repeats, 'run')} of each side would tell."] if verdict.repeats else [])]


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
    told = " and ".join(f"{number:,} in {name}" for name, number in zip(("base", "new"), steps, strict=True))
    return f"One run a side with too few iterations ({each}: {told}) says nothing of how much they vary"


def signed(ns: float) -> str:
    """A difference of times with its sign: ``−9.1 ms``."""
    return f"{'−' if ns < 0 else '+' if ns else ''}{units.time(abs(ns))}"


def _buckets(found: Comparison) -> pl.DataFrame:
    rows = found.table("compare")
    return rows.group_by("bucket", maintain_order=True).agg(
        pl.col("base_ns", "new_ns", "delta_ns").sum(), pl.col("changed").any()
    )


def _heading(found: Comparison) -> list[str]:
    base = found.base.about
    parts = [f"base {found.names[0]}", f"new {found.names[1]}", base.tool, *([base.gpu] if base.gpu else [])]
    if len(found.pairs) > 1:
        parts.append(f"rank {base.rank} of {len(found.pairs)}")
    return ["kanalyze compare", *parts]


def _waterfall(found: Comparison, top: int) -> Section:
    """The buckets in the order of their difference, with a bar each, and the sum."""
    rows = _buckets(found).filter((pl.col("base_ns") > 0) | (pl.col("new_ns") > 0))
    rows = rows.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    shown, rest = rows.head(top + 2), rows.slice(top + 2)
    largest = max(1, *map(abs, rows.get_column("delta_ns").to_list()))
    base_ns, new_ns = found.verdict.base_ns, found.verdict.new_ns
    sums = rest.select(pl.lit("rest").alias("bucket"), pl.col("base_ns", "new_ns", "delta_ns").sum()).to_dicts()
    together = {"bucket": "together", "base_ns": base_ns, "new_ns": new_ns, "delta_ns": new_ns - base_ns}
    lines = [*shown.to_dicts(), *(sums if rest.height else []), together]
    columns = (
        Column("bucket", "bucket", left=True),
        Column("base", "base_ns"),
        Column("new", "new_ns"),
        Column("difference", "delta_ns", signed),
        Column("", lambda row: "" if row is together else _bar(row["delta_ns"] / largest), left=True),
    )
    remark = f"per {found.each}, mean of {units.plural(len(found.base.digests), 'run')} and {len(found.new.digests)}"
    remark = remark if found.base.about.each else ""
    return section("WHERE THE DIFFERENCE WENT", lines, columns, remark=remark, foot=_unchanged(found))


def _unchanged(found: Comparison) -> str:
    """Remark on how many rows are within noise of the tables in which nothing changed; the others have a section."""
    tables = {
        "kernels and copies": found.table("compare_kernels"),
        "operators": found.table("compare_ops"),
        "ranges": found.table("compare_ranges"),
        "calls that wait": found.table("compare_calls").filter("blocking"),
    }
    same = {title: rows.height for title, rows in tables.items() if rows.height and not rows["changed"].any()}
    return f"Within noise: {', '.join(f'{title} ({rows:,})' for title, rows in same.items())}." if same else ""


def _bar(part: float) -> str:
    """A bar to the left of a middle for less, to the right for more."""
    length = round(abs(part) * _BAR)
    return f"{'█' * length:>{_BAR}}|" if part < 0 else f"{'':>{_BAR}}|{'█' * length}"


def _kernels(found: Comparison, top: int) -> Section:
    table = found.table("compare_kernels")
    names = _short_names(table.filter("changed").head(top))
    return _changes("KERNELS AND COPIES", table, "kernel", lambda row: _kernel(row, names), top)


def _short_names(rows: pl.DataFrame) -> dict[str, str]:
    return short_forms(
        sorted({name for side in ("base", "new") for name in rows.get_column(f"{side}_kernel") if name}), _NAME
    )


def _families(found: Comparison, top: int) -> Section | None:
    """The families of kernels, where another GPU may give other names to the same ones."""
    table = found.table("compare_families")
    same_gpu = found.base.about.gpu == found.new.about.gpu
    return None if same_gpu else _changes("FAMILIES OF KERNELS", table, "family", "family", top)


def _waiting_calls(found: Comparison, top: int) -> Section:
    table = found.table("compare_calls").filter("blocking")
    return _changes("CALLS THAT WAIT", table, "call", lambda row: unversioned(row["name"] or "(no name)"), top)


def _changes(title: str, table: pl.DataFrame, plain: str, told: Told, top: int) -> Section:
    """The rows of a table that changed, the others counted."""
    changed = table.filter("changed")
    kinds = "change" in table.columns
    columns = (
        Column("difference", "delta_ns", signed),
        *([Column("", "change", left=True)] if kinds else []),
        Column("count", lambda row: "" if row["base_count"] is None else _became(row, "count", number)),
        Column("time", lambda row: _became(row, "ns", units.time), spare=True),
        Column(plain, told, left=True),
    )
    remark = f"{units.plural(changed.height, 'change')}, {table.height - changed.height:,} within noise"
    return section(title, changed.head(top), columns, remark=remark, cut=True, broken=plain == "kernel")


def _became(row: Row, what: str, say: Callable[[Any], str]) -> str:
    return f"{say(row[f'base_{what}'])}{ARROW}{say(row[f'new_{what}'])}"


def _kernel(row: Row, names: dict[str, str]) -> str:
    """The kernels of a row, before and after, and the range that launched them."""
    base, new = (_several(row, side, names) for side in ("base", "new"))
    told = base if base == new or not new else new if not base else f"{base}{ARROW}{new}"
    return f"{told} in {row['range']}" if row["range"] else told


def _several(row: Row, side: str, names: dict[str, str]) -> str:
    name, several = row[f"{side}_kernel"], row[f"{side}_names"]
    if not several:
        return ""
    told = names[name] if name else "(no name)"
    return f"{told} and {several - 1} more" if several > 1 else told


def number(count: float) -> str:
    """A number of an iteration: whole where it is, else with a decimal."""
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 else f"{count:,.1f}"  # noqa: PLR2004 - shown with one


def _operator(row: Row) -> str:
    """The operator and what is around it; of those that one side alone has, what became what under which."""
    names = (row["path"] or "").split(ARROW)
    if row["change"] == "same":
        return ARROW.join(names[-2:])
    told = ARROW.join(one for one in (row["base_ops"], row["new_ops"]) if one)
    return f"under {names[-1]}: {told}" if row["path"] else told


def _counters(found: Comparison, top: int) -> Section:
    """The counters that changed, of the kernels with the most time first."""
    table = found.table("compare_counters")
    told = pl.col("ratio").is_not_null() | pl.col("counter").str.ends_with("_share")
    order = pl.col("counter").replace_strict({name: at for at, name in enumerate(_COUNTED)}, default=None)
    both = table.filter(~pl.col("change").cast(pl.String).is_in(["new", "gone"]))
    kernels = both.with_columns(at=pl.struct("change", "base_kernel", "new_kernel").rank("dense"))
    kernels = kernels.with_columns(first=pl.int_range(pl.len()).min().over("at"), order=order)
    changed = kernels.filter("changed", told, pl.col("order").is_not_null()).sort("first", "order")
    names = _short_names(changed.head(top + 1))

    def change(row: Row) -> str:
        """A difference of shares, else a ratio."""
        if row["ratio"] is not None:
            return units.times(row["ratio"])
        return f"{'−' if row['difference'] < 0 else '+'}{abs(row['difference']) * 100:.1f} points"

    columns = (
        Column("counter", "counter", _COUNTED.__getitem__, left=True),
        Column("base", lambda row: _counted(row, "base")),
        Column("new", lambda row: _counted(row, "new")),
        Column("change", change),
        Column("kernel", lambda row: _kernel({**row, "range": None}, names), left=True),
    )
    return section("COUNTERS", changed, columns, top + 1, "by ncu", cut=True)


def _counted(row: Row, side: str) -> str:
    name = row["counter"]
    show = units.percent if name.endswith("_share") else _SHOWN.get(name, lambda value: f"{value:,.4g}")
    return show(row[side])


def _findings(found: Comparison, top: int) -> Section:
    """Findings that one side alone has."""
    table = found.table("compare_findings").filter("changed", pl.col("change").cast(pl.String) != "stays")
    columns = (
        Column("", "change", left=True),
        Column("at stake", lambda row: units.time(max(row["base_ns"], row["new_ns"]))),
        Column("finding", "headline", left=True),
    )
    remark = f"{(table.get_column('change') == 'gone').sum()} gone, {(table.get_column('change') == 'new').sum()} new"
    return section("FINDINGS", table.head(top), columns, remark=remark, cut=True)


def _memory(found: Comparison, top: int) -> Section:
    table = found.table("compare_memory").filter("changed")
    columns = (
        Column("peak", lambda row: _became(row, "peak_bytes", units.size)),
        Column("allocations", lambda row: _became(row, "allocations", number)),
        words("memory", "memory", missing="(not told)"),
    )
    return section("MEMORY", table, columns, top)


def _ranks(found: Comparison, top: int) -> Section | None:
    """The ranks, the largest difference first, where there are several and one of them changed."""
    table = found.table("compare_ranks")
    if len(found.pairs) == 1 or not table.get_column("changed").any():
        return None
    order = table.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    columns = (
        Column("rank", "rank"),
        Column("difference", "delta_ns", signed),
        Column("base", "base_ns"),
        Column("new", "new_ns"),
        Column("verdict", "verdict", left=True),
    )
    return section("RANKS", order, columns, top)


#: Counters on the page, the most telling one first, and what they are called there.
_COUNTED: Final = {
    "roof_share": "of roof",
    "intensity_flop_per_byte": "FLOP per byte",
    "flop": "FLOP",
    "dram_read_bytes": "DRAM read",
    "dram_write_bytes": "DRAM written",
    "memory_share": "memory",
    "compute_share": "compute",
    "achieved_occupancy_share": "occupancy",
    "l1_hit_share": "L1 hits",
    "l2_hit_share": "L2 hits",
    "registers_per_thread": "registers",
    "sm_clock_hz": "SM clock",
}
_SHOWN: Final[dict[str, Callable[[float], str]]] = {
    "flop": units.flop,
    "dram_read_bytes": units.size,
    "dram_write_bytes": units.size,
    "sm_clock_hz": units.frequency,
}

_SECTIONS: Final[tuple[Callable[[Comparison, int], Section | None], ...]] = (
    _families,
    _kernels,
    lambda found, top: _changes("OPERATORS", found.table("compare_ops"), "operator", _operator, top),
    _counters,
    lambda found, top: _changes("RANGES", found.table("compare_ranges"), "range", "range", top),
    _waiting_calls,
    _findings,
    _memory,
    _ranks,
)


def _more(found: Comparison) -> str:
    base, new = found.paths
    single = len(base) == len(new) == 1
    sides = [*base, *new] if single else [*(word for path in base for word in ("--base", path)), *new]
    lines = [["show", "compare_kernels", *sides]] if single else []
    lines.append(["compare", *sides, "--format", "markdown"])
    return "\n".join(command("kanalyze", *words) for words in lines)


def noise_page(found: Noise, top: int) -> Page:
    """Builds the page of a noise floor, at most `top` rows per table."""
    step = found.step
    needed = ", ".join(
        f"{effect:.0%}: {_repeats(number)}".replace("%", " %") for effect, number in step.repeats.items()
    )
    answer = (
        f"Between {units.plural(step.runs, 'run')} an iteration ({found.each}) of {units.time(found.mean_ns)} varies "
        f"by {units.percent(step.spread)} (standard deviation; at most {units.percent(step.spread_high)} in 95 of 100 "
        f"cases). Two single runs lie within {units.percent(found.floor)} of each other. Runs of each side that show "
        f"a change nine times in ten: {needed}."
    )
    columns = (
        Column("mean", lambda row: units.time(row[1][0])),
        Column("varies by", lambda row: units.percent(row[1][1].spread)),
        Column("two runs within", lambda row: units.percent(row[1][1].least_ratio - 1)),
        Column("2 % needs", lambda row: _repeats(row[1][1].repeats.get(0.02)), spare=True),
    )
    sections = []
    for title, what, rows in (("BUCKETS", "bucket", found.buckets), ("KERNELS AND COPIES", "kernel", found.kernels)):
        if rows:
            own = (*columns, Column(what, lambda row: row[0], left=True))
            sections.append(section(title, [*rows.items()], own, top, "between runs", named=rows is found.kernels))
    more = "kanalyze compare --noise RUN… -o floor.json\nkanalyze compare BASE NEW --floor floor.json"
    return Page([f"noise of {found.name}"], answer, sections, more)


def _repeats(number: int | None) -> str:
    return "more than 1,000" if number is None else str(number)
