"""What unified memory moved and faulted altogether: as nsys prints it, and worked out by hand."""

import pytest

from kanalyze.analyses.memory.migration_totals import migration_totals
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import host, kernel, memcpy, report
from support.nsys_csv import agrees, report_of, reports_with, rows_of

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


def the_row(events, **where):
    (row,) = migration_totals(report(events), **where).rows(named=True)
    return row


@pytest.mark.parametrize("name", [name for name in reports_with("um_total_sum") if rows_of(name, "um_total_sum")])
def test_totals_equal_those_of_nsys(name):
    (row,) = migration_totals(report_of(name)).rows(named=True)
    ours = {
        "Total HtoD Migration Size (MB)": in_mb(row["h2d_bytes"]),
        "Total DtoH Migration Size (MB)": in_mb(row["d2h_bytes"]),
        "Total CPU Page Faults": row["cpu_faults"],
        "Total GPU PageFaults": row["gpu_faults"],
        "Minimum Virtual Address": f"0x{row['min_address']:X}",
        "Maximum Virtual Address": f"0x{row['max_address']:X}",
    }
    (expected,) = rows_of(name, "um_total_sum")
    assert set(expected) == set(ours)
    assert all(agrees(ours[column], text) for column, text in expected.items()), (ours, expected)


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
        "h2d_bytes": 260,
        "d2h_bytes": 100,
        "cpu_faults": 2,
        "gpu_faults": 8,
        "min_address": 4000,
        "max_address": 65536,
        "d2d_bytes": None,
        "moves": 4,
        "total_ns": 45,
        "exclusive_ns": 40,
        "bandwidth_bytes_per_s": 360 * NS_PER_S / 45,
        "fault_bytes": 200,
        "prefetch_bytes": 60,
        "eviction_bytes": 100,
        "again_bytes": 160,
        "round_trips": 1,
    }


def test_what_moved_between_devices_is_neither_to_nor_from_the_host():
    side = {"source_device": 0, "target_device": 1}
    row = the_row([move((0, 5), 4096, 100, "Device-to-Device", side=side), kernel(0, 1, device=1)])
    assert (row["h2d_bytes"], row["d2h_bytes"], row["d2d_bytes"], row["moves"]) == (None, None, 100, 1)


def test_processes_do_not_share_addresses():
    row = the_row([move((0, 5), 4096, 100), move((10, 15), 4096, 100, process=2)])
    assert (row["h2d_bytes"], row["again_bytes"], row["round_trips"]) == (200, 0, 0)


def test_addresses_that_are_not_recorded_are_null_and_copies_without_time_have_no_rate():
    row = the_row([move((5, 5), None, 100)])
    columns = ("min_address", "max_address", "bandwidth_bytes_per_s", "total_ns", "moves", "h2d_bytes")
    assert tuple(row[name] for name in columns) == (None, None, None, 0, 1, 100)


def test_the_part_that_is_looked_at():
    """A copy that overlaps the window counts whole, but for the time of its own, which is inside."""
    events = [move((0, 10), 4096, 1), move((10, 20), 4096, 2), move((30, 40), 4096, 4, device=1, process=2)]
    events += [fault("CPU", 5, 4096), fault("CPU", 35, 4096, process=2)]

    def found(**where):
        row = the_row(events, **where)
        return tuple(row[name] for name in ("h2d_bytes", "exclusive_ns", "cpu_faults", "again_bytes"))

    assert found() == (7, 30, 2, 1)
    assert found(window=Window(5, 12)) == (3, 7, 1, 1)
    assert found(device=1) == found(process=2) == (4, 10, 1, 0)


def test_totals_without_some_kinds_of_rows():
    (row,) = migration_totals(report([move((0, 5), 8192, 100)])).rows(named=True)
    assert (row["d2h_bytes"], row["cpu_faults"], row["gpu_faults"]) == (None, None, None)
    assert (row["min_address"], row["max_address"]) == (8192, 8192)
    (row,) = migration_totals(report([fault("CPU", 0, 4096)])).rows(named=True)
    assert (row["h2d_bytes"], row["cpu_faults"], row["gpu_faults"], row["moves"]) == (None, 1, None, 0)


def test_no_migration_is_an_empty_table_and_no_record_is_an_error():
    assert migration_totals(report([memcpy(0, 5), kernel(0, 5)])).is_empty()
    assert migration_totals(report([move((0, 5), 4096, 1)]), window=Window(5, 9)).is_empty()
    with pytest.raises(CannotTellError, match="cannot tell migration_totals, because the report records no events"):
        migration_totals(report([], kinds=("range",)))
