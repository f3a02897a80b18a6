"""Streams that the default stream keeps apart: what must raise the finding, and what must not."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.findings.rules.concurrency import default_stream
from kanalyze.analyses.idle.ledger import ledger
from support.build import call, kernel, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"
US = 1000
SMALL = {"sm_count": 2, "max_warps_per_sm": 2, "threads_per_warp": 32}


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


@pytest.mark.parametrize(
    "types",
    [
        streams(s7="null", s13="non-blocking"),
        streams(s7="blocking", s13="blocking"),
        streams(s7=None, s13="blocking"),
        [],
    ],
    ids=["non-blocking", "no default stream", "type not known", "no streams known"],
)
def test_streams_that_the_default_stream_does_not_hold(types):
    assert default_stream(report(TURNS, streams=types, limits=SMALL)) == []


def test_one_stream_alone():
    events = in_turn((7, 40), (7, 30), (7, 20))
    assert default_stream(report(events, streams=streams(s7="null"), limits=SMALL)) == []


def test_an_order_that_was_asked_for():
    events = [*TURNS, *(call("cudaStreamWaitEvent", at * US + 800, at * US + 900) for at in range(4))]
    assert default_stream(report(events, streams=streams(s7="null", s13="blocking"), limits=SMALL)) == []


def test_kernels_that_fill_the_gpu():
    events = in_turn((13, 40), (7, 30), (13, 40), (7, 30))
    full = {**SMALL, "sm_count": 1, "max_warps_per_sm": 1}
    assert default_stream(report(events, streams=streams(s7="null", s13="blocking"), limits=full)) == []


def test_the_window_holds_only_its_part():
    of = report(TURNS, streams=streams(s7="null", s13="blocking"), limits=SMALL)
    (found,) = default_stream(of.narrow(window="100us..150us"))
    assert found.at_stake_ns == 9 * US  # what the default stream ran in it
    assert default_stream(of.narrow(window="100us..140us")) == []


def test_the_report_made_for_it():
    report = real_report(REPORTS / "findings.sqlite")
    (found,) = default_stream(report)
    # ten rounds of 100 µs and 50 µs on the default stream, 100 µs on two blocking ones each
    assert abs(found.at_stake_ns - 2_000_000) < 20_000
    assert "(13, 15)" in found.text
    busy = ledger(report).filter(pl.col("bucket").cast(pl.String).is_in(["kernel", "memcpy"]))["ns"].sum()
    assert found.at_stake_ns <= busy


@pytest.mark.parametrize("name", ["findings_clean", "two_gpus", "nccl", "torch_node", "graph_node", "nvtx", "memory"])
def test_reports_without_it(name):
    assert default_stream(real_report(REPORTS / f"{name}.sqlite")) == []
