"""Which calls a kernel was launched for, and which shift of like collectives fits."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.communication._matching import SIZE_BITS, Sequence, _shift
from kanalyze.analyses.communication._recorded import sums_of_calls

CALLS = {
    "process_id": pl.Int64, "thread_id": pl.Int64, "start_ns": pl.Int64, "kind": pl.String, "group": pl.String,
    "size": pl.Int64, "own": pl.Int64, "peer": pl.Int64, "root": pl.Int64, "bytes": pl.Int64,
}  # fmt: skip
KERNELS = {
    "process_id": pl.Int64, "thread_id": pl.Int64, "event_id": pl.Int64, "device": pl.Int64, "kind": pl.String,
    "call_start": pl.Int64,
}  # fmt: skip


def call(at, kind="all_reduce", bytes_=100, **where):
    said = {"own": 0, "peer": None, "thread": 1, **where}
    return {
        "process_id": 1, "thread_id": said["thread"], "start_ns": at, "kind": kind, "group": "g", "size": 4,
        "own": said["own"], "peer": said["peer"], "root": None, "bytes": bytes_,
    }  # fmt: skip


def launched(at, event, *, device=0, kind="all_reduce", thread=1):
    return {
        "process_id": 1, "thread_id": thread, "event_id": event, "device": device, "kind": kind, "call_start": at,
    }  # fmt: skip


def told(calls, kernels):
    found = sums_of_calls(pl.DataFrame(calls, schema=CALLS), pl.DataFrame(kernels, schema=KERNELS))
    return {row["event_id"]: row for row in found.iter_rows(named=True)}


def test_a_call_is_that_of_the_next_kernel_of_its_thread():
    found = told(
        [call(0, bytes_=1), call(10, bytes_=2), call(11, bytes_=4, thread=2)],
        [launched(1, 7), launched(12, 8), launched(20, 9, thread=2)],
    )
    assert {event: row["in_bytes"] for event, row in found.items()} == {7: 1, 8: 2, 9: 4}


def test_calls_that_do_not_share_out_evenly_tell_no_size():
    assert told([call(0), call(1), call(2)], [launched(4, 7, device=0), launched(5, 8, device=1)]) == {}


def send_recv(*calls):
    """What is told of a kernel of some sends and receives: kind, source, target, in_bytes, out_bytes."""
    made = [call(at, way, size, own=2, peer=peer) for at, (way, size, peer) in enumerate(calls)]
    row = told(made, [launched(99, 7, kind="send_recv")])[7]
    return tuple(row[name] for name in ("kind", "source", "target", "in_bytes", "out_bytes"))


def test_what_goes_between_two_ranks_is_theirs():
    assert send_recv(("send", 30, 1), ("recv", 40, 1)) == ("send_recv", 1, 2, 30, 40)
    assert send_recv(("send", 30, 1), ("recv", 40, 3)) == ("send_recv", None, None, 30, 40)
    assert send_recv(("send", 30, 1)) == ("send", 2, 1, 30, None)
    # to all others and from one of them
    assert send_recv(("send", 9, 1), ("send", 9, 3), ("send", 9, 0), ("recv", 9, 1))[0] == "send_recv"


GROUPS = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.integers(1, 1_000), min_size=1, max_size=3)), min_size=1, max_size=5
)


@pytest.mark.slow
@given(GROUPS)
def test_each_gpu_of_a_group_has_its_own_calls(groups):
    """A model apart: in each group the GPUs call the same sizes one GPU after the other, and each runs one kernel."""
    calls, kernels, expected, at, event = [], [], {}, 0, 0
    for devices, sizes in groups:
        for _ in range(devices):
            for size in sizes:
                calls.append(call(at, bytes_=size))
                at += 1
        for device in range(devices):
            kernels.append(launched(at, event, device=device))
            expected[event] = sum(sizes)
            at, event = at + 1, event + 1
    assert {number: row["in_bytes"] for number, row in told(calls, kernels).items()} == expected


@pytest.mark.parametrize(
    ("peers", "size", "kind", "bytes_"),
    [
        ([0, 1, 2, 3], 4, "all_to_all", 360),  # as PyTorch does it, with what stays
        ([0, 2, 3], 4, "all_to_all", 360),
        ([0, 1], 2, "all_to_all", 180),
        ([0], 2, "send_recv", 90),  # as the stages of a pipeline do
        ([0, 2], 4, "send_recv", 180),
        ([0, 1, 2], 4, "send_recv", 270),
        ([0, 2, 3], None, "send_recv", 270),
    ],
)
def test_sends_to_and_receives_from_all_others_are_an_all_to_all(peers, size, kind, bytes_):
    """Of 90 bytes each."""
    calls = [call(at, way, 90, own=1, peer=peer) for at, peer in enumerate(peers) for way in ("send", "recv")]
    row = told([one | {"size": size} for one in calls], [launched(99, 7, kind="send_recv")])[7]
    assert (row["kind"], row["in_bytes"], row["out_bytes"]) == (kind, bytes_, bytes_)


EACH, STEPS = 3, 8


def alike(first_step=6, *, clock, numbered=True, lost=0):
    """A rank with so many like collectives in each of equal steps, which lost some at the beginning."""
    number = EACH * STEPS - lost
    start = (np.arange(number) + lost) * 1_000_000 + first_step * EACH * 1_000_000
    steps = first_step + (np.arange(number) + lost) // EACH
    together = np.ones(number, dtype=np.bool_)
    each = np.arange(number), np.full(number, 5), start, start + 500_000, together, together, ~together, ~together
    return Sequence(*each, clock, steps=(lambda: steps) if numbered else None)


@pytest.mark.parametrize(
    ("base", "other", "shift"),
    [
        # nothing tells equal steps apart: a clock may be off by a step
        ({"numbered": False}, {"numbered": False}, None),
        ({}, {}, 0),
        # what a rank lost at its beginning: within a step shifts by one collective leave most in another step
        *(({}, {"lost": lost}, lost) for lost in (1, 2, 3, 4)),
        # ranks that count their steps differently have none in common
        ({}, {"first_step": 60}, None),
        ({}, {"numbered": False}, None),
    ],
)
def test_numbers_of_steps_tell_shifts_apart(base, other, shift):
    assert _shift(alike(clock=0, **base), alike(clock=1, **other)) == shift


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [((2, 7), (2, 7), 0), ((2, 0), (2, 7), 0), ((2, 7), (2, 0), 0), ((2, 7), (2, 8), None), ((2, 0), (3, 7), None)],
)
def test_collectives_whose_size_one_rank_does_not_tell_are_the_same_by_their_kind(left, right, found):
    """Each a kind and a size in bytes, counted from 1 on."""
    sides = [
        alike(clock=clock)._replace(what=np.full(EACH * STEPS, (kind << SIZE_BITS) + size))
        for clock, (kind, size) in enumerate((left, right))
    ]
    assert _shift(*sides) == found
