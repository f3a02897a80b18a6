"""The times of a network, one after the other, and the path to the last of them.

A replay is sequential by nature: each time depends on earlier ones. The loop is therefore over plain lists, of nodes
with two edges each; a node with more of them is the last of several.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.replay._network import point_values
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kanalyze.analyses.replay._network import Network, Values

#: Rows of which numbers are lists at a time.
_SLICE: Final = 1 << 18


class Plan(NamedTuple):
    """In which order a network is computed.

    Attributes:
        rows: One per step of the loop: source and edge of the first and of the second (equal, if there is one alone);
            sources are steps, and an edge past the last has no lag.
        steps: Step of each node.
    """

    rows: pl.DataFrame
    steps: pl.Series


class Replayed(NamedTuple):
    """The times of a replay.

    Attributes:
        times: Of each step of the plan, ns.
        lags: Of each edge, with the value of its point, ns.
    """

    times: list[int]
    lags: pl.Series

    @property
    def end(self) -> int:
        """The end of the window."""
        return self.times[-1]


def planned(network: Network) -> Plan:
    """The plan of a network."""
    edges = network.edges.select("target", "source").with_row_index("edge")
    first = pl.col("target") != pl.col("target").shift(1, fill_value=0)
    edges = edges.select("edge", "source", first=first, last=first.shift(-1, fill_value=True))
    second = ~pl.col("first") & pl.col("first").shift(1, fill_value=False)  # goes with the first one
    edges = edges.with_columns(second=second).with_columns(step=(~pl.col("second")).cast(pl.UInt32).cum_sum())
    # step 0 is the origin
    steps = pl.concat(
        [pl.Series("step", [0], dtype=pl.UInt32), edges.get_column("step").filter(edges.get_column("last"))]
    )
    edges = edges.with_columns(gathered(steps, edges.get_column("source")).alias("from"))
    none, twofold = pl.lit(edges.height, pl.UInt32), pl.col("second").shift(-1, fill_value=False)
    rows = edges.select(
        "second",
        a=pl.when("first").then("from").otherwise(pl.col("step") - 1),
        a_edge=pl.when("first").then("edge").otherwise(none),
        b=pl.when(twofold).then(pl.col("from").shift(-1)).otherwise("from"),
        b_edge=pl.col("edge") + twofold.cast(pl.UInt32),
    )
    return Plan(rows.filter(~pl.col("second")).drop("second"), steps)


def replayed(network: Network, plan: Plan, values: Values, lags: pl.Series) -> Replayed:
    """Every time of the network with other values and lags of its edges (ns)."""
    whole = gathered(point_values(network.line, values), network.edges.get_column("point")) + lags
    whole = whole.alias("lag")
    with_none = pl.concat([whole, pl.Series("lag", [0], dtype=pl.Int64)])
    first, second = (gathered(with_none, plan.rows.get_column(name)) for name in ("a_edge", "b_edge"))
    columns = [plan.rows.get_column("a"), first, plan.rows.get_column("b"), second]
    times = [0]
    append = times.append
    for a, lag, b, other in zip(*map(_numbers, columns), strict=True):
        left, right = times[a] + lag, times[b] + other
        append(left if left > right else right)  # noqa: FURB136 - max() takes twice as long
    return Replayed(times, whole)


def _numbers(values: pl.Series) -> Iterator[int]:
    """The numbers of a column, made a slice at a time."""
    slices: Iterable[list[int]] = (
        values.slice(first, _SLICE).to_list() for first in range(0, max(len(values), 1), _SLICE)
    )
    return chain.from_iterable(slices)


def path(network: Network, plan: Plan, found: Replayed) -> list[int]:
    """The edges that the end of the window waited for one after the other, the last first."""
    sources = plan.rows.select("a", "a_edge", "b", "b_edge")
    lags = found.lags
    times, none = found.times, len(lags)
    step, edges = len(times) - 1, []
    while step and times[step] > network.start:
        a, a_edge, b, b_edge = sources.row(step - 1)
        lag = 0 if a_edge == none else lags[a_edge]
        step_from, edge = (a, a_edge) if times[a] + lag == times[step] else (b, b_edge)
        if edge != none:
            edges.append(edge)
        step = step_from
    return edges
