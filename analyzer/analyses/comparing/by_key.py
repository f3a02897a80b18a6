"""What an iteration of both sides holds, by the key of its rows: buckets, ranges, operators, calls and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import polars as pl

from kanalyze.analyses.comparing._comparison import Comparison, verdict_of
from kanalyze.analyses.comparing._pair import (
    CERTAINTY,
    COUNTS,
    DIFFERENCE,
    TIMES,
    by_size,
    means,
    summed,
    with_differences,
)
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.iterations._steady import BETWEEN
from kanalyze.analyses.operators._host_tree import ARROW
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.decoder.decode import decode
from kanalyze.schema import Column, Table
from kanalyze.units import nearest

if TYPE_CHECKING:
    import numpy.typing as npt

    from kanalyze.analyses.comparing._pair import Floats, Pair, Side
    from kanalyze.reduction.baselines import Digest

#: Time by bucket.
COMPARE: Final = Table(
    "compare",
    "One bucket of the ledger of an iteration, by detail, in base and in new; deltas sum to that of the iteration.",
    (
        Column("bucket", pl.String, "The ledger's bucket: " + ", ".join(BUCKETS) + "."),
        Column("detail", pl.String, "Its detail, as in `ledger`.", nullable=True),
        *DIFFERENCE,
    ),
    purpose="where the difference of two sides went",
    telling=("bucket", "detail", "delta_ns", "base_ns", "new_ns", "changed"),
    sides=True,
)

COMPARE_CALLS: Final = Table(
    "compare_calls",
    "One CUDA call, in an iteration of base and of new, by the host's time; calls inside calls count in both.",
    (
        Column("name", pl.String, "The call.", nullable=True),
        Column("blocking", pl.Boolean, "Whether it waits for the GPU: synchronisations, copies, frees."),
        *COUNTS,
        *DIFFERENCE,
    ),
    purpose="CUDA calls and waits, before and after",
    telling=("name", "blocking", "base_count", "new_count", "delta_ns"),
    sides=True,
)

COMPARE_COPIES: Final = Table(
    "compare_copies",
    "One kind of copy, or all memsets, in an iteration of base and of new; time is exclusive.",
    (
        Column("operation", pl.String, "As the tool names it.", nullable=True),
        *COUNTS,
        Column("base_bytes", pl.Int64, "Bytes that an iteration of base moved."),
        Column("new_bytes", pl.Int64, "The same of new."),
        *DIFFERENCE,
    ),
    purpose="copies and memsets, before and after",
    telling=("operation", "base_count", "new_count", "base_bytes", "new_bytes", "delta_ns"),
    sides=True,
)

COMPARE_FAMILIES: Final = Table(
    "compare_families",
    "One family of kernels, or copies and memsets, in an iteration of base and of new; deltas sum to busy time.",
    (
        Column("family", pl.String, "The kernels' family, as in `kernels`; else the bucket of the operations."),
        *COUNTS,
        *DIFFERENCE,
    ),
    purpose="families of kernels, before and after",
    telling=("family", "base_count", "new_count", "base_ns", "new_ns", "delta_ns"),
    sides=True,
)

#: What became of a finding.
_STAYS, _NEW, _GONE = "stays", "new", "gone"

COMPARE_FINDINGS: Final = Table(
    "compare_findings",
    "The findings of one rule in base and in new, with the time that they take of an iteration.",
    (
        Column("rule", pl.String, "Its name."),
        Column("change", pl.Enum([_STAYS, _NEW, _GONE]), "stays; new (no run of base has it); gone (no run of new)."),
        Column("base_runs", pl.Int64, "Runs of base that have it."),
        Column("new_runs", pl.Int64, "Runs of new that have it."),
        *TIMES,
        *CERTAINTY[:-1],
        Column(
            "changed",
            pl.Boolean,
            "Whether its time changed by more than the least effect and more than noise; of what is new or gone, "
            "whether every run of the other side has it.",
        ),
        Column("headline", pl.String, "The largest of them: of new, or of base where it is gone."),
    ),
    purpose="findings that went, came or stay",
    telling=("change", "rule", "base_ns", "new_ns", "headline"),
    sides=True,
)

COMPARE_MEMORY: Final = Table(
    "compare_memory",
    "One kind of memory in base and in new.",
    (
        Column("memory", pl.String, "Device, Pinned, Managed…", nullable=True),
        Column("base_peak_bytes", pl.Int64, "Most that was in use at once in base, the mean of its runs."),
        Column("new_peak_bytes", pl.Int64, "The same in new."),
        Column("delta_bytes", pl.Int64, "new_peak_bytes less base_peak_bytes."),
        Column("ratio", pl.Float64, "new_peak_bytes by base_peak_bytes; null where one is 0.", nullable=True),
        Column("base_allocations", pl.Float64, "Allocations in an iteration of base."),
        Column("new_allocations", pl.Float64, "The same of new."),
        Column(
            "changed",
            pl.Boolean,
            "Whether the peak, or the number of allocations, differs by more than the least effect between any run of "
            "base and any of new.",
        ),
    ),
    purpose="memory and allocations, before and after",
    telling=("memory", "base_peak_bytes", "new_peak_bytes", "base_allocations", "new_allocations", "changed"),
    sides=True,
)

COMPARE_RANGES: Final = Table(
    "compare_ranges",
    "One of the program's ranges directly inside of the iterations, in base and in new, by the host's time; the "
    "rows sum to an iteration of the host, which is not that of `compare` where the host runs ahead.",
    (
        Column("range", pl.String, "Its name; (between them) is the time in none of them."),
        *(replace(one, doc=f"{one.doc[:-1]}; null for the time in none.", nullable=True) for one in COUNTS),
        *TIMES,
        Column("base_busy_ns", pl.Int64, "Time of it in which the GPU was busy, in base."),
        Column("new_busy_ns", pl.Int64, "The same in new."),
        *CERTAINTY,
    ),
    purpose="the parts of an iteration, before and after",
    telling=("range", "delta_ns", "base_ns", "new_ns", "changed"),
    sides=True,
)

COMPARE_RANKS: Final = Table(
    "compare_ranks",
    "One rank that both sides have, with the verdict on it.",
    (
        Column("rank", pl.Int64, "The rank of the process, by its environment or else by GPU."),
        *TIMES,
        *CERTAINTY[:-1],
        Column("verdict", pl.Enum(["faster", "slower", "same", "cannot tell"]), "As that of the comparison."),
        Column("changed", pl.Boolean, "Whether it is faster or slower."),
    ),
    purpose="each rank, before and after",
    telling=("rank", "verdict", "delta_ns", "base_ns", "new_ns"),
    sides=True,
)

#: What becomes of operators that both sides have; others are new or gone.
_SAME, _REPLACED = "same", "replaced"
_CHANGES: Final = pl.Enum([_SAME, _REPLACED, _NEW, _GONE])

COMPARE_OPS: Final = Table(
    "compare_ops",
    "One operator of the call tree in base and in new, or those under it that one side alone has; device time is "
    "exclusive, of the window of `compare`, and sums to its busy time less what no recorded operator launched.",
    (
        Column(
            "path",
            pl.String,
            "The operators around it and itself, outermost first; of those that one side alone has, the nearest "
            "operator around them that both have. Null at the outermost.",
            nullable=True,
        ),
        Column("change", _CHANGES, "same; replaced (others under it); new; gone (some under it)."),
        Column("base_ops", pl.String, "The operators under it that base alone has.", nullable=True),
        Column("new_ops", pl.String, "Those that new alone has.", nullable=True),
        *COUNTS,
        *TIMES,
        Column(
            "base_self_host_ns",
            pl.Int64,
            "Host time without what they called, in base; of the host's part of the iterations, which is earlier.",
        ),
        Column("new_self_host_ns", pl.Int64, "The same in new."),
        *CERTAINTY,
    ),
    purpose="operators that changed, came or went",
    telling=("change", "delta_ns", "base_count", "new_count", "path", "base_ops", "new_ops"),
    sides=True,
)


#: Prefix of a call in CUDA's and in HIP's interface, and nsys' version at its end.
_PREFIX: Final = r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?|_v\d+(?:_pt[sd]z)?$"

#: Operators that a row names.
_NAMED: Final = 3


def compare(pair: Pair) -> pl.DataFrame:
    """The ledger of an iteration of both sides.

    Returns:
        :data:`COMPARE`, by bucket in the ledger's order; `base_ns` and `new_ns` sum to the time of an iteration.
    """
    rows = _by_key(COMPARE, pair, lambda one: one.buckets, "ns", whole=(pair.base_ns, pair.new_ns))
    places = {name: at for at, name in enumerate(BUCKETS)}  # a baseline may have another one
    order = pl.col("bucket").replace_strict(places, default=len(BUCKETS), return_dtype=pl.Int64)
    return rows.sort(order, pl.max_horizontal("base_ns", "new_ns"), "detail", descending=[False, True, False])


def compare_calls(pair: Pair) -> pl.DataFrame:
    """The CUDA calls of an iteration of both sides: :data:`COMPARE_CALLS`, the largest difference first."""
    named = pl.col("name").replace(_names_of_calls(pair))
    return _by_key(COMPARE_CALLS, pair, lambda one: one.calls.with_columns(named), "total_ns")


def compare_copies(pair: Pair) -> pl.DataFrame:
    """The copies and memsets of an iteration of both sides, by kind.

    Returns:
        :data:`COMPARE_COPIES`, the largest difference first.
    """
    moved = pl.col("kind").is_in(["memcpy", "memset"])
    named = {"name": "operation"}
    return _by_key(COMPARE_COPIES, pair, lambda one: one.slots.filter(moved).rename(named), "exclusive_ns")


def compare_families(pair: Pair) -> pl.DataFrame:
    """The operations of an iteration of both sides by what they do.

    Returns:
        :data:`COMPARE_FAMILIES`, the largest difference first; `base_ns` and `new_ns` sum to the busy buckets of
        `compare`.
    """
    return _by_key(COMPARE_FAMILIES, pair, _families, "exclusive_ns", whole=pair.busy_ns)


def compare_findings(pair: Pair) -> pl.DataFrame:
    """The findings of both sides, by rule: :data:`COMPARE_FINDINGS`, the largest difference first."""
    keys, values = pair.per_iteration(lambda one: one.findings, ("rule",), ("at_stake_ns",))
    frame = with_differences(pair, keys, values, "at_stake_ns")
    for side, name in ((pair.base, "base"), (pair.new, "new")):
        frame = frame.join(_findings_of(side, name), on="rule", how="left", maintain_order="left")
    frame = frame.with_columns(pl.col("base_runs", "new_runs").fill_null(0))
    base, new = pl.col("base_runs"), pl.col("new_runs")
    change = pl.when(base == 0).then(pl.lit(_NEW)).when(new == 0).then(pl.lit(_GONE)).otherwise(pl.lit(_STAYS))
    every = (base == len(pair.base.digests)) | (new == len(pair.new.digests))
    headline = pl.coalesce("new_headline", "base_headline")
    frame = frame.with_columns(pl.col("changed") & every, change=change, headline=headline)
    return by_size(COMPARE_FINDINGS.select(frame), "rule")


def compare_memory(pair: Pair) -> pl.DataFrame:
    """The memory of both sides, by kind.

    Returns:
        :data:`COMPARE_MEMORY`, the largest difference of the peak first; empty where no run recorded memory.
    """
    if not _both_have(pair, lambda one: one.memory):
        return COMPARE_MEMORY.empty()
    # peaks are no sums of iterations, so that the part of an iteration is the peak
    keys, values = pair.per_iteration(
        lambda one: one.memory.with_columns(pl.col("peak_bytes") * one.about.iterations),
        ("memory",),
        ("peak_bytes", "allocations"),
    )
    base, new = pl.col("base_peak_bytes"), pl.col("new_peak_bytes")
    changed = np.logical_or(*(_apart(*sides, pair.limits.least_effect) for sides in values.values()))
    rows = keys.with_columns(column for name, sides in values.items() for column in means(name, sides))
    ratio = pl.when((base > 0) & (new > 0)).then(new / base)
    rows = rows.with_columns(pl.Series("changed", changed), delta_bytes=new - base, ratio=ratio)
    order = [pl.col("delta_bytes").abs(), pl.col("memory")]
    return COMPARE_MEMORY.select(rows).sort(order, descending=[True, False], nulls_last=True)


def compare_ops(pair: Pair) -> pl.DataFrame:
    """The operators of an iteration of both sides, by their path in the call tree.

    Of operators that one side alone has, those under the same nearest operator of both sides are one row, with all that
    they called: the lowest common ancestor, as in TraceLens' TraceDiff.

    Returns:
        :data:`COMPARE_OPS`, the largest difference first; `base_ns` and `new_ns` sum to the busy time of `compare`,
        without that of what no operator in the recording launched.
    """
    keys, values = pair.per_iteration(lambda one: one.ops, ("path",), ("count", "self_host_ns", "device_ns"))
    if keys.is_empty():
        return COMPARE_OPS.empty()
    paths, calls = keys.get_column("path").to_list(), [side.mean(axis=1) for side in values["count"]]
    had = [np.logical_or.reduce([both[side].any(axis=1) for both in values.values()]).tolist() for side in (0, 1)]
    groups = _groups(paths, had)
    sums = {}
    for name, (base, new) in values.items():
        rows = [outer if name == "count" else every for *_, every, outer in groups]
        sums[name] = summed(base, rows), summed(new, rows)
    head = {
        "path": [path or None for path, *_ in groups],
        "change": [change for _, change, *_ in groups],
        "base_ops": [_named(paths, group, calls[0]) for group in groups],
        "new_ops": [_named(paths, group, calls[1]) for group in groups],
    }
    names = pl.DataFrame(head, schema={name: COMPARE_OPS.schema[name] for name in head})
    frame = with_differences(pair, names, sums, "device_ns", _whole_ns(pair, sums["device_ns"]))
    return by_size(COMPARE_OPS.select(frame), "path")


def compare_ranges(pair: Pair) -> pl.DataFrame:
    """The ranges inside of an iteration of both sides, by name.

    Returns:
        :data:`COMPARE_RANGES`, the largest difference first; empty where the iterations of a side hold no ranges.
    """
    if not _both_have(pair, lambda one: one.ranges):
        return COMPARE_RANGES.empty()
    rows = _by_key(COMPARE_RANGES, pair, lambda one: one.ranges, "ns")
    return rows.with_columns(pl.when(pl.col("range") != BETWEEN).then(pl.col("base_count", "new_count")))


def compare_ranks(comparison: Comparison) -> pl.DataFrame:
    """The time of an iteration of both sides, for each rank that both have: :data:`COMPARE_RANKS`, by rank."""
    verdicts = [(pair.base.about.rank, verdict_of(pair)) for pair in comparison.pairs]
    rows = [
        (rank, one.base_ns, one.new_ns, one.new_ns - one.base_ns, one.ratio, one.low, one.high, one.word, bool(one))
        for rank, one in verdicts
    ]
    return pl.DataFrame(rows, schema=COMPARE_RANKS.schema, orient="row").sort("rank")


def _by_key(
    table: Table,
    pair: Pair,
    rows: Callable[[Digest], pl.DataFrame],
    ns: str,
    whole: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """The rows of both sides, those of one key together, the largest difference of `ns` first.

    Of the columns of `rows`, those that the table has are the key, and those that it has of base and of new are
    summed; times sum to `whole` where that is given.
    """
    given = rows(pair.base.digests[0]).columns
    keys = [name for name in given if name in table.schema]
    values = [name for name in given if name == ns or f"base_{name}" in table.schema]
    names, sums = pair.per_iteration(rows, keys, values)
    return by_size(table.select(with_differences(pair, names, sums, ns, whole)), keys[0])


def _both_have(pair: Pair, rows: Callable[[Digest], pl.DataFrame]) -> bool:
    """Whether runs of both sides have such rows."""
    return all(any(rows(one).height for one in side.digests) for side in (pair.base, pair.new))


def _names_of_calls(pair: Pair) -> dict[str, str]:
    """Names of calls that do the same, where one side is of HIP and the other of CUDA: both together."""
    sides = [
        pl.concat([one.calls.select(pl.col("name").drop_nulls()) for one in side.digests])
        for side in (pair.base, pair.new)
    ]
    if len({bool(names.get_column("name").str.starts_with("hip").any()) for names in sides}) == 1:
        return {}
    alike = pl.col("name").unique().sort().str.join(" / ").over(pl.col("name").str.replace_all(_PREFIX, ""))
    every = pl.concat(sides).unique()
    return dict(every.select("name", alike.alias("alike")).iter_rows())


def _families(run: Digest) -> pl.DataFrame:
    names = run.slots.filter(pl.col("kind") == "kernel").get_column("name").drop_nulls().unique()
    family = pl.col("name").replace_strict({name: decode(name).family for name in names}, default=None)
    kernel = pl.when(pl.col("kind") == "kernel").then(family)
    return run.slots.with_columns(family=kernel.fill_null(pl.col("bucket")))


def _findings_of(side: Side, name: str) -> pl.DataFrame:
    """The rules of the findings of a side: how many runs have each, and the headline of the largest."""
    every = pl.concat([one.findings.with_columns(run=pl.lit(run)) for run, one in enumerate(side.digests)])
    runs = pl.col("run").n_unique().cast(pl.Int64)
    largest = pl.col("headline").sort_by("at_stake_ns", "headline").last()
    return every.group_by("rule").agg(runs.alias(f"{name}_runs"), largest.alias(f"{name}_headline"))


def _apart(base: Floats, new: Floats, least: float) -> npt.NDArray[np.bool_]:
    """Whether each run of one side has more than each of the other [rows, runs], by more than the part `least`."""
    above = new.min(axis=1) > base.max(axis=1) * (1 + least)
    return np.asarray(above | (base.min(axis=1) > new.max(axis=1) * (1 + least)))


def _whole_ns(pair: Pair, device_ns: tuple[Floats, Floats]) -> tuple[int, int]:
    """The busy time of an iteration of each side as `compare` tells it, without what no recorded operator launched."""
    busy = pl.col("bucket").is_in(BUSY_BUCKETS)
    _, buckets = pair.per_iteration(lambda one: one.buckets.filter(busy), ("bucket",), ("ns",))
    sums = zip(buckets["ns"], device_ns, strict=True)
    others = nearest(float(all_ns.mean(axis=1).sum() - ops_ns.mean(axis=1).sum()) for all_ns, ops_ns in sums)
    base, new = (whole - other for whole, other in zip(pair.busy_ns, others, strict=True))
    return base, new


#: Paths of operators that are told together: the path that is told (empty at the outermost), what became of it, the
#: rows of all of its paths, and of those that no other one of them is around, whose calls are counted.
_Group: TypeAlias = tuple[str, str, Sequence[int], Sequence[int]]


def _groups(paths: Sequence[str], had: Sequence[Sequence[bool]]) -> list[_Group]:
    """The paths of both sides one by one, and the others by the nearest path around them that both have.

    `had` tells of each side whether any run of it has each path.
    """
    both = {path for path, *sides in zip(paths, *had, strict=True) if all(sides)}
    every = set(paths)
    found: list[_Group] = [(path, _SAME, [row], [row]) for row, path in enumerate(paths) if path in both]
    alone: dict[str, tuple[list[int], list[int]]] = {}
    for row, path in enumerate(paths):
        if path not in both:
            rows, outer = alone.setdefault(_nearest(path, both), ([], []))
            rows.append(row)
            if (above := _nearest(path, every)) in both or not above:
                outer.append(row)
    for path, (rows, outer) in alone.items():
        sides = [any(side[row] for row in rows) for side in had]
        found.append((path, _REPLACED if all(sides) else _GONE if sides[0] else _NEW, rows, outer))
    return found


def _nearest(path: str, known: set[str]) -> str:
    """The nearest path around `path` that is known; empty where none is."""
    above = path.rpartition(ARROW)[0]
    while above and above not in known:
        above = above.rpartition(ARROW)[0]
    return above


def _named(paths: Sequence[str], group: _Group, calls: npt.NDArray[np.float64]) -> str | None:
    """``aten::addmm, aten::t and 2 more``: what the group's path is around, that with the most calls first.

    `calls` are those of one side; None where it has none of them.
    """
    path, change, _, outer = group
    own = sorted((row for row in outer if calls[row] > 0), key=lambda row: (-calls[row], paths[row]))
    if change == _SAME or not own:
        return None
    cut = len(path) + len(ARROW) if path else 0
    more = f" and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
    return ", ".join(paths[row][cut:] for row in own[:_NAMED]) + more
