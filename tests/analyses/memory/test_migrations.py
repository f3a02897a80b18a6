"""What unified memory moved, as nsys prints it and by cause; who faulted; and how often pages moved, by a model."""

from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.memory import unified_memory
from kanalyze.analyses.memory.migrations import faults, migration_totals, migrations, pages
from kanalyze.window import Window
from support.build import call, graph, host, kernel, memcpy, report
from support.nsys_csv import agrees, report_of, reports_with, rows_of
from support.shares import some
from support.strategies import FEWER

NS_PER_S = 1_000_000_000
FAULT, ASKED, FULL = "Page fault", "User prefetch", "Eviction"
WAYS = ("Host-to-Device", "Device-to-Host")


def move(span, address, size, way=WAYS[0], cause=FAULT, **keys):
    side = {"address": address, "migration_cause": cause, **keys.pop("side", {})}
    return memcpy(*span, direction=f"Unified {way}", size_bytes=size, side=side, **keys)


def fault(side, start, address=4096, faults=1, *, end=None, process=1, device=0, **told):  # noqa: PLR0913 - all of one
    of_side = {} if side == "CPU" else {"thread": None, "device": device}
    told = {"side": side, "address": address, "faults": faults, "access": None if side == "CPU" else "Read", **told}
    return host("fault", f"{side} page fault", start, end or start, process=process, side=told, **of_side)


cpu, gpu = partial(fault, "CPU"), partial(fault, "GPU")


def the_row(events, **where):
    (row,) = migration_totals(report(events), **where).rows(named=True)
    return row


def in_mb(size):
    return None if size is None else size / 1e6


def as_nsys(row):
    return {
        "Virtual Address": f"0x{row['address']:X}", "HtoD Migration size (MB)": in_mb(row["h2d_bytes"]),
        "DtoH Migration size (MB)": in_mb(row["d2h_bytes"]), "CPU Page Faults": row["cpu_faults"],
        " GPU Page Faults": row["gpu_faults"], "Migration Throughput (MB/s)": in_mb(row["throughput_bytes_per_s"]),
    }  # fmt: skip


def assert_equal(ours, theirs):
    for row, expected in some(zip(ours, theirs, strict=True)):
        assert all(agrees(row[name], text) for name, text in expected.items()), (row, expected)


# of reports without both copies and page faults nsys tells nothing
@pytest.mark.parametrize("name", some(name for name in reports_with("um_sum-all") if rows_of(name, "um_sum-all")))
def test_every_row_equals_that_of_nsys(name):
    """The fastest come first; of these nsys prints ten."""
    ours = [as_nsys(row) for row in migrations(report_of(name)).rows(named=True)]
    assert_equal(ours[:10], rows_of(name, "um_sum"))
    assert_equal(
        *(sorted(rows, key=lambda row: row["Virtual Address"]) for rows in (ours, rows_of(name, "um_sum-all")))
    )


@pytest.mark.parametrize("name", [name for name in reports_with("um_total_sum") if rows_of(name, "um_total_sum")])
def test_totals_equal_those_of_nsys(name):
    (row,) = migration_totals(report_of(name)).rows(named=True)
    ours = {
        "Total HtoD Migration Size (MB)": in_mb(row["h2d_bytes"]),
        "Total DtoH Migration Size (MB)": in_mb(row["d2h_bytes"]), "Total CPU Page Faults": row["cpu_faults"],
        "Total GPU PageFaults": row["gpu_faults"], "Minimum Virtual Address": f"0x{row['min_address']:X}",
        "Maximum Virtual Address": f"0x{row['max_address']:X}",
    }  # fmt: skip
    (expected,) = rows_of(name, "um_total_sum")
    assert set(expected) == set(ours)
    assert_equal([ours], [expected])


@pytest.mark.parametrize("name", reports_with("um_sum"))
def test_where_nsys_tells_nothing_no_faults_are_recorded(name):
    of = report_of(name)
    if "fault" not in of.kinds and "memcpy" in of.kinds:
        assert rows_of(name, "um_sum") == rows_of(name, "um_total_sum") == []
        found = migrations(of)
        assert found["cpu_faults"].null_count() == found["gpu_faults"].null_count() == found.height
        assert found.is_empty() == (name != "memory")


@pytest.mark.parametrize("name", ["thrash", "prefetch", "memory", "add_um"])
def test_addresses_causes_and_totals_tell_the_same(name):
    of = report_of(name)
    by_address, by_cause, (totals,) = migrations(of), migrations(of, by="cause"), migration_totals(of).rows(named=True)
    for figure in ("h2d_bytes", "d2h_bytes", "moves", "total_ns", "fault_bytes", "prefetch_bytes", "again_bytes"):
        assert by_address[figure].sum() == totals[figure]
    assert by_cause["total_bytes"].sum() == totals["h2d_bytes"] + totals["d2h_bytes"]
    assert by_cause["count"].sum() == totals["moves"]
    for figure in ("again_bytes", "exclusive_ns", "total_ns"):
        assert by_cause[figure].sum() == totals[figure]
    assert by_address["round_trips"].max() == totals["round_trips"]


def test_the_part_that_is_looked_at():
    """A copy that overlaps the window counts whole, but for the time of its own, which is inside."""
    events = [move((0, 10), 4096, 1), move((10, 20), 4096, 2), move((30, 40), 4096, 4, device=1, process=2)]
    events += [cpu(5, 4096), cpu(35, 4096, process=2)]

    def found(**where):
        rows = migrations(report(events), **where)
        whole = the_row(events, **where)
        columns = ("h2d_bytes", "cpu_faults", "again_bytes")
        assert [rows[name].sum() for name in columns] == [whole[name] for name in columns]
        return tuple(whole[name] for name in ("h2d_bytes", "exclusive_ns", "cpu_faults", "again_bytes"))

    assert found() == (7, 30, 2, 1)
    assert found(window=Window(5, 12)) == (3, 7, 1, 1)
    assert found(device=1) == found(process=2) == (4, 10, 1, 0)


def test_the_program_that_writes_in_turn_moves_its_pages_so_often():
    """Ten times by page faults and ten times by prefetches; the first page once more, for the last line printed."""
    (totals,) = migration_totals(report_of("thrash")).rows(named=True)
    assert totals["round_trips"] == 20
    assert totals["prefetch_bytes"] == 20 * (8 << 20)
    (found,) = [one for one in ranked(report_of("thrash")) if one.rule == "unified-memory-thrash"]
    assert "the busiest page went there and back 10 times" in found.text


def test_another_process_on_another_device_does_not_count():
    """Three moves of one page are no thrash, whatever the pages of another program do."""
    events = []
    for process, device, times in ((1, 0, 12), (2, 1, 3)):
        where = {"process": process, "device": device, "correlation": 1}
        events += [call("cudaLaunchKernel", 0, 100, process=process, correlation=1), kernel(200, 300, **where)]
        events += [
            move((start, start + 1), process << 30, 65536, WAYS[at % 2], process=process, device=device)
            for at, start in enumerate(range(1000, 1000 + 2000 * times, 2000))
        ]
    found = [one for one in unified_memory(report(events)) if one.rule == "unified-memory-thrash"]
    assert [one.device for one in found] == [0]
    assert "the busiest page went there and back 6 times" in found[0].text


MOVES = st.lists(
    st.builds(
        move,
        st.integers(0, 20).map(lambda start: (start, start + 1)),
        st.integers(0, 12),
        st.integers(0, 6),
        st.sampled_from(WAYS),
        st.sampled_from([FAULT, FAULT, ASKED, FULL, "Speculative prefetch", None]),
        device=st.sampled_from([0, 0, 1]),
        process=st.sampled_from([1, 1, 2]),
    ),
    max_size=14,
)


def slowly(events):
    """Bytes that moved again by event; the round trips of every byte; the most unasked returns to a place by device."""
    again, moved, most = defaultdict(int), defaultdict(list), Counter()
    for number, event in sorted(enumerate(events), key=lambda pair: (pair[1].start, pair[0])):
        ends = (event.device, "host") if "Device-to-Host" in event.direction else ("host", event.device)
        address = event.side["address"]
        for byte in range(address, address + event.size_bytes):
            visited = moved[event.process, byte]
            again[number] += ends[1] in [to for _, to, _, _ in visited]
            visited.append((*ends, event.device, event.side["migration_cause"]))
    trips = {}
    for byte, line in moved.items():
        runs = [line[0], *(after for before, after in pairwise(line) if after[1] != before[1])]
        stops = [runs[0][0], *(to for _, to, _, _ in runs)]
        back = [run for at, run in enumerate(runs[1:], 2) if stops[at] == stops[at - 2]]
        trips[byte] = (len(back) + 1) // 2
        returns = Counter((device, to) for _, to, device, cause in back if cause not in (ASKED, None))
        for (device, _), count in returns.items():
            most[device] = max(most[device], count)
    return dict(again), trips, dict(most)


@given(MOVES, st.sampled_from([1, 3, 1 << 20]))
@FEWER
def test_pages_equal_the_model(events, batch):
    again, trips, most = slowly(events)
    with patch("kanalyze.analyses.memory.migrations.PARTS_AT_ONCE", batch):
        found = pages(report(events))
    rows = found.pieces.rows()
    assert dict(found.again.rows()) == again
    assert {(process, byte): n for process, start, end, n, _ in rows for byte in range(start, end)} == trips
    assert dict(found.unasked.rows()) == most


COUNTED = ("process_id", "address", "h2d_bytes", "d2h_bytes", "d2d_bytes", "cpu_faults", "gpu_faults", "moves")
RATES = ("bandwidth_bytes_per_s", "throughput_bytes_per_s", "total_ns", "round_trips", "again_bytes")
ONE_ROW = [(1, None, 100, 10, None, None, None, 2, None, None, 0, None, 0)]


@pytest.mark.parametrize(
    ("events", "columns", "rows"),
    [
        # one row per address and process, with null for none
        (
            [
                *(move((0, 5), 4096, 100), move((10, 15), 4096, 50, "Device-to-Host", "Eviction")),
                *(move((20, 25), 8192, 10, cause="User prefetch"), move((30, 35), 4096, 7, process=2, cause=None)),
                *(cpu(1, 4096), cpu(2, 4096), gpu(3, 4096, 5), gpu(4, 65536, 3)),
            ],
            (*COUNTED, "fault_bytes", "prefetch_bytes", "eviction_bytes"),
            [
                (1, 4096, 100, 50, None, 2, 5, 2, 100, 0, 50), (1, 8192, 10, None, None, None, None, 1, 0, 10, 0),
                (1, 65536, None, None, None, None, 3, 0, 0, 0, 0), (2, 4096, 7, None, None, None, None, 1, 0, 0, 0),
            ],
        ),
        # what moved between devices stands beside what nsys counts
        (
            [
                move((0, 5), 4096, 100, "Device-to-Device", side={"source_device": 0, "target_device": 1}),
                *(move((10, 12), 4096, 60), kernel(0, 1, device=1)),
            ],
            (*COUNTED, *RATES[:2]),
            [(1, 4096, 60, None, 100, None, None, 2, 160 * NS_PER_S / 7, 60 * (NS_PER_S // 2))],
        ),
        # without time or address there is no rate
        ([move((5, 5), None, 100), move((5, 5), None, 10, "Device-to-Host")], (*COUNTED, *RATES), ONE_ROW),
        ([cpu(0, 4096)], COUNTED, [(1, 4096, None, None, None, 1, None, 0)]),
    ],
)  # fmt: skip
def test_rows_by_address_and_their_sums(events, columns, rows):
    found = migrations(report(events))
    assert found.sort("process_id", "address").select(columns).rows() == rows
    whole = the_row(events)
    assert (whole["min_address"], whole["max_address"]) == (found["address"].min(), found["address"].max())
    for name in {*columns} & {"h2d_bytes", "d2h_bytes", "d2d_bytes", "cpu_faults", "gpu_faults", "moves"}:
        assert (whole[name] or 0) == found[name].sum()
    assert len(rows) > 1 or "bandwidth_bytes_per_s" not in columns or whole["bandwidth_bytes_per_s"] == rows[0][8]


def test_by_cause_the_profilers_words_are_one_word_each_and_own_time_is_what_no_kernel_hides():
    causes = ("Page fault", "Speculative prefecth", "User prefetch", "Eviction", "Access counters", "Unknown", None)
    events = [move((at, at + 1), at << 12, 1 << at, cause=cause) for at, cause in enumerate(causes)]
    columns = ("cause", "way", "count", "total_bytes", "exclusive_ns")
    assert migrations(report([kernel(0, 2), *events]), by="cause").select(columns).rows() == [
        ("Unknown", "to device", 2, 96, 2), ("Access counters", "to device", 1, 16, 1),
        ("Eviction", "to device", 1, 8, 1), ("User prefetch", "to device", 1, 4, 1),
        ("Speculative prefetch", "to device", 1, 2, 0), ("Page fault", "to device", 1, 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", reports_with("um_cpu_page_faults_sum"))
def test_faults_equal_those_of_nsys(name):
    theirs, of = rows_of(name, "um_cpu_page_faults_sum"), report_of(name)
    if "fault" not in of.kinds:
        assert theirs == []
        return
    ours = faults(of)
    keys = ("CPU Page Faults", "CPU Instruction Address", "Source File", "Source Line")
    assert [
        (str(row["faults"]), row["function"], row["source_file"] or "", str(row["source_line"] or 0))
        for row in ours.filter(ours["side"] == "CPU").rows(named=True)
    ] == [tuple(row[key] for key in keys) for row in theirs]
    for totals in rows_of(name, "um_total_sum"):
        assert ours.filter(ours["side"] == "GPU")["faults"].sum() == int(totals["Total GPU PageFaults"])


COLUMNS = ("side", "faults", "function", "device", "access", "groups", "pages", "total_ns", "moved_bytes")
IN_MAIN = {"function": "main", "source_file": "a.c", "source_line": 7, "module": "app"}
LINES = ("side", "faults", "function", "source_line", "module", "groups", "pages", "min_address", "max_address")
PARTS = [
    *(kernel(0, 50), kernel(0, 50, device=1), kernel(0, 50, process=2, device=1), cpu(5, function="f")),
    *(cpu(6, function="g", process=2), gpu(10, end=20), gpu(10, end=20, device=1, faults=2)),
]
OF_GPU = [("GPU", None)]


@pytest.mark.parametrize(
    ("events", "where", "columns", "expected"),
    [
        # of the CPU by function and line; one function of two modules has no module
        (
            [
                *(cpu(1, **IN_MAIN), cpu(2, 8192, **IN_MAIN), cpu(3, **IN_MAIN)),
                *(cpu(4, **IN_MAIN | {"source_line": 9}), cpu(5, **IN_MAIN | {"source_line": 9, "module": "b"})),
            ],
            {}, LINES,
            [("CPU", 3, "main", 7, "app", 3, 2, 4096, 8192), ("CPU", 2, "main", 9, None, 2, 1, 4096, 4096)],
        ),
        # of the GPU by the kernel that ran when their handling began, on that device in that process
        (
            [
                *(kernel(0, 20, name="first"), kernel(5, 30, name="second"), graph(40, 50)),
                *(gpu(10, end=35, faults=3), gpu(20, 8192, end=22), gpu(30, end=32), gpu(45, end=60, access="Write")),
            ],
            {}, COLUMNS,
            [
                ("GPU", 3, "first", 0, "Read", 1, 1, 25, 0), ("GPU", 1, None, 0, "Read", 1, 1, 2, 0),
                ("GPU", 1, "[CUDA graph 1]", 0, "Write", 1, 1, 15, 0), ("GPU", 1, "second", 0, "Read", 1, 1, 2, 0),
            ],
        ),
        ([kernel(0, 20, device=1), kernel(0, 20, process=2), gpu(10, end=12)], {}, ("side", "function"), OF_GPU),
        # what faults moved counts for the last group that began before
        (
            [
                *(kernel(0, 100), gpu(10, end=30, access="Read"), gpu(20, end=40, access="Write")),
                *(move((start, start + 1), 4096, 1 << at) for at, start in enumerate((9, 15, 20, 39, 40))),
                *(move((25, 26), 4096, 32, cause="User prefetch"), move((25, 26), 4096, 64, device=1)),
            ],
            {}, ("access", "moved_bytes"), [("Read", 2), ("Write", 12)],
        ),
        (PARTS, {"device": 0}, ("side", "faults", "function"), [("CPU", 1, "f"), ("GPU", 1, "k")]),
        (PARTS, {"process": 2}, ("side", "faults", "function"), [("CPU", 1, "g")]),
        (PARTS, {"window": Window(6, 10)}, ("side", "function", "total_ns"), [("CPU", "g", None)]),
        (PARTS, {"window": Window(19, 25)}, ("side", "device"), [("GPU", 1), ("GPU", 0)]),
    ],
)  # fmt: skip
def test_faults(events, where, columns, expected):
    assert faults(report(events).narrow(**where)).select(columns).rows() == expected
