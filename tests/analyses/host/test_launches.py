"""Kernels with the calls that launched them: times worked out by hand, and which call belongs to which kernel."""

import pytest

from kanalyze import catalog
from kanalyze import columns as lookup
from kanalyze.analyses.host.launches import launch_pairs, launches
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, kernel, memcpy, report, rows_of, timeline

LAUNCH = "cudaLaunchKernel_v7000"
TIMES = ("api_start_ns", "api_ns", "queue_ns", "kernel_start_ns", "kernel_ns", "total_ns")


def rows(*events, columns=TIMES, tables=None, **where):
    return launches(report(events, **(tables or {})), **where).select(columns).rows()


def test_every_column_of_a_launch():
    ran = kernel(25, 65, name="f", correlation=4, stream=9, grid=(2, 3, 4), block=(5, 6, 7))
    (row,) = launches(report([call(LAUNCH, 10, 20, correlation=4, thread=11), ran])).to_dicts()
    assert (
        row
        == rows_of(
            "api_start_ns api_ns queue_ns kernel_start_ns kernel_ns total_ns process_id thread_id device api "
            "grid_x grid_y grid_z block_x block_y block_z kernel gpu stream charged_api_ns",
            (10, 10, 5, 25, 40, 55, 1, 11, 0, "cudaLaunchKernel", 2, 3, 4, 5, 6, 7, "f", 0, 9, 10),
        )[0]
    )


@pytest.mark.parametrize(
    ("start", "end", "queue", "total"),
    [(10, 30, 0, 30), (9, 30, None, 30), (2, 5, None, 10), (10, 10, 0, 10)],
    ids=["as it returns", "before it returns", "the call ends last", "no time at all"],
)
def test_queue_and_total_of_a_call_from_0_to_10(start, end, queue, total):
    assert rows(call(LAUNCH, 0, 10, correlation=1), kernel(start, end, correlation=1)) == [
        (0, 10, queue, start, end - start, total)
    ]


def test_launches_are_in_the_order_of_their_calls():
    events = [call(LAUNCH, 20, 25, correlation=1), kernel(30, 40, correlation=1)]
    events += [call(LAUNCH, 0, 5, correlation=2), kernel(50, 60, correlation=2)]
    assert rows(*events, columns=("api_start_ns", "kernel_start_ns")) == [(0, 50), (20, 30)]


def test_a_call_that_launched_several_is_charged_once():
    events = timeline("0-8 cudaGraphLaunch #1; 20-30 kernel #1; 10-20 kernel #1")
    found = rows(*events, columns=("api_ns", "kernel_start_ns", "charged_api_ns"))
    assert [row[:2] for row in found] == [(8, 10), (8, 20)]
    assert sorted(row[2] for row in found) == [0, 8]


def test_a_kernel_whose_id_two_calls_share_stands_with_both():
    events = [call(LAUNCH, 0, 10, correlation=1), call("cuLaunchKernel", 2, 8, correlation=1)]
    found = rows(*events, kernel(12, 20, correlation=1), columns=("api", "queue_ns", "total_ns", "charged_api_ns"))
    assert found == [("cudaLaunchKernel", 2, 20, 10), ("cuLaunchKernel", 4, 18, 6)]


def test_an_id_is_that_of_its_process():
    events = [call(LAUNCH, 0, 5, correlation=1), call(LAUNCH, 1, 6, correlation=1, process=2)]
    events += [kernel(10, 20, correlation=1, process=2), kernel(30, 40, correlation=1)]
    columns = ("process_id", "api_start_ns", "kernel_start_ns")
    assert rows(*events, columns=columns) == [(1, 0, 30), (2, 1, 10)]
    assert rows(*events, columns=columns, process=2) == [(2, 1, 10)]


def test_what_has_no_partner_is_left_out():
    events = [call(LAUNCH, 0, 5, correlation=1), memcpy(5, 10, correlation=1), call(LAUNCH, 10, 15)]
    assert rows(*events, kernel(20, 30), kernel(30, 40, correlation=3)) == []


def test_names_that_are_missing():
    events = [call(None, 0, 5, correlation=1, thread=None), kernel(5, 9, name=None, correlation=1, stream=None)]
    assert rows(*events, columns=("api", "thread_id", "kernel", "stream")) == [(None, None, None, None)]


def test_a_device_has_the_number_that_its_process_gives_it():
    """Process 2 sees only the second GPU, and calls it 0."""
    processes = [
        {"process_id": 1, "name": "app", "device": 1, "cuda_ordinal": 1},
        {"process_id": 2, "name": "app", "device": 1, "cuda_ordinal": 0},
    ]
    events = [call(LAUNCH, 0, 5, correlation=1), kernel(5, 9, correlation=1, device=1)]
    events += [call(LAUNCH, 10, 15, correlation=1, process=2), kernel(15, 19, correlation=1, device=1, process=2)]
    events += [kernel(20, 21)]
    found = rows(*events, columns=("process_id", "gpu", "device"), tables={"processes": processes})
    assert found == [(1, 1, 1), (2, 1, 0)]


def test_a_launch_is_looked_at_where_its_kernel_is():
    events = [call(LAUNCH, 0, 5, correlation=1), kernel(20, 30, correlation=1)]
    events += [call(LAUNCH, 5, 10, correlation=2), kernel(30, 40, correlation=2, device=1)]
    assert rows(*events, columns=("gpu", "kernel_ns"), window=Window(25, 28)) == [(0, 10)]
    assert rows(*events, columns=("gpu", "kernel_ns"), device=1) == [(1, 10)]
    assert rows(*events, window=Window(0, 10)) == []


def same_id(calls, kernels):
    events = [call("cudaLaunchKernel", 10 * at, 10 * at + 5, correlation=1, thread=1) for at in range(calls)]
    return report([*events, *(kernel(1000 + 10 * at, 1005 + 10 * at, correlation=1) for at in range(kernels))])


@pytest.mark.parametrize("calls", [1, 2, 64])
def test_a_kernel_stands_once_for_each_call_of_its_id(calls):
    assert launch_pairs(same_id(calls, 3)).height == 3 * calls


def test_an_id_of_more_calls_tells_none_apart():
    """Each kernel stands once, with the call that started first."""
    pairs = launch_pairs(same_id(65, 3)).sort("row")
    assert pairs.get_column("call_row").to_list() == [0, 0, 0]


@pytest.mark.parametrize("count", [500, 1000])
def test_rows_are_joined_in_proportion(count):
    assert launch_pairs(same_id(count, count)).height == count


@pytest.mark.parametrize("name", [name for name in catalog.names() if not catalog.table(name).together])
def test_every_table_of_such_a_report_is_no_larger_than_it(name):
    count = 300
    try:
        made = catalog.make(same_id(count, count), name)
    except CannotTellError:
        return
    assert made.height <= 4 * count


def test_rows_that_tell():
    import polars as pl  # noqa: PLC0415 - here only

    rows = pl.DataFrame({"key": [1] * 64 + [2] * 65})
    assert lookup.telling(rows, ["key"]).get_column("key").unique().to_list() == [1]
