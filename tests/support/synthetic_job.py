"""Made-up jobs of many ranks, as reductions, with what is true of them.

A job is played through in true time, operation by operation and all ranks at once: each computes, and enters the
collective; none leaves before all have come (of a broadcast: before the root has, and so on), and they leave nearly
together. What a rank records is read off the clock of its host, which is off and drifts, and some of it may be lost.

    made = play(Plan(ranks=8, hosts=2, stragglers=(Straggler(2, 3, 5, 4_000_000, "kernel"),)))
    job_of([*made.reductions()])
    made.truth()
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from kanalyze.reduction.tables import BEFORE, COLLECTIVES, KERNELS, LEDGERS, PIECES, RANKS, STEPS, TABLES

#: Unix time of the beginning.
ORIGIN_NS = 1_760_000_000_000_000_000

#: What a link carries.
BYTES_PER_NS = 200

#: What a collective takes at the least.
LATENCY_NS = 10_000

#: How far apart ranks leave at the most.
APART_NS = 200

#: Kinds between two ranks, who is who is told by the row.
PAIR = "send"

#: What each operation of a step tells of itself, in the order of `_Rank._told`.
_TOLD = ("kind", "group", "size", "ranks", "own", "source", "target", "in_bytes", "out_bytes", "stream")


class Op(NamedTuple):
    """One collective of each step."""

    kind: str = "all_reduce"  # its kind; `send` is a send on one rank and a recv on the other
    #: world, tp (neighbours), dp (every tp-th rank) or pp (a rank of the first half with one of the second).
    group: str = "world"
    bytes: int = 4_000_000  # its size
    compute_ns: int = 300_000  # what every rank computes after it, or beside it
    overlapped: bool = False  # whether that begins together with the collective
    #: Whether those that need nobody leave at once: who sends, the root of a broadcast, the others of a reduce.
    eager: bool = False
    stream: int = 7  # the stream
    #: How many times the mean the first rank of each group sends to others, of an all_to_all; 0 where the sizes of
    #: parts are not recorded.
    uneven: float = 0


class Straggler(NamedTuple):
    """A rank that takes longer before the first collective of some steps."""

    rank: int  # the rank
    first: int  # the first of these steps, from 0 on
    last: int  # the last of them
    delay_ns: int  # how much longer
    bucket: str = "kernel"  # what it does meanwhile, a bucket of the ledger


#: A step of tensor and data parallel ranks.
MIXED_OPS = (
    Op("all_gather", "tp", 1_000_000),
    Op("reduce_scatter", "tp", 1_000_000),
    Op(PAIR, "pp", 500_000, stream=9),
    Op("all_reduce", "dp", 20_000_000, overlapped=True, stream=8),
    Op("all_reduce", "world", 64, stream=8),
)

#: A step of data parallel ranks: buckets beside the backward pass.
DATA_PARALLEL_OPS = (
    *(Op("all_reduce", "world", 1_000_000 * (1 + at % 3), overlapped=True) for at in range(6)),
    Op("all_reduce", "world", 64),
)


@dataclass(frozen=True)
class Plan:
    ranks: int = 4
    hosts: int = 2  # each with as many neighbouring ranks
    steps: int = 6
    ops: tuple[Op, ...] = MIXED_OPS  # the collectives of a step; the last one is not overlapped
    tp: int = 2  # ranks of a tensor parallel group
    #: By how much the clock of each host is ahead; drawn from ±5 ms where none are given.
    offsets_ns: tuple[int, ...] | None = None
    drifts: tuple[float, ...] | None = None  # by how much each of them is fast; drawn from ±50 ppm where none are given
    stragglers: tuple[Straggler, ...] = ()  # ranks that are late
    jitter: float = 0.05  # how much computing varies, as a share
    heads: dict = field(default_factory=dict)  # how many collectives at the beginning a rank has lost
    tails: dict = field(default_factory=dict)  # how many at the end
    recorded: str = "id"  # what tells which are the same: id, seq, seq in pairs of one number (coalesced), or order
    grouped: bool = True  # whether a rank knows group, size and its place in it; else only kind and bytes
    numbered: bool = True  # whether steps have the program's own numbers
    #: Groups, such as tp1, whose links carry that part of what others carry.
    slow: dict = field(default_factory=dict)
    kernels: tuple[int, ...] = ()  # kernels that each rank runs in a step, where that is recorded
    seed: int = 0  # what is drawn


class Played(NamedTuple):
    """When each rank did what, in true time: operations × ranks."""

    start: np.ndarray  # it enters the collective
    end: np.ndarray  # it leaves it
    computed: np.ndarray  # it has computed what comes after the collective, or beside it
    first: np.ndarray  # it has computed what comes before the first one


def groups(plan, name):
    """The ranks of the groups of one kind: groups × ranks of each."""
    every = np.arange(plan.ranks)
    if name == "world":
        return every[None, :]
    if name == "pp":
        return every.reshape(2, -1).T
    return every.reshape(-1, plan.tp) if name == "tp" else every.reshape(-1, plan.tp).T


def play(plan):
    assert not plan.ops[-1].overlapped
    assert plan.ranks % plan.tp == 0
    random = np.random.default_rng(plan.seed)
    count = plan.steps * len(plan.ops)
    start, end, computed = (np.zeros((count, plan.ranks), dtype=np.int64) for _ in range(3))

    def work(ns):
        return (ns * (1 + plan.jitter * random.random(plan.ranks))).astype(np.int64)

    own, idle = _delays(plan, 0)
    first = work(plan.ops[-1].compute_ns) + own
    ready = first + idle
    for at in range(count):
        step, place = divmod(at, len(plan.ops))
        op = plan.ops[place]
        start[at], end[at] = ready, _left(plan, op, ready, random)
        own, idle = _delays(plan, step + 1) if place == len(plan.ops) - 1 else (0, 0)
        computed[at] = (start[at] if op.overlapped else end[at]) + work(op.compute_ns) + own
        ready = np.maximum(end[at], computed[at] + idle)
    offsets = np.array(plan.offsets_ns or random.integers(-5_000_000, 5_000_000, plan.hosts), dtype=np.int64)
    drifts = np.array(plan.drifts or random.uniform(-5e-5, 5e-5, plan.hosts))
    return Made(plan, Played(start, end, computed, first), offsets, drifts)


def _delays(plan, step):
    both = np.zeros((2, plan.ranks), dtype=np.int64)
    for one in plan.stragglers:
        if one.first <= step <= one.last:
            both[int(one.bucket != "kernel"), one.rank] += one.delay_ns
    return both[0], both[1]


def _left(plan, op, entered, random):
    left = np.zeros_like(entered)
    for number, members in enumerate(groups(plan, op.group)):
        own = entered[members]
        link = BYTES_PER_NS * plan.slow.get(f"{op.group}{number}", 1)
        took = LATENCY_NS + int(op.bytes * max(1, op.uneven) / link * (1 + 0.1 * random.random()))
        out = np.full(len(members), own.max())
        if op.eager and op.kind in ("broadcast", PAIR):
            out = np.maximum(own, own[0])
        elif op.eager and op.kind == "reduce":
            out = np.where(np.arange(len(own)) == 0, own.max(), own)
        left[members] = out + took + random.integers(0, APART_NS, len(members))
    return left


@dataclass(frozen=True)
class Made:
    plan: Plan
    played: Played
    offsets: np.ndarray  # by how much the clock of each host is ahead
    drifts: np.ndarray  # by how much it is fast

    def host(self, rank):
        return rank * self.plan.hosts // self.plan.ranks

    def offset(self, host, at_ns):
        """By how much the clock of a host is ahead of true time, at true times."""
        return self.offsets[host] + (self.drifts[host] * at_ns).astype(np.int64)

    def local(self, rank, at_ns):
        """What the clock of a rank's host shows at true times."""
        return ORIGIN_NS + at_ns + self.offset(self.host(rank), at_ns)

    def kept(self, rank):
        last = len(self.played.start) - self.plan.tails.get(rank, 0)
        return np.arange(min(self.plan.heads.get(rank, 0), last), last)

    def reductions(self):
        for rank in range(self.plan.ranks):
            yield _Rank(self, rank).reduction()

    def truth(self):
        """What is true of each collective of each rank, of all that took part, recorded or not.

        Columns: rank, op, true (the collective, a number), members, wait_ns, last (who came last), late_ns (after the
        one before), and number, that of its row in the reduction; null where it was lost.
        """
        parts = []
        start, end = self.played.start, self.played.end
        for at in range(len(start)):
            for place, members in enumerate(groups(self.plan, self.plan.ops[at % len(self.plan.ops)].group)):
                own, left = start[at, members], end[at, members]
                arrival, order = own.max(), np.argsort(own)
                told = pl.DataFrame({"rank": members, "wait_ns": np.minimum(arrival, left) - own})
                parts.append(
                    told.with_columns(
                        op=pl.lit(at),
                        true=pl.lit(at * self.plan.ranks + place),
                        members=pl.lit(len(members)),
                        last=pl.lit(int(members[order[-1]])),
                        late_ns=pl.lit(int(arrival - own[order[-2]]) if len(members) > 1 else 0),
                    )
                )
        kept = [
            pl.DataFrame({"op": self.kept(rank)}).with_columns(rank=pl.lit(rank, dtype=pl.Int64), number=pl.row_index())
            for rank in range(self.plan.ranks)
        ]
        return pl.concat(parts).join(
            pl.concat(kept).cast(pl.Int64), on=["rank", "op"], how="left", maintain_order="left"
        )


class _Rank:
    """What one rank recorded, as tables."""

    def __init__(self, made, rank):
        """Read off its clock when it did what, and how much of the collectives was not beside computing."""
        self.made, self.plan, self.rank = made, made.plan, rank
        self.begins = made.local(rank, np.zeros(1, dtype=np.int64))
        self.first = made.local(rank, made.played.first[rank : rank + 1])
        times = (made.played.start, made.played.end, made.played.computed)
        self.start, self.end, self.computed = (made.local(rank, time[:, rank]) for time in times)
        self.overlapped = np.tile([op.overlapped for op in self.plan.ops], self.plan.steps)
        begun = np.where(self.overlapped, np.maximum(self.start, self.computed), self.start)
        self.exposed = np.maximum(self.end - begun, 0)
        self.kept = made.kept(rank)
        each, steps = len(self.plan.ops), np.arange(self.plan.steps if len(self.kept) else 0)
        #: The steps of which all was recorded.
        self.whole = steps[(steps * each >= self.kept[:1]) & ((steps + 1) * each - 1 <= self.kept[-1:])]
        self.device = rank % max(1, self.plan.ranks // self.plan.hosts)

    def _cause(self, step):
        """What the rank does instead of computing, before a step."""
        of = [one for one in self.plan.stragglers if one.rank == self.rank and one.first <= step <= one.last]
        return next((one.bucket for one in of if one.bucket != "kernel"), "host")

    @cached_property
    def sums(self):
        """The ledger from the beginning to the start and to the end of each operation, by bucket."""
        count, each = len(self.start), len(self.plan.ops)
        inside = np.where(self.overlapped, np.clip(self.computed - self.start, 0, self.end - self.start), 0)
        came = np.r_[self.begins, self.end[:-1]]
        done = np.maximum(came, np.r_[self.first, self.computed[:-1]])
        idle = self.start - done
        causes = np.array([self._cause(step) for step in range(self.plan.steps)]).repeat(each)
        causes[np.arange(count) % each != 0] = "host"
        between = {"kernel": done - came} | {name: np.where(causes == name, idle, 0) for name in np.unique(causes)}
        within = {"kernel": inside, "communication": self.end - self.start - inside}
        sums = {}
        for name in sorted({*between, *within}):
            before, own = between.get(name, np.zeros_like(idle)), within.get(name, np.zeros_like(idle))
            ends = np.cumsum(before + own)
            sums[str(name)] = (ends - own, ends)
        return sums

    def reduction(self):
        return {name: getattr(self, f"_{name}")() for name in TABLES if name != "costs"}

    def _kernels(self):
        if not self.plan.kernels:
            return KERNELS.empty()
        each = self.plan.kernels[self.rank]
        rows = {"name": ["gemm"], "count": [each * self.plan.steps], "per_step": [float(each)], "ns": [each * 1_000]}
        return KERNELS.select(self._member(rows))

    def _place(self, op):
        """The number of the rank's group, its place in it, and the members."""
        members = groups(self.plan, op.group)
        number, own = (int(one[0]) for one in np.nonzero(members == self.rank))
        return number, own, members[number]

    def _largest(self, op):
        """What the rank sends to others of an all_to_all; the sizes of its ranks have the mean of the operation's."""
        if not op.uneven:
            return None
        _, own, members = self._place(op)
        return int(op.bytes * (op.uneven if own == 0 else (len(members) - op.uneven) / (len(members) - 1)))

    def _member(self, rows):
        return pl.DataFrame(rows).with_columns(member=pl.lit(0, dtype=pl.Int64))

    def _ranks(self):
        rows = {
            "rank": [self.rank], "world_size": [self.plan.ranks], "host": [f"host{self.made.host(self.rank)}"],
            "report": [f"rank{self.rank}.json"], "tool": ["torch"], "process_id": [100 + self.rank],
            "device": [self.device], "gpu": ["H200"], "origin_ns": self.begins, "start_ns": self.begins,
            "end_ns": self.end[-1:], "communication_ns": self.exposed[self.kept].sum(keepdims=True), "on_cpu": [0],
            "recorded": ["api op"], "corrected": [False],
        }  # fmt: skip
        return RANKS.select(pl.DataFrame(rows))

    def _collectives(self):
        plan, schema = self.plan, {name: COLLECTIVES.schema[name] for name in _TOLD}
        each = pl.DataFrame([self._told(op) for op in plan.ops], schema=schema, orient="row")
        rows = pl.concat([each] * plan.steps).with_columns(
            start_ns=pl.Series(self.start),
            dur_ns=pl.Series(self.end - self.start),
            exposed_ns=pl.Series(self.exposed),
            at=pl.row_index().cast(pl.Int64),
        )
        nth = pl.int_range(pl.len()).over("group") // (2 if plan.recorded == "coalesced" else 1)
        rows = rows.with_columns(
            sequence=nth if plan.recorded in ("seq", "coalesced") else pl.lit(None),
            id=pl.format("{}.{}", "at", "group") if plan.recorded == "id" else pl.lit(None),
            member=pl.lit(0),
            type=pl.lit("float"),
            largest_bytes=pl.Series([self._largest(op) for op in plan.ops] * plan.steps, dtype=pl.Int64),
            device=pl.lit(self.device),
        )
        unknown = [] if plan.grouped else ["group", "size", "ranks", "own", "source", "target"]
        rows = rows.with_columns(pl.lit(None).alias(name) for name in unknown)
        kept = rows.filter(pl.col("at").is_in(self.kept)).with_columns(number=pl.row_index())
        return kept.select(list(COLLECTIVES.schema)).cast(COLLECTIVES.schema)  # type: ignore[arg-type]

    def _told(self, op):
        number, own, members = self._place(op)
        size = len(members)
        stride = int(members[1] - members[0]) if size > 1 else 1
        kind = op.kind if op.kind != PAIR else ("send", "recv")[own]
        root = {"broadcast": (0, None), "reduce": (None, 0), "send": (0, 1), "recv": (0, 1)}.get(kind, (None, None))
        given = op.bytes // size if kind == "all_gather" else op.bytes
        got = op.bytes // size if kind == "reduce_scatter" else op.bytes
        return (kind, f"{op.group}{number}", size, f"{members[0]}:{stride}:{size}", own, *root, given, got, op.stream)

    def _pieces(self):
        own = self.exposed[self.kept] > 0
        at = self.kept[own]
        step = at // len(self.plan.ops)
        rows = self._member(
            {
                "number": np.flatnonzero(own),
                "step": pl.Series(np.searchsorted(self.whole, step)).set(pl.Series(~np.isin(step, self.whole)), None),
                "start_ns": self.end[at] - self.exposed[at],
                "end_ns": self.end[at],
            }
        )
        return PIECES.select(rows.cast({"step": pl.Int64}))

    def _before(self):
        lanes = [(op.group, op.stream) for op in self.plan.ops]
        lane = np.tile([lanes.index(one) for one in lanes], self.plan.steps)[self.kept]
        order = np.argsort(lane, kind="stable")
        follows = lane[order][1:] == lane[order][:-1]
        number, previous = order[1:][follows], order[:-1][follows]
        parts = [
            self._member({"number": number, "bucket": [name] * len(number), "ns": starts[at] - ends[before]})
            for at, before in [(self.kept[number], self.kept[previous])]
            for name, (starts, ends) in self.sums.items()
        ]
        rows = pl.concat(parts).filter(pl.col("ns") > 0).sort("number", maintain_order=True)
        return BEFORE.select(rows.cast({"bucket": pl.String}).with_columns(detail=pl.lit(None, dtype=pl.String)))

    def _edges(self):
        """The operations that steps end with, and the one before each; -1 before the first."""
        last = (self.whole + 1) * len(self.plan.ops) - 1
        return last - len(self.plan.ops), last

    def _steps(self):
        low, high = self._edges()
        rows = self._member(
            {
                "index": np.arange(len(self.whole)),
                "step": (self.whole if self.plan.numbered else np.arange(len(self.whole))) + 1,
                "numbered": [self.plan.numbered] * len(self.whole),
                "name": ["step"] * len(self.whole),
                "kind": ["steady"] * len(self.whole),
                "start_ns": np.where(low >= 0, self.end[low], self.begins),
                "end_ns": self.end[high],
            }
        )
        return STEPS.select(rows.cast({name: STEPS.schema[name] for name in rows.columns}))  # type: ignore[arg-type]

    def _ledgers(self):
        (low, high), count = self._edges(), len(self.whole)
        took = {name: ends[high] - np.where(low >= 0, ends[low], 0) for name, (_, ends) in self.sums.items()}
        rows = {"index": np.arange(count)}
        parts = [self._member(rows | {"bucket": [name] * count, "ns": ns}) for name, ns in took.items()]
        rows = pl.concat(parts).filter(pl.col("ns") > 0)
        return LEDGERS.select(rows.cast({"bucket": pl.String}))
