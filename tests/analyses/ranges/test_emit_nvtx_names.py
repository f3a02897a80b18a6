"""Names of emit_nvtx, which hold ids: grouped where people read them, as they are where tables equal those of nsys."""

import csv

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.analyses.ranges.ranges import ranges
from kanalyze.errors import UnknownNameError
from kanalyze.window import without_ids
from support.build import kernel, launched, nvtx, report
from support.command import REPORTS, refused, run
from support.real_reports import real_report

EMIT = REPORTS / "emit_nvtx.sqlite"

ADD = "aten::add, seq = 20, op_id = 317126, sizes = [[64, 128], []], input_op_ids = [(0,-1), (6,0)]"


def stripped(name):
    return pl.DataFrame({"name": [name]}, schema={"name": pl.String}).select(without_ids(pl.col("name"))).item()


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (ADD, "aten::add"),
        ("aten::add, op_id = 317126", "aten::add"),
        ("AddBackward0, seq = -1", "AddBackward0"),
        ("aten::mm, op_id = 5, sizes = [[], [4]]", "aten::mm"),
        (
            "autograd::engine::evaluate_function: MmBackward0, op_id = 4",
            "autograd::engine::evaluate_function: MmBackward0",
        ),
        ("Optimizer.step#SGD.step, op_id = 380", "Optimizer.step#SGD.step"),
        ("step", "step"),
        ("a, op_id = x", "a, op_id = x"),
        ("read, size = 5", "read, size = 5"),
        ("a, op_id = 5, then b", "a, op_id = 5, then b"),
        (", op_id = 5", ""),
        (None, None),
    ],
)
def test_what_is_taken_off_a_name(name, plain):
    assert stripped(name) == plain


@given(st.text(alphabet="ab, :=[]()0-", max_size=20), st.integers(0, 2**40))
def test_what_emit_nvtx_adds_is_taken_off_and_nothing_else(name, number):
    once = stripped(f"{name}, op_id = {number}")
    assert once == stripped(name)
    assert name.startswith(once)


def step(number, at):
    """An operator that launches a kernel, as emit_nvtx names it."""
    return [
        nvtx(f"aten::add, op_id = {number}", at, at + 10),
        *launched(at + 2, at + 4, kernel(at + 5, at + 9, correlation=number)),
    ]


EVENTS = [event for number in range(1, 6) for event in step(number, 100 * number)]


def test_tables_keep_the_names_unless_told():
    of = report(EVENTS)
    assert ranges(of).height == range_gpu(of).height == 5
    (row,) = ranges(of, by="name").to_dicts()
    assert (row["range"], row["count"], row["total_ns"], row["median_ns"]) == (":aten::add", 5, 50, 10.0)
    (row,) = range_gpu(of, by="name").to_dicts()
    assert (row["range"], row["count"], row["busy_ns"], row["operations"]) == (":aten::add", 5, 20, 5)
    assert range_gpu(of, by="name", trace=True).get_column("range").n_unique() == 5


def test_a_range_of_the_program_s_own_does_not_count_twice():
    of = report([*EVENTS, nvtx("aten::add", 90, 600)])
    found = {row["range"]: row["count"] for row in ranges(of, by="name").iter_rows(named=True)}
    assert found == {":aten::add": 1, ":aten::add, op_id = …": 5}
    assert {row["range"]: row["operations"] for row in range_gpu(of, by="name").iter_rows(named=True)} == {
        ":aten::add": 5,
        ":aten::add, op_id = …": 5,
    }


def test_there_is_no_other_grouping():
    assert refused(run("show", "ranges", EMIT, "--by", "colour"))[1].endswith("[unknown-name]")


def test_culprits_and_findings_are_named_without_ids():
    of = report(EVENTS)
    assert culprits(of).get_column("range").drop_nulls().unique().to_list() == ["aten::add"]
    real = real_report(EMIT)
    for table, columns in ((kanalyze.culprits, ("range", "culprit")), (kanalyze.findings, ("sentence",))):
        for column in columns:
            assert not table(real).get_column(column).str.contains("op_id = ").any()


def test_the_page_groups_them():
    text = run("summarize", EMIT, "--full", columns=120).text
    assert "op_id = " not in text
    section = text.partition("NVTX RANGES")[2].partition("\n\n")[0]
    (row,) = [line for line in section.splitlines() if line.endswith(" aten::linear")]
    assert row.split()[2] == "15"  # three layers, five steps


def test_a_window_is_found_by_either_name():
    of = report(EVENTS)
    assert [window.start_ns for window in of.windows("aten::add#*")] == [100, 200, 300, 400, 500]
    assert of.window("aten::add#2").start_ns == 200
    assert of.window("aten::add, op_id = 4").start_ns == 400
    both = report([*EVENTS, nvtx("aten::add", 900, 950)])
    assert of.window("aten::add#5").start_ns == 500
    assert both.window("aten::add").start_ns == 900
    with pytest.raises(UnknownNameError, match="aten::mul"):
        of.window("aten::mul")
    assert run("summarize", EMIT, "--window", "aten::linear#*").status == 0


def test_sums_by_name_are_those_of_the_rows_of_nsys():
    path = REPORTS / "expected" / "emit_nvtx" / "nvtx_sum.csv"
    with path.open() as file:
        told = [(row["Range"], int(row["Total Time (ns)"]), int(row["Instances"])) for row in csv.DictReader(file)]
    expected = {}
    for name, total, count in told:
        sums = expected.setdefault(stripped(name), [0, 0])
        sums[0] += total
        sums[1] += count
    found = kanalyze.ranges(real_report(EMIT), by="name")
    assert {
        name: [total, count] for name, total, count in found.select("range", "total_ns", "count").rows()
    } == expected
    assert len(expected) < len(told) / 5
