"""What each operation and call had to wait for."""

import pytest
from hypothesis import given

from kanalyze.analyses.critical._graph import BEFORE, dependencies, release
from support.build import call, host, kernel, memcpy, report
from support.strategies import EVENTS


def _graph(*events, **tables):
    return dependencies(report(events, **tables))


def test_launch_and_stream_order():
    graph = _graph(
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaLaunchKernel", 3, 5, correlation=2),
        kernel(4, 10, correlation=1),
        kernel(10, 20, correlation=2),
        kernel(11, 12, stream=8),
    )
    assert graph.operations["call"].to_list() == [0, 1, None]
    assert graph.operations["stream_before"].to_list() == [None, 0, None]
    assert release(graph, "call").to_list() == [2, 5, None]
    assert release(graph, "stream_before").to_list() == [None, 10, None]
    assert graph.calls["kind"].to_list() == ["launch", "launch"]
    assert graph.calls["process_before"].to_list() == [None, 0]


def test_an_operation_that_starts_before_its_call_ends_is_released_by_the_begin():
    graph = _graph(call("cudaLaunchKernel", 1, 9, correlation=1), kernel(4, 10, correlation=1), kernel(8, 20))
    assert release(graph, "call").to_list() == [1, None]
    assert release(graph, "stream_before").to_list() == [None, 4]


def test_a_blocking_call_waits_for_what_ended_in_it_last_and_releases_by_its_begin():
    graph = _graph(
        call("cudaMemcpy", 0, 9, correlation=1),
        memcpy(4, 9, correlation=1),
        call("cudaDeviceSynchronize", 10, 20, thread=2),
        kernel(5, 18, stream=8),
        kernel(3, 30, stream=9),
    )
    assert graph.calls["kind"].to_list() == ["wait", "wait"]
    assert graph.calls["waited_for"].to_list() == [0, 1]
    assert release(graph, "call").to_list() == [0, None, None]
    assert graph.calls["process_before"].to_list() == [None, 0]


def test_nested_calls_count_as_the_outermost():
    graph = _graph(
        call("cudaLaunchKernel", 0, 9),
        call("cuLaunchKernel", 2, 5, correlation=1),
        call("cuStreamSynchronize", 6, 8),
        call("cudaLaunchKernel", 10, 12),
        kernel(3, 7, correlation=1),
    )
    assert graph.calls["outer"].to_list() == [0, 0, 0, 3]
    assert graph.operations["call"].to_list() == [0]
    assert graph.calls["waited_for"].to_list() == [None, None, None, None]  # no device is known of that call's stream
    assert graph.calls["process_before"].to_list() == [None, None, None, 0]
    assert graph.calls["kind"].to_list()[0] == "wait"


_STREAMS = [
    {"process_id": 1, "context_id": 1, "stream": stream, "type": kind}
    for stream, kind in ((7, "null"), (8, "blocking"), (9, "non-blocking"))
]


def test_legacy_null_and_blocking_streams_wait_for_each_other():
    graph = _graph(
        kernel(0, 5, stream=8),
        kernel(0, 6, stream=9),
        kernel(7, 9, stream=7),
        kernel(10, 11, stream=9),
        kernel(12, 13, stream=8),
        streams=_STREAMS,
    )
    assert graph.operations["stream_before"].to_list() == [None, None, 0, 1, 2]


def test_a_recorded_event_and_one_that_is_not():
    events = [
        call("cudaLaunchKernel", 0, 1, correlation=1),
        call("cudaEventRecord", 1, 2, correlation=2),
        call("cudaStreamWaitEvent", 2, 3, correlation=3),
        call("cudaLaunchKernel", 3, 4, correlation=4),
        kernel(2, 9, correlation=1, stream=7),
        kernel(10, 12, correlation=4, stream=8),
    ]
    waited = host("sync", "Stream wait sync", 2, 3, stream=8, context=1, correlation=3, side={"record_id": 5})
    records = [{"process_id": 1, "context_id": 1, "stream": 7, "correlation_id": 2, "record_id": 5}]
    told = _graph(*events, waited, event_records=records)
    assert told.operations["event_before"].to_list() == [None, 0]
    assert told.operations["event_told"].to_list() == [False, True]
    guessed = _graph(*events)
    assert guessed.operations["event_before"].to_list() == [None, 0]
    assert guessed.operations["event_told"].to_list() == [False, False]


def test_nodes_of_a_graph_wait_for_nodes_of_the_same_launch():
    graph = _graph(
        call("cudaGraphLaunch", 0, 2, correlation=1),
        call("cudaGraphLaunch", 3, 4, correlation=2),
        kernel(3, 5, correlation=1, stream=7),
        kernel(3, 6, correlation=1, stream=8),
        kernel(6, 8, correlation=1, stream=7),
        kernel(9, 10, correlation=2, stream=7),
    )
    assert graph.operations["graph_before"].to_list() == [None, None, 1, None]


def test_migrations_take_no_part():
    graph = _graph(
        memcpy(2, 6, stream=None, side={"migration_cause": "GPU page fault"}),
        call("cudaLaunchKernel", 0, 1, correlation=1),
        kernel(1, 5, correlation=1),
        call("cudaDeviceSynchronize", 1, 8),
    )
    assert graph.operations["stream"].to_list()[0] is None
    assert graph.calls["waited_for"].to_list() == [None, 1]


@pytest.mark.slow
@given(EVENTS)
def test_edges_lead_to_what_was_over_and_never_round(events):
    graph = dependencies(report(events))
    work, calls = graph.operations.rows(named=True), graph.calls.rows(named=True)
    assert all(row["start"] <= row["end"] for row in (*work, *calls))
    for row, one in enumerate(work):
        for column in BEFORE:
            if one[column] is not None:
                other = work[one[column]]
                assert (other["start"], other["end"], one[column]) < (one["start"], one["end"], row)
                assert column == "stream_before" or other["end"] <= one["start"]
    for row, one in enumerate(calls):
        before, behind = one["process_before"], one["waited_for"]
        if before is not None:
            other = calls[before]
            assert other["end"] <= one["start"]
            assert (other["end"], -other["start"], -before) < (one["end"], -one["start"], -row)
        if behind is not None:
            assert one["start"] < work[behind]["end"] <= one["end"]


@given(EVENTS)
def test_orders_are_those_of_their_definitions(events):
    graph = dependencies(report(events))
    calls = graph.calls.with_row_index("row").rows(named=True)
    for one in calls:
        around = [
            (other["start"], -other["end"], other["row"])
            for other in calls
            if all(other[key] == one[key] for key in ("process_id", "thread_id"))
            and other["start"] <= one["start"] < one["end"] <= other["end"]
        ]
        assert one["outer"] == (min(around)[2] if around else one["row"])
    outermost = [one for one in calls if one["outer"] == one["row"]]
    for one in outermost:
        key = (one["end"], -one["start"], -one["row"])
        ended = [
            (other["end"], -other["start"], -other["row"])
            for other in outermost
            if other["process_id"] == one["process_id"] and other["end"] <= one["start"]
        ]
        expected = max((other for other in ended if other < key), default=None)
        assert one["process_before"] == (None if expected is None else -expected[2])


@given(EVENTS)
def test_streams_are_in_order(events):
    graph = dependencies(report(events))
    work = graph.operations.with_row_index("row").rows(named=True)
    for one in work:
        earlier = sorted(
            (other["start"], other["end"], other["row"])
            for other in work
            if other["stream"] == one["stream"]
            and (other["start"], other["end"], other["row"]) < (one["start"], one["end"], one["row"])
        )
        over = max((end for _, end, _ in earlier), default=0)
        if not earlier:
            assert one["stream_before"] is None
        elif over > one["start"]:
            assert one["stream_before"] == earlier[-1][2]
        else:
            assert work[one["stream_before"]]["end"] == over


def test_a_wait_for_a_stream_that_is_not_recorded():
    events = [
        call("cudaStreamSynchronize", 0, 20_000),
        kernel(2, 19_000),
        call("cudaStreamSynchronize", 20_000, 26_000),
        kernel(19_000, 24_000),
    ]
    assert _graph(*events).calls["waited_for"].to_list() == [0, None]
