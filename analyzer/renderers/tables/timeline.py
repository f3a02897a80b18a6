"""Draws one collective over all its ranks as text, so that the late one is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze import outlets, units

if TYPE_CHECKING:
    import polars as pl

_WAITING: Final = "░"
_TRANSFER: Final = "▓"
_LEAST: Final = 20


def timeline(rows: pl.DataFrame, width: int) -> str:
    """The rows of one collective of the table `collectives`, each with a bar on a common scale.

    Args:
        rows: One row per rank.
        width: Columns of the terminal.

    Returns:
        Lines of text: the collective, the scale, a line per rank by arrival, and who came last.
    """
    first = rows.row(0, named=True)
    order = rows.sort("start_ns", "rank")
    low = int(order.item(0, "start_ns"))
    whole = max(int((order.get_column("start_ns") + order.get_column("dur_ns")).max()) - low, 1)  # type: ignore[arg-type]
    labels = [
        (f"rank {row['rank']}", f"+{units.time(row['start_ns'] - low)}", units.time(row["wait_ns"] or 0), row)
        for row in order.iter_rows(named=True)
    ]
    widths = [max(len(label[at]) for label in labels) for at in range(3)]
    room = max(_LEAST, width - sum(widths) - 8)
    lines = [_title(first), f"{'':{sum(widths) + 8}}{'0':<{room - len(units.time(whole))}}{units.time(whole)}"]
    for rank, late, wait, row in labels:
        begin = row["start_ns"] - low
        cells = [round(one / whole * room) for one in (begin, begin + (row["wait_ns"] or 0), begin + row["dur_ns"])]
        moved = max(cells[2] - cells[1], int(row["dur_ns"] > (row["wait_ns"] or 0)))  # seen, however short
        begin, until = min(cells[0], room - moved), min(cells[1], room - moved)
        bar = " " * begin + _WAITING * (until - begin) + _TRANSFER * moved
        lines.append(f"  {rank:<{widths[0]}}  {late:>{widths[1]}}  {wait:>{widths[2]}}  {bar}".rstrip())
    late, last = first["lateness_ns"], first["last_rank"]
    came_last = f"; rank {last} came last, by {units.time(late)}" if isinstance(late, int) else ""
    lines.append(f"  came, waited; {_WAITING} waiting {_TRANSFER} transfer{came_last}")
    return "\n".join(outlets.line(line) for line in lines) + "\n"


def _title(row: dict[str, object]) -> str:
    size = row["bytes"]
    told = f" of {units.size(size)}" if isinstance(size, int) else ""
    group = f" in {row['group']}" if row["group"] else ""
    return f"collective {row['id']}: {row['kind']}{told}{group}, {row['class']}"
