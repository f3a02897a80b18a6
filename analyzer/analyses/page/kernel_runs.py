"""Launches in a row of a program's own kernels that counters of ncu prove needless: what they read, or hand on.

Kernels that read the host's memory in place, again and again: a copy of it would do. Kernels that hand on their results
through memory: one could do.
"""

from typing import Any, Final

import polars as pl

from kanalyze import report, units
from kanalyze.analyses.counters.counters import SECTOR_BYTES, counters, metric_columns
from kanalyze.analyses.findings.findings import OF_REMEDIES
from kanalyze.analyses.findings.rules import Finding, one_line, row_of
from kanalyze.analyses.page.overview_page import PageKernels
from kanalyze.decoder.decode import decode

#: Sectors that L1 caches ask for and L2 fetches from the host.
FROM_HOST: Final = "lts__t_sectors_srcunit_tex_aperture_sysmem_op_read_lookup_miss.sum"

#: At least this part of a kernel's time is in launch shapes that ncu measured.
_MEASURED: Final = 0.5

#: Launches of one shape are alike up to this factor between their durations: other data may take far more.
ALIKE: Final = 1.5

#: From this part of its peak on, what computes, or DRAM, holds a kernel up that reads the host's memory.
_BUSY: Final = 0.6


def measured_shapes(joined: pl.DataFrame) -> pl.DataFrame:
    """How near each kernel comes to its roof, where ncu measured most of its time: name, event_id, roof_share.

    `event_id` is that of the launch shape with most of its time.
    """
    longer = pl.col("ncu_dur_ns") / pl.col("avg_ns")
    alike = (pl.col("ncu_match") == "shape") & longer.is_between(1 / ALIKE, ALIKE)
    same = (pl.col("ncu_match") == "exact") | alike.fill_null(value=False)
    sure = same & pl.col("event_id").is_not_null() & pl.col("roof_share").is_not_null()
    ns = pl.col("exclusive_ns").fill_null(0)
    measured = ns.filter(sure).sum()
    order = joined.sort("exclusive_ns", descending=True, nulls_last=True)
    sums = order.group_by("name", maintain_order=True).agg(
        pl.col("event_id").filter(sure).first(),
        roof_share=(ns * pl.col("roof_share")).filter(sure).sum() / measured,
        part=measured / ns.sum(),
    )
    return sums.filter(pl.col("part") >= _MEASURED).select("name", "event_id", "roof_share")


def reads_of_host(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> list[Finding]:
    """Findings on a program's own kernels that read as much of the host's memory in several launches in a row.

    In a row are launches of one kernel with nothing between them on their stream, nor a wait of the host, which could
    write there meanwhile. What is left is one read for each row, as long as a copy, and what the kernel computes.
    """
    kernels = measured_shapes(joined).select("name", "event_id").join(_readers(ncu), on="event_id")
    alike = pl.struct("name", "waits")
    follows = pl.col("next") & alike.eq_missing(alike.shift())
    runs = (
        _own_runs(kernels, page).with_columns(row=(~follows).cum_sum(), first=~follows).filter(pl.len().over("row") > 1)
    )
    spared = pl.col("exclusive_ns") * (1 - pl.col("busy") - pl.col("first"))
    sums = runs.group_by("name", maintain_order=True).agg(
        pl.col("measured_ns", "host_bytes").first(),
        pl.col("exclusive_ns").sum(),
        spared_ns=spared.sum().cast(pl.Int64),
        times=pl.len() / pl.col("row").n_unique(),
    )
    told = sums.filter(pl.col("spared_ns") >= max(0.1 * page.whole_ns, 1)).sort("spared_ns", descending=True)
    return [_reads_in_place(row, page) for row in told.to_dicts()]


def _own_runs(kernels: pl.DataFrame, page: PageKernels) -> pl.DataFrame:
    """The launches of those `kernels` that are the program's own and of which nothing else is told, in their order.

    Only those count that took about as long as the measured one, `measured_ns`, as others work on other data; `next`
    are those right behind the one before, with nothing between them on their stream.
    """
    own = [decode(str(name)).library is None and name not in page.told for name in kernels.get_column("name")]
    took, measured = pl.col("dur_ns"), pl.col("measured_ns")
    runs = page.runs.join(kernels.filter(pl.Series(own, dtype=pl.Boolean)), on="name")
    alike = runs.filter(took.is_between(measured / ALIKE, measured * ALIKE)).sort("process_id", "stream", "place")
    passed = pl.col("place").diff().over("process_id", "stream")
    return alike.with_columns(next=(passed == 1).fill_null(value=False))


def _readers(ncu: report.Report) -> pl.DataFrame:
    """The kernels that PCI Express holds up: event_id, measured_ns, host_bytes and busy, a part of their time."""
    counts = counters(ncu).select("event_id", "compute_share", "dram_share", measured_ns="dur_ns")
    counts = counts.join(metric_columns(ncu, [FROM_HOST]), on="event_id").with_columns(
        host_bytes=pl.col(FROM_HOST) * SECTOR_BYTES, busy=pl.max_horizontal("compute_share", "dram_share").fill_null(0)
    )
    # so many bytes per ns of PCI Express hold it up: of its third generation, over 16 lanes, two thirds
    return counts.filter(pl.col("host_bytes") >= 8 * pl.col("measured_ns"), pl.col("busy") < _BUSY)


def _reads_in_place(row: dict[str, Any], page: PageKernels) -> Finding:
    """The words on one kernel, by what it reads and how often in a row."""
    one = _on_kernels(
        "zero-copy-reads",
        page,
        (row["name"],),
        row["exclusive_ns"],
        bytes=units.size(row["host_bytes"]),
        rate=units.rate(row["host_bytes"] / row["measured_ns"] * 1e9),
        times=f"{row['times']:.0f}",
    )
    # each launch may read another part
    high = int(row["spared_ns"] * (1 + OF_REMEDIES))
    return one._replace(at_stake_ns=row["spared_ns"], replayed_low_ns=0, replayed_high_ns=high)


def _on_kernels(name: str, page: PageKernels, kernels: tuple[str, ...], took_ns: int, /, **figures: object) -> Finding:
    """The finding of this name on kernels that took so long, of which all is at stake."""
    words = one_line({key: row_of(name)[key] for key in ("headline", "text", "action", "remedy")})
    figures |= {"took": units.time(took_ns), "share": units.percent(took_ns / page.whole_ns)}
    filled = {key: text.format("{0}", **figures) for key, text in words.items()}
    rule = name.partition(":")[0]
    return Finding(rule, page.device, took_ns, **filled, table="gains", names=kernels, shortens=True)


# Kernels that hand on their results through memory.

#: Numbers of bytes are alike up to this part of them: of a row each thread may read a scale, or a mean.
_ALIKE: Final = 0.1

#: Most kernels of a chain that are named.
_NAMED: Final = 3


def passing_on(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> list[Finding]:
    """The finding on a program's own kernels each of which reads what the one before may have written: one, or none.

    Only those count whose threads ask once for each byte that DRAM moves, as maps and sums over rows do, and stencils
    do not, and that follow each other on a stream with nothing between. That what is passed on is neither written nor
    read again is the most that one kernel in their place can save; where others need it too, the half is.
    """
    runs = _linked(_own_runs(_maps(joined, ncu), page))
    handed = pl.col("taken") + pl.col("taken").shift(-1, fill_value=0.0)
    spared = pl.col("exclusive_ns") * (handed / pl.col("moved")).clip(0, 1)
    each = runs.with_columns(spared=spared).group_by("chain", maintain_order=True)
    chains = each.agg(pl.col("name").cast(pl.String), pl.col("spared").sum())
    alike = chains.group_by("name", maintain_order=True).agg(pl.col("chain"), pl.col("spared").sum())
    longest = alike.sort("spared", maintain_order=True).tail(1)
    spared_ns = int(longest.get_column("spared").sum())
    if spared_ns < max(0.1 * page.whole_ns, 1):
        return []
    return [_handed_on(runs.filter(pl.col("chain").is_in(longest.item(0, "chain").implode())), spared_ns, page)]


def _linked(runs: pl.DataFrame) -> pl.DataFrame:
    """Launches of maps in the order of streams, with chain (its number), taken (bytes of the last one) and moved."""
    first, passed = pl.col("start").min().over("name"), pl.col("written").shift()
    follows = pl.col("next") & (first > first.shift())
    # of two tensors at most, with scales of rows
    sizes = pl.col("read").is_between((1 - _ALIKE) * passed, 2.2 * passed)
    linked = (follows & sizes & (_alike("written", passed) | _alike("read", passed))).fill_null(value=False)
    return runs.with_columns(
        chain=(~linked).cum_sum(),
        taken=pl.when(linked).then(pl.min_horizontal(passed, "read")).otherwise(0.0),
        moved=pl.col("read") + pl.col("written"),
    )


def _alike(column: str, count: pl.Expr) -> pl.Expr:
    """Whether a column is `count`, nearly."""
    return (pl.col(column) - count).abs() <= _ALIKE * count


def _maps(joined: pl.DataFrame, ncu: report.Report) -> pl.DataFrame:
    """The kernels that wait for DRAM, which moves each byte once.

    Columns: name, measured_ns, and the bytes read and written.
    """
    # from half of its bandwidth on, and nearly what the SMs are busy, a kernel waits for DRAM
    least = pl.max_horizontal(pl.lit(0.5), 0.8 * pl.col("compute_share").fill_null(0))
    counts = counters(ncu).filter(pl.col("dram_share") >= least)
    counts = counts.select("event_id", "dram_read_bytes", "dram_write_bytes", measured_ns="dur_ns")
    kernels = measured_shapes(joined).join(counts, on="event_id")
    asked, writes = pl.col("ideal_sectors") * SECTOR_BYTES, pl.col("sass").cast(pl.String).str.contains(r"\bSTG?\.E")
    bytes_asked = {"read": asked.filter(~writes).sum(), "written": asked.filter(writes).sum()}
    code = ncu.table("instructions").filter(pl.col("event_id").is_in(kernels.get_column("event_id").implode()))
    kernels = kernels.join(code.group_by("event_id").agg(**bytes_asked), on="event_id")
    # a part of what is written may still be in L2 when ncu counts
    once = _alike("dram_read_bytes", pl.col("read")) & (pl.col("dram_write_bytes") <= (1 + _ALIKE) * pl.col("written"))
    return kernels.filter(once & (pl.col("written") > 0)).select("name", "measured_ns", "read", "written")


def _handed_on(chain: pl.DataFrame, spared_ns: int, page: PageKernels) -> Finding:
    """The words on the launches of a chain, by what they move and how long they take."""
    names = tuple(chain.sort("start").get_column("name").cast(pl.String).unique(maintain_order=True))
    took_ns, moved = (int(chain.get_column(one).sum()) for one in ("exclusive_ns", "moved"))
    shown = [f"{{{place}}}" for place in range(min(len(names), _NAMED))]
    others = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    figures = {"names": ", ".join([*shown, *others]), "kernels": len(names), "bytes": units.size(moved / chain.height)}
    one = _on_kernels("fusion: kernels", page, names, took_ns, **figures)
    # one kernel computes what all of them do, and hides it less well
    return one._replace(at_stake_ns=int(0.9 * spared_ns), replayed_low_ns=spared_ns // 2, replayed_high_ns=spared_ns)
