"""Tracks: lanes in which nothing overlaps, sums that lose nothing, launches that lead to their operations, counters."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.device.kernels import copies
from kanalyze.analyses.idle.ledger import utilisation
from kanalyze.analyses.iterations.iterations import iterations
from kanalyze.analyses.timeline import _tracks
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, kernel, launched, nvtx, report, timeline
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda pair: (pair[0], sum(pair))), max_size=40)


def lanes(spans):
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    frame = pl.DataFrame(ordered, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")
    return list(zip(ordered, _tracks.lanes_of_events(frame["start"], frame["end"]), strict=True))


def tracks_of(found):
    return {track.label: found.events.filter(pl.col("track") == number) for number, track in enumerate(found.tracks)}


@given(SPANS)
def test_nothing_overlaps_in_a_lane_and_what_is_inside_is_below(spans):
    found = lanes(spans)
    for lane in range(len(spans)):
        own = [span for span, at in found if at == lane]
        assert all(one[1] <= other[0] for one, other in pairwise(own))
    for (span, lane), (other, below) in pairwise(found):
        if other[1] <= span[1] and other[0] < span[1]:
            assert below > lane


def test_what_is_nested_too_deeply_has_no_lane():
    found = lanes([(at, 1000 - at) for at in range(_tracks.MOST_LANES + 3)])
    assert [lane for _, lane in found] == [*range(_tracks.MOST_LANES), None, None, None]


@given(SPANS, st.integers(1, 60))
def test_sums_lose_no_event_and_no_time(spans, most):
    rows = [(0, lane, *span, "kernel" if span[0] % 2 else "memcpy") for span, lane in lanes(spans)]
    schema = {"track": pl.UInt16, "lane": pl.UInt16, "start": pl.Int64, "end": pl.Int64, "tone": pl.Categorical}
    events = pl.DataFrame(rows, schema=schema, orient="row").with_columns(name=pl.format("{}", "start"))
    found = _tracks.reduced(events, 100, most)
    of_tone = ["track", "lane", "tone"]
    told = found.group_by(of_tone).agg(pl.col("covered_ns").sum(), pl.col("count").sum()).sort(of_tone)
    length = (pl.col("end") - pl.col("start")).sum()
    assert told.rows() == events.group_by(of_tone).agg(length, pl.len()).sort(of_tone).rows()
    assert (found["end"] - found["start"] >= found["covered_ns"]).all()
    assert found.filter(pl.col("count") == 1).filter(pl.col("end") - pl.col("start") != pl.col("covered_ns")).is_empty()
    assert len(events) > most or found.filter("several").is_empty()


def test_tracks_in_order_with_launches():
    events = "0-30 [step]; 2-9 [inner]; 3-5 cudaLaunchKernel_v7000 #4; 8-12 kernel:gemm #4; 9-15 kernel:copying s8"
    found = _tracks.timeline(report(timeline(events)), 1000)
    assert [track.label for track in found.tracks if track.kind != "iteration"] == [
        "critical path", "ledger", "stream 7", "stream 8", "ranges", "CUDA calls",
    ]  # fmt: skip
    own = tracks_of(found)
    shown = own["critical path"].select("start", "end", "name", "tone", "note").rows()
    assert shown == [(3, 9, "copying", "unknown", "unknown"), (9, 15, "copying", "kernel", "kernel")]
    assert own["ranges"].select("name", "lane").rows() == [("step", 0), ("inner", 1)]
    launched = own["stream 7"].row(0, named=True)
    assert found.events.row(launched["launch"], named=True)["name"] == "cudaLaunchKernel"
    assert own["stream 7"].get_column("note").to_list() != [None]
    assert own["CUDA calls"].get_column("tone").to_list() == ["launch"]
    assert (found.start_ns, found.end_ns, found.left_out, found.tracks_left_out) == (0, 30, 0, 0)


def test_a_window_is_all_that_is_shown():
    events = [kernel(0, 10), kernel(20, 30), nvtx("step", 0, 40), nvtx("mark", 25, 25)]
    found = _tracks.timeline(report(events).narrow(window=Window(5, 25)), 1000)
    assert (found.start_ns, found.end_ns) == (5, 25)
    assert found.events.select(pl.col("start").min(), pl.col("end").max()).row(0) == (5, 25)
    assert tracks_of(found)["stream 7"].select("start", "end").rows() == [(5, 10), (20, 25)]
    assert tracks_of(found)["ranges"]["name"].to_list() == ["step"]


def test_a_range_that_was_never_closed_ends_where_the_recording_does_whose_last_instant_is_shown():
    found = _tracks.timeline(
        report([kernel(0, 10), nvtx("step", 5, None), kernel(90, 100), nvtx("mark", 100, 100)]), 1000
    )
    ranges = tracks_of(found)["ranges"].select("name", "start", "end").rows()
    assert ranges == [("step", 5, 100), ("mark", 100, 100)]


def test_tracks_beyond_the_room_are_counted(monkeypatch):
    monkeypatch.setattr(_tracks, "MOST_TRACKS", 2)
    found = _tracks.timeline(report([kernel(0, 10), nvtx("one", 0, 5), nvtx("other", 0, 5, thread=9)]), 1000)
    assert (len(found.tracks), found.tracks_left_out) == (2, 3)


@pytest.mark.parametrize("most", [200, 2000])
def test_fewer_events_still_count_all(most):
    every = _tracks.timeline(real_report(SAMPLES / "mlp_train" / "nsys.sqlite"), 5000)
    found = _tracks.fewer(every, most)
    assert found.events.height < every.events.height
    of_tone = ["track", "lane", "tone"]
    sums = [
        one.events.group_by(of_tone).agg(pl.col("count", "covered_ns").sum(), pl.col("longest_ns").max()).sort(of_tone)
        for one in (every, found)
    ]
    assert sums[0].equals(sums[1])
    named = found.events.filter(pl.col("launch").is_not_null())
    assert named.height
    launches = found.events[named.get_column("launch")].get_column("tone").cast(pl.String).unique().to_list()
    assert launches == ["launch"]


def test_without_work_on_a_device_the_host_is_shown_and_of_nothing_there_is_none():
    found = _tracks.timeline(report([call("cudaFree", 0, 3)]), 10)
    assert [track.label for track in found.tracks] == ["CUDA calls"]
    assert found.events.get_column("tone").to_list() == ["allocation"]
    with pytest.raises(CannotTellError):
        _tracks.timeline(report([]), 10)


@pytest.mark.parametrize("name", ["mlp_train", "streams", "cdist", "launch_bound_graph"])
@pytest.mark.parametrize("most", [500, 100_000])
@pytest.mark.one_in(4)
def test_real_reports_whatever_may_be_drawn(name, most):
    found = _tracks.timeline(real_report(SAMPLES / name / "nsys.sqlite"), most)
    every = _tracks.timeline(real_report(SAMPLES / name / "nsys.sqlite"), 10**9)
    assert found.events.get_column("count").sum() == every.events.height
    assert found.events.height <= max(2 * most, 2 * found.events.select("track", "lane", "tone").n_unique())
    for _, lane in found.events.filter(~pl.col("several")).group_by("track", "lane"):
        assert (lane["start"].shift(-1) >= lane["end"]).drop_nulls().all()


def test_ranks_on_one_clock_keep_their_events_and_launches():
    events = [call("cudaLaunchKernel_v7000", 3, 5, correlation=4), kernel(8, 12, correlation=4)]
    one, other = _tracks.timeline(report(events), 100), _tracks.timeline(report([*events, nvtx("step", 0, 40)]), 100)
    found = _tracks.on_one_clock([("rank 0", 0, one), ("rank 1", 1000, other)])
    assert (found.start_ns, found.end_ns) == (one.start_ns, other.end_ns + 1000)
    assert [track.group for track in found.tracks] == [
        *(f"rank 0, {track.group}" for track in one.tracks),
        *(f"rank 1, {track.group}" for track in other.tracks),
    ]
    assert found.events.height == one.events.height + other.events.height
    later = found.events.tail(other.events.height)
    assert (later["start"] - 1000).to_list() == other.events["start"].to_list()
    for own in found.events.drop_nulls("launch").iter_rows(named=True):
        launch = found.events.row(own["launch"], named=True)
        assert launch["name"] == "cudaLaunchKernel"
        assert found.tracks[launch["track"]].group.split(",")[0] == found.tracks[own["track"]].group.split(",")[0]


def test_a_steady_iteration_stays_whole():
    report_of = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    few, every = _tracks.timeline(report_of, 2000), _tracks.timeline(report_of, 100_000)
    low, high = few.whole
    steady = iterations(report_of).filter(pl.col("kind") == "steady").select("start_ns", "dur_ns").rows()
    assert (low, high - low) in steady

    def inside(found):
        own = found.events.filter((pl.col("end") > low) & (pl.col("start") < high) & ~pl.col("several"))
        return own.select("track", "lane", "start", "end").sort(pl.all()).rows()

    assert few.events.get_column("several").any()
    assert inside(few) == inside(every)


def test_what_would_be_most_of_it_is_summed_as_all_else():
    rows = [(0, 0, at * 10, at * 10 + 5) for at in range(100)]
    events = pl.DataFrame(rows, schema=["track", "lane", "start", "end"], orient="row")
    events = events.with_columns(tone=pl.lit("kernel", dtype=pl.Categorical), name=pl.lit("k"))
    assert _tracks.reduced(events, 1000, 50, (0, 100)).filter(pl.col("start") < 100).height == 10
    assert _tracks.reduced(events, 1000, 50, (0, 900)).height == _tracks.reduced(events, 1000, 50).height


def test_memory_in_use_of_a_window_counts_what_was_allocated_before():
    whole = real_report(REPORTS / "memory.sqlite")
    every = [one for one in _tracks.timeline(whole, 1000).counters if one.unit == "bytes"]
    held = [at for one in every for (at, used), _ in pairwise(one.points.rows()) if used > 0]
    middle = held[len(held) // 2] + 1
    later = {
        (one.group, one.label): one.points.rows()
        for one in _tracks.timeline(whole.narrow(window=Window(middle, None)), 1000).counters
        if one.unit == "bytes"
    }
    assert later
    kept = {(one.group, one.label): [row for row in one.points.rows() if row[0] >= middle] for one in every}
    assert later == {place: rows for place, rows in kept.items() if rows}


MOVED = st.lists(st.tuples(st.integers(-20, 120), st.integers(0, 40), st.integers(1, 10**6)), min_size=1, max_size=12)


def brute(moved, from_ns, until_ns):
    """Bytes per second between two times, nanosecond by nanosecond."""
    told = 0.0
    for start, length, size in moved:
        long = max(length, 1)
        told += size / long * len(range(max(start, from_ns), min(start + long, until_ns)))
    return told / (until_ns - from_ns) * 1e9


@given(MOVED, st.integers(0, 40), st.integers(1, 80), st.integers(1, 30))
def test_bytes_are_spread_over_the_bins_they_moved_in(moved, low, length, width):
    rows = [(start, start + long, size) for start, long, size in moved]
    frame = pl.DataFrame(rows, schema=["start", "end", "size_bytes"], orient="row")
    found = _tracks.means(frame, low, low + length, width)
    starts = [*range(low, low + length, width)]
    expected = [brute(moved, at, min(at + width, low + length)) for at in starts]
    assert found.get_column("t_ns").to_list() == starts
    assert found.get_column("value").to_list() == pytest.approx(expected, rel=1e-6, abs=1)


def test_utilisation_and_bandwidth_of_a_real_report():
    found = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    drawn = {one.label: one for one in _tracks.counters(found, 0, 1 << 60)}
    table = utilisation(found, 2000)
    moved = copies(found).filter(pl.col("operation").str.contains("memcpy"))
    assert drawn["utilisation"].points.head(2000).get_column("value").to_list() == table["busy_share"].to_list()
    assert drawn["utilisation"].bin_ns == table.item(0, "dur_ns")
    told = [one for label, one in drawn.items() if label.startswith("copied ")]
    length = pl.col("t_ns").diff().shift(-1).fill_null(0)
    in_all = sum(one.points.select((pl.col("value") * length).sum()).item() / 1e9 for one in told)
    assert len(told) == moved.height == 3
    assert in_all == pytest.approx(moved.get_column("total_bytes").sum(), rel=1e-6)


def test_a_kernel_alone_has_utilisation_and_no_copies_and_without_devices_there_are_no_counters():
    labels = [one.label for one in _tracks.timeline(report([kernel(0, 10), kernel(30, 40)]), 100).counters]
    assert labels == ["utilisation"]
    assert [*_tracks.counters(real_report(REPORTS / "empty.sqlite"), 0, 1)] == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(-5, 30)), min_size=1, max_size=8))
def test_the_queue_holds_launches_that_returned_and_of_which_nothing_began(launches):
    events = []
    for at, (start, length, wait) in enumerate(launches, 1):
        begins = max(start + length + wait, start)
        events += launched(start, start + length, kernel(begins, begins + 3, correlation=at))
    every = {(one.group, one.label): one.points for one in _tracks.counters(report(events), 0, 1 << 60)}
    queue = every.get(("GPU 0", "launches in the queue"))
    value = 0 if queue is None else dict(queue.iter_rows())
    waiting = [(start + length, start + length + wait) for start, length, wait in launches if wait > 0]
    assert (queue is None) == (not waiting)
    held = 0
    for instant in range(120 if waiting else 0):
        held = value.get(instant, held)
        assert held == sum(low <= instant < high for low, high in waiting)


def test_the_launch_of_a_graph_is_in_the_queue_once():
    nodes = [kernel(start, start + 10, correlation=1) for start in (20, 30, 25)]
    events = [call("cudaGraphLaunch", 0, 10, correlation=1), *nodes]
    (queue,) = (one.points for one in _tracks.counters(report(events), 0, 99) if one.unit == "launches")
    assert [*queue.iter_rows()] == [(10, 1.0), (20, 0.0)]


def test_queues_stand_by_device():
    every = _tracks.counters(real_report(REPORTS / "two_gpus.sqlite"), 0, 1 << 60)
    assert [one.group for one in every if one.unit == "launches"] == ["GPU 0", "GPU 1"]
