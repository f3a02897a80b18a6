"""Slack: how much longer one operation may take, all others as long as they did, before the window's end moves.

Definition: docs/whatif.md, "Slack". An edge that released what it leads to keeps its lag; any other one keeps its own
or the median lag of its kind where that kind releases, whichever is less, and the rest is its room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.critical._path import NOWHERE, first_node
from kanalyze.analyses.dependencies._graph import BEFORE, dependencies, release
from kanalyze.analyses.device._windows import span
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    import numpy as np  # in functions alone: the page of a small report never imports it
    import numpy.typing as npt

    from kanalyze.report import Report

    Ints = npt.NDArray[np.int64]

#: With more operations, and begins and ends of calls, in the window slack is not computed: 7 million of them take some
#: 5 s, and 0.4 GB more than the path.
MOST: Final = 1 << 26

#: Edges that are numbers of Python at a time.
_SLICE: Final = 1 << 18


class Edges(NamedTuple):
    """Edges between the nodes of a walk (operations, then ends of calls, then their begins), by what they lead to.

    Attributes:
        source: What has to be over before.
        target: What it leads to.
        room: How much later the source may end before the target is late (ns).
    """

    source: Ints
    target: Ints
    room: Ints


def edges(report: Report) -> Edges:
    """The edges of a report; those from what had not ended when the other began are left out."""
    graph = dependencies(report)
    operations, calls = graph.operations.height, graph.calls.height
    found = [*_to_operations(report), *_between_calls(report, operations, calls)]
    parts = (part.select(pl.col(name).cast(dtype) for name, dtype in _EDGE.items()) for part in found)
    table = pl.concat([pl.DataFrame(schema=_EDGE), *parts])
    return Edges(*(table.get_column(name).to_numpy() for name in _EDGE))


_EDGE: Final = {"source": pl.UInt32, "target": pl.UInt32, "room": pl.Int64}


def _to_operations(report: Report) -> list[pl.DataFrame]:
    graph = dependencies(report)
    work, calls = graph.operations, graph.calls
    kinds = ("call", *BEFORE)
    released = pl.DataFrame([release(graph, name) for name in kinds])
    line = released.select(pl.col(name).alias(f"{name}_at") for name in kinds).with_columns(
        work.get_column("start"), latest=pl.max_horizontal(f"{name}_at" for name in kinds)
    )
    line = line.with_row_index("target").hstack(work.select(kinds))
    ended = gathered(calls.get_column("end"), work.get_column("call"))
    began = line.get_column("call_at") < ended
    places = pl.col("call").cast(pl.Int64) + pl.lit(work.height) + pl.when(began).then(calls.height).otherwise(0)
    line = line.with_columns(places.alias("call"))
    found = []
    for name in kinds:
        gap = pl.col("start") - pl.col(f"{name}_at")
        binding = pl.col(f"{name}_at") == pl.col("latest")
        usual = line.select(gap.filter(binding).median()).item()
        room = pl.when(binding).then(0).otherwise(gap - pl.min_horizontal(gap, pl.lit(int(usual or 0))))
        part = line.filter(pl.col(name).is_not_null())
        if name != "call":  # its end did not release what began before
            over = gathered(work.get_column("end"), part.get_column(name).cast(pl.UInt32)) <= part.get_column("start")
            part = part.filter(over)
        found.append(part.select(source=name, target="target", room=room))
    return found


def _between_calls(report: Report, operations: int, count: int) -> list[pl.DataFrame]:
    graph = dependencies(report)
    line = graph.calls.with_row_index("row")
    end, begin = pl.col("row").cast(pl.Int64) + operations, pl.col("row").cast(pl.Int64) + operations + count
    over = gathered(graph.operations.get_column("end"), line.get_column("waited_for"))
    waits = pl.col("waited_for").is_not_null()
    own = pl.when(waits).then(pl.col("over") - pl.col("start")).otherwise(0)
    line = line.with_columns(over=over)
    return [
        line.select(source=begin, target=end, room=own),
        line.filter(waits).select(source="waited_for", target=end, room=pl.lit(0)),
        line.filter(pl.col("process_before").is_not_null()).select(
            source=pl.col("process_before").cast(pl.Int64) + operations, target=begin, room=pl.lit(0)
        ),
    ]


@once_per_report
def slack(report: Report) -> pl.Series | None:
    """How much longer each operation may take before the window's end moves (ns); None of too large a window.

    Null for operations that do not end in the window.
    """
    import numpy as np  # noqa: PLC0415 - it takes long to import

    sides, graph = span(report), dependencies(report)
    if sides is None:
        return pl.Series("slack", [], dtype=pl.Int64)
    low, high = sides
    call_start, call_end, work = _of(graph.calls, "start"), _of(graph.calls, "end"), graph.operations.height
    ends = np.concatenate([_of(graph.operations, "end"), call_end, call_start])
    begins = np.concatenate([_of(graph.operations, "start"), call_end, call_start])
    first = first_node(report, high)
    if first == NOWHERE:
        return pl.Series("slack", [None], dtype=pl.Int64).new_from_index(0, work)
    last = max(high, int(begins[first]))  # what begins next ends the path
    inside = (ends > low) & (begins <= last)
    if int(inside.sum()) > MOST:
        return None
    free = np.maximum(last - ends, 0)
    free[first] = 0
    _limit(free, edges(report), inside, _order(begins, ends[:work]))
    told = pl.Series("slack", free[:work])
    return told.set(pl.Series(~inside[:work] | (ends[:work] > high)), None)


def _of(frame: pl.DataFrame, column: str) -> Ints:
    return frame.get_column(column).to_numpy()


def _order(begins: Ints, ends: Ints) -> npt.NDArray[np.uint32]:
    """Place of each node among all by their begins; of one instant ends of calls, begins of calls, operations by end.

    `ends` are those of the operations, the first nodes.
    """
    import numpy as np  # noqa: PLC0415 - it takes long to import

    nodes = np.concatenate([np.arange(len(ends), len(begins)), np.argsort(ends, kind="stable")]).astype(np.uint32)
    nodes = nodes[np.argsort(begins[nodes], kind="stable")]
    places = np.empty_like(nodes)
    places[nodes] = np.arange(len(nodes), dtype=np.uint32)
    return places


def _limit(late: Ints, known: Edges, inside: npt.NDArray[np.bool_], places: npt.NDArray[np.uint32]) -> None:
    """Lowers by how much each node may be `late` to what all that follows may be, and the room of the edge.

    Nodes are taken from the last to the first: what begins later is known before what it waited for.
    """
    import numpy as np  # noqa: PLC0415 - it takes long to import

    near = inside[known.source] & inside[known.target]
    source, target, room = (column[near] for column in known)
    order, may = np.argsort(places[target], kind="stable")[::-1], late.data
    for first in range(0, len(order), _SLICE):
        part = order[first : first + _SLICE]
        for one, other, more in zip(source[part].tolist(), target[part].tolist(), room[part].tolist(), strict=True):
            least = may[other] + more
            if least < may[one]:  # noqa: PLR1730 - min() takes twice as long
                may[one] = least
