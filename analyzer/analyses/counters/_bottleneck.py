"""The bottleneck of a kernel in one paragraph, from all that ncu measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kanalyze import units
from kanalyze.analyses.counters._kernel_rules import HIGH, LOW
from kanalyze.analyses.counters._stall_reasons import REASONS

if TYPE_CHECKING:
    Row = dict[str, Any]

FEW_BLOCKS: Final = "too few blocks"
MEMORY: Final = "memory-bound"
COMPUTE: Final = "compute-bound"
LATENCY: Final = "latency-bound"
UNKNOWN: Final = "unknown"

#: The memory levels, the outermost first, with their utilisation columns.
_LEVELS: Final = {"DRAM": "dram_share", "the L2 cache": "l2_share", "the L1 cache": "l1_share"}

#: The outermost level with this share of the busiest one's utilisation is named: it serves the misses of the inner
#: ones.
_NEARLY: Final = 0.9

#: Smaller shares of all accesses are negligible.
_LITTLE: Final = 0.1


def bound(row: Row) -> str:
    """The bottleneck: few blocks, memory, compute, latency, or unknown; `row` is of :func:`advice.kernel_facts`.

    The limit of 60 % is from ncu's rule SOLBottleneck: below it, a kernel waits more than it works.
    """
    compute, memory, blocks, sms = row["compute_share"], row["memory_share"], row["blocks"], row["sms"]
    if None not in (blocks, sms) and blocks * 2 <= sms:
        return FEW_BLOCKS
    if compute is None or memory is None:
        return UNKNOWN
    if max(compute, memory) < LOW:
        return LATENCY
    return MEMORY if memory >= compute else COMPUTE


def paragraph(row: Row) -> str:
    """The verdict on a kernel, and which other checks passed."""
    says = {FEW_BLOCKS: _few, MEMORY: _memory, COMPUTE: _compute, LATENCY: _latency, UNKNOWN: _unknown}
    parts = [says[bound(row)](row), _occupancy(row), _in_order(row)]
    return " ".join(part for part in parts if part)


def _few(row: Row) -> str:
    busy = units.plural(row["blocks"], "block")
    return f"Too few blocks: the grid has {busy} for {row['sms']} SMs, so most of the GPU does nothing."


def _memory(row: Row) -> str:
    known = {name: row[column] for name, column in _LEVELS.items() if row[column] is not None}
    if not known:
        return f"Memory-bound: the memory system works at {units.percent(row['memory_share'])} of its peak."
    most = max(known.values())
    level = next(name for name, busy in known.items() if busy >= most * _NEARLY)
    rate = row["dram_bytes_per_s"]
    told = f" ({units.rate(rate)})" if level == "DRAM" and rate is not None else ""
    text = f"Memory-bound: {level} works at {units.percent(known[level])} of its peak{told}."
    if level == "DRAM" and known[level] >= HIGH:
        return f"{text} Only fewer bytes can make it much faster."
    return text


def _compute(row: Row) -> str:
    text = f"Compute-bound: the busiest part of the SMs works at {units.percent(row['compute_share'])} of its peak."
    if None in (row["achieved_flop_per_s"], row["precision"]) or row["bound"] != "compute":
        return text
    rate = units.flop(row["achieved_flop_per_s"], units.operations(row["precision"]))
    return f"{text} It does {rate}/s, {units.percent(row['roof_share'])} of the roof for {row['precision']}."


def _latency(row: Row) -> str:
    busy = f"compute works at {units.percent(row['compute_share'])}, memory at {units.percent(row['memory_share'])}"
    text = f"Latency-bound: {busy} of their peaks."
    if row["top_stall"] is None or row["top_stall_share"] is None:
        return text
    why = REASONS[row["top_stall"]][0]
    return f"{text} Warps wait most for {why} ({units.percent(row['top_stall_share'])} of their time)."


def _unknown(row: Row) -> str:
    del row
    return "What holds it back cannot be told: the section SpeedOfLight was not collected."


def _occupancy(row: Row) -> str:
    possible, achieved = row["occupancy_share"], row["achieved_occupancy_share"]
    if possible is None or achieved is None:
        return ""
    limit = f", limited by {row['limiter']}" if row["limiter"] and possible < 1 else ""
    return f"Occupancy is {units.percent(achieved)} of {units.percent(possible)} possible{limit}."


def _in_order(row: Row) -> str:
    """The checks that passed."""
    fine = []
    if row["uncoalesced_share"] is not None and row["uncoalesced_share"] < _LITTLE:
        fine.append("accesses are coalesced")
    if row["bank_conflict_share"] is not None and row["bank_conflict_share"] < _LITTLE:
        fine.append("shared memory has hardly any bank conflicts")
    if row["local_loads"] == 0 and row["local_stores"] == 0:
        fine.append("nothing spills")
    text = ", ".join(fine[:-1]) + " and " + fine[-1] if len(fine) > 1 else "".join(fine)
    return f"In order: {text}." if text else ""
