"""Lays out the HTML report, and fragments for notebooks: texts and numbers of a page, as the templates take them."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from markupsafe import Markup, escape

from kanalyze import outlets, units
from kanalyze.analyses.iterations.iterations import STEADY
from kanalyze.analyses.shared.statistics import BUCKETS, MEANINGS
from kanalyze.analyses.timeline._tracks import TONES, Counter, Timeline, fewer
from kanalyze.renderers.formats.charts import CHART_NAME, copies_chart, roofline_chart
from kanalyze.renderers.page import COLOURS, PARTS, Page, Shown, kernel_names, page_of_any, short_names, text_of
from kanalyze.renderers.page.overview import TITLES
from kanalyze.renderers.tables.descriptions import explained, explanation, words
from kanalyze.renderers.tables.frame import KERNELS, is_text, laid_out, last_of, shortened
from kanalyze.schema import Table, unit_of

if TYPE_CHECKING:
    from jinja2 import Environment

    from kanalyze.analyses.page.file_page import FilePage

#: Rows of a table in a notebook, and the width of kernel names there.
_CELL_ROWS, _CELL_NAME = 40, 72

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
    "captured": "Inside CUDA graphs",
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

#: Tables that are folded at first: the sections above say most of what they do, as on pages of ranks and sides all do.
_FOLDED: Final = ("ledger", "exposure", "health", "launch_summary", "steps")

#: Iterations that are drawn one by one.
_ITERATIONS: Final = 400


def document(file_page: FilePage) -> str:
    """The HTML report as text: one file, which needs nothing else, and is under 5 MB."""
    for rows in (300, 100, 30, 10):  # of a table, as many as make all but the timeline small enough
        parts = _parts(file_page, rows)
        text = _rendered(parts)
        size = len(text.encode())
        if size <= 2_500_000:  # noqa: PLR2004 - bytes that are not the timeline's
            break
    if file_page.timeline is None:
        return text
    timeline, data = fitted(file_page.timeline, 4_900_000 - size)
    return _rendered(parts | {"timeline": _timeline(timeline, data, file_page.ranks_left_out)})


def cell(timeline: Timeline, title: str) -> str:
    """A timeline alone, for the cell of a notebook: a frame of its own, so that nothing clashes with the page around.

    The frame may run its script and nothing else: it is of another origin than the notebook.
    """
    heading = outlets.short(title)
    drawn, data = fitted(timeline, 1_500_000)
    parts = {"page": Page([heading], "", [], ""), "timeline": _timeline(drawn, data, 0)}
    page = _rendered(dict.fromkeys(_SECTIONS, ()) | parts)
    frame = f'<iframe sandbox="allow-scripts" title="{outlets.html(heading)}" width="100%" height="640" '
    return f'{frame}frameborder="0" srcdoc="{escape(page)}"></iframe>'


def page(shown: Shown, top: int | None) -> str:
    """Renders a page as one ``<div>``: no script, no external resources, any colour scheme."""
    content = page_of_any(shown, top)
    return _fragment(page=content, names=short_names(content, _CELL_NAME))


def table(frame: pl.DataFrame) -> str:
    """Renders a table with units as one ``<div>``; a long one is truncated, with its row count below."""
    grid, more = laid_out(frame.head(_CELL_ROWS)), frame.height - _CELL_ROWS
    return _fragment(page=None, grid=grid, names=kernel_names.short_forms(grid.names(), _CELL_NAME), more=more)


def _fragment(**parts: Any) -> str:  # noqa: ANN401 - whatever a page consists of
    """The fragment, with texts escaped for quoted attributes, too; its lines are joined, since no text has its own."""

    def escaped(one: object) -> object:
        return Markup(outlets.html(one)) if isinstance(one, str) and not isinstance(one, Markup) else one  # noqa: S704 - escaped

    template = environment().overlay(finalize=escaped).get_template("notebook.html.j2")
    return "".join(map(str.strip, template.render(parts, colours=COLOURS).splitlines()))


#: Sections for the template, each of which may be empty.
_SECTIONS: Final = (
    "first", "meanings", "cannot_tell", "iterations", "calls", "waits", "waiting", "roofline", "copies",
    "sections", "tables", "recorded",
)  # fmt: skip


def _rendered(parts: Mapping[str, Any]) -> str:
    """The file of these parts, with script and style, their hashes, and names of buckets and steady iterations."""
    folder = files("kanalyze.renderers.formats")
    scripts = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("timeline.js", "flame.js", "page.js"))
    ours = {"script": "\n".join(scripts), "style": folder.joinpath("page.css").read_text(encoding="utf-8")}
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            parts,
            buckets=BUCKETS,
            steady=STEADY,
            **{name: Markup(text) for name, text in ours.items()},  # noqa: S704 - nothing of a report is in them
            # the source expression of a content security policy for an inline script or style
            **{
                f"{name}_hash": f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
                for name, text in ours.items()
            },
        )
    )


def _parts(file_page: FilePage, rows: int) -> dict[str, Any]:
    """Arguments of the template, without the data of the timeline."""
    page = page_of_any(file_page.shown, None)
    timeline, reason = file_page.timeline, file_page.reasons.get("timeline")
    drawn = set[str]() if timeline is None else {*timeline.events.get_column("name").unique().cast(pl.String)}
    shares = [share.bucket for ledger in page.ledgers for share in ledger.shares]
    low, high = (at - timeline.start_ns for at in timeline.whole) if timeline and timeline.whole else (-1, -1)
    roots = pl.col("ns").filter(pl.col("parent").is_null()).sum()  # the host time that a GPU waited for
    return {
        "page": page,
        # findings, each with its kernel as the timeline has it, where it is drawn
        "first": [
            (point, next((drawn_name(name) for name in point.finding.names[:1] if name in drawn), ""))
            for point in page.points
        ],
        "meanings": [(word, outlets.line(words()[word])) for word in dict.fromkeys(shares) if word in words()],
        "cannot_tell": [*page.cannot_tell, *([] if reason is None else [outlets.short(reason)])],
        "timeline": _timeline(timeline, "", file_page.ranks_left_out) if timeline else None,
        "window": f"{low}..{high}" if low >= 0 else "",  # a steady iteration, as times of the timeline
        "iterations": _iterations(file_page.iterations),
        "calls": {f"{by} time": _tree(tree, f"{by}_ns") for by, tree in file_page.trees.items()},
        "waits": {
            f"{gpu}: {units.time(tree.select(roots).item())}": _tree(tree, "ns")
            for gpu, tree in file_page.waiting_trees.items()
        },
        "waiting": _waiting(file_page.rank_steps),
        "roofline": roofline_chart(file_page.roofs) if file_page.roofs else None,
        "copies": copies_chart(file_page.copies) if file_page.copies else None,
        # of the first page those whose rows no table below has
        "sections": [one for one in page.sections if file_page.shown.kind != "overview" or one.title in TITLES],
        "names": short_names(page, 90),
        "tables": [*_tables(file_page, rows)],
        "recorded": file_page.metas,
    }


@cache
def environment() -> Environment:
    """Templates of this folder, in which a text of a report is one escaped line."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - notebooks load this module, too

    made = Environment(
        loader=PackageLoader("kanalyze.renderers.formats", "."),
        autoescape=True,
        # a text becomes one line without control characters; what is markup of ours, or no text, stays
        finalize=lambda one: outlets.line(one) if isinstance(one, str) and not isinstance(one, Markup) else one,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": units.percent, "short": outlets.short, "time": units.time}
    made.filters["cell"] = lambda value, column: outlets.short(text_of(column, value))
    # a bar of glyphs, or their legend, in colours
    made.filters["keyed"] = lambda text: Markup(str(escape(outlets.line(text))).translate(_KEYS))  # noqa: S704 - escaped
    # what `kanalyze explain` says of a rule, without its name
    made.filters["explained"] = lambda rule: Markup(escape(explained(explanation(rule), 110).partition("\n")[2]))  # noqa: S704 - escaped
    return made


#: The glyphs of a rank's step as boxes of their colours.
_KEYS: Final = {ord(glyph): Markup('<span class="key part-{}"></span>').format(part) for part, glyph in PARTS.items()}


def _timeline(timeline: Timeline, data: str, ranks_left_out: int) -> dict[str, Any]:
    tones = timeline.events.get_column("tone").unique().to_list()
    # tracks that hold no events of the report
    derived = [at for at, track in enumerate(timeline.tracks) if track.kind in ("ledger", "iteration", "path")]
    recorded = timeline.events.filter(~pl.col("track").is_in(derived))
    sums = recorded.filter("several").height
    remark = f"{units.count(int(recorded.get_column('count').sum()) + timeline.left_out)} events"
    if sums:
        alone = units.count(recorded.height - sums)
        remark += f", {alone} of them one by one, the shorter ones in {units.count(sums)} sums"
    remark += f"; {units.count(timeline.left_out)} are nested too deeply to be drawn" if timeline.left_out else ""
    if timeline.tracks_left_out:
        remark += f"; without {units.count(timeline.tracks_left_out)} tracks of threads with few CUDA calls"
    remark += f"; without {units.count(ranks_left_out)} ranks" if ranks_left_out else ""
    return {"remark": remark, "data": data, "legend": [(name, MEANINGS[name]) for name in BUCKETS if name in tones]}


def _iterations(rows: pl.DataFrame) -> dict[str, Any] | None:
    """The iterations as stacked columns, by bucket."""
    if rows.is_empty():
        return None
    steady = rows.filter(pl.col("kind") == STEADY)
    longest, usual = (max([*these.get_column("dur_ns"), 1]) for these in (rows, steady if steady.height else rows))
    high = usual + usual // 4 if 0 < steady.height < rows.height else usual
    first = f"the first {units.count(_ITERATIONS)} of " if rows.height > _ITERATIONS else ""
    iterations = f"{first}{units.count(rows.height)} × {outlets.short(str(rows.item(0, 'name')))}"
    cut = "; what is longer is cut" if longest > high else ""
    remark = f"{iterations}; the picture is {units.time(high)} high{cut}; pale: not steady"
    width = min(max(rows.height, 20), _ITERATIONS) * 10
    return {"remark": remark, "rows": rows.head(_ITERATIONS).to_dicts(), "longest": high, "width": width}


def _tree(tree: pl.DataFrame, time: str) -> list[tuple[int | None, str, str, int, int, str]]:
    """The nodes of a tree by one kind of time: parent, name, kind, count, ns, and a kernel's short name."""
    rows = tree.select("parent", "name", pl.col("kind").cast(pl.String), "count", time, "nodes").iter_rows()
    short = kernel_names.short_forms(tree.filter(kind="kernel").get_column("name").drop_nulls(), CHART_NAME)
    return [
        (
            *(parent, outlets.short(name or f"{units.plural(nodes, 'smaller node')}"), kind, count, max(ns, 0)),
            outlets.short(short[name]) if kind == "kernel" and name else "",
        )
        for parent, name, kind, count, ns, nodes in rows
    ]


def _waiting(steps: pl.DataFrame) -> dict[str, Any] | None:
    """The steps of each rank as a grid: the share of each that the rank waited for others."""

    def part(shown: int, every: int, noun: str, which: str) -> str:
        return f"{'' if shown == every else f'{which} {units.count(shown)} of '}{units.count(every)} {noun}"

    if steps.is_empty():
        return None
    all_ranks, all_numbers = (steps.get_column(name).unique().sort().to_list() for name in ("rank", "step"))
    waits = steps.group_by("rank").agg(pl.col("wait_ns", "late_ns").sum())
    telling = waits.sort("late_ns", "wait_ns", "rank", descending=[True, True, False]).head(64)
    ranks = telling.get_column("rank").sort().to_list()
    numbers = all_numbers[: 6000 // len(ranks)]
    cells = steps.filter(pl.col("rank").is_in(ranks), pl.col("step").is_in(numbers)).with_columns(
        x=pl.col("step").replace_strict(numbers, [at * 10 for at in range(len(numbers))], default=None),
        y=pl.col("rank").replace_strict(ranks, [at * 10 for at in range(len(ranks))], default=None),
        late=pl.col("late_ns") > 0.02 * pl.col("ns"),
    )
    shown_ranks = part(len(ranks), len(all_ranks), "ranks", "the latest")
    shown_steps = part(len(numbers), len(all_numbers), "steps", "the first")
    remark = f"{shown_ranks} by {shown_steps}; the fuller, the longer it waits in the step; framed: late"
    size = {"width": len(numbers) * 10, "height": len(ranks) * 10}
    return {"cells": cells.to_dicts(), **size, "remark": remark, "ranks": ranks}


def _tables(file_page: FilePage, most: int) -> Iterator[dict[str, Any]]:
    """The tables that have rows, those with a title first, in the order of titles."""
    order = {name: at for at, name in enumerate(_TITLES)}
    for table, frame in sorted(file_page.tables, key=lambda one: order.get(one[0].name, 99)):
        if frame.height:
            by = {"culprits": "ns", "hot_lines": "samples"}.get(table.name)
            rows = frame.sort(by, descending=True, maintain_order=True, nulls_last=True) if by else frame
            durations = file_page.durations if table.name == "hot_kernels" else pl.DataFrame()
            opened = file_page.shown.kind == "overview" and table.name not in _FOLDED
            yield _listed(table, rows, most, durations) | {"open": opened}


def _listed(table: Table, rows: pl.DataFrame, most: int, durations: pl.DataFrame) -> dict[str, Any]:
    """The first rows of a table, without columns of which nothing is known; with bars of `durations` by name."""
    shown, last = rows.head(most), last_of(rows.columns)
    first = dict.fromkeys([*([last] if last else []), *table.telling, *shown.columns])
    order = [name for name in first if name in shown.columns and shown.get_column(name).null_count() < shown.height]
    docs, kinds = {column.name: column.doc for column in table.columns}, shown.schema
    heads = [
        {
            "column": name,
            "text": text,
            "meaning": outlets.short(f"{name}: {docs.get(name, '')}"),
            "left": is_text(kinds[name]),
            "numeric": kinds[name].is_numeric(),
            "name": is_text(kinds[name]) and (name == last or name in KERNELS),
        }
        for name, text in headings(order).items()
    ]
    columns = [_cells(name, shown.get_column(name)) for name in order]
    if durations.height:
        meaning = "Distribution of its durations, from the shortest to the longest."
        extra = {"column": "", "text": "durations", "meaning": meaning, "left": True, "numeric": False, "name": False}
        heads.insert(1, extra)
        bars = {row["name"]: row for row in durations.iter_rows(named=True)}
        columns.insert(1, [bars.get(name) for name in shown.get_column("name")])
    rest = f"the first {units.count(most)} of {units.count(rows.height)} rows; " if rows.height > most else ""
    return {
        "name": table.name,
        "title": _TITLES.get(table.name) or f"{table.purpose[:1].upper()}{table.purpose[1:]}",
        "remark": f"{rest}all of it: kanalyze show {table.name}",
        "heads": heads,
        "rows": [*zip(*columns, strict=True)],
    }


def _cells(name: str, values: pl.Series) -> list[Any]:
    """The cells of a column; of names that may be kernels' the short one, and the whole one if that is another."""
    if name not in KERNELS or not is_text(values.dtype):
        return values.to_list()
    whole = [outlets.short(text or "") for text in values.cast(pl.String)]
    return [*zip(shortened(name, whole, 72), whole, strict=True)]


#: Words of columns' names that stand for others, and columns that are called otherwise altogether.
_WORDS: Final = {
    **{word: word.upper() for word in ("gpu", "cpu", "id", "sm")},
    "avg": "average",
    "dur": "duration",
    "h2d": "to device",
    "d2h": "to host",
    "d2d": "on device",
    "stddev": "deviation",
}
_CALLED: Final = {
    "ns": "time",
    "t_ns": "at",
    "exclusive_ns": "time",
    "exclusive_share": "share",
    "bandwidth_bytes_per_s": "bandwidth",
}

#: What tells columns of one heading apart.
_QUANTITIES: Final = {"ns": "time", "bytes": "size", "bytes/s": "rate", "0..1": "share", "Hz": "clock"}


def headings(names: Sequence[str]) -> dict[str, str]:
    """Columns' names as words without units; of those with the same words the unit is a word, too."""
    plain = {}
    for name in names:
        ending = next((one for one in ("bytes_per_s", "bytes", "ns", "hz") if f"_{name}".endswith(f"_{one}")), "")
        plain[name] = " ".join(_WORDS.get(word, word) for word in name.removesuffix(ending).split("_")).strip()
    texts = {name: _CALLED.get(name, plain[name]) for name in names}
    alike = {name for name in names if [*texts.values()].count(texts[name]) > 1}
    texts |= {name: f"{plain[name]} {_QUANTITIES[unit_of(name)]}".strip() for name in alike if unit_of(name)}
    return {name: text if [*texts.values()].count(text) == 1 else name for name, text in texts.items()}


#: Longest name in the file, in characters, and all names together; a timeline with fewer events is not reduced.
_NAME, _ALL_NAMES, _FEWEST = 1000, 1_000_000, 1000


def fitted(timeline: Timeline, room: int) -> tuple[Timeline, str]:
    """The timeline with as many events as `room` bytes have room for, and its data."""
    data = encoded(timeline)
    while len(data) > room and timeline.events.height > _FEWEST:
        timeline = fewer(timeline, int(timeline.events.height * min(room / len(data), 1) * 0.85))
        data = encoded(timeline)
    return timeline, data


def encoded(timeline: Timeline) -> str:
    """The timeline as base64 text."""
    events, texts = timeline.events, _Texts()
    lane = pl.struct("track", "lane", "several")
    first = events.select(lane != lane.shift(1)).to_series().fill_null(value=True)
    start = events.get_column("start") - timeline.start_ns
    most = max(min(2000, 40_000 // max(len(timeline.counters), 1)), 2)
    several = events.get_column("several").arg_true()
    sums = events[several]
    columns = {
        "step": start.diff().fill_null(0).set(first, 0),
        "length": events.get_column("end") - events.get_column("start"),
        "name": texts.numbers(events.get_column("name")),
        "note": texts.numbers(events.get_column("note")),
        "tone": events.get_column("tone").to_physical(),
        "launch": events.get_column("launch").fill_null(-1) + 1,
        "at": several.cast(pl.Int64).diff().fill_null(several.first() if several.len() else 0),
        "covered": sums.get_column("covered_ns"),
        "count": sums.get_column("count"),
    }
    # shown at first are the windows of the devices
    ledgers = [number for number, track in enumerate(timeline.tracks) if track.kind == "ledger"]
    shown = events.filter(pl.col("track").is_in(ledgers))
    low, high = shown.select(pl.col("start").min() - timeline.start_ns, pl.col("end").max() - timeline.start_ns).row(0)
    # each lane has its first event and the start of that, and whether its events stand for several
    lanes = events.select("track", "lane", pl.col("several").cast(pl.Int64), at=pl.int_range(pl.len()), start=start)
    head: dict[str, Any] = {
        "length_ns": timeline.end_ns - timeline.start_ns,
        "offset_ns": timeline.start_ns - timeline.zero_ns,
        "begin": [low, high] if shown.height else [0, timeline.end_ns - timeline.start_ns],
        "window": timeline.one_clock,
        "tones": TONES,
        "tracks": [track._asdict() for track in timeline.tracks],
        "lanes": lanes.filter(first).to_dicts(),
        "several": several.len(),
        "counters": [_counter(one, timeline, most) for one in timeline.counters],
        "short": _short_names(timeline, texts),
    }
    return _packed(head, columns, texts)


def _short_names(timeline: Timeline, texts: _Texts) -> dict[int, str]:
    """The short names of operations on streams, by the numbers of their texts."""
    streams = [number for number, track in enumerate(timeline.tracks) if track.kind == "stream"]
    drawn = timeline.events.filter(pl.col("track").is_in(streams)).get_column("name").unique().drop_nulls()
    names = sorted({*map(drawn_name, drawn.cast(pl.String))} & texts.all.keys())
    short = kernel_names.short_forms(names, width=60)  # that of a box, in characters
    return {texts.all[name]: outlets.line(short[name]) for name in names if short[name] != name}


def _counter(counter: Counter, timeline: Timeline, most: int) -> dict[str, Any]:
    """A counter's points, times since the start of the timeline.

    Of too many the means of neighbouring bins stay; of what is no mean the highest and the last per slice.
    """
    points = counter.points.select(t=pl.col("t_ns") - timeline.start_ns, value=pl.col("value"))
    bins = -(-points.height // most)
    if counter.bin_ns:
        rows = points.head(points.height - 1).group_by(pl.int_range(pl.len()) // bins, maintain_order=True)
        means = rows.agg(pl.col("t").first(), pl.col("value").mean().round_sig_figs(4))
        points = pl.concat([means.select("t", "value"), points.tail(1)])
    elif points.height > most:
        width = max((timeline.end_ns - timeline.start_ns) // (most // 2), 1)
        slices = points.group_by(pl.col("t") // width, maintain_order=True)
        top = slices.agg(t_ns=pl.col("t").get(pl.col("value").arg_max()), value=pl.col("value").max())
        last = slices.agg(t_ns=pl.col("t").last(), value=pl.col("value").last())
        points = pl.concat([top, last]).select(t="t_ns", value="value").unique().sort("t", maintain_order=True)
    return {
        "group": counter.group,
        "label": outlets.short(counter.label),
        "unit": counter.unit,
        "bin_ns": counter.bin_ns * bins,
        "t": points.get_column("t").to_list(),
        "value": points.get_column("value").to_list(),
    }


def drawn_name(name: str) -> str:
    """A name as the timeline has it: on one line, cut where it is long."""
    text = outlets.line(name[: _NAME + 1])
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}… ({len(name):,} characters)"


class _Texts:
    """All texts of the file, each once; number 0 is no text."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {"": 0}
        self._room = _ALL_NAMES

    def numbers(self, names: pl.Series) -> pl.Series:
        """The number of each name."""
        known = names.unique(maintain_order=True).drop_nulls()
        numbers = []
        for text in map(drawn_name, known.cast(pl.String)):
            shown = text if text in self.all or self._room >= len(text) else "(name left out of this file)"
            if shown not in self.all:
                self._room -= len(shown)
                self.all[shown] = len(self.all)
            numbers.append(self.all[shown])
        return names.replace_strict(known, numbers, default=0, return_dtype=pl.Int64)


def _packed(head: dict[str, Any], columns: dict[str, pl.Series], texts: _Texts) -> str:
    """Header and columns, deflated."""
    import numpy as np  # noqa: PLC0415 - notebooks load this module, too

    blocks, layouts = [], []
    for name, column in columns.items():
        values = column.cast(pl.Int64).to_numpy()
        high = values >> 32
        low = (values & 0xFFFFFFFF).astype("<u4")
        width = max((int(low.max()).bit_length() + 7) // 8, 1) if low.size else 1
        far = [[int(at), int(high[at])] for at in np.flatnonzero(high)]
        layouts.append({"name": name, "count": int(low.size), "width": width, "beyond": far})
        blocks.append(low.view(np.uint8).reshape(-1, 4)[:, :width].T.tobytes())
    head |= {"texts": [*texts.all], "columns": layouts}
    header = json.dumps(head, ensure_ascii=True, separators=(",", ":")).encode()
    data = b"".join([len(header).to_bytes(4, "little"), header, *blocks])
    return b64encode(zlib.compress(data, 6)).decode("ascii")
