"""How often pages moved: against a model that follows every page."""

from collections import defaultdict
from itertools import pairwise
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.memory import _unified_moves
from kanalyze.analyses.memory._unified_moves import pages
from support.build import memcpy, report
from support.strategies import FEWER


def move(start, address, size, to, **where):
    way = "Host-to-Device" if to == "device" else "Device-to-Host"
    return memcpy(start, start + 1, direction=f"Unified {way}", side={"address": address}, size_bytes=size, **where)


def trips(*places):
    """Round trips of one page that moves to these places, one after the other."""
    events = [move(at, 0, 4, to, device=device) for at, (to, device) in enumerate(places)]
    return pages(report(events)).pieces.get_column("round_trips").to_list()


DEVICE, HOST, OTHER = ("device", 0), ("host", 0), ("device", 1)


def test_there_is_no_round_trip_and_back_is_one():
    assert trips(DEVICE) == [0]
    assert trips(DEVICE, HOST) == [1]
    assert trips(DEVICE, HOST, DEVICE) == [1]
    assert trips(DEVICE, HOST, DEVICE, HOST) == [2]
    assert trips(HOST, DEVICE) == [1]


def test_moving_to_where_it_is_is_no_trip():
    assert trips(DEVICE, DEVICE, DEVICE) == [0]
    assert trips(DEVICE, DEVICE, HOST, HOST, DEVICE) == [1]


def test_passing_on_to_another_device_is_no_trip_back():
    assert trips(DEVICE, OTHER) == [0]
    assert trips(DEVICE, OTHER, DEVICE) == [1]


def test_pages_are_followed_through_copies_of_any_size():
    events = [move(0, 0, 8, "device"), move(1, 4, 8, "host"), move(2, 0, 16, "device")]
    found = pages(report(events))
    assert found.again.rows() == [(0, 0), (1, 0), (2, 8)]
    assert found.pieces.select("start", "end", "round_trips", "on_device_ns").rows() == [
        (0, 4, 0, 0),
        (4, 8, 1, 0),
        (8, 12, 1, 2),
        (12, 16, 0, 2),
    ]


def test_processes_do_not_share_addresses():
    found = pages(report([move(0, 0, 4, "device"), move(1, 0, 4, "device", process=2)]))
    assert found.again.get_column("again_bytes").to_list() == [0, 0]


def test_copies_without_an_address_are_left_out():
    assert pages(report([move(0, None, 4, "device")])).pieces.is_empty()


MOVES = st.lists(
    st.builds(
        move,
        st.integers(0, 9),
        st.integers(0, 12),
        st.integers(0, 6),
        st.sampled_from(["device", "host"]),
        device=st.sampled_from([0, 0, 1]),
        process=st.sampled_from([1, 1, 2]),
    ),
    max_size=12,
)


def slowly(events):
    """Bytes that moved again by event, and the round trips of every byte that moved."""
    again, moved = defaultdict(int), defaultdict(list)
    for number, event in sorted(enumerate(events), key=lambda pair: (pair[1].start, pair[0])):
        to_device = "Host-to-Device" in event.direction
        places = ("host", event.device) if to_device else (event.device, "host")
        address = event.side["address"]
        for byte in range(address, address + event.size_bytes):
            visited = moved[event.process, byte]
            again[number] += places[1] in [to for _, to in visited]
            visited.append(places)
    return dict(again), {byte: _trips(visited) for byte, visited in moved.items()}


def _trips(visited):
    runs = [visited[0], *(after for before, after in pairwise(visited) if after[1] != before[1])]
    stops = [runs[0][0], *(to for _, to in runs)]
    returns = sum(stops[at] == stops[at - 2] for at in range(2, len(stops)))
    return (returns + 1) // 2


@given(MOVES, st.sampled_from([1, 3, 1 << 20]))
@FEWER
def test_pages_equal_the_model(events, batch):
    again, round_trips = slowly(events)
    with patch.object(_unified_moves, "PARTS_AT_ONCE", batch):
        found = pages(report(events))
    assert dict(found.again.rows()) == again
    each = {
        (process, byte): count for process, start, end, count, _ in found.pieces.rows() for byte in range(start, end)
    }
    assert each == round_trips
