"""What takes longer than a law says: kernels by their roofs, where shapes tell these, and steps of serving engines."""

import re
from typing import Final

import polars as pl

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import on_gpu, rules, say
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.serving.step_laws import HOST, steps_by_law
from kanalyze.analyses.work.work import operations_with_roofs
from kanalyze.report import Report
from kanalyze.units import percent, plural

#: Causes of distance, the first that holds.
_PADDED, _SKINNY, _FLOOR, _FAR = "padded-products", "skinny-products", "memory-floor", "far-from-roof"

_FEW_TILES: Final = 0.5  # tiles for this part of the SMs leave most of the GPU idle
_FEW_ROWS, _SEVERAL = 64, 4  # a product of few rows reads its weights, several times as many, for little arithmetic
_FAR_SHARE: Final = 0.5

#: What chooses values passes over them more often than its bytes tell. Libraries tune products, convolutions and
#: attention: that they are far from the roof is no proof that others come nearer.
_CHOOSES: Final = r"topk|sort|kthvalue|median|mode|quantile|multinomial|unique|nonzero"


def _caused(report: Report) -> pl.DataFrame:
    """The kernels with a roof and the cause of their distance: also share (of the roof) and left (a part of its time).

    Of what the cache could hold the roof is that of the memory: kernels that pass over little data are no finding.
    """
    sms = report.devices.select("device", "sm_count")
    work = operations_with_roofs(report).drop_nulls(["roof_ns", "group"]).join(sms, on="device", maintain_order="left")
    took = pl.col("took_ns").clip(lower_bound=1)
    least = pl.max_horizontal("compute_ns", "dram_ns")
    padded = pl.col("compute_ns") * pl.col("executed_flop") / pl.col("flop")
    product = pl.col("sides").is_not_null() & (pl.col("group") == "products")
    both = pl.col("sides").list.head(2)
    few = both.list.min() <= pl.min_horizontal(_FEW_ROWS, both.list.max() / _SEVERAL)
    idle, cut = pl.col("tiles") / pl.col("sm_count"), pl.col("name").cast(pl.String).str.contains("(?i)split_?k")
    known = pl.col("known").is_in(["model", "exact"])
    op = pl.col("op").cast(pl.String)
    # gradients of norms sum over rows as well: what others reach of these is not known
    known &= (pl.col("group") == "memory") & ~op.str.contains(f"_norm_backward|{_CHOOSES}").fill_null(value=False)
    long, memory = took >= on_gpu.SHORTEST_NS, pl.col("bound") == "memory"
    # torch.compile's kernels of layer norms reach 52 and 71 % for 768 and 1,024 values in bfloat16 on an H200
    usual = pl.when(op.str.contains("_norm")).then(0.55).otherwise(on_gpu.REACHED["memory"])
    left = {
        _PADDED: (
            product & (padded >= 4 / 3 * least) & (padded >= 0.4 * took),  # with tiles that are filled up
            least / pl.min_horizontal(padded, took),
        ),
        _SKINNY: (
            product & (idle <= _FEW_TILES) & (least < _FAR_SHARE * took) & long & ~cut,
            pl.max_horizontal(idle, least / took / on_gpu.REACHED["products"])
            + 2000 / took,  # another kernel sums parts
        ),
        _FLOOR: (product & memory & few & (least >= 0.6 * took), pl.lit(1.0)),
        # of what is known to need at least so much, and of what was not recorded, the distance could be less
        _FAR: (known & (least < _FAR_SHARE * took) & long, least / took / usual),
    }
    return work.with_columns(
        cause=pl.coalesce(pl.when(holds).then(pl.lit(name)) for name, (holds, _) in left.items()),
        left=pl.coalesce(pl.when(holds).then(stays) for holds, stays in left.values()).clip(upper_bound=1.0),
        share=(least / took).clip(upper_bound=1.0),
        product=on_gpu.PRODUCT,
        rows=both.list.min(),
        times=pl.col("executed_flop") / pl.col("flop"),
    ).drop_nulls("cause")


@rules.Rule
def below_roofs(report: Report) -> rules.Findings:
    """At most one finding per device and cause."""
    for work in on_gpu.works(report, _caused(report)):
        for cause in (_PADDED, _SKINNY, _FLOOR, _FAR):
            yield _finding(work._replace(rows=work.rows.filter(cause=cause)), cause)


def _finding(work: on_gpu.Work, cause: str) -> rules.Finding | None:
    """The finding on kernels of one cause, where that is worth one."""
    floor, kept = cause == _FLOOR, pl.col("left")
    lost = int(work.rows.select((pl.col("exclusive_ns") * (1 - kept)).sum()).item())
    if not work.ns:
        return None
    of_call = (pl.col("exclusive_ns") * (1 - kept + 1e-6)).sum().over("op", "input_shapes", "name")
    top = work.rows.with_columns(lost=of_call).sort("lost", "row").row(-1, named=True)  # most time is lost of its call
    several = cause == _FAR and work.rows.get_column("name").n_unique() > 1
    return work.finding(
        f"{cause}: several" if several else cause,
        str(top["name"]),
        left=None,
        at_stake_ns=work.ns if floor else lost,
        mending=None if floor else Mending(work.rows.select("row", saved_ns=on_gpu.part("dur_ns", 1 - kept))),
        vague=floor,
        general=cause == _FAR,
        retold=lambda left: _finding(work.left_of(left), cause),
        top=top,
        shapes=", ".join(dict.fromkeys(re.findall(r"\[[\d, ]+\]", top["input_shapes"] or ""))),
        share=percent(top["share"]),
    )


@rules.Rule
def slow_engine_steps(report: Report) -> rules.Findings:
    """One finding per device on the kind of steps, and part of their time, with most time above the law."""
    keys = ["device", "kind", "mode", "part"]
    lengths = dict(windows(report).select("device", pl.col("end") - pl.col("start")).iter_rows())
    slow = steps_by_law(report).filter("slow").with_columns(more_ns=pl.col("ns") - pl.col("law_ns"))
    slow = slow.with_columns(all_ns=pl.col("more_ns").sum().over(keys), count=pl.len().over(keys))
    order = {"all_ns": True, **dict.fromkeys(keys, False), "more_ns": True, "index": False}
    worst = slow.sort(list(order), descending=list(order.values())).unique("device", keep="first", maintain_order=True)
    for row in worst.iter_rows(named=True):
        of = "the host" if row["part"] == HOST else "the GPU"
        figures = {"of": of, "cached": of == "the GPU" and row["kv"] is None, "step": row, "label": row["label"] or ""}
        figures["steps"] = plural(row["count"], f"{row['kind']} step")
        stake = min(int(row["all_ns"]), lengths.get(row["device"], 0))
        yield say.told(report, "slow-steps", row["device"], None, stake, vague=True, general=True, **figures)
