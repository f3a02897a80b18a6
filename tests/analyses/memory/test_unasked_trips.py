"""Round trips of unified memory that nobody asked for, by device: against a model that follows every byte."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.memory import unified_memory
from kanalyze.analyses.memory._unified_moves import pages
from support.build import call, kernel, memcpy, report
from support.nsys_csv import report_of
from support.real_reports import real_report
from support.strategies import FEWER

FAULT, ASKED, FULL = "Page fault", "User prefetch", "Eviction"


def move(start, address, size, to, cause=FAULT, **where):
    way = "Host-to-Device" if to == "device" else "Device-to-Host"
    side = {"address": address, "migration_cause": cause}
    return memcpy(start, start + 1, direction=f"Unified {way}", side=side, size_bytes=size, **where)


def trips(*moves):
    events = [move(at, 0, 4, to, cause, device=device) for at, (to, cause, device) in enumerate(moves)]
    return dict(pages(report(events)).unasked.rows())


@pytest.mark.parametrize(
    ("there", "back", "expected"),
    [(FAULT, FAULT, {0: 3}), (FAULT, FULL, {0: 3}), (ASKED, FAULT, {0: 3}), (FAULT, ASKED, {0: 2}), (ASKED, ASKED, {})],
)
def test_a_trip_counts_where_an_unasked_copy_ends_it(there, back, expected):
    assert trips(*[("device", there, 0), ("host", back, 0)] * 3) == expected


def test_each_device_has_its_own():
    rounds = [("device", FAULT, 0), ("host", FAULT, 0)] * 3 + [("device", FAULT, 1), ("host", FAULT, 1)] * 2
    assert trips(*rounds) == {0: 3, 1: 2}


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
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from(["device", "host"]),
        st.sampled_from([FAULT, FAULT, ASKED, FULL, "Speculative prefetch", None]),
        device=st.sampled_from([0, 0, 1]),
        process=st.sampled_from([1, 1, 2]),
    ),
    max_size=14,
)


def slowly(events):
    """The most unasked returns of any byte to one place, by device."""
    moved = defaultdict(list)
    for _, event in sorted(enumerate(events), key=lambda pair: (pair[1].start, pair[0])):
        ends = (event.device, "host") if "Device-to-Host" in event.direction else ("host", event.device)
        address = event.side["address"]
        for byte in range(address, address + event.size_bytes):
            moved[event.process, byte].append((*ends, event.device, event.side["migration_cause"]))
    most = Counter()
    for line in moved.values():
        runs = [line[0], *(after for before, after in pairwise(line) if after[1] != before[1])]
        stops = [runs[0][0], *(to for _, to, _, _ in runs)]
        returns = Counter()
        for at, (_, to, device, cause) in enumerate(runs[1:], 2):
            if stops[at] == stops[at - 2] and cause not in (ASKED, None):
                returns[device, to] += 1
        for (device, _), count in returns.items():
            most[device] = max(most[device], count)
    return dict(most)


@given(MOVES)
@FEWER
def test_unasked_trips_equal_the_model(events):
    assert dict(pages(report(events)).unasked.rows()) == slowly(events)


def test_nothing_moved_is_no_trip():
    assert pages(real_report(report_of("thrash").meta.path).narrow(window="..1ns")).unasked.is_empty()
