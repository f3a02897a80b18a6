"""Recorded attributes of each collective: kind, group, sizes, and its name on all ranks; and who came last to it.

Waiting and transfer of collectives whose ranks are all in one report are told in the ledger of its devices. Definition:
docs/definitions.md, section 11, "Waiting". Ranks of one report share its clock.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from kanalyze import columns, intervals, machinery
from kanalyze.analyses.device._operations import decoded, operations, with_facts
from kanalyze.analyses.operators.fusion import inputs_of
from kanalyze.analyses.shared import analysis, threads
from kanalyze.report import Report

with machinery.late():  # of reports with collectives
    from kanalyze.reduction import tables as reduced

#: Kinds that run as a kernel of sends and receives.
BY_PAIRS: Final = ("send", "recv", "all_to_all", "gather", "scatter")


def sums_of_calls(calls: pl.DataFrame, kernels: pl.DataFrame, more: Sequence[str] = ()) -> pl.DataFrame:
    """Sums of the calls of each kernel: event_id, kind, group, size, own, source, target, in_bytes, out_bytes.

    `calls` has the thread (process_id, thread_id), start_ns, kind, group, size, own, peer, root and bytes; `kernels`
    the thread, event_id, device, kind and call_start. Columns `more` of calls are told too, of the first. Each call
    belongs to the next kernel that its thread launched: at once, or where the group of calls ends. What a thread calls
    for several GPUs before it launches a kernel on each goes in equal parts to them, as they come.
    """
    ordered = calls.sort("start_ns").with_columns(at="start_ns", called=pl.lit(value=True))
    launched = kernels.drop_nulls("call_start").select(
        *threads.THREAD, "event_id", "device", kind_of_kernel="kind", at="call_start", called=pl.lit(value=False)
    )
    key, called, place = [*threads.THREAD, "batch"], pl.col("called"), pl.int_range(pl.len(), dtype=pl.Int64)
    begins = called & ~called.shift(1, fill_value=False).over(threads.THREAD)
    lines = pl.concat([ordered, launched], how="diagonal").sort("at", maintain_order=True)
    lines = lines.with_columns(batch=begins.cast(pl.Int64).cum_sum().over(threads.THREAD)).with_columns(
        place=place.over(*key, "called"),
        calls=called.cast(pl.Int64).sum().over(key),
        ran=(~called).cast(pl.Int64).sum().over(key),
        devices=pl.col("device").drop_nulls().n_unique().over(key),
    )
    each = (pl.col("calls") // pl.col("ran")).clip(lower_bound=1)
    shared = (pl.col("devices") == pl.col("ran")) & (pl.col("calls") % pl.col("ran") == 0)
    kernel = pl.when(pl.col("devices") == 1).then(0).when(shared).then(pl.col("place") // each)
    ran = lines.filter(~called).select(*key, "event_id", "kind_of_kernel", kernel="place")
    own = lines.filter(called).select(*ordered.columns, "batch", kernel=kernel.cast(pl.Int64))
    in_pairs = pl.col("kind").is_in(BY_PAIRS) & (pl.col("kind_of_kernel") == "send_recv")
    fits = (pl.col("kind") == pl.col("kind_of_kernel")) | in_pairs
    joined = own.join(ran, on=[*key, "kernel"], how="inner").filter(fits)
    return joined.group_by("event_id").agg(*_of_calls(), pl.col(more).first())


def _of_calls() -> list[pl.Expr]:
    """Sums of the calls of one kernel."""
    kind, bytes_ = pl.col("kind"), pl.col("bytes")
    sends, receives = kind == "send", kind == "recv"
    single = pl.len() == 1
    alike = (kind.n_unique() == 1) & (single | ~(sends | receives).any())
    gives, gets = ~receives & (kind != "reduce_scatter"), ~sends & ~kind.is_in(["all_gather", "all_to_all"])
    own, peer, root, size = (pl.col(name).first() for name in ("own", "peer", "root", "size"))
    elsewhere = pl.col("peer") != pl.col("own")
    partners = [pl.col("peer").filter(way & elsewhere).n_unique() + 1 for way in (sends, receives)]
    # two ranks do so in a pipeline, too, but neither sends anything to itself there
    exchange = (sends | receives).all() & (pl.min_horizontal(partners) == size) & ((size > 2) | (~elsewhere).any())  # noqa: PLR2004
    # what a rank keeps is a part, too, also where it does not send it to itself
    kept = exchange & elsewhere.all()
    up, down = (pl.when(kept).then(ranks).otherwise(1) for ranks in (size, size - 1))
    times = pl.when((kind == "all_to_all").first()).then(size).otherwise(1)
    # what goes between the same two ranks in both directions is between the lower and the higher one
    between = (sends | receives).all() & (pl.col("peer").n_unique() == 1) & ~single
    low, high = pl.min_horizontal(own, peer), pl.max_horizontal(own, peer)
    both = between & own.is_not_null() & peer.is_not_null()
    others = pl.when(exchange).then(pl.lit("all_to_all")).otherwise(pl.lit("send_recv"))
    sent, got = single & sends.first(), single & receives.first()
    source = pl.when(sent).then(own).when(got).then(peer).when(both).then(low).otherwise(root)
    target = pl.when(got).then(own).when(sent).then(peer).when(both).then(high).otherwise(root)
    return [
        pl.when(alike).then(kind.first()).otherwise(others).alias("kind"),
        pl.col("group", "size", "own").first(),
        source.alias("source"),
        target.alias("target"),
        pl.when(gives.any()).then(bytes_.filter(gives).sum() * times * up // down).alias("in_bytes"),
        pl.when(gets.any()).then(bytes_.filter(gets).sum() * up // down).alias("out_bytes"),
    ]


#: Kinds as they are called everywhere, by how the tools call them in lower case without ``_`` and ending.
_KINDS: Final = {
    kind.replace("_", ""): kind
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
                 "send", "recv", "send_recv", "barrier", "coalesced")
} | {"alltoallv": "all_to_all", "isend": "send", "irecv": "recv", "recvanysource": "recv"}  # fmt: skip
_ENDING: Final = r"_?(?:base|into_tensor|tensor|single|coalesced|out|oop|sparse)$"

#: Bytes of an element, by the framework's names and those of kernels.
_ELEMENT_BYTES: Final = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "uint16": 2, "uint32": 4, "uint64": 8,
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i8": 1, "u8": 1, "u32": 4, "u64": 8,
}  # fmt: skip

#: Fields that a kernel takes from the operator that launched it, where it has none itself.
_FIELDS: Final = (
    "collective", "type", "in_elements", "out_elements", "group_size", "group", "ranks", "first_rank", "rank_stride",
    "rank", "source_rank", "target_rank", "in_split", "out_split", "sequence_number", "comms_id",
)  # fmt: skip

_OF_GROUP: Final = ("group", "size", "ranks", "own")


def collectives_of(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Recorded attributes of communication kernels, rows (row, event_id) of the operations, in their order.

    A kernel whose launch was not recorded has the group of the others on its stream, where these have one. What is
    between two ranks has their number as its size, whatever the size of the group.
    """
    named = ("event_id", "name", "stream", "device", "parent_id", "process_id")
    kernels = with_facts(report, work.select("row"), *named)
    collectives = _told_by_nccl(report, kernels) if report.meta.recorder.nvtx else _told_by_trace(report, kernels)
    ranks = kernels.get_column("name").cast(pl.String).str.extract(_OF_EXPERTS)
    known = pl.all_horizontal(pl.col("source", "target").is_not_null())
    two = pl.when(pl.col("kind").is_in(["send", "recv", "send_recv"]) & known).then(2)
    collectives = _with_group_of_stream(collectives, ranks).with_columns(size=two.otherwise("size"))
    return collectives.cast({name: reduced.COLLECTIVES.schema[name] for name in collectives.columns[2:]})


def collectives_on_cpu(report: Report) -> pl.DataFrame:
    """The collectives that gloo ran, as annotations: process_id, kind, group, start_ns, dur_ns, in_bytes, out_bytes.

    Sizes are those of the tensors that a rank gives (of a receive, gets), where shapes were recorded.
    """
    ranges = report.kind("range").filter(pl.col("name").cast(pl.String).str.starts_with(_GLOO))
    inputs = report.table("op_detail").select("event_id", pl.col("input_shapes", "input_types").cast(pl.String))
    recorded = ranges.join(inputs, on="event_id", how="left", maintain_order="left")
    recorded = _with_kind(recorded, pl.col("name").cast(pl.String))
    tensors = recorded.select("input_shapes", "input_types").iter_rows()
    sized = recorded.with_columns(bytes=pl.Series([tensor_bytes(*row) for row in tensors], dtype=pl.Int64))
    gets, moves = pl.col("kind") == "recv", pl.col("kind") != "barrier"
    return sized.select(
        *("process_id", "start_ns", "kind"),
        group=pl.lit(_GLOO.rstrip(":")),
        dur_ns=pl.col("dur_ns").fill_null(0),
        in_bytes=pl.when(moves & ~gets).then("bytes"),
        out_bytes=pl.when(gets).then("bytes"),
    )


def tensor_bytes(shapes: str | None, types: str | None) -> int | None:
    """The bytes of tensors by dimensions and types, JSON lists as PyTorch records them; None if not all are known."""
    inputs = inputs_of(shapes, types, None, None)
    if not inputs or not all(inputs):
        return None
    whole = sum(one.stored * one.element_bytes for tensors in inputs for one in tensors)
    # no tensor of a machine is larger: that was not a size
    return whole if whole <= 1 << 46 else None


#: What the annotations of gloo's collectives begin with.
_GLOO: Final = "gloo:"


def _told_by_trace(report: Report, kernels: pl.DataFrame) -> pl.DataFrame:
    """Attributes from a trace: arguments of the kernel, else of the operator that launched it."""
    details = report.table("collective_detail").select("event_id", *_FIELDS)
    details = details.with_columns(pl.col(pl.Categorical).cast(pl.String))
    attributes = kernels.join(details, on="event_id", how="left", maintain_order="left").join(
        details, left_on="parent_id", right_on="event_id", how="left", maintain_order="left", suffix="_of_op"
    )
    attributes = attributes.with_columns(pl.coalesce(name, f"{name}_of_op").alias(name) for name in _FIELDS)
    named = decoded(report, attributes, "operation")
    named = _with_kind(named, pl.coalesce("collective", pl.col("operation").cast(pl.String)))
    sends, receives = pl.col("kind") == "send", pl.col("kind") == "recv"
    return _with_grouped_ops(report, _with_place(report, named)).select(
        *("event_id", "stream", "kind", "group"),
        pl.col("group_size").alias("size"),
        *("ranks", "own"),
        pl.when(sends).then("own").otherwise("source_rank").alias("source"),
        pl.when(receives).then("own").otherwise("target_rank").alias("target"),
        pl.col("sequence_number").alias("sequence"),
        pl.col("comms_id").alias("id"),
        "type",
        *(pl.coalesce(pl.col(f"{side}_elements") * pl.col("each"), f"{side}_bytes").alias(f"{side}_bytes")
          for side in ("in", "out")),
        pl.struct("in_split", "out_split", "in_elements", "out_elements", "rank", "each")
        .map_elements(_largest_of, return_dtype=pl.Int64).alias("largest_bytes"),
    )  # fmt: skip


def _with_kind(frame: pl.DataFrame, called: pl.Expr) -> pl.DataFrame:
    """The rows with their `kind`, by what a tool calls each."""
    return frame.with_columns(kind=columns.told_of(frame.select(called).to_series(), kind_of).fill_null("other"))


def _with_place(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Calls of a trace with the ranks of their group, the report's rank in that, and the bytes `each` of an element."""
    kind = pl.col("type").str.to_lowercase()
    known = kind.replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    each = pl.when(kind.str.starts_with("float8")).then(1).otherwise(known)
    group = pl.struct("ranks", "kind", "rank")
    own = group.map_elements(lambda row: _place(row, report.meta.rank), return_dtype=pl.Int64)
    return calls.with_columns(each=each, ranks=_members()).with_columns(own=own)


def _with_grouped_ops(report: Report, collectives: pl.DataFrame) -> pl.DataFrame:
    """Fills what is told of kernels of several sends and receives: by the operators that their thread ran before.

    Such calls are put together, as by batch_isend_irecv, and no operator encloses the launch where their group ends.
    """
    alone = pl.col("group_size").is_null() & pl.col("kind").is_in(["send_recv", *BY_PAIRS])
    none = [pl.lit(None, dtype=pl.Int64).alias(name) for name in ("in_bytes", "out_bytes")]
    if collectives.filter(alone).is_empty():
        return collectives.with_columns(none)
    calls = _calls_of_ops(report)
    launched = _launched(report).with_columns(kind=pl.lit("send_recv"))
    sums = sums_of_calls(calls, launched, ["ranks"]).rename({"size": "group_size"})
    sums = sums.rename({"source": "source_rank", "target": "target_rank"})
    unfilled = collectives.with_columns(none)
    filled = unfilled.join(sums, on="event_id", how="left", maintain_order="left", suffix="_of_ops")
    names = [name.removesuffix("_of_ops") for name in filled.columns if name.endswith("_of_ops")]
    return filled.with_columns(
        pl.when(alone & pl.col("group_size_of_ops").is_not_null()).then(f"{name}_of_ops").otherwise(name).alias(name)
        for name in names
    )


@analysis.once_per_process
def _launched(report: Report) -> pl.DataFrame:
    """All communication kernels, also of other devices: event_id, name, process_id, device, thread_id, call_start."""
    work = operations(report).filter(pl.col("bucket") == "communication")
    kernels = work.select("row", "event_id", "name", "process_id", "device")
    return with_facts(report, kernels, "thread_id", "call_start")


def _calls_of_ops(report: Report) -> pl.DataFrame:
    """Operators that send or receive, as the calls of :func:`sums_of_calls`, with the ranks of their group."""
    ops = report.kind("op").select("event_id", "process_id", "thread_id", "start_ns")
    details = report.table("collective_detail").with_columns(pl.col(pl.Categorical).cast(pl.String))
    calls = details.join(ops, on="event_id", how="inner")
    calls = _with_kind(calls, pl.col("collective")).filter(pl.col("kind").is_in(["send", "recv"]))
    return _with_place(report, calls).select(
        *(*threads.THREAD, "start_ns", "kind", "group", "ranks", "own"),
        size="group_size",
        peer=pl.coalesce(pl.when(pl.col("kind") == "send").then("target_rank").otherwise("source_rank"), "rank"),
        root=pl.lit(None, dtype=pl.Int64),
        bytes=pl.col("in_elements") * pl.col("each"),
    )


def _place(row: dict[str, Any], rank: int | None) -> int | None:
    """The place of the report's rank in the group; as recorded where the trace does not say which rank it is of."""
    if rank is None or not row["ranks"]:
        # of these the trace records the root or the peer as the rank
        return None if row["kind"] in ("broadcast", "reduce", "gather", "scatter", "send", "recv") else row["rank"]
    if ":" in row["ranks"]:  # as of :func:`_members`
        first, stride, size = map(int, row["ranks"].split(":"))
        members = [first + stride * at for at in range(size)]
    else:
        members = [int(one) for one in row["ranks"].split(",")]
    return members.index(rank) if rank in members else None


def _told_by_nccl(report: Report, kernels: pl.DataFrame) -> pl.DataFrame:
    """Attributes from the payloads of NCCL's own ranges, by the calls that each kernel was launched for."""
    launched, sums = _of_kind(report, kernels), _sums_of_payloads(report)
    collectives = launched.join(sums, on="event_id", how="left", maintain_order="left", suffix="_told")
    unknown = ("ranks", "sequence", "id", "type", "largest_bytes")
    dtypes = reduced.COLLECTIVES.schema
    none = [pl.lit(None, dtype=dtypes[name]).alias(name) for name in unknown]
    names = [name for name in dtypes if name in (*sums.columns, *unknown)]
    return collectives.with_columns(*none, kind=pl.coalesce("kind_told", "kind")).select("event_id", "stream", *names)


def _of_kind(report: Report, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels with the kind of collective that their name tells."""
    return _with_kind(decoded(report, kernels, "operation"), pl.col("operation").cast(pl.String))


@analysis.once_per_process
def _sums_of_payloads(report: Report) -> pl.DataFrame:
    """Sums of NCCL's calls that move data by the kernel that they were launched for; see :func:`sums_of_calls`."""
    calls = report.table("communicator_calls")
    ranges = report.kind("range").select("event_id", "name", "start_ns", "process_id", "thread_id")
    rows = calls.join(ranges, on="event_id", how="inner")
    keys = ["process_id", "communicator"]
    groups = rows.drop_nulls(["size", "rank"]).unique(keys, keep="first", maintain_order=True)
    moved = rows.drop_nulls("message_bytes").drop("size", "rank")
    moved = moved.join(groups.select(*keys, "size", "rank"), on=keys, how="left")
    transfers = _with_kind(moved, pl.col("name").cast(pl.String)).select(
        *(*threads.THREAD, "start_ns", "kind", "size"),
        group="communicator",
        own="rank",
        peer="peer_rank",
        root="root_rank",
        bytes="message_bytes",
    )
    return sums_of_calls(transfers, _of_kind(report, _launched(report)))


def kind_of(text: str) -> str:
    """The kind of a collective by what a tool calls it, such as ``_allgather_base`` or ``ncclAllReduce``."""
    bare = re.sub(r"^(?:nccl|gloo|c10d|mpi|ucc)[:_]*", "", text.strip().lower().strip("_"))
    plain = re.sub(_ENDING, "", re.sub(_ENDING, "", bare)).replace("_", "")
    return _KINDS.get(plain, _KINDS.get(bare.replace("_", ""), bare or "other"))


def _members() -> pl.Expr:
    """The ranks of the group as ``first:stride:size`` where they are regular, else the list, if it is whole."""
    size = pl.col("group_size")
    regular = (pl.col("first_rank") >= 0) & (pl.col("rank_stride") > 0) & (size > 0)
    listed = pl.struct("ranks", "group_size").map_elements(_listed, return_dtype=pl.String)
    return pl.when(regular).then(pl.format("{}:{}:{}", "first_rank", "rank_stride", size)).otherwise(listed)


def _listed(row: dict[str, Any]) -> str | None:
    """A list of ranks as recorded, made short; None where it was cut."""
    text, size = row["ranks"], row["group_size"]
    ranks = [int(digits) for digits in re.findall(r"\d+", text or "")]
    if not ranks or len(ranks) != size or "..." in text:
        return None
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if step > 0 and ranks == [*range(ranks[0], ranks[0] + step * len(ranks), step)]:
        return f"{ranks[0]}:{step}:{size}"
    return ",".join(map(str, ranks))


def _largest_of(row: dict[str, Any]) -> int | None:
    """The most bytes that a rank sends to others, or gets from them, of uneven parts; None where parts are even."""
    moved = []
    for side in ("in", "out"):
        text, total, each = row[f"{side}_split"], row[f"{side}_elements"], row["each"]
        parts = [int(one) for one in re.findall(r"\d+", text or "")]
        if not parts or "..." in text or total is None or each is None or not sum(parts):
            continue
        own = parts[row["rank"]] if row["rank"] is not None and row["rank"] < len(parts) else 0
        moved.append(total * each * (sum(parts) - own) // sum(parts))
    return max(moved, default=None)


#: Kernels of DeepEP in one node, whose first number is that of their ranks; kinds of all such kernels.
_OF_EXPERTS: Final = r"::intranode::\w+<(?:[a-z_][\w:]*, ?)?(?:\(int\))?(\d+)"


def _with_group_of_stream(collectives: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """Fills the group of kernels whose launch was not recorded, where all others on the stream have one group.

    Libraries of expert parallelism record none; of some the name says how many `ranks` take part.
    """
    collectives = collectives.with_columns(size=pl.coalesce("size", ranks.cast(pl.Int64)))
    if collectives.get_column("size").null_count() in (0, collectives.height):
        return collectives
    experts = pl.col("kind").is_in(("dispatch", "combine", "notify"))
    groups = collectives.filter(~experts).drop_nulls("size").select("stream", *_OF_GROUP).unique()
    single = groups.filter(pl.len().over("stream") == 1)
    with_groups = collectives.join(single, on="stream", how="left", suffix="_there", maintain_order="left")
    there = pl.when(pl.col("size").is_null() & ~experts)
    return with_groups.select(
        there.then(f"{name}_there").otherwise(name).alias(name) if name in _OF_GROUP else name
        for name in collectives.columns
    )


# Waiting and transfer of collectives whose ranks are all in one report

#: Of each collective whose ranks are all in the report: its row of :func:`operations`, when the last rank came, who
#: that was (null where several came at once), the row of that rank (of several the lowest), and whether the report says
#: how many ranks take part.
_ARRIVALS: Final = {"row": pl.UInt32, "arrival": pl.Int64, "last": pl.String, "late": pl.UInt32, "sized": pl.Boolean}

#: The details of communication.
WAITING: Final = "waiting for "
TRANSFER: Final = "transfer"

_TALKS: Final = pl.col("bucket") == "communication"


def exposed_pieces(line: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """The pieces of collectives of one device in which no kernel runs: the rows of `line`, cut.

    `line` has the part that no earlier collective covers as start and end, and exposed_ns, which the pieces sum to.
    """
    own = line.filter(pl.col("end") > pl.col("start"))
    if own.is_empty():
        return own
    low, high = own.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return intervals.cut(own, intervals.gaps(intervals.union(kernels), low, high))


def has_partners(report: Report) -> bool:
    """Whether the report has several ranks with collectives in common."""
    return not last_arrivals(report).is_empty()


def told_communication(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The exposed time of the collectives in `work` by detail: detail, ns.

    `work` has the operations of one device, clipped and with exclusive_ns. Details are ``waiting for`` the rank that
    came last, ``transfer`` where the report says that this was the last of all, and null for what it does not tell.
    """
    line = intervals.first_come(work.filter(_TALKS).sort("began", "event_id"))
    own = line.select("row", number="row", start="own_start", end="own_end", exposed_ns="exclusive_ns")
    pieces = exposed_pieces(own, work.filter(pl.col("bucket") == "kernel"))
    pieces = pieces.join(last_arrivals(report), on="row", how="left")
    ns = pl.col("end") - pl.col("start")
    wait = (pl.min_horizontal("end", "arrival") - pl.col("start")).clip(lower_bound=0)
    wait = pl.when(pl.col("arrival").is_not_null()).then(wait).otherwise(0)
    waiting, moving = pl.lit(WAITING) + pl.col("last").fill_null("others"), pl.when("sized").then(pl.lit(TRANSFER))
    parts = (pieces.select(detail=waiting, ns=wait), pieces.select(detail=moving, ns=ns - wait))
    return pl.concat(parts).group_by("detail").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)


@analysis.once_per_process
def last_arrivals(report: Report) -> pl.DataFrame:
    """When the last rank came to each collective, :data:`_ARRIVALS`; empty where the report has no two ranks."""
    work = operations(report).filter(_TALKS)
    members = work.select("device", "process_id").unique().sort("device", "process_id")
    if members.height <= 1:
        return pl.DataFrame(schema=_ARRIVALS)
    from kanalyze.analyses.communication._waits import arrivals  # noqa: PLC0415 - numpy, for several ranks only

    return arrivals(report, work, members).cast(_ARRIVALS)  # type: ignore[arg-type]
