"""Work that the order of a stream, or the default stream's rule, keeps apart: what must raise it, what must not."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.findings.rules.launches import default_stream, serial_copy
from kanalyze.analyses.idle.ledger import ledger
from support.build import call, host, kernel, memcpy, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"
US = 1000
PINNED, PAGEABLE = {"source_memory": "Pinned"}, {"source_memory": "Pageable"}
TO_HOST = {"target_memory": "Pinned", "source_memory": "Device"}
SMALL = {"sm_count": 2, "max_warps_per_sm": 2, "threads_per_warp": 32}


def launched(number, made, *, at, name="cudaMemcpyAsync"):
    return [call(name, at, at + US, correlation=number), made]


def to_device(*, at=5 * US, name="cudaMemcpyAsync", **keys):
    """A kernel of 80 µs, then a copy of 30 µs to the device that was submitted at `at`."""
    copy = memcpy(101 * US, 131 * US, correlation=2, size_bytes=1 << 20, **{"side": PINNED, **keys})
    first = launched(1, kernel(20 * US, 100 * US, correlation=1), at=0, name="cudaLaunchKernel")
    return [*first, *launched(2, copy, at=at, name=name)]


def to_host(*, at, made=kernel):
    """A copy of 30 µs to the host, and a kernel of 80 µs behind it that was submitted at `at`."""
    copy = memcpy(100 * US, 130 * US, direction="Device-to-Host", correlation=1, side=TO_HOST)
    behind = launched(2, made(131 * US, 211 * US, correlation=2), at=at, name="cudaLaunchKernel")
    return [*launched(1, copy, at=0), *behind]


def test_a_copy_to_the_device_behind_a_kernel():
    (found,) = serial_copy(report(to_device()))
    assert (found.rule, found.device, found.at_stake_ns) == ("serial-copy", 0, 30 * US)
    assert found.text == (
        "1 copy of pinned memory, 1.049 MB, ran alone for 30.00 µs between kernels of the same stream (7); the host "
        "had submitted both by then, and only the stream's order kept them apart."
    )


def test_no_more_than_the_kernels_ran():
    first = launched(1, kernel(20 * US, 30 * US, correlation=1), at=0, name="cudaLaunchKernel")
    copy = memcpy(31 * US, 131 * US, correlation=2, side=PINNED)
    (found,) = serial_copy(report([*first, *launched(2, copy, at=3 * US)]))
    assert found.at_stake_ns == 10 * US


def test_a_copy_to_the_host_before_a_kernel_that_was_submitted_by_then():
    (found,) = serial_copy(report(to_host(at=5 * US)))
    assert found.at_stake_ns == 30 * US


def test_a_kernel_that_was_submitted_after_the_copy_may_depend_on_it():
    assert serial_copy(report(to_host(at=125 * US))) == []


@pytest.mark.parametrize(
    "events",
    [
        to_device(side=PAGEABLE),
        to_device(name="cudaMemcpy"),
        to_device(at=95 * US),
        to_device(stream=13),
        to_device(direction="Device-to-Host"),
        [*to_device(), kernel(90 * US, 140 * US, stream=13)],
        [*to_device(), call("cudaStreamWaitEvent", 4 * US, 5 * US)],
        [*to_device(), call("cudaStreamWaitEvent", 0, US, thread=2)],
        to_host(at=5 * US, made=memcpy),
    ],
    ids=["pageable", "blocking", "late", "own stream", "to host", "hidden", "ordered", "ordered at once", "no kernel"],
)
def test_copies_that_it_says_nothing_about(events):
    assert serial_copy(report(events)) == []


@pytest.mark.parametrize("own", [-5 * US, 4 * US])
def test_the_last_call_that_orders_the_stream_counts_whichever_stream_it_names(own):
    """One names the stream, and one before or after it does not say which: the later one was between the two."""
    other = 4 * US if own < 0 else -5 * US
    asked = [
        call("cudaStreamWaitEvent", own, own + US, correlation=50),
        host("sync", "Stream wait event", own, own + US, correlation=50, context=1, stream=7),
        call("cudaStreamWaitEvent", other, other + US, correlation=51),
    ]
    assert serial_copy(report([*to_device(), *asked])) == []
    early = [event for event in asked if event.start < 0]
    assert len(serial_copy(report([*to_device(), *early]))) == 1


def test_a_copy_that_other_work_hides_wholly_is_none_of_them():
    second = launched(3, kernel(140 * US, 200 * US, correlation=3), at=7 * US, name="cudaLaunchKernel")
    hidden = memcpy(201 * US, 231 * US, correlation=4, size_bytes=1 << 20, side=PINNED)
    behind = [*second, *launched(4, hidden, at=9 * US)]
    (both,) = serial_copy(report([*to_device(), *behind]))
    assert both.text.startswith("2 copies of pinned memory, 2.097 MB, ran alone for 60.00 µs")
    (one,) = serial_copy(report([*to_device(), *behind, kernel(200 * US, 240 * US, stream=13)]))
    assert one.text.startswith("1 copy of pinned memory, 1.049 MB, ran alone for 30.00 µs")


def test_the_window_cuts_the_time_at_stake():
    of = report(to_device())
    (found,) = serial_copy(of.narrow(window="50us..110us"))
    assert found.at_stake_ns == 9 * US
    assert serial_copy(of.narrow(window="..101us")) == []


def streams(**types):
    """The rows of `streams` for streams s7, s13…"""
    rows = [(int(name[1:]), kind) for name, kind in types.items()]
    return [{"process_id": 1, "context_id": 1, "stream": number, "type": kind} for number, kind in rows]


def in_turn(*turns):
    """Calls at once, then kernels one after the other: (stream, duration in µs) each."""
    events, at = [], 100 * US
    for number, (stream, dur_us) in enumerate(turns):
        events.append(call("cudaLaunchKernel", number * US, number * US + 500, correlation=number))
        events.append(kernel(at, at + dur_us * US, stream=stream, correlation=number, name="busy"))
        at += dur_us * US + US
    return events


TURNS = in_turn((13, 40), (7, 30), (13, 40), (7, 30))


def test_a_blocking_stream_and_the_default_stream_in_turn():
    (found,) = default_stream(report(TURNS, streams=streams(s7="null", s13="blocking"), limits=SMALL))
    # in order on either stream, 80 µs remain of 140 µs: the 60 µs of the default stream can be hidden
    assert (found.rule, found.device, found.at_stake_ns) == ("default-stream", 0, 60 * US)
    assert found.text == (
        "The default stream (7) and blocking streams (13) never run side by side: 3 operations of one were ready for "
        "110.0 µs while the other ran, and nothing but the default stream's rule is known to have held them. "
        "More may follow where the host waits for them."
    )
    assert found.table == "concurrency --by pair"


def test_what_the_default_stream_holds_back_waits_for_what_that_waited_for():
    rounds = in_turn(
        *[(stream, took) for _ in range(2) for stream in (13, 14) for took, stream in ((40, stream), (1, 7))]
    )
    of = report(rounds, streams=streams(s7="null", s13="blocking", s14="blocking"), limits=SMALL)
    (found,) = default_stream(of)
    # of 164 µs in all each blocking stream has 80: nearly all of the other one can be hidden, not 1 µs a kernel
    assert found.at_stake_ns == 84 * US


@pytest.mark.parametrize(
    ("events", "types", "limits"),
    [
        (TURNS, streams(s7="null", s13="non-blocking"), {}),
        (TURNS, streams(s7="blocking", s13="blocking"), {}),
        (TURNS, streams(s7=None, s13="blocking"), {}),
        (TURNS, [], {}),
        (in_turn((7, 40), (7, 30), (7, 20)), streams(s7="null"), {}),
        (
            [*TURNS, *(call("cudaStreamWaitEvent", at * US + 800, at * US + 900) for at in range(4))],
            streams(s7="null", s13="blocking"),
            {},
        ),
        (TURNS, streams(s7="null", s13="blocking"), {"sm_count": 1, "max_warps_per_sm": 1}),
    ],
    ids=[
        "non-blocking",
        "no default",
        "type not known",
        "no streams",
        "one stream",
        "asked for",
        "kernels that fill it",
    ],
)
def test_streams_that_the_default_stream_does_not_hold(events, types, limits):
    assert default_stream(report(events, streams=types, limits=SMALL | limits)) == []


def test_the_window_holds_only_its_part():
    of = report(TURNS, streams=streams(s7="null", s13="blocking"), limits=SMALL)
    (found,) = default_stream(of.narrow(window="100us..150us"))
    assert found.at_stake_ns == 9 * US  # what the default stream ran in it
    assert default_stream(of.narrow(window="100us..140us")) == []


def test_the_report_made_for_both():
    made = real_report(REPORTS / "findings.sqlite")
    (copies,), (turns,) = serial_copy(made), default_stream(made)
    # four of five copies wait for a kernel of 500 µs each
    assert abs(copies.at_stake_ns - 2_000_000) < 20_000
    # ten rounds of 100 µs and 50 µs on the default stream, 100 µs on two blocking ones each
    assert abs(turns.at_stake_ns - 2_000_000) < 20_000
    assert "(13, 15)" in turns.text
    busy = ledger(made).filter(pl.col("bucket").cast(pl.String).is_in(["kernel", "memcpy"]))["ns"].sum()
    assert turns.at_stake_ns <= busy


@pytest.mark.parametrize(
    ("rule", "name"),
    [(rule, name) for rule in (serial_copy, default_stream) for name in ("findings_clean", "torch_node", "nccl")]
    + [(serial_copy, name) for name in ("graph_graph", "thrash", "libraries")]
    + [(default_stream, name) for name in ("two_gpus", "graph_node", "nvtx", "memory")],
)
def test_reports_without(rule, name):
    assert rule(real_report(REPORTS / f"{name}.sqlite")) == []
