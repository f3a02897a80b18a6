"""Warp stall reasons of ncu, and their meaning for the kernel's author.

Source: the metrics reference of Nsight Compute's Profiling Guide, "Warp Stall Reasons".
"""

from __future__ import annotations

from typing import Final

#: Each reason with its meaning, and whether it is a wait (`selected` is the issue itself).
REASONS: Final = {
    "long_scoreboard": ("data from global, local or texture memory", True),
    "short_scoreboard": ("data from shared memory, or a special function", True),
    "math_pipe_throttle": ("an execution pipe that is busy", True),
    "mio_throttle": ("the queue for shared memory and special functions", True),
    "lg_throttle": ("the queue for global and local memory", True),
    "tex_throttle": ("the queue for textures", True),
    "barrier": ("other warps at a barrier of the block", True),
    "membar": ("a memory barrier", True),
    "wait": ("the result of an instruction before it, of fixed latency", True),
    "no_instruction": ("instructions to be fetched", True),
    "imc_miss": ("constants to be fetched", True),
    "drain": ("stores to complete before it exits", True),
    "branch_resolving": ("a branch to be resolved", True),
    "dispatch_stall": ("the dispatcher", True),
    "gmma": ("other warps of a warpgroup, or its matrix products", True),
    "sleeping": ("the end of a sleep", True),
    "misc": ("something else in the hardware", True),
    "not_selected": ("its turn: another warp was issued instead", False),
    "selected": ("nothing: it was issued", False),
}


#: Cycles between two instructions of a warp, which the stall reasons divide among themselves.
LATENCY: Final = "smsp__average_warp_latency_per_inst_issued.ratio"


def stall_metric(reason: str) -> str:
    """The metric of ncu for the cycles that warps spend with `reason` per instruction issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
