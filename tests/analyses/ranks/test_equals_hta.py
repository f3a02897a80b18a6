"""Busy, idle and overlapped time of each rank equal those of HolisticTraceAnalysis.

HolisticTraceAnalysis 0.5.0 printed these figures, with `HTA_DISABLE_NS_ROUNDING=1` and `include_last_profiler_step`:
without these it rounds times to whole microseconds, and leaves the last step out (docs/ranks.md).
"""

from pathlib import Path

import polars as pl
import pytest

from kanalyze import read
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.idle.exposure import exposure
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window

SAMPLE = Path(__file__).parents[3] / "sample_reports" / "ddp_late"

#: By rank: idle, computing and other time of `get_temporal_breakdown` in microseconds, and the overlap of
#: communication with computing of `get_comm_comp_overlap`, in percent.
PRINTED = {
    0: (20558.052359, 124395.600859, 30272.147680, 36.50),
    1: (50620.587391, 120971.568000, 3580.788188, 68.97),
}


@pytest.mark.parametrize("rank", PRINTED)
def test_times_and_overlap(rank):
    idle, computing, other, overlapped = PRINTED[rank]
    with read(SAMPLE / f"rank{rank}.json.gz") as report:
        work = operations(report)
        window = Window(*work.select(pl.col("start").min(), pl.col("end").max()).row(0))
        sums = dict(ledger(report, window=window).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
        told = exposure(report).filter(pl.col("category") == "communication")
    busy = {name: sums.get(name, 0) for name in ("kernel", "communication", "memcpy", "memset")}
    assert busy.pop("kernel") / 1e3 == pytest.approx(computing, abs=0.5)
    assert sum(busy.values()) / 1e3 == pytest.approx(other, abs=0.5)
    assert (window.end_ns - window.start_ns - sum(busy.values())) / 1e3 == pytest.approx(idle + computing, abs=0.5)
    assert 100 * told.item(0, "hidden_share") == pytest.approx(overlapped, abs=0.005)
