"""Counters as columns: equal to what ncu's details page prints, on every report."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters.counters import LATENCY, LIMITS, TABLE, hot_lines, stalls
from kanalyze.analyses.device._operations import RESOURCES, SHAPE
from kanalyze.analyses.page.time_page import summarize_counters
from kanalyze.errors import CannotTellError
from kanalyze.readers.ncu.csv import POINT, base_unit, numbers
from kanalyze.readers.ncu.tables import SECTIONS
from kanalyze.window import Window
from support.build import kernel, report
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

#: The limiters, as the page labels their limits.
LABELS = {
    "Registers": "registers", "Shared Mem": "shared memory", "Warps": "warps", "SM": "blocks", "Barriers": "barriers",
}  # fmt: skip


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
    for row in some(found.iter_rows(named=True)):
        told = page.filter((pl.col("event_id") == row["event_id"]) & pl.col("label").str.starts_with("Block Limit "))
        values = {
            LABELS[label.removeprefix("Block Limit ")]: value for label, value in told["label", "value"].iter_rows()
        }
        least = row["blocks_per_sm"]
        assert least == min(values.values())
        assert row["limiter"] == ", ".join(name for name in LABELS.values() if values[name] == least)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def test_kernels_and_their_occupancy_are_what_ncu_tells(path):
    """The occupancy from the launch alone, the durations under ncu."""
    report = real_report(path)
    ours, theirs = kanalyze.occupancy(report), kanalyze.counters(report)
    same = [name for name in ("name", "device", *SHAPE, *RESOURCES) if name in theirs.columns]
    both = theirs.join(ours, on=same, suffix="_here", how="left")
    assert both.height == theirs.height
    assert both.get_column("occupancy_share_here").to_list() == pytest.approx(both.get_column("occupancy_share"))
    assert both.get_column("blocks_per_sm_here").equals(both.get_column("blocks_per_sm"))
    assert both.get_column("waves_here").to_list() == pytest.approx(both.get_column("waves"), abs=0.0051)
    for by in (None, "launch-shape", "family"):
        found = kanalyze.kernels(report, by=by)
        assert found.get_column("count").sum() == theirs.height
        assert found.get_column("total_ns").sum() == theirs.get_column("dur_ns").sum()
        assert found.get_column("exclusive_ns").equals(found.get_column("total_ns"))  # each was alone


#: What is known of a kernel without counters.
UNCOUNTED = {"event_id", "name", "device", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")}


def stalled(**cycles):
    """The metrics of a kernel whose warps wait so many cycles for each reason."""
    return {f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": n for why, n in cycles.items()}


@pytest.mark.parametrize(
    ("metrics", "columns"),
    [
        (
            {
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 160,
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 10,
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 8,
                "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 0,
                "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 0,
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio": 0,
                "derived__memory_l2_theoretical_sectors_global_excessive": 30,
                "memory_l2_theoretical_sectors_global": 40,
            },
            {"load_sectors_per_request": 16.0, "load_used_share": 0.25, "uncoalesced_share": 0.75},
        ),
        (
            {
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 5,
                "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 20,
            },
            {"bank_conflicts": 5, "bank_conflict_share": 0.25},
        ),
        ({"launch__waves_per_multiprocessor": 2.5}, {"waves": 2.5, "tail_share": 0.5 / 3}),
        (
            {LATENCY: 10, **stalled(wait=3, long_scoreboard=6, selected=7)},
            {"cycles_per_instruction": 10, "top_stall": "long_scoreboard", "top_stall_share": 0.6},
        ),
    ],
    ids=["accesses", "conflicts", "tail", "stall"],
)
def test_columns_of_a_kernel(metrics, columns):
    row = kanalyze.counters(measured(metrics)).row(0, named=True)
    assert {name: value for name, value in row.items() if value is not None and name not in UNCOUNTED} == columns
    assert set(row) == set(TABLE.schema)


@pytest.mark.parametrize("name", ["counters", "roofline", "advice", "stalls", "hot_lines"])
def test_no_counters_are_an_error(name):
    make = getattr(kanalyze, name)
    with pytest.raises(CannotTellError, match=f"cannot tell {name}, because the report has no counters"):
        make(report([kernel(0, 10)]))
    with pytest.raises(CannotTellError, match=f"cannot tell {name} of a window"):
        make(measured({LATENCY: 8}), window=Window(0, 10))


def test_kernels_without_durations_are_not_told():
    some = measured({"gpu__time_duration.sum": 5, "launch__registers_per_thread": 24}, {}, names=["a", "b"])
    assert kanalyze.kernels(some).select("name", "count", "total_ns").rows() == [("a", 1, 5)]
    shown = some.table("notes").select("check", "count").rows()
    assert shown == [("kernels without SpeedOfLight", 1), ("kernels without LaunchStats", 1)]
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
        nearest = found.filter(pl.col("event_id") == event_id).sort((pl.col("share") - float(share) / 100).abs())
        stall = nearest.row(0, named=True)
        assert stall["share"] == pytest.approx(float(share) / 100, abs=0.00056)
        assert stall["cycles_per_instruction"] == pytest.approx(float(cycles), abs=0.056)
        assert latency[event_id] == pytest.approx(float(every), abs=0.056)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        # the longest first without those that do not occur; each is counted in a pass of its own: together they may be
        # more than the whole
        (
            [{LATENCY: 8, **stalled(wait=1, long_scoreboard=4, selected=6, barrier=0, misc=1)}],
            [
                *((0, "selected", 6.0, 0.75), (0, "long_scoreboard", 4.0, 0.5)),
                *((0, "misc", 1.0, 0.125), (0, "wait", 1.0, 0.125)),
            ],
        ),
        # kernels are in the order of their measurement; without the cycles of an instruction there is no share
        (
            [{LATENCY: 4, **stalled(wait=1)}, stalled(wait=3), {LATENCY: 0, **stalled(wait=2, drain=1)}],
            [(0, "wait", 1.0, 0.25), (1, "wait", 3.0, None), (2, "wait", 2.0, None), (2, "drain", 1.0, None)],
        ),
        ([{LATENCY: 8}], []),
    ],
)
def test_reasons_of_kernels(kernels, expected):
    found = stalls(measured(*kernels)).select("event_id", "reason", "cycles_per_instruction", "share")
    assert found.rows() == expected


def test_the_reasons_of_a_process_are_those_of_its_kernels():
    found = measured({LATENCY: 4, **stalled(barrier=1)}, names=["f"], process=7)
    assert stalls(found, process=7).select("name", "meaning").rows() == [("f", "other warps at a barrier of the block")]
    with pytest.raises(kanalyze.KanalyzeError):
        stalls(found, process=8)


#: What an instruction says of itself.
FIGURES = ("samples", "stalled_samples", "instructions", "thread_instructions", "sectors", "ideal_sectors")


def instruction(number, file, line, *figures, event_id=0, live=None):
    """One instruction of a line, with the first of :data:`FIGURES`; the others are null."""
    told = dict(zip(FIGURES, figures, strict=False))
    where = {"event_id": event_id, "number": number, "sass": "NOP", "file": file, "line": line}
    return {**where, **told, "live_registers": live}


def of_ncu(*instructions, files=(), names=("f", "g")):
    kernels = [kernel(0, 1, name=name) for name in names]
    sources = [{"file": file, "text": text} for file, text in files]
    return report(kernels, kinds=("kernel",), meta={"tool": "ncu"}, instructions=instructions, source_files=sources)


def line_rows(*instructions, columns=("event_id", "file", "line", "samples", "share"), **how):
    return hot_lines(of_ncu(*instructions, **how)).select(columns).rows()


def test_every_column_of_a_line_of_two_instructions():
    made = [
        instruction(0, "a.cu", 2, 5, 3, 10, 320, 40, 8, live=20),
        instruction(1, "a.cu", 2, 1, 1, 10, 160, 0, 2, live=24),
        instruction(2, "a.cu", 1, 2),
    ]
    row, _ = hot_lines(of_ncu(*made, files=[("a.cu", "one\ntwo\nthree")])).to_dicts()
    assert row == {
        "event_id": 0, "name": "f", "file": "a.cu", "line": 2, "samples": 6, "share": 0.75, "stalled_samples": 4,
        "sass_count": 2, "instructions": 20, "thread_instructions": 480, "threads_per_instruction": 24.0,
        "sectors": 40, "ideal_sectors": 10, "ideal_share": 0.25, "live_registers": 24, "text": "two",
    }  # fmt: skip


OF_FILES = [instruction(0, "a.cu", 1, 3), instruction(1, "b.cu", 1, 2), instruction(2, "b.cu", 3, 1)]
COUNTED = ("samples", "share", "instructions", "threads_per_instruction", "sectors", "ideal_share")
TEXTS = ("name", "file", "line", "text")
SUMMED = [(2, 1.0, 3, 32.0, None, None)]


@pytest.mark.parametrize(
    ("made", "how", "expected"),
    [
        # those with most samples first, kernel by kernel
        (
            [
                *(instruction(0, "b.cu", 1, 1), instruction(1, "a.cu", 9, 1), instruction(2, "a.cu", 3, 1)),
                *(instruction(3, "a.cu", 4, 7), instruction(0, "a.cu", 3, 40, event_id=1)),
            ],
            {},
            [
                *((0, "a.cu", 4, 7, 0.7), (0, "a.cu", 3, 1, 0.1), (0, "a.cu", 9, 1, 0.1), (0, "b.cu", 1, 1, 0.1)),
                (1, "a.cu", 3, 40, 1.0),
            ],
        ),
        # instructions of no known line are one row of their kernel
        (
            [instruction(0, None, None, 3), instruction(1, None, None, 4), instruction(0, None, None, 1, event_id=1)],
            {"columns": ("name", "file", "line", "samples", "sass_count", "text"), "files": [("a.cu", "one")]},
            [("f", None, None, 7, 2, None), ("g", None, None, 1, 1, None)],
        ),
        # what was not counted is null, and what was counted as nothing is 0
        ([instruction(0, "a.cu", 1)], {"columns": COUNTED}, [(None,) * 6]),
        ([instruction(0, "a.cu", 1, 0, 0, 0, 0, 0, 0)], {"columns": COUNTED}, [(0, None, 0, None, 0, None)]),
        ([instruction(0, "a.cu", 1), instruction(1, "a.cu", 1, 2, 0, 3, 96)], {"columns": COUNTED}, SUMMED),
        # a line has the text of its own file, and a kernel without a name keeps its lines
        (
            OF_FILES,
            {"columns": TEXTS, "files": [("b.cu", "of b\n\n"), ("a.cu", "of a")], "names": (None,)},
            [(None, "a.cu", 1, "of a"), (None, "b.cu", 1, "of b"), (None, "b.cu", 3, "")],
        ),
        (OF_FILES[:1], {"columns": ("text",)}, [(None,)]),
        ([], {}, []),
    ],
)
def test_lines_of_source(made, how, expected):
    assert line_rows(*made, **how) == expected
