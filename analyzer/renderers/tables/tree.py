"""Renders the call tree, for the terminal or as JSON."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kanalyze import outlets, units
from kanalyze.renderers.text.kernel_names import NARROWEST, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from kanalyze.renderers.text.grid import Look

    Row = dict[str, Any]

_DEVICE: Final = ("kernel", "graph", "memcpy", "memset")
_COLOURS: Final = {"kernel": "32", "graph": "32", "memcpy": "34", "memset": "36", "python": "33", "rest": "2"}
_BOLD, _DIM = "1", "2"

#: Prefix of backward operators, and a shorter one.
_ENGINE: Final = "autograd::engine::evaluate_function: "
_AUTOGRAD: Final = "autograd: "

_GAP: Final = "  "


def terminal(tree: pl.DataFrame, by: str, look: Look, heading: str = "") -> str:
    """Renders the call tree, sorted `by` device or host time, in the width of `look`."""
    rows = tree.to_dicts()
    numbers = _numbers(rows, by)
    head = _heads(by, device=any(row["device_ns"] for row in rows))
    columns = [name for name, _ in head]
    widths = [max(len(title), *(len(row[name]) for row in numbers), 0) for name, title in head] if rows else []
    room = look.width - sum(widths) - len(_GAP) * len(widths)
    names = _names(rows, _guides(rows), room)
    titles = [*(text.rjust(width) for (_, text), width in zip(head, widths, strict=True)), "called"]
    lines = [look.paint(f"CALL TREE{f'  {heading}' if heading else ''}", _BOLD), look.paint(_GAP.join(titles), _DIM)]
    for row, cells, (guide, name) in zip(rows, numbers, names, strict=True):
        left = _GAP.join(cells[column].rjust(width) for column, width in zip(columns, widths, strict=True))
        lines.append(f"{left}{_GAP}{look.paint(guide, _DIM)}{look.paint(name, _COLOURS.get(row['kind'], ''))}".rstrip())
    return "\n".join(lines) + "\n"


def _heads(by: str, *, device: bool) -> list[tuple[str, str]]:
    """Headings of the metric columns, the sort column first."""
    sides = [by, *(side for side in ("device", "host") if side != by)]
    found = []
    for side in sides:
        if side == "host" or device:
            found += [(f"{side}_ns", side), (f"{side}_share", "")] if side == by else [(f"{side}_ns", side)]
    return [*found, ("count", "count")]


def _numbers(rows: Sequence[Row], by: str) -> list[dict[str, str]]:
    """Cells of the metric columns; empty where a node cannot have the time."""
    found = []
    for row in rows:
        on_device = row["kind"] in _DEVICE
        host = "" if on_device else units.time(row["host_ns"])
        device = units.time(row["device_ns"]) if row["device_ns"] else ""
        share = units.percent(row[f"{by}_share"])
        count = "" if row["kind"] == "thread" else units.count(row["count"])
        found.append({"host_ns": host, "device_ns": device, f"{by}_share": share, "count": count})
    return found


def _guides(rows: Sequence[Row]) -> list[str]:
    """The tree guides (branch lines) before each node's name."""
    more: list[bool] = []
    found = []
    for row in reversed(rows):  # iterated from below, each node knows whether a sibling follows
        depth = row["depth"]
        more = [*more[: depth + 1], *[False] * (depth + 1 - len(more))]
        bars = "".join("│ " if more[level] else "  " for level in range(1, depth))
        found.append(bars + ("├ " if more[depth] else "└ ") if depth else "")
        more[depth] = True
    return found[::-1]


def _names(rows: Sequence[Row], guides: Sequence[str], room: int) -> list[tuple[str, str]]:
    """Each node's guide and name, the name shortened to the remaining width."""
    order = sorted(range(len(rows)), key=lambda i: len(guides[i]))
    texts: dict[int, str] = {}
    for length, group in groupby(order, key=lambda i: len(guides[i])):
        places = [*group]
        width = max(room - length, NARROWEST)
        kernels = [i for i in places if rows[i]["kind"] in _DEVICE]
        short = shorten([rows[i]["name"] or "(no name)" for i in kernels], width)
        texts.update(zip(kernels, short, strict=True))
        texts.update((i, _name(rows[i], width)) for i in places if i not in texts)
    return [(guide, texts[i]) for i, guide in enumerate(guides)]


def _name(row: Row, width: int) -> str:
    if row["kind"] == "rest":
        count, inside = row["nodes"], row["parent"] is not None
        return f"… {units.plural(count, 'more node' if inside else 'smaller node')}"[:width]
    text = outlets.line(row["name"] or "(no name)").replace(_ENGINE, _AUTOGRAD)
    if len(text) <= width:
        return text
    if row["kind"] == "python":  # the end of a path and the function are more informative than its beginning
        return "…" + text[len(text) - width + 1 :]
    return text[: width - 1] + "…"


def json(trees: dict[str | None, pl.DataFrame]) -> str:
    """Renders the tree as nested JSON objects, of one window or of several by name."""
    found = {name: _nested(tree.to_dicts()) for name, tree in trees.items()}
    return outlets.json(found.get(None, found))


def _nested(rows: Sequence[Row]) -> list[Row]:
    roots: list[Row] = []
    known: dict[int, Row] = {}
    for row in rows:
        parent = row.pop("parent")
        del row["depth"]
        node = known[row.pop("node")] = {**row, "children": []}
        (roots if parent is None else known[parent]["children"]).append(node)
    return roots
