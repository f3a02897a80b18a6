"""Kernels of a program that hand on their results through memory, as counters of ncu tell: one could do."""

from typing import Final

import polars as pl

from kanalyze import report, units
from kanalyze.analyses.counters.counters import counters
from kanalyze.analyses.findings.rules import Finding, one_line, row_of
from kanalyze.analyses.page.overview_page import PageKernels
from kanalyze.analyses.page.proven_causes import measured_shapes
from kanalyze.decoder.decode import decode

_WORDS: Final = one_line({key: row_of("fusion: kernels")[key] for key in ("headline", "text", "action", "remedy")})
_SECTOR_BYTES: Final = 32
_STORES: Final = r"\bSTG?\.E"  # SASS that writes to global memory

#: Numbers of bytes are alike up to this part of them: of a row each thread may read a scale, or a mean.
_ALIKE: Final = 0.1

#: From this part of its bandwidth on a kernel waits for DRAM, and from this part of the page's time on is told what
#: chains pass on.
_BUSY: Final = 0.5
_LEAST: Final = 0.1

#: The part of what one kernel can save that is told: it computes what all of them do, and hides it less well.
_USUAL: Final = 0.9


def passing_on(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> list[Finding]:
    """The finding on a program's own kernels each of which reads as much as the one before wrote: one, or none.

    Only those count whose threads ask once for each byte that DRAM moves, as maps and sums over rows do, and stencils
    do not. That what is passed on is neither written nor read again is the most that one kernel in their place can
    save; where others need it too, the half is.
    """
    places = page.runs.sort("start", "row").with_columns(place=pl.int_range(pl.len()), took="exclusive_ns")
    runs = places.join(_maps(joined, ncu, page), on="name", maintain_order="left")
    runs = runs.with_columns(first=pl.col("place").min().over("name"), moved=pl.col("read") + pl.col("written"))
    before = {one: pl.col(one).shift() for one in ("place", "first", "took", "moved")}
    passed = pl.col("written").shift()
    follows = (pl.col("place") == before["place"] + 1) & (pl.col("first") > before["first"])
    alike = (pl.col("read") > (1 - _ALIKE) * passed) & (_alike("written", passed) | _alike("read", passed))
    spared = 2 * passed * (pl.col("took") + before["took"]) / (pl.col("moved") + before["moved"])
    runs = runs.with_columns(spared=pl.when(follows & alike).then(spared))
    chains = runs.filter(pl.col("spared").is_not_null() | pl.col("spared").shift(-1).is_not_null())
    spared_ns = int(chains.get_column("spared").sum())
    return [_finding(chains, spared_ns, page)] if spared_ns >= max(_LEAST * page.whole_ns, 1) else []


def _alike(column: str, count: pl.Expr) -> pl.Expr:
    """Whether a column is `count`, nearly."""
    return (pl.col(column) - count).abs() <= _ALIKE * count


def _maps(joined: pl.DataFrame, ncu: report.Report, page: PageKernels) -> pl.DataFrame:
    """The program's own kernels that wait for DRAM, which moves each byte once, untold so far: name, read, written."""
    asked, writes = pl.col("ideal_sectors") * _SECTOR_BYTES, pl.col("sass").cast(pl.String).str.contains(_STORES)
    bytes_asked = {"read": asked.filter(~writes).sum(), "written": asked.filter(writes).sum()}
    code = ncu.table("instructions").group_by("event_id").agg(**bytes_asked)
    counts = counters(ncu).select("event_id", "dram_read_bytes", "dram_write_bytes", "dram_share")
    kernels = measured_shapes(joined).join(counts, on="event_id").join(code, on="event_id")
    # a part of what is written may still be in L2 when ncu counts
    once = _alike("dram_read_bytes", pl.col("read")) & (pl.col("dram_write_bytes") <= (1 + _ALIKE) * pl.col("written"))
    maps = kernels.filter(once & (pl.col("dram_share") >= _BUSY) & (pl.col("written") > 0))
    own = [decode(str(name)).library is None and name not in page.told for name in maps.get_column("name")]
    return maps.filter(pl.Series(own, dtype=pl.Boolean)).select("name", "read", "written")


def _finding(chains: pl.DataFrame, spared_ns: int, page: PageKernels) -> Finding:
    """The words on the launches of chains, by what they move and how long they take."""
    names = tuple(chains.sort("first").get_column("name").unique(maintain_order=True))
    took_ns, moved = (int(chains.get_column(one).sum()) for one in ("took", "moved"))
    figures = {
        "names": ", ".join(f"{{{place}}}" for place in range(len(names))),
        "kernels": len(names),
        "took": units.time(took_ns),
        "share": units.percent(took_ns / page.whole_ns),
        "bytes": units.size(moved / chains.height),
    }
    return Finding(
        "fusion",
        page.device,
        int(_USUAL * spared_ns),
        **{key: text.format(**figures) for key, text in _WORDS.items()},
        table="gains",
        names=names,
        replayed_low_ns=spared_ns // 2,
        replayed_high_ns=spared_ns,
        shortens=True,
    )
