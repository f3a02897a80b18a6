"""What cannot be is counted in health, and no absurd time stretches the window of a device."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.device._operations import recorded_until
from kanalyze.analyses.page.overview_page import windows_of
from kanalyze.errors import KanalyzeError
from support.build import call, host, kernel, launched, memcpy, nvtx, overhead, report
from support.command import REPORTS
from support.exports import KERNEL, MEMCPY, RUNTIME, SYNC, altered, remade
from support.real_reports import real_report
from support.strategies import EVENTS, few_given

GRAPH_NODE, TWO_GPUS = REPORTS / "graph_node.sqlite", REPORTS / "two_gpus.sqlite"
THOUSAND_S = 1_000_000_000_000


#: What is true of most reports that are made by hand.
_MADE = ("operations without a launch", "idle time of unknown cause", "kernels of unknown occupancy")


def doubts(of):
    """The doubts of a report by name, but for those of most made by hand: how many, and how much time."""
    found = kanalyze.health(of).filter(pl.col("doubt") & ~pl.col("check").is_in(_MADE))
    return {check: (count, ns) for check, count, ns in found.select("check", "count", "ns").rows()}


def window(of):
    return windows_of(of).select("device", "start_ns", "end_ns").rows()


def recorded(events, end):
    """The report of `events`, recorded until `end`."""
    return report(events, meta={"end_ns": end})


LATE, OUT, HOST = THOUSAND_S, "operations outside the recording", "host events outside the recording"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("free", "ran", "end", "until", "told"),
    [
        # the window ends with the recording
        ((30, LATE), (10, 20), 50, 50, [HOST]),
        ((30, 40), (10, LATE), 50, 50, [OUT]),
        ((30, LATE), (10, LATE), 50, 50, [OUT, HOST]),
        # where nobody says when that was, an end that nothing else comes near counts as wrong
        ((30, LATE), (10, 20), None, 20, [HOST]),
        ((30, 40), (10, LATE), None, 40, [OUT]),
        # a long kernel that a call waits for is none
        ((30, LATE + 1), (10, LATE), None, LATE + 1, []),
        # a recording that ended before most events is what is wrong
        ((30, 40), (10, 20), 0, 40, [OUT, HOST]),
    ],
)
def test_an_end_that_cannot_be(free, ran, end, until, told):
    events = [call("cudaLaunchKernel", 0, 5, correlation=1), call("cudaFree", *free), kernel(*ran, correlation=1)]
    of = report(events) if end is None else recorded(events, end)
    assert window(of) == [(0, 0, until)]
    assert kanalyze.ledger(of)["ns"].sum() == until
    assert sorted(doubts(of)) == sorted(told)
    assert kanalyze.kernels(of)["total_ns"].item() == ran[1] - ran[0]  # as it was recorded


@few_given(EVENTS, st.integers(0, 200))
def test_the_limit_is_no_earlier_than_half_of_the_starts_and_the_ledger_holds(events, end):
    of = recorded(events, end)
    limit = recorded_until(of)
    starts = [one.start for one in events if one.kind in {"kernel", "graph", "memcpy", "memset", "api"}]
    if limit is not None:
        assert limit == end
        assert 2 * sum(start < end for start in starts) >= len(starts)
    for device, low, high in window(of):
        assert kanalyze.ledger(of).filter(pl.col("device") == device)["ns"].sum() == high - low
        assert limit is None or high <= max(limit, low)


LAUNCH, FREE = call("cudaLaunchKernel", 0, 5, correlation=1), call("cudaFree", 0, 5, correlation=1)
NOWHERE = "operations without a device or stream"
SIZES, SHAPES = "sizes that are missing or cannot be", "kernels of an impossible shape"
ENDED, PLACE = ("sync", "osrt", "library", "op"), ("device", "stream")
COPIED, LARGEST = (None, 0, -1, 1 << 45, 1_000_000_000), memcpy(3000, 5000, size_bytes=100_000_000)
IMPOSSIBLE = [
    *({"grid": grid} for grid in ((0, 1, 1), (-3, 1, 1), (1, 1, 1 << 20))),
    *({"block": block} for block in ((1025, 1, 1), (64, 64, 1), (32, 0, 1), ((1 << 31) - 1, 1 << 30, 1))),
    *({"side": side} for side in ({"registers_per_thread": -1}, {"dynamic_shared_bytes": 1 << 40})),
]


@pytest.mark.parametrize(
    ("events", "check", "count", "ns"),
    [
        ([LAUNCH, kernel(-3, 20, correlation=1)], "operations that start before their launch", 1, 3),
        (
            [nvtx("r", 20, 10), overhead("o", 20, 10), *(host(kind, "any", 20, 10) for kind in ENDED)],
            "host events that end before they start",
            *(6, 60),
        ),
        ([LAUNCH, *(kernel(10, 20, correlation=1, **{missing: None}) for missing in PLACE)], NOWHERE, 2, 20),
        ([call("cudaFree", 0, 5, thread=None)], "calls without a thread", 1, 5),
        ([FREE, replace(FREE, correlation=2), FREE, FREE], "events recorded twice", 2, 10),
        ([*(memcpy(0, 2000, size_bytes=size) for size in COPIED), LARGEST], SIZES, 5, 10_000),
        ([host("memory", "Allocation", 0, 0, side={"size_bytes": size}) for size in (0, -5, 1 << 50)], SIZES, 3, 0),
        ([kernel(0, 10, **shape) for shape in IMPOSSIBLE], SHAPES, 9, 90),
    ],
)
def test_what_else_cannot_be(events, check, count, ns):
    assert doubts(report(events))[check] == (count, ns)


LARGE = kernel(20, 30, grid=((1 << 31) - 1, 1, 1), block=(1024, 1, 1))
OPEN = nvtx("r", 20, None)  # an event without an end does not end before it starts
SHAPELESS = kernel(0, 10, grid=(0, 0, 0), block=(0, 0, 0))  # no tool told


@pytest.mark.parametrize(
    ("events", "usual"),
    [
        ([*launched(10, 15, kernel(10, 20, correlation=1)), FREE, replace(FREE, correlation=2), LARGE, OPEN], True),
        ([SHAPELESS, memcpy(30, 40, direction="Unified Host-to-Device", stream=None)], False),
    ],
)
def test_what_can_be(events, usual):
    found = doubts(report(events))
    assert not {SHAPES, NOWHERE} & {*found}
    assert found == {} or not usual


LIMITS = "limits of GPUs that are missing or cannot be"
#: A row of a real report that is damaged, by what is told of it: the table, and what is done to it.
DAMAGED = {
    "operations that start before their launch": (KERNEL, "UPDATE {} SET start = start - 50000000 WHERE rowid = 50"),
    "host events that end before they start": (SYNC, 'UPDATE {} SET "end" = start - 5 WHERE rowid = 1'),
    "negative durations": (RUNTIME, 'UPDATE {} SET "end" = start - 5 WHERE rowid = 3'),
    NOWHERE: (KERNEL, "UPDATE {} SET streamId = NULL WHERE rowid = 1"),
    "operations of a GPU that is not listed": (MEMCPY, "UPDATE {} SET deviceId = -1 WHERE rowid = 1"),
    SIZES: (MEMCPY, "UPDATE {} SET bytes = bytes + (1 << 50) WHERE rowid = 1"),
    SHAPES: (KERNEL, "UPDATE {} SET blockY = -1 WHERE rowid = 1"),
    LIMITS: ("TARGET_INFO_GPU", "UPDATE {} SET smCount = 1 << 60 WHERE rowid = 1"),
    "events recorded twice": (KERNEL, "INSERT INTO {0} SELECT * FROM {0} WHERE rowid = 4"),
    "waits without a record": (SYNC, "DELETE FROM {} WHERE rowid = 2"),
    OUT: (KERNEL, f'UPDATE {{}} SET "end" = "end" + {LATE} WHERE rowid = 9'),
    HOST: ("PROFILER_OVERHEAD", f'UPDATE {{}} SET "end" = "end" + {LATE} WHERE rowid = 2'),
}


def damaged(folder, *checks):
    """A copy of a real report with the damage that these checks tell, in tables without constraints."""
    tables = dict.fromkeys(DAMAGED[check][0] for check in checks)
    free = [statement for table in tables for statement in remade(GRAPH_NODE, table)]
    return kanalyze.read(
        altered(folder, GRAPH_NODE, *free, *(how.format(table) for table, how in map(DAMAGED.get, checks)))
    )


@pytest.mark.parametrize("check", DAMAGED)
@pytest.mark.one_in(12)
def test_one_damaged_row_of_a_real_report_is_one_doubt(tmp_path, check):
    assert check not in doubts(real_report(GRAPH_NODE))
    assert doubts(damaged(tmp_path, check))[check][0] == 1


@pytest.mark.slow
def test_a_report_damaged_in_every_way_has_its_page(tmp_path):
    of = damaged(tmp_path, *DAMAGED)
    assert {*doubts(of)} >= {*DAMAGED}
    page = kanalyze.summarize(of)
    assert "1,0" not in page.answer
    assert all(end <= of.meta.end_ns for end in page.windows["end_ns"])
    assert all(one is None or one > 0 for one in of.devices["sm_count"])


@pytest.mark.parametrize(
    ("table", "device", "where"),
    [(KERNEL, -1, "WHERE rowid % 3 = 0"), (MEMCPY, 99, "")],
    ids=["some kernels", "copies"],
)
@pytest.mark.slow
def test_operations_of_a_gpu_that_no_table_describes_are_a_doubt_and_have_their_page(tmp_path, table, device, where):
    of = kanalyze.read(altered(tmp_path, TWO_GPUS, f"UPDATE {table} SET deviceId = {device} {where}"))
    changed = of.kind("kernel" if table == KERNEL else "memcpy").filter(pl.col("device") == device).height
    page = kanalyze.overview(of)
    found = dict(page.tables["health"].filter("doubt").select("check", "count").iter_rows())
    assert found["operations of a GPU that is not listed"] == changed > 0
    assert set(page.windows["device"]) > {device}
    assert kanalyze.ledger(of, device=device).height
    with pytest.raises(KanalyzeError, match="no device '98'"):
        of.narrow(device=98)
