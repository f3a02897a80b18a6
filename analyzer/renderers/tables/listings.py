"""Renders what is more than a grid: call trees, kernels' source and assembly with metrics, what two tools tell."""

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import Final, TypeAlias

import polars as pl

from kanalyze import outlets, units
from kanalyze.analyses.joining._reasons import REASONS
from kanalyze.analyses.joining.agreement import VERDICTS
from kanalyze.renderers.page import BOLD, DIM, GAP, LEAST_NAME, Column, Look, Row, section, some, words
from kanalyze.renderers.page.kernel_names import NARROWEST, short_forms, shorten

# The call tree.

_COLOURS: Final = {"kernel": "32", "graph": "32", "memcpy": "34", "memset": "36", "python": "33", "rest": "2"}
_DEVICE: Final = ("kernel", "graph", "memcpy", "memset")

#: Figures before a node's name, empty where it cannot have them.
_TIMES: Final = {
    "device": Column("device", "device_ns", some(units.time)),
    "host": Column("host", lambda row: "" if row["kind"] in _DEVICE else units.time(row["host_ns"])),
}
_COUNT: Final = Column("count", lambda row: "" if row["kind"] == "thread" else units.count(row["count"]))


def call_tree(tree: pl.DataFrame, by: str, look: Look, heading: str = "") -> str:
    """Renders the call tree for the terminal, sorted `by` device or host time, in the width of `look`."""
    rows = tree.to_dicts()
    columns = []
    for side in dict.fromkeys((by, "device", "host")):
        if side == "host" or any(row["device_ns"] for row in rows):
            columns += [_TIMES[side], *([Column("", f"{side}_share")] if side == by else [])]
    titles, figures = section("", rows, [*columns, _COUNT]).grid.lines(look.width)
    room = look.width - len(titles) - len(GAP)
    lines = [look.paint(f"CALL TREE{f'  {heading}' if heading else ''}", BOLD)]
    lines.append(look.paint(f"{titles}{GAP}called", DIM))
    guides = _guides(rows)
    texts: dict[int, str] = {}  # the names in what room is left, those behind guides of one length together
    for length in {*map(len, guides)}:
        width = max(room - length, NARROWEST)
        places = [at for at, guide in enumerate(guides) if len(guide) == length]
        kernels = [at for at in places if rows[at]["kind"] in _DEVICE]
        texts |= {at: _name(rows[at], width) for at in places}
        texts |= zip(kernels, shorten([rows[at]["name"] or "(no name)" for at in kernels], width), strict=True)
    for at, (row, left) in enumerate(zip(rows, figures, strict=True)):
        name = look.paint(texts[at], _COLOURS.get(row["kind"], ""))
        lines.append(f"{left.ljust(len(titles))}{GAP}{look.paint(guides[at], DIM)}{name}".rstrip())
    return "\n".join(lines) + "\n"


def _guides(rows: Sequence[Row]) -> list[str]:
    """The tree guides (branch lines) before each node's name."""
    more: list[bool] = []
    guides = []
    for row in reversed(rows):  # iterated from below, each node knows whether a sibling follows
        depth = row["depth"]
        more = [*more[: depth + 1], *[False] * (depth + 1 - len(more))]
        bars = "".join("│ " if more[level] else "  " for level in range(1, depth))
        guides.append(bars + ("├ " if more[depth] else "└ ") if depth else "")
        more[depth] = True
    return guides[::-1]


def _name(row: Row, width: int) -> str:
    if row["kind"] == "rest":
        noun = "smaller node" if row["parent"] is None else "more node"
        return f"… {units.plural(row['nodes'], noun)}"[:width]
    text = outlets.line(row["name"] or "(no name)")
    text = text.replace("autograd::engine::evaluate_function: ", "autograd: ")  # of backward operators
    if len(text) <= width:
        return text
    # the end of a path and the function are more informative than its beginning
    return f"…{text[len(text) - width + 1 :]}" if row["kind"] == "python" else f"{text[: width - 1]}…"


# A kernel's source or assembly.


_Figures: TypeAlias = tuple[tuple[Column, int], ...]

#: Figures before a line, with their widths: share of samples, warp executions, active threads, ideal share of sectors;
#: live registers, if known.
_FIGURES: Final[_Figures] = (
    (Column("samples", "share", some(units.percent)), 8),
    (Column("executed", "instructions", some(units.short_count)), 10),
    (Column("thr.", "threads_per_instruction", "{:.1f}".format), 5),
    (Column("coal.", "ideal_share", some(units.percent)), 8),
    (Column("live", "live_registers"), 5),
)
_LEGEND: Final = "thr.: threads of 32 that take part; coal.: sectors needed of those touched"

#: Share of samples from which a line is highlighted; context lines around annotated ones.
_HOT, _AROUND = 0.1, 2


def source_lines(kernel: str, rows: pl.DataFrame, texts: dict[str, list[str]], look: Look) -> str:
    """Renders annotated source lines, by file: rows of `hot_lines`, and file contents by name."""
    figures = _known(rows)
    head = _titles(figures)
    blocks = []
    for (file,), own in rows.partition_by("file", as_dict=True, maintain_order=True).items():
        blocks += ["", look.paint(outlets.line(str(file)), BOLD), look.paint(f"{head}   line", DIM)]
        text = texts.get(str(file), [])
        by_line = {row["line"]: row for row in own.iter_rows(named=True)}
        around = {line + step for line in by_line for step in range(-_AROUND, _AROUND + 1)}
        before = None
        for number in sorted({*by_line, *(line for line in around if 1 <= line <= len(text))}):
            if before is not None and number > before + 1:
                blocks.append(look.paint(f"{'':{len(head)}}    ...", DIM))
            source = outlets.line(text[number - 1].expandtabs(4)) if number <= len(text) else ""
            blocks.append(_line(by_line.get(number), f"{number:>7} {source}", figures, look))
            before = number
    return _page(kernel, blocks, figures, look)


def instructions(kernel: str, rows: pl.DataFrame, column: str, look: Look) -> str:
    """Renders a kernel's SASS or PTX (`column`), annotated per instruction."""

    def per(part: str, whole: str) -> pl.Expr:
        """A ratio; null without a whole."""
        return pl.when(pl.col(whole) != 0).then(pl.col(part).fill_null(0) / pl.col(whole))

    samples, figures = max(int(rows.get_column("samples").sum()), 1), _known(rows)
    annotated = rows.select(
        column,
        "instructions",
        "live_registers",
        share=pl.col("samples").fill_null(0) / samples,
        threads_per_instruction=per("thread_instructions", "instructions"),
        ideal_share=per("ideal_sectors", "sectors"),
    )
    lines = [
        _line(row, f"  {outlets.line((row[column] or '').expandtabs(1))}", figures, look)
        for row in annotated.iter_rows(named=True)
    ]
    return _page(kernel, [look.paint(f"{_titles(figures)}  {column}", DIM), *lines], figures, look)


def _page(kernel: str, blocks: list[str], figures: _Figures, look: Look) -> str:
    legend = f"{_LEGEND}; live: registers in use" if figures == _FIGURES else _LEGEND
    return "\n".join([look.paint(outlets.line(kernel), BOLD), *blocks, "", look.paint(legend, DIM)]) + "\n"


def _known(rows: pl.DataFrame) -> _Figures:
    """The figures of some lines, without registers where those of none are known."""
    return _FIGURES[:-1] if rows.get_column("live_registers").null_count() == rows.height else _FIGURES


def _titles(figures: _Figures) -> str:
    return "".join(f"{one.title:>{wide}}" for one, wide in figures)


def _line(row: Row | None, source: str, figures: _Figures, look: Look) -> str:
    """Formats a line: its figures, number and text."""
    text = "".join(f"{one.text(row) if row else '':>{wide}}" for one, wide in figures) + source
    text = text.rstrip() if len(text) <= look.width else f"{text[: look.width - 1]}…"
    return look.paint(text, BOLD) if row and (row["share"] or 0) >= _HOT else text


# The comparison of two tools on one program, side by side.


def agreement(rows: pl.DataFrame, shown: pl.DataFrame, width: int) -> str:
    """Renders counts of all `rows` by verdict, the rows in `shown`, and the meaning of the reasons."""
    verdicts = rows.get_column("verdict").to_list()
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    listing = [f"{units.plural(rows.height, 'figure')}: {counted}"]
    report = Column("report", lambda row: PurePath(row["report"]).name, left=True)
    columns = [
        *([report] if "report" in shown.columns else []),
        Column("figure", "figure", left=True),
        Column("first", partial(_value, "first")),
        Column("tool", "first_tool", left=True, wide=True),
        Column("second", partial(_value, "second")),
        Column("tool", "second_tool", left=True),
        Column("difference", partial(_value, "difference")),
        Column("why", lambda row: row["reason"] or "?" * (row["verdict"] == "unexplained"), left=True, spare=True),
        words("kernel or copy", "name"),
    ]
    if shown.height:
        grid = section("", shown, columns, named=True).grid
        head, lines = grid.lines(width, short_forms(grid.names(), max(grid.room_for_names(width), LEAST_NAME)))
        listing += ["", head, *lines]
    used = shown.get_column("reason").unique(maintain_order=True).drop_nulls().to_list()
    listing += [""] * bool(used) + [f"{reason}: {REASONS[reason]}" for reason in used]
    return "\n".join(listing) + "\n"


def _value(name: str, row: Row) -> str:
    if row[name] is None:
        return "-"
    size, unit = abs(row[name]), row["unit"]
    say = {"ns": units.time, "bytes": units.size}.get(unit, units.count)
    return ("-" if row[name] < 0 else "") + (units.percent(size) if unit == "share" else say(int(size)))
