"""Lays out the HTML report: texts and numbers of the page, as the template takes them."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
from markupsafe import Markup, escape

from kanalyze import outlets, units
from kanalyze.analyses.iterations.iterations import STEADY
from kanalyze.analyses.shared.buckets import BUCKETS, MEANINGS
from kanalyze.renderers.page.of_any_kind import page_of_any
from kanalyze.renderers.page.time import short_names
from kanalyze.renderers.report_file import charts
from kanalyze.renderers.report_file.timeline_data import drawn_name, fitted
from kanalyze.renderers.tables.frame import is_text, last_of
from kanalyze.renderers.text.grid import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jinja2 import Environment

    from kanalyze.analyses.page.file_page import FilePage
    from kanalyze.analyses.timeline._tracks import Timeline
    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.schema import Table

#: Rows of a table in the file: the first of these numbers with which all but the timeline is small enough.
_ROWS: Final = (300, 100, 30, 10)

#: The file in bytes, and what is not its timeline.
_BYTES: Final = 4_900_000
_OTHER_BYTES: Final = 2_500_000

#: A timeline in a notebook, which keeps it in its own file: bytes, and height in pixels.
_CELL_BYTES: Final = 1_500_000
_CELL_HIGH: Final = 640

#: The element that holds the timeline's data; no text of a report can look like it.
_DATA: Final = '<script type="application/json" id="timeline-data">{}</script>'

#: Kinds of tracks that hold no events of the report.
_MADE: Final = ("ledger", "iteration", "path")

#: Width of kernel names in sentences, in characters.
_NAME: Final = 90

#: Tables of the page by name, in its order, with titles that say what they answer.
_TITLES: Final = {
    "code": "Where in your code",
    "culprits": "Why the GPU waited",
    "hot_kernels": "Kernels",
    "ops": "Operators",
    "steps": "Steps",
    "ranges": "Ranges",
    "range_gpu": "Ranges on the GPU",
    "launch_summary": "Launches",
    "copies": "Copies",
    "api": "CUDA calls",
    "graphs": "CUDA graphs",
    "memory": "Memory",
    "migration_totals": "Unified memory",
    "concurrency": "Streams",
    "exposure": "Total and exposed time",
    "occupancy": "Occupancy",
    "ledger": "Ledger",
    "health": "Health of the recording",
    "ranks": "Ranks",
    "collective_summary": "Collectives by kind, group and size",
    "rank_steps": "Steps of each rank",
    "collectives": "Collectives",
    "clocks": "Clocks",
    "roofline": "Measured kernels under their roofs",
    "stalls": "Stalls of measured kernels",
    "hot_lines": "Source lines of measured kernels",
}
#: Tables that are shown by a column, the largest first, which have another order of their own.
_SORTED: Final = {"culprits": "ns", "hot_lines": "samples"}

#: What is no table: told where it is missing.
_DRAWN: Final = ("timeline",)

#: Iterations that are drawn one by one; ranks and cells of the picture of waiting.
_ITERATIONS: Final = 400
_RANKS: Final = 64
_CELLS: Final = 6000

#: A rank that is late by this part of a step is marked.
_LATE: Final = 0.02


class Heading(NamedTuple):
    """A column's heading: whether it holds words, numbers to sort by, or names."""

    text: str
    meaning: str
    left: bool
    numeric: bool = False
    name: bool = False


class Listed(NamedTuple):
    """A table in the file."""

    name: str
    title: str
    remark: str
    heads: list[Heading]
    rows: list[tuple[Any, ...]]


def document(found: FilePage[Shown]) -> str:
    """The HTML report as text: one file, which needs nothing else, and is under 5 MB."""
    for rows in _ROWS:
        parts = _parts(found, rows)
        text = _rendered(parts)
        size = len(text.encode())
        if size <= _OTHER_BYTES:
            break
    if found.timeline is None:
        return text
    timeline, data = fitted(found.timeline, _BYTES - size)
    if timeline is found.timeline:  # all that was said of it holds
        return text.replace(_DATA.format(""), _DATA.format(data), 1)
    return _rendered(parts | {"timeline": _timeline(timeline, data, found.ranks_left_out)})


def cell(timeline: Timeline, title: str) -> str:
    """A timeline alone, for the cell of a notebook: a frame of its own, so that nothing clashes with the page around.

    The frame may run its script and nothing else: it is of another origin than the notebook.
    """
    told = outlets.short(title)
    texts = {"title": told, "beside": "", "answer": "", "first_remark": ""}
    parts = dict.fromkeys(_SECTIONS, ()) | texts | _own_parts()
    drawn, data = fitted(timeline, _CELL_BYTES)
    page = _rendered(parts | {"timeline": _timeline(drawn, data, 0)})
    frame = f'<iframe sandbox="allow-scripts" title="{outlets.html(told)}" width="100%" height="{_CELL_HIGH}" '
    return f'{frame}frameborder="0" srcdoc="{escape(page)}"></iframe>'


#: Sections for the template, each of which may be empty.
_SECTIONS: Final = (
    "ledgers", "first", "blocks", "cannot_tell", "iterations", "calls", "waits", "waiting", "roofline",
    "measured", "copies", "sections", "tables", "chapters", "recorded",
)  # fmt: skip


def _own_parts() -> dict[str, object]:
    """Script and style for the template, with their hashes, and what buckets and steady iterations are called."""
    script = "\n".join(map(_resource, ("timeline.js", "flame.js", "page.js")))
    style = _resource("page.css")
    return {
        "script": Markup(script),  # noqa: S704 - ours, as the style: nothing of a report is in them
        "style": Markup(style),  # noqa: S704 - as above
        "script_hash": _hash(script),
        "style_hash": _hash(style),
        "buckets": BUCKETS,
        "steady": STEADY,
    }


def _rendered(parts: Mapping[str, Any]) -> str:
    return environment().get_template("page.html.j2").render(parts)


def _parts(found: FilePage[Shown], rows: int) -> dict[str, Any]:
    """Arguments of the template, without the data of the timeline."""
    page = page_of_any(found.shown, None)
    names = short_names(page, _NAME)
    return _own_parts() | {
        "title": page.heading[0],
        "beside": page.beside,
        "answer": page.answer,
        "ledgers": page.ledgers,
        "first": [(point, _drawn(point.finding.names[:1], found.timeline)) for point in page.points],
        "first_remark": page.points_remark,
        "blocks": page.blocks,
        "cannot_tell": [
            *page.cannot_tell,
            *(map(outlets.short, [found.reasons[name] for name in _DRAWN if name in found.reasons])),
        ],
        "timeline": _timeline(found.timeline, "", found.ranks_left_out) if found.timeline else None,
        "window": _window(found.timeline),
        "iterations": _iterations(found.iterations),
        "calls": {f"{by} time": _tree(tree, f"{by}_ns") for by, tree in found.trees.items()},
        "waits": _waits(found.waiting_trees),
        "waiting": _waiting(found.rank_steps),
        "roofline": charts.roofline(found.measured.roofs) if found.measured and found.measured.roofs else None,
        "measured": charts.kernels(found.measured) if found.measured else [],
        "copies": charts.copies(found.copies) if found.copies else None,
        "sections": [] if found.shown.kind == "overview" else page.sections,
        "names": names,
        "tables": [*_tables(found, rows)],
        "chapters": page.chapters,
        "recorded": found.metas,
    }


@cache
def environment() -> Environment:
    """Templates of this folder, in which a text of a report is one escaped line."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - notebooks load this module, too

    made = Environment(
        loader=PackageLoader("kanalyze.renderers.report_file", "."),
        autoescape=True,
        # a text becomes one line without control characters; what is markup of ours, or no text, stays
        finalize=lambda one: outlets.line(one) if isinstance(one, str) and not isinstance(one, Markup) else one,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"cell": _cell, "percent": units.percent, "short": outlets.short, "time": units.time}
    return made


def _cell(value: object, column: str) -> str:
    """The text of a value of a table."""
    return outlets.short(text_of(column, value))


def _resource(name: str) -> str:
    return files("kanalyze.renderers.report_file").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of a content security policy for an inline script or style."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


def _drawn(names: Sequence[str], timeline: Timeline | None) -> str:
    """The first name of a kernel as the timeline has it; empty where it draws none of that name."""
    if timeline is None or not any(name in timeline.events.get_column("name") for name in names):
        return ""
    return drawn_name(names[0])


def _window(timeline: Timeline | None) -> str:
    """A steady iteration, as times of the timeline; empty where there is none."""
    if timeline is None or timeline.whole is None:
        return ""
    low, high = (at - timeline.start_ns for at in timeline.whole)
    return f"{low}..{high}" if low >= 0 else ""


def _timeline(timeline: Timeline, data: str, ranks_left_out: int) -> dict[str, Any]:
    tones = timeline.events.get_column("tone").unique().to_list()
    made = [number for number, track in enumerate(timeline.tracks) if track.kind in _MADE]
    own = timeline.events.filter(~pl.col("track").is_in(made))
    sums = own.filter("several")
    told = f"{units.count(int(own.get_column('count').sum()) + timeline.left_out)} events"
    if sums.height:
        alone = units.count(own.height - sums.height)
        told += f", {alone} of them one by one, the shorter ones in {units.count(sums.height)} sums"
    if timeline.left_out:
        told += f"; {units.count(timeline.left_out)} are nested too deeply to be drawn"
    if timeline.tracks_left_out:
        told += f"; without {units.count(timeline.tracks_left_out)} tracks of threads with few CUDA calls"
    if ranks_left_out:
        told += f"; without {units.count(ranks_left_out)} ranks"
    return {"remark": told, "data": data, "legend": [(name, MEANINGS[name]) for name in BUCKETS if name in tones]}


def _iterations(rows: pl.DataFrame) -> dict[str, Any] | None:
    """The iterations as stacked columns, by bucket."""
    if rows.is_empty():
        return None
    steady = rows.filter(pl.col("kind") == STEADY)
    longest = max(int((steady if steady.height else rows).get_column("dur_ns").max()), 1)  # type: ignore[arg-type]
    longest = longest + longest // 4 if steady.height < rows.height and steady.height else longest
    name = outlets.short(str(rows.item(0, "name")))
    first = f"the first {units.count(_ITERATIONS)} of " if rows.height > _ITERATIONS else ""
    cut = "; what is longer is cut" if rows.get_column("dur_ns").max() > longest else ""  # type: ignore[operator]
    remark = (
        f"{first}{units.count(rows.height)} × {name}; the picture is {units.time(longest)} high{cut}; pale: not steady"
    )
    width = min(max(rows.height, 20), _ITERATIONS) * 10
    return {"remark": remark, "rows": rows.head(_ITERATIONS).to_dicts(), "longest": longest, "width": width}


def _waits(trees: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """The host time that each GPU waited for as trees, by the time of all their roots."""
    whole = {gpu: int(tree.filter(pl.col("parent").is_null()).get_column("ns").sum()) for gpu, tree in trees.items()}
    return {f"{gpu}: {units.time(whole[gpu])}": _tree(tree, "ns") for gpu, tree in trees.items()}


def _tree(tree: pl.DataFrame, time: str) -> list[tuple[int | None, str, str, int, int]]:
    """The nodes of a tree by one kind of time: parent, name, kind, count, ns."""
    rows = tree.select("parent", "name", pl.col("kind").cast(pl.String), "count", time, "nodes").iter_rows()
    return [
        (parent, outlets.short(name or f"{units.plural(nodes, 'smaller node')}"), kind, count, max(ns, 0))
        for parent, name, kind, count, ns, nodes in rows
    ]


def _waiting(steps: pl.DataFrame) -> dict[str, Any] | None:
    """The steps of each rank as a grid: the share of each that the rank waited for others."""
    if steps.is_empty():
        return None
    all_ranks, all_numbers = (steps.get_column(name).unique().sort().to_list() for name in ("rank", "step"))
    waits = steps.group_by("rank").agg(pl.col("wait_ns", "late_ns").sum())
    telling = waits.sort("late_ns", "wait_ns", "rank", descending=[True, True, False]).head(_RANKS)
    ranks = telling.get_column("rank").sort().to_list()
    numbers = all_numbers[: _CELLS // len(ranks)]
    steps = steps.filter(pl.col("rank").is_in(ranks), pl.col("step").is_in(numbers))
    rows, columns = ({one: place for place, one in enumerate(ones)} for ones in (ranks, numbers))
    cells = [
        row | {"x": columns[row["step"]] * 10, "y": rows[row["rank"]] * 10, "late": row["late_ns"] > _LATE * row["ns"]}
        for row in steps.iter_rows(named=True)
    ]
    shown_ranks = _part(len(ranks), len(all_ranks), "ranks", "the latest")
    shown_steps = _part(len(numbers), len(all_numbers), "steps", "the first")
    remark = f"{shown_ranks} by {shown_steps}; the fuller, the longer it waits in the step; framed: late"
    return {"cells": cells, "width": len(numbers) * 10, "height": len(ranks) * 10, "remark": remark, "ranks": ranks}


def _part(shown: int, all_of_them: int, noun: str, which: str) -> str:
    if shown == all_of_them:
        return f"{units.count(shown)} {noun}"
    return f"{which} {units.count(shown)} of {units.count(all_of_them)} {noun}"


def _tables(found: FilePage[Shown], most: int) -> Iterator[Listed]:
    """The tables that have rows, those with a title first, in the order of titles."""
    order = {name: place for place, name in enumerate(_TITLES)}
    for table, frame in sorted(found.tables, key=lambda one: order.get(one[0].name, len(order))):
        if frame.is_empty():
            continue
        bars = found.durations if table.name == "hot_kernels" else None
        by = _SORTED.get(table.name)
        rows = frame.sort(by, descending=True, maintain_order=True, nulls_last=True) if by else frame
        title = _TITLES.get(table.name) or f"{table.purpose[:1].upper()}{table.purpose[1:]}"
        yield _listed(table, title, rows.head(most), rows.height, bars)


def _listed(table: Table, title: str, shown: pl.DataFrame, height: int, durations: pl.DataFrame | None) -> Listed:
    last = last_of(shown.columns)
    first = dict.fromkeys([*([last] if last else []), *table.telling, *shown.columns])
    order = [name for name in first if name in shown.columns and shown.get_column(name).null_count() < shown.height]
    docs = {column.name: column.doc for column in table.columns}
    heads = [
        Heading(
            name, outlets.short(docs.get(name, "")), is_text(kind), kind.is_numeric(), is_text(kind) and name == last
        )
        for name, kind in ((name, shown.schema[name]) for name in order)
    ]
    columns = [shown.get_column(name).to_list() for name in order]
    if durations is not None and not durations.is_empty():
        heads.insert(
            1, Heading("durations", "Distribution of its durations, from the shortest to the longest.", left=True)
        )
        known = {row["name"]: row for row in durations.iter_rows(named=True)}
        columns.insert(1, [known.get(name) for name in shown.get_column("name")])
    rest = f"the first {units.count(shown.height)} of {units.count(height)} rows; " if height > shown.height else ""
    remark = f"{rest}all of it: kanalyze show {table.name}"
    return Listed(table.name, title, remark, heads, [*zip(*columns, strict=True)])
