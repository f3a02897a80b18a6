"""Traces of Perfetto, decoded by the format's own description, and files of speedscope."""

import io
import json
from collections import Counter as Count

import polars as pl
import pytest
from hypothesis import given, strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import kanalyze
from kanalyze.analyses.timeline._slices import Counter, Slices, Track, lanes, slices
from kanalyze.renderers.formats import exports
from support.command import REPORTS, SAMPLES

Event = proto.TrackEvent
SCHEMA = {
    "track": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "name": pl.String, "kind": pl.String,
    "event_id": pl.Int64, "launch": pl.UInt32, "open": pl.Boolean,
}  # fmt: skip


def decoded(trace):
    file = io.BytesIO()
    exports.write_perfetto(trace, file)
    return proto.Trace.FromString(file.getvalue()).packet


class Played:
    """A trace as a program plays it: slices, counters and flows by the names of their tracks."""

    def __init__(self, packets):
        self.tracks, self.names, self.kinds, self.notes = {}, {}, {}, {}
        self.slices, self.points, self.flows, stacks, last = [], [], {}, {}, 0
        for packet in packets:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.tracks
                assert not track.HasField("parent_uuid") or track.parent_uuid in self.tracks
                self.tracks[track.uuid] = track
            for one, known in (("event_names", self.names), ("event_categories", self.kinds)):
                known |= {entry.iid: entry.name for entry in getattr(packet.interned_data, one)}
            self.notes |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
            if not packet.HasField("track_event"):
                continue
            event, t = packet.track_event, packet.timestamp
            assert t >= last
            last = t
            stack = stacks.setdefault(event.track_uuid, [])
            if event.type == Event.TYPE_SLICE_BEGIN:
                assert packet.sequence_flags == proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
                stack.append((event, t))
            elif event.type == Event.TYPE_SLICE_END:
                self._close(*stack.pop(), t)
            else:
                self.points.append((self.tracks[event.track_uuid].name, t, event.counter_value))
        assert not any(stacks.values())

    def _close(self, event, start, end):
        (kind,) = event.category_iids
        notes = {self.notes[note.name_iid]: note.int_value for note in event.debug_annotations}
        track = self.tracks[event.track_uuid]
        self.slices.append(
            (track.uuid, start, end, self.names[event.name_iid], self.kinds[kind], notes.get("event_id"))
        )
        for flow in event.flow_ids:
            self.flows.setdefault(flow, set()).add(notes["event_id"])


@pytest.mark.parametrize("path", [REPORTS / "graph_node.sqlite", SAMPLES / "gelu" / "torch.json.gz"])
@pytest.mark.one_in(2)
def test_a_trace_has_all_events_of_the_report_to_the_nanosecond(path):
    trace = slices(kanalyze.read(path))
    played = Played(decoded(trace))
    columns = ("start", "end", "name", "kind", "event_id")
    expected = trace.slices.select(columns).with_columns(pl.col("name", "kind").cast(pl.String)).rows()
    assert Count(row[1:] for row in played.slices) == Count(expected)
    calls = trace.slices.get_column("event_id")
    launched = [(work, calls[at]) for work, at in trace.slices.drop_nulls("launch").select("event_id", "launch").rows()]
    assert sorted(map(sorted, played.flows.values())) == sorted(map(sorted, launched))
    points = [(one.label, *point) for one in trace.counters for point in one.points.rows()]
    assert sorted(played.points) == sorted(points)


drawn = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(-5, 20) | st.integers(1 << 60, (1 << 60) + 5),
        st.integers(0, 9),
        st.sampled_from(["a", "b", "\x00</script>\u202e", "ä" * 300]),
        st.none() | st.integers(0, 5),
    ),
    max_size=12,
)


@given(drawn, st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 1 << 62)), max_size=4))
def test_made_up_slices_come_back(rows, points):
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    calls = [None if at % 2 or launch is None or launch % 2 == 0 else launch for at, (*_, launch) in enumerate(rows)]
    numbered = enumerate(rows)
    table = [(track, at, at + dur, name, "api", row, calls[row], False) for row, (track, at, dur, name, _) in numbered]
    line = pl.DataFrame(table, schema=SCHEMA, orient="row")
    line = line.with_columns(lane=lanes(line))
    keys = line.select("track", "lane").unique().sort("track", "lane").with_row_index("at")
    tracks = [Track(7, number, None, None, "thread", lane) for _, number, lane in keys.iter_rows()]
    line = line.join(keys, on=["track", "lane"], maintain_order="left").with_columns(track="at")
    line = line.sort("track", maintain_order=True).select(*SCHEMA)
    at = {event: row for row, event in enumerate(line["event_id"])}
    line = line.with_columns(pl.Series("launch", [at.get(call) for call in line["launch"]], dtype=pl.UInt32))
    counter = pl.DataFrame(sorted(points), schema={"t_ns": pl.Int64, "value": pl.Int64}, orient="row")
    played = Played(decoded(Slices({(None, 7): "it"}, tracks, line, [Counter(7, None, "used", "bytes", counter)])))
    zero = min([0, *line["start"].to_list()])
    expected = line.select(pl.col("start") - zero, pl.col("end") - zero, "name", "kind", "event_id").rows()
    assert Count(row[1:] for row in played.slices) == Count(expected)
    linked = [{at, call} for at, call in enumerate(calls) if call is not None and call < len(rows)]
    assert sorted(map(sorted, played.flows.values())) == sorted(map(sorted, linked))
    assert [point[1:] for point in played.points] == [(t - zero, value) for t, value in counter.rows()]


def test_numbers_that_perfetto_cannot_hold_are_names():
    line = pl.DataFrame([(0, 5, 6, "a", "api", None, None, False)], schema=SCHEMA, orient="row")
    tracks = [Track(1 << 40, 3, None, None, "thread", 0)]
    played = Played(decoded(Slices({(None, 1 << 40): "far"}, tracks, line, [])))
    assert [track.name for track in played.tracks.values()] == [f"far {1 << 40}", "thread 3"]
    assert played.slices == [(2, 5, 6, "a", "api", None)]


def test_a_process_without_a_number_is_that_of_its_rank():
    names = {(0, -1): "first", (1, -1): "second", (1, 7): "other"}
    tracks = [Track(None, 1, None, None, "thread", 0, rank) for rank in (0, 1)]
    line = pl.DataFrame(schema=SCHEMA)
    descriptors = [one.track_descriptor.name for one in decoded(Slices(names, tracks, line, []))]
    assert [name for name in descriptors if name.endswith("?")] == ["rank 0, first ?", "rank 1, second ?"]


#: Keys of an event, a profile and a file by src/lib/file-format-spec.ts of speedscope, as far as evented profiles go.
EVENT = {"type": str, "frame": int, "at": int}
PROFILE = {"type": str, "name": str, "unit": str, "startValue": int, "endValue": int, "events": list}
FILE = {"$schema": str, "exporter": str, "name": str, "activeProfileIndex": int, "shared": dict, "profiles": list}


def typed(of):
    return {key: type(value) for key, value in of.items()}


def written(trace):
    file = io.BytesIO()
    exports.write_speedscope(trace, file, "it")
    found = json.loads(file.getvalue())
    assert typed(found) == FILE
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert all(typed(frame) == {"name": str} for frame in found["shared"]["frames"])
    for profile in found["profiles"]:
        assert typed(profile) == PROFILE
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        assert all(typed(event) == EVENT and event["type"] in "OC" for event in profile["events"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", [REPORTS / "graph_node.sqlite", SAMPLES / "gelu" / "torch.json.gz"])
def test_every_event_opens_and_closes_in_order(path):
    trace = slices(kanalyze.read(path))
    found, seen = written(trace), []
    frames = [frame["name"] for frame in found["shared"]["frames"]]
    for profile in found["profiles"]:
        stack, last = [], profile["startValue"]
        for event in profile["events"]:
            assert profile["startValue"] <= last <= event["at"] <= profile["endValue"]
            last = event["at"]
            if event["type"] == "O":
                stack.append((event["frame"], event["at"]))
            else:
                frame, start = stack.pop()
                assert frame == event["frame"]
                seen.append((frames[frame], start, event["at"]))
        assert stack == []
    first = trace.slices["start"].min()
    assert sorted(seen) == sorted(trace.slices.select("name", pl.col("start") - first, pl.col("end") - first).rows())
    assert len(found["profiles"]) == len(trace.tracks)


def test_texts_and_long_times_are_kept():
    schema = {"track": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "name": pl.String}
    line = pl.DataFrame([(0, 1 << 60, (1 << 60) + 3, '"\u2028</script>')], schema=schema, orient="row")
    found = written(Slices({}, [Track(None, None, None, None, "fault", 0)], line, []))
    assert found["shared"]["frames"] == [{"name": '"\u2028</script>'}]
    assert [event["at"] for event in found["profiles"][0]["events"]] == [0, 3]
    assert written(Slices({}, [], line.clear(), []))["profiles"] == []
