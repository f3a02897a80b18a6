"""Builds pages with what ncu measured: of its own report, and of a program recorded by several tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import units
from kanalyze.renderers import page
from kanalyze.renderers.page import Column, Page, Section, numbers, section, words
from kanalyze.renderers.page.time import gpu, launch_shape, page_of, show
from kanalyze.report import Meta
from kanalyze.tools import TOOLS, tool_of

if TYPE_CHECKING:
    from kanalyze.analyses.page.time_page import CounterSummary, JointSummary

    Row = dict[str, Any]

#: Most stall reasons and ncu rules shown per kernel.
_MOST: Final = 4

#: Waves from so many on are told without decimals, and a FLOP per byte without a point.
_MANY_WAVES: Final = 100
_MANY: Final = 1000

#: Estimates of ncu rules below this share are shown only in the table, and kernels that gain less get no chapter.
_WORTH: Final = 0.01

#: Share of the duration from which tensor pipe activity above its useful work is mentioned.
_BUSIER: Final = 0.05


#: Explanations of uncertain matches.
_MEANINGS: Final = {
    "shape": "same name and launch shape; which of the launches was measured is not known",
    "name": "the name alone fits: another launch shape, or a name that ncu cut short",
}


def counters_page(found: CounterSummary, top: int) -> Page:
    """Builds the page of an ncu report, with at most `top` kernels."""
    rows = found.groups.join(found.kernels, left_on="first", right_on="event_id", how="left", maintain_order="left")
    devices = found.devices.select("name", "compute_capability", "sm_count")
    checks = found.health.group_by("check", "doubt", maintain_order=True).agg(pl.col("count").sum())
    several = found.kernels.height > 1  # of a single one, the conclusion is the page's answer
    return Page(
        heading=[found.meta.path.name, found.meta.recorded_by, *(gpu(*one) for one in devices.iter_rows())],
        health=page.health_line(checks),
        answer=found.answer,
        sections=[_kernels(rows, top)] if several else [],
        more=f"counters, or stalls, roofline, advice, metrics: {show('counters', found.meta.path, scope=found.scope)}",
        chapters=[_chapter(row, found, several=several) for row in rows.head(top).iter_rows(named=True)],
    )


def _or_dash(**columns: str) -> list[Column]:
    """Columns of quantities, with a dash for what is not known."""
    return [one._replace(missing="-") for one in numbers(**columns)]


def _kernels(rows: pl.DataFrame, top: int) -> Section:
    bound = pl.col("verdict").str.strip_suffix("-bound").replace("too few blocks", "grid")
    columns = (
        *_or_dash(time="dur_ns", count="count spare", compute="compute_share", memory="memory_share"),
        *_or_dash(occupancy="achieved_occupancy_share wide", of_roof="roof_share spare"),
        Column("bound", "verdict", left=True),
        words("kernel", "name"),
    )
    return section("KERNELS", rows.with_columns(bound), columns, top, "of the peaks; time of the longest", named=True)


def _chapter(row: Row, found: CounterSummary, *, several: bool) -> page.Chapter:
    stalls, advice = (rows.filter(pl.col("event_id") == row["first"]) for rows in (found.stalls, found.advice))
    waits = ~pl.col("reason").is_in(["selected", "not_selected"]) & pl.col("share").is_not_null()
    most = stalls.filter(waits).head(_MOST).select("reason", "share")
    share = partial(_share, row)
    facts = {
        "speed of light": _joined(share("compute_share", "compute {}"), share("memory_share", "memory {}")),
        "memory": _memory(row),
        "roofline": _roofline(row),
        "occupancy": _occupancy(row),
        "warps": _warps(row),
        "waits": ", ".join(f"{reason} {units.percent(part)}" for reason, part in most.iter_rows()),
        "accesses": _accesses(row),
    }
    took = "" if row["dur_ns"] is None else units.time(row["dur_ns"])
    times = f", longest of {units.plural(row['count'], 'launch')}" if row["count"] > 1 else ""
    return page.Chapter(
        row["name"] or "(no name)",
        f"{_joined(took, launch_shape(row, 'grid {} × block {}'))}{times}",
        row["conclusion"] if several else "",
        [(label, text) for label, text in facts.items() if text],
        *_advice(advice),
    )


def _joined(*parts: str) -> str:
    """The parts that are not empty, with commas between them."""
    return ", ".join(filter(None, parts))


def _share(row: Row, column: str, text: str) -> str:
    """Formats a share into `text`; empty if unknown."""
    return "" if row[column] is None else text.format(units.percent(row[column]))


def _memory(row: Row) -> str:
    rate = row["dram_bytes_per_s"]
    moved = f" ({units.rate(rate)})" if rate is not None else ""
    hits = {level: _share(row, f"{level}_hit_share", " (hits {})") for level in ("l2", "l1")}
    return _joined(
        _share(row, "dram_share", f"DRAM {{}}{moved}"),
        *(_share(row, f"{level}_share", f"{level.upper()} {{}}{told}") for level, told in hits.items()),
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
    work = f"{_joined(floats, integers)} and {moved} of DRAM traffic, {per_byte} {unit}/byte"
    return f"{work}; {achieved}/s of {attainable}/s attainable: {roof}{_tensor(row)}"


def _tensor(row: Row) -> str:
    """Describes tensor core use, and how far the pipe's activity exceeds the useful work."""
    if row["bound"] != "compute" or not (row["precision"] or "").startswith("tensor") or not row["peak_flop_per_s"]:
        return ""
    told = f" ({row['precision']}{', ' + row['instruction'] if row['instruction'] else ''})"
    part = row["achieved_flop_per_s"] / row["peak_flop_per_s"]
    busier = row["roof_share"] - part > _BUSIER
    return f"{told}; their pipe is busy so long for {units.percent(part)} of their peak" if busier else told


def _occupancy(row: Row) -> str:
    shared = (row["static_shared_bytes"], row["dynamic_shared_bytes"])
    achieved = _share(row, "achieved_occupancy_share", "{} achieved")
    waves = row["waves"]
    return _joined(
        achieved + _share(row, "occupancy_share", (" of " if achieved else "") + "{} possible"),
        f"limited by {row['limiter']}" if row["limiter"] else "",
        f"{row['registers_per_thread']} registers" if row["registers_per_thread"] is not None else "",
        f"{units.size(sum(shared))} shared" if None not in shared else "",
        "" if waves is None else f"{waves:,.2f} waves" if waves < _MANY_WAVES else f"{waves:,.0f} waves",
        _share(row, "tail_share", "tail {}") if row["tail_share"] else "",
    )


def _warps(row: Row) -> str:
    if row["active_warps"] is None or row["eligible_warps"] is None:
        return ""
    only_moves = {row["tensor_flop"], row["tensor_int_op"]} == {0}  # of registers, which the tensor pipe executes, too
    return _joined(
        f"{row['active_warps']:.1f} active and {row['eligible_warps']:.2f} eligible per scheduler",
        _share(row, "issue_share", "issues in {} of cycles"),
        f"{row['threads_per_instruction']:.1f} threads per instruction" if row["threads_per_instruction"] else "",
        _share(row, "tensor_share", "tensor pipe {}") if row["tensor_share"] and not only_moves else "",
    )


def _accesses(row: Row) -> str:
    parts = [
        f"{row[f'{what}_sectors_per_request']:.1f} sectors per {what}{_share(row, f'{what}_used_share', ' ({} used)')}"
        for what in ("load", "store")
        if row[f"{what}_sectors_per_request"] is not None
    ]
    conflicts = _share(row, "bank_conflict_share", "bank conflicts {}") if row["bank_conflicts"] else ""
    local = (row["local_loads"] or 0) + (row["local_stores"] or 0)
    return _joined(*parts, conflicts, f"{units.plural(local, 'access')} to local memory" if local else "")


def _advice(rows: pl.DataFrame) -> tuple[list[page.Advice], str]:
    """Our advice, then the most specific ncu rules; and the number of those left out."""
    ours = pl.col("source") == "kanalyze"
    others = rows.filter(~ours)
    worth = pl.coalesce("possible_share", "speedup_share").fill_null(1.0) >= _WORTH
    theirs = others.filter((pl.col("kind") != "information") & worth)
    order = ["scope", "possible_share", "speedup_share"]
    told = theirs.sort(order, descending=[False, True, True], nulls_last=True, maintain_order=True).head(_MOST)
    shown = [
        _advised(row, "possible_share", row["sentence"], row["remedy"] or "") for row in rows.filter(ours).to_dicts()
    ]
    shown += [
        _advised(row, "possible_share", f"{_key(row['sentence'])} (ncu: {row['rule']})") for row in told.to_dicts()
    ]
    hidden = others.height - told.height
    return shown, f"{units.plural(hidden, 'further result')} of ncu's rules, in the table advice" if hidden > 0 else ""


def _advised(row: Row, gain: str, sentence: str, remedy: str = "") -> page.Advice:
    """One advice with its gain, of the whole or, in brackets, of one unit; a roof below the estimate is told."""
    estimate, possible, capped = row["speedup_share"], row["possible_share"], ""
    if estimate is not None and possible is not None and row["possible_from"] == "roof":
        capped = f" The estimate is {units.percent(estimate)} of the kernel, its roof leaves {units.percent(possible)}."
    return page.Advice(_share(row, gain, "{}") or _share(row, "speedup_share", "({})"), f"{sentence}{capped}", remedy)


def _key(text: str) -> str:
    """The first sentence of a message that contains a number, else its first sentence."""
    sentences = [f"{part.rstrip('.')}." for part in text.split(". ")]
    return next((sentence for sentence in sentences if re.search(r"\d", sentence)), sentences[0])


def joint_page(found: JointSummary, top: int) -> Page:
    """Builds the page of the timeline report, with counters and operators of the other tools."""
    timed = page_of(found.summary, top)
    base, *others = found.metas
    # reports in a capture's folder are that folder
    given = dict.fromkeys(meta.path for meta in found.metas if meta.path.parent != base.path)
    kernels = joined_kernels(found.joined, found.tools, top, (_left_over(found), _little(found)))
    return timed._replace(
        heading=[*timed.heading, *joined_with(others, found.tools, base)],
        sections=[kernels if one.title == "KERNELS" else one for one in timed.sections],
        chapters=_chapters(found, top),
        more=f"joined, or gains: {show('joined', *given, scope=found.summary.scope)}\n{timed.more}",
    )


def joined_with(others: Sequence[Meta], tools: Sequence[str], base: Meta) -> list[str]:
    """The other reports, those of each tool that has some."""
    told = []
    for first, *more in filter(None, ([meta for meta in others if meta.tool == tool] for tool in tools[1:])):
        if more:
            told.append(f"with {units.plural(1 + len(more), 'report')} of {first.tool}")
        else:
            captured = first.path == first.capture == base.capture
            told.append(f"with {first.tool if captured else f'{first.path.name} ({first.tool})'}")
    return told


def joined_kernels(joined: pl.DataFrame, tools: Sequence[str], top: int, remarks: Sequence[str] = ()) -> Section:
    """Section of the heaviest kernels by launch shape, with counters and operators where known."""
    measured = any(tool_of(name).counts for name in tools)
    traced = joined.get_column("operator").null_count() < joined.height
    timed = joined.drop_nulls("count")
    axes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    dashed = partial(Column, left=True, missing="-")
    counters = (
        *_or_dash(compute="compute_share wide", memory="memory_share", occupancy="achieved_occupancy_share wide"),
        *_or_dash(of_roof="roof_share spare"),
        dashed("match", "ncu_match", spare=True),
    )
    columns = (
        *_or_dash(time="exclusive_ns", window="window_share", count="count spare"),
        *[Column("GPU", "device")] * bool(page.telling_apart(timed, ("name",), ("device",))),
        *(counters if measured else ()),
        *[dashed("operator", "operator", wide=True)] * traced,
        *[Column("grid × block", launch_shape, left=True)] * bool(page.telling_apart(timed.head(top), ("name",), axes)),
        words("kernel", "name"),
    )
    remark = "by launch shape; counters are ncu's" if measured else "by launch shape"
    return section("KERNELS", timed, columns, top, remark, "; ".join(filter(None, remarks)), named=True)


def _little(found: JointSummary) -> str:
    """The largest potential gain, if too small for a chapter."""
    most = None if found.gains is None else found.gains.get_column("gain_share").max()
    if not isinstance(most, float) or most >= _WORTH:
        return ""
    told = units.percent(most)
    least = f"even {told.removeprefix('<')}" if told.startswith("<") else f"more than {told}"
    return f"no advice about a kernel saves {least} of the window (table gains)"


def _left_over(found: JointSummary) -> str:
    """Lists what only one tool recorded."""
    rows, texts = found.joined, []
    timed = pl.col("count").is_not_null()
    for tool in reversed(TOOLS):
        match = f"{tool.short}_match"
        if match not in rows.columns or rows.get_column(match).null_count() == rows.height:
            continue
        outside = found.outside[tool.name]
        only = rows.filter(~timed & pl.col(f"{tool.short}_count").is_not_null()).height - outside
        numbers_of = {
            f"that {tool.short} did not {'measure' if tool.counts else 'see'}": rows.filter(
                timed & (pl.col(match) == "none")
            ).height,
            f"that only {tool.short} saw": only,
            f"of {tool.short} outside of the window": outside,
        }
        texts += [f"{units.plural(number, 'row')} {told}" for told, number in numbers_of.items() if number]
    return f"left over: {'; '.join(texts)}" if texts else ""


def _chapters(found: JointSummary, top: int) -> list[page.Chapter]:
    """Chapters of the kernels with the largest potential gain, descending."""
    if found.gains is None or found.gains.is_empty():
        return []
    kernels = {row["event_id"]: row for row in found.joined.to_dicts() if row["event_id"] is not None}
    worth = found.gains.filter(pl.col("gain_share").max().over("event_id") >= _WORTH)
    parts = worth.partition_by("event_id", maintain_order=True, as_dict=True)
    return [_joint_chapter(kernels[number], rows.to_dicts()) for (number,), rows in [*parts.items()][:top]]


def _joint_chapter(row: Row, advice: Sequence[Row]) -> page.Chapter:
    telling = [one for one in advice if one["gain_share"] is not None or one["source"] == "kanalyze"]
    shown = (telling or [*advice])[:3]
    took = "no time known"
    if row["count"]:
        took = f"{units.time(row['exclusive_ns'])}, {units.percent(row['window_share'])} of the window"
    facts = {
        "launched by": _joined(row["module"] or "", row["path"] or row["operator"] or ""),
        "counters": _joined(
            f"{units.time(row['ncu_dur_ns'])} alone under ncu" if row["ncu_dur_ns"] is not None else "",
            _share(row, "compute_share", "compute {}"),
            _share(row, "memory_share", "memory {}"),
            _share(row, "roof_share", f"{{}} of the {row['bound']} roof"),
            f"waits for {row['top_stall']}" if row["top_stall"] else "",
        ),
        "match": _match(row),
    }
    more = len(advice) - len(shown)
    told = [f"{_key(one['sentence'])} ({one['source']}: {one['rule']})" for one in shown]
    return page.Chapter(
        row["name"] or "(no name)",
        _joined(took, launch_shape(row, "grid {} × block {}")),
        "",
        [(label, text) for label, text in facts.items() if text],
        [_advised(one, "gain_share", text, one["remedy"] or "") for one, text in zip(shown, told, strict=True)],
        f"{units.plural(more, 'further result')}, in the table gains" if more > 0 else "",
        "at most this part of the window; in brackets: of one unit of the GPU",
    )


def _match(row: Row) -> str:
    """Describes how certain the match of counters to this kernel is."""
    number = None if row["launch_number"] is None else f"its function's launch {units.count(row['launch_number'])}"
    if number and row["launch_ns"] is None:
        return f"{row['ncu_match']}: {number} was measured, which is none of these"
    if row["ncu_match"] in _MEANINGS:
        return f"{row['ncu_match']}: {_MEANINGS[row['ncu_match']]}"
    return f"exact: {number}, {units.time(row['launch_ns'])} in the run" if number and row["count"] != 1 else ""
