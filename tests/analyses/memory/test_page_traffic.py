"""How often pages moved, and how often when nobody asked for it: against a model that follows every byte."""

from collections import Counter, defaultdict
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.memory import unified_memory
from kanalyze.analyses.memory import migrations
from kanalyze.analyses.memory.migrations import pages
from support.build import call, kernel, memcpy, report
from support.nsys_csv import report_of
from support.strategies import FEWER

FAULT, ASKED, FULL = "Page fault", "User prefetch", "Eviction"


def move(start, address, size, to, cause=FAULT, **where):
    way = "Host-to-Device" if to == "device" else "Device-to-Host"
    side = {"address": address, "migration_cause": cause}
    return memcpy(start, start + 1, direction=f"Unified {way}", side=side, size_bytes=size, **where)


def test_pages_are_followed_through_copies_of_any_size():
    events = [move(0, 0, 8, "device"), move(1, 4, 8, "host"), move(2, 0, 16, "device")]
    found = pages(report(events))
    assert found.again.rows() == [(0, 0), (1, 0), (2, 8)]
    assert found.pieces.select("start", "end", "round_trips", "on_device_ns").rows() == [
        (0, 4, 0, 0), (4, 8, 1, 0), (8, 12, 1, 2), (12, 16, 0, 2),
    ]  # fmt: skip


def test_copies_without_an_address_are_left_out():
    found = pages(report([move(0, None, 4, "device")]))
    assert found.pieces.is_empty()
    assert found.unasked.is_empty()


@pytest.mark.parametrize(
    ("there", "back", "expected"),
    [(FAULT, FAULT, {0: 3}), (FAULT, FULL, {0: 3}), (ASKED, FAULT, {0: 3}), (FAULT, ASKED, {0: 2}), (ASKED, ASKED, {})],
)
def test_a_trip_counts_where_an_unasked_copy_ends_it(there, back, expected):
    events = [move(at, 0, 4, to, cause) for at, (to, cause) in enumerate([("device", there), ("host", back)] * 3)]
    assert dict(pages(report(events)).unasked.rows()) == expected


def test_another_process_on_another_device_does_not_count():
    """Three moves of one page are no thrash, whatever the pages of another program do."""
    events = []
    for process, device, times in ((1, 0, 12), (2, 1, 3)):
        where = {"process": process, "device": device, "correlation": 1}
        events += [call("cudaLaunchKernel", 0, 100, process=process, correlation=1), kernel(200, 300, **where)]
        events += [
            move(1000 + 2000 * at, process << 30, 65536, ("device", "host")[at % 2], process=process, device=device)
            for at in range(times)
        ]
    found = [one for one in unified_memory(report(events)) if one.rule == "unified-memory-thrash"]
    assert [one.device for one in found] == [0]
    assert "the busiest page went there and back 6 times" in found[0].text


def test_of_twenty_rounds_ten_were_asked_for():
    (found,) = [one for one in ranked(report_of("thrash")) if one.rule == "unified-memory-thrash"]
    assert "the busiest page went there and back 10 times" in found.text


MOVES = st.lists(
    st.builds(
        move,
        st.integers(0, 20),
        st.integers(0, 12),
        st.integers(0, 6),
        st.sampled_from(["device", "host"]),
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
    with patch.object(migrations, "PARTS_AT_ONCE", batch):
        found = pages(report(events))
    rows = found.pieces.rows()
    assert dict(found.again.rows()) == again
    assert {(process, byte): n for process, start, end, n, _ in rows for byte in range(start, end)} == trips
    assert dict(found.unasked.rows()) == most
