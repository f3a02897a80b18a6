"""Builds pages with what ncu measured: of its own report, and of a program recorded by several tools."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

import polars as pl

from kanalyze import tools, units
from kanalyze.analyses.page.overview_page import Summary
from kanalyze.renderers import page
from kanalyze.renderers.page import Column, Page, Row, Section, numbers, section, text_of, words
from kanalyze.renderers.page.time import gpu, launch_shape, page_of, show

#: Most stall reasons and ncu rules shown per kernel.
_MOST: Final = 4

#: Waves from so many on are told without decimals, and a FLOP per byte without a point.
_MANY_WAVES, _MANY = 100, 1000

#: Estimates of ncu rules, and gains, below this share are shown only in the table; tensor pipe activity above its
#: useful work is mentioned from this share of the duration on.
_WORTH, _BUSIER = 0.01, 0.05

#: Columns of quantities, with a dash for what is not known.
_or_dash: Final = partial(numbers, missing="-")


def counters_page(summary: Summary, top: int) -> Page:
    """Builds the page of an ncu report, with at most `top` kernels."""
    kernels, health, groups = (summary.tables[name] for name in ("kernels", "health", "groups"))
    rows = groups.join(kernels, left_on="first", right_on="event_id", how="left", maintain_order="left")
    gpus = [gpu(*one) for one in summary.tables["devices"].select("name", "compute_capability", "sm_count").rows()]
    checks = health.group_by("check", "doubt", maintain_order=True).agg(pl.col("count").sum())
    several = kernels.height > 1  # of a single one, the conclusion is the page's answer
    limit = pl.col("verdict").str.strip_suffix("-bound").replace("too few blocks", "grid")
    columns = (
        *_or_dash(time="dur_ns", count="count spare", compute="compute_share", memory="memory_share"),
        *_or_dash(occupancy="achieved_occupancy_share wide", of_roof="roof_share spare"),
        Column("bound", "verdict", left=True),
        words("kernel", "name"),
    )
    remark = "of the peaks; time of the longest"
    return Page(
        heading=[summary.meta.path.name, summary.meta.recorded_by, *gpus, page.health_line(checks)],
        answer=summary.answer,
        sections=[section("KERNELS", rows.with_columns(limit), columns, top, remark, named=True)] if several else [],
        more="counters, or stalls, roofline, advice, metrics: "
        f"{show('counters', summary.meta.path, scope=summary.scope)}",
        chapters=[_chapter(row, summary.tables, several=several) for row in rows.head(top).iter_rows(named=True)],
    )


def _chapter(row: Row, tables: Mapping[str, pl.DataFrame], *, several: bool) -> page.Chapter:
    stalls, advice = (tables[name].filter(pl.col("event_id") == row["first"]) for name in ("stalls", "advice"))
    waits = ~pl.col("reason").is_in(["selected", "not_selected"]) & pl.col("share").is_not_null()
    most = stalls.filter(waits).head(_MOST).select("reason", "share")
    facts = {
        "speed of light": _told(row, "compute {compute_share}", "memory {memory_share}"),
        "memory": _told(
            row,
            "DRAM {dram_share}[ ({dram_bytes_per_s})]",
            "L2 {l2_share}[ (hits {l2_hit_share})]",
            "L1 {l1_share}[ (hits {l1_hit_share})]",
        ),
        "roofline": _roofline(row),
        "occupancy": _occupancy(row),
        "warps": _warps(row),
        "waits": ", ".join(f"{reason} {units.percent(part)}" for reason, part in most.iter_rows()),
        "accesses": _accesses(row),
    }
    times = f", longest of {units.plural(row['count'], 'launch')}" if row["count"] > 1 else ""
    return page.Chapter(
        row["name"] or "(no name)",
        f"{_joined(_told(row, '{dur_ns}'), launch_shape(row, 'grid {} × block {}'))}{times}",
        row["conclusion"] if several else "",
        [page.Block(label, text) for label, text in facts.items() if text],
        *_advice(advice),
    )


def _joined(*parts: str) -> str:
    """The parts that are not empty, with commas between them."""
    return ", ".join(filter(None, parts))


def _told(row: Row, *parts: str) -> str:
    """Templates filled with a row's columns, each in the unit of its name; without those of which one is not known.

    What is in brackets is left out alone.
    """
    return _joined(*(_filled(row, re.sub(r"\[(.*?)\]", lambda match: _filled(row, match[1]), part)) for part in parts))


def _filled(row: Row, template: str) -> str:
    values = {name: row[name] for name in re.findall(r"\{(\w+)\}", template)}
    if None in values.values():
        return ""
    return template.format(**{name: text_of(name, value) for name, value in values.items()})


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
    tensor, peak = "", row["peak_flop_per_s"]  # use of tensor cores, and how far their pipe is busier than that
    if row["bound"] == "compute" and (row["precision"] or "").startswith("tensor") and peak:
        part = row["achieved_flop_per_s"] / peak
        tensor = f" ({row['precision']}{', ' + row['instruction'] if row['instruction'] else ''})"
        if row["roof_share"] - part > _BUSIER:
            tensor += f"; their pipe is busy so long for {units.percent(part)} of their peak"
    return f"{work}; {achieved}/s of {attainable}/s attainable: {roof}{tensor}"


def _occupancy(row: Row) -> str:
    shared, waves = (row["static_shared_bytes"], row["dynamic_shared_bytes"]), row["waves"]
    achieved = _told(row, "{achieved_occupancy_share} achieved")
    return _joined(
        achieved + _told(row, f"{' of ' if achieved else ''}{{occupancy_share}} possible"),
        f"limited by {row['limiter']}" if row["limiter"] else "",
        _told(row, "{registers_per_thread} registers"),
        f"{units.size(sum(shared))} shared" if None not in shared else "",
        "" if waves is None else f"{waves:,.2f} waves" if waves < _MANY_WAVES else f"{waves:,.0f} waves",
        _told(row, "tail {tail_share}") if row["tail_share"] else "",
    )


def _warps(row: Row) -> str:
    if row["active_warps"] is None or row["eligible_warps"] is None:
        return ""
    only_moves = {row["tensor_flop"], row["tensor_int_op"]} == {0}  # of registers, which the tensor pipe executes, too
    return _joined(
        f"{row['active_warps']:.1f} active and {row['eligible_warps']:.2f} eligible per scheduler",
        _told(row, "issues in {issue_share} of cycles"),
        f"{row['threads_per_instruction']:.1f} threads per instruction" if row["threads_per_instruction"] else "",
        _told(row, "tensor pipe {tensor_share}") if row["tensor_share"] and not only_moves else "",
    )


def _accesses(row: Row) -> str:
    parts = [
        f"{row[f'{what}_sectors_per_request']:.1f} sectors per {what}" + _told(row, f"[ ({{{what}_used_share}} used)]")
        for what in ("load", "store")
        if row[f"{what}_sectors_per_request"] is not None
    ]
    conflicts = _told(row, "bank conflicts {bank_conflict_share}") if row["bank_conflicts"] else ""
    local = (row["local_loads"] or 0) + (row["local_stores"] or 0)
    return _joined(*parts, conflicts, f"{units.plural(local, 'access')} to local memory" if local else "")


def _advice(rows: pl.DataFrame) -> tuple[list[page.Block], str]:
    """Our advice, then the most specific ncu rules; and the number of those left out."""
    ours = pl.col("source") == "kanalyze"
    others = rows.filter(~ours)
    worth = pl.coalesce("possible_share", "speedup_share").fill_null(1.0) >= _WORTH
    theirs = others.filter((pl.col("kind") != "information") & worth)
    order = ["scope", "possible_share", "speedup_share"]
    rules = theirs.sort(order, descending=[False, True, True], nulls_last=True, maintain_order=True).head(_MOST)
    shown = [_advised(row, row["sentence"], row["remedy"] or "") for row in rows.filter(ours).to_dicts()]
    shown += [_advised(row, f"{_key(row['sentence'])} (ncu: {row['rule']})") for row in rules.to_dicts()]
    hidden = others.height - rules.height
    return shown, f"{units.plural(hidden, 'further result')} of ncu's rules, in the table advice" if hidden > 0 else ""


def _advised(row: Row, sentence: str, remedy: str = "") -> page.Block:
    """One advice with its gain, of the whole or, in brackets, of one unit; a roof below the estimate is told."""
    estimate, possible, capped = row["speedup_share"], row["possible_share"], ""
    if estimate is not None and possible is not None and row["possible_from"] == "roof":
        capped = f" The estimate is {units.percent(estimate)} of the kernel, its roof leaves {units.percent(possible)}."
    gained = _told(row, "{possible_share}") or _told(row, "({speedup_share})")
    return page.Block(gained, f"{sentence}{capped} {remedy}".rstrip())


def _key(text: str) -> str:
    """The first sentence of a message that contains a number, else its first sentence."""
    sentences = [f"{part.rstrip('.')}." for part in text.split(". ")]
    return next((sentence for sentence in sentences if re.search(r"\d", sentence)), sentences[0])


def joint_page(summary: Summary, top: int) -> Page:
    """Builds the page of the timeline report, with counters and operators of the other tools."""
    timed, joined = page_of(summary, top), summary.joined
    assert joined is not None, "the page of several"  # noqa: S101 - for type checkers
    kernels = joined_kernels(summary, joined, top)
    advice = [one for one in ([] if summary.gains is None else [_gains(summary.gains, top)]) if one.grid.rows]
    return timed._replace(
        heading=[*timed.heading, *joined_with(summary)],
        sections=[*(kernels if one.title == "KERNELS" else one for one in timed.sections), *advice],
        more=f"joined, or gains: {show('joined', *page.paths(summary), scope=summary.scope)}\n{timed.more}",
    )


def joined_with(summary: Summary) -> list[str]:
    """The other reports, those of each tool that has some."""
    texts = []
    by_tool = ([meta for meta in summary.others if meta.tool == tool] for tool in summary.tools[1:])
    for first, *more in filter(None, by_tool):
        captured = first.path == first.capture == summary.meta.capture
        alone = first.tool if captured else f"{first.path.name} ({first.tool})"
        texts.append(f"with {units.plural(1 + len(more), 'report')} of {first.tool}" if more else f"with {alone}")
    return texts


def joined_kernels(summary: Summary, joined: pl.DataFrame, top: int) -> Section:
    """Section of the heaviest kernels by launch shape, with counters and operators where known.

    On a page of all tables a line below says what is left over, and that no advice saves much where that is so.
    """
    measured = any(tools.tool_of(name).counts for name in summary.tools)
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
    foot = "; ".join(filter(None, (_left_over(summary, joined), _little(summary)))) if summary.kind == "joint" else ""
    return section("KERNELS", timed, columns, top, remark, foot, named=True)


def _little(summary: Summary) -> str:
    """The largest potential gain, if too small for a chapter."""
    most = None if summary.gains is None else summary.gains.get_column("gain_share").max()
    if not isinstance(most, float) or most >= _WORTH:
        return ""
    gain = units.percent(most)
    least = f"even {gain.removeprefix('<')}" if gain.startswith("<") else f"more than {gain}"
    return f"no advice about a kernel saves {least} of the window (table gains)"


def _left_over(summary: Summary, rows: pl.DataFrame) -> str:
    """Lists what only one tool recorded."""
    texts, timed = [], pl.col("count").is_not_null()
    for tool in reversed(tools.TOOLS):
        match = f"{tool.short}_match"
        if match not in rows.columns or rows.get_column(match).null_count() == rows.height:
            continue
        outside = summary.outside[tool.name]
        unmatched, only = timed & (pl.col(match) == "none"), ~timed & pl.col(f"{tool.short}_count").is_not_null()
        counts = {
            f"that {tool.short} did not {'measure' if tool.counts else 'see'}": rows.filter(unmatched).height,
            f"that only {tool.short} saw": rows.filter(only).height - outside,
            f"of {tool.short} outside of the window": outside,
        }
        texts += [f"{units.plural(number, 'row')} {clause}" for clause, number in counts.items() if number]
    return f"left over: {'; '.join(texts)}" if texts else ""


def _gains(gains: pl.DataFrame, top: int) -> Section:
    """Section of what advice about kernels saves of the window, as far as that is worth it."""
    columns = (
        *_or_dash(gain="gain_ns", window="gain_share"),
        Column("rule", "rule", left=True),
        Column("by", "source", left=True, spare=True),
        words("kernel", "name"),
    )
    worth = gains.filter(pl.col("gain_share") >= _WORTH)
    return section("ADVICE", worth, columns, top, "saved at most, by what ncu measured", named=True)
