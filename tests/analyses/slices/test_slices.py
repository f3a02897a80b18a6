"""All events of a report as slices on tracks."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.slices.slices import slices
from kanalyze.errors import CannotTellError
from support.command import REPORTS, SAMPLES

READ = {
    "nsys": REPORTS / "add_um.sqlite",
    "graphs": REPORTS / "graph_node.sqlite",
    "two gpus": REPORTS / "two_gpus.sqlite",
    "torch": SAMPLES / "gelu" / "torch.json.gz",
}


@pytest.fixture(params=READ)
def report(request):
    return kanalyze.read(READ[request.param])


def test_every_event_is_a_slice_with_its_times(report):
    events, found = report.events, slices(report).slices
    joined = events.join(found, on="event_id")
    assert joined.height == events.height == found.height
    closed = joined.filter(~pl.col("open"))
    assert (closed["start"] == closed["start_ns"]).all()
    assert (closed["end"] == closed["start_ns"] + closed["dur_ns"]).all()
    assert found["open"].sum() == events["dur_ns"].null_count()


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
    launched = slices(report).slices.drop_nulls("launch_id")
    assert launched.height > 0
    for work, call in ((known[work], known[call]) for work, call in launched.select("event_id", "launch_id").rows()):
        assert (work["correlation_id"], work["process_id"]) == (call["correlation_id"], call["process_id"])
        assert (work["device"] is None, call["kind"]) == (False, "api")


def test_a_part_has_what_overlaps_it_and_may_be_empty():
    report = kanalyze.read(SAMPLES / "mlp_train" / "nsys.sqlite")
    part = report.narrow(window="step#3")
    window = part.scope.window
    found = slices(part).slices
    assert found.height == part.events.height < report.events.height
    assert (found["end"] >= window.start_ns).all()
    nothing = slices(report.narrow(window="0ns..1ns"))
    assert (nothing.slices.height, nothing.tracks) == (0, [])


def test_counters_are_the_memory_in_use():
    (counter,) = slices(kanalyze.read(REPORTS / "add_um.sqlite")).counters
    assert (counter.label, counter.unit) == ("Managed in use", "bytes")
    assert counter.points["value"].to_list()[-1] == 0
    assert counter.points["value"].max() == 8_388_608


def test_a_report_without_times_has_none():
    with pytest.raises(CannotTellError):
        slices(kanalyze.read(REPORTS / "ncu" / "add.details.csv"))
