"""Causes that counters of ncu prove of a program's own kernels, as findings of its page."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import report, units
from kanalyze.analyses.counters import advice
from kanalyze.analyses.counters.counters import SECTOR_BYTES
from kanalyze.analyses.findings.findings import OF_REMEDIES
from kanalyze.analyses.findings.rules import Finding, literal, one_line, row_of
from kanalyze.analyses.page.kernel_runs import ALIKE, measured_shapes
from kanalyze.analyses.page.overview_page import PageKernels
from kanalyze.decoder.decode import decode
from kanalyze.device_limits import STARTING

_WARP: Final = 32
_HALF: Final = 0.5


def slow_kernels(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> list[Finding]:
    """Findings on kernels with a tenth of the page's time or more, of which counters prove a cause that can be mended.

    Those at less than 60 % of their roof (of bytes that their threads ask for, where most are not) and of the SMs'
    peak, or in double; a distance alone is no fault: sound stencils wait, too.

    `joined` is the table of that name; of it counts what `ncu` measured of the same launches, or of others of the same
    shape that took about as long.
    """
    took = pl.col("exclusive_ns").alias("took_ns")
    much = page.hot.filter(pl.col("exclusive_ns") >= max(0.1 * page.whole_ns, 1)).select("name", took)
    kernels = much.join(measured_shapes(joined), on="name", maintain_order="left").drop_nulls("roof_share")
    kernels = _of_alike(kernels, page.runs, ncu)
    rows = [row for row in kernels.iter_rows() if page.whole_ns and row[0] not in page.told]
    if not rows:
        return []
    of_code = {row["event_id"]: row for row in _of_instructions(ncu).to_dicts()}
    facts = {row["event_id"]: row for row in advice.kernel_facts(ncu).to_dicts()}
    findings = []
    for name, took_ns, event_id, roof in rows:
        of_kernel = (
            dict.fromkeys(("atomics_share", "local_share", "shared_share", "idle_lanes"), 0.0)
            | {"needed": None, "one_for_all": False, "of_halves": False, "in_turns": False, "indexed": False}
            | {"listed": None, "stored": None, "calls_in_pairs": False, "plain": str(name).isidentifier()}
            | facts[event_id]
            | {column: value for column, value in of_code.get(event_id, {}).items() if value is not None}
        )
        of_kernel["asked"] = min((of_kernel["needed"] or math.inf) / (of_kernel["dram_bytes"] or 1), 1.0)
        asked_share = of_kernel["asked"] if of_kernel["asked"] < _FEW_ASKED else 1
        near = max(roof * asked_share, of_kernel["compute_share"] or 0) >= advice.LOW
        own = decode(str(name)).library is None
        possible = [cause for cause in _CAUSES if cause.whatever_roof or not near]
        if not own:  # what can be wrong with a library's kernel that adds up what it is given
            possible = [_OVERLAPS] if re.search(_ADDING, str(name)) else []
        cause = next((cause for cause in possible if cause.share(of_kernel) >= cause.least), None)
        if cause is not None:
            findings.append(_finding(page, str(name), took_ns, roof, of_kernel, cause))
    findings.sort(key=lambda one: -one.at_stake_ns)
    causes = dict.fromkeys((one.rule, one.action) for one in findings)
    return [_together([one for one in findings if (one.rule, one.action) == cause]) for cause in causes]


def _together(findings: list[Finding]) -> Finding:
    """Findings of one cause as one: what that with most at stake says, with the kernels and times of all."""
    first, *others = findings
    if not others:
        return first
    names = [f"{{{place}}} ({units.time(one.at_stake_ns)})" for place, one in enumerate(others, 1)]
    return first._replace(
        names=tuple(name for one in findings for name in one.names),
        at_stake_ns=sum(one.at_stake_ns for one in findings),
        replayed_low_ns=sum(one.replayed_low_ns or 0 for one in findings),
        replayed_high_ns=sum(one.replayed_high_ns or 0 for one in findings),
        text=f"{first.text} The same holds of {', '.join(names)}.",
        headline=f"{first.headline}, and {'{1}' if len(others) == 1 else f'{len(others)} more'}",
    )


def _of_instructions(ncu: report.Report) -> pl.DataFrame:
    """What the code of each kernel with its counts tells of its global accesses, a row for each that has it.

    Columns: event_id, atomics_share (those that add by atomics, of its threads' accesses), idle_lanes (the part of
    its warps' threads that instructions without a predicate leave out), one_for_all (whether by some instructions
    one thread waits or works for its warp or block), of_halves (whether some multiply matrices of 16 bits), indexed
    (whether threads read constant memory at addresses of their own), in_turns (whether a loop loads what is multiplied
    as matrices, without any copies that go on meanwhile), listed (how often warps ran one of it), stored (by how many
    threads an instruction stores at most), calls_in_pairs (whether it calls functions of CUDA at two places equally
    often), needed (bytes that they ask for) and uncoalesced_share, without the half that ncu adds to sectors that
    copies to shared memory touch and without instructions whose warps touch one more than needed, as threads side by
    side may begin anywhere; and :func:`_places` of each cause.
    """
    sass, times = pl.col("sass").cast(pl.String), pl.col("thread_instructions").fill_null(0)
    kinds = (_ADDS, _ACCESSES, _DOUBLES, _SHARED, _LOCAL, _INDEXED, _ANSWERED)
    adds, accesses, doubles, shared, local, indexed, answered = (times * sass.str.contains(names) for names in kinds)
    every = answered.sum().clip(lower_bound=1)
    ideal = pl.col("ideal_sectors") * pl.when(sass.str.contains("LDGSTS", literal=True)).then(_COUNTED).otherwise(1.0)
    beyond = (pl.col("sectors") - ideal).fill_null(0).clip(lower_bound=0)
    spare = pl.when(beyond > pl.col("instructions")).then(beyond).otherwise(0)
    # what a predicate turns off is no other branch
    alone = pl.col("thread_instructions").is_not_null() & ~sass.str.starts_with("@")
    idle = pl.when(alone).then(_WARP * pl.col("instructions") - pl.col("thread_instructions")).fill_null(0)
    loads, ran = sass.str.contains(_LOADS), pl.col("instructions")  # the first instruction runs once for each warp
    turns = ran.filter(loads).max() >= _TURNS * ran.filter(ran > 0).first()
    calls, within = (ran.filter(sass.str.contains(names) & (ran > 0)) for names in (_CALLS, _CALLS_OWN))
    called, linked = (sass.str.extract(names).filter(ran > 0).drop_nulls().unique() for names in (_CALLS, _LINKED))
    causes = {
        "uncoalesced": spare,
        "scatter-atomics": adds,
        "float64": doubles,
        "bank-conflicts": shared,
        "local-memory": local,
        "divergent-constants": indexed,
        "divergence": idle,
        "allocation-in-loop": pl.when(sass.str.contains(_CALLS)).then("instructions").otherwise(0),
        "repeated-loads": ideal,
        "unpipelined-loads": pl.when(loads).then("instructions").otherwise(0),
    }
    each = ncu.table("instructions").group_by("event_id")
    counted = each.agg(
        atomics_share=(adds.sum() / accesses.sum()).fill_nan(0.0),
        local_share=local.sum() / every,
        idle_lanes=idle.sum() / (_WARP * pl.col("instructions").filter(alone).sum()).clip(lower_bound=1),
        one_for_all=sass.str.contains(_ONE_FOR_ALL).any(),
        of_halves=sass.str.contains(_OF_HALVES).any(),
        listed=ran.sum(),
        stored=times.filter(sass.str.contains(_STORES)).max(),
        calls_in_pairs=(calls.n_unique() < calls.len()) & (within.sum() <= calls.sum()),
        indexed=(indexed > 0).any(),
        called=called,
        linked=linked,
        in_turns=turns & sass.str.contains(_MULTIPLIES).any() & ~sass.str.contains(_AHEAD).any(),
        shared_share=shared.sum() / every,
        needed=pl.col("ideal_sectors").sum() * SECTOR_BYTES,
        uncoalesced_share=(spare.sum() / pl.col("sectors").sum()).fill_nan(None),
        **_places(causes),
    )
    known = pl.col("called").list.set_difference("linked").list.len() == 0
    return counted.with_columns(pl.col("calls_in_pairs") & known).drop("called", "linked")


def _places(causes: dict[str, pl.Expr]) -> dict[str, pl.Expr]:
    """The program's line with the instruction that has most of each cause, by its name; null without lines."""
    file = pl.col("file").cast(pl.String)
    line = pl.format("{}:{}", file.str.extract(r"([^/\\]+)$"), "line")
    own = line.is_not_null() & ~file.str.contains(_OF_CUDA)
    counts = ((rule, count, own & (count > 0)) for rule, count in causes.items())
    return {rule: line.filter(has).sort_by(count.filter(has)).last() for rule, count, has in counts}


def _of_alike(kernels: pl.DataFrame, runs: pl.DataFrame, ncu: report.Report) -> pl.DataFrame:
    """`kernels` with took_ns of the launches alone that took about as long as the measured one, or come nearest to it.

    One kernel along the lines of an array and across them has one shape, and its counters tell of one of the two.
    """
    measured = ncu.kind("kernel").select("event_id", measured="dur_ns")
    every = runs.join(kernels.select("name", "event_id").join(measured, on="event_id"), on="name")
    took = pl.col("dur_ns")
    near = pl.col("measured").clip(took.min().over("name"), took.max().over("name"))
    alike = every.filter(took.is_between(near / ALIKE, near * ALIKE))
    sums = alike.group_by("name").agg(took_ns=pl.col("exclusive_ns").sum())
    return kernels.drop("took_ns").join(sums, on="name", maintain_order="left").select(kernels.columns)


def _finding(  # noqa: PLR0913 - a kernel's time, roof, counters and cause
    page: PageKernels, name: str, took_ns: int, roof_share: float, facts: dict[str, Any], cause: "_Cause"
) -> Finding:
    text = (
        f"{{0}} takes {units.time(took_ns)}, {units.percent(took_ns / page.whole_ns)} of the time, and runs at "
        f"{units.percent(roof_share)} of its roof. {literal(advice.paragraph(facts))}"
    )
    share = cause.share(facts)
    # of the bytes that it moves those are left that its threads ask for, and all instructions that it executes
    floor = max(roof_share * (facts["asked"] if facts["bound"] == "memory" else 1), facts["compute_share"] or 0)
    spared = min(share, 1 - floor)
    if cause.spared is not None:
        spared = cause.spared(facts)
    elif cause.whatever_roof:
        spared = share * (1 - (_HALF + min(facts["dram_share"] or 0.0, _HALF)) / 2)
    return Finding(
        cause.rule,
        page.device,
        int(took_ns * spared),
        f"{text} {cause.text.format(units.percent(share))}",
        remedy=cause.remedy,
        table="gains",
        names=(name,),
        headline=cause.headline.format(units.percent(share)),
        where=literal(facts.get(cause.rule) or ""),
        action=cause.action,
        replayed_low_ns=int(took_ns * spared * (1 - OF_REMEDIES)),
        replayed_high_ns=int(took_ns * min(spared * (1 + OF_REMEDIES), 1)),
        shortens=True,
    )


def _costly(facts: Mapping[str, Any]) -> bool:
    """Whether sectors that nobody asks for cost time: some memory is busy, or DRAM moves mostly such."""
    return (facts["memory_share"] or 0.0) >= advice.LOW or facts["asked"] < _FEW_ASKED


def _in_local(facts: Mapping[str, Any]) -> float:
    """The part of its accesses that are to local memory, where some memory is busy and fewer accesses lie apart."""
    local = (facts["memory_share"] or 0.0) >= advice.LOW and facts["local_share"]
    doubles = _of_doubles(facts) >= _DOUBLED  # which take two registers each, and may be what spills
    return local if local > (facts["uncoalesced_share"] or 0.0) and not doubles else 0.0


def _without_local(facts: Mapping[str, Any]) -> float:
    """The part of its time without accesses to local memory: as of its accesses, or of the bytes that DRAM moves."""
    beyond = 1 - facts["asked"] if facts["bound"] == "memory" else 0.0
    return float(min(max(facts["local_share"], beyond), 1 - (facts["compute_share"] or 0.0)))


def _of_doubles(facts: Mapping[str, Any]) -> float:
    """The part of its arithmetic that is in double precision."""
    return float((facts["fp64_flop"] or 0.0) / max(facts["flop"] or 0.0, 1.0))


def _read_again(facts: Mapping[str, Any]) -> float:
    """The part of what a kernel reads that it, by the bytes that DRAM moves at all, has read before."""
    if (facts["needed"] or 0) < _CACHED:
        return 0.0
    return float(1 - (facts["dram_bytes"] or math.inf) / facts["needed"])


def _crowded(facts: Mapping[str, Any]) -> bool:
    """Whether the memory on the SM holds a kernel up: it is busy, or warps wait for its queue or its answers."""
    return (facts["l1_share"] or 0.0) >= advice.LOW or facts["top_stall"] in _OF_SHARED


def _uneven(facts: Mapping[str, Any]) -> float:
    """The part of a kernel in which SMs wait for long blocks, not for its start, nor for a last wave of even ones."""
    if facts["sm_active_share"] is None or (facts["waves"] or 0) < 1:
        return 0.0
    even = max(facts["tail_share"] or 0.0, _STARTING_NS / max(facts["dur_ns"] or 0, 1))
    return float(max(1 - facts["sm_active_share"] - even, 0.0))


def _of_full_sms(facts: Mapping[str, Any]) -> float:
    """The part of a kernel's time without uneven blocks: SMs are idle, and others have few warps at the end.

    With fewer warps an SM does as much as with all, or as much less; between the two lies what is told.
    """
    achieved, most = facts["achieved_occupancy_share"], facts["occupancy_share"]
    filled = min(achieved / most, 1.0) if achieved and most else 1.0
    return _uneven(facts) + (1 - _uneven(facts)) * (1 - filled) / 2


def _diverging(facts: Mapping[str, Any]) -> float:
    """The part of the threads of a kernel's warps that are not where their warp is, of blocks of whole warps.

    None where some memory is busy, which does as much for fewer warps, and where one thread waits, or does, for all.
    """
    whole = math.prod(facts[f"block_{axis}"] or 1 for axis in "xyz") % _WARP == 0
    busy = (facts["memory_share"] or 0.0) >= advice.LOW
    return 0.0 if busy or facts["one_for_all"] or not whole else float(facts["idle_lanes"])


def _one_by_one(facts: Mapping[str, Any]) -> float:
    """How busy the caches of constant memory are, which serve threads one by one that read different places of it."""
    return float(facts["indexed"] * (facts["constant_share"] or 0.0))


def _loads_again(facts: Mapping[str, Any]) -> float:
    """The part of the bytes that a kernel's threads ask for that DRAM does not move, where L1 is busy with that.

    0 where the kernel keeps what its blocks share, or multiplies matrices on tensor cores, or much of what it asks for
    is another cause's: atomics, local memory, accesses apart.
    """
    busy = min(facts["l1_share"] or 0.0, facts["memory_share"] or 0.0) >= _BUSY_L1
    kept = facts["shared_share"] >= _SOME_SHARED or (facts["tensor_flop"] or 0.0) > 0
    others = (facts["uncoalesced_share"] or 0.0, facts["local_share"], facts["atomics_share"])
    if not busy or kept or max(others) >= _SOME_OTHER or (facts["dram_share"] or 0.0) >= _HALF:
        return 0.0
    return float(max(1 - (facts["dram_bytes"] or math.inf) / (facts["needed"] or 1), 0.0))


def _small_tiles(facts: Mapping[str, Any]) -> float:
    """The part of the bytes that a product's threads ask for, of which larger tiles would ask once.

    0 where it is no product on tensor cores far from their roof, or where larger tiles would be too few.
    """
    work, asked = facts["tensor_flop"] or 0.0, facts["needed"] or 0.0
    whole = facts["bound"] == "compute" and work >= _OF_PRODUCTS * max(facts["flop"] or 0.0, 1.0)
    memory_busy = (facts["memory_share"] or 0.0) >= advice.LOW
    far = facts["roof_share"] < (_HALF if memory_busy else _FAR)
    if not (whole and far and asked and facts["of_halves"]) or (facts["waves"] or 0) < _MANY_WAVES:
        return 0.0
    return float(max(1 - work / asked / _FLOP_PER_BYTE, 0.0))


def _in_calls(facts: Mapping[str, Any]) -> float:
    """The part of a kernel's instructions in functions that it calls in pairs, as it takes memory and gives it back."""
    if not facts["calls_in_pairs"] or not facts["instructions"]:
        return 0.0
    return float(max(1 - facts["listed"] / facts["instructions"], 0.0))


def _waits_in_turns(facts: Mapping[str, Any]) -> float:
    """The part of a product's time that loads of the next tile, while this one is multiplied, can hide."""
    whole = (facts["tensor_flop"] or 0.0) >= _OF_PRODUCTS * max(facts["flop"] or 0.0, 1.0)
    waits = facts["bound"] == "compute" and facts["top_stall"] in _FOR_TILES and facts["in_turns"]
    return max(1 - facts["roof_share"] / _OF_TILES, 0.0) if whole and waits else 0.0


def _kept_out(facts: Mapping[str, Any]) -> float:
    """The part of a kernel's time that more warps can hide, where its whole grid is resident as few of them."""
    shares = [facts[f"{one}_share"] for one in ("occupancy", "compute", "memory")]
    if None in shares or shares[0] > _FEW_WARPS or not _WHOLE[0] <= (facts["waves"] or 0) <= _WHOLE[1]:
        return 0.0
    threads = math.prod(facts[f"block_{axis}"] or 1 for axis in "xyz")
    if "shared memory" not in (facts["limiter"] or "") or threads > _FEW_THREADS:
        return 0.0
    return float(max(1 - max(shares[1:]) / _REACHED, 0.0))


def _little_each(facts: Mapping[str, Any]) -> float:
    """The part of a kernel's time that can go with fewer blocks, where these end as fast as any are started.

    Half as fast will do in Triton (a plain name), where half of the threads, or more, have no result of their own.
    """
    threads = (facts["blocks"] or 1) * math.prod(facts[f"block_{axis}"] or 1 for axis in "xyz")
    stored = math.inf if facts["one_for_all"] else (facts["stored"] or math.inf) / threads
    starts, busy = facts["starts_share"] or 0.0, facts["compute_share"]
    few = facts["plain"] and stored <= _HALF and starts < STARTING
    moved = max(facts["dram_read_bytes"] or 0, facts["dram_write_bytes"] or 0) if few else facts["dram_bytes"]
    if None in (busy, facts["dram_share"], facts.get("l1_hit_share")) or starts < (_HALF if few else STARTING):
        return 0.0
    # instructions are left of threads with a word of what DRAM moves, a load that L1 does not answer, or a result: of
    # those that only help with another's, half
    own = max((moved or math.inf) / 4 / threads, 1 - facts["l1_hit_share"], _HALF if few else 0)
    return float(1 - max(busy * min(own, 1), facts["dram_share"]))


class _Cause(NamedTuple):
    """A cause that counters prove of a program's own kernel, before those that only say what holds it back."""

    rule: str  # its name
    share: Callable[[Mapping[str, Any]], float]  # the part of the kernel's accesses, or of its arithmetic, that it is
    least: float  # from which share on it is one
    text: str  # A sentence, with ``{}`` for the share
    headline: str  # the same in a line, with ``{{0}}`` for the kernel
    action: str  # what to do, in a line
    remedy: str  # the same in a sentence
    #: Whether it is one also near the roof, which is that of the arithmetic it does: in half the width that takes half
    #: of the time at most, and functions a part of that; no less than the memory does. In the middle is what is told.
    whatever_roof: bool = False
    spared: Callable[[Mapping[str, Any]], float] | None = None  # the part of the time that goes, where the share tells


#: Atomics are so much of the accesses at least, and the kernel so far from its roof, where they hold it up.
_OF_ACCESSES: Final = 0.2
_FAR: Final = 0.3

#: SASS of additions by atomics in global memory, and of all accesses to it.
_ADDS: Final = r"\b(?:REDG?|ATOMG?)\.E\.(?:\w+\.)*(?:ADD|INC)"
_ACCESSES: Final = r"\b(?:LDG|STG|LD|ST|REDG?|ATOMG?)\.E"
_STORES: Final = r"\b(?:STG?|REDG?|ATOMG?)\.E"
_DOUBLES: Final = r"\bD(?:ADD|MUL|FMA)\b"
_SHARED: Final = r"\b(?:LDSM?|STSM?|ATOMS)\b"
_LOCAL: Final = r"\b(?:LDL|STL)\b"
_INDEXED: Final = r"\bLDC\S* \w+, c\[0x3\]\[R\d"
_ANSWERED: Final = r"\b(?:LD|ST|LD[GSL]|ST[GSL]|LDSM|STSM|LDGSTS|REDG?|ATOM[GS]?|UTMA\w+|TEX|TLD4?|SULD|SUST|MUFU)\b"
_OF_SHARED: Final = ("short_scoreboard", "mio_throttle")  # what warps wait for where shared memory is the limit

_FEW_ASKED: Final = 0.5  # from which part of the bytes that DRAM moves on threads ask for most of them
_STARTING_NS: Final = 10_000  # in so much of a kernel, at most, the first blocks have not begun or the last ones end
_FEW_WARPS: Final = 0.25  # a part of the warps that an SM can hold by which it hides little
_FEW_THREADS: Final = 256  # of a block that can be larger
_WHOLE: Final = (0.9, 1.01)  # the grid, by the blocks that run at once, where it fills them
_REACHED: Final = 0.8  # the part of their peak that the busiest units of well-made kernels work at
_COUNTED: Final = 1.5  # ncu counts 24 sectors where a copy to shared memory (LDGSTS) touches 16 side by side
_OF_CUDA: Final = r"[/\\](?:cuda|nvidia|CUDA)[^/\\]*[/\\](?:.*[/\\])?include[/\\]"  # headers of the toolkit
_MULTIPLIES: Final = r"(?:^|\s)[A-Z]{1,5}MMA\b"
#: Barriers and flags that one thread polls, copies that one thread begins, and products that a warp makes as one.
_ONE_FOR_ALL: Final = rf"NANOSLEEP|SYNCS|UTMA|UBLKCP|\bLDG?\.E\S*\.STRONG|{_MULTIPLIES}"
_LOADS: Final = r"\bLDG?\.E"
_AHEAD: Final = r"\b(?:LDGSTS|UTMALDG|UBLKCP)\b"  # copies to shared memory that no thread waits for at once
#: Calls, and addresses of what CUDA links to a kernel: malloc, free, vprintf. Those of virtual functions are data.
_CALLS: Final = r"\bCALL\.ABS\S* (R\d+)"
_CALLS_OWN: Final = r"\bCALL\.REL"
_LINKED: Final = r"\bLDC\.64 (R\d+), c\[0x4\]\[R\d+\]"
_TURNS: Final = 4  # of a loop that has a next tile to load
_OF_HALVES: Final = r"\bHMMA\.16816\.|\bHGMMA\.\d+x\d+x16\."  # products of 16-bit values
_IN_BANKS: Final = 0.9  # 32 random words of shared memory are about 3 in the fullest of its 32 banks
_DOUBLED: Final = 0.1  # of a kernel's arithmetic
_OF_PRODUCTS: Final = 0.9  # of a kernel's arithmetic, on tensor cores
_BUSY_L1: Final = 0.8  # of the peak of the caches on the SMs
_SOME_SHARED: Final = 0.05  # of accesses are to shared memory
_SOME_OTHER: Final = 0.2  # of accesses are atomics, or to local memory, or of sectors touched for nothing
_FLOP_PER_BYTE: Final = 64  # of tiles of 128 × 128 of 16 bits, for each byte that their threads ask for
_FOR_TILES: Final = ("long_scoreboard", "barrier")  # warps wait for their part of a tile, and for that of others
_OF_TILES: Final = 0.6  # of the roof of tensor cores, that products in tiles reach whose loads go ahead
_MANY_WAVES: Final = 4  # so many that larger tiles still fill the GPU
_DIVERGES: Final = _Cause(
    "divergence",
    _diverging,
    0.6,
    "{} of its threads wait, while others of their warp are in another branch or do more turns of a loop.",
    "Threads of a warp go different ways, {} of them idle: {{0}}",
    "threads of a warp alike: a warp for each long row, or work sorted by length",
    "Let threads of a warp take the same branches and as many turns of a loop: sort or group the work by what it "
    "takes, give a long piece to a whole warp, or decide by blockIdx or warp, not by threadIdx.",
    whatever_roof=True,
    spared=_diverging,  # warps are as many fewer, whatever each waits for
)
_CAUSES: Final = (
    _Cause(
        "block-starts",
        _little_each,
        0.3,
        "Its blocks end as fast as the GPU starts any, whatever they do, or half as fast, while half of their threads "
        "have no result of their own: with fewer, up to {} of its time goes.",
        "Blocks too short to be worth their start: {{0}}",
        "several rows a block, a warp for each; or fewer blocks and a loop in each",
        "Let a block do what many do now: a warp for each short row, eight rows in 256 threads; or launch only as many "
        "blocks as run at once, whose threads loop over what is left.",
        whatever_roof=True,  # warps may all do the same
        spared=_little_each,
    ),
    _Cause(
        "allocation-in-loop",
        _in_calls,
        0.5,
        "{} of its instructions are not in its own code but in functions of CUDA that it calls, in pairs as of new and "
        "delete, or of malloc and free (or in printf): there threads wait for each other.",
        "Calls of new, malloc or printf, {} of a kernel's work: {{0}}",
        "an array of fixed size, float w[48]; or memory allocated before the launch",
        "Leave new, delete, malloc, free and printf out of kernels: a thread's array of fixed size lies in registers "
        "or local memory, one that a block shares in shared memory, a larger one in memory that is allocated before "
        "the launch, a part for each thread.",
    ),
    _DIVERGES,  # which makes blocks uneven, and accesses apart
    _Cause(
        "tail",
        _uneven,
        0.2,
        "SMs have nothing to do for {} of that: blocks take unevenly long, and the last ones run alone.",
        "Uneven blocks leave SMs idle for {} of a kernel: {{0}}",
        "long blocks first, or cut into parts that blocks take from a queue",
        "Let the blocks with most work come first in the grid, or cut it into parts of one size, which blocks fetch by "
        "an atomic counter.",
        spared=_of_full_sms,
    ),
    _Cause(
        "local-memory",
        lambda facts: _in_local(facts) * (facts["spill_share"] or 0.0),
        0.3,
        "{} of its accesses are to local memory, for registers that it spills.",
        "Spilled registers are {} of a kernel's accesses: {{0}}",
        "more registers: no blocks per SM in __launch_bounds__, or smaller tiles",
        "Let a thread have more registers (`__launch_bounds__` without a number of blocks, no `-maxrregcount`), or "
        "need fewer at once: smaller tiles, less unrolling, another kernel for a part of the work.",
        spared=_without_local,
    ),
    _Cause(
        "local-memory",
        _in_local,
        0.3,
        "{} of its accesses are to local memory: arrays with indices known at run time only, or spilled registers.",
        "{} of a kernel's accesses are to local memory: {{0}}",
        "loops with #pragma unroll, so that indices are constants; more registers",
        "Index arrays of a thread by constants alone (loops unrolled by `#pragma unroll`, no sorting by variable "
        "indices), so that they stay in registers; of spilled ones allow more (`__launch_bounds__`, smaller tiles).",
        spared=_without_local,
    ),
    _Cause(
        "uncoalesced",
        lambda facts: _costly(facts) * (facts["uncoalesced_share"] or 0.0),
        0.3,
        "Threads side by side access bytes far apart: {} of the sectors that they touch would not be needed otherwise.",
        "{} of a kernel's accesses are uncoalesced: {{0}}",
        "threads side by side on elements side by side: x[row * n + lane]",
        "Let neighbouring threads access neighbouring elements: a warp for each row, another order of indices, or a "
        "detour through shared memory. `kanalyze show source REPORT KERNEL` shows the lines.",
    ),
    _Cause(
        "bank-conflicts",
        lambda facts: _crowded(facts) * min(facts["bank_conflict_share"] or 0.0, 1.0) * facts["shared_share"],
        0.2,
        "Threads of a warp access shared memory in the same bank, which serves them one after the other.",
        "Bank conflicts in shared memory hold a kernel up: {{0}}",
        "pad the rows of the tile by one element: tile[32][32 + 1]",
        "Pad the rows of the array in shared memory by one element, or swizzle its columns, so that threads side by "
        "side access different banks.",
    ),
    _Cause(
        "divergent-constants",
        _one_by_one,
        0.6,
        "The caches of constant memory are busy for {} of that: they serve threads of a warp that read different "
        "addresses one after the other.",
        "Threads of a warp read different places of constant memory: {{0}}",
        "the table in shared memory, copied by each block; or const __restrict__",
        "Let each block copy the table from constant to shared memory, or read it from global memory by a pointer to "
        "const __restrict__ (`__ldg`); constant memory is for what all threads of a warp read at once.",
        whatever_roof=True,  # these caches are counted among the units of an SM
        spared=lambda facts: max(_IN_BANKS * _one_by_one(facts) - (facts["memory_share"] or 0.0), 0.0),
    ),
    _Cause(
        "low-occupancy",
        _kept_out,
        0.5,
        "Its blocks are all there at once, and are so few warps that they mostly wait: {} of its time can go at most.",
        "Few warps fill an SM, and wait: {{0}}",
        "more threads in a block, which share what limits blocks on an SM",
        "Give a block more threads (512 or 1024) where shared memory allows one or two on an SM, or let it take less.",
    ),
    _Cause(
        "scatter-atomics",
        lambda facts: 1.0 if facts["atomics_share"] >= _OF_ACCESSES and facts["roof_share"] < _FAR else 0.0,
        1.0,
        "Its threads add by atomics: where many add to few addresses, they wait for each other.",
        "Atomics on global memory hold a kernel up: {{0}}",
        "add up in shared memory or registers first, one atomic per block",
        "Let each block add up in shared memory (a histogram of its own) or by warp shuffles, and add that once.",
    ),
    _Cause(
        "float64",
        _of_doubles,
        _DOUBLED,
        "{} of its arithmetic is in double precision.",
        "{} of a kernel's arithmetic is in double precision: {{0}}",
        "float literals and functions: 0.5f, expf(x), powf(x, y)",
        "Where float was meant: a literal without f, or exp, pow and sqrt of math.h, compute in double.",
        whatever_roof=True,
    ),
    # of the threads of warps
    _DIVERGES._replace(least=0.4),
    _Cause(
        "repeated-loads",
        _loads_again,
        0.94,
        "{} of the bytes that its threads ask for they or others have asked for before, and L1 caches are busy with "
        "that.",
        "Threads load the same values again and again: {{0}}",
        "several results for each thread, from registers; a library's matrix product",
        "Let each thread compute several results (4 × 4) from values that it keeps in registers, and a block load what "
        "its threads share once, into shared memory; a product of matrices is a library's (cuBLAS, torch.matmul).",
        whatever_roof=True,  # loads count as work of the SM
        spared=lambda facts: min(_HALF, max(1 - facts["roof_share"], 0.0)),
    ),
    _Cause(
        "small-tiles",
        _small_tiles,
        0.65,
        "Its blocks compute tiles so small that {} of what they read would be read once by tiles of 128 × 128.",
        "A product of small tiles reads its matrices again and again: {{0}}",
        "BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 64 with num_warps=8, or autotune",
        "Let a block compute a larger tile, of 128 × 128 (64 at least), in steps of 32 to 64, with 4 or 8 warps: each "
        "value that it loads is then used as often. Sizes can be tuned: @triton.autotune.",
        whatever_roof=True,
    ),
    _Cause(
        "unpipelined-loads",
        _waits_in_turns,
        0.2,
        "In each turn of a loop it loads a tile by way of registers, with no asynchronous copy, and its warps mostly "
        "wait for loads, or for each other's: copies further ahead would hide up to {} of its time.",
        "A product waits for its loads in each turn: {{0}}",
        "num_stages=3 or 4 (Triton); copies a tile ahead by cp.async or TMA (CUDA)",
        "Let tiles be loaded while those before are multiplied: num_stages=3 or 4 of a Triton kernel (if it has more "
        "stages already, strides and pointers that are multiples of 16 bytes); cuda::memcpy_async, cp.async or TMA "
        "into two buffers or more in CUDA.",
    ),
)

#: Kernels of PyTorch and CuPy that add up along axes.
_ADDING: Final = (
    r"at::native::reduce_kernel<.*(?:sum_functor|MeanOps|WelfordOps)|^cupy_(?:nan)?(?:sum|mean|var|std)(?:_|$)"
)
_CACHED: Final = 1 << 27  # bytes, so many of which no L2 has held before: less may have been there, read once
_OVERLAPS: Final = _Cause(
    "overlapping-windows",
    _read_again,
    0.9,
    "{} of what it reads it has read before: it adds up windows that overlap, or a view of elements repeated.",
    "A sum reads the same elements again and again: {{0}}",
    **one_line({key: row_of("overlapping-windows")[key] for key in ("action", "remedy")}),
    # what is left reads and writes memory four times: a running sum and its differences
    spared=lambda facts: max(1 - 4 * max(facts["dram_share"] or 0.0, 1 - _read_again(facts)), 0.0),
)
