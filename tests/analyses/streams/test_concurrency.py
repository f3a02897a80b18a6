"""What ran at the same time, by stream and by pair, then against a model that goes instant by instant."""

from collections import Counter
from dataclasses import replace
from itertools import chain, combinations, pairwise

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings.rules import launches as rules
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.streams import concurrency as _streams
from kanalyze.analyses.streams.concurrency import concurrency, stream_waits
from kanalyze.window import Window
from support.build import SMALL, US, call, graph, host, kernel, memcpy, memset, report
from support.slow_model import BUSY, SlowModel, bucket_of_operation
from support.strategies import FEWER, WINDOWS, few_given, slow_given


def launched(number, start, end, *, at, **keys):
    """A kernel and its call, which begins at `at` and takes a microsecond."""
    return [call("cudaLaunchKernel", at, at + US, correlation=number), kernel(start, end, correlation=number, **keys)]


def test_the_window_cuts_waits_and_overlaps():
    """A kernel was ready 39 µs before another stream's ended, and began 1 µs after it; later two overlap."""
    turns = [*launched(1, 20 * US, 60 * US, at=0), *launched(2, 61 * US, 90 * US, at=10 * US, stream=13)]
    of = report([*turns, kernel(100 * US, 110 * US), kernel(105 * US, 112 * US, stream=13)], limits=SMALL)
    columns = ("stream", "other_stream", "busy_ns", "other_busy_ns", "overlap_ns", "waits", "waited_ns")
    pairs = concurrency(of.narrow(window="50us..106us"), by="pair").select(columns)
    assert pairs.rows() == [(7, 13, 16 * US, 30 * US, US, 1, 10 * US)]
    assert concurrency(of.narrow(window="62us..95us"), by="pair").is_empty()


@pytest.mark.slow
def test_only_the_busiest_streams_are_compared_as_many_as_bits():
    events = [kernel(number, 1000, stream=number) for number in range(1, 71)]
    found = concurrency(report(events), by="pair")
    assert found.height == 62 * 61 // 2
    assert found["other_stream"].max() == 62
    assert found.select(pl.col("overlap_ns") == 1000 - pl.max_horizontal("stream", "other_stream")).to_series().all()


STREAMS = st.sampled_from([7, 7, 7, 13, 13, 14, None])
MAKERS = st.sampled_from([kernel, kernel, kernel, kernel, memcpy, memset, graph])
ONE, OTHER = st.sampled_from([0, 0, 0, 0, 1]), st.sampled_from([1, 1, 1, 1, 2])


@st.composite
def groups(draw):
    """A call and what it launched, on any streams, or a call that orders a stream."""
    at, keys = draw(st.integers(0, 15)), {"process": draw(OTHER), "correlation": draw(st.integers(1, 60))}
    if draw(st.integers(0, 5)) == 0:
        wait = call("cudaStreamWaitEvent", at, at + 1, **keys)
        known = host("sync", "Stream wait sync", at, at + 1, stream=draw(STREAMS), **keys)
        return [wait, *draw(st.sampled_from([[], [known]]))]
    name = draw(st.sampled_from(["cudaLaunchKernel"] * 9 + ["cudaGraphLaunch"]))
    events = [call(name, at, at + draw(st.integers(0, 2)), **keys)]
    for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2]))):
        make, start = draw(MAKERS), at + draw(st.integers(0, 25))
        where = {"stream": draw(STREAMS), "context": draw(OTHER), "device": draw(ONE)}
        shape = {"grid": (draw(st.sampled_from([1, 1, 4])), 1, 1)} if make is kernel else {}
        events.append(make(start, start + draw(st.integers(0, 12)), **keys, **where, **shape))
    return events


EVENTS = st.lists(groups(), min_size=3, max_size=12).map(lambda found: list(chain.from_iterable(found)))


class SlowStreams(SlowModel):
    """Which streams run at each instant, and the waits as the text defines them."""

    def __init__(self, events, window=(None, None)):
        super().__init__(events, window)
        self.real = [item for item in self.operations if item.end > item.start]

    def instants_of(self, item):
        low, high = self.asked
        return [at for at in range(item.start, item.end) if (low is None or low <= at) and (high is None or at < high)]

    def running(self):
        """The streams and their buckets at each instant of each device."""
        found = {}
        for item in self.real:
            for at in self.instants_of(item):
                found.setdefault((item.event.device, at), set()).add((stream_of(item), bucket_of_operation(item.event)))
        return found

    def waits(self):
        streams = {stream_of(item) for item in self.operations if item.event.stream is not None}
        several = {stream[:3] for stream in streams if len([one for one in streams if one[:3] == stream[:3]]) > 1}
        work = [item for item in self.real if stream_of(item) in streams and stream_of(item)[:3] in several]
        shared = Counter(self.launch_of(item) for item in self.operations)
        return [row for item in work if (row := self._wait_of(item, work, shared)) is not None]

    def _wait_of(self, item, work, shared):
        launch = self.launch_of(item)
        if launch is None or shared[launch] > 1:
            return None
        line = sorted(
            (one for one in work if stream_of(one) == stream_of(item)), key=lambda one: (one.start, one.event_id)
        )
        earlier = line[: line.index(item)]
        ready = max([launch.event.end + _streams.LATENCY_NS, *(one.end for one in earlier)])
        ended = [one for one in work if stream_of(one)[:3] == stream_of(item)[:3] and one.end <= item.start]
        last = min(ended, key=lambda one: (-one.end, one.event_id), default=None)
        if ready >= item.start or last is None or not item.start - last.end < last.end - ready:
            return None
        on_sms = [bucket_of_operation(one.event) == "kernel" for one in (item, last)]
        if not any(on_sms) or (all(on_sms) and not (last.event.kind == "kernel" and last.event.grid[0] < 4)):
            return None
        before = self.launch_of(earlier[-1]) if earlier else None
        asked = any(
            (before is None or before.start <= one.start) and one.start <= launch.start
            for one in self.calls
            if one.event.process == item.event.process and self._may_order(one, item.event.stream)
        )
        return item, last, max(ready, last.start), last.end, asked

    def _may_order(self, item, stream):
        if item.event.name == "cudaGraphLaunch":
            return self._stream_of_call(item) in (None, stream)
        return item.event.name == "cudaStreamWaitEvent" and self._stream_of_call(item) in (None, stream)

    def _stream_of_call(self, item):
        syncs = [one.event for one in self.items if one.event.kind == "sync" and one.event.stream is not None]
        key = (item.event.process, item.event.correlation)
        return next((one.stream for one in syncs if (one.process, one.correlation) == key), None)


def stream_of(item):
    event = item.event
    return event.device, event.process, event.context, event.stream


@FEWER
@given(EVENTS, WINDOWS)
def test_streams_equal_the_model(events, sides):
    slow, columns = SlowStreams(events, sides), ("device", "process_id", "context_id", "stream")
    expected = Counter()
    for (device, _), here in slow.running().items():
        for stream in {stream for stream, _ in here}:
            others = {bucket for other, bucket in here if other != stream}
            expected.update([(stream, "busy")] + ([(stream, "alone")] if not others else []))
            expected.update((stream, f"overlap_{bucket}") for bucket in others)
            assert stream[0] == device
    found = concurrency(report(events).narrow(window=Window(*sides)))
    for row in found.iter_rows(named=True):
        stream = tuple(row[name] for name in columns)
        for name in ("busy", "alone", *map("overlap_{}".format, ("kernel", "communication", "memcpy", "memset"))):
            assert row[f"{name}_ns"] == expected.pop((stream, name), 0), (stream, name)
    assert not expected


@slow_given(EVENTS, WINDOWS)
def test_pairs_equal_the_model(events, sides):
    slow = SlowStreams(events, sides)
    overlap, turns = Counter(), Counter()
    for here in slow.running().values():
        streams = sorted({stream for stream, _ in here if stream[3] is not None}, key=str)
        overlap.update(pair for pair in combinations(streams, 2) if pair[0][:3] == pair[1][:3])
    seen = [item for item in slow.real if slow.instants_of(item) and item.event.stream is not None]
    for key in {stream_of(item)[:3] for item in seen}:
        line = sorted((one for one in seen if stream_of(one)[:3] == key), key=lambda one: (one.start, one.event_id))
        turns.update(
            tuple(sorted(map(stream_of, pair), key=str))
            for pair in pairwise(line)
            if len(set(map(stream_of, pair))) > 1
        )
    found = concurrency(report(events).narrow(window=Window(*sides)), by="pair")
    for row in found.iter_rows(named=True):
        context = (row["device"], row["process_id"], row["context_id"])
        pair = tuple(sorted([(*context, row["stream"]), (*context, row["other_stream"])], key=str))
        assert (row["overlap_ns"], row["turns"]) == (overlap.pop(pair, 0), turns.pop(pair, 0))
        assert row["never_overlap"] == (row["overlap_ns"] == 0 and row["waits"] > 0)
    assert not overlap
    assert not turns


@given(EVENTS)
def test_waits_equal_the_model(events):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_streams, "LATENCY_NS", 1)
        of = report(events, limits=SMALL)
        ids = operations(of).get_column("event_id")
        found = [
            (ids[row], ids[behind], start, end, ordered)
            for row, behind, start, end, ordered in stream_waits(of)
            .select("row", "behind_row", "start", "end", "ordered")
            .iter_rows()
        ]
        expected = [(item.event_id, last.event_id, *times) for item, last, *times in SlowStreams(events).waits()]
        assert found == expected


@st.composite
def rows_of_work(draw):
    """Operations one after the other on a few streams, with calls soon after each other before them."""
    events, at = [], 12
    for number in range(draw(st.integers(4, 10))):
        make, dur = draw(st.sampled_from([kernel, kernel, memcpy])), draw(st.integers(3, 12))
        at += draw(st.sampled_from([-4, 0, 0, 0, 1, 1]))
        keys = {"correlation": number, "stream": draw(st.sampled_from([7, 13, 13, 14]))}
        events += [call("cudaLaunchKernel", number, number + 1, correlation=number), make(at, at + dur, **keys)]
        at += dur
    return events


@few_given(rows_of_work(), st.just((None, None)) | WINDOWS)
def test_findings_hold_no_more_than_the_ledger(events, sides):
    types = {7: "null", 13: "blocking", 14: "blocking"}
    streams = [{"process_id": 1, "context_id": 1, "stream": number, "type": kind} for number, kind in types.items()]
    names = {"cudaLaunchKernel": "cudaMemcpyAsync"}
    changed = [
        replace(event, name=names.get(event.name, event.name), side={"source_memory": "Pinned"})
        if event.kind in ("memcpy", "api")
        else event
        for event in events
    ]
    of = report(changed, limits=SMALL, streams=streams).narrow(window=Window(*sides))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_streams, "LATENCY_NS", 1)
        found = [*rules.default_stream(of), *rules.serial_copy(of)]
    for one in found:
        buckets = ["memcpy"] if one.rule == "serial-copy" else BUSY
        held = ledger(of).filter((pl.col("device") == one.device) & pl.col("bucket").cast(pl.String).is_in(buckets))
        assert 0 < one.at_stake_ns <= held["ns"].sum()
