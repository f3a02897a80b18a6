"""Tables of a job: its ranks, their steps, their collectives, their clocks, and the critical path over all of them.

Definitions: docs/definitions.md, section 11; docs/whatif.md, "Over ranks".
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import intervals, schema
from kanalyze.analyses.communication import _matching, _waits
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.ranks._job import Job
from kanalyze.analyses.replay.critical_path import BY_RANK, Way, ending_at, sums_by_rank, walk, way_of
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.columns import gathered
from kanalyze.report import Report

#: Rows that are made at once.
_AT_ONCE: Final = 1 << 18

_table = partial(schema.Table, job=True)

_COMPUTE: Final = ("kernel_ns", "memcpy_ns", "memset_ns")
_PARTS: Final = tuple(bucket for bucket in BUCKETS if bucket != "communication")

CLOCKS: Final = _table(
    "clocks",
    "The clock of one rank in one part of the run, against that of the first rank.",
    schema.columns("""
        host text?: The machine, where the reports tell it.
        rank int: The rank.
        part int: The part of the run, from 0 on.
        offset_ns int?: By how much the clock is ahead of the first rank's in its middle.
        low_ns int?: The least that this can be.
        high_ns int?: The most that this can be.
        drift_ppm float: By how much faster it runs, in parts per million; 0 where nothing shows that.
        start_ns int: Start of the part by the first rank's clock, in the origin of its report.
        end_ns int: Its end.
    """),
    purpose="clock offsets of hosts, with bounds and drift",
    telling=("rank", "host", "part", "offset_ns", "low_ns", "high_ns"),
)

COLLECTIVE_SUMMARY: Final = _table(
    "collective_summary",
    "The collectives of one kind, group and size, over all ranks and steps.",
    schema.columns("""
        kind text: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send and recv, …
        group text?: Name of the process group or communicator.
        size int?: Ranks of the group.
        bytes int?: Size of each, as nccl-tests counts it.
        count int: Collectives, each once; of those without a partner as many as a rank has at most.
        rank_ns int: Durations, summed over ranks.
        wait_ns int: Waiting, summed over ranks.
        transfer_ns int: Transferring, summed over ranks.
        exposed_wait_ns int: Waiting in which a GPU ran nothing else, summed over ranks.
        exposed_transfer_ns int: Transferring in which a GPU ran nothing else, summed over ranks.
        busbw_bytes_per_s int?: Median bus bandwidth.
        best_share float?: That as a share of the best that this group reached.
        skew_bound int: Collectives that are skew-bound.
        transfer_bound int: Collectives that are transfer-bound.
        mixed int: Collectives that are neither.
        cannot_tell int: Collectives of which clocks or missing ranks do not let it be told.
    """),
    purpose="collectives by kind, group and size",
    telling=("kind", "bytes", "count", "wait_ns", "transfer_ns", "busbw_bytes_per_s", "best_share", "group", "size"),
)

COLLECTIVES: Final = _table(
    "collectives",
    "One collective on one rank.",
    schema.columns("""
        id int?: The collective, by first start; null where no other rank has it.
        match text?: How it was matched over ranks: id, seq or ordinal.
        kind text: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, …
        group text?: Name of the process group or communicator.
        size int?: Ranks of the group.
        rank int: The rank.
        device int?: The GPU.
        stream int?: The stream.
        start_ns int: Start by the first rank's clock, in the origin of its report.
        dur_ns int: Duration; wait_ns and transfer_ns sum to it.
        wait_ns int?: Until the last rank came.
        transfer_ns int?: After that.
        exposed_wait_ns int?: Waiting in which the GPU ran nothing else.
        exposed_transfer_ns int?: Transferring in which the GPU ran nothing else.
        bytes int?: Size as nccl-tests counts it, the larger of in and out.
        algbw_bytes_per_s int?: Bytes by the time of the transfer.
        busbw_bytes_per_s int?: That by the share that each link carries.
        last_rank int?: Who came last; null where clocks do not tell.
        lateness_ns int?: By how much it came later than the one before it.
        class text: transfer-bound, skew-bound, mixed, or cannot tell.
        step int?: The step that it begins in.
        doubt_ns int?: How far clocks may shift what is waiting; 0 on one clock.
        shortest bool: Whether bandwidth is by the shortest duration, since clocks do not tell.
    """),
    purpose="each collective: waiting, transfer, bandwidth",
    telling=("id", "kind", "rank", "dur_ns", "wait_ns", "transfer_ns", "busbw_bytes_per_s", "last_rank", "class"),
)

RANK_STEPS: Final = _table(
    "rank_steps",
    "One step on one rank.",
    schema.columns("""
        rank int: The rank.
        step int: The step, the same number on all ranks.
        kind text: steady, warm-up, odd or cut.
        start_ns int: Start by the first rank's clock, in the origin of its report.
        ns int: Time of the step on the GPU.
        busy_ns int: Time in which the GPU ran anything.
        compute_ns int: The same without communication alone.
        wait_ns int: Exposed waiting for other ranks.
        transfer_ns int: Exposed transferring.
        unmatched_ns int: Exposed communication of which waiting is not told.
        late_ns int: By how much this rank fell behind, as the last to come to collectives.
        cause text?: The bucket with most of that; null where it was never late.
        cause_ns int?: How much of it that is.
        cost_ns int: Exposed waiting of the other ranks for it, summed over them.
        detail text?: What most of the cause was in, where told: DataLoader.__next__.
        recorder_ns int?: What of late_ns its recorder may cost, at most, by estimate; null where that is not told.
    """),
    purpose="each step of each rank: waits, lateness, cause",
    telling=("rank", "step", "ns", "busy_ns", "wait_ns", "late_ns", "cause"),
)

RANKS: Final = _table(
    "ranks",
    "One rank: the sum of its steps, by where their time went.",
    (
        schema.Column("rank", pl.Int64, "The rank."),
        schema.Column("host", pl.String, "The machine, where the reports tell it.", nullable=True),
        schema.Column("device", pl.Int64, "The GPU.", nullable=True),
        schema.Column("steps", pl.Int64, "Steps that are summed: those steady or odd on all ranks, else all of them."),
        schema.Column("ns", pl.Int64, "Their time; the columns below sum to it exactly."),
        schema.Column("wait_ns", pl.Int64, "Exposed waiting for other ranks."),
        schema.Column("transfer_ns", pl.Int64, "Exposed transferring."),
        schema.Column("unmatched_ns", pl.Int64, "Exposed communication of which waiting is not told."),
        *(schema.Column(f"{bucket}_ns", pl.Int64, f"The bucket {bucket} of the ledger.") for bucket in _PARTS),
        schema.Column("hidden_ns", pl.Int64, "Communication beside other kernels, which is in kernel_ns."),
        schema.Column("late_ns", pl.Int64, "By how much this rank fell behind, as the last to come to collectives."),
        schema.Column("cost_ns", pl.Int64, "Exposed waiting of the other ranks for it, summed over them."),
        schema.Column("report", pl.String, "The report."),
    ),
    purpose="each rank's time, with waiting and transfer",
    telling=("rank", "steps", "ns", "wait_ns", "transfer_ns", "kernel_ns", "late_ns", "cost_ns"),
)


def clocks(job: Job) -> pl.DataFrame:
    """The offset of each rank's clock with its bounds, part by part; null where no collectives connect the clocks."""
    offsets = job.ranks.select("host", "rank", "clock").join(job.clocks.table, on="clock", how="inner")
    return CLOCKS.select(offsets.with_columns(pl.col("start_ns", "end_ns") - job.origin_ns).sort("rank", "part"))


def collective_summary(job: Job) -> pl.DataFrame:
    """Sums over collectives of one kind, group and size, those that take most of all ranks' time first."""
    keys = ["kind", "group", "size", "bytes"]
    calls = job.collected.calls.select("kind", "group", "size").with_columns(pl.col("kind", "group").cast(pl.String))
    whole = pl.concat([job.matches.drop("size"), calls[job.matches.get_column("call")]], how="horizontal")
    alone = job.rows_at(job.found.order[job.found.first[-1] :])
    alone = alone.select(pl.col("kind", "group").cast(pl.String), "size", "bytes", "rank", rank_ns="dur_ns")
    whole = pl.concat([whole, alone], how="diagonal")
    pairs = pl.when(pl.col("kind").is_in(_matching.POINT_TO_POINT)).then(pl.lit("send and recv")).otherwise("kind")
    names = {name: name.replace("-", "_").replace(" ", "_") for name in _waits.CLASSES}
    sums = whole.group_by(pairs.alias("kind"), *keys[1:]).agg(
        pl.col("rank_ns", "wait_ns", "exposed_wait_ns", "exposed_transfer_ns").sum(),
        transfer_ns=(pl.col("rank_ns") - pl.col("wait_ns")).sum(),
        alone=pl.col("rank").drop_nulls().unique_counts().max().fill_null(0).cast(pl.Int64),
        busbw_bytes_per_s=pl.col("busbw_bytes_per_s").median().cast(pl.Int64),
        **{column: (pl.col("class") == name).sum() for name, column in names.items()},
    )
    best = pl.col("busbw_bytes_per_s").max().over("group", "size")
    sums = sums.with_columns(
        count=pl.sum_horizontal(*names.values(), "alone"),
        cannot_tell=pl.col("cannot_tell") + pl.col("alone"),
        best_share=pl.col("busbw_bytes_per_s") / best,
    )
    return COLLECTIVE_SUMMARY.select(sums.sort("rank_ns", *keys, descending=[True, False, False, False, False]))


def collectives(job: Job) -> pl.DataFrame:
    """The collectives of all ranks: :data:`COLLECTIVES`, by id and rank, those without a partner last."""
    order = job.found.order
    parts = (job.rows_at(order[at : at + _AT_ONCE]) for at in range(0, max(len(order), 1), _AT_ONCE))
    derived = {
        "id": pl.col("match"),
        "match": pl.col("how"),
        "start_ns": pl.col("corrected_ns") - job.origin_ns,
        "shortest": pl.col("by_shortest").fill_null(value=False),
    }
    return pl.concat([COLLECTIVES.select(rows.with_columns(**derived)) for rows in parts])


def rank_steps(job: Job) -> pl.DataFrame:
    """Time, waiting and lateness of each step on each rank, by both; empty where ranks repeat nothing."""
    return RANK_STEPS.select(by_step(job))


def by_step(job: Job) -> pl.DataFrame:
    """The columns of :data:`RANK_STEPS`, the ledger of the step by bucket, and hidden_ns."""
    exposed = pl.concat(job.exposed.by_step).drop_nulls("step").rename({"step": "index"})
    # lateness by rank and step, with the bucket that has most of it, and what it cost the others
    key, bucket, ns = ("rank", "step"), pl.col("bucket"), pl.col("ns")
    sums = job.causes.group_by(*key, "bucket").agg(ns.sum()).sort("ns", "bucket", descending=[True, False])
    named = sums.group_by(key, maintain_order=True).agg(cause=bucket.first(), cause_ns=ns.first())
    details = job.causes.drop_nulls("detail").group_by(*key, cause="bucket", maintain_order=True)
    named = named.join(details.agg(pl.col("detail").first(), most=ns.first()), on=[*key, "cause"], how="left")
    detail = pl.when(pl.col("most") >= 0.5 * pl.col("cause_ns")).then("detail")
    recorder = pl.col("recorder_ns")
    late = job.lateness.group_by(key).agg(
        pl.when(recorder.is_not_null().all()).then(recorder.sum()),
        late_ns=pl.col("new_ns").sum(),
        cost_ns=pl.col("cost_ns").sum(),
    )
    late = late.join(named.with_columns(detail=detail), on=key, how="left", nulls_equal=True)
    steps = job.steps.join(job.offsets.select("member", "rank", "offset_ns"), on="member")
    joined = steps.join(exposed, on=["member", "index"], how="left").join(late, on=key, how="left")
    return joined.with_columns(
        start_ns=pl.col("start_ns") - pl.col("offset_ns") - job.origin_ns,
        ns=pl.col("end_ns") - pl.col("start_ns"),
        busy_ns=pl.sum_horizontal("communication_ns", *_COMPUTE),
        compute_ns=pl.sum_horizontal(_COMPUTE),
        wait_ns=pl.col("exposed_wait_ns").fill_null(0),
        transfer_ns=pl.col("exposed_transfer_ns").fill_null(0),
        recorder_ns=pl.when(pl.col("late_ns").is_null()).then(0).otherwise("recorder_ns"),
        **{name: pl.col(name).fill_null(0) for name in ("unmatched_ns", "late_ns", "cost_ns")},
    ).sort("step", "rank")


def ranks(job: Job) -> pl.DataFrame:
    """The ledger of each rank over the steps that all have, communication split into waiting and transfer.

    By rank; where nothing repeats, `steps` is 0 and the times are those of all collectives.
    """
    rows, times = common_steps(by_step(job)), [name for name in RANKS.schema if name.endswith("ns")]
    sums = rows.group_by("rank").agg(pl.len().alias("steps"), pl.col(times).sum())
    ledgers = job.ranks.select("rank", "host", "device", "report").join(sums, on="rank", how="left")
    return RANKS.select(ledgers.with_columns(pl.col("steps", *times).fill_null(0)).sort("rank"))


def common_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of steps that are steady or odd on all ranks; else of those that all ranks have; else all.

    Without those at the beginning and the end that are far too short on a rank: there what comes before and after the
    steps was taken for some. An odd step counts: what ranks wait for in it is what is looked for.
    """
    everywhere = rows.filter(pl.len().over("step") == rows.get_column("rank").n_unique())
    whole = everywhere.filter(pl.col("kind").is_in(["steady", "odd"]).all().over("step"))
    short = whole.select("step", short=pl.col("ns") < 0.5 * pl.col("ns").median().over("rank"))
    usual = whole.join(short.filter("short"), on="step", how="anti").get_column("step")
    whole = whole.filter(pl.col("step").is_between(usual.min(), usual.max()))
    return whole if whole.height else everywhere if everywhere.height else rows


# The critical path over ranks, each in a report of its own, on corrected clocks.


class _Part(NamedTuple):
    """A rank, and what walks lead along in its report."""

    member: int
    process: int | None
    span: tuple[int, int]  # its window, in the job's time
    shift: int  # what times of its report are moved by to be in the job's
    way: Way
    talks: pl.DataFrame  # its collectives: at (row of all of the job), row (of its operations) and node of the start


def rank_path(job: Job, reports: Iterable[tuple[int, Report]]) -> pl.DataFrame:
    """The part of each rank of the critical path over all of them, of the steady steps where there are any.

    `reports` has the rank of each, and is open until the next. The rank with most of the path is first; empty where
    no report can be opened.
    """
    moved = {row["rank"]: row for row in job.offsets.iter_rows(named=True)}
    common = _common(job)
    ends = common.group_by("member").agg(pl.col("low").min(), pl.col("high").max())
    steps = {member: (low, high) for member, low, high in ends.iter_rows()}
    parts = [_part(job, report, moved[rank], steps) for rank, report in reports]
    if not parts:
        return BY_RANK.empty()
    last = max(parts, key=lambda part: part.span[1])
    parts = [*(part for part in parts if part is not last), last]  # the walk begins with the last link
    sides = min(part.span[0] for part in parts), last.span[1]
    pieces = walk([part.way for part in parts], _together(job, parts), sides, [part.shift for part in parts])
    members = pl.Series([part.member for part in parts])[pieces.get_column("way")]
    processes = pl.Series("process_id", [part.process for part in parts], dtype=pl.Int64)[pieces.get_column("way")]
    ranks = job.ranks.get_column("rank")[members].alias("rank")
    return sums_by_rank(pieces.with_columns(ranks, processes), common.get_column("step").n_unique() or None)


def _common(job: Job) -> pl.DataFrame:
    """The steps that all ranks have, from the first to the last steady one: member, step, low and high (job's time)."""
    shared = job.steps.filter(pl.col("member").n_unique().over("step") == job.ranks.height)
    steady = pl.col("step").filter(pl.col("kind") == "steady")
    steady_steps = shared.filter(pl.col("step").is_between(steady.min(), steady.max()))
    shifted = steady_steps.join(job.offsets.select("member", "offset_ns"), on="member")
    moved = pl.col("offset_ns") + job.origin_ns
    return shifted.select("member", "step", low=pl.col("start_ns") - moved, high=pl.col("end_ns") - moved)


def _part(job: Job, report: Report, row: dict[str, Any], steps: dict[int, tuple[int, int]]) -> _Part:
    """What walks lead along in the report of a rank, a `row` of the job's, up to the end of its `steps`."""
    member, shift = row["member"], row["shift_ns"]
    own = report.narrow(process=row["process_id"], device=row["device"])
    recorded = _windows.windows(own).select(pl.col("start").min() + shift, pl.col("end").max() + shift).row(0)
    low, high = steps.get(member, recorded)
    ending = ending_at(own, low - shift, high - shift)
    way, first = way_of(own, ending), int(job.collected.first[member])
    links = way.links.with_columns(pl.col("begun", "over", "at") + shift)
    talks = _operations.exclusive_operations(own).filter(pl.col("bucket") == "communication").sort("began", "event_id")
    talks = intervals.first_come(talks).select("row")
    if talks.height != job.collected.first[member + 1] - first:  # it was put together from another report
        talks = talks.clear()
    nodes = gathered(ending.network.numbers.starts, talks.get_column("row")).alias("node")
    talks = talks.with_columns(nodes, at=pl.int_range(pl.len()) + first)
    return _Part(member, row["process_id"], (low, high), shift, way._replace(links=links), talks)


def _together(job: Job, parts: Sequence[_Part]) -> pl.DataFrame:
    """The links of all ranks' ways: a collective of which all are there leads to the rank that came last."""
    bases = accumulate((part.way.links.height for part in parts), initial=0)
    ways = [*enumerate(zip(parts, bases, strict=False))]
    links = pl.concat(part.way.links.with_columns(pl.col("source") + base, way=at) for at, (part, base) in ways)
    talks = pl.concat(part.talks.with_columns(pl.col("node") + base, way=at) for at, (part, base) in ways)
    whole = job.matches.select(pl.col("present") >= pl.col("size").fill_null(pl.col("present"))).to_series()
    match = pl.Series("match", job.found.match).gather(talks.get_column("at")).cast(pl.Int64)
    alone = pl.col("node").is_null() | ~gathered(whole, match.set(match < 0, None)).fill_null(value=False)
    talks = talks.with_columns(match, begun=gathered(links.get_column("at"), talks.get_column("node"))).filter(~alone)
    last = pl.col("begun", "node").sort_by("begun", maintain_order=True).last().over("match")
    talks = talks.select("way", last.name.prefix("last_"), point="row")
    joined: pl.DataFrame = links.join(talks, on=["way", "point"], how="left", maintain_order="left")
    latest = [pl.coalesce(f"last_{name}", of).alias(of) for name, of in (("begun", "begun"), ("node", "source"))]
    return joined.with_columns(*latest, moves=pl.col("last_node").is_not_null())
