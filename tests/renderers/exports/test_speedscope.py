"""Files of speedscope, held against what is documented of their format."""

import io
import json

import polars as pl
import pytest
from jsonschema import validate

import kanalyze
from kanalyze.analyses.slices.slices import Slices, Track, slices
from kanalyze.renderers.exports import speedscope
from support.command import REPORTS, SAMPLES

#: src/lib/file-format-spec.ts of speedscope as a JSON Schema, as far as evented profiles go.
EVENT = {
    "type": "object",
    "required": ["type", "frame", "at"],
    "properties": {"type": {"enum": ["O", "C"]}, "frame": {"type": "integer", "minimum": 0}, "at": {"type": "number"}},
    "additionalProperties": False,
}
PROFILE = {
    "type": "object",
    "required": ["type", "name", "unit", "startValue", "endValue", "events"],
    "properties": {
        "type": {"const": "evented"},
        "name": {"type": "string"},
        "unit": {"enum": ["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]},
        "startValue": {"type": "number"},
        "endValue": {"type": "number"},
        "events": {"type": "array", "items": EVENT},
    },
    "additionalProperties": False,
}
FRAME = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
SCHEMA = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "shared": {
            "type": "object",
            "properties": {"frames": {"type": "array", "items": FRAME}},
            "required": ["frames"],
        },
        "profiles": {"type": "array", "items": PROFILE},
        "name": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
        "exporter": {"type": "string"},
    },
}


def written(trace):
    file = io.BytesIO()
    speedscope.write(trace, file, "it")
    found = json.loads(file.getvalue())
    validate(found, SCHEMA)
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


@pytest.mark.slow
def test_profiles_say_where_they_are_from():
    found = written(slices(kanalyze.read(SAMPLES / "gelu" / "torch.json.gz")))
    names = [profile["name"] for profile in found["profiles"]]
    assert any(name.startswith("stream 7, GPU 0, python") for name in names)
    assert any(name.startswith("thread ") for name in names)


def test_texts_and_long_times_are_kept():
    schema = {"track": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "name": pl.String}
    line = pl.DataFrame([(0, 1 << 60, (1 << 60) + 3, '"\u2028</script>')], schema=schema, orient="row")
    found = written(Slices({}, [Track(None, None, None, None, "fault", 0)], line, []))
    assert found["shared"]["frames"] == [{"name": '"\u2028</script>'}]
    assert [event["at"] for event in found["profiles"][0]["events"]] == [0, 3]
    assert written(Slices({}, [], line.clear(), []))["profiles"] == []
