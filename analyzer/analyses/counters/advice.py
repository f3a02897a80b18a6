"""Advice on the kernels that ncu measured: its own rules, unchanged, and ours, each with its evidence.

A rule of ours reads columns of the tables `counters` and `roofline`; it is silent where one that it needs was not
collected.
"""

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import units
from kanalyze.analyses.counters.counters import REASONS, counters, require_counters
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.device._operations import families
from kanalyze.analyses.shared.analysis import analysis, once_per_report
from kanalyze.columns import product
from kanalyze.device_limits import starts_share
from kanalyze.report import Report
from kanalyze.schema import Table, columns

Row = Mapping[str, Any]

#: A unit above this share of its peak is the limit: ncu's own rules take 80 % for high, 60 % for low.
HIGH: Final = 0.8
LOW: Final = 0.6

#: Smaller shares are not worth a sentence.
_WORTH: Final = 0.1

#: With so many eligible warps, a scheduler can issue in nearly every cycle.
_ENOUGH_ELIGIBLE: Final = 2


class KernelRule(NamedTuple):
    """One rule about kernels."""

    name: str
    needs: tuple[str, ...]  # the columns that it reads; it is silent if one of them is null
    applies: Callable[[Row], bool]  # whether it applies to a row that has them all
    sentence: str  # with fields as :func:`filled` takes them
    remedy: str
    estimate: Callable[[Row], float | None] = lambda _: None  # the largest share that can be saved; None if unknown
    scope: str = "global"  # whether that is of the kernel's duration, or ``local``, of one part of the hardware

    def found(self, row: Row) -> bool:
        """Whether the rule applies to a kernel, and has all columns that it needs."""
        return all(row[column] is not None for column in self.needs) and self.applies(row)

    def evidence(self, row: Row) -> str:
        """The metrics that prove it, as ``column=value``."""
        values = ((column, row[column]) for column in self.needs)
        return ", ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for name, value in values
        )


def filled(sentence: str, row: Row) -> str:
    """A sentence with its fields filled: columns of a row, or :data:`_DERIVED` ones, in the units of :data:`_AS`.

    ``{blocks:n block}`` is a number with its noun.
    """
    return _Words().vformat(sentence, (), row)


class _Words(Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Row) -> Any:  # noqa: ANN401 - as it is declared
        del args
        return _DERIVED[str(key)](kwargs) if key in _DERIVED else kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - as it is declared
        if format_spec.startswith("n "):
            return units.plural(value, format_spec.removeprefix("n "))
        return _AS[format_spec](value) if format_spec in _AS else format(value, format_spec)


_AS: Final[dict[str, Callable[[Any], str]]] = {
    "%": units.percent,
    "count": units.count,
    "flop": units.flop,
    "rate": units.rate,
    "size": units.size,
}


def _accesses(row: Row) -> str:
    """What global accesses touch and use, where it is little, in brackets; else nothing."""
    parts = [
        filled(f"a {what} of a warp touches {{{what}_sectors_per_request:.1f}} sectors and uses "
               f"{{{what}_used_share:%}} of their bytes", row)
        for what in ("load", "store")
        if (row[f"{what}_used_share"] or 1) < 1 - _WORTH and row[f"{what}_sectors_per_request"] is not None
    ]  # fmt: skip
    return f" ({'; '.join(parts)})" if parts else ""


#: What sentences say of several columns of a row.
_DERIVED: Final[dict[str, Callable[[Row], Any]]] = {
    "idle_sms": lambda row: row["sms"] - row["blocks"],
    "room": lambda row: row["blocks_per_sm"] * row["sms"],
    "full_waves": lambda row: int(row["waves"]),
    "last_blocks": lambda row: row["blocks"] - int(row["waves"]) * row["blocks_per_sm"] * row["sms"],
    "shared_bytes": lambda row: row["static_shared_bytes"] + row["dynamic_shared_bytes"],
    "local_accesses": lambda row: row["local_loads"] + row["local_stores"],
    "spilled": lambda row: (
        f", {units.count(row['spill_requests'])} of them for spilled registers" if row["spill_requests"] else ""
    ),
    "fp64_share": lambda row: row["fp64_flop"] / row["flop"],
    "tensor_cores": lambda row: (
        f"did {units.percent(row['tensor_flop'] / row['flop'])} of it" if row["tensor_flop"] else "did nothing"
    ),
    "accesses": _accesses,
    "why": lambda row: REASONS[row["top_stall"]][0],
    "level": lambda row: _level(row)[0],
    "level_share": lambda row: _level(row)[1],
    "level_rate": lambda row: (
        f" ({units.rate(row['dram_bytes_per_s'])})"
        if _level(row)[0] == _DRAM and row["dram_bytes_per_s"] is not None
        else ""
    ),
    "achieved": lambda row: units.flop(row["achieved_flop_per_s"], units.operations(row["precision"])),
    "limit": lambda row: f", limited by {row['limiter']}" if row["limiter"] and row["occupancy_share"] < 1 else "",
    "in_order": lambda row: " and ".join(", ".join(_in_order(row)).rsplit(", ", 1)),
}


RULES: Final = (
    KernelRule(
        "too-few-blocks",
        ("blocks", "sms"),
        lambda row: row["blocks"] < row["sms"],
        "{blocks:n block} for {sms} SMs: {idle_sms:n SM} have nothing to do.",
        "Launch a block for each SM at least: smaller blocks, or more of the work at once; or run other kernels beside "
        "it.",
        lambda row: 1 - row["blocks"] / row["sms"],
    ),
    KernelRule(
        "partial-wave",
        ("waves", "tail_share", "blocks", "blocks_per_sm", "sms"),
        lambda row: row["waves"] > 1 and row["tail_share"] >= _WORTH,
        "{blocks:count} blocks run in {full_waves:n full wave} of {room:count} and a last one of {last_blocks:count}, "
        "which leaves {tail_share:%} of all the room empty.",
        "Make the grid a multiple of what runs at once, or let each block take several parts of the work.",
        lambda row: row["tail_share"],
    ),
    KernelRule(
        "low-theoretical-occupancy",
        (
            *("occupancy_share", "limiter", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes"),
            *("waves", "eligible_warps"),
        ),
        lambda row: row["occupancy_share"] < LOW and row["waves"] >= 1 and row["eligible_warps"] < _ENOUGH_ELIGIBLE,
        "At most {occupancy_share:%} of the warps that an SM can hold are resident, limited by {limiter} "
        "({registers_per_thread} registers per thread, {shared_bytes:size} shared memory per block).",
        "Lower what limits: __launch_bounds__ or fewer live values for registers, smaller tiles for shared memory, "
        "other block sizes for blocks and warps.",
        lambda row: 1 - row["occupancy_share"],
        "local",
    ),
    KernelRule(
        "low-achieved-occupancy",
        ("occupancy_share", "achieved_occupancy_share", "waves"),
        lambda row: row["achieved_occupancy_share"] < HIGH * row["occupancy_share"] and row["waves"] >= 1,
        "Of the occupancy of {occupancy_share:%} that is possible, {achieved_occupancy_share:%} were there on average: "
        "blocks or warps are unequal, or end before new ones start.",
        "Give blocks equal work, or more and smaller blocks; look at the tail first.",
        lambda row: 1 - row["achieved_occupancy_share"] / row["occupancy_share"],
        "local",
    ),
    KernelRule(
        "uncoalesced",
        ("uncoalesced_share",),
        lambda row: row["uncoalesced_share"] >= _WORTH,
        "{uncoalesced_share:%} of the sectors of global accesses would not be needed if threads side by side accessed "
        "bytes side by side{accesses}.",
        "Let neighbouring threads access neighbouring elements: another order of indices, a structure of arrays, or a "
        "detour through shared memory. `kanalyze show source REPORT KERNEL` shows the lines.",
        lambda row: row["uncoalesced_share"],
        "local",
    ),
    KernelRule(
        "bank-conflicts",
        ("bank_conflicts", "bank_conflict_share"),
        lambda row: row["bank_conflict_share"] >= _WORTH,
        "{bank_conflicts:count} bank conflicts: {bank_conflict_share:%} of what shared memory does is to serve "
        "accesses again that hit one bank.",
        "Pad the rows of the array in shared memory by one element, or swizzle its columns.",
        lambda row: min(row["bank_conflict_share"], 1.0),
        "local",
    ),
    KernelRule(
        "local-memory",
        ("local_loads", "local_stores", "spill_requests", "registers_per_thread"),
        lambda row: row["local_loads"] + row["local_stores"] > 0,
        "{local_accesses:n access} to local memory (loads and stores of warps){spilled}, {registers_per_thread} "
        "registers per thread.",
        "Allow more registers (__launch_bounds__, -maxrregcount, smaller tiles), and index arrays in registers by "
        "constants only.",
    ),
    KernelRule(
        "double-precision",
        ("fp64_flop", "flop"),
        lambda row: row["fp64_flop"] >= _WORTH * row["flop"] and row["fp64_flop"] > 0,
        "{fp64_flop:flop} in double precision, {fp64_share:%} of its work.",
        "Use single precision where it is exact enough; a literal without f, or a Python float, may have made it so.",
    ),
    KernelRule(
        "no-tensor-cores",
        ("fp32_flop", "flop", "tensor_flop", "roof_share", "bound", "achieved_flop_per_s", "product"),
        lambda row: row["product"] and row["bound"] == "compute" and row["tensor_flop"] < _WORTH * row["flop"]
        and row["fp32_flop"] > row["flop"] / 2,
        "{achieved_flop_per_s:flop}/s in FP32 on the ordinary cores, {roof_share:%} of their roof; the tensor cores "
        "{tensor_cores}.",
        "Use fp16, or on GPUs from Ampere on bf16 or TF32 (torch.set_float32_matmul_precision('high')): they run on "
        "tensor cores.",
    ),
    KernelRule(
        "at-memory-roof",
        ("roof_share", "bound", "dram_bytes_per_s", "peak_dram_bytes_per_s"),
        lambda row: row["bound"] == "memory" and row["roof_share"] >= HIGH,
        "At {roof_share:%} of the roof: {dram_bytes_per_s:rate} of {peak_dram_bytes_per_s:rate}. The same bytes cannot "
        "move much faster.",
        "Nothing is to be gained in the kernel itself: move fewer bytes (fuse it with its neighbours, narrower types).",
    ),
    KernelRule(
        "at-compute-roof",
        ("compute_share",),
        lambda row: row["compute_share"] >= HIGH,
        "The busiest part of the SMs works {compute_share:%} of the time.",
        "Execute fewer or cheaper instructions: another algorithm, narrower types, tensor cores.",
    ),
    KernelRule(
        "latency-bound",
        (
            *("compute_share", "memory_share", "active_warps", "eligible_warps", "top_stall", "top_stall_share"),
            *("cycles_per_instruction", "blocks", "sms"),
        ),
        lambda row: max(row["compute_share"], row["memory_share"]) < LOW and row["blocks"] >= row["sms"],
        "Neither compute ({compute_share:%}) nor memory ({memory_share:%}) is busy: of {active_warps:.1f} warps per "
        "scheduler {eligible_warps:.2f} can issue. They wait for {why} ({top_stall}, {top_stall_share:%} of "
        "{cycles_per_instruction:.1f} cycles per instruction).",
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
_DRAM: Final = "DRAM"
_LEVELS: Final = {_DRAM: "dram_share", "the L2 cache": "l2_share", "the L1 cache": "l1_share"}


def bound(row: Row) -> str:
    """The bottleneck: few blocks, memory, compute, latency, or unknown; `row` is of :func:`kernel_facts`.

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
    verdict = bound(row)
    return " ".join(
        filled(text, row)
        for of, applies, text in _SENTENCES
        if of in (verdict, None) and (applies is None or applies(row))
    )


#: The sentences of :func:`paragraph`: of which verdict each is (None: of any), and of which rows.
_SENTENCES: Final[tuple[tuple[str | None, Callable[[Row], bool] | None, str], ...]] = (
    (
        FEW_BLOCKS, None,
        "Too few blocks: the grid has {blocks:n block} for {sms} SMs, so most of the GPU does nothing.",
    ),
    (MEMORY, None, "Memory-bound: {level} works at {level_share:%} of its peak{level_rate}."),
    (
        MEMORY, lambda row: _level(row)[0] == _DRAM and _level(row)[1] >= HIGH,
        "Only fewer bytes can make it much faster.",
    ),
    (COMPUTE, None, "Compute-bound: the busiest part of the SMs works at {compute_share:%} of its peak."),
    (
        COMPUTE, lambda row: None not in (row["achieved_flop_per_s"], row["precision"]) and row["bound"] == "compute",
        "It does {achieved}/s, {roof_share:%} of the roof for {precision}.",
    ),
    (LATENCY, None, "Latency-bound: compute works at {compute_share:%}, memory at {memory_share:%} of their peaks."),
    (
        LATENCY, lambda row: None not in (row["top_stall"], row["top_stall_share"]),
        "Warps wait most for {why} ({top_stall_share:%} of their time).",
    ),
    (UNKNOWN, None, "What holds it back cannot be told: the section SpeedOfLight was not collected."),
    (
        None, lambda row: None not in (row["occupancy_share"], row["achieved_occupancy_share"]),
        "Occupancy is {achieved_occupancy_share:%} of {occupancy_share:%} possible{limit}.",
    ),
    (None, lambda row: bool(_in_order(row)), "In order: {in_order}."),
)  # fmt: skip


def _level(row: Row) -> tuple[str, float]:
    """The level of memory that is named for a memory-bound kernel, and its utilisation.

    That is the outermost one that is nearly as busy as the busiest: it serves the misses of the inner ones.
    """
    busy = {name: row[column] for name, column in _LEVELS.items() if row[column] is not None}
    busy = busy or {"the memory system": row["memory_share"]}
    return next((name, share) for name, share in busy.items() if share >= max(busy.values()) * 0.9)


def _in_order(row: Row) -> list[str]:
    """The checks that passed."""
    little = {"uncoalesced_share": "accesses are coalesced",
              "bank_conflict_share": "shared memory has hardly any bank conflicts"}  # fmt: skip
    fine = [text for name, text in little.items() if row[name] is not None and row[name] < _WORTH]
    return [*fine, "nothing spills"] if row["local_loads"] == row["local_stores"] == 0 else fine


#: The source of the possible saving: the rule's estimate, or the kernel's distance to its roof.
FROM_ESTIMATE: Final = "estimate"
FROM_ROOF: Final = "roof"

CAPPED: Final = columns(f"""
    possible_share float?: For a global estimate: the part of the duration that can be saved at most, which is the
        estimate, but no more than the roof leaves, 1 - roof_share, for the work and the bytes that the kernel has.
    possible_from text?: Which of the two that is: {FROM_ESTIMATE} or {FROM_ROOF}.
""")

TABLE: Final = Table(
    "advice",
    "One thing worth knowing about one kernel, by a rule of ncu or one of ours.",
    (
        *columns("""
            event_id int: The kernel in `events`.
            name text?: Its name.
            device int?: The GPU, as in `devices`.
            source text: Whose rule it is: ncu or kanalyze.
            rule text: Name of the rule.
            kind text: What it is: optimization, information, warning, error.
            sentence text: What was found.
            remedy text?: What to do about it; null where the sentence of ncu says so.
            scope text?: What the estimate is of: global (the duration) or local.
            speedup_share float?: The part of it that the rule estimates can be saved, 0..1.
        """),
        *CAPPED,
        *columns("""
            at_stake_ns int?: For a global estimate: possible_share of the kernel's duration.
            evidence text?: The counters that prove it, for our rules.
        """),
    ),
    purpose="what to do about each kernel, with estimates",
    telling=("rule", "speedup_share", "at_stake_ns"),
    counted=True,
)


@analysis
def advice(report: Report) -> pl.DataFrame:
    """All advice on the kernels, the largest possible gain first; local estimates come after global ones.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, TABLE)
    # the share of the duration above the roof; of the memory roof alone if the work was not collected
    room = (1 - pl.coalesce("roof_share", "dram_share")).clip(0, 1)
    kernels = kernel_facts(report).select("event_id", "name", "device", "dur_ns", room=room)
    kind = pl.col("kind").cast(pl.String)
    theirs = report.table("rule_results").select("event_id", "rule", kind, "scope", "speedup_share", sentence="message")
    sources = {"kanalyze": _ours(report), report.meta.tool: theirs}
    every = pl.concat((rules.with_columns(source=pl.lit(of)) for of, rules in sources.items()), how="diagonal")
    every = every.join(kernels, on="event_id")
    whole = (pl.col("scope") == "global") & pl.col("speedup_share").is_not_null()
    roof = pl.col("room") < pl.col("speedup_share")
    capped = every.with_columns(
        possible_share=pl.when(whole).then(pl.min_horizontal("speedup_share", "room")),
        possible_from=pl.when(whole).then(pl.when(roof).then(pl.lit(FROM_ROOF)).otherwise(pl.lit(FROM_ESTIMATE))),
    ).with_columns(at_stake_ns=pl.col("possible_share") * pl.col("dur_ns"))
    order = ["at_stake_ns", "speedup_share", "event_id", "source", "rule", "sentence"]
    return TABLE.select(capped.sort(order, descending=[True, True, *(False for _ in order[2:])], nulls_last=True))


@once_per_report
def kernel_facts(report: Report) -> pl.DataFrame:
    """The columns of `counters` and `roofline`, with family, product (if a matrix product), and those on blocks.

    These are blocks (of the grid), and starts_share: what part they are of those that the GPU starts meanwhile at most.
    """
    measured = counters(report)
    added = ["event_id", *(name for name in roofline(report).columns if name not in measured.columns)]
    beside = measured.join(roofline(report).select(added), on="event_id", how="left", maintain_order="left")
    blocks = product(*(pl.col(f"grid_{axis}") for axis in "xyz"))
    beside = beside.join(report.devices.select("device", "compute_capability"), on="device", how="left")
    starts = starts_share(blocks, pl.col("dur_ns"))
    named = beside.with_columns(families(beside.get_column("name")), blocks=blocks, starts_share=starts)
    return named.with_columns(product=pl.col("family").is_in(("gemm", "convolution", "attention")))


def _ours(report: Report) -> pl.DataFrame:
    """The findings of our own rules on each kernel."""
    rows = [
        (
            *(row["event_id"], rule.name, filled(rule.sentence, row), rule.remedy, rule.evidence(row), rule.scope),
            rule.estimate(row),
        )
        for row in kernel_facts(report).to_dicts()
        for rule in RULES
        if rule.found(row)
    ]
    texts = dict.fromkeys(("rule", "sentence", "remedy", "evidence", "scope"), pl.String)
    schema = {"event_id": pl.Int64, **texts, "speedup_share": pl.Float64}
    estimated = pl.when(pl.col("speedup_share").is_not_null())
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        estimated.then("scope").alias("scope"),
        estimated.then(pl.lit("optimization")).otherwise(pl.lit("information")).alias("kind"),
    )
