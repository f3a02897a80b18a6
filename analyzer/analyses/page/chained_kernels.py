"""Kernels of a program that hand on their results through memory, as counters of ncu tell: one could do."""

from typing import Final

import polars as pl

from kanalyze import report, units
from kanalyze.analyses.counters.counters import SECTOR_BYTES, counters
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.page.host_reads import on_kernels, own_runs
from kanalyze.analyses.page.overview_page import PageKernels
from kanalyze.analyses.page.proven_causes import measured_shapes

#: Numbers of bytes are alike up to this part of them: of a row each thread may read a scale, or a mean.
_ALIKE: Final = 0.1

#: From this part of its bandwidth on, and of what the SMs are busy, a kernel waits for DRAM.
_BUSY: Final = 0.5

_NAMED: Final = 3


def passing_on(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> list[Finding]:
    """The finding on a program's own kernels each of which reads what the one before may have written: one, or none.

    Only those count whose threads ask once for each byte that DRAM moves, as maps and sums over rows do, and stencils
    do not, and that follow each other on a stream with nothing between. That what is passed on is neither written nor
    read again is the most that one kernel in their place can save; where others need it too, the half is.
    """
    runs = _linked(own_runs(_maps(joined, ncu), page))
    handed = pl.col("taken") + pl.col("taken").shift(-1, fill_value=0.0)
    spared = pl.col("exclusive_ns") * (handed / pl.col("moved")).clip(0, 1)
    each = runs.with_columns(spared=spared).group_by("chain", maintain_order=True)
    chains = each.agg(pl.col("name").cast(pl.String), pl.col("spared").sum())
    alike = chains.group_by("name", maintain_order=True).agg(pl.col("chain"), pl.col("spared").sum())
    longest = alike.sort("spared", maintain_order=True).tail(1)
    spared_ns = int(longest.get_column("spared").sum())
    if spared_ns < max(0.1 * page.whole_ns, 1):
        return []
    return [_finding(runs.filter(pl.col("chain").is_in(longest.item(0, "chain").implode())), spared_ns, page)]


def _linked(runs: pl.DataFrame) -> pl.DataFrame:
    """Launches of maps in the order of streams, with chain (its number), taken (bytes of the last one) and moved."""
    first, passed = pl.col("start").min().over("name"), pl.col("written").shift()
    next_place = pl.struct("process_id", "stream", pl.col("place") + 1).shift()
    follows = (pl.struct("process_id", "stream", "place") == next_place) & (first > first.shift())
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
    waits = (pl.col("dram_share") >= _BUSY) & (pl.col("dram_share") >= 0.8 * pl.col("compute_share").fill_null(0))
    counts = counters(ncu).filter(waits).select("event_id", "dram_read_bytes", "dram_write_bytes", measured_ns="dur_ns")
    kernels = measured_shapes(joined).join(counts, on="event_id")
    asked, writes = pl.col("ideal_sectors") * SECTOR_BYTES, pl.col("sass").cast(pl.String).str.contains(r"\bSTG?\.E")
    bytes_asked = {"read": asked.filter(~writes).sum(), "written": asked.filter(writes).sum()}
    code = ncu.table("instructions").filter(pl.col("event_id").is_in(kernels.get_column("event_id").implode()))
    kernels = kernels.join(code.group_by("event_id").agg(**bytes_asked), on="event_id")
    # a part of what is written may still be in L2 when ncu counts
    once = _alike("dram_read_bytes", pl.col("read")) & (pl.col("dram_write_bytes") <= (1 + _ALIKE) * pl.col("written"))
    return kernels.filter(once & (pl.col("written") > 0)).select("name", "measured_ns", "read", "written")


def _finding(chain: pl.DataFrame, spared_ns: int, page: PageKernels) -> Finding:
    """The words on the launches of a chain, by what they move and how long they take."""
    names = tuple(chain.sort("start").get_column("name").cast(pl.String).unique(maintain_order=True))
    took_ns, moved = (int(chain.get_column(one).sum()) for one in ("exclusive_ns", "moved"))
    shown = [f"{{{place}}}" for place in range(min(len(names), _NAMED))]
    others = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    figures = {"names": ", ".join([*shown, *others]), "kernels": len(names), "bytes": units.size(moved / chain.height)}
    one = on_kernels("fusion: kernels", page, names, took_ns, **figures)
    # one kernel computes what all of them do, and hides it less well
    return one._replace(at_stake_ns=int(0.9 * spared_ns), replayed_low_ns=spared_ns // 2, replayed_high_ns=spared_ns)
