"""Rules for kernels that ncu measured, each with the metrics that prove it.

A rule reads columns of the tables `counters` and `roofline`; it is silent where one that it needs was not collected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kanalyze import units
from kanalyze.analyses.counters._metrics import REASONS

if TYPE_CHECKING:
    Row = dict[str, Any]

#: A unit above this share of its peak is the limit: ncu's own rules take 80 % for high, 60 % for low.
HIGH: Final = 0.8
LOW: Final = 0.6

#: Smaller shares are not worth a sentence.
_WORTH: Final = 0.1

#: With so many eligible warps, a scheduler can issue in nearly every cycle.
_ENOUGH_ELIGIBLE: Final = 2


@dataclass(frozen=True)
class KernelRule:
    """One rule about kernels.

    Attributes:
        name: Stable name.
        needs: The columns that it reads; it is silent if one of them is null.
        applies: Whether it applies to a row.
        sentence: The finding.
        remedy: What to do about it.
        estimate: The maximum share of the duration that can be saved; None if unknown.
        scope: ``global`` where the estimate is of the kernel's duration, ``local`` where it is of one part of the
            hardware.
    """

    name: str
    needs: tuple[str, ...]
    applies: Callable[[Row], bool]
    sentence: Callable[[Row], str]
    remedy: str
    estimate: Callable[[Row], float | None] = lambda _: None
    scope: str = "global"

    def found(self, row: Row) -> bool:
        """Whether the rule applies to a kernel, and has all columns that it needs."""
        return all(row[column] is not None for column in self.needs) and self.applies(row)

    def evidence(self, row: Row) -> str:
        """The metrics that prove it, as ``column=value``."""
        return ", ".join(f"{column}={_plain(row[column])}" for column in self.needs)


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _percent(row: Row, column: str) -> str:
    return units.percent(row[column])


def _few_blocks(row: Row) -> str:
    idle = row["sms"] - row["blocks"]
    return (
        f"{units.plural(row['blocks'], 'block')} for {row['sms']} SMs: {units.plural(idle, 'SM')} have nothing to do."
    )


def _tail(row: Row) -> str:
    room, full = row["blocks_per_sm"] * row["sms"], int(row["waves"])
    last = row["blocks"] - full * room
    return (
        f"{units.count(row['blocks'])} blocks run in {units.plural(full, 'full wave')} of {units.count(room)} and a "
        f"last one of {units.count(last)}, which leaves {_percent(row, 'tail_share')} of all the room empty."
    )


def _occupancy(row: Row) -> str:
    return (
        f"At most {_percent(row, 'occupancy_share')} of the warps that an SM can hold are resident, limited by "
        f"{row['limiter']} ({row['registers_per_thread']} registers per thread, "
        f"{units.size(row['static_shared_bytes'] + row['dynamic_shared_bytes'])} shared memory per block)."
    )


def _unbalanced(row: Row) -> str:
    return (
        f"Of the occupancy of {_percent(row, 'occupancy_share')} that is possible, "
        f"{_percent(row, 'achieved_occupancy_share')} were there on average: blocks or warps are unequal, or end "
        "before new ones start."
    )


def _uncoalesced(row: Row) -> str:
    parts = [
        f"a {what} of a warp touches {row[f'{what}_sectors_per_request']:.1f} sectors and uses "
        f"{_percent(row, f'{what}_used_share')} of their bytes"
        for what in ("load", "store")
        if (row[f"{what}_used_share"] or 1) < 1 - _WORTH and row[f"{what}_sectors_per_request"] is not None
    ]
    detail = f" ({'; '.join(parts)})" if parts else ""
    return (
        f"{_percent(row, 'uncoalesced_share')} of the sectors of global accesses would not be needed if threads side "
        f"by side accessed bytes side by side{detail}."
    )


def _conflicts(row: Row) -> str:
    return (
        f"{units.count(row['bank_conflicts'])} bank conflicts: {_percent(row, 'bank_conflict_share')} of what shared "
        "memory does is to serve accesses again that hit one bank."
    )


def _spills(row: Row) -> str:
    accesses = row["local_loads"] + row["local_stores"]
    what = f", {units.count(row['spill_requests'])} of them for spilled registers" if row["spill_requests"] else ""
    return (
        f"{units.plural(accesses, 'access')} to local memory (loads and stores of warps){what}, "
        f"{row['registers_per_thread']} registers per thread."
    )


def _double(row: Row) -> str:
    return (
        f"{units.flop(row['fp64_flop'])} in double precision, {units.percent(row['fp64_flop'] / row['flop'])} of "
        "its work."
    )


def _no_tensor(row: Row) -> str:
    rate = units.flop(row["achieved_flop_per_s"])
    others = (
        "did nothing" if row["tensor_flop"] == 0 else f"did {units.percent(row['tensor_flop'] / row['flop'])} of it"
    )
    return (
        f"{rate}/s in FP32 on the ordinary cores, {units.percent(row['roof_share'])} of their roof; the tensor "
        f"cores {others}."
    )


def _memory_roof(row: Row) -> str:
    return (
        f"At {units.percent(row['roof_share'])} of the roof: {units.rate(row['dram_bytes_per_s'])} of "
        f"{units.rate(row['peak_dram_bytes_per_s'])}. The same bytes cannot move much faster."
    )


def _latency(row: Row) -> str:
    why = REASONS[row["top_stall"]][0]
    return (
        f"Neither compute ({_percent(row, 'compute_share')}) nor memory ({_percent(row, 'memory_share')}) is busy: of "
        f"{row['active_warps']:.1f} warps per scheduler {row['eligible_warps']:.2f} can issue. They wait for {why} "
        f"({row['top_stall']}, {_percent(row, 'top_stall_share')} of {row['cycles_per_instruction']:.1f} cycles per "
        "instruction)."
    )


def _full_waves(row: Row) -> bool:
    return bool(row["waves"] >= 1)


RULES: Final = (
    KernelRule(
        "too-few-blocks",
        ("blocks", "sms"),
        lambda row: row["blocks"] < row["sms"],
        _few_blocks,
        "Launch a block for each SM at least: smaller blocks, or more of the work at once; or run other kernels beside "
        "it.",
        lambda row: 1 - row["blocks"] / row["sms"],
    ),
    KernelRule(
        "partial-wave",
        ("waves", "tail_share", "blocks", "blocks_per_sm", "sms"),
        lambda row: row["waves"] > 1 and row["tail_share"] >= _WORTH,
        _tail,
        "Make the grid a multiple of what runs at once, or let each block take several parts of the work.",
        lambda row: row["tail_share"],
    ),
    KernelRule(
        "low-theoretical-occupancy",
        (
            *("occupancy_share", "limiter", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes"),
            *("waves", "eligible_warps"),
        ),
        lambda row: row["occupancy_share"] < LOW and _full_waves(row) and row["eligible_warps"] < _ENOUGH_ELIGIBLE,
        _occupancy,
        "Lower what limits: __launch_bounds__ or fewer live values for registers, smaller tiles for shared memory, "
        "other block sizes for blocks and warps.",
        lambda row: 1 - row["occupancy_share"],
        "local",
    ),
    KernelRule(
        "low-achieved-occupancy",
        ("occupancy_share", "achieved_occupancy_share", "waves"),
        lambda row: row["achieved_occupancy_share"] < HIGH * row["occupancy_share"] and _full_waves(row),
        _unbalanced,
        "Give blocks equal work, or more and smaller blocks; look at the tail first.",
        lambda row: 1 - row["achieved_occupancy_share"] / row["occupancy_share"],
        "local",
    ),
    KernelRule(
        "uncoalesced",
        ("uncoalesced_share",),
        lambda row: row["uncoalesced_share"] >= _WORTH,
        _uncoalesced,
        "Let neighbouring threads access neighbouring elements: another order of indices, a structure of arrays, or a "
        "detour through shared memory. `kanalyze source REPORT KERNEL` shows the lines.",
        lambda row: row["uncoalesced_share"],
        "local",
    ),
    KernelRule(
        "bank-conflicts",
        ("bank_conflicts", "bank_conflict_share"),
        lambda row: row["bank_conflict_share"] >= _WORTH,
        _conflicts,
        "Pad the rows of the array in shared memory by one element, or swizzle its columns.",
        lambda row: min(row["bank_conflict_share"], 1.0),
        "local",
    ),
    KernelRule(
        "local-memory",
        ("local_loads", "local_stores", "spill_requests", "registers_per_thread"),
        lambda row: row["local_loads"] + row["local_stores"] > 0,
        _spills,
        "Allow more registers (__launch_bounds__, -maxrregcount, smaller tiles), and index arrays in registers by "
        "constants only.",
    ),
    KernelRule(
        "double-precision",
        ("fp64_flop", "flop"),
        lambda row: row["fp64_flop"] >= _WORTH * row["flop"] and row["fp64_flop"] > 0,
        _double,
        "Use single precision where it is exact enough; a literal without f, or a Python float, may have made it so.",
    ),
    KernelRule(
        "no-tensor-cores",
        ("fp32_flop", "flop", "tensor_flop", "roof_share", "bound", "achieved_flop_per_s", "product"),
        lambda row: row["product"] and row["bound"] == "compute" and row["tensor_flop"] < _WORTH * row["flop"]
        and row["fp32_flop"] > row["flop"] / 2,
        _no_tensor,
        "Use fp16, or on GPUs from Ampere on bf16 or TF32 (torch.set_float32_matmul_precision('high')): they run on "
        "tensor cores.",
    ),
    KernelRule(
        "at-memory-roof",
        ("roof_share", "bound", "dram_bytes_per_s", "peak_dram_bytes_per_s"),
        lambda row: row["bound"] == "memory" and row["roof_share"] >= HIGH,
        _memory_roof,
        "Nothing is to be gained in the kernel itself: move fewer bytes (fuse it with its neighbours, narrower types).",
    ),
    KernelRule(
        "at-compute-roof",
        ("compute_share",),
        lambda row: row["compute_share"] >= HIGH,
        lambda row: f"The busiest part of the SMs works {_percent(row, 'compute_share')} of the time.",
        "Execute fewer or cheaper instructions: another algorithm, narrower types, tensor cores.",
    ),
    KernelRule(
        "latency-bound",
        (
            *("compute_share", "memory_share", "active_warps", "eligible_warps", "top_stall", "top_stall_share"),
            *("cycles_per_instruction", "blocks", "sms"),
        ),
        lambda row: max(row["compute_share"], row["memory_share"]) < LOW and row["blocks"] >= row["sms"],
        _latency,
        "Give the schedulers more to choose from: more independent work in each thread, loads earlier than their use, "
        "more resident warps.",
    ),
)  # fmt: skip


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
    says = {FEW_BLOCKS: _few, MEMORY: _memory, COMPUTE: _compute, LATENCY: _latency_words, UNKNOWN: _unknown}
    parts = [says[bound(row)](row), _occupancy_words(row), _in_order(row)]
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


def _latency_words(row: Row) -> str:
    busy = f"compute works at {units.percent(row['compute_share'])}, memory at {units.percent(row['memory_share'])}"
    text = f"Latency-bound: {busy} of their peaks."
    if row["top_stall"] is None or row["top_stall_share"] is None:
        return text
    why = REASONS[row["top_stall"]][0]
    return f"{text} Warps wait most for {why} ({units.percent(row['top_stall_share'])} of their time)."


def _unknown(row: Row) -> str:
    del row
    return "What holds it back cannot be told: the section SpeedOfLight was not collected."


def _occupancy_words(row: Row) -> str:
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
