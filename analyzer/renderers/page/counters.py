"""Builds pages with what ncu measured: of its own report, and of a program recorded by several tools."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import units
from kanalyze.renderers.page.sections import launch_shape
from kanalyze.renderers.page.time import Page, gpu, heading, page_of, show
from kanalyze.renderers.text.grid import Advice, Chapter, Column, Section, section, telling_apart, words
from kanalyze.tools import TOOLS, tool_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.page.counters_page import CounterSummary
    from kanalyze.analyses.page.joint_page import JointSummary
    from kanalyze.report import Meta

    Row = dict[str, Any]

_KERNELS: Final = "KERNELS"

#: Most stall reasons and ncu rules shown per kernel, and rules where there are operators beside them.
_STALLS: Final = 4
_RULES: Final = 4
_JOINT_RULES: Final = 3

#: One-word forms of verdicts.
_SHORT: Final = {"too few blocks": "grid"}

_MANY_WAVES: Final = 100
_MANY: Final = 1000

#: Estimates of ncu rules below this share are shown only in the table, and kernels that gain less get no chapter.
_WORTH: Final = 0.01

#: Share of the duration from which tensor pipe activity above its useful work is mentioned.
_BUSIER: Final = 0.05

_or_none = partial(Column, missing="-")


def counters_page(found: CounterSummary, top: int) -> Page:
    """Builds the page of an ncu report, with at most `top` kernels."""
    rows = found.groups.join(found.kernels, left_on="first", right_on="event_id", how="left", maintain_order="left")
    devices = found.devices.select("name", "compute_capability", "sm_count")
    path = found.meta.path
    return Page(
        heading=heading(found.meta, [gpu(*one) for one in devices.iter_rows()]),
        health=_health(found.health),
        answer=found.answer,
        sections=[_kernels(rows, top)] if found.kernels.height > 1 else [],
        more=f"counters, or stalls, roofline, advice, metrics: {show('counters', path, scope=found.scope)}",
        chapters=[_chapter(row, found) for row in rows.head(top).iter_rows(named=True)],
    )


def _health(health: pl.DataFrame) -> str:
    wrong = health.filter(pl.col("doubt")).group_by("check", maintain_order=True).agg(pl.col("count").sum())
    if wrong.is_empty():
        return "health: complete"
    return "health: " + "; ".join(units.checked(check, count) for check, count in wrong.iter_rows())


def _kernels(rows: pl.DataFrame, top: int) -> Section:
    columns = (
        _or_none("time", "dur_ns"),
        Column("count", "count", spare=True),
        _or_none("compute", "compute_share"),
        _or_none("memory", "memory_share"),
        _or_none("occupancy", "achieved_occupancy_share", wide=True),
        _or_none("of roof", "roof_share", spare=True),
        Column("bound", lambda row: _SHORT.get(row["verdict"], row["verdict"].removesuffix("-bound")), left=True),
        words("kernel", "name"),
    )
    return section(_KERNELS, rows, columns, top, "of the peaks; time of the longest", named=True)


def _chapter(row: Row, found: CounterSummary) -> Chapter:
    facts = [
        ("speed of light", joined(*(percent(row, f"{what}_share", f"{what} {{}}") for what in ("compute", "memory")))),
        ("memory", _memory(row)),
        ("roofline", _roofline(row)),
        ("occupancy", _occupancy(row)),
        ("warps", _warps(row)),
        ("waits", _waits(found.stalls.filter(pl.col("event_id") == row["first"]))),
        ("accesses", _accesses(row)),
    ]
    advice, more = _advice(found.advice.filter(pl.col("event_id") == row["first"]))
    took = "" if row["dur_ns"] is None else units.time(row["dur_ns"])
    times = f", longest of {units.plural(row['count'], 'launch')}" if row["count"] > 1 else ""
    return Chapter(
        row["name"] or "(no name)",
        f"{joined(took, launch_shape(row, 'grid {} × block {}'))}{times}",
        row["conclusion"] if found.kernels.height > 1 else "",  # with a single kernel, it is the page's answer
        [(label, text) for label, text in facts if text],
        advice,
        more,
    )


def joined(*parts: str) -> str:
    """The parts that are not empty, with commas between them."""
    return ", ".join(part for part in parts if part)


def percent(row: Row, column: str, text: str) -> str:
    """Formats a share into `text`; empty if unknown."""
    return "" if row[column] is None else text.format(units.percent(row[column]))


def _memory(row: Row) -> str:
    rate = row["dram_bytes_per_s"]
    moved = f" ({units.rate(rate)})" if rate is not None else ""
    return joined(
        percent(row, "dram_share", "DRAM {}" + moved),
        percent(row, "l2_share", "L2 {}" + percent(row, "l2_hit_share", " (hits {})")),
        percent(row, "l1_share", "L1 {}" + percent(row, "l1_hit_share", " (hits {})")),
    )


def _roofline(row: Row) -> str:
    if row["roof_share"] is None:
        return ""
    moved, roof = units.size(row["dram_bytes"]), f"{units.percent(row['roof_share'])} of the {row['bound']} roof"
    if row["achieved_flop_per_s"] is None:  # GPUs before Ampere have no counter of tensor core operations
        return f"{moved} of DRAM traffic, unknown work of tensor cores; {roof}"
    if not row["achieved_flop_per_s"]:
        return f"{moved} of DRAM traffic and no FLOP; {roof}"
    integers = units.flop(row["tensor_int_op"], "OP on integers") if row["tensor_int_op"] else ""
    floats = units.flop(row["flop"]) if row["flop"] or not integers else ""
    unit = "OP" if integers else "FLOP"
    intensity = row["intensity_flop_per_byte"]  # three significant digits, or all before the point
    per_byte = f"{intensity:.3g}" if intensity < _MANY else f"{intensity:,.0f}"
    achieved, attainable = (units.flop(row[f"{what}_flop_per_s"], unit) for what in ("achieved", "attainable"))
    work = (
        f"{joined(floats, integers)} and {moved} of DRAM traffic, "
        f"{per_byte} {unit}/byte; {achieved}/s of {attainable}/s attainable"
    )
    return f"{work}: {roof}{_tensor(row)}"


def _tensor(row: Row) -> str:
    """Describes tensor core use, and how far the pipe's activity exceeds the useful work."""
    if row["bound"] != "compute" or not (row["precision"] or "").startswith("tensor") or not row["peak_flop_per_s"]:
        return ""
    told = f" ({row['precision']}{', ' + row['instruction'] if row['instruction'] else ''})"
    part = row["achieved_flop_per_s"] / row["peak_flop_per_s"]
    if row["roof_share"] - part <= _BUSIER:
        return told
    return f"{told}; their pipe is busy so long for {units.percent(part)} of their peak"


def _occupancy(row: Row) -> str:
    shared = None
    if row["static_shared_bytes"] is not None and row["dynamic_shared_bytes"] is not None:
        shared = row["static_shared_bytes"] + row["dynamic_shared_bytes"]
    achieved = percent(row, "achieved_occupancy_share", "{} achieved")
    return joined(
        achieved + percent(row, "occupancy_share", (" of " if achieved else "") + "{} possible"),
        f"limited by {row['limiter']}" if row["limiter"] else "",
        f"{row['registers_per_thread']} registers" if row["registers_per_thread"] is not None else "",
        f"{units.size(shared)} shared" if shared is not None else "",
        "" if row["waves"] is None else f"{row['waves']:,.{2 if row['waves'] < _MANY_WAVES else 0}f} waves",
        percent(row, "tail_share", "tail {}") if row["tail_share"] else "",
    )


def _warps(row: Row) -> str:
    if row["active_warps"] is None or row["eligible_warps"] is None:
        return ""
    only_moves = {row["tensor_flop"], row["tensor_int_op"]} == {0}  # of registers, which the tensor pipe executes, too
    return joined(
        f"{row['active_warps']:.1f} active and {row['eligible_warps']:.2f} eligible per scheduler",
        percent(row, "issue_share", "issues in {} of cycles"),
        f"{row['threads_per_instruction']:.1f} threads per instruction" if row["threads_per_instruction"] else "",
        percent(row, "tensor_share", "tensor pipe {}") if row["tensor_share"] and not only_moves else "",
    )


def _waits(stalls: pl.DataFrame) -> str:
    waits = ~pl.col("reason").is_in(["selected", "not_selected"]) & pl.col("share").is_not_null()
    most = stalls.filter(waits).head(_STALLS)
    return ", ".join(f"{reason} {units.percent(part)}" for reason, part in most.select("reason", "share").iter_rows())


def _accesses(row: Row) -> str:
    parts = [
        f"{row[f'{what}_sectors_per_request']:.1f} sectors per {what}"
        + percent(row, f"{what}_used_share", " ({} used)")
        for what in ("load", "store")
        if row[f"{what}_sectors_per_request"] is not None
    ]
    conflicts = percent(row, "bank_conflict_share", "bank conflicts {}") if row["bank_conflicts"] else ""
    local = (row["local_loads"] or 0) + (row["local_stores"] or 0)
    spills = f"{units.plural(local, 'access')} to local memory" if local else ""
    return joined(*parts, conflicts, spills)


def _advice(rows: pl.DataFrame) -> tuple[list[Advice], str]:
    """Our advice, then the most specific ncu rules; and the number of those left out."""
    ours = rows.filter(pl.col("source") == "kanalyze")
    worth = pl.coalesce("possible_share", "speedup_share").fill_null(1.0) >= _WORTH
    others = rows.filter(pl.col("source") != "kanalyze")
    theirs = others.filter((pl.col("kind") != "information") & worth)
    order = ["scope", "possible_share", "speedup_share"]
    estimated = theirs.sort(order, descending=[False, True, True], nulls_last=True, maintain_order=True)
    told = estimated.head(_RULES)
    shown = [_advised(row, "possible_share", row["sentence"], row["remedy"] or "") for row in ours.to_dicts()]
    shown += [
        _advised(row, "possible_share", f"{_key(row['sentence'])} (ncu: {row['rule']})") for row in told.to_dicts()
    ]
    hidden = others.height - told.height
    return shown, f"{units.plural(hidden, 'further result')} of ncu's rules, in the table advice" if hidden > 0 else ""


def _advised(row: Row, gain: str, sentence: str, remedy: str = "") -> Advice:
    """One advice with its estimated gain, as a share of the whole or, in brackets, of one unit's activity."""
    worth = percent(row, gain, "{}") or percent(row, "speedup_share", "({})")
    return Advice(worth, f"{sentence}{_capped(row)}", remedy)


def _capped(row: Row) -> str:
    """Formats the gain that the roofline allows, if it is below a rule's estimate."""
    estimate, possible = row["speedup_share"], row["possible_share"]
    if estimate is None or possible is None or row["possible_from"] != "roof":
        return ""
    return f" The estimate is {units.percent(estimate)} of the kernel, its roof leaves {units.percent(possible)}."


def _key(text: str) -> str:
    """The first sentence of a message that contains a number, else its first sentence."""
    sentences = [part.rstrip(".") + "." for part in text.split(". ")]
    return next((sentence for sentence in sentences if re.search(r"\d", sentence)), sentences[0])


_LEGEND: Final = "at most this part of the window; in brackets: of one unit of the GPU"

#: Explanations of uncertain matches.
_MEANINGS: Final = {
    "shape": "same name and launch shape; which of the launches was measured is not known",
    "name": "the name alone fits: another launch shape, or a name that ncu cut short",
}


def joint_page(found: JointSummary, top: int) -> Page:
    """Builds the page of the timeline report, with counters and operators of the other tools."""
    page = page_of(found.summary, top)
    base, *others = found.metas
    # reports in a capture's folder are that folder
    given = dict.fromkeys(meta.path for meta in found.metas if meta.path.parent != base.path)
    tables = f"joined, or gains: {show('joined', *given, scope=found.summary.scope)}"
    kernels = joined_kernels(found.joined, found.tools, top, (_left_over(found), _little(found)))
    return page._replace(
        heading=[*page.heading, *joined_with(others, found.tools, base)],
        sections=[kernels if one.title == _KERNELS else one for one in page.sections],
        chapters=_chapters(found, top),
        more=f"{tables}\n{page.more}",
    )


def joined_with(others: Sequence[Meta], tools: Sequence[str], base: Meta) -> list[str]:
    """The other reports, those of each tool that has some."""
    of_tools = ([meta for meta in others if meta.tool == tool] for tool in tools[1:])
    return [_with(some, base) for some in of_tools if some]


def _with(others: Sequence[Meta], base: Meta) -> str:
    first, *more = others
    if more:
        return f"with {units.plural(len(others), 'report')} of {first.tool}"
    if first.path == first.capture == base.capture:
        return f"with {first.tool}"
    return f"with {first.path.name} ({first.tool})"


def joined_kernels(joined: pl.DataFrame, tools: Sequence[str], top: int, remarks: Sequence[str] = ()) -> Section:
    """Section of the heaviest kernels by launch shape, with counters and operators where known."""
    measured, traced = (
        any(tool_of(name).counts for name in tools),
        joined.get_column("operator").null_count() < joined.height,
    )
    timed = joined.filter(pl.col("count").is_not_null())
    axes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    counters = (
        _or_none("compute", "compute_share", wide=True),
        _or_none("memory", "memory_share"),
        _or_none("occupancy", "achieved_occupancy_share", wide=True),
        _or_none("of roof", "roof_share", spare=True),
        _or_none("match", "ncu_match", left=True, spare=True),
    )
    columns = (
        _or_none("time", "exclusive_ns"),
        _or_none("window", "window_share"),
        _or_none("count", "count", spare=True),
        *[Column("GPU", "device")] * bool(telling_apart(timed, ("name",), ("device",))),
        *(counters if measured else ()),
        *[_or_none("operator", "operator", left=True, wide=True)] * traced,
        *[Column("grid × block", launch_shape, left=True)] * bool(telling_apart(timed.head(top), ("name",), axes)),
        words("kernel", "name"),
    )
    remark = "by launch shape; counters are ncu's" if measured else "by launch shape"
    return section(_KERNELS, timed, columns, top, remark, "; ".join(filter(None, remarks)), named=True)


def _little(found: JointSummary) -> str:
    """The largest potential gain, if too small for a chapter."""
    if found.gains is None:
        return ""
    most = found.gains.get_column("gain_share").max()
    if not isinstance(most, float) or most >= _WORTH:
        return ""
    told = units.percent(most)
    least = f"even {told.removeprefix('<')}" if told.startswith("<") else f"more than {told}"
    return f"no advice about a kernel saves {least} of the window (table gains)"


def _left_over(found: JointSummary) -> str:
    """Lists what only one tool recorded."""
    rows, texts = found.joined, []
    alone = rows.filter(pl.col("count").is_null())
    for name, tool, did in ((one.name, one.short, "measure" if one.counts else "see") for one in reversed(TOOLS)):
        if f"{tool}_match" not in rows.columns or rows.get_column(f"{tool}_match").null_count() == rows.height:
            continue
        without = rows.filter(pl.col("count").is_not_null() & (pl.col(f"{tool}_match") == "none"))
        outside = found.outside[name]
        only = alone.filter(pl.col(f"{tool}_count").is_not_null()).height - outside
        texts += [f"{units.plural(without.height, 'row')} that {tool} did not {did}"] * bool(without.height)
        texts += [f"{units.plural(only, 'row')} that only {tool} saw"] * bool(only)
        texts += [f"{units.plural(outside, 'row')} of {tool} outside of the window"] * bool(outside)
    return f"left over: {'; '.join(texts)}" if texts else ""


def _chapters(found: JointSummary, top: int) -> list[Chapter]:
    """Chapters of the kernels with the largest potential gain, descending."""
    if found.gains is None or found.gains.is_empty():
        return []
    kernels = {row["event_id"]: row for row in found.joined.to_dicts() if row["event_id"] is not None}
    worth = found.gains.filter(pl.col("gain_share").max().over("event_id") >= _WORTH)
    parts = worth.partition_by("event_id", maintain_order=True, as_dict=True)
    return [_joint_chapter(kernels[number], rows.to_dicts()) for (number,), rows in [*parts.items()][:top]]


def _joint_chapter(row: Row, advice: Sequence[Row]) -> Chapter:
    telling = [one for one in advice if one["gain_share"] is not None or one["source"] == "kanalyze"]
    shown = (telling or [*advice])[:_JOINT_RULES]
    took = (
        f"{units.time(row['exclusive_ns'])}, {units.percent(row['window_share'])} of the window"
        if row["count"]
        else "no time known"
    )
    facts = [
        ("launched by", joined(row["module"] or "", row["path"] or row["operator"] or "")),
        ("counters", _counters(row)),
        ("match", _match(row)),
    ]
    more = len(advice) - len(shown)
    return Chapter(
        row["name"] or "(no name)",
        joined(took, launch_shape(row, "grid {} × block {}")),
        "",
        [(label, text) for label, text in facts if text],
        [
            _advised(
                one, "gain_share", f"{_key(one['sentence'])} ({one['source']}: {one['rule']})", one["remedy"] or ""
            )
            for one in shown
        ],
        f"{units.plural(more, 'further result')}, in the table gains" if more > 0 else "",
        _LEGEND,
    )


def _match(row: Row) -> str:
    """Describes how certain the match of counters to this kernel is."""
    number = None if row["launch_number"] is None else f"its function's launch {units.count(row['launch_number'])}"
    if number and row["launch_ns"] is None:
        return f"{row['ncu_match']}: {number} was measured, which is none of these"
    if row["ncu_match"] in _MEANINGS:
        return f"{row['ncu_match']}: {_MEANINGS[row['ncu_match']]}"
    return f"exact: {number}, {units.time(row['launch_ns'])} in the run" if number and row["count"] != 1 else ""


def _counters(row: Row) -> str:
    parts = [
        f"{units.time(row['ncu_dur_ns'])} alone under ncu" if row["ncu_dur_ns"] is not None else "",
        percent(row, "compute_share", "compute {}"),
        percent(row, "memory_share", "memory {}"),
        percent(row, "roof_share", f"{{}} of the {row['bound']} roof"),
        f"waits for {row['top_stall']}" if row["top_stall"] else "",
    ]
    return joined(*parts)
