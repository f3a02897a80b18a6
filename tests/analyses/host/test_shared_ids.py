"""Reports that have one id on all of their rows: joined, and at a cost that does not grow with their square."""

import pytest

from kanalyze import catalog, columns
from kanalyze.analyses.host.launches import launch_pairs
from kanalyze.errors import CannotTellError
from support.build import call, kernel, report


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
    assert columns.telling(rows, ["key"]).get_column("key").unique().to_list() == [1]
