"""Reductions: what the analysis of a job needs of one report, as small tables; see docs/ranks.md."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The layout of a reduction; one of another version is made anew.
VERSION: Final = 2

#: What the host is in while the loop that launches its work gets a batch.
IN_LOADER: Final = "DataLoader.__next__"

_MEMBER: Final = Column("member", pl.Int64, "The rank, as its row in the ranks of the reduction.")
_NUMBER: Final = Column("number", pl.Int64, "The collective, as its number among those of its rank.")
_STEP: Final = Column("step", pl.Int64, "The step, as its row in the steps of the rank; null outside.", nullable=True)

RANKS: Final = Table(
    "reduced_ranks",
    "One rank: a process on one GPU.",
    (
        Column("rank", pl.Int64, "Its number in the job, where the report tells it.", nullable=True),
        Column("world_size", pl.Int64, "Ranks of the job, where the report tells it.", nullable=True),
        Column("host", pl.String, "The machine, where the report tells it.", nullable=True),
        Column("report", pl.String, "The report."),
        Column("tool", pl.String, "The tool that recorded it."),
        Column("process_id", pl.Int64, "The process.", nullable=True),
        Column("device", pl.Int64, "The GPU; null for a rank without one.", nullable=True),
        Column("gpu", pl.String, "Name of the GPU.", nullable=True),
        Column("origin_ns", pl.Int64, "Unix time of the report's time 0; 0 where the report does not tell it."),
        Column("start_ns", pl.Int64, "Start of the rank's window, in Unix time."),
        Column("end_ns", pl.Int64, "End of the rank's window, in Unix time."),
        Column("communication_ns", pl.Int64, "The bucket communication of the ledger of the window."),
        Column("on_cpu", pl.Int64, "Collectives that gloo ran on the CPU, beside those of the GPU."),
    ),
)

COLLECTIVES: Final = Table(
    "reduced_collectives",
    "One collective of one rank.",
    (
        _MEMBER,
        _NUMBER,
        Column("kind", pl.String, "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, …"),
        Column("group", pl.String, "The process group or communicator, as all its ranks call it.", nullable=True),
        Column("size", pl.Int64, "Ranks that take part.", nullable=True),
        Column("ranks", pl.String, "Ranks of the job that take part, a list, where it is known whole.", nullable=True),
        Column("own", pl.Int64, "The rank in the group.", nullable=True),
        Column("source", pl.Int64, "Who sends, or the root of a broadcast: a rank in the group.", nullable=True),
        Column("target", pl.Int64, "Who receives, or the root of a reduction: a rank in the group.", nullable=True),
        Column("sequence", pl.Int64, "Its number in the group, as recorded.", nullable=True),
        Column("id", pl.String, "What the tool calls it on all ranks.", nullable=True),
        Column("type", pl.String, "Element type.", nullable=True),
        Column("in_bytes", pl.Int64, "Bytes that the rank gives.", nullable=True),
        Column("out_bytes", pl.Int64, "Bytes that the rank gets.", nullable=True),
        Column("largest_bytes", pl.Int64, "Of uneven parts: bytes sent or received, without its own.", nullable=True),
        Column("device", pl.Int64, "The GPU.", nullable=True),
        Column("stream", pl.Int64, "The stream.", nullable=True),
        Column("start_ns", pl.Int64, "Start, in Unix time."),
        Column("dur_ns", pl.Int64, "Duration."),
        Column("exposed_ns", pl.Int64, "Time in which the GPU ran nothing else; additive."),
    ),
)

PIECES: Final = Table(
    "reduced_pieces",
    "One exposed piece of a collective, within one step or outside of steps.",
    (
        _MEMBER,
        _NUMBER,
        _STEP,
        Column("start_ns", pl.Int64, "Start, in Unix time."),
        Column("end_ns", pl.Int64, "End."),
    ),
)

BEFORE: Final = Table(
    "reduced_before",
    "One bucket of the ledger from the end of the group's previous collective to the start of this one.",
    (
        _MEMBER,
        _NUMBER,
        Column("bucket", pl.String, "The bucket."),
        Column("detail", pl.String, "What of the bucket it is: that of DataLoader is told apart.", nullable=True),
        Column("ns", pl.Int64, "Time."),
    ),
)

STEPS: Final = Table(
    "reduced_steps",
    "One step of one rank: the time in which its GPU did the work of that step.",
    (
        _MEMBER,
        Column("index", pl.Int64, "Its row among the steps of the rank."),
        Column("step", pl.Int64, "Its number: that of the profiler, else by order, from 1 on."),
        Column("numbered", pl.Boolean, "Whether the number is the program's own."),
        Column("name", pl.String, "What a step is called."),
        Column("kind", pl.String, "steady, warm-up, odd or cut."),
        Column("start_ns", pl.Int64, "Start, in Unix time."),
        Column("end_ns", pl.Int64, "End."),
    ),
)

LEDGERS: Final = Table(
    "reduced_ledgers",
    "One bucket of the ledger of a step.",
    (
        _MEMBER,
        Column("index", pl.Int64, "The step, as its row among the steps of the rank."),
        Column("bucket", pl.String, "The bucket."),
        Column("ns", pl.Int64, "Time."),
    ),
)

KERNELS: Final = Table(
    "reduced_kernels",
    "The kernels of one name in all steady steps of a rank.",
    (
        _MEMBER,
        Column("name", pl.String, "Name; null for all that are not among the longest.", nullable=True),
        Column("count", pl.Int64, "How often."),
        Column("per_step", pl.Float64, "How often in a step; null where no steps are known.", nullable=True),
        Column("ns", pl.Int64, "Sum of their durations."),
    ),
)

# What earlier versions kept of a rank, and no page of a job tells: read where it is there, and made no more.
FINDINGS: Final = Table(
    "reduced_findings",
    "One finding of a rank.",
    (
        _MEMBER,
        Column("finding", pl.String, "Its kind."),
        Column("headline", pl.String, "What it says."),
        Column("at_stake_ns", pl.Int64, "What it may be worth.", nullable=True),
    ),
)

HEALTH: Final = Table(
    "reduced_health",
    "One thing that a report could not tell, or that had to be repaired.",
    (Column("check", pl.String, "What was looked at."), Column("effect", pl.String, "What cannot be trusted.")),
)


@dataclass(frozen=True)
class Reduction:
    """Reduced report: what the analysis of a job needs of one rank or more, the tables of :data:`TABLES`.

    Collectives are by member and number.
    """

    ranks: pl.DataFrame = field(default_factory=RANKS.empty)
    collectives: pl.DataFrame = field(default_factory=COLLECTIVES.empty)
    pieces: pl.DataFrame = field(default_factory=PIECES.empty)
    before: pl.DataFrame = field(default_factory=BEFORE.empty)
    steps: pl.DataFrame = field(default_factory=STEPS.empty)
    ledgers: pl.DataFrame = field(default_factory=LEDGERS.empty)
    kernels: pl.DataFrame = field(default_factory=KERNELS.empty)
    findings: pl.DataFrame = field(default_factory=FINDINGS.empty)
    health: pl.DataFrame = field(default_factory=HEALTH.empty)

    def tables(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Each table with its name."""
        for one in fields(self):
            yield one.name, getattr(self, one.name)


#: The declarations of the tables of a reduction by name.
TABLES: Final = {
    table.name.removeprefix("reduced_"): table
    for table in (RANKS, COLLECTIVES, PIECES, BEFORE, STEPS, LEDGERS, KERNELS, FINDINGS, HEALTH)
}

#: Tables that are only needed once the collectives of all ranks are known.
LATER: Final = ("pieces", "before")
