"""Kernels that read the host's memory in place, again and again, as counters of ncu tell: a copy of it would do."""

from typing import Any, Final

import polars as pl

from kanalyze import report, units
from kanalyze.analyses.counters.counters import SECTOR_BYTES, counters, metric_columns
from kanalyze.analyses.findings.findings import OF_REMEDIES
from kanalyze.analyses.findings.rules import Finding, one_line, row_of
from kanalyze.analyses.page.overview_page import PageKernels
from kanalyze.analyses.page.proven_causes import ALIKE, measured_shapes
from kanalyze.decoder.decode import decode

#: Sectors that L1 caches ask for and L2 fetches from the host.
FROM_HOST: Final = "lts__t_sectors_srcunit_tex_aperture_sysmem_op_read_lookup_miss.sum"

#: From this part of its peak on, what computes, or DRAM, holds a kernel up.
_BUSY: Final = 0.6

_LEAST: Final = 0.1  # of the page's time


def reads_of_host(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> list[Finding]:
    """Findings on a program's own kernels that read as much of the host's memory in several launches in a row.

    In a row are launches of one kernel with nothing between them on their stream, nor a wait of the host, which could
    write there meanwhile. What is left is one read for each row, as long as a copy, and what the kernel computes.
    """
    kernels = measured_shapes(joined).select("name", "event_id").join(_readers(ncu), on="event_id")
    runs = own_runs(kernels, page)
    before = pl.struct("name", "process_id", "stream", "waits", place=pl.col("place") - 1)
    follows = before.eq_missing(pl.struct("name", "process_id", "stream", "waits", "place").shift())
    runs = runs.with_columns(row=(~follows).cum_sum(), first=~follows).filter(pl.len().over("row") > 1)
    spared = pl.col("exclusive_ns") * (1 - pl.col("busy") - pl.col("first"))
    sums = runs.group_by("name", maintain_order=True).agg(
        pl.col("measured_ns", "host_bytes").first(),
        pl.col("exclusive_ns").sum(),
        spared_ns=spared.sum().cast(pl.Int64),
        times=pl.len() / pl.col("row").n_unique(),
    )
    told = sums.filter(pl.col("spared_ns") >= max(_LEAST * page.whole_ns, 1)).sort("spared_ns", descending=True)
    return [_finding(row, page) for row in told.to_dicts()]


def own_runs(kernels: pl.DataFrame, page: PageKernels) -> pl.DataFrame:
    """The launches of those `kernels` that are the program's own and of which nothing else is told, in their order.

    Only those count that took about as long as the measured one, `measured_ns`, as others work on other data.
    """
    own = [decode(str(name)).library is None and name not in page.told for name in kernels.get_column("name")]
    took, measured = pl.col("dur_ns"), pl.col("measured_ns")
    runs = page.runs.join(kernels.filter(pl.Series(own, dtype=pl.Boolean)), on="name")
    alike = runs.filter(took.is_between(measured / ALIKE, measured * ALIKE))
    return alike.sort("process_id", "stream", "place")


def _readers(ncu: report.Report) -> pl.DataFrame:
    """The kernels that PCI Express holds up: event_id, measured_ns, host_bytes and busy, a part of their time."""
    counts = counters(ncu).select("event_id", "compute_share", "dram_share", measured_ns="dur_ns")
    counts = counts.join(metric_columns(ncu, [FROM_HOST]), on="event_id").with_columns(
        host_bytes=pl.col(FROM_HOST) * SECTOR_BYTES, busy=pl.max_horizontal("compute_share", "dram_share").fill_null(0)
    )
    # so many bytes per ns of PCI Express hold it up: of its third generation, over 16 lanes, two thirds
    return counts.filter(pl.col("host_bytes") >= 8 * pl.col("measured_ns"), pl.col("busy") < _BUSY)


def _finding(row: dict[str, Any], page: PageKernels) -> Finding:
    """The words on one kernel, by what it reads and how often in a row."""
    one = on_kernels(
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


def on_kernels(name: str, page: PageKernels, kernels: tuple[str, ...], took_ns: int, /, **figures: object) -> Finding:
    """The finding of this name on kernels that took so long, of which all is at stake."""
    words = one_line({key: row_of(name)[key] for key in ("headline", "text", "action", "remedy")})
    figures |= {"took": units.time(took_ns), "share": units.percent(took_ns / page.whole_ns)}
    filled = {key: text.format("{0}", **figures) for key, text in words.items()}
    rule = name.partition(":")[0]
    return Finding(rule, page.device, took_ns, **filled, table="gains", names=kernels, shortens=True)
