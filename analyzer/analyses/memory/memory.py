"""Memory over time: in use and peak, and the calls that allocate and free it."""

from collections.abc import Iterator
from typing import Final, Unpack

import polars as pl

from kanalyze import intervals, model, schema, units
from kanalyze.analyses.device._operations import in_device_scope, launch_calls, of_used_processes
from kanalyze.analyses.host._call_kinds import bucket_of, names_that, shown
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.columns import beside, in_order
from kanalyze.report import Report, Where

#: The names of allocating and freeing events; others (such as out of memory) do neither.
_NAMES: Final = ("Allocation", "Deallocation")

#: Kinds of memory that lie on the device; pinned and managed memory does not, or not entirely.
ON_DEVICE: Final = ("Device", "Device Static", "Array")

#: Memory in use is counted separately for each of these.
_KEYS: Final = ("device", "process_id", "memory")


@analysis.once_per_process
def _steps(report: Report) -> pl.DataFrame:
    """All allocations and deallocations of the processes in scope, at any time, sorted by time.

    With free (whether it is a deallocation), matched (whether it fits the previous event at its address), delta_bytes
    (the change of the memory in use), told (whether a framework's allocator reports its own totals, whose differences
    the deltas then are), before_bytes (what the allocator had in use before the first event of each process, device and
    kind of memory; else 0). A deallocation takes device, memory and size from its allocation. An unmatched allocation
    shows that the deallocation of the earlier one is missing: it replaces that one if both are of one device and kind.
    """
    name = pl.col("name").cast(pl.String)
    rows = report.kind("memory").filter(name.is_in(_NAMES))
    rows = rows.select("event_id", "process_id", "device", "correlation_id", free=name == _NAMES[1], t_ns="start_ns")
    details = ("memory", "address", "size_bytes", "pool", "pool_size_bytes", "pool_used_bytes")
    line = beside(rows, report.table("memory_detail"), *details).sort("process_id", "address", "t_ns", "event_id")
    free, size, used = (pl.col(column) for column in ("free", "size_bytes", "pool_used_bytes"))
    alike = {column: pl.col(column).eq_missing(pl.col(column).shift(1)) for column in _KEYS}
    same = alike["process_id"] & (pl.col("address") == pl.col("address").shift(1))
    line = line.with_columns(held=(same & ~free.shift(1)).fill_null(value=False))
    taken = pl.col("device", "memory", "size_bytes", "pool")
    replaced = pl.when(~free & pl.col("held"), alike["device"], alike["memory"]).then(size.shift(1)).otherwise(0)
    line = line.with_columns(pl.when(free & pl.col("held")).then(taken.shift(1)).otherwise(taken), replaced=replaced)
    matched = free == pl.col("held")
    delta = pl.when(~free).then(size - pl.col("replaced")).when(matched).then(-size).otherwise(0)
    # an allocator of a framework has no pool of CUDA, and says what it has in use with every event
    reported = (pl.col("pool").is_null() & used.is_not_null()).all().over(_KEYS)
    steps = line.with_columns(matched=matched, delta_bytes=delta, told=reported).sort("t_ns", "event_id")
    change = (used - used.shift(1)).over(_KEYS).fill_null(pl.when("free").then(-size).otherwise(size))
    steps = steps.with_columns(delta_bytes=pl.when("told").then(change).otherwise("delta_bytes"))
    first = (pl.int_range(pl.len()).over(_KEYS) == 0) & pl.col("told")
    return steps.drop("held", "replaced").with_columns(
        before_bytes=pl.when(first).then(used - pl.col("delta_bytes")).otherwise(0),
        on_device=pl.col("memory").cast(pl.String).is_in(ON_DEVICE).fill_null(value=False),
    )


def in_use(report: Report) -> Iterator[tuple[int | None, int | None, str, pl.DataFrame]]:
    """Memory in use over time, by device (None for host memory), process and kind: these, and points of t_ns and value.

    Of the part in scope; the values count what was in use before its window, too.
    """
    if "memory" not in report.kinds:
        return
    for (device, process, memory), own in in_device_scope(report, _steps(report)).group_by(*_KEYS, maintain_order=True):
        used = pl.col("before_bytes").first() + pl.col("delta_bytes").cum_sum()
        points = intervals.overlapping(own.select("t_ns", value=used), report.scope.sides, "t_ns", "t_ns")
        yield device if memory in ON_DEVICE else None, process, f"{memory or 'memory'} in use", points


#: Calls of the ledger's bucket `allocation` that allocate, and those that free.
_TAKES: Final = r"Malloc|Alloc|HostRegister|MemCreate|Array(?:3D)?Create|MipmappedArrayCreate"
_GIVES: Final = r"Free|Unregister|MemRelease|ArrayDestroy"

#: Minimum number of rounds of allocating and freeing, each with launches, for a loop.
LOOP_ROUNDS: Final = 5


@analysis.once_per_process
def allocating_calls(report: Report) -> pl.DataFrame:
    """The calls of the processes in scope that allocate or free memory, at any time, sorted by time.

    With row (of the api events), gives (whether it frees), round (null outside of loops) and its launches. A round of a
    process lasts from an allocating call that follows a freeing one to the next such call. Only rounds with a launch,
    and at least as many freeing as allocating calls, are taken. A call is in a loop if its name occurs in at least
    :data:`LOOP_ROUNDS` of them, with gaps of at most :data:`LOOP_ROUNDS` rounds; it counts from the second one on,
    since one allocation is necessary. Memory that is never freed is in no loop.
    """
    events = report.kind("api").with_row_index("row")
    names = names_that(report, lambda name: bucket_of(name) == "allocation")
    text = pl.col("name").cast(pl.String)
    calls = events.filter(pl.col("name").is_in(names)).select(
        *("row", "event_id", "process_id", "thread_id", "correlation_id", "name"),
        text.str.contains(_GIVES).alias("gives"),
        **intervals.OF_EVENTS,
    )
    calls = calls.filter(pl.col("gives") | text.str.contains(_TAKES)).sort("process_id", "start", "row")
    launches = in_order(launch_calls(report, "call_start", "thread_id").drop_nulls(), "call_start")
    parts = (
        _with_rounds(part, launches.filter(pl.col("process_id").eq_missing(process)).get_column("call_start"))
        for (process,), part in calls.partition_by("process_id", as_dict=True).items()
    )
    return pl.concat([_with_rounds(calls.clear(), pl.Series(dtype=pl.Int64)), *parts]).sort("start", "row")


def _with_rounds(calls: pl.DataFrame, launches: pl.Series) -> pl.DataFrame:
    """The calls of one process, in order, with round and launches."""
    turn = (~pl.col("gives") & pl.col("gives").shift(1)).fill_null(value=False)
    numbered = calls.with_columns(round=turn.cum_sum().cast(pl.Int64))
    launched = launches.search_sorted(numbered.get_column("start")).cast(pl.Int64).alias("launched")
    by_round = numbered.with_columns(launched).group_by("round", maintain_order=True)
    surplus = pl.col("gives").sum().cast(pl.Int64) - (~pl.col("gives")).sum()
    rounds = by_round.agg(pl.col("launched").first(), surplus=surplus)
    rounds = rounds.with_columns(launches=pl.col("launched").shift(-1) - pl.col("launched"))
    counting = rounds.filter((pl.col("round") > 0) & (pl.col("launches") > 0) & (pl.col("surplus") >= 0))
    counting = counting.select("round", "launches", turn=pl.int_range(pl.len(), dtype=pl.Int64))
    known = numbered.join(counting, on="round", how="left", maintain_order="left")
    # a program may have several loops, with calls of the same name in between
    apart = pl.col("turn") - pl.col("turn").forward_fill().shift(1) > LOOP_ROUNDS
    known = known.with_columns(loop=apart.fill_null(value=False).cum_sum().over("name"))
    often = pl.col("turn").drop_nulls().n_unique().over("name", "loop") >= LOOP_ROUNDS
    later = pl.col("turn") > pl.col("turn").min().over("name", "loop")
    return known.with_columns(pl.when(often & later).then(pl.col("round", "launches"))).drop("turn", "loop")


_OF: Final = schema.columns("""
    device int?: The GPU; for host memory that of the context.
    process_id int?: Process.
    memory text?: Device, Pinned, Managed, Device Static…
""")
_TOTALS: Final = schema.columns("""
    allocations int: Allocations.
    frees int: Deallocations.
    allocated_bytes int: Sum of the allocations' sizes.
    freed_bytes int: Sum of the sizes of what was given back.
    peak_bytes int: Most that was in use at once.
    peak_at_ns int: When that was first reached.
    held_bytes int: In use at the end of the window or report: never given back until then.
    held int?: How many allocations that is; null where there were some before the first one that is recorded.
    loop_allocations int?: Allocations in the steady state: by calls that take and give back memory over and over
        between launches; null where calls are not recorded, or an allocator keeps what is given back.
    loop_bytes int?: Sum of their sizes.
    pool_peak_bytes int?: Most that one memory pool, or the framework's allocator, held of the device; null for none.
    unmatched int: Deallocations whose allocation is not in the report, which take nothing from what is in use, and
        allocations where an earlier one was not given back, which replace it; where an allocator tells its totals,
        these count.
""")

TABLE: Final = schema.Table(
    "memory",
    "One kind of memory that a process allocated on a device: how often, how much, and the peak.",
    (*_OF, *_TOTALS),
    purpose="memory allocated: peak, how often, how much",
    telling=("memory", "allocations", "frees", "allocated_bytes", "peak_bytes", "held_bytes"),
    groupings=("device", "call"),
    options=("trace",),
)

#: The table that ``by="device"`` gives.
BY_DEVICE: Final = schema.Table(
    "memory",
    "The memory of one device, all processes and kinds that lie on it: " + ", ".join(ON_DEVICE) + ".",
    (schema.Column("device", pl.Int64, "The GPU.", nullable=True), *_TOTALS),
    when="--by device",
)

#: The table that ``trace=True`` gives.
TRACE: Final = schema.Table(
    "memory",
    "One allocation or deallocation, in the order of time, and what is in use after it.",
    (
        schema.Column("t_ns", pl.Int64, "When."),
        *_OF,
        *schema.columns("""
            event text?: Allocation or Deallocation.
            address int: Virtual address.
            size_bytes int: Its size; of a deallocation that of its allocation.
            delta_bytes int?: What it adds to the memory in use; null for a deallocation whose allocation is not in the
                report, unless the allocator tells its totals.
            in_use_bytes int: In use after it, of this device, process and kind of memory.
            device_bytes int?: In use after it on the device, all processes and kinds that lie on it; null for other
                kinds.
            pool int?: Address of the memory pool; null for none.
            pool_size_bytes int?: What the pool holds of the device.
            pool_used_bytes int?: What of that is in use.
        """),
    ),
    when="--trace",
    telling=("t_ns", "event", "memory", "size_bytes", "in_use_bytes"),
)

#: The table that ``by="call"`` gives; it needs no memory events.
BY_CALL: Final = schema.Table(
    "memory",
    "One CUDA call that takes memory or gives it back.",
    (
        schema.Column("call", pl.String, "The call."),
        *statistics.DURATION_COLUMNS,
        *schema.columns("""
            exposed_ns int?: What the devices waited in it: its time in the ledger's allocation bucket; null where no
                device is recorded.
            loop_calls int: Calls in the steady state, which take and give back over and over.
            loop_ns int: Sum of their durations.
            loop_launches int: Launches in the rounds that they are in.
        """),
    ),
    when="--by call",
)


def memory(report: Report, by: str | None = None, *, trace: bool = False, **where: Unpack[Where]) -> pl.DataFrame:
    """The memory allocated in the part of the report in scope.

    Args:
        report: Where to look. Memory in use is counted from the start of the recording, whatever the window.
        by: ``device`` for the sum of all memory on each device; ``call`` for the calls, which need no memory events.
        trace: All allocations and deallocations instead of totals.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, the highest peak first; :data:`BY_DEVICE`, :data:`BY_CALL` or :data:`TRACE`.

    Raises:
        CannotTellError: The report records no allocations; for `call`, no CUDA calls.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, TABLE, by, "api" if by == "call" else "memory")
    if by == "call":
        return _by_call(report)
    low, high = report.scope.sides
    line = intervals.overlapping(in_device_scope(report, _steps(report)), (None, high), "t_ns", "t_ns")
    line = line.with_columns(inside=pl.lit(value=True) if low is None else pl.col("t_ns") >= low)
    if trace:
        there = line.filter("on_device").with_columns(device_bytes=_used(("device",)))
        rows = beside(line, there, "device_bytes").with_columns(
            in_use_bytes=_used(_KEYS),
            delta_bytes=pl.when(pl.col("matched") | ~pl.col("free") | pl.col("told")).then("delta_bytes"),
            event=pl.when("free").then(pl.lit(_NAMES[1])).otherwise(pl.lit(_NAMES[0])),
        )
        return TRACE.select(rows.filter("inside"))
    if by == "device":
        return BY_DEVICE.select(_totals(report, line.filter("on_device"), ("device",)))
    return TABLE.select(_totals(report, line, _KEYS))


def told(rows: pl.DataFrame) -> str:
    """A sentence on the limits of the totals in `rows`; empty if there are none."""
    kept = rows.filter(pl.col("loop_allocations").is_null() & pl.col("pool_peak_bytes").is_not_null())
    if kept.is_empty():
        return ""
    held = kept.select("device", "pool_peak_bytes").iter_rows()
    parts = ", ".join(f"{units.size(most)} of GPU {device}" for device, most in held)
    return f"What the framework's allocator gave out, which held up to {parts}: no CUDA calls."


def _used(keys: tuple[str, ...]) -> pl.Expr:
    """What is in use after each step, by `keys`."""
    return (pl.col("delta_bytes").cum_sum() + pl.col("before_bytes").sum()).over(keys)


def _totals(report: Report, line: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """The columns of :data:`_TOTALS` by `keys`; the peak includes what is in use when the window begins."""
    line = line.with_columns(_in_loop(report, line), in_use=_used(keys))
    low, _ = report.scope.sides
    begun = line.filter(~pl.col("inside")).group_by(keys, maintain_order=True).agg(pl.col("in_use").last())
    carried = begun.with_columns(pl.lit(low, dtype=pl.Int64).alias("t_ns"))
    first = line.group_by(keys, maintain_order=True).agg(pl.col("before_bytes").sum(), pl.col("t_ns").first())
    held = first.filter(pl.col("before_bytes") > 0).with_columns(pl.max_horizontal("t_ns", pl.lit(low)).alias("t_ns"))
    held = held.join(begun, on=keys, how="anti", nulls_equal=True).rename({"before_bytes": "in_use"})
    parts = (held, carried, line.filter("inside"))
    levels = pl.concat([part.select(*keys, "in_use", "t_ns") for part in parts])
    at = pl.col("in_use").arg_max()
    peaks = levels.group_by(keys).agg(peak_bytes=pl.col("in_use").max(), peak_at_ns=pl.col("t_ns").get(at))
    joined = line.group_by(keys).agg(**_sums()).join(peaks, on=keys, nulls_equal=True)
    seen = joined.filter((pl.col("allocations") + pl.col("frees") > 0) | (pl.col("peak_bytes") > 0))
    named = seen.with_columns(pl.col("memory").cast(pl.String)) if "memory" in keys else seen
    return named.sort("peak_bytes", *keys, descending=[True, *(False for _ in keys)])


def _sums() -> dict[str, pl.Expr]:
    inside, frees, matched = pl.col("inside"), pl.col("free"), pl.col("matched")
    allocated, freed = inside & ~frees, inside & frees
    loop, known = allocated & pl.col("loop"), pl.col("loop").is_not_null().any()
    size, whole = pl.col("size_bytes"), pl.col("before_bytes").sum() == 0
    return {
        "allocations": allocated.sum(),
        "frees": freed.sum(),
        "allocated_bytes": size.filter(allocated).sum(),
        "freed_bytes": size.filter(freed).sum(),
        "held_bytes": pl.col("in_use").last(),
        "held": pl.when(whole).then((matched & ~frees).sum().cast(pl.Int64) - (matched & frees).sum()),
        "loop_allocations": pl.when(known).then(loop.sum()),
        "loop_bytes": pl.when(known).then(size.filter(loop).sum()),
        "pool_peak_bytes": pl.col("pool_size_bytes").filter(inside).max(),
        "unmatched": (inside & ~matched).sum(),
    }


def _in_loop(report: Report, line: pl.DataFrame) -> pl.Series:
    """Whether the call behind each step is in a loop; null where calls are not recorded."""
    if "api" not in report.kinds:
        return pl.Series("loop", [None], dtype=pl.Boolean).new_from_index(0, line.height)
    keys = ["process_id", "correlation_id"]
    calls = allocating_calls(report).drop_nulls(["round", *keys]).select(keys).unique()
    marked = line.join(calls.with_columns(loop=pl.lit(value=True)), on=keys, how="left", maintain_order="left")
    # a caching allocator serves allocations without a call
    return marked.select(pl.when(~pl.col("told")).then(pl.col("loop").fill_null(value=False)).alias("loop")).to_series()


def _by_call(report: Report) -> pl.DataFrame:
    seen = report.seen("api").select("event_id")
    calls = of_used_processes(report, allocating_calls(report).join(seen, on="event_id", how="semi"))
    calls = calls.with_columns(dur_ns=pl.col("end") - pl.col("start"), call=shown(pl.col("name")))
    looping = pl.col("round").is_not_null()
    rounds = pl.struct("process_id", "round", "launches").filter(looping).unique()
    sums = calls.group_by("call").agg(
        *statistics.duration_statistics(),
        loop_calls=looping.sum(),
        loop_ns=pl.col("dur_ns").filter(looping).sum(),
        loop_launches=rounds.struct.field("launches").sum(),
    )
    named = sums.with_columns(statistics.share_of_total())
    if set(model.DEVICE_KINDS).intersection(report.kinds):
        rows = bucket_sums(report).filter(pl.col("bucket").cast(pl.String) == "allocation")
        exposed = rows.group_by(call=pl.col("detail")).agg(exposed_ns=pl.col("ns").sum())
        named = named.join(exposed, on="call", how="left").with_columns(pl.col("exposed_ns").fill_null(0))
    return BY_CALL.select(BY_CALL.completed(named).sort("total_ns", "call", descending=[True, False]))
