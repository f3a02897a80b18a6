"""Unified memory that moved between host and devices, by address or by cause; page faults, and round trips of pages."""

from typing import Final, NamedTuple, Unpack

import polars as pl

from kanalyze import intervals, tools
from kanalyze.analyses.device import _operations
from kanalyze.analyses.idle._attribution import host_pieces
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.columns import LARGEST, beside, having, nearest, parts_by, product, rate
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: Directions of migration, and their names in reports.
WAYS: Final = {
    "to device": r"(?i)^unified.*(?:host-to-device|htod)",
    "to host": r"(?i)^unified.*(?:device-to-host|dtoh)",
    "between devices": r"(?i)^unified.*(?:device-to-device|dtod|peer)",
}

#: Causes of migration, each with a pattern of the profiler's label (CUpti_ActivityUnifiedMemoryMigrationCause).
CAUSES: Final = {
    "User prefetch": r"(?i)user",
    "Page fault": r"(?i)fault|coheren",
    "Speculative prefetch": r"(?i)specul",
    "Eviction": r"(?i)evict",
    "Access counters": r"(?i)access",
    "Unknown": "",
}

#: Causes due to page faults: the faulting pages, and those that the driver moved with them.
FAULT_CAUSES: Final = ("Page fault", "Speculative prefetch")

#: Causes of migrations that the program did not request.
UNASKED: Final = (*FAULT_CAUSES, "Eviction")

#: Stands for the host in place of a device number; the next one for an unknown device.
HOST: Final = -1
NOWHERE: Final = -2

#: The columns of :func:`moves`.
_MOVES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(("event_id", "process_id", "device", "dur_ns", "exclusive_ns", "start"), pl.Int64),
    "way": pl.Enum(list(WAYS)),
    "cause": pl.Enum(list(CAUSES)),
    **dict.fromkeys(("address", "size_bytes", "origin", "place"), pl.Int64),
}


@analysis.once_per_report
def moves(report: Report) -> pl.DataFrame:
    """The unified-memory copies in scope that overlap the window, not clipped to it: :data:`_MOVES`.

    exclusive_ns is inside the window, address null if not recorded, origin and place each a device or :data:`HOST`.
    """
    work = _operations.exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    keys = ("row", "event_id", "process_id", "device", "dur_ns", "exclusive_ns", "detail")
    copies = work.filter(having(work.get_column("detail"), "(?i)^unified")).select(*keys, start="began")
    if copies.is_empty():  # the table of processes may be damaged where nothing asks for it
        return pl.DataFrame(schema=_MOVES)
    ends = ("source_device", "target_device")
    moved = _operations.with_facts(report, copies, "address", "size_bytes", "migration_cause", *ends)
    way = _first_match(pl.col("detail"), WAYS)
    named = moved.with_columns(way.alias("way"), _first_match(pl.col("migration_cause"), CAUSES).alias("cause"))
    return _ends(report, named).with_columns(pl.col("size_bytes").fill_null(0)).select(*_MOVES)


def _first_match(label: pl.Expr, words: dict[str, str]) -> pl.Expr:
    """The first of `words` whose pattern the label contains; the last one without a match."""
    text = label.cast(pl.String).fill_null("")
    fits = (pl.when(text.str.contains(pattern)).then(pl.lit(word)) for word, pattern in words.items())
    return pl.coalesce(*fits, pl.lit([*words][-1])).cast(pl.Enum([*words]))


def _ends(report: Report, moved: pl.DataFrame) -> pl.DataFrame:
    """Adds origin and place to `moved`; copies between devices use the process' own device numbers."""
    ordinals = report.processes.select("process_id", "cuda_ordinal", "device").drop_nulls()
    ordinals = ordinals.unique(["process_id", "cuda_ordinal"], keep="first")
    placed = moved
    for end in ("source", "target"):
        named = ordinals.rename({"cuda_ordinal": f"{end}_device", "device": end})
        placed = placed.join(named, on=["process_id", f"{end}_device"], how="left", maintain_order="left")
    to_host, to_device, device = pl.col("way") == "to host", pl.col("way") == "to device", pl.col("device")
    return placed.with_columns(
        origin=pl.when(to_host).then(device).when(to_device).then(HOST).otherwise(pl.col("source").fill_null(NOWHERE)),
        place=pl.when(to_host).then(HOST).when(to_device).then(device).otherwise(pl.coalesce("target", device)),
    )


@analysis.once_per_report
def faults_seen(report: Report) -> pl.DataFrame:
    """The page faults in scope: of processes that used the device in scope, and of the device itself."""
    events = report.seen("fault").select("event_id", "process_id", "device", "start_ns", "dur_ns")
    if report.scope.device is not None:
        own = pl.col("device").is_null() | (pl.col("device") == report.scope.device)
        events = _operations.of_used_processes(report, events).filter(own)
    details = ("side", "address", "faults", "access", "function", "module", "source_file", "source_line")
    texts = ("module", "source_file")  # an empty text means unknown
    events = beside(events, report.table("fault_detail"), *details)
    events = events.with_columns(pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in texts)
    return events.select("event_id", "side", "process_id", "device", *details[1:], **intervals.OF_EVENTS)


@analysis.once_per_report
def faulting_host(report: Report) -> dict[int, pl.DataFrame]:
    """Page faults of the CPU while each device waits for the program's own code, with the piece of such time."""
    faults_of_device = {}
    faults = faults_seen(report).filter(pl.col("side") == "CPU") if "fault" in report.kinds else pl.DataFrame()
    for device, pieces in host_pieces(report).items() if faults.height else ():
        users = _operations.used_devices(report).filter(pl.col("device") == device)
        own = faults.join(users, on="process_id", how="semi").select("faults", "function", at="start")
        inside = nearest(own, pieces.select("start", "end"), ("at", "start"))
        faults_of_device[device] = inside.filter(pl.col("at") < pl.col("end"))
    return faults_of_device


#: Sums of size_bytes by direction, and by the causes that a program can avoid.
_BY_WAY: Final = {"h2d_bytes": "to device", "d2h_bytes": "to host", "d2d_bytes": "between devices"}
_BY_CAUSE: Final = {"fault_bytes": FAULT_CAUSES, "prefetch_bytes": ("User prefetch",), "eviction_bytes": ("Eviction",)}


def sums_of_bytes() -> list[pl.Expr]:
    """The sums of all moves: moves, total_ns and size_bytes; bytes by direction, null without any, and by cause."""
    size, way, cause = pl.col("size_bytes"), pl.col("way"), pl.col("cause")
    return [
        pl.len().cast(pl.Int64).alias("moves"),
        pl.col("dur_ns").sum().alias("total_ns"),
        size.sum(),
        *(pl.when((way == of).any()).then(size.filter(way == of).sum()).alias(name) for name, of in _BY_WAY.items()),
        *(size.filter(cause.is_in(list(words))).sum().alias(name) for name, words in _BY_CAUSE.items()),
    ]


def bandwidth() -> pl.Expr:
    """Bandwidth in bytes per second, from size_bytes and total_ns; null for no time."""
    return rate(pl.col("size_bytes"), pl.col("total_ns")).alias("bandwidth_bytes_per_s")


# Round trips of unified-memory pages, by address, independent of how the driver split migrations into copies.

#: Batch size in pieces of copies, which bounds the memory needed for large reports.
PARTS_AT_ONCE: Final = 1 << 22


class Pages(NamedTuple):
    """The effect of the copies of :func:`moves` on the memory that they moved."""

    again: pl.DataFrame  # bytes of each copy that had moved to the same place before, in scope: event_id, again_bytes
    #: The address ranges that moved, split wherever a copy begins or ends: process_id, start and end (addresses),
    #: round_trips (half of its returns to where it had been before its last move, rounded up), and on_device_ns, the
    #: start of the first copy to a device.
    pieces: pl.DataFrame
    #: For each device, the most round trips of a page that ended with a copy which nobody requested (page fault or
    #: eviction), of returns to one place: device, trips; none of devices without any.
    unasked: pl.DataFrame


@analysis.once_per_report
def pages(report: Report) -> Pages:
    """The traffic of each piece of unified memory; processes do not share addresses."""
    copies = moves(report).filter(pl.col("address") <= LARGEST, pl.col("size_bytes") > 0)
    columns_of = ("event_id again_bytes", "process_id start end round_trips on_device_ns", "device trips")
    again, pieces, trips = ([pl.DataFrame(schema=dict.fromkeys(names.split(), pl.Int64))] for names in columns_of)
    for (process,), part in copies.partition_by("process_id", as_dict=True).items():
        for parts in _cut(part):
            # bytes of each copy that had moved to the same place before
            piece, place = pl.col("start").rle_id().cast(pl.Int64), pl.col("place") - parts.get_column("place").min()
            places = statistics.longest(parts.select(place), "place") + 1
            first = parts.select((piece * places + place).is_first_distinct()).to_series()
            length = pl.col("end") - pl.col("start")
            again.append(parts.select("event_id", again_bytes=pl.when(first).then(0).otherwise(length)))
            runs = _runs(parts)
            # round trips of each piece; then the most of any piece by copies that nobody asked for, by device
            of_piece = runs.group_by("start", maintain_order=True).agg(
                pl.col("end").first(),
                round_trips=(pl.col("returned").sum().cast(pl.Int64) + 1) // 2,
                on_device_ns=pl.col("time").filter(pl.col("place") != HOST).min(),
            )
            pieces.append(of_piece.insert_column(0, pl.lit(process, dtype=pl.Int64).alias("process_id")))
            back = runs.filter(pl.col("returned") & pl.col("unasked")).group_by("device", "start", "place").len("trips")
            trips.append(back.group_by("device").agg(pl.col("trips").max().cast(pl.Int64)))
    # a copy in two batches has a row from each
    sums = pl.concat(again).group_by("event_id").agg(pl.col("again_bytes").sum())
    most = pl.concat(trips).group_by("device").agg(pl.col("trips").max()).sort("device")
    return Pages(sums.sort("event_id"), pl.concat(pieces).sort("process_id", "start"), most)


def _cut(moved: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits the copies of one process at all addresses where any of them begins or ends, in batches of pieces."""
    real = moved.select(
        *("event_id", "device", "origin", "place"),
        pl.col("cause").is_in(list(UNASKED)).alias("unasked"),
        time="start",
        start="address",
        end=pl.col("address") + pl.col("size_bytes"),
    )
    begins, ends = real.get_column("start").sort(), real.get_column("end").sort()
    edges = pl.concat([begins, ends]).unique().sort()
    pieces = pl.DataFrame({"start": edges.slice(0, len(edges) - 1), "end": edges.slice(1)})
    first = pieces.get_column("start")
    depth = begins.search_sorted(first, side="right").cast(pl.Int64) - ends.search_sorted(first, side="right")
    batch = depth.cum_sum() // PARTS_AT_ONCE
    pieces = pieces.with_columns(batch=batch).filter(depth > 0)
    batches = pieces.partition_by("batch", maintain_order=True, include_key=False)
    return [intervals.cut(real, some).sort("start", "time", "event_id") for some in batches]


def _runs(parts: pl.DataFrame) -> pl.DataFrame:
    """`parts` without moves to the current place, with `returned`: whether the piece had been there before."""
    marked = parts.with_columns(new=(pl.col("start") != pl.col("start").shift(1)).fill_null(value=True))
    stays = ~pl.col("new") & (pl.col("place") == pl.col("place").shift(1))
    runs = marked.with_columns(stays=stays).filter(~pl.col("stays"))
    two_back = pl.when(pl.col("new").shift(1)).then(pl.col("origin").shift(1)).otherwise(pl.col("place").shift(2))
    return runs.with_columns(returned=(~pl.col("new") & (pl.col("place") == two_back)).fill_null(value=False))


#: Columns of several tables of unified memory.
*_WITH_HOST, _BETWEEN, _BANDWIDTH = columns("""
    h2d_bytes int?: Moved from host to device; null for none.
    d2h_bytes int?: Moved from device to host; null for none.
    d2d_bytes int?: Moved between devices; null for none.
    bandwidth_bytes_per_s float?: Bytes per second of moving; null where no time was spent.
""")
_BY_CAUSES: Final = columns("""
    fault_bytes int: Moved for page faults, and what the driver moved along with them.
    prefetch_bytes int: Moved because the program asked for it.
    eviction_bytes int: Moved because the device had no room.
""")

TABLE: Final = Table(
    "migrations",
    "One virtual address of unified memory: the copies that begin there, and the page faults at it.",
    (
        Column("process_id", pl.Int64, "Process; addresses are its own.", nullable=True),
        Column("address", pl.Int64, "Virtual address of the first page; null where it is not recorded.", nullable=True),
        *_WITH_HOST,
        *columns("""
            cpu_faults int?: Page faults of the CPU; null for none.
            gpu_faults int?: Page faults of the GPUs; null for none.
            throughput_bytes_per_s int?: The bytes of both, times how often their whole time fits into a second, cut to
                a whole number: as nsys computes it; null where that does not fit 64 bits.
        """),
        _BANDWIDTH,
        _BETWEEN,
        Column("moves", pl.Int64, "Copies that begin at the address."),
        Column("total_ns", pl.Int64, "Sum of their durations."),
        *_BY_CAUSES,
        *columns("""
            again_bytes int: What of all this had moved to the same place before.
            round_trips int?: How often the page at the address went there and back, in whatever copies; null where it
                did not move.
        """),
    ),
    purpose="unified memory that moved, by address",
    telling=("address", "h2d_bytes", "d2h_bytes", "cpu_faults", "gpu_faults", "moves"),
    tools=tools.recorders("fault"),
    equals="nsys stats um_sum, all rows",
    groupings=("cause",),
)

#: The table that ``by="cause"`` gives.
BY_CAUSE: Final = Table(
    "migrations",
    "What moved one way for one cause.",
    (
        Column("cause", pl.String, "Page fault, Speculative prefetch, User prefetch, Eviction… or Unknown."),
        Column("way", pl.String, "To device, to host, or between devices."),
        Column("count", pl.Int64, "Copies."),
        Column("total_bytes", pl.Int64, "Bytes moved."),
        Column("avg_bytes", pl.Float64, "Mean size."),
        Column("median_bytes", pl.Float64, "Median size."),
        Column("min_bytes", pl.Int64, "Smallest."),
        Column("max_bytes", pl.Int64, "Largest."),
        Column("again_bytes", pl.Int64, "What of it had moved to the same place before."),
        Column("total_ns", pl.Int64, "Sum of the durations."),
        _BANDWIDTH,
        Column("exclusive_ns", pl.Int64, "Time in which the device did nothing but this; part of the memcpy bucket."),
    ),
    when="--by cause",
)


def migrations(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The unified-memory migrations in the part of the report in scope.

    Args:
        report: Where to look; copies that overlap its window count in full.
        by: ``cause`` to group by cause instead of address.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, sorted by bandwidth as nsys does; or :data:`BY_CAUSE`, the most bytes first.

    Raises:
        CannotTellError: The report records neither copies nor page faults.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, TABLE, by, "memcpy", "fault")
    moved = moves(report).join(pages(report).again, on="event_id", how="left", maintain_order="left")
    moved = moved.with_columns(pl.col("again_bytes").fill_null(0))
    return _by_address(report, moved) if by is None else _by_cause(moved)


def _by_cause(moved: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("size_bytes")
    sums = moved.group_by("cause", "way").agg(
        pl.len().alias("count"),
        *(getattr(size, of)().alias(f"{of}_bytes") for of in ("mean", "median", "min", "max")),
        pl.col("size_bytes", "again_bytes", "exclusive_ns").sum(),
        total_ns=pl.col("dur_ns").sum(),
    )
    named = sums.with_columns(bandwidth(), total_bytes="size_bytes", avg_bytes="mean_bytes")
    return BY_CAUSE.select(named.sort("total_bytes", "cause", "way", descending=[True, False, False]))


def _by_address(report: Report, moved: pl.DataFrame) -> pl.DataFrame:
    keys, faults = ["process_id", "address"], pl.col("faults")
    between_ns = pl.col("dur_ns").filter(pl.col("way") == "between devices").sum()
    sums = moved.group_by(keys).agg(*sums_of_bytes(), pl.col("again_bytes").sum(), between_ns=between_ns)
    trips = pages(report).pieces.select("process_id", "round_trips", address="start")
    with_trips = sums.join(trips, on=keys, how="left", nulls_equal=True)
    sides = {"cpu_faults": pl.col("side") == "CPU", "gpu_faults": pl.col("side") == "GPU"}
    by_side = {name: pl.when(side.any()).then(faults.filter(side).sum()) for name, side in sides.items()}
    faulted = faults_seen(report).group_by(keys).agg(**by_side)
    joined = with_trips.join(faulted, on=keys, how="full", coalesce=True, nulls_equal=True)
    # as nsys computes it: a second divided by the time in integers, times the bytes moved
    both, time = pl.col("h2d_bytes", "d2h_bytes"), pl.col("total_ns") - pl.col("between_ns")
    any_moved = pl.any_horizontal(both.is_not_null())
    throughput = pl.when(any_moved & (time > 0)).then(product(pl.sum_horizontal(both), 10**9 // time))
    filled = joined.with_columns(
        pl.col("moves", "total_ns", "again_bytes", *_BY_CAUSE).fill_null(0),
        bandwidth(),
        throughput_bytes_per_s=throughput,
    )
    order = {"throughput_bytes_per_s": True, "process_id": False, "address": False}
    return TABLE.select(filled.sort(*order, descending=list(order.values()), nulls_last=[True, False, False]))


TOTALS: Final = Table(
    "migration_totals",
    "All of unified memory, one row; none where nothing of it moved or faulted.",
    (
        *_WITH_HOST,
        Column("cpu_faults", pl.Int64, "Page faults of the CPU; null where they are not recorded.", nullable=True),
        Column("gpu_faults", pl.Int64, "Page faults of the GPUs; null where none is recorded.", nullable=True),
        Column("min_address", pl.Int64, "Lowest address that moved or faulted.", nullable=True),
        Column("max_address", pl.Int64, "Highest address at which a copy begins or that faulted.", nullable=True),
        _BETWEEN,
        Column("moves", pl.Int64, "Copies."),
        Column("total_ns", pl.Int64, "Sum of their durations."),
        Column("exclusive_ns", pl.Int64, "Time in which the devices did nothing but this."),
        _BANDWIDTH,
        *_BY_CAUSES,
        Column("again_bytes", pl.Int64, "What had moved to the same place before."),
        Column("round_trips", pl.Int64, "How often the page that moved most went there and back."),
    ),
    purpose="unified memory that moved, in all",
    telling=("h2d_bytes", "d2h_bytes", "cpu_faults", "gpu_faults", "moves", "total_ns"),
    tools=tools.recorders("fault"),
    equals="nsys stats um_total_sum",
)


@analysis.analysis
def migration_totals(report: Report) -> pl.DataFrame:
    """The totals of unified memory in scope, in one row: :data:`TOTALS`.

    Raises:
        CannotTellError: The report records neither copies nor page faults.
    """
    analysis.require(report, TOTALS, "memcpy", "fault")
    moved, seen = moves(report), faults_seen(report)
    if moved.is_empty() and seen.is_empty():
        return TOTALS.empty()
    addresses = pl.concat([moved.get_column("address"), seen.get_column("address")])
    cpu, gpu = (seen.filter(pl.col("side") == side) for side in ("CPU", "GPU"))
    traffic = pages(report)
    figures = {
        "cpu_faults": cpu.height if "fault" in report.kinds else None,
        "gpu_faults": statistics.total(gpu, "faults") if gpu.height else None,
        "min_address": addresses.min(),
        "max_address": addresses.max(),
        "again_bytes": statistics.total(traffic.again, "again_bytes"),
        "round_trips": traffic.pieces.get_column("round_trips").max() or 0,
    }
    sums = moved.select(*sums_of_bytes(), pl.col("exclusive_ns").sum())
    constants = [pl.lit(value, dtype=pl.Int64).alias(name) for name, value in figures.items()]
    return TOTALS.select(sums.with_columns(bandwidth(), *constants))


FAULTS: Final = Table(
    "faults",
    "The page faults of one CPU function or source line, or of one kernel by device and access.",
    columns("""
        side text: CPU or GPU: who faulted.
        faults int: Page faults.
        function text?: CPU: the function of the instruction. GPU: the kernel that its device was running when the
            handling began; null where none was.
        source_file text?: CPU: source file of the instruction.
        source_line int?: CPU: its line there.
        module text?: CPU: program or library; null where it is not one.
        device int?: GPU: which.
        access text?: GPU: Read, Write, Atomic or Prefetch.
        groups int: Events; the GPU's faults are handled in groups, the CPU's one by one.
        pages int: Different addresses that faulted.
        min_address int: Lowest of them.
        max_address int: Highest of them.
        total_ns int?: GPU: sum of the times in which groups were handled; null for the CPU, whose faults are instants.
        moved_bytes int?: GPU: what page faults moved to the device while these were handled, each copy counted for the
            last group that began before it; null for the CPU.
    """),
    purpose="page faults by function or kernel",
    tools=tools.recorders("fault"),
    equals="nsys stats um_cpu_page_faults_sum (rows of the CPU)",
)

_OF_FAULTS: Final = ("side", "function", "source_file", "source_line", "device", "access")


@analysis.analysis
def faults(report: Report) -> pl.DataFrame:
    """The page faults in scope, those of the CPU first, then by count: :data:`FAULTS`.

    Raises:
        CannotTellError: The report records no page faults.
    """
    analysis.require(report, FAULTS, "fault")
    seen = faults_seen(report)
    on_gpu = pl.col("side") == "GPU"
    # groups of faults of the GPUs, with the kernel running when each began, and the bytes moved meanwhile
    groups = seen.filter(on_gpu).with_columns(total_ns=pl.col("end") - pl.col("start")).sort("start", "event_id")
    groups = groups.with_row_index("group").with_columns(pl.lit(None, dtype=pl.Categorical).alias("function"))
    to_device = pl.col("cause").is_in(list(FAULT_CAUSES)) & (pl.col("way") == "to device")
    place = ["process_id", "device"]
    moved = moves(report).filter(to_device).select(*place, "size_bytes", at="start")
    held = nearest(moved, groups.select(*place, "group", "start", "end"), ("at", "start"), place)
    carried = held.filter(pl.col("at") < pl.col("end")).group_by("group").agg(moved_bytes=pl.col("size_bytes").sum())
    together = _with_kernels(report, groups, place).join(carried, on="group", how="left")
    rows = pl.concat([seen.filter(~on_gpu), together.with_columns(pl.col("moved_bytes").fill_null(0))], how="diagonal")
    sums = rows.group_by(_OF_FAULTS).agg(
        pl.col("faults").sum(),
        pl.when(pl.col("module").n_unique() == 1).then(pl.col("module").first()).alias("module"),
        pl.len().cast(pl.Int64).alias("groups"),
        pl.col("address").n_unique().cast(pl.Int64).alias("pages"),
        pl.col("address").min().alias("min_address"),
        pl.col("address").max().alias("max_address"),
        *(statistics.known_sum(name) for name in ("total_ns", "moved_bytes")),
    )
    keys, texts = _OF_FAULTS[1:], pl.col("function", "source_file", "access").cast(pl.String)
    order = [False, True, *(False for _ in keys)]
    return FAULTS.select(sums.with_columns(texts).sort("side", "faults", *keys, descending=order))


def _with_kernels(report: Report, groups: pl.DataFrame, place: list[str]) -> pl.DataFrame:
    """The groups with the name of the kernel of their process and device that owned the instant at which each began."""
    ran = _operations.operations(report).filter(pl.col("kind").is_in(["kernel", "graph"])).sort("start", "event_id")
    lines = [intervals.first_come(ran.clear()), *map(intervals.first_come, parts_by(ran, place).values())]
    kernels = pl.concat(lines).filter(pl.col("own_end") > pl.col("own_start"))
    kernels = kernels.select(*place, "own_start", "own_end", function="name")
    placed = nearest(groups.drop("function"), kernels, ("start", "own_start"), place)
    owned = pl.when(pl.col("own_end") > pl.col("start")).then("function")
    return placed.with_columns(function=owned).select(groups.columns)
