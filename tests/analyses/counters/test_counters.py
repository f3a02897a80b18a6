"""Counters as columns: equal to what ncu's details page prints, on every report."""

import re

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters.counters import LIMITS, TABLE
from kanalyze.analyses.device._operations import RESOURCES, SHAPE
from kanalyze.analyses.page.counters_page import summarize_counters
from kanalyze.errors import CannotTellError
from kanalyze.readers.ncu.csv import POINT, base_unit, numbers
from kanalyze.readers.ncu.tables import SECTIONS
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report
from support.shares import some

PAGES = [REPORTS / "ncu" / "add.details.csv", *sorted(SAMPLES.glob("*/ncu*.details.csv"))]

#: Each column with the label of the details page that prints it, and what one of its units is there.
PRINTED = {
    "compute_share": ("SpeedOfLight", "Compute (SM) Throughput", 0.01),
    "memory_share": ("SpeedOfLight", "Memory Throughput", 0.01),
    "dram_share": ("SpeedOfLight", "DRAM Throughput", 0.01),
    "l2_share": ("SpeedOfLight", "L2 Cache Throughput", 0.01),
    "l1_share": ("SpeedOfLight", "L1/TEX Cache Throughput", 0.01),
    "dur_ns": ("SpeedOfLight", "Duration", 1),
    "cycles": ("SpeedOfLight", "Elapsed Cycles", 1),
    "sm_clock_hz": ("SpeedOfLight", "SM Frequency", 1),
    "dram_bytes_per_s": ("MemoryWorkloadAnalysis", "Memory Throughput", 1),
    "l1_hit_share": ("MemoryWorkloadAnalysis", "L1/TEX Hit Rate", 0.01),
    "l2_hit_share": ("MemoryWorkloadAnalysis", "L2 Hit Rate", 0.01),
    "spill_requests": ("MemoryWorkloadAnalysis", "Local Memory Spilling Requests", 1),
    "occupancy_share": ("Occupancy", "Theoretical Occupancy", 0.01),
    "achieved_occupancy_share": ("Occupancy", "Achieved Occupancy", 0.01),
    "registers_per_thread": ("LaunchStats", "Registers Per Thread", 1),
    "static_shared_bytes": ("LaunchStats", "Static Shared Memory Per Block", 1),
    "dynamic_shared_bytes": ("LaunchStats", "Dynamic Shared Memory Per Block", 1),
    "waves": ("LaunchStats", "Waves Per SM", 1),
    "sms": ("LaunchStats", "# SMs", 1),
    "ipc": ("ComputeWorkloadAnalysis", "Executed Ipc Active", 1),
    "issue_share": ("SchedulerStats", "One or More Eligible", 0.01),
    "active_warps": ("SchedulerStats", "Active Warps Per Scheduler", 1),
    "eligible_warps": ("SchedulerStats", "Eligible Warps Per Scheduler", 1),
    "cycles_per_instruction": ("WarpStateStats", "Warp Cycles Per Issued Instruction", 1),
    "threads_per_instruction": ("WarpStateStats", "Avg. Active Threads Per Warp", 1),
    "instructions": ("InstructionStats", "Executed Instructions", 1),
}


def printed(path) -> pl.DataFrame:
    """Columns event_id, section, label, value, step of a details page: the value in base units, and its last digit."""
    rows = pl.read_csv(path, infer_schema=False).filter(pl.col("Metric Name").is_not_null())
    number = rows.get_column("ID").unique(maintain_order=True).to_list()
    decimals = pl.col("Metric Value").str.extract(r"\.(\d+)$").str.len_chars().fill_null(0)
    factor = pl.col("Metric Unit").fill_null("").map_elements(lambda unit: base_unit(unit)[0], return_dtype=pl.Float64)
    return rows.select(
        event_id=pl.col("ID").replace_strict(number, range(len(number)), return_dtype=pl.Int64),
        section=pl.col("Section Name").replace(SECTIONS),
        label="Metric Name",
        value=numbers("Metric Value", POINT) * factor,
        step=factor * pl.lit(10.0).pow(-decimals.cast(pl.Float64)),
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name} {path.name.partition('.')[0]}")
def test_columns_are_what_the_details_page_prints(path):
    found = kanalyze.counters(real_report(path))
    page = printed(path)
    for column, (section, label, unit) in PRINTED.items():
        told = page.filter((pl.col("section") == section) & (pl.col("label") == label)).sort("event_id")
        assert told.height == found.height, label
        off = (found.get_column(column).cast(pl.Float64) / unit - told.get_column("value")).abs()
        whole = 0.5 if TABLE.schema[column] == pl.Int64 else 0.0
        assert (off <= told.get_column("step") * 0.51 + 1e-9 + whole).all(), column


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name} {path.name.partition('.')[0]}")
def test_limiter_names_the_least_block_limits(path):
    limits = {
        "Registers": "registers",
        "Shared Mem": "shared memory",
        "Warps": "warps",
        "SM": "blocks",
        "Barriers": "barriers",
    }
    page = printed(path)
    for row in some(kanalyze.counters(real_report(path)).iter_rows(named=True)):
        told = page.filter((pl.col("event_id") == row["event_id"]) & pl.col("label").str.starts_with("Block Limit "))
        values = dict(told.select("label", "value").iter_rows())
        least = min(values.values())
        assert row["blocks_per_sm"] == least
        assert row["limiter"] == ", ".join(
            name for label, name in limits.items() if values[f"Block Limit {label}"] == least
        )


def test_what_was_not_collected_is_null():
    row = kanalyze.counters(measured({"gpu__time_duration.sum": 5})).row(0, named=True)
    known = {
        "event_id",
        "name",
        "device",
        "dur_ns",
        *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
    }
    assert {name for name, value in row.items() if value is not None} == known
    assert set(row) == set(TABLE.schema)


def test_shares_and_ratios_of_a_kernel():
    row = kanalyze.counters(
        measured(
            {
                "sm__throughput.avg.pct_of_peak_sustained_elapsed": 50,
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 160,
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 10,
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 8,
                "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 0,
                "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 0,
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio": 0,
                "derived__memory_l2_theoretical_sectors_global_excessive": 30,
                "memory_l2_theoretical_sectors_global": 40,
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 5,
                "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 20,
                "launch__waves_per_multiprocessor": 2.5,
            }
        )
    ).row(0, named=True)
    assert {
        name: value for name, value in row.items() if value is not None and name not in ("event_id", "name", "device")
    } == {
        "compute_share": 0.5,
        "load_sectors_per_request": 16.0,
        "load_used_share": 0.25,
        "uncoalesced_share": 0.75,
        "bank_conflicts": 5,
        "bank_conflict_share": 0.25,
        "waves": 2.5,
        "tail_share": 0.5 / 3,
        **{f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "xyz"},
    }


def test_the_top_stall_is_the_longest_wait_for_something():
    row = kanalyze.counters(
        measured(
            {
                "smsp__average_warp_latency_per_inst_issued.ratio": 10,
                "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": 3,
                "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 6,
                "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": 7,
            }
        )
    ).row(0, named=True)
    assert (row["top_stall"], row["top_stall_share"]) == ("long_scoreboard", 0.6)


def test_columns_are_what_the_details_page_prints_as_text():
    """The same of the text that ncu prints without --csv, in scaled units."""
    found = kanalyze.counters(real_report(REPORTS / "ncu" / "add.details.csv")).row(0, named=True)
    told, section = {}, ""
    for line in (REPORTS / "ncu" / "add.details.txt").read_text().splitlines():
        if line.startswith("    Section: "):
            section = SECTIONS[line.removeprefix("    Section: ").strip()]
        elif match := re.match(r"^    (\S.*?)  +(?:(\S+) +)?([\d,.]+)$", line):
            told[section, match[1]] = (match[2] or "", match[3])
    for column, (section, label, unit) in PRINTED.items():
        scale, value = told[section, label]
        factor, text = base_unit(scale)[0], value.replace(",", "")
        last = factor * 10.0 ** -len(text.partition(".")[2])
        whole = 0.5 if TABLE.schema[column] == pl.Int64 else 1e-9
        assert found[column] / unit == pytest.approx(float(text) * factor, rel=0, abs=last * 0.51 + whole), column


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def test_occupancy_from_the_launch_alone_is_what_ncu_tells(path):
    report = real_report(path)
    ours, theirs = kanalyze.occupancy(report), kanalyze.counters(report)
    same = [name for name in ("name", "device", *SHAPE, *RESOURCES) if name in theirs.columns]
    both = theirs.join(ours, on=same, suffix="_here", how="left")
    assert both.height == theirs.height
    assert both.get_column("occupancy_share_here").to_list() == pytest.approx(both.get_column("occupancy_share"))
    assert both.get_column("blocks_per_sm_here").equals(both.get_column("blocks_per_sm"))
    assert both.get_column("waves_here").to_list() == pytest.approx(both.get_column("waves"), abs=0.0051)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
@pytest.mark.parametrize("by", [None, "launch-shape", "family"])
def test_kernels_have_the_durations_under_ncu(path, by):
    report = real_report(path)
    found, every = kanalyze.kernels(report, by=by), kanalyze.counters(report)
    assert found.get_column("count").sum() == every.height
    assert found.get_column("total_ns").sum() == every.get_column("dur_ns").sum()
    assert found.get_column("exclusive_ns").equals(found.get_column("total_ns"))  # each was alone


def test_kernels_without_durations_are_not_told():
    some = measured({"gpu__time_duration.sum": 5, "launch__registers_per_thread": 24}, {}, names=["a", "b"])
    assert kanalyze.kernels(some).select("name", "count", "total_ns").rows() == [("a", 1, 5)]
    assert some.table("notes").select("check", "count").rows() == [
        ("kernels without SpeedOfLight", 1),
        ("kernels without LaunchStats", 1),
    ]
    assert "(of 1 whose duration was collected)" in summarize_counters(some).answer
    none = measured({}, {}, names=["a", "b"])
    with pytest.raises(CannotTellError, match=r"no counters of durations \(section SpeedOfLight\)"):
        kanalyze.kernels(none)
    assert summarize_counters(none).answer.startswith("2 kernels, of unknown duration, each measured alone. ")
    for table in (kanalyze.kernels, kanalyze.occupancy):
        with pytest.raises(CannotTellError, match="of a window, because ncu measures kernels one by one"):
            table(some, window="0ns..1ns")


@pytest.mark.parametrize(
    ("waves", "blocks", "tail"),
    [(1.01, 101, 0.495), (1.018, 101, 0.491), (1.02, 101, 0.49), (1.01, 201, 0.495), (1.0, 100, 0.0), (0.51, 51, 0.0)],
)
def test_the_tail_is_that_of_the_blocks_where_waves_are_those_to_two_decimals(waves, blocks, tail):
    """Of clusters, say, waves are others than those of blocks."""
    limits = dict.fromkeys(LIMITS.values(), 1)
    metrics = {**limits, "launch__sm_count": 100, "launch__waves_per_multiprocessor": waves}
    found = kanalyze.counters(measured(metrics, grid=(blocks, 1, 1))).item(0, "tail_share")
    assert found == pytest.approx(tail, abs=1e-3)
