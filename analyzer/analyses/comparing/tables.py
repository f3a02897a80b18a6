"""The tables of a comparison: what an iteration of both sides holds by the key of its rows, and matched by launch."""

from dataclasses import replace
from functools import partial
from operator import sub
from statistics import mean
from typing import Final

import numpy as np
import polars as pl

from kanalyze.analyses.comparing import _pair
from kanalyze.analyses.comparing._comparison import Comparison, verdict_of
from kanalyze.analyses.comparing._pair import FUSED, GONE, KERNEL, NEW, SAME, SHAPE, SPLIT, Pair
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.iterations.phases import NO_RANGE
from kanalyze.analyses.operators._host_tree import ARROW
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.columns import told_of
from kanalyze.decoder.decode import decode
from kanalyze.schema import Column, Table, columns
from kanalyze.units import nearest

_table = partial(Table, sides=True)

#: The rows of each side, and whether both have some.
_SIDES: Final = {"base": pl.col("side") == 0, "new": pl.col("side") == 1}
_BOTH: Final = pl.col("side").n_unique() > 1

#: Time by bucket.
COMPARE: Final = _table(
    "compare",
    "One bucket of the ledger of an iteration, by detail, in base and in new; deltas sum to that of the iteration.",
    (
        Column("bucket", pl.String, "The ledger's bucket: " + ", ".join(BUCKETS) + "."),
        Column("detail", pl.String, "Its detail, as in `ledger`.", nullable=True),
        *_pair.DIFFERENCE,
    ),
    purpose="where the difference of two sides went",
    telling=("bucket", "detail", "delta_ns", "base_ns", "new_ns", "changed"),
)

COMPARE_CALLS: Final = _table(
    "compare_calls",
    "One CUDA call, in an iteration of base and of new, by the host's time; calls inside calls count in both.",
    (
        Column("name", pl.String, "The call.", nullable=True),
        Column("blocking", pl.Boolean, "Whether it waits for the GPU: synchronisations, copies, frees."),
        *_pair.COUNTS,
        *_pair.DIFFERENCE,
    ),
    purpose="CUDA calls and waits, before and after",
    telling=("name", "blocking", "base_count", "new_count", "delta_ns"),
)

COMPARE_COPIES: Final = _table(
    "compare_copies",
    "One kind of copy, or all memsets, in an iteration of base and of new; time is exclusive.",
    (
        Column("operation", pl.String, "As the tool names it.", nullable=True),
        *_pair.COUNTS,
        Column("base_bytes", pl.Int64, "Bytes that an iteration of base moved."),
        Column("new_bytes", pl.Int64, "The same of new."),
        *_pair.DIFFERENCE,
    ),
    purpose="copies and memsets, before and after",
    telling=("operation", "base_count", "new_count", "base_bytes", "new_bytes", "delta_ns"),
)

COMPARE_FAMILIES: Final = _table(
    "compare_families",
    "One family of kernels, or copies and memsets, in an iteration of base and of new; deltas sum to busy time.",
    (
        Column("family", pl.String, "The kernels' family, as in `kernels`; else the bucket of the operations."),
        *_pair.COUNTS,
        *_pair.DIFFERENCE,
    ),
    purpose="families of kernels, before and after",
    telling=("family", "base_count", "new_count", "base_ns", "new_ns", "delta_ns"),
)

#: What became of a finding that both sides have.
_STAYS: Final = "stays"

COMPARE_FINDINGS: Final = _table(
    "compare_findings",
    "The findings of one rule in base and in new, with the time that they take of an iteration.",
    (
        Column("rule", pl.String, "Its name."),
        Column("change", pl.Enum([_STAYS, NEW, GONE]), "stays; new (no run of base has it); gone (no run of new)."),
        Column("base_runs", pl.Int64, "Runs of base that have it."),
        Column("new_runs", pl.Int64, "Runs of new that have it."),
        *_pair.TIMES,
        *_pair.CERTAINTY[:-1],
        *columns("""
            changed bool: Whether its time changed by more than the least effect and more than noise; of what is new or
                gone, whether every run of the other side has it.
            headline text: The largest of them: of new, or of base where it is gone.
        """),
    ),
    purpose="findings that went, came or stay",
    telling=("change", "rule", "base_ns", "new_ns", "headline"),
)

COMPARE_MEMORY: Final = _table(
    "compare_memory",
    "One kind of memory in base and in new.",
    columns("""
        memory text?: Device, Pinned, Managed…
        base_peak_bytes int: Most that was in use at once in base, the mean of its runs.
        new_peak_bytes int: The same in new.
        delta_bytes int: new_peak_bytes less base_peak_bytes.
        ratio float?: new_peak_bytes by base_peak_bytes; null where one is 0.
        base_allocations float: Allocations in an iteration of base.
        new_allocations float: The same of new.
        changed bool: Whether the peak, or the number of allocations, differs by more than the least effect between any
            run of base and any of new.
    """),
    purpose="memory and allocations, before and after",
    telling=("memory", "base_peak_bytes", "new_peak_bytes", "base_allocations", "new_allocations", "changed"),
)

COMPARE_RANGES: Final = _table(
    "compare_ranges",
    "One of the program's ranges directly inside of the iterations, in base and in new, by the host's time; the "
    "rows sum to an iteration of the host, which is not that of `compare` where the host runs ahead.",
    (
        Column("range", pl.String, "Its name; (between them) is the time in none of them."),
        *(replace(one, doc=f"{one.doc[:-1]}; null for the time in none.", nullable=True) for one in _pair.COUNTS),
        *_pair.TIMES,
        Column("base_busy_ns", pl.Int64, "Time of it in which the GPU was busy, in base."),
        Column("new_busy_ns", pl.Int64, "The same in new."),
        *_pair.CERTAINTY,
    ),
    purpose="the parts of an iteration, before and after",
    telling=("range", "delta_ns", "base_ns", "new_ns", "changed"),
)

COMPARE_RANKS: Final = _table(
    "compare_ranks",
    "One rank that both sides have, with the verdict on it.",
    (
        Column("rank", pl.Int64, "The rank of the process, by its environment or else by GPU."),
        *_pair.TIMES,
        *_pair.CERTAINTY[:-1],
        Column("verdict", pl.Enum(["faster", "slower", "same", "cannot tell"]), "As that of the comparison."),
        Column("changed", pl.Boolean, "Whether it is faster or slower."),
    ),
    purpose="each rank, before and after",
    telling=("rank", "verdict", "delta_ns", "base_ns", "new_ns"),
)

#: What became of operators under one that both sides have.
_REPLACED: Final = "replaced"

COMPARE_OPS: Final = _table(
    "compare_ops",
    "One operator of the call tree in base and in new, or those under it that one side alone has; device time is "
    "exclusive, of the window of `compare`, and sums to its busy time less what no recorded operator launched. What "
    "CUDA graphs ran is with the operators that captured it, which it does not call again.",
    (
        *columns("""
            path text?: The operators around it and itself, outermost first; of those that one side alone has, the
                nearest operator around them that both have. Null at the outermost.
        """),
        Column(
            "change",
            pl.Enum([SAME, _REPLACED, NEW, GONE]),
            "same; replaced (others under it); new; gone (some under it).",
        ),
        Column("base_ops", pl.String, "The operators under it that base alone has.", nullable=True),
        Column("new_ops", pl.String, "Those that new alone has.", nullable=True),
        *_pair.COUNTS,
        *_pair.TIMES,
        *columns("""
            base_self_host_ns int: Host time without what they called, in base; of the host's part of the iterations,
                which is earlier.
            new_self_host_ns int: The same in new.
        """),
        *_pair.CERTAINTY,
    ),
    purpose="operators that changed, came or went",
    telling=("change", "delta_ns", "base_count", "new_count", "path", "base_ops", "new_ops"),
)

#: The columns that say which kernels a row is of, and what became of them.
_CHANGE: Final = Column(
    "change",
    pl.Enum([SAME, SHAPE, KERNEL, FUSED, SPLIT, NEW, GONE]),
    "same; other shape (of the launch); other kernel (tile, template or type); fused (several became fewer); split; "
    "new; gone.",
)
_KERNELS: Final = (
    Column("base_kernel", pl.String, "The kernel of base, or the longest of several.", nullable=True),
    Column("new_kernel", pl.String, "The kernel of new, likewise.", nullable=True),
    Column("base_names", pl.Int64, "Different kernels of base."),
    Column("new_names", pl.Int64, "Different kernels of new."),
)

COMPARE_KERNELS: Final = _table(
    "compare_kernels",
    "Kernels, copies or memsets of an iteration of base, and those of new that do the same; deltas sum to busy time.",
    (
        _CHANGE,
        Column("kernel", pl.String, "The kernel of new, else that of base.", nullable=True),
        *_KERNELS[:2],
        Column("range", pl.String, "The range or operator that launched most of it.", nullable=True),
        *_KERNELS[2:],
        *_pair.COUNTS,
        *_pair.TIMES,
        Column("count_ns", pl.Int64, "Part of delta_ns by their number: as long as before each."),
        Column("time_ns", pl.Int64, "Part of delta_ns by the time of each; both sum to delta_ns."),
        *_pair.CERTAINTY,
    ),
    purpose="kernels that changed, fused, came or went",
    telling=("change", "delta_ns", "base_ns", "new_ns", "base_count", "new_count"),
)

COMPARE_COUNTERS: Final = _table(
    "compare_counters",
    "One counter of a kernel of base, and of the one of new that does the same; of several, of them all together.",
    (
        _CHANGE,
        *_KERNELS,
        *_pair.COUNTS,
        *columns("""
            counter text: A column of `counters` or `roofline`.
            base float?: Its mean over the launches of base; of several kernels that became others together, the sum of
                times, cycles, bytes and FLOP, the most registers, and of others the mean by time.
            new float?: The same of new.
            difference float?: new less base.
            ratio float?: new by base; null of shares, and where one is 0.
            changed bool: Whether it differs by more than the least effect: shares by their difference, others by their
                ratio, what one side alone has at all.
        """),
    ),
    purpose="counters of kernels, before and after",
    telling=("base_kernel", "new_kernel", "counter", "base", "new", "ratio", "changed"),
)

#: Prefix of a call in CUDA's and in HIP's interface, and nsys' version at its end.
_PREFIX: Final = r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?|_v\d+(?:_pt[sd]z)?$"

#: Operators that a row names.
_NAMED: Final = 3


def compare(pair: Pair) -> pl.DataFrame:
    """The ledger of an iteration of both sides, in the ledger's order; times sum to that of an iteration."""
    rows = _by_key(COMPARE, pair, pair.runs("buckets"), "ns", pair.ns)
    places = {name: at for at, name in enumerate(BUCKETS)}  # a baseline may have another one
    order = pl.col("bucket").replace_strict(places, default=len(BUCKETS), return_dtype=pl.Int64)
    return rows.sort(order, pl.max_horizontal("base_ns", "new_ns"), "detail", descending=[False, True, False])


def _busy_ns(pair: Pair) -> tuple[int, int]:
    """The busy time of an iteration of base and of new, as `compare` tells it."""
    busy = compare(pair).filter(pl.col("bucket").is_in(BUSY_BUCKETS))
    base, new = (int(busy.get_column(name).sum()) for name in ("base_ns", "new_ns"))
    return base, new


def compare_calls(pair: Pair) -> pl.DataFrame:
    """The CUDA calls of both sides, those that do the same together where one side is of HIP and the other of CUDA."""
    rows, name = pair.runs("calls"), pl.col("name")
    if rows.filter(name.str.starts_with("hip")).get_column("side").n_unique() == 1:
        alike = name.unique().sort().str.join(" / ").over(name.str.replace_all(_PREFIX, ""))
        rows = rows.with_columns(name=pl.when(name.is_not_null()).then(alike))
    return _by_key(COMPARE_CALLS, pair, rows, "total_ns")


def compare_copies(pair: Pair) -> pl.DataFrame:
    """The copies and memsets of both sides, by kind."""
    moved = pair.runs("slots").filter(pl.col("kind").is_in(["memcpy", "memset"]))
    return _by_key(COMPARE_COPIES, pair, moved.rename({"name": "operation"}), "exclusive_ns")


def compare_families(pair: Pair) -> pl.DataFrame:
    """The operations of both sides by what they do; times sum to the busy buckets of `compare`."""
    rows, kernel = pair.runs("slots"), pl.col("kind") == "kernel"
    family = pl.lit(told_of(rows.get_column("name"), lambda name: decode(name).family))
    rows = rows.with_columns(family=pl.when(kernel).then(family).fill_null(pl.col("bucket")))
    return _by_key(COMPARE_FAMILIES, pair, rows, "exclusive_ns", _busy_ns(pair))


def compare_findings(pair: Pair) -> pl.DataFrame:
    """The findings of both sides, by rule."""
    rows, run = pair.runs("findings"), pl.col("run")
    heads = rows.sort("side", "at_stake_ns", "headline").group_by("rule").agg(
        pl.col("headline").last(),
        *(run.filter(own).n_unique().alias(f"{name}_runs") for name, own in _SIDES.items()),
    )  # fmt: skip
    frame = _pair.with_differences(pair, rows, ("rule",), ("at_stake_ns",)).join(heads, on="rule")
    base, new = pl.col("base_runs"), pl.col("new_runs")
    change = pl.when(base == 0).then(pl.lit(NEW)).when(new == 0).then(pl.lit(GONE)).otherwise(pl.lit(_STAYS))
    everywhere = (base == len(pair.base.digests)) | (new == len(pair.new.digests))
    return _pair.by_size(COMPARE_FINDINGS, frame.with_columns(pl.col("changed") & everywhere, change=change), "rule")


def compare_memory(pair: Pair) -> pl.DataFrame:
    """The memory of both sides by kind, the largest difference of the peak first; empty unless both recorded it."""
    # peaks are no sums of iterations, so that the part of an iteration is the peak
    rows = pair.runs("memory").filter(_BOTH).with_columns(pl.col("peak_bytes") * pl.col("iterations"))
    keys, values = pair.per_iteration(rows, ("memory",), ("peak_bytes", "allocations"))
    most = 1 + pair.limits.least_effect
    apart = [  # each run of one side has more than each of the other
        (one.min(axis=1) > other.max(axis=1) * most)
        for base, new in values.values()
        for one, other in ((base, new), (new, base))
    ]
    base, new = pl.col("base_peak_bytes"), pl.col("new_peak_bytes")
    rows = keys.with_columns(column for name, sides in values.items() for column in _pair.means(name, sides))
    ratio = pl.when((base > 0) & (new > 0)).then(new / base)
    rows = rows.with_columns(pl.Series("changed", np.logical_or.reduce(apart)), delta_bytes=new - base, ratio=ratio)
    largest = pl.col("delta_bytes").abs()
    return COMPARE_MEMORY.select(rows).sort(largest, "memory", descending=[True, False], nulls_last=True)


def compare_ranges(pair: Pair) -> pl.DataFrame:
    """The ranges inside of an iteration of both sides; empty where the iterations of a side hold none."""
    rows = pair.runs("ranges").filter(_BOTH)
    counts = pl.when(pl.col("range") != NO_RANGE).then(pl.col("base_count", "new_count"))
    return _by_key(COMPARE_RANGES, pair, rows, "ns").with_columns(counts)


def compare_ranks(comparison: Comparison) -> pl.DataFrame:
    """The time of an iteration of both sides for each rank that both have, by rank."""
    rows = [
        (pair.base.about.rank, one.base_ns, one.new_ns, one.new_ns - one.base_ns, *one[1:4], one.word, bool(one))
        for pair in comparison.pairs
        for one in [verdict_of(pair)]
    ]
    return pl.DataFrame(rows, schema=COMPARE_RANKS.schema, orient="row").sort("rank")


def _by_key(
    table: Table, pair: Pair, rows: pl.DataFrame, ns: str, whole: tuple[int, int] | None = None
) -> pl.DataFrame:
    """The rows of both sides, those of one key together, the largest difference of `ns` first.

    Of the columns of `rows`, those that the table has are the key, and those that it has of base and of new are
    summed; times sum to `whole` where that is given.
    """
    keys = [name for name in rows.columns if name in table.schema]
    values = [ns, *(name for name in rows.columns if name != ns and f"base_{name}" in table.schema)]
    return _pair.by_size(table, _pair.with_differences(pair, rows, keys, values, whole), keys[0])


# Operators, by their path in the call tree.


def compare_ops(pair: Pair) -> pl.DataFrame:
    """The operators of an iteration of both sides, by their path in the call tree.

    Of operators that one side alone has, those under the same nearest operator of both sides are one row, with all that
    they called: the lowest common ancestor, as in TraceLens' TraceDiff.
    """
    rows, side, count = pair.runs("ops"), pl.col("side"), pl.col("count")
    if rows.is_empty():
        return COMPARE_OPS.empty()
    used = pl.any_horizontal(pl.col("count", "self_host_ns", "device_ns") != 0)
    both = {*rows.filter(used).group_by("path").agg(side.n_unique()).filter(side > 1).get_column("path")}
    every, keys = {*rows.get_column("path")}, ("around", "same")
    # paths of both sides one by one, the others by the nearest one around them that both have; empty at the outermost
    around = {path: path if path in both else _nearest(path, both) for path in every}
    # of these others, calls are those of paths that no other one of them is around
    outer = [path for path in every - both if _nearest(path, every) in {"", *both}]
    path, same = pl.col("path"), pl.col("path").is_in(both)
    rows = rows.with_columns(around=path.replace_strict(around), same=same, outer=path.is_in(outer))
    # what either side has in each, the operators of it alone by name, the most called first
    calls = rows.filter(used).group_by(*keys, "outer", "side", "path").agg(
        calls=(count / pl.col("iterations")).sum()
    ).sort("calls", "path", descending=[True, False])  # fmt: skip
    sides = {name: own.any() for name, own in _SIDES.items()}
    named = {f"{name}_ops": _named(pl.col("outer") & (pl.col("calls") > 0) & own) for name, own in _SIDES.items()}
    heads = calls.group_by(keys).agg(**sides, **named)
    changes = {SAME: pl.col("same"), NEW: ~pl.col("base"), GONE: ~pl.col("new"), _REPLACED: pl.lit(value=True)}
    change = pl.coalesce(pl.when(where).then(pl.lit(name)) for name, where in changes.items())
    # busy time as `compare` tells it, without what no recorded operator launched
    buckets, whole = pair.runs("buckets").filter(pl.col("bucket").is_in(BUSY_BUCKETS)), _busy_ns(pair)
    sums = zip(pair.per_run(buckets, "ns"), pair.per_run(rows, "device_ns"), strict=True)
    base, new = map(sub, whole, nearest(mean(busy) - mean(launched) for busy, launched in sums))
    rows = rows.with_columns(count=pl.when(pl.col("same") | pl.col("outer")).then("count").otherwise(0))
    frame = _pair.with_differences(pair, rows, keys, ("device_ns", "count", "self_host_ns"), (base, new))
    frame = frame.join(heads, on=keys, how="left").with_columns(change=change, path=pl.col("around").replace("", None))
    return _pair.by_size(COMPARE_OPS, frame, "path")


def _nearest(path: str, known: set[str]) -> str:
    """The nearest path around `path` that is known; empty where none is."""
    above = path.rpartition(ARROW)[0]
    while above and above not in known:
        above = above.rpartition(ARROW)[0]
    return above


def _named(own: pl.Expr) -> pl.Expr:
    """``aten::addmm, aten::t and 2 more``: what rows of :func:`compare_ops` are around; null without any."""
    inner = pl.col("path").str.strip_prefix(pl.col("around")).str.strip_prefix(ARROW).filter(own)
    more = pl.when(own.sum() > _NAMED).then(pl.format(" and {} more", own.sum() - _NAMED)).otherwise(pl.lit(""))
    return pl.when(own.any()).then(inner.head(_NAMED).str.join(", ") + more)


# Kernels and their counters, matched in the order of launch.


def compare_kernels(pair: Pair) -> pl.DataFrame:
    """The operations of both sides, matched in the order of launch; times sum to the busy buckets of `compare`."""
    rows = pair.operations
    places = rows.group_by("block", "side", range=pl.coalesce("range", "op")).agg(pl.col("ns").sum())
    places = places.sort("side", "ns", "range", descending=[False, True, True], nulls_last=True)
    heads = _kernels(rows.group_by("block", "change", "side", "name").agg(weight=pl.col("ns").sum()))
    heads = heads.join(places.group_by("block").agg(pl.col("range").first()), on="block")
    key = ("side", *_pair.OPERATION)
    slots = pair.slots.join(rows.select(*key, "block"), on=key, nulls_equal=True, maintain_order="left")
    frame = _pair.with_differences(pair, slots, ("block",), ("exclusive_ns", "count"), _busy_ns(pair))
    frame = frame.join(heads, on="block").sort("block")
    # where one side has none, all of it is by their number
    mean, plain = pl.col("base_ns") / pl.col("base_count"), (pl.col("base_count") > 0) & (pl.col("new_count") > 0)
    by_number = ((pl.col("new_count") - pl.col("base_count")) * mean).cast(pl.Int64)
    frame = frame.with_columns(count_ns=pl.when(plain).then(by_number).otherwise("delta_ns"))
    kernel = pl.coalesce("new_kernel", "base_kernel")
    frame = frame.with_columns(time_ns=pl.col("delta_ns") - pl.col("count_ns"), kernel=kernel)
    return _pair.by_size(COMPARE_KERNELS, frame, "base_kernel", "new_kernel")


def _kernels(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of :data:`_KERNELS` of each block and its change, of rows by side and name of this `weight`."""
    falling = rows.sort("weight", pl.col("name").fill_null(""), descending=True)
    kernels = {f"{name}_kernel": pl.col("name").filter(own).first() for name, own in _SIDES.items()}
    numbers = {f"{name}_names": pl.col("name").filter(own).n_unique() for name, own in _SIDES.items()}
    return falling.group_by("block", "change").agg(**kernels, **numbers)


def compare_counters(pair: Pair) -> pl.DataFrame:
    """The counters of the kernels of both sides, those with the most time first; empty where a side has none."""
    every = pair.runs("counters").filter(_BOTH)
    if every.is_empty():
        return COMPARE_COUNTERS.empty()
    key, counter, each, number = ("side", "name", "shape"), pl.col("counter"), pl.col("mean"), pl.col("count")
    counters = every.group_by(*key, "counter", maintain_order=True).agg(each.mean())
    weights = {"dur": counter == "dur_ns", "traffic": counter.is_in(("dram_read_bytes", "dram_write_bytes"))}
    by_key = counters.group_by(key).agg(each.filter(some).sum().alias(name) for name, some in weights.items())
    launches = pair.operations.group_by("block", "change", *key, maintain_order=True).agg(pl.col("count", "ns").sum())
    launches = launches.join(by_key, on=key, how="left", nulls_equal=True, maintain_order="left")
    heads = _kernels(launches.with_columns(weight=number * pl.col("dur").fill_null(0)))
    times = launches.group_by("block").agg(
        *(number.filter(own).sum().alias(f"{name}_count") for name, own in _SIDES.items()),
        ns=pl.max_horizontal(pl.col("ns").filter(own).sum() for own in _SIDES.values()),
    )
    # of all launches together, or means of a launch
    counted = launches.drop_nulls("dur").with_columns(
        keys=pl.len().over("block", "side"),
        every=pl.when(pl.col("change").is_in([FUSED, SPLIT])).then(1.0).otherwise(number.sum().over("block", "side")),
    )
    weight = pl.when(counter == "intensity_flop_per_byte").then("traffic").otherwise("dur") * number
    joined = counted.sort("block", "side", maintain_order=True).join(
        counters, on=key, nulls_equal=True, maintain_order="left"
    )
    values = joined.with_columns(weight=weight).group_by("block", "side", "counter", maintain_order=True).agg(
        sum=(each * number).sum() / pl.col("every").first(),
        whole=pl.len() == pl.col("keys").first(),  # of fewer it would be a part of the sum
        largest=each.max(),
        mean=pl.when(pl.col("weight").sum() > 0)
        .then((each * pl.col("weight")).sum() / pl.col("weight").sum())
        .otherwise((each * number).sum() / number.sum()),
    )  # fmt: skip
    # all others are means by time, `intensity_flop_per_byte` by bytes of DRAM
    is_sum = counter.is_in(("dur_ns", "cycles", "dram_read_bytes", "dram_write_bytes", "flop"))
    value = pl.when(is_sum).then("sum").when(counter == "registers_per_thread").then("largest").otherwise("mean")
    both = values.filter(~is_sum | pl.col("whole")).group_by("block", "counter", maintain_order=True).agg(
        value.filter(own).first().alias(name) for name, own in _SIDES.items()
    )  # fmt: skip
    frame = both.join(heads.join(times, on="block"), on="block", maintain_order="left")
    frame = frame.sort("ns", "block", descending=[True, False], maintain_order=True)
    before, after, share = pl.col("base"), pl.col("new"), counter.str.ends_with("_share")
    ratio, least = pl.when(~share & (before > 0) & (after > 0)).then(after / before), pair.limits.least_effect
    beyond = (ratio > 1 + least) | (ratio < 1 / (1 + least))
    from_nothing = ~share & ((before > 0) != (after > 0))
    differs = pl.when(share).then((after - before).abs() > least).otherwise(beyond.fill_null(from_nothing))
    changed = (pl.col("change").is_in([NEW, GONE]) | differs).fill_null(value=False)
    frame = frame.with_columns(difference=after - before, ratio=ratio, changed=changed)
    return COMPARE_COUNTERS.select(frame)
