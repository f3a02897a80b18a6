"""All events of a report as slices on tracks, and lanes in which slices nest, held against stacks."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.timeline._slices import _placed, edges, lanes, slices
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report

READ = {
    "nsys": REPORTS / "add_um.sqlite",
    "graphs": REPORTS / "graph_node.sqlite",
    "two gpus": REPORTS / "two_gpus.sqlite",
    "torch": SAMPLES / "gelu" / "torch.json.gz",
}


@pytest.fixture(scope="module", params=READ)
def report(request):
    return real_report(READ[request.param])


@pytest.mark.one_in(4)
def test_every_event_is_a_slice_with_its_times(report):
    events, found = report.events, slices(report).slices
    joined = events.join(found, on="event_id")
    assert joined.height == events.height == found.height - found["event_id"].null_count()
    closed = joined.filter(~pl.col("open"))
    assert (closed["start"] == closed["start_ns"]).all()
    assert (closed["end"] == closed["start_ns"] + closed["dur_ns"]).all()
    assert found["open"].sum() == events["dur_ns"].null_count()


@pytest.mark.one_in(3)
def test_tracks_are_threads_and_streams(report):
    made, events = slices(report), report.events
    threads = {(track.process, track.thread) for track in made.tracks if track.of == "thread"}
    expected = events.filter(pl.col("thread_id").is_not_null(), ~pl.col("kind").is_in(["kernel", "memcpy", "memset"]))
    assert threads == {*expected.select("process_id", "thread_id").unique().iter_rows()}
    streams = {(track.process, track.device, track.stream) for track in made.tracks if track.of == "stream"}
    work = events.filter(pl.col("kind").is_in(["kernel", "graph", "memcpy", "memset"]))
    assert streams == {*work.select("process_id", "device", "stream").unique().iter_rows()}
    assert len({(track, track.label) for track in made.tracks}) == len(made.tracks)


def test_launches_are_calls_of_one_correlation(report):
    known = {row["event_id"]: row for row in report.events.iter_rows(named=True)}
    found = slices(report).slices
    launched, calls = found.drop_nulls("launch"), found["event_id"]
    assert launched.height > 0
    for work, call in ((known[work], known[calls[at]]) for work, at in launched.select("event_id", "launch").rows()):
        assert (work["correlation_id"], work["process_id"]) == (call["correlation_id"], call["process_id"])
        assert (work["device"] is None, call["kind"]) == (False, "api")


def test_a_part_has_what_overlaps_it_and_may_be_empty():
    report = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    part = report.narrow(window="step#3")
    window = part.scope.window
    found = slices(part).slices
    assert found["event_id"].count() == part.events.height < report.events.height
    assert (found["end"] >= window.start_ns).all()
    nothing = slices(report.narrow(window="0ns..1ns")).slices
    assert {*nothing["kind"].unique()} == {"ledger", "critical path"}


def test_the_ledger_is_a_track_of_its_own(report):
    made = slices(report)
    for device, bucket, ns in kanalyze.ledger(report).group_by("device", "bucket").agg(pl.col("ns").sum()).iter_rows():
        (track,) = (at for at, one in enumerate(made.tracks) if (one.of, one.device, one.lane) == ("ledger", device, 0))
        own = made.slices.filter(pl.col("track") == track)
        outer = own.filter(pl.col("start") >= pl.col("end").cum_max().shift(1).fill_null(0))
        assert outer.filter(pl.col("name") == bucket).select((pl.col("end") - pl.col("start")).sum()).item() == ns
    assert not [track for track in made.tracks if track.of == "ledger" and track.lane]


def test_iterations_are_a_track_of_their_own():
    report = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    made = slices(report).slices.filter(pl.col("kind") == "iterations")
    expected = kanalyze.iterations(report).sort("start_ns")
    assert made["start"].sort().to_list() == expected["start_ns"].to_list()
    assert "step 42" in made["name"].to_list()


def test_counters_are_the_memory_in_use():
    (counter,) = slices(real_report(REPORTS / "add_um.sqlite")).counters
    assert (counter.label, counter.unit) == ("Managed in use", "bytes")
    assert counter.points["value"].to_list()[-1] == 0
    assert counter.points["value"].max() == 8_388_608


slices_nested_lanes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=14)


def sorted_slices(drawn):
    rows = sorted(((track, start, start + dur) for track, start, dur in drawn), key=lambda row: (*row[:2], -row[2]))
    schema = {"track": pl.UInt32, "start": pl.Int64, "end": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@given(slices_nested_lanes)
def test_lanes_are_those_of_going_slice_by_slice(drawn):
    line = sorted_slices(drawn)
    assert lanes(line).to_list() == _placed(line)  # the model of the other


@given(slices_nested_lanes)
def test_each_end_closes_what_was_opened_last(drawn):
    line = sorted_slices(drawn)
    line = line.with_columns(lanes(line)).sort("track", "lane", maintain_order=True)
    line = line.with_columns(track=pl.struct("track", "lane").rank("dense").cast(pl.UInt32))
    opened, seen, before = {}, 0, {}
    for track, t, row, begins in edges(line).iter_rows():
        assert t >= before.get(track, t)
        before[track] = t
        stack = opened.setdefault(track, [])
        if begins:
            assert line.item(row, "start") == t
            stack.append(row)
            seen += 1
        else:
            assert stack.pop() == row
            assert line.item(row, "end") == t
    assert seen == line.height
    assert not any(opened.values())
