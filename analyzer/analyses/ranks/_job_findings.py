"""Findings on a job: what its ranks wait for, and what it is worth in a step."""

from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.ranks._job import EARLIER, Job
from kanalyze.analyses.ranks.tables import common_steps
from kanalyze.reduction.tables import IN_LOADER
from kanalyze.units import percent, plural, rate, size, time

#: Steps in a row are told together where the lateness of each is at most so many times that of the one before.
_ALIKE: Final = 2


class Late(NamedTuple):
    """A rank that is late in some steps, one after the other."""

    rank: int  # the rank
    first: int  # the first of the steps
    last: int  # the last of them
    steps: int  # how many
    late_ns: int  # by how much it falls behind in a step, the mean
    causes: tuple[tuple[str, int], ...]  # the parts of that by bucket, the largest first; they sum to it up to rounding
    cost_ns: int  # exposed waiting of the other ranks for it, in all these steps
    named: bool  # whether that is worth naming the rank
    detail: str | None = None  # what most of the first cause was in, in each of the steps, where the reports show it
    recorder_ns: int | None = None  # what of late_ns its recorder may cost, at most, by estimate; None where not told


def late_ranks(job: Job) -> list[Late]:
    """The ranks that others wait for, the costliest first; consecutive steps of one cause and like size together.

    Of the steps that means are of.
    """
    rows = job.table("rank_steps")
    notable = (pl.col("late_ns") >= 0.02 * pl.col("ns")) & (pl.col("cost_ns") > 0)
    late = common_steps(rows).filter(notable).sort("rank", "step")
    others = max(job.ranks.height - 1, 1)
    before = pl.col("late_ns").shift(1)
    unchanged = [pl.col(name) == pl.col(name).shift(1) for name in ("rank", "cause")]
    adjoins, alike = pl.col("step").diff() == 1, pl.col("late_ns").is_between(before / _ALIKE, before * _ALIKE)
    goes_on = pl.all_horizontal(*unchanged, adjoins, alike)
    runs = late.with_columns(run=(~goes_on.fill_null(value=False)).cum_sum())
    parts = runs.select("run", "rank", "step").join(job.causes, on=["rank", "step"], how="inner")
    stretches = []
    for (run,), own in runs.partition_by("run", as_dict=True, maintain_order=True).items():
        sums = parts.filter(pl.col("run") == run).group_by("bucket").agg(pl.col("ns").sum())
        named = [*sums.sort(pl.col("ns").abs(), "bucket", descending=[True, False]).iter_rows()]
        cost_ns, ns = (int(own.get_column(name).sum()) for name in ("cost_ns", "ns"))
        details, recorder = own.get_column("detail"), own.get_column("recorder_ns")
        same = bool(named) and named[0][0] == own.item(0, "cause") and details.n_unique() == 1
        stretches.append(
            Late(
                own.item(0, "rank"),
                own.item(0, "step"),
                own.item(-1, "step"),
                own.height,
                int(own.get_column("late_ns").sum()) // own.height,
                tuple((bucket, ns // own.height) for bucket, ns in named),
                cost_ns,
                cost_ns >= 0.01 * ns * others,
                details.item(0) if same else None,
                None if recorder.null_count() else int(recorder.sum()) // own.height,
            )
        )
    return sorted(stretches, key=lambda one: (-one.cost_ns, one.rank, one.first))


def notable_causes(one: Late) -> list[tuple[str, int]]:
    """The causes that are worth naming."""
    return [(bucket, ns) for bucket, ns in one.causes if abs(ns) >= 0.1 * one.late_ns]


#: A collective is small that reaches less than this part of its group's best bandwidth, with so small a part of the
#: bytes of the one that does; so many of them in a step are worth a bucket.
_SLOW_SHARE: Final = 0.5
_SMALL_PART: Final = 1 / 8
_MANY: Final = 8

#: A group is slow that reaches less than this part of what like groups do, for the same kind and size.
_SLOW_GROUP: Final = 0.7

#: Parts of an all_to_all are uneven where the largest is this much above the mean; ranks differ in work by so much.
_UNEVEN: Final = 1.25
_OTHER_WORK: Final = 0.02


class JobFinding(NamedTuple):
    """A finding on a job."""

    finding: str  # stable name of the kind of finding
    at_stake_ns: int  # what of a step it takes, the mean of steps and ranks; mending it gains no more than that
    text: str  # one sentence with the evidence
    action: str  # what to do
    table: str  # the table with the rows behind it


class _Steps(NamedTuple):
    """The steps that findings are about."""

    number: int
    ranks: int
    recorded: int  # steps of any kind
    rows: pl.DataFrame  # of both
    ns: float  # a step's time

    @property
    def both(self) -> int:
        """Steps of all ranks together."""
        return max(self.number * self.ranks, 1)


def job_findings(job: Job) -> list[JobFinding]:
    """The findings on a job with enough of a step at stake, the costliest first; none where nothing repeats."""
    every = job.table("rank_steps")
    rows = common_steps(every)
    if rows.is_empty() or job.ranks.height == 1:
        return []
    number, ranks = (rows.get_column(name).n_unique() for name in ("step", "rank"))
    mean_ns = int(rows.get_column("ns").sum()) / rows.height
    steps = _Steps(number, ranks, every.get_column("step").n_unique(), rows, mean_ns)
    rules = RULES if job.ranks.get_column("device").null_count() == 0 else (_stragglers,)
    findings = [one for rule in rules for one in rule(job, steps)]
    worth = [one for one in findings if one.finding == "straggler" or one.at_stake_ns >= 0.01 * steps.ns]
    return sorted(worth, key=lambda one: (-one.at_stake_ns, one.finding, one.text))


def _stragglers(job: Job, steps: _Steps) -> Iterable[JobFinding]:
    """Ranks that others wait for, those that the answer may name, each with all its late steps."""
    every = late_ranks(job)
    for rank in sorted({one.rank for one in every if one.named}):
        own = [one for one in every if one.rank == rank]
        number = sum(one.steps for one in own)
        waited = sum(one.cost_ns for one in own) // number // max(steps.ranks - 1, 1)
        cause = own[0].causes[0][0] if own[0].causes else "many small parts"
        detail = own[0].detail if len({one.detail for one in own}) == 1 else None
        why = "" if cause == EARLIER else f", most for its {cause}" + (f" in {detail}" if detail else "")
        idle = "" if job.ranks.get_column("device").null_count() else " with an idle GPU"
        late = sum(one.late_ns * one.steps for one in own) // number
        of_recorder = sum((one.recorder_ns or 0) * one.steps for one in own) >= 0.5 * late * number
        balance = _BALANCE.get(detail or cause, "Look at what this rank does there that the others do not.")
        yield JobFinding(
            "straggler",
            late * number // steps.number,
            f"Rank {rank} is {time(late)} late in {plural(number, 'step')}{why}: "
            f"another one waits {time(waited)}{idle}.",
            "Record less, on all ranks alike: most of that may be what its recorder costs." if of_recorder else balance,
            "rank_steps",
        )


_BALANCE: Final = {
    "kernel": "Give ranks equal work: samples of equal length, equal numbers of experts and layers.",
    "host": "Look at this rank's host: a slow DataLoader, logging or checkpoints on one rank, a busy machine.",
    IN_LOADER: "Look at this rank's DataLoader: its samples, its storage, the processors that its workers share.",
    "launch": "Look at this rank's host: launches come late; a busy machine, or a slow processor.",
    "memcpy": "Copy from pinned memory, without blocking, on this rank as on the others.",
    "loading": "Load what is needed before the first step, on all ranks.",
}


def _exposed_transfer(job: Job, steps: _Steps) -> Iterable[JobFinding]:
    """Transfer in which GPUs do nothing else."""
    del job
    ns = int(steps.rows.get_column("transfer_ns").sum()) // steps.both
    yield JobFinding(
        "exposed-transfer",
        ns,
        f"A rank transfers for {time(ns)} of a step while its GPU does nothing else.",
        "Let it run beside kernels: DDP buckets, FSDP prefetch, async_op=True.",
        "collective_summary",
    )


def _small_collectives(job: Job, steps: _Steps) -> Iterable[JobFinding]:
    """Collectives too small to use the link, of which a step has many."""
    table = job.table("collective_summary").drop_nulls(["bytes", "busbw_bytes_per_s"])
    best = table.filter(pl.col("best_share") == 1).select("group", "size", largest="bytes", best="busbw_bytes_per_s")
    compared = table.join(best.unique(["group", "size"]), on=["group", "size"], how="inner", nulls_equal=True)
    small = compared.filter((pl.col("best_share") < _SLOW_SHARE) & (pl.col("bytes") <= _SMALL_PART * pl.col("largest")))
    for group, own in small.group_by("group", "kind", maintain_order=True):
        number = int(own.get_column("count").sum()) // steps.recorded
        saved = own.select((pl.col("exposed_transfer_ns") * (1 - pl.col("best_share"))).sum()).item()
        most, bandwidth = (int(own.get_column(name).max()) for name in ("bytes", "best"))  # type: ignore[arg-type]
        if number >= _MANY:
            yield JobFinding(
                "small-collectives",
                int(saved) // steps.recorded // steps.ranks,
                f"{number:,} {group[1]} a step of at most {size(most)} each: larger ones reach {rate(bandwidth)}.",
                "Put them together: larger buckets (bucket_cap_mb), one flat tensor, coalesced calls.",
                "collective_summary",
            )


def _slow_groups(job: Job, steps: _Steps) -> Iterable[JobFinding]:
    """Groups that are slower than others with the same number of ranks, kind and size."""
    table = job.table("collective_summary").drop_nulls(["bytes", "busbw_bytes_per_s", "group"])
    alike = ["kind", "size", "bytes"]
    compared = table.with_columns(usual=pl.col("busbw_bytes_per_s").median().over(alike), groups=pl.len().over(alike))
    slow = compared.filter((pl.col("groups") > 2) & (pl.col("busbw_bytes_per_s") < _SLOW_GROUP * pl.col("usual")))  # noqa: PLR2004 - of two, none is usual
    for row in slow.iter_rows(named=True):
        part = row["busbw_bytes_per_s"] / row["usual"]
        yield JobFinding(
            "slow-group",
            int(row["exposed_transfer_ns"] * (1 - part)) // steps.recorded // max(row["size"] or 1, 1),
            f"Group {row['group']} reaches {rate(row['busbw_bytes_per_s'])} in {row['kind']} of {size(row['bytes'])}, "
            f"{percent(part)} of like groups.",
            "Look at its links and nodes: nccl-tests on these ranks, NCCL_DEBUG=INFO for the path.",
            "collective_summary",
        )


def _uneven_parts(job: Job, steps: _Steps) -> Iterable[JobFinding]:
    """Exchanges in which one rank sends or gets more than the others."""
    calls = job.collected.calls.select((pl.col("kind") == "all_to_all") & pl.col("largest_bytes").is_not_null())
    at = np.flatnonzero(calls.to_series().to_numpy()[job.collected.call] & (job.found.match >= 0))
    own = job.rows_at(at)
    exchanges = own.group_by("match").agg(most=pl.col("largest_bytes").max(), mean=pl.col("largest_bytes").mean())
    uneven = exchanges.filter(pl.col("most") > _UNEVEN * pl.col("mean"))
    if uneven.is_empty():
        return
    spared = pl.col("exposed_transfer_ns") * (1 - pl.col("mean") / pl.col("most"))
    ns = own.join(uneven, on="match", how="inner").select(spared.sum())
    worst = uneven.select((pl.col("most") / pl.col("mean")).max()).item()
    yield JobFinding(
        "uneven-all-to-all",
        int(ns.item()) // steps.both,
        f"Parts of {uneven.height:,} all_to_all are uneven: up to {worst:.2f} × the mean of the ranks.",
        "Balance what ranks exchange: expert capacity, an auxiliary loss for balance, sequence packing.",
        "collectives",
    )


def _other_work(job: Job, steps: _Steps) -> Iterable[JobFinding]:
    """Ranks that run other numbers of kernels in a step than the rest."""
    # without ranks that ran none, or whose steps are not known
    sums = job.kernels.group_by("member").agg(pl.col("per_step").sum()).filter(pl.col("per_step") > 0)
    of_ranks = sums.join(job.ranks.select("member", "rank"), on="member").sort("rank")
    counts = dict(of_ranks.select("rank", "per_step").iter_rows())
    times = dict(steps.rows.group_by("rank").agg(pl.col("compute_ns").mean()).iter_rows())
    if len(counts) == 1 or {*counts} != {*times}:
        return
    for rank, own in counts.items():
        usual = median([count for other, count in counts.items() if other != rank])
        longer = times[rank] - median([ns for other, ns in times.items() if other != rank])
        if own > (1 + _OTHER_WORK) * usual:
            yield JobFinding(
                "other-work",
                max(0, int(longer)),
                f"Rank {rank} runs {own / usual:.2f} × as many kernels as the others, and computes "
                f"{time(max(0, longer))} longer in a step.",
                "Give ranks the same work; what one rank alone does, the others wait for.",
                "rank_steps",
            )


RULES: Final = (_stragglers, _exposed_transfer, _small_collectives, _slow_groups, _uneven_parts, _other_work)
