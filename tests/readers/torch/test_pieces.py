"""Where the events of a trace begin and end, where they may be cut, and what stands around them."""

import gzip
import json
import tracemalloc
from itertools import pairwise

import pytest

import kanalyze
from kanalyze.errors import UnknownFormatError
from kanalyze.readers.torch import pieces as trace_text
from kanalyze.readers.torch.pieces import TraceText, is_trace
from support.made_traces import LAYOUTS, trace, written_to, x

DEEP = b'{"a": ' + b"[" * 100_000 + b', "schemaVersion": 1'
EVENTS = [
    x("cpu_op", f"op {number}", number, 1, {"External id": number, "Input Dims": [[number]]}) for number in range(40)
]


def taken(path):
    """The pieces of a trace as bytes, and its text."""
    text = TraceText(path)
    pieces = list(text.pieces())
    if text.tail is not None:
        text.add(text.tail, "after")
    return pieces, text


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pieces_are_whole_events_and_together_all_of_them(tmp_path, monkeypatch, layout, compressed):
    monkeypatch.setattr(trace_text, "PIECE_BYTES", 300)
    whole = trace(EVENTS, layout, {"schemaVersion": 1}, {"traceName": "t"})
    pieces, text = taken(written_to(tmp_path, whole, compressed=compressed))
    assert len(pieces) > 5
    assert all(piece.strip(b", \t\n")[:1] == b"{" and piece.strip()[-1:] == b"}" for piece in pieces)
    assert b"".join(pieces) in whole
    assert sum(piece.count(b'"ph"') for piece in pieces) == len(EVENTS)
    assert text.properties == {"schemaVersion": 1, "traceName": "t"}
    assert (text.damage, text.bare) == ([], False)
    assert text.share > 0.9


@pytest.mark.parametrize("head", [b'{"a": [{"b": "traceEvents"}], ', b'\xef\xbb\xbf {\n "a": [{"b": "traceEvents"}],'])
def test_properties_stand_before_and_after(tmp_path, head):
    path = written_to(tmp_path, head + b'"traceEvents" :\n [ ], "z": {"y": [{"ph": "X"}, {"x": "]}"}]}}\n')
    pieces, text = taken(path)
    assert b"".join(pieces).strip() == b""
    assert text.properties == {"a": [{"b": "traceEvents"}], "z": {"y": [{"ph": "X"}, {"x": "]}"}]}}


def test_the_last_event_may_begin_with_another_key(tmp_path):
    event, name = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}, {"name": "process_name", "ph": "M"}
    text = json.dumps({"traceEvents": [event, event, name, name], "more": [{"a": [{}, {}]}], "traceName": "t"})
    pieces, read = taken(written_to(tmp_path, text.encode()))
    assert json.loads(b"[" + b"".join(pieces) + b"]") == [event, event, name, name]
    assert read.properties == {"more": [{"a": [{}, {}]}], "traceName": "t"}


@pytest.mark.parametrize(
    ("head", "properties", "damage"),
    [
        (b'{"deviceProperties": [{"id": 0}], "a": "x\x01y"', {"deviceProperties": [{"id": 0}], "a": "x\x01y"}, []),
        (b'{"a": NaN, "b": -inf, "c": N/A', {"b": None, "c": None}, []),
        (b'{"a": "one /"quoted/" word"', {"a": 'one "quoted" word'}, []),
        (b'{"a": "C:\\Users"', {"a": "C:\\Users"}, []),
        (
            b'{"deviceProperties": [{"id": 0}], "a": {{, "schemaVersion": 1',
            {"deviceProperties": [{"id": 0}], "schemaVersion": 1},
            ["unreadable properties before the events"],
        ),
        (DEEP, {"schemaVersion": 1}, ["unreadable properties before the events"]),
    ],
)
def test_damaged_properties_are_read_as_far_as_they_can_be(tmp_path, head, properties, damage):
    _, text = taken(written_to(tmp_path, head + b', "traceEvents": [{"ph": "X"}]}'))
    found = text.properties
    assert {name: found[name] for name in properties} == properties
    assert text.damage == damage


def test_text_without_any_place_between_events_is_cut_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_text, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(trace_text, "LONGEST_BYTES", 1 << 18)
    pieces, _ = taken(written_to(tmp_path, b'{"traceEvents": [' + b"x" * (1 << 20)))
    assert max(map(len, pieces)) == 1 << 18
    assert sum(map(len, pieces)) == 1 << 20


def test_a_file_that_becomes_shorter_while_it_is_read_just_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_text, "PIECE_BYTES", 300)
    path = written_to(tmp_path, trace(EVENTS))
    pieces = TraceText(path).pieces()
    next(pieces)
    path.write_bytes(b"{")
    assert sum(map(len, pieces)) < len(trace(EVENTS))


@pytest.mark.parametrize("members", [1, 3], ids=["one member", "three members and zeros"])
def test_compressed_text_may_stand_in_several_members(tmp_path, members):
    whole = trace(EVENTS)
    path = tmp_path / "t.json.gz"
    edges = [len(whole) * number // members for number in range(members + 1)]
    parts = [gzip.compress(whole[start:end]) for start, end in pairwise(edges)]
    path.write_bytes((b"\0" * 7 if members > 1 else b"").join(parts) + b"\0" * 512)
    pieces, text = taken(path)
    assert b"".join(pieces) in whole
    assert (text.tail, text.damage) == (b"}", [])


def test_the_events_are_looked_for_only_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_text, "LONGEST_BYTES", 4 << 20)
    monkeypatch.setattr(trace_text, "_READ_BYTES", 1 << 20)
    filler = b'{"a": "' + b"x" * (1 << 20) + b'", '
    assert taken(written_to(tmp_path, filler + b'"traceEvents": []}'))[1].tail == b"}"
    with pytest.raises(UnknownFormatError, match="JSON without traceEvents"):
        TraceText(written_to(tmp_path, b'{"a": "' + b"x" * (5 << 20) + b'", "traceEvents": []}'))


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_trace_is_told_from_other_json(packed, tmp_path):
    path = tmp_path / "any.json"
    for text, found in {
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}': True,
        b'[{"ph": "X", "ts": 1}]': True,
        **dict.fromkeys((b'{"note": "traceEvents", "ph": 1}', b'[{"lr": 0.1}]', b"[1, 2]"), False),
    }.items():
        path.write_bytes(packed(text))
        assert is_trace(path) is found


BLANK = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":1}'


def blank(path, megabytes, sign):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [' + BLANK % 1 + b",")
        for _ in range(megabytes):
            file.write(sign * (1 << 20))
        file.write(BLANK % 9 + b"]}")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("sign", [b" ", b"\n"])
def test_blanks_take_no_memory(tmp_path, sign):
    path = blank(tmp_path / "trace.json.gz", 192, sign)
    tracemalloc.start()
    size = sum(map(len, TraceText(path).pieces()))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 40 << 20
    assert most < 150 << 20


@pytest.mark.slow
def test_what_stands_around_them_is_read(tmp_path):
    made = kanalyze.read(blank(tmp_path / "trace.json.gz", 40, b"\n"), cache=False)
    assert made.table("events").get_column("start_ns").to_list() == [1000, 9000]
