"""How far each kind of operator is from the roof of its GPU, and the budget of a device's time by that."""

from typing import Final

import polars as pl

from kanalyze import schema, units
from kanalyze.analyses.device._windows import share_of_window, windows
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.work._models import BOUND
from kanalyze.analyses.work.work import GROUP, GROUPS, TYPE, calls_with_work, memory_roofs, peaks, required_calls
from kanalyze.report import Report

TABLE: Final = schema.Table(
    "roofs",
    "Calls of one operator with inputs of the same shapes and the same kernel, against what their GPU could do.",
    (
        *schema.columns("""
            device int: The GPU, as in `devices`.
            name text?: The operator; null for kernels that none launched.
            input_shapes text?: Dimensions of its inputs, a JSON list; null: not recorded.
            kernel text?: The longest of its kernels.
            count int: Calls.
            exclusive_ns int: Device time of them, each instant counted once; all rows sum to the ledger's kernels.
        """),
        *(TYPE, GROUP),
        *schema.columns("""
            flop_per_s float?: FLOPs by shape and time.
            bytes_per_s float?: Least bytes and time.
            dram_bytes_per_s float?: Bytes of the GPU's memory that were read and written, of calls of which that was
                measured, and their time.
            measured text?: How, as in `work`; of several calls how most of their bytes were.
            intensity_flop_per_byte float?: FLOPs for each byte.
            executed_share float?: FLOPs by shape, of those that filled-up tiles execute: the rest is padding.
            bound text?: What takes longer at its peak: compute or memory.
            roof_share float?: The least time by the time: 1 is on the roof.
            reached_share float?: What a large product of that type, or a large copy, was measured to reach of the same
                roof on this GPU; null where it was not (by `collect`).
            at_roof_ns int?: The least time within exclusive_ns.
            distance_ns int?: The rest of exclusive_ns.
            known text?: How FLOPs and least bytes are known, as in `work`; null: not, as of operators without a model.
        """),
    ),
    purpose="how far operators are from what the GPU can do",
    telling=("name", "distance_ns", "roof_share", "bound", "exclusive_ns"),
)

_KEYS: Final = ("device", "name", "input_shapes", "kernel", "type", "group", "bound", "known")


@analysis
def roofs(report: Report) -> pl.DataFrame:
    """Operators by shape and kernel, the largest distance to the roof first; those without a model last.

    Source: the roofline model (Williams, Waterman, Patterson, 2009), with dense peaks of the datasheet, and FLOPs and
    bytes of :func:`kanalyze.work`. What its GPU's cache may serve of a call is held against the rate of that.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report has no operators and no ranges, or no kernels.
    """
    by_kind = required_calls(report, TABLE).group_by(_KEYS)
    sums = by_kind.agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("exclusive_ns", "at_roof_ns", "distance_ns").sum(),
        pl.col("flop", "bytes").cast(pl.Float64).sum(),
        executed=pl.col("executed_flop").cast(pl.Float64).sum(),
        tiled=pl.when(pl.col("executed_flop").is_not_null()).then(pl.col("flop").cast(pl.Float64)).sum(),
        moved=pl.col("dram_bytes").cast(pl.Float64).sum(),
        moved_ns=pl.col("exclusive_ns").filter(pl.col("dram_bytes").is_not_null()).sum(),
        measured=pl.col("measured").sort_by("dram_bytes").last(),
    )
    seconds, modelled = pl.col("exclusive_ns").clip(lower_bound=1) / 1e9, pl.col("known").is_not_null()
    timed = modelled & pl.col("bound").is_not_null()
    rows = sums.with_columns(
        flop_per_s=pl.when(modelled).then(pl.col("flop") / seconds),
        bytes_per_s=pl.when(modelled).then(pl.col("bytes") / seconds),
        dram_bytes_per_s=pl.when(pl.col("moved_ns") > 0).then(pl.col("moved") * 1e9 / pl.col("moved_ns")),
        intensity_flop_per_byte=pl.when(modelled & (pl.col("bytes") > 0)).then(pl.col("flop") / pl.col("bytes")),
        executed_share=pl.when(pl.col("executed") > 0).then(pl.col("tiled") / pl.col("executed")),
        roof_share=pl.when(timed).then(pl.col("at_roof_ns") / pl.col("exclusive_ns").clip(lower_bound=1)),
        at_roof_ns=pl.when(timed).then("at_roof_ns"),
        distance_ns=pl.when(timed).then("distance_ns"),
    )
    order = ["distance_ns", "exclusive_ns", *_KEYS]
    return TABLE.select(_with_reached(report, rows)).sort(
        order, descending=[True, True, *(False for _ in _KEYS)], nulls_last=True
    )


#: What is measured to be further above the datasheet is not of that GPU.
_MOST_REACHED: Final = 1.1


def _with_reached(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds reached_share to rows (device, type, bound), of the GPU that was measured."""
    reached = report.reached()
    devices = report.devices.filter(name=reached.gpu)
    rates = pl.DataFrame([*reached.per_s.items()], {"kind": pl.String, "rate": pl.Float64}, orient="row")
    products = peaks(devices).select("device", kind="type", roof="flop_per_s")
    copies = memory_roofs(devices).select("device", kind=pl.lit("copy"), roof="bytes_per_s")
    shares = pl.concat([products, copies], how="vertical_relaxed").join(rates, on="kind")
    kind = pl.when(pl.col("bound") == "memory").then(pl.lit("copy")).otherwise("type")
    share = pl.col("rate") / pl.col("roof")
    shares = shares.filter(share <= _MOST_REACHED).select("device", "kind", reached_share=share)
    return rows.with_columns(kind=kind).join(shares, on=["device", "kind"], how="left").drop("kind")


#: Parts of a device's time, beside the buckets of the ledger that stay as they are.
AT_ROOF, DISTANCE, AT_MOST = "at the roof", "distance to it", "at most that far"
UNKNOWN, AGAIN = "no model", "recomputed"

#: What kernels are by what bounds them, where no name says it.
OTHER: Final = "other kernels"
_GROUP: Final = pl.coalesce(pl.col("group").cast(pl.String), pl.col("bound").replace("compute", OTHER))

BUDGET: Final = schema.Table(
    "budget",
    "One part of a device's time: work at the roof, the distance to it, and what the ledger says of the rest.",
    schema.columns(f"""
        device int: The GPU, as in `devices`.
        part text: {AT_ROOF}: the least time that the work of kernels needs; {DISTANCE}: the rest of their time;
            {AT_MOST}: the same of a bound; {UNKNOWN}: kernels of operators without a model; {AGAIN}: those that run
            forward again within backward, as under activation checkpointing; else a bucket of the ledger.
        detail text?: Of kernels what they are: {', '.join(GROUPS)}, {OTHER}; else the ledger's detail.
        ns int: Time; the rows of a device sum to its window.
        share float: Part of the window.
    """),
    purpose="a GPU's time, against what it could do",
)  # fmt: skip


@analysis
def budget(report: Report) -> pl.DataFrame:
    """The time of each device: at the roof, at a distance from it, idle by its cause, exposed copies and communication.

    Returns:
        :data:`BUDGET`; the rows of a device sum to its window exactly, as the ledger's do.

    Raises:
        CannotTellError: The report has no operators and no ranges, or no kernels.
    """
    every = required_calls(report, BUDGET)
    calls = every.filter(~pl.col("again"))
    known, unknown = (calls.filter(one) for one in (pl.col("bound").is_not_null(), pl.col("bound").is_null()))
    rest = ledger(report).filter(pl.col("bucket") != "kernel")
    bounds = pl.col("known") == BOUND
    far = pl.when(bounds).then(pl.lit(AT_MOST)).otherwise(pl.lit(DISTANCE))
    parts = [
        every.filter("again").select("device", part=pl.lit(AGAIN), detail=_GROUP, ns="exclusive_ns"),
        known.select("device", part=pl.lit(AT_ROOF), detail=_GROUP, ns="at_roof_ns"),
        known.sort(bounds, maintain_order=True).select("device", part=far, detail=_GROUP, ns="distance_ns"),
        unknown.select("device", part=pl.lit(UNKNOWN), detail=_GROUP, ns="exclusive_ns"),
        rest.select("device", part=pl.col("bucket").cast(pl.String), detail="detail", ns="ns"),
    ]
    sums = pl.concat(parts).group_by("device", "part", "detail", maintain_order=True).agg(pl.col("ns").sum())
    return BUDGET.select(sums.filter(pl.col("ns") > 0).with_columns(share_of_window(report)))


#: So much of the FLOPs are of types whose peak is known, or what they are of the peak is not told.
_NEARLY_ALL: Final = 0.99

MFU: Final = schema.Table(
    "mfu",
    "What a device did of what its peaks allow, over the whole window.",
    schema.columns("""
        device int: The GPU, as in `devices`.
        window_ns int: The window.
        flop int?: FLOPs of products, convolutions and attention by their shapes, forward and backward, as executed:
            what is computed anew in a backward pass counts again; of other kernels that compute bounds those that were
            measured; null where no number holds them, and where no kernel with a model has any and others have none.
        flop_per_s float?: By the window.
        flop_share float?: The time that they take at the dense peak of each one's type, of the window: the utilisation
            of the hardware (HFU), and where nothing is computed anew that of the model (MFU); null where no peak is
            known.
        executed_flop int?: With the tiles of products filled up, where the kernel's name tells them.
        model_flop_share float?: flop_share without what runs forward again within backward: MFU in any case.
        known_share float?: Kernel time of operators with a model, of all kernel time; the rest could hold more.
    """),
    purpose="FLOPs against the GPU's peak (MFU)",
    telling=("flop", "flop_share", "known_share"),
)


@analysis
def mfu(report: Report) -> pl.DataFrame:
    """FLOPs of each device over its window, against its dense peaks.

    Source: Chowdhery et al., PaLM (2022), appendix B, of hardware FLOPs utilisation; of a causal mask half counts.

    Returns:
        :data:`MFU`.

    Raises:
        CannotTellError: The report has no operators and no ranges, or no kernels.
    """
    peaked = required_calls(report, MFU).join(peaks(report.devices), on=["device", "type"], how="left")
    part = pl.col("inside_ns") / pl.col("dur_ns").clip(lower_bound=1)  # of what overlaps the window
    named = _GROUP != "memory"  # what ncu counted of these is no FLOP of a model
    flop, executed = (
        pl.when(named).then(one).fill_null(0) * part for one in (pl.col("flop"), pl.coalesce("executed_flop", "flop"))
    )
    at_peak, peak = flop * 1e9 / pl.col("flop_per_s"), pl.col("flop_per_s").is_not_null()
    known_ns, whole = pl.col("exclusive_ns").filter(pl.col("known").is_not_null()).sum(), pl.col("exclusive_ns").sum()
    told = (flop.sum() > 0) | (known_ns >= _NEARLY_ALL * whole)  # else what has none is a part
    sums = peaked.group_by("device").agg(
        flop=pl.when(told).then(flop.sum()).cast(pl.Int64, strict=False),
        executed_flop=pl.when(told).then(executed.sum()).cast(pl.Int64, strict=False),
        at_peak_ns=pl.when(told & (flop.filter(peak).sum() >= _NEARLY_ALL * flop.sum())).then(at_peak.sum()),
        once=1 - at_peak.filter("again").sum() / at_peak.sum().clip(lower_bound=1),
        known_share=pl.when(whole > 0).then(known_ns / whole),
    )
    spans = windows(report).select("device", window_ns=pl.col("end") - pl.col("start"))
    devices = spans.join(sums, on="device", how="left")
    window = pl.col("window_ns").clip(lower_bound=1)
    timed = devices.with_columns(flop_per_s=pl.col("flop") * 1e9 / window, flop_share=pl.col("at_peak_ns") / window)
    timed = timed.with_columns(model_flop_share=pl.col("flop_share") * pl.col("once"))
    return MFU.select(timed).sort("device")


#: A group is named if it takes this part of the time of kernels; the sentence is told if so much of that has a model,
#: and if kernels take so much of the window.
_WORTH_NAMING, _WORTH_TELLING = 0.05, 0.5


def _large_products(report: Report, calls: pl.DataFrame) -> str:
    """Remark on how near large products come to their roof on this GPU, if they were measured to come nearer."""
    products = calls.filter((pl.col("group") == "products") & (pl.col("bound") == "compute"))
    rows = _with_reached(report, products).drop_nulls("reached_share")
    reached_ns = rows.select((pl.col("reached_share") * pl.col("exclusive_ns")).sum()).item()
    if reached_ns <= total(rows, "at_roof_ns"):
        return ""
    return f" (large products reach {units.percent(reached_ns / total(rows, 'exclusive_ns'))} here)"


def against_roofs(report: Report, *, farthest: bool = False) -> str:
    """Sentence on MFU, how near operators of a device come to their roofs, and what the distance costs an iteration.

    With `farthest` also the operator of the largest distance, where that is worth it. Empty where no peak of the device
    is known, or most kernel time has no model.
    """
    calls = calls_with_work(report)
    kernels = total(calls, "exclusive_ns")
    by_group = calls.drop_nulls("bound").group_by(group=_GROUP)
    bounds = pl.col("distance_ns").filter(pl.col("known") == BOUND)
    sums = by_group.agg(pl.col("exclusive_ns", "at_roof_ns", "distance_ns").sum(), at_most_ns=bounds.sum())
    if not kernels or total(sums, "exclusive_ns") < _WORTH_TELLING * kernels:
        return ""
    spans = windows(report)
    if kernels < _WORTH_TELLING * (total(spans, "end") - total(spans, "start")):
        return ""
    named = sums.filter(pl.col("exclusive_ns") >= _WORTH_NAMING * kernels)
    few = pl.col("at_most_ns") < _WORTH_NAMING * pl.col("exclusive_ns")
    near = named.select("group", pl.col("at_roof_ns") / pl.col("exclusive_ns"), few)
    shares = {group: units.percent(share) + ("" if few else " or more") for group, share, few in near.iter_rows()}
    hardware, used = (float(one.sum()) for one in mfu(report).select("flop_share", "model_flop_share"))
    groups = [group for group in (*GROUPS, OTHER) if group in shares and group != "memory"]
    at_roof = [f"{group} at {shares[group]}" for group in groups]
    if "memory" in shares:
        what = "the rest" if groups else "its kernels" if used else "Its kernels work"
        at_roof.append(f"{what} at {shares['memory']}")
    large = _large_products(report, calls) if groups else ""
    parts = f"{', '.join(at_roof)} of their roof{large}" if at_roof else ""
    window = report.scope.window
    iterations = (window.count if window else None) or 1
    lost, taken = (units.time(ns / iterations) for ns in (total(sums, "distance_ns"), kernels))
    apart = f" ({units.percent(hardware)} with what backward computes again)" if hardware > used else ""
    reached = ": ".join(filter(None, (f"{units.percent(used)} MFU{apart}" if used else "", parts)))
    at_most = "at most " * (total(sums, "at_most_ns") >= _WORTH_NAMING * total(sums, "distance_ns"))
    distance = f"{at_most}{lost} of {taken} of kernels are the distance to {'it' if parts else 'their roofs'}"
    worth = roofs(report).drop_nulls("name").filter(pl.col("distance_ns") >= _WORTH_NAMING * kernels)
    for row in worth.head(farthest).iter_rows(named=True):
        far, share = units.time(row["distance_ns"] / iterations), units.percent(row["roof_share"])
        distance += f", {far} of that {row['name']} at {share} (show roofs)"
    return "; ".join(filter(None, (reached, f"{distance}.")))
