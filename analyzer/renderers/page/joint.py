"""Builds the page of a program recorded by several tools, as texts without layout."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import units
from kanalyze.renderers.page.counters import capped, joined, key_sentence, percent
from kanalyze.renderers.page.sections import launch_shape
from kanalyze.renderers.page.time import Page, page_of, show
from kanalyze.renderers.text.grid import Advice, Chapter, Column, Section, section, telling_apart, words
from kanalyze.tools import TOOLS, tool_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.page.joint_page import JointSummary
    from kanalyze.report import Meta

    Row = dict[str, Any]

_KERNELS: Final = "KERNELS"
_RULES: Final = 3

#: Kernels with a smaller potential gain, as a share of the window, get no chapter.
_WORTH: Final = 0.01
_NONE: Final = "-"

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


_or_none = partial(Column, missing=_NONE)


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
    return [_chapter(kernels[number], rows.to_dicts()) for (number,), rows in [*parts.items()][:top]]


def _chapter(row: Row, advice: Sequence[Row]) -> Chapter:
    telling = [one for one in advice if one["gain_share"] is not None or one["source"] == "kanalyze"]
    shown = (telling or [*advice])[:_RULES]
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
            Advice(
                percent(one, "gain_share", "{}") or percent(one, "speedup_share", "({})"),
                f"{key_sentence(one['sentence'])} ({one['source']}: {one['rule']}){capped(one)}",
                one["remedy"] or "",
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
