"""What unified memory moved: by address as nsys prints it, and by cause."""

import pytest

from kanalyze.analyses.memory.migration_totals import migration_totals
from kanalyze.analyses.memory.migrations import migrations
from kanalyze.errors import CannotTellError, UnknownNameError
from kanalyze.window import Window
from support.build import host, kernel, memcpy, report
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


def in_mb(size):
    return None if size is None else size / 1e6


def as_nsys(row):
    """A row of ours by nsys' names of the columns."""
    return {
        "Virtual Address": f"0x{row['address']:X}",
        "HtoD Migration size (MB)": in_mb(row["h2d_bytes"]),
        "DtoH Migration size (MB)": in_mb(row["d2h_bytes"]),
        "CPU Page Faults": row["cpu_faults"],
        " GPU Page Faults": row["gpu_faults"],
        "Migration Throughput (MB/s)": in_mb(row["throughput_bytes_per_s"]),
    }


def assert_equal(ours, theirs):
    for row, expected in some(zip(ours, theirs, strict=True)):
        assert all(agrees(row[name], text) for name, text in expected.items()), (row, expected)


def with_faults(nsys_report):
    """The reports of which nsys tells anything: it wants both copies and page faults."""
    return some(name for name in reports_with(nsys_report) if rows_of(name, nsys_report))


@pytest.mark.parametrize("name", with_faults("um_sum-all"))
def test_every_row_equals_that_of_nsys(name):
    ours = sorted(map(as_nsys, migrations(report_of(name)).rows(named=True)), key=lambda row: row["Virtual Address"])
    assert_equal(ours, sorted(rows_of(name, "um_sum-all"), key=lambda row: row["Virtual Address"]))


@pytest.mark.parametrize("name", with_faults("um_sum"))
def test_the_fastest_come_first_as_in_nsys_which_prints_ten(name):
    assert_equal(
        [as_nsys(row) for row in migrations(report_of(name)).head(10).rows(named=True)], rows_of(name, "um_sum")
    )


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


def test_nsys_cuts_a_rate_to_whole_moves_per_second_and_bandwidth_does_not():
    (row,) = migrations(report([move((0, 3), 4096, 8), move((10, 14), 4096, 8, "Device-to-Host")])).rows(named=True)
    assert row["throughput_bytes_per_s"] == 16 * (NS_PER_S // 7)
    assert row["bandwidth_bytes_per_s"] == 16 * NS_PER_S / 7


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
        (1, 4096, 100, 50, 2, 5, 2, 10, 100, 0, 50),
        (1, 8192, 10, None, None, None, 1, 5, 0, 10, 0),
        (1, 65536, None, None, None, 3, 0, 0, 0, 0, 0),
        (2, 4096, 7, None, None, None, 1, 5, 0, 0, 0),
    ]


def test_what_moved_between_devices_stands_beside_what_nsys_counts():
    side = {"source_device": 0, "target_device": 1}
    events = [move((0, 5), 4096, 100, "Device-to-Device", side=side), move((10, 12), 4096, 60), kernel(0, 1, device=1)]
    (row,) = migrations(report(events)).rows(named=True)
    assert (row["d2d_bytes"], row["h2d_bytes"], row["d2h_bytes"]) == (100, 60, None)
    assert row["throughput_bytes_per_s"] == 60 * (NS_PER_S // 2)
    assert row["bandwidth_bytes_per_s"] == 160 * NS_PER_S / 7


def test_a_copy_without_time_has_no_rate():
    (row,) = migrations(report([move((5, 5), 4096, 100)])).rows(named=True)
    assert (row["throughput_bytes_per_s"], row["bandwidth_bytes_per_s"], row["total_ns"]) == (None, None, 0)


def test_by_cause_the_profilers_words_are_one_word_each():
    causes = ("Page fault", "Speculative prefecth", "User prefetch", "Eviction", "Access counters", "Unknown", None)
    events = [move((at, at + 1), at << 12, 1 << at, cause=cause) for at, cause in enumerate(causes)]
    found = migrations(report(events), by="cause").select("cause", "way", "count", "total_bytes").rows()
    assert found == [
        ("Unknown", "to device", 2, 96),
        ("Access counters", "to device", 1, 16),
        ("Eviction", "to device", 1, 8),
        ("User prefetch", "to device", 1, 4),
        ("Speculative prefetch", "to device", 1, 2),
        ("Page fault", "to device", 1, 1),
    ]


def test_the_time_of_its_own_is_what_no_kernel_hides():
    events = [kernel(0, 10), move((5, 25), 4096, 100), move((30, 35), 4096, 100, "Device-to-Host", "Page fault")]
    found = migrations(report(events), by="cause").select("way", "total_ns", "exclusive_ns", "again_bytes").rows()
    assert found == [("to device", 20, 15, 0), ("to host", 5, 5, 0)]


def test_the_part_that_is_looked_at():
    events = [move((0, 5), 4096, 1), move((10, 15), 4096, 2), move((20, 25), 4096, 4, device=1), fault("CPU", 12, 4096)]
    of = report(events)

    def found(**where):
        return migrations(of, **where).select("h2d_bytes", "cpu_faults", "again_bytes").rows()

    assert found() == [(7, 1, 1)]
    assert found(window=Window(10, 20)) == [(2, 1, 0)]
    assert found(device=1) == [(4, 1, 0)]


def test_no_migration_is_an_empty_table_and_no_record_is_an_error():
    plain = report([memcpy(0, 5), kernel(0, 5)])
    assert migrations(plain).is_empty()
    assert migrations(plain, by="cause").is_empty()
    with pytest.raises(CannotTellError):
        migrations(report([], kinds=("range",)))
    with pytest.raises(UnknownNameError):
        migrations(plain, by="page")


def test_copies_whose_address_is_not_recorded_have_a_row_of_their_own():
    found = migrations(report([move((0, 5), None, 100), move((5, 9), None, 10, "Device-to-Host")]))
    assert found.select("address", "h2d_bytes", "d2h_bytes", "again_bytes", "round_trips").rows() == [
        (None, 100, 10, 0, None)
    ]
