"""Unified memory that thrashes, or that one prefetch would bring."""

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.memory import unified_memory
from kanalyze.window import Window
from support.build import host, kernel, memcpy, report
from support.nsys_csv import report_of


def move(span, address, size, way="Host-to-Device", cause="Page fault"):
    side = {"address": address, "migration_cause": cause}
    return memcpy(*span, direction=f"Unified {way}", size_bytes=size, side=side)


def fault(start, end, address, device=0):
    side = {"side": "GPU", "address": address, "faults": 1}
    return host("fault", "GPU page faults", start, end, thread=None, device=device, side=side)


def found(of):
    return {finding.rule: finding for finding in unified_memory(of)}


def there_and_back(times):
    """A kernel of 20 ns that faults for 8, moves 64 bytes there behind it, and 5 ns in which they come back."""
    events = []
    for at in range(0, 100 * times, 100):
        events += [kernel(at, at + 20), fault(at + 2, at + 10, 4096), move((at + 4, at + 9), 4096, 64)]
        events.append(move((at + 30, at + 35), 4096, 64, "Device-to-Host"))
    return events


def test_pages_that_go_there_and_back_thrash():
    finding = found(report(there_and_back(3)))["unified-memory-thrash"]
    assert finding.at_stake_ns == 2 * 5 + 2 * 8  # the first time it had to move; what a kernel hid is not counted
    assert finding.text == (
        "Page faults moved 384 B of managed memory, 256 B of it to where it had been before; the busiest page went "
        "there and back 3 times. For 16 ns kernels ran while page faults of the GPU were handled. "
        "More may follow where the host waits for page faults of its own."
    )


def test_once_there_and_back_is_no_thrash():
    assert "unified-memory-thrash" not in found(report(there_and_back(1)))


def test_moving_other_pages_is_no_thrash():
    events = [move((100 * at, 100 * at + 5), at << 12, 64) for at in range(20)]
    events += [move((100 * at + 50, 100 * at + 55), at << 12, 64, "Device-to-Host") for at in range(20)]
    assert "unified-memory-thrash" not in found(report(events))


def test_what_the_program_asked_for_is_neither():
    events = [
        move((100 * at, 100 * at + 5), 4096, 64, ("Host-to-Device", "Device-to-Host")[at % 2], "User prefetch")
        for at in range(20)
    ]
    assert found(report(events)) == {}


def test_a_full_device_thrashes_too():
    events = [move((100 * at, 100 * at + 5), 4096, 64) for at in range(0, 20, 2)]
    events += [move((100 * at, 100 * at + 5), 4096, 64, "Device-to-Host", "Eviction") for at in range(1, 20, 2)]
    finding = found(report(events))["unified-memory-thrash"]
    assert finding.at_stake_ns == 18 * 5
    assert "The device had no room for 640 B. " in finding.text


def test_many_copies_by_page_faults_want_a_prefetch():
    events = [kernel(0, 100), fault(0, 30, 0), fault(20, 50, 4096), fault(90, 120, 8192)]
    events += [move((100 + 10 * at, 105 + 10 * at), at << 12, 64) for at in range(8)]
    events += [move((200, 300), 1 << 30, 2 << 20, cause="User prefetch")]
    finding = found(report(events))["unified-memory-prefetch"]
    assert finding.at_stake_ns == 8 * 5 + 50 + 10
    assert finding.text == (
        "Page faults moved 512 B of managed memory in 8 copies of 64 B on average, at 12.80 GB/s, prefetched memory at "
        "20.97 TB/s. For 60 ns kernels ran while page faults of the GPU were handled. "
        "More may follow where the host waits for page faults of its own."
    )


def test_in_iterations_counts_and_times_are_told_as_the_time_at_stake_is():
    events = [kernel(at, at + 20) for at in range(0, 3_000, 100)]
    events += [fault(at + 2, at + 10, 4096 * at) for at in range(0, 3_000, 100)]
    events += [move((at + 4, at + 9), 4096 * at, 64) for at in range(0, 3_000, 100)]
    finding = found(report(events).narrow(window=Window(0, 3_000, count=3, each="step")))["unified-memory-prefetch"]
    assert finding.at_stake_ns == 240
    assert finding.headline == "Managed memory moves in 10 copies a step by page faults"
    assert finding.text.startswith(
        "Page faults moved 1.920 kB of managed memory in all, in 10 copies a step of 64 B on"
    )
    assert "For 80 ns a step kernels ran while page faults" in finding.text


def test_a_few_copies_want_none():
    assert found(report([move((10 * at, 10 * at + 5), at << 12, 64) for at in range(7)])) == {}


def test_faults_of_another_device_stall_nothing_here():
    events = [*there_and_back(8), kernel(0, 800, device=1)]
    stakes = {one.device: one.at_stake_ns for one in unified_memory(report(events)) if "prefetch" in one.rule}
    assert stakes == {0: 8 * 5 + 8 * 8}


def test_a_window_cuts_what_is_at_stake():
    finding = found(report(there_and_back(8)).narrow(window=Window(5, 732)))["unified-memory-prefetch"]
    assert finding.at_stake_ns == 7 * 5 + 2 + 7 * 8 + 5


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("thrash", {"unified-memory-thrash"}),
        ("add_um", {"unified-memory-prefetch"}),
        ("findings_clean", set()),
        ("memory", set()),
        ("torch", set()),
    ],
)
def test_real_reports_that_have_it_and_that_have_not(name, rules):
    assert {one.rule for one in ranked(report_of(name)) if one.rule.startswith("unified-memory")} == rules
