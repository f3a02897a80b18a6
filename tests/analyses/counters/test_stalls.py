"""What warps wait for: equal to what ncu's own rule says of real kernels, and worked out by hand on made ones."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters.stalls import stalls
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import kernel, report
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report

PAGES = [REPORTS / "ncu" / "add.details.csv", *sorted(SAMPLES.glob("*/ncu*.details.csv"))]
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"


def stalled(**cycles):
    """The metrics of a kernel whose warps wait so many cycles for each reason."""
    return {f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": n for why, n in cycles.items()}


def rows(*kernels, columns=("event_id", "reason", "cycles_per_instruction", "share"), **how):
    return stalls(measured(*kernels, **how)).select(columns).rows()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name} {path.name.partition('.')[0]}")
def test_waits_are_those_that_ncu_tells_of(path):
    """Its rule CPIStall says cycles and share of stalls that are long."""
    report = real_report(path)
    pattern = r"spends ([\d.]+) cycles .* represents about ([\d.]+)% of the total average of ([\d.]+) cycles"
    said = (
        report.table("rule_results").select("event_id", pl.col("message").str.extract_groups(pattern)).unnest("message")
    )
    found, latency = stalls(report), kanalyze.counters(report).get_column("cycles_per_instruction")
    rows = said.drop_nulls().rows()
    assert rows or path.parent.name == "streams"  # where it names none that is long
    for event_id, cycles, share, every in rows:
        stall = (
            found.filter(pl.col("event_id") == event_id)
            .sort((pl.col("share") - float(share) / 100).abs())
            .row(0, named=True)
        )
        assert stall["share"] == pytest.approx(float(share) / 100, abs=0.00056)
        assert stall["cycles_per_instruction"] == pytest.approx(float(cycles), abs=0.056)
        assert latency[event_id] == pytest.approx(float(every), abs=0.056)


def test_every_column_of_a_reason():
    assert stalls(measured({LATENCY: 8, **stalled(barrier=2)}, names=["f"])).to_dicts() == [
        {
            "event_id": 0,
            "name": "f",
            "reason": "barrier",
            "cycles_per_instruction": 2.0,
            "share": 0.25,
            "meaning": "other warps at a barrier of the block",
        }
    ]


def test_reasons_are_the_longest_first_without_those_that_do_not_occur():
    """Each is counted in a pass of its own: together they may be more than the whole."""
    assert rows({LATENCY: 8, **stalled(wait=1, long_scoreboard=4, selected=6, barrier=0, misc=1)}) == [
        (0, "selected", 6.0, 0.75),
        (0, "long_scoreboard", 4.0, 0.5),
        (0, "misc", 1.0, 0.125),
        (0, "wait", 1.0, 0.125),
    ]


def test_kernels_are_in_the_order_of_their_measurement():
    assert rows({LATENCY: 4, **stalled(wait=1)}, {}, {LATENCY: 4, **stalled(wait=2, drain=1)}) == [
        (0, "wait", 1.0, 0.25),
        (2, "wait", 2.0, 0.5),
        (2, "drain", 1.0, 0.25),
    ]


def test_without_the_cycles_of_an_instruction_there_is_no_share():
    assert rows(stalled(wait=3)) == [(0, "wait", 3.0, None)]
    assert rows({LATENCY: 0, **stalled(wait=3)}) == [(0, "wait", 3.0, None)]


def test_of_a_process_the_reasons_are_those_of_its_kernels():
    found = measured({LATENCY: 4, **stalled(wait=1)}, process=7)
    assert stalls(found, process=7).height == 1
    with pytest.raises(kanalyze.KanalyzeError):
        stalls(found, process=8)


def test_what_was_not_collected_is_an_empty_table_and_no_counters_are_an_error():
    assert rows({}) == rows({LATENCY: 8}) == []
    with pytest.raises(CannotTellError, match="cannot tell stalls, because the report has no counters"):
        stalls(report([kernel(0, 10)]))
    with pytest.raises(CannotTellError, match="cannot tell stalls of a window"):
        stalls(measured({LATENCY: 8}), window=Window(0, 10))
