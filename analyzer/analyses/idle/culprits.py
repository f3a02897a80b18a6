"""Idle time of the ledger by culprit; host time while a device waited by state, by function, and as a tree of calls.

Definitions: docs/definitions.md, section 5, "Host time by state".
"""

from collections.abc import Iterator
from typing import Final, Unpack

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import machinery, model
from kanalyze.analyses.device._windows import share_of_window
from kanalyze.analyses.host._range_lines import framework_recorded, stack_names
from kanalyze.analyses.host._thread_timeline import EVIDENCE, KEYS, NEEDED, STATES, records_waits, told_parts
from kanalyze.analyses.idle import _attribution, _idle_parts
from kanalyze.analyses.operators import _host_names, _host_tree
from kanalyze.analyses.shared import analysis, threads
from kanalyze.columns import gathered, mixed, parts_by
from kanalyze.errors import CannotTellError
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

with machinery.late():  # of reports with system calls or the scheduler
    from kanalyze.analyses.host import _causes

#: File and function in the name of what a trace's thread was in: ``aten::to in train.py(31): step``.
_TRACED: Final = r"^(?:.* in )?([^ ]+)\(\d+\): (.+)$"


def host_spans(report: Report) -> Iterator[tuple[int, threads.ThreadKey, pl.DataFrame]]:
    """Host time while a device in scope waited: device, the thread waited for, and its span set."""
    for device, pieces in _attribution.host_pieces(report).items():
        for key, part in _attribution.by_thread(report, pieces):
            yield device, key, part.select("start", "end")


@analysis.once_per_report
def waiting_host(report: Report) -> pl.DataFrame:
    """Host time while a device in scope waited: :data:`PARTS`; the rows of a device sum to its bucket `host`."""
    spans, waits, causes = [], dict[threads.ThreadKey, pl.DataFrame](), pl.Series("cause", [], dtype=pl.String)
    if records_waits(report):
        waits, causes = _causes.cause_lines(report), _causes.told_causes(report).get_column("cause")
    for number, key, part in host_spans(report):
        cut = threads.overlaid(part, threads.line_of(waits, key), "row")
        cause = gathered(causes, cut.get_column("row"))
        spans.append((key, cut.select("start", "end", cause.alias("waits_for"), device=pl.lit(number, pl.Int64))))
    return told_parts(report, spans)


def _by_traced_function(report: Report) -> pl.DataFrame:
    """The same of a trace with Python functions or operators: by its own name of what the thread was in."""
    host = _attribution.named_sums(report).filter(pl.col("bucket").cast(pl.String) == "host")
    text = pl.col("culprit").cast(pl.String)
    function, module = pl.coalesce(text.str.extract(_TRACED, 2), text), text.str.extract(_TRACED, 1)
    rows = host.select("device", "ns", function=function, module=module)
    sums = rows.group_by("device", "function", "module").agg(pl.col("ns").sum())
    return sums.with_columns(state=pl.lit("unknown"), evidence=pl.lit("trace"), samples=pl.lit(0))


def named_parts(report: Report) -> pl.DataFrame:
    """The parts of :func:`waiting_host` with function, module and chain instead of the stack.

    What waits in a function of torch's DataLoader waits for one of its workers.
    """
    parts = waiting_host(report).join(stack_names(report), on="stack_id", how="left", maintain_order="left")
    loads = pl.col("loads").fill_null(value=False) & pl.col("state").is_in(["blocked", "off processor"])
    named = parts.with_columns(waits_on=pl.when(loads).then(pl.lit("DataLoader worker")).otherwise("waits_on"))
    return named.drop("loads")


#: Schema of a node: its row is its number; the node around it or null, how many samples tell of it, its time with that
#: of all nodes in it, and how many nodes it stands for.
NODES: Final[dict[str, DataType | DataTypeClass]] = {
    "parent": pl.Int64,
    "kind": pl.String,
    "name": pl.String,
    **dict.fromkeys(("count", "ns", "nodes"), pl.Int64),
}

#: A row of a stack: the part of the time that it is of, the row around it, its kind and name.
_ROWS: Final = {"part": pl.UInt32, "parent": pl.Int64, "kind": pl.String, "name": pl.String}


def waiting_trees(report: Report, min_share: float) -> dict[int, pl.DataFrame]:
    """The tree of each device in scope whose host time some stack tells of: :data:`NODES`, the largest first.

    The nodes without a parent sum to the device's bucket `host`; of a parent's nodes those below `min_share` of that
    are one of kind ``rest``, without a name.
    """
    if framework_recorded(report):
        nodes = _of_trace(report)
    elif report.table("stack_frames").is_empty():
        return {}
    else:
        nodes = _of_stacks(report)
    devices = nodes.filter(~pl.col("kind").is_in(["none", "state"])).get_column("device").unique()
    kept = nodes.filter(pl.col("device").is_in(devices.implode())).sort("device")
    return {key[0]: _pruned(part, min_share) for key, part in parts_by(kept, ["device"]).items()}


def _of_stacks(report: Report) -> pl.DataFrame:
    """Nodes from samples and stacks of calls: device, path, outer, kind, name, count, ns."""
    parts = named_parts(report).with_row_index("part")
    # the innermost row of each part is its state, system call and what that waits for
    state, call, waits = (pl.col(name).cast(pl.String) for name in ("state", "call", "waits_on"))
    blocked = pl.when(state == "blocked").then(pl.format("{} in {}", state, call))
    doing = pl.when(call.is_null()).then(state).otherwise(blocked.otherwise(pl.format("{} {}", state, call)))
    waits = pl.concat_str([waits, "waits_for"], separator=": ", ignore_nulls=True)
    on = pl.when((waits != "") & state.is_in(["blocked", "off processor"])).then(pl.format(" ({})", waits))
    name = pl.concat_str([doing, on], ignore_nulls=True)
    leaves = parts.select("part", level=pl.lit(1, dtype=pl.Int64), kind=pl.lit("state"), name=name)
    rows = pl.concat([_frames(report, parts), leaves]).sort("part", "level")
    first = pl.col("part") != pl.col("part").shift(1).fill_null(parts.height)
    rows = rows.with_columns(parent=pl.when(~first).then(pl.int_range(pl.len(), dtype=pl.Int64) - 1)).select(*_ROWS)
    return _merged(rows.join(parts.select("part", "device", "ns", count="samples"), on="part", maintain_order="left"))


def _frames(report: Report, parts: pl.DataFrame) -> pl.DataFrame:
    """The functions of the stack of each part, the outermost with the least level: part, level, kind, name.

    Functions without a symbol that call each other in one module are one. A part without a stack has a row of its own.
    """
    used = parts.select("part", "stack_id").drop_nulls()
    frames = report.table("stack_frames").filter(pl.col("stack_id").is_in(used.get_column("stack_id").implode()))
    module = pl.col("module").cast(pl.String).str.extract(r"([^/\\]+)[/\\]*$")
    function = pl.col("function").cast(pl.String)
    functions = frames.sort("stack_id", "depth", descending=[False, True]).select(
        "stack_id",
        level=-pl.col("depth").cast(pl.Int64),
        kind=pl.when(pl.col("line").is_not_null()).then(pl.lit("python")).otherwise(pl.lit("native")),
        name=pl.concat_str([function.fill_null("?"), module], separator=" in ", ignore_nulls=True),
        unknown=function.is_null(),
    )
    same = [pl.col(name) == pl.col(name).shift(1) for name in ("stack_id", "name", "unknown")]
    functions = functions.filter(~(pl.all_horizontal(same) & pl.col("unknown")).fill_null(value=False))
    rows = used.join(functions, on="stack_id").select("part", "level", "kind", "name")
    missing = parts.filter(~pl.col("part").is_in(rows.get_column("part").unique().implode()))
    untold = pl.col("evidence") == "none"
    word = pl.when(untold).then(pl.lit("not sampled")).otherwise(pl.lit("sampled without a stack"))
    alone = missing.select("part", level=pl.lit(0, dtype=pl.Int64), kind=pl.lit("none"), name=word)
    return pl.concat([rows, alone])


def _of_trace(report: Report) -> pl.DataFrame:
    """Nodes from the operators, annotations and Python functions of a trace: as :func:`_of_stacks`."""
    tree = _host_tree.host_tree(report)
    rows = tree.rows.with_columns(_host_tree.plain_names(tree.rows))
    events = rows.with_row_index("row").filter(pl.col("kind").is_in(_host_tree.FRAMEWORK_KINDS))
    lines = threads.innermost_lines(events.select(*threads.THREAD, "start", "end", "row"))
    pieces: dict[int, list[pl.DataFrame]] = {}
    for device, key, spans in host_spans(report):
        cut = threads.overlaid(spans, threads.line_of(lines, key), "row")
        cut = cut.select(pl.col("row").cast(pl.Int64), ns=pl.col("end") - pl.col("start"))
        pieces.setdefault(device, []).append(cut)
    nodes = [_merged(pl.DataFrame(schema=_ROWS | {"device": pl.Int64, "ns": pl.Int64, "count": pl.Int64}))]
    for device, cuts in pieces.items():
        all_cuts = pl.concat(cuts)
        own_ns = _host_tree.sums_by(all_cuts.get_column("row"), all_cuts.get_column("ns"), rows.height)
        columns = {"device": pl.lit(device, dtype=pl.Int64), "count": pl.lit(0, dtype=pl.Int64)}
        named_rows = rows.select("parent", pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String), **columns)
        nodes.append(_merged(named_rows.with_columns(_host_tree.in_subtrees(rows, own_ns).alias("ns"))))
        lost = all_cuts.filter(pl.col("row").is_null()).get_column("ns").sum()
        none = {"path": 1, "outer": 0, "kind": "none", "name": "in no operator or function", "count": 0, "ns": lost}
        nodes.append(pl.DataFrame([none | {"device": device}], schema=nodes[0].schema))
    return pl.concat([part.select(nodes[0].columns) for part in nodes]).filter(pl.col("ns") > 0)


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a tree (parent, device, kind, name, count, ns) merged by their path: device, path, outer and others."""
    included = pl.Series([True], dtype=pl.Boolean).new_from_index(0, rows.height)
    paths = _host_tree.path_numbers(rows, included, rows.select(mixed(["kind", "name"])).to_series())
    outer = paths.gather(rows.get_column("parent")).fill_null(0)
    placed = rows.with_columns(paths.alias("path"), outer.alias("outer")).filter(pl.col("ns") > 0)
    first = [pl.col(name).first() for name in ("outer", "kind", "name")]
    return placed.group_by("device", "path", maintain_order=True).agg(*first, pl.col("count", "ns").sum())


def _pruned(nodes: pl.DataFrame, min_share: float) -> pl.DataFrame:
    """The nodes of one device without the small ones: :data:`NODES`."""
    whole = int(nodes.filter(pl.col("outer") == 0).get_column("ns").sum())
    large = (pl.col("ns") >= min_share * whole) | (pl.col("kind") == "none")
    kept = nodes.filter(large).with_columns(nodes=pl.lit(1, dtype=pl.Int64))
    inside = (pl.col("outer") == 0) | pl.col("outer").is_in(kept.get_column("path").implode())
    small = nodes.filter(~large & inside).group_by("outer", maintain_order=True)
    sums = small.agg(pl.col("count", "ns").sum(), nodes=pl.len().cast(pl.Int64))
    every = pl.concat([kept, sums.with_columns(kind=pl.lit("rest"))], how="diagonal")
    ordered = every.sort("ns", "name", descending=[True, False])
    numbers = ordered.select(outer="path", parent=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls()
    numbered = ordered.join(numbers, on="outer", how="left", maintain_order="left")
    return numbered.select(pl.col(name).cast(kind) for name, kind in NODES.items())


TABLE: Final = Table(
    "culprits",
    "One reason for which a device was idle, by name; the rows of a bucket sum to the ledger's.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.Enum(_idle_parts.IDLE), "The ledger's bucket: " + ", ".join(_idle_parts.IDLE) + "."),
        *columns("""
            culprit text?: host: the innermost operator, annotation or Python function of a trace, else the innermost
                range, else what the trace of its capture has between the same launches, or the calls around; launch:
                the operation that was launched; queued: what the operation waited for; profiler: its own word; else the
                call. Null: no name.
            range text?: Innermost range that the thread was in, from a launch call on the one that the call began in;
                ProfilerStep* for every step of torch's profiler.
            ns int: Time.
            share float: Part of the device's window.
            gaps int: In how many gaps.
            longest_ns int: The most in one gap.
        """),
        _host_names.ALIGNED,
    ),
    purpose="who had the idle time: call, event and range",
    telling=("bucket", "ns", "share", "gaps"),
    groupings=("state", "function"),
)

_STATE: Final = (
    Column(
        "state",
        pl.Enum(STATES),
        "What the thread was doing that the device waited for: running; in a system call, on a processor or unknown "
        "where; runnable, as other threads had its processor; blocked in a system call; off processor in no traced "
        "call; unknown where the scheduler was not recorded.",
    ),
    *columns("""
        waits_on text?: What the system call waits for, by its name and stack: lock, condition, sleep, DataLoader
            worker…
        waits_for text?: What the thread did that it waited for, and its thread, or its process if that is another one,
            as in `host_waits`; null where that is not known.
        call text?: The system call.
    """),
)

_PARTS: Final = columns("""
    ns int: Time.
    share float: Part of the device's window.
    host_share float: Part of the device's bucket `host`.
""")

#: The table that ``by="state"`` gives.
BY_STATE: Final = Table(
    "culprits",
    "What a host thread was doing while a device waited for it; the rows of a device sum to its bucket `host`.",
    (Column("device", pl.Int64, "The GPU, as in `devices`."), *_STATE, *_PARTS),
    telling=("state", "waits_on", "waits_for", "call", "ns", "host_share"),
    when="--by state",
)

#: The table that ``by="function"`` gives.
BY_FUNCTION: Final = Table(
    "culprits",
    "A function of a host thread while a device waited for it; the rows of a device sum to its bucket `host`.",
    (
        *columns("""
            device int: The GPU, as in `devices`.
            function text?: Innermost function of the program's own, else the innermost with a name; null where no
                sample tells.
            module text?: Its program, library or Python file.
        """),
        *_STATE,
        Column("chain", pl.String, "The program's own functions to it, of most of the time.", nullable=True),
        Column("evidence", pl.Enum(EVIDENCE), "What tells the function, of most of the time."),
        Column("samples", pl.Int64, "How many samples tell it."),
        *_PARTS,
    ),
    telling=("function", "state", "waits_on", "waits_for", "ns", "host_share", "chain"),
    when="--by function",
)


def culprits(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Idle time of each device by bucket, culprit and range.

    Args:
        report: The report.
        by: ``state`` splits the bucket `host` by what the thread was doing, ``function`` by its function as well.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`BY_STATE` or :data:`BY_FUNCTION`, by device and time, the longest first.

    Raises:
        CannotTellError: The report records no device operations at all; or, with `by`, neither samples nor the
            scheduler nor system calls.
        UnknownNameError: There is no such grouping.
    """
    analysis.check_grouping(TABLE, by)
    return _by_culprit(report, **where) if by is None else _of_threads(report.narrow(**where), by)


def _of_threads(report: Report, by: str) -> pl.DataFrame:
    """The bucket `host` by what its threads did: :data:`BY_STATE` or :data:`BY_FUNCTION`."""
    analysis.require(report, f"culprits by {by}", *model.DEVICE_KINDS)
    form, traced = BY_STATE if by == "state" else BY_FUNCTION, by == "function" and framework_recorded(report)
    recorded = traced or "osrt" in report.kinds or any(report.table(name).height for name in NEEDED)
    if not recorded and not _sampled(report):
        raise CannotTellError.without(f"culprits by {by}", report.meta.path, ["osrt", "samples"], report.meta.tool)
    if form is BY_STATE:
        sums = named_parts(report).group_by(KEYS).agg(pl.col("ns").sum())
    elif traced:
        sums = _by_traced_function(report)
    else:  # with the chain, evidence and samples of most of a function's time
        most = named_parts(report).sort("ns", descending=True, maintain_order=True)
        facts = pl.col("chain").drop_nulls().first(), pl.col("evidence").first(), pl.col("samples", "ns").sum()
        sums = most.group_by(*KEYS, "function", "module", maintain_order=True).agg(facts)
    share = pl.col("ns") / pl.col("ns").sum().over("device").clip(lower_bound=1)
    shares = form.completed(sums.with_columns(share_of_window(report), host_share=share))
    others = [name for name in ("function", "module", "state", "waits_on", "waits_for", "call") if name in form.schema]
    return form.select(shares.sort("device", "ns", *others, descending=[False, True, *(False for _ in others)]))


def own_samples(report: Report) -> bool:
    """Whether there are samples of the host, of native code or Python."""
    return bool(report.table("python_samples").height) or _sampled(report)


@analysis.once_per_process
def _sampled(report: Report) -> bool:
    """Whether there are CPU samples."""
    return bool(report.mapped("cpu_samples", lambda part: part.select(pl.len())).to_series().sum())


@analysis.analysis
def _by_culprit(report: Report) -> pl.DataFrame:
    """Idle time of each device by bucket, culprit and range: :data:`TABLE`."""
    analysis.require(report, TABLE, *model.DEVICE_KINDS)
    sums = _attribution.named_sums(report).with_columns(share_of_window(report))
    named = _host_names.with_shares(report, sums, "bucket")
    order = ["device", "ns", "bucket", "culprit", "range"]
    return TABLE.select(named).sort(order, descending=[name == "ns" for name in order])
