"""Tables of ncu reports: kernel counters, results of ncu's rules, launch numbers.

Definitions: docs/definitions.md, sections 2 and 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Collection

METRICS = Table(
    "metrics",
    "One counter of one kernel that ncu collected, in the base unit of ncu.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column(
            "section",
            pl.String,
            "Section of ncu whose details page prints it, as `ncu --section` takes it; null where none does.",
            nullable=True,
        ),
        Column("metric", pl.String, "Its name in ncu."),
        Column("value", pl.Float64, "Its value; null where that is no number.", nullable=True),
        Column("text", pl.String, "Its value where that is no number, such as CachePreferNone.", nullable=True),
        Column("unit", pl.String, "Unit in ncu's own words: ns, byte/s, %, cycle…; null for none.", nullable=True),
    ),
    purpose="every counter, by ncu's own name",
    counted=True,
)

#: Kinds of rule results; OPT, INF, WRN and ERR on ncu's pages.
RULE_KINDS: Final = ("optimization", "information", "warning", "error")

RULE_RESULTS = Table(
    "rule_results",
    "One thing that a rule of ncu says of one kernel.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("section", pl.String, "Section of ncu that the rule belongs to.", nullable=True),
        Column("rule", pl.String, "Its name in ncu, such as SOLBottleneck."),
        Column("kind", pl.Enum(RULE_KINDS), "What it is: " + ", ".join(RULE_KINDS) + "."),
        Column("message", pl.String, "What it says."),
        Column(
            "scope",
            pl.String,
            "What the estimate is of: global (the kernel's duration) or local (one part of the hardware).",
            nullable=True,
        ),
        Column("speedup_share", pl.Float64, "The part that ncu estimates can be saved, 0..1.", nullable=True),
    ),
)

INSTRUCTIONS = Table(
    "instructions",
    "One instruction of one kernel, with what ncu counted there.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("number", pl.Int64, "Its place in the kernel, from 0 on."),
        Column("sass", pl.String, "The instruction, in the GPU's assembly."),
        Column("ptx", pl.String, "The PTX that it was made of.", nullable=True),
        Column("file", pl.String, "The source file, where the kernel was compiled with -lineinfo.", nullable=True),
        Column("line", pl.Int64, "The line there.", nullable=True),
        Column("samples", pl.Int64, "Samples of warps that were at it.", nullable=True),
        Column("stalled_samples", pl.Int64, "Those of them in which its scheduler issued nothing.", nullable=True),
        Column("instructions", pl.Int64, "How often a warp executed it.", nullable=True),
        Column("thread_instructions", pl.Int64, "How often a thread did, where its predicate let it.", nullable=True),
        Column("sectors", pl.Int64, "Sectors that its global accesses touch in L2.", nullable=True),
        Column("ideal_sectors", pl.Int64, "Sectors that they would touch side by side.", nullable=True),
        Column(
            "live_registers",
            pl.Int64,
            "Registers whose values are still needed there, where ncu's page of sources has a column of them.",
            nullable=True,
        ),
    ),
    purpose="every SASS instruction with its counts",
    telling=("number", "sass", "samples", "stalled_samples", "file", "line"),
    counted=True,
)

SOURCE_FILES = Table(
    "source_files",
    "One source file that was imported into the report (`ncu --import-source yes`).",
    (
        Column("file", pl.String, "Its path, as in `instructions`."),
        Column("text", pl.String, "What is in it."),
    ),
)

LAUNCH_NUMBERS = Table(
    "launch_numbers",
    "Which launch of the program one kernel that ncu measured is, where the command of ncu is known and says so.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column(
            "number", pl.Int64, "Its launch, counted from 1 among those of its function in the capture's nsys report."
        ),
        Column("symbols", pl.List(pl.String), "Functions that it can be, mangled; empty where ncu was told none."),
    ),
)

#: The only column that nsys fills, since ncu commands name functions by symbol.
SYMBOLS = Table(
    "symbols",
    "One function that ran on a device: two of different symbols may have the same name.",
    (
        Column("name", pl.String, "The name in `events`."),
        Column("symbol", pl.String, "Its name in the program's binary, mangled."),
    ),
)


def measured_some(runs: Collection[bool | None]) -> bool | None:
    """Whether several ncu runs together measured only a subset of the launches, given what is known of each.

    False if any run measured all launches; None if no run is known to, and some run is unknown.
    """
    if False in runs:
        return False
    return None if None in runs else True
