"""What unified memory moved: by address and altogether as nsys prints it, and by cause; and who faulted."""

import pytest

from kanalyze.analyses.memory.migrations import faults, migration_totals, migrations
from kanalyze.errors import CannotTellError, UnknownNameError
from kanalyze.window import Window
from support.build import call, graph, host, kernel, memcpy, report
from support.nsys_csv import agrees, report_of, reports_with, rows_of
from support.shares import some

NS_PER_S = 1_000_000_000


def move(span, address, size, way="Host-to-Device", cause="Page fault", **keys):
    side = {"address": address, "migration_cause": cause, **keys.pop("side", {})}
    return memcpy(*span, direction=f"Unified {way}", size_bytes=size, side=side, **keys)


def fault(side, at, address, count=1, process=1):
    told = {"side": side, "address": address, "faults": count}
    device = None if side == "CPU" else 0
    return host("fault", f"{side} page fault", at, at, process=process, device=device, side=told)


def the_row(events, **where):
    (row,) = migration_totals(report(events), **where).rows(named=True)
    return row


def in_mb(size):
    return None if size is None else size / 1e6


def as_nsys(row):
    """A row of ours by nsys' names of the columns."""
    return {
        "Virtual Address": f"0x{row['address']:X}", "HtoD Migration size (MB)": in_mb(row["h2d_bytes"]),
        "DtoH Migration size (MB)": in_mb(row["d2h_bytes"]), "CPU Page Faults": row["cpu_faults"],
        " GPU Page Faults": row["gpu_faults"], "Migration Throughput (MB/s)": in_mb(row["throughput_bytes_per_s"]),
    }  # fmt: skip


def assert_equal(ours, theirs):
    for row, expected in some(zip(ours, theirs, strict=True)):
        assert all(agrees(row[name], text) for name, text in expected.items()), (row, expected)


def with_faults(nsys_report):
    """The reports of which nsys tells anything: it wants both copies and page faults."""
    return some(name for name in reports_with(nsys_report) if rows_of(name, nsys_report))


@pytest.mark.parametrize("name", with_faults("um_sum-all"))
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


def test_one_row_per_address_and_process_with_null_for_none():
    events = [
        *(move((0, 5), 4096, 100), move((10, 15), 4096, 50, "Device-to-Host", "Eviction")),
        *(move((20, 25), 8192, 10, cause="User prefetch"), move((30, 35), 4096, 7, process=2, cause=None)),
        *(fault("CPU", 1, 4096), fault("CPU", 2, 4096), fault("GPU", 3, 4096, 5), fault("GPU", 4, 65536, 3)),
    ]
    keys = ("process_id", "address", "h2d_bytes", "d2h_bytes", "cpu_faults", "gpu_faults", "moves", "total_ns")
    causes = ("fault_bytes", "prefetch_bytes", "eviction_bytes")
    found = migrations(report(events)).sort("process_id", "address").select(*keys, *causes).rows()
    assert found == [
        (1, 4096, 100, 50, 2, 5, 2, 10, 100, 0, 50), (1, 8192, 10, None, None, None, 1, 5, 0, 10, 0),
        (1, 65536, None, None, None, 3, 0, 0, 0, 0, 0), (2, 4096, 7, None, None, None, 1, 5, 0, 0, 0),
    ]  # fmt: skip


def test_what_moved_between_devices_stands_beside_what_nsys_counts():
    side = {"source_device": 0, "target_device": 1}
    events = [move((0, 5), 4096, 100, "Device-to-Device", side=side), move((10, 12), 4096, 60), kernel(0, 1, device=1)]
    (row,), whole = migrations(report(events)).rows(named=True), the_row(events)
    for found in (row, whole):
        assert (found["d2d_bytes"], found["h2d_bytes"], found["d2h_bytes"], found["moves"]) == (100, 60, None, 2)
        assert found["bandwidth_bytes_per_s"] == 160 * NS_PER_S / 7
    assert row["throughput_bytes_per_s"] == 60 * (NS_PER_S // 2)


def test_a_copy_without_time_or_address_has_no_rate_and_a_row_of_its_own():
    events = [move((5, 5), None, 100), move((5, 5), None, 10, "Device-to-Host")]
    (row,), whole = migrations(report(events)).rows(named=True), the_row(events)
    columns = ("address", "throughput_bytes_per_s", "round_trips")
    assert [row[name] for name in columns] == [None, None, None]
    assert (whole["min_address"], whole["max_address"]) == (None, None)
    for found in (row, whole):
        columns = ("bandwidth_bytes_per_s", "total_ns", "moves", "h2d_bytes", "d2h_bytes", "again_bytes")
        assert [found[name] for name in columns] == [None, 0, 2, 100, 10, 0]


def test_by_cause_the_profilers_words_are_one_word_each():
    causes = ("Page fault", "Speculative prefecth", "User prefetch", "Eviction", "Access counters", "Unknown", None)
    events = [move((at, at + 1), at << 12, 1 << at, cause=cause) for at, cause in enumerate(causes)]
    found = migrations(report(events), by="cause").select("cause", "way", "count", "total_bytes").rows()
    assert found == [
        ("Unknown", "to device", 2, 96), ("Access counters", "to device", 1, 16), ("Eviction", "to device", 1, 8),
        ("User prefetch", "to device", 1, 4), ("Speculative prefetch", "to device", 1, 2),
        ("Page fault", "to device", 1, 1),
    ]  # fmt: skip


def test_the_time_of_its_own_is_what_no_kernel_hides():
    events = [kernel(0, 10), move((5, 25), 4096, 100), move((30, 35), 4096, 100, "Device-to-Host", "Page fault")]
    found = migrations(report(events), by="cause").select("way", "total_ns", "exclusive_ns", "again_bytes").rows()
    assert found == [("to device", 20, 15, 0), ("to host", 5, 5, 0)]


def test_the_part_that_is_looked_at():
    """A copy that overlaps the window counts whole, but for the time of its own, which is inside."""
    events = [move((0, 10), 4096, 1), move((10, 20), 4096, 2), move((30, 40), 4096, 4, device=1, process=2)]
    events += [fault("CPU", 5, 4096), fault("CPU", 35, 4096, process=2)]

    def found(**where):
        rows = migrations(report(events), **where)
        whole = the_row(events, **where)
        columns = ("h2d_bytes", "cpu_faults", "again_bytes")
        assert [rows[name].sum() for name in columns] == [whole[name] for name in columns]
        return tuple(whole[name] for name in ("h2d_bytes", "exclusive_ns", "cpu_faults", "again_bytes"))

    assert found() == (7, 30, 2, 1)
    assert found(window=Window(5, 12)) == (3, 7, 1, 1)
    assert found(device=1) == found(process=2) == (4, 10, 1, 0)


def test_no_migration_is_an_empty_table_and_no_record_is_an_error():
    plain = report([memcpy(0, 5), kernel(0, 5)])
    assert migrations(plain).is_empty()
    assert migrations(plain, by="cause").is_empty()
    assert migration_totals(plain).is_empty()
    assert migration_totals(report([move((0, 5), 4096, 1)]), window=Window(5, 9)).is_empty()
    for table in (migrations, migration_totals):
        with pytest.raises(CannotTellError, match=f"cannot tell {table.__name__}, because the report records no"):
            table(report([], kinds=("range",)))
    with pytest.raises(UnknownNameError):
        migrations(plain, by="page")


def test_the_program_that_writes_in_turn_moves_its_pages_so_often():
    """Ten times by page faults and ten times by prefetches; the first page once more, for the last line printed."""
    (totals,) = migration_totals(report_of("thrash")).rows(named=True)
    assert totals["round_trips"] == 20
    assert totals["prefetch_bytes"] == 20 * (8 << 20)


def test_every_column_worked_out_by_hand():
    """A page of 100 bytes goes there and back and there again; 60 of its bytes are asked for once more later."""
    events = [
        kernel(0, 10),
        *(move((5, 25), 4096, 100), move((30, 40), 4096, 100, "Device-to-Host", "Eviction")),
        *(move((50, 60), 4096, 100), move((70, 75), 4096, 60, cause="User prefetch")),
        *(fault("CPU", 1, 4000), fault("CPU", 2, 4096), fault("GPU", 3, 4096, 5), fault("GPU", 4, 65536, 3)),
    ]
    assert the_row(events) == {
        "h2d_bytes": 260, "d2h_bytes": 100, "cpu_faults": 2, "gpu_faults": 8, "min_address": 4000,
        "max_address": 65536, "d2d_bytes": None, "moves": 4, "total_ns": 45, "exclusive_ns": 40,
        "bandwidth_bytes_per_s": 360 * NS_PER_S / 45, "fault_bytes": 200, "prefetch_bytes": 60, "eviction_bytes": 100,
        "again_bytes": 160, "round_trips": 1,
    }  # fmt: skip


def test_totals_without_some_kinds_of_rows():
    row = the_row([move((0, 5), 8192, 100)])
    assert (row["d2h_bytes"], row["cpu_faults"], row["gpu_faults"]) == (None, None, None)
    assert (row["min_address"], row["max_address"]) == (8192, 8192)
    row = the_row([fault("CPU", 0, 4096)])
    assert (row["h2d_bytes"], row["cpu_faults"], row["gpu_faults"], row["moves"]) == (None, 1, None, 0)


COLUMNS = ("side", "faults", "function", "device", "access", "groups", "pages", "total_ns", "moved_bytes")


def fault_rows(of, *columns):
    return faults(of).select(columns or COLUMNS).rows()


def cpu(at, address=4096, *, process=1, **side):
    return host("fault", "CPU page fault", at, at, process=process, side={"address": address, "faults": 1, **side})


def gpu(start, end, address=4096, *, device=0, **told):
    side = {"side": "GPU", "address": address, "faults": 1, "access": "Read", **told}
    return host("fault", "GPU page faults", start, end, thread=None, device=device, side=side)


def migration(start, end, size, *, cause="Page fault", device=0):
    side = {"migration_cause": cause, "address": 4096}
    return memcpy(start, end, direction="Unified Host-to-Device", size_bytes=size, device=device, side=side)


@pytest.mark.parametrize("name", reports_with("um_cpu_page_faults_sum"))
def test_the_faults_of_the_cpu_equal_those_of_nsys(name):
    theirs, of = rows_of(name, "um_cpu_page_faults_sum"), report_of(name)
    if "fault" not in of.kinds:
        assert theirs == []
        return
    ours = faults(of)
    ours = ours.filter(ours["side"] == "CPU").rows(named=True)
    keys = ("CPU Page Faults", "CPU Instruction Address", "Source File", "Source Line")
    found = [
        (str(row["faults"]), row["function"], row["source_file"] or "", str(row["source_line"] or 0)) for row in ours
    ]
    assert found == [tuple(row[key] for key in keys) for row in theirs]


def test_the_faults_of_the_gpu_are_those_that_nsys_totals():
    for name in ("thrash", "prefetch", "add_um"):
        ours = faults(report_of(name))
        (theirs,) = rows_of(name, "um_total_sum")
        assert ours.filter(ours["side"] == "GPU")["faults"].sum() == int(theirs["Total GPU PageFaults"])


def test_cpu_faults_are_counted_by_function_and_line():
    told = {"function": "main", "source_file": "a.c", "source_line": 7, "module": "app"}
    other = {"function": "main", "source_file": "a.c", "source_line": 9, "module": "app"}
    of = report([cpu(1, **told), cpu(2, 8192, **told), cpu(3, **told), cpu(4, **other)])
    keys = ("faults", "function", "source_file", "source_line", "module", "groups", "pages")
    keys += ("min_address", "max_address")
    assert fault_rows(of, *keys) == [
        (3, "main", "a.c", 7, "app", 3, 2, 4096, 8192),
        (1, "main", "a.c", 9, "app", 1, 1, 4096, 4096),
    ]
    assert fault_rows(of, "side", "total_ns", "moved_bytes") == [("CPU", None, None)] * 2


@pytest.mark.parametrize(
    ("events", "columns", "expected"),
    [
        # one function of two modules has no module
        (
            [cpu(1, function="f", module="a"), cpu(2, function="f", module="b")],
            ("faults", "function", "module"),
            [(2, "f", None)],
        ),
        # faults of the GPU belong to the kernel that ran when their handling began
        (
            [
                *(kernel(0, 20, name="first"), kernel(5, 30, name="second"), graph(40, 50)),
                *(gpu(10, 35, faults=3), gpu(20, 22, 8192), gpu(30, 32), gpu(45, 60, access="Write")),
            ],
            COLUMNS,
            [
                ("GPU", 3, "first", 0, "Read", 1, 1, 25, 0), ("GPU", 1, None, 0, "Read", 1, 1, 2, 0),
                ("GPU", 1, "[CUDA graph 1]", 0, "Write", 1, 1, 15, 0), ("GPU", 1, "second", 0, "Read", 1, 1, 2, 0),
            ],
        ),
        # kernels of other devices and processes do not fault
        (
            [kernel(0, 20, device=1, name="a"), kernel(0, 20, process=2, name="b"), gpu(10, 12)],
            ("side", "function"),
            [("GPU", None)],
        ),
        # what faults moved counts for the last group that began before
        (
            [
                *(kernel(0, 100, name="k"), gpu(10, 30, access="Read"), gpu(20, 40, access="Write")),
                *(migration(9, 10, 1), migration(15, 16, 2), migration(20, 21, 4), migration(39, 50, 8)),
                *(migration(40, 41, 16), migration(25, 26, 32, cause="User prefetch")),
                migration(25, 26, 64, device=1),
            ],
            ("access", "moved_bytes"),
            [("Read", 2), ("Write", 12)],
        ),
    ],
)  # fmt: skip
def test_faults(events, columns, expected):
    assert fault_rows(report(events), *columns) == expected


def test_faults_of_the_part_that_is_looked_at():
    events = [kernel(0, 50), kernel(0, 50, device=1), kernel(0, 50, process=2, device=1)]
    events += [cpu(5, function="f"), cpu(6, function="g", process=2), gpu(10, 20), gpu(10, 20, device=1, faults=2)]
    of = report(events)
    assert fault_rows(of.narrow(device=0), "side", "faults", "function") == [("CPU", 1, "f"), ("GPU", 1, "k")]
    assert fault_rows(of.narrow(process=2), "side", "faults", "function") == [("CPU", 1, "g")]
    assert fault_rows(of.narrow(window=Window(6, 10)), "side", "function") == [("CPU", "g")]
    assert fault_rows(of.narrow(window=Window(19, 25)), "side", "device") == [("GPU", 1), ("GPU", 0)]


def test_no_faults_is_an_empty_table_and_no_record_of_them_is_an_error():
    assert faults(report([kernel(0, 1)], kinds=("kernel", "fault"))).is_empty()
    with pytest.raises(CannotTellError):
        faults(report([kernel(0, 1), call("cudaFree", 0, 1)]))
