"""What each operation and call waited for; the critical path, whose pieces sum to the window; and slack beside it."""

import pytest

from kanalyze import read
from kanalyze.analyses.replay._changes import with_durations
from kanalyze.analyses.replay._graph import dependencies
from kanalyze.analyses.replay._network import as_recorded, host_line, replayed
from kanalyze.analyses.replay.critical_path import RUNNING, critical_path, ending, path, slack, span, way_of
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report, timeline
from support.command import ROOT
from support.slow_path import SlowPath
from support.slow_replay import TURNS, simulated
from support.strategies import EVENTS, WINDOWS, slow_given


def _segments(*events, **where):
    rows = critical_path(report(events), segments=True, **where)
    return list(zip(rows["start_ns"], rows["dur_ns"], rows["cause"], rows["name"], strict=True))


def test_a_device_that_waits_for_the_host():
    assert _segments(
        *timeline("0-2 cudaLaunchKernel #1; 10-12 cudaLaunchKernel #2; 3-5 kernel:a #1; 13-15 kernel:b #2; 4-9 [data]"),
    ) == [
        (0, 2, "launch", "cudaLaunchKernel"),
        (2, 2, "host", "between cudaLaunchKernel and data"),
        (4, 5, "host", "data"),
        (9, 1, "host", "between data and cudaLaunchKernel"),
        (10, 2, "launch", "cudaLaunchKernel"),
        (12, 1, "launch latency", "b"),
        (13, 2, "kernel", "b"),
    ]


@pytest.mark.parametrize(
    ("begin", "causes"),
    [(91_000, ["host", "call"]), *((at, ["launch latency", "kernel", "return of a wait"]) for at in (20_000, 89_000))],
)
def test_a_wait_for_a_stream_that_is_not_recorded_is_one_for_what_ended_in_it(begin, causes):
    """As in traces."""
    launches = timeline("0-1000 cudaLaunchKernel #1; 2000-90000 kernel:a #1; 96000-97000 cudaLaunchKernel #2")
    found = _segments(
        *launches, kernel(98_000, 100_000, name="b", correlation=2), call("cudaStreamSynchronize", begin, 92_000)
    )
    assert [cause for _, _, cause, _ in found] == ["launch", *causes, "host", "launch", "launch latency", "kernel"]


def test_per_iteration():
    made = report([call("cudaLaunchKernel", 0, 2, correlation=1), kernel(2, 10, correlation=1)])
    rows = critical_path(made, window=Window(0, 10, count=4, each="step"))
    assert rows.select("cause", "ns", "each_ns", "share").rows() == [("kernel", 8, 2, 0.8), ("launch", 2, 0.5, 0.2)]


def test_groupings():
    made = report(timeline("0-2 cudaLaunchKernel #1; 2-10 kernel:a #1; 3-9 kernel:b s8; 0-20 [outer]"))
    kernels = critical_path(made, by="kernel")
    assert kernels.select("name", "ns", "total_ns", "count").rows() == [("a", 8, 8, 1), ("b", 0, 6, 1)]
    assert critical_path(made, by="range").select("range", "ns", "device_ns").rows() == [("outer", 10, 8)]
    assert critical_path(made, by="rank").select("rank", "process_id", "ns").rows() == [(None, 1, 10)]
    assert critical_path(made, by="cause").equals(critical_path(made))
    with pytest.raises(CannotTellError):
        critical_path(made, by="operator")


def _same(made, rows):
    low, high = span(made)
    slow = SlowPath(made.whole)
    expected = []
    for start, end, cause, of in reversed(slow.pieces(slow.first(high), low, high)):
        row = of[1] if of and of[0] == "operation" else None
        called = of[1] if of and of[0] == "call" else None
        expected.append((start, end, cause, row, called))
    host = ["launch", "return of a wait", "call", "host"]
    found = []
    for piece in rows.rows(named=True):
        own = piece["row"]
        launches = piece["cause"] in host and own is None
        found.append((piece["start"], piece["end"], piece["cause"], own, piece["call"] if launches else None))
    assert [one[:4] for one in found] == [one[:4] for one in expected]


@slow_given(EVENTS, WINDOWS)
def test_pieces_cover_the_window_and_operations_are_on_it_while_they_run(events, window):
    made = report(events).narrow(window=Window(*window))
    if span(made) is None:
        return
    rows, (low, high) = path(made), span(made)
    edges = [low, *rows["end"]] if rows.height else [high]
    assert edges[:-1] == rows["start"].to_list()
    assert edges[-1] == high
    assert (rows["end"] > rows["start"]).all()
    work = dependencies(made).operations
    for start, end, row in rows.filter(RUNNING).select("start", "end", "row").iter_rows():
        assert work["start"][row] <= start < end <= work["end"][row]


@slow_given(TURNS, WINDOWS)
def test_pieces_of_programs_are_those_of_the_slow_walk(turns, window):
    whole = simulated(turns).report
    _same(whole, path(whole))
    cut = whole.narrow(window=Window(window[0], None))
    if span(cut) == (window[0], span(whole)[1]):
        _same(cut, path(cut))


@pytest.mark.parametrize("name", ["add", "two_gpus", "graph_node", "nvtx", "memory", "communicators"])
@pytest.mark.one_in(4)
def test_pieces_of_real_reports(name):
    made = read(ROOT / "tests" / "reports" / f"{name}.sqlite")
    _same(made, path(made))


@slow_given(TURNS)
def test_each_operation_leads_to_what_released_it(turns):
    _, made, released = simulated(turns, lags=(1, 1, 1))
    links = way_of(made, ending(made)).links
    for source, row in links.filter(what="start").select("source", "row").iter_rows():
        what, before = links.select("what", "row").row(source)
        found = before if what == "start" else "launch"
        assert found in released[row], (row, found, released[row])


def test_after_the_last_operation_is_what_the_host_did():
    made = report(timeline("0-2 cudaLaunchKernel #1; 3-8 kernel:a #1; 0-20 [outer]")).narrow(window=Window(0, 12))
    assert [(one["cause"], one["end"]) for one in path(made).rows(named=True)] == [("launch", 2), ("host", 12)]


def test_beside_the_path():
    made = report(
        timeline(
            """
            0-1 cudaLaunchKernel #1; 1-2 cudaLaunchKernel #2; 2-50 cudaDeviceSynchronize; 2-48 kernel:long #1
            3-10 kernel:short #2 s8
            """
        )
    )
    rows = critical_path(made, by="kernel").select("name", "ns", "slack_ns", "median_slack_ns").rows()
    assert rows == [("long", 46, 0, 0), ("short", 0, 38, 38)]


def test_of_a_host_that_is_never_held_up():
    made = report(
        timeline(
            """
            0-2 cudaLaunchKernel #1; 10-12 cudaLaunchKernel #2; 20-22 cudaLaunchKernel #3; 3-5 kernel:a #1
            13-15 kernel:b #2; 23-30 kernel:c #3
            """
        )
    )
    # no kernel was ever released by the stream, whose lag is taken as that of a launch; b can use up its room, not a's
    assert slack(made).to_list() == [14, 7, 0]


def test_the_slack_of_a_kernel_is_the_least_of_its_launches_and_their_median():
    launches = [call("cudaLaunchKernel", at, at + 2, correlation=at) for at in (1, 11, 21)]
    made = report(
        [*launches, *(kernel(at + 2, end, name="k", correlation=at) for at, end in ((1, 5), (11, 15), (21, 30)))]
    )
    assert critical_path(made, by="kernel").select("count", "slack_ns", "median_slack_ns").rows() == [(3, 0, 8)]


@slow_given(TURNS)
def test_one_more_moves_the_end(turns):
    made = simulated(turns).report
    net, found = ending(made).network, slack(made)
    recorded = as_recorded(net)
    for row, free in enumerate(found.to_list()):
        for more in (free, free + 1):
            longer = recorded.values.durations.clone().scatter(row, recorded.values.durations[row] + more)
            moved = replayed(net, with_durations(net, recorded, longer))[-1] > net.end
            assert moved == (more > free), (row, free)


def _graph(*events, **tables):
    return dependencies(report(events, **tables))


def test_nested_calls_count_as_the_outermost():
    graph = _graph(
        *timeline("0-9 cudaLaunchKernel; 2-5 cuLaunchKernel #1; 6-8 cuStreamSynchronize; 10-12 cudaLaunchKernel"),
        kernel(3, 7, correlation=1),
    )
    assert graph.calls["outer"].to_list() == [0, 0, 0, 3]
    assert graph.operations["call"].to_list() == [0]
    assert graph.calls["process_before"].to_list() == [None, None, None, 0]
    assert graph.calls["kind"].to_list()[0] == "wait"


def test_a_recorded_event_and_one_that_is_not():
    events = timeline(
        """
        0-1 cudaLaunchKernel #1; 1-2 cudaEventRecord #2; 2-3 cudaStreamWaitEvent #3; 3-4 cudaLaunchKernel #4
        2-9 kernel #1; 10-12 kernel #4 s8
        """
    )
    waited = host("sync", "Stream wait sync", 2, 3, stream=8, context=1, correlation=3, side={"record_id": 5})
    records = [{"process_id": 1, "context_id": 1, "stream": 7, "correlation_id": 2, "record_id": 5}]
    told = _graph(*events, waited, event_records=records)
    assert told.operations["event_before"].to_list() == [None, 0]
    assert _graph(*events).operations["event_before"].to_list() == [None, 0]


def test_nodes_of_a_graph_wait_for_what_the_report_says_they_depend_on():
    """Two streams that are joined: the second of them runs beside the first, and not behind it."""
    events = [call("cudaGraphLaunch", 0, 10, correlation=1)]
    spans = [(20, 30, 7, None), (35, 50, 8, None), (40, 60, 7, 1), (60, 70, 7, 2)]
    for start, end, stream, after in spans:
        events.append(kernel(start, end, stream=stream, correlation=1, side={"after_id": after}))
    other = [call("cudaGraphLaunch", 80, 90, correlation=2)]
    other += [kernel(start, start + 5, stream=7, correlation=2) for start in (100, 110)]
    graph = dependencies(report([*events, *other]))
    assert graph.operations["graph_before"].to_list() == [None, None, 0, 1, None, 4]


def test_migrations_take_no_part():
    made = report(
        [
            memcpy(2, 6, stream=None, side={"migration_cause": "GPU page fault"}),
            *timeline("0-1 cudaLaunchKernel #1; 1-5 kernel #1; 1-8 cudaDeviceSynchronize"),
        ]
    )
    graph = dependencies(made)
    assert graph.operations["stream"].to_list()[0] is None
    assert host_line(made, graph).waits.rows() == [(1, 1)]


@slow_given(EVENTS)
def test_edges_lead_to_what_was_over_and_never_round(events):
    made = report(events)
    graph = dependencies(made)
    work, calls, line = graph.operations.rows(named=True), graph.calls.rows(named=True), host_line(made, graph)
    assert all(row["start"] <= row["end"] for row in (*work, *calls))
    for row, one in enumerate(work):
        for column in ("stream_before", "graph_before", "event_before"):
            if one[column] is not None:
                other = work[one[column]]
                assert (other["start"], other["end"], one[column]) < (one["start"], one["end"], row)
                assert column == "stream_before" or other["end"] <= one["start"]
    for row, one in enumerate(calls):
        before = one["process_before"]
        if before is not None:
            other = calls[before]
            assert other["end"] <= one["start"]
            assert (other["end"], -other["start"], -before) < (one["end"], -one["start"], -row)
    for place, row in line.waits.iter_rows():
        assert work[row]["end"] <= line.calls["end"][place]
