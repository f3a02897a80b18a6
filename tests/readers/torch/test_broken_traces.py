"""Any trace is what a slow reader makes of it; of a broken one what is whole is read, and what is lost is counted."""

import gzip
import random
import resource
from collections import Counter
from decimal import Decimal
from functools import partial

import polars as pl
import pytest
from hypothesis import settings, strategies as st

from kanalyze import model
from kanalyze.errors import KanalyzeError
from kanalyze.readers import read
from kanalyze.readers.torch import frames, pieces
from kanalyze.readers.torch.pieces import TraceText, decoded
from support.command import refused, run
from support.made_traces import counted, report_of, trace, traces, written_to, x
from support.slow_trace import KINDS as SLOW_KINDS, slow_events
from support.strategies import slow_given

HEAD = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]}
TAIL = {"traceName": "t", "baseTimeNanoseconds": 5}

EVENTS = [
    x("cpu_op", "aten::mm", Decimal("10.5"), 50, {"External id": 1, "Input Dims": [[2, 3], [3, 4]]}),
    x("cuda_runtime", "cudaLaunchKernel", 20, 5, {"External id": 1, "correlation": 7}),
    {"ph": "s", "id": 7, "pid": 4000, "tid": 4001, "ts": 20, "cat": "ac2g", "name": "ac2g"},
    x("kernel", 'gemm<"a", {}>', 30, Decimal("9.25"), {"External id": 1, "correlation": 7, "stream": 7}, 0, 7),
    x("user_annotation", "}, {", 0, 100, {"External id": 2}),
    {"ph": "M", "name": "process_name", "pid": 4000, "tid": 0, "ts": 0, "args": {"name": "python"}},
]
KINDS = {"cpu_op": "op", "cuda_runtime": "api", "kernel": "kernel", "user_annotation": "range"}
LOST = "events that cannot be read"
CUT = "missing end of the list of events"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("broken")


def decoded_of(folder, text):
    """What is decoded of a text: the name and start of each event that a table holds; counts; damage and properties."""
    opened = TraceText(written_to(folder, text))
    parts = decoded(opened, lambda *_: None)
    counts = sum((part.columns.counts for part in parts), Counter())
    found = [
        (part.texts[name], start_us)
        for part in parts
        for kind, block in part.columns.blocks.items()
        for name, start_us in zip(block["name"], _us(block["ts"]), strict=True)
    ]
    return sorted(found), counts, opened


def _us(times):
    return times if times.typecode == "d" else [time / 1000 for time in times]


def expected(events):
    """The same names and starts of these events."""
    return sorted((event["name"], float(event["ts"])) for event in events if event.get("cat") in KINDS)


def places_of(text, layout):
    """Where each event begins and ends in the text of :data:`EVENTS`."""
    found, at = [], text.index(b"[", text.index(b'"traceEvents"')) + 1
    for event in EVENTS:
        begin = text.index(b"{", at)
        one = trace([event], layout)
        size = one.rindex(b"}", 0, one.rindex(b"]")) + 1 - one.index(b"{", one.index(b"["))
        found.append((begin, begin + size))
        at = begin + size
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["kineto", "compact", "kineto 2026"])
def test_cut_off_at_any_byte_every_whole_event_is_there(folder, layout):
    text = trace(EVENTS, layout, HEAD, TAIL)
    places = places_of(text, layout)
    opened, end = text.index(b'"traceEvents"') + len(b'"traceEvents": ['), text.index(b"]", places[-1][1])
    for size in range(len(text)):
        if size < opened:
            with pytest.raises(KanalyzeError):
                decoded_of(folder, text[:size])
            continue
        found, counts, around = decoded_of(folder, text[:size])
        whole = [event for event, (_, stop) in zip(EVENTS, places, strict=True) if stop <= size]
        cut = [event for event, (begin, stop) in zip(EVENTS, places, strict=True) if begin < size < stop]
        assert found == expected(whole), size
        assert counts["unreadable"] == len(cut), size
        assert counts["entries"] == len(whole) + len(cut), size
        assert (CUT in around.damage) == (size <= end), size
        assert around.properties["deviceProperties"] == HEAD["deviceProperties"]


@pytest.mark.parametrize("share", [0.03, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99])
def test_a_compressed_trace_that_ends_early_is_read_to_its_end(folder, share):
    noise = random.Random(5)  # noqa: S311 - names that do not compress
    events = [x("cpu_op", f"{noise.random()}", number, 1) for number in range(40)]
    whole = gzip.compress(trace(events))
    path = folder / "cut.json.gz"
    path.write_bytes(whole[: int(len(whole) * share)])
    ran = run("show", "health", path, "--format=csv")
    if ran.status:
        assert refused(ran)[1].endswith("[unknown-format]")
        return
    assert "early end of the compressed data" in ran.text
    assert (CUT in ran.text) == (share < 0.98)  # after that, only the check of the whole is missing


def test_compressed_data_that_is_damaged_is_read_up_to_there(folder):
    noise = random.Random(1)  # noqa: S311
    events = [x("cpu_op", f"{noise.random()}", number, 1) for number in range(2000)]
    whole = bytearray(gzip.compress(trace(events), 1))
    middle = len(whole) // 2
    whole[middle : middle + 400] = b"\xff" * 400
    path = folder / "damaged.json.gz"
    path.write_bytes(whole)
    report = read(path)
    assert report.kind("op").height > 800
    assert any(check.startswith("damage in the compressed data before byte") for check in counted(report))


def written(event) -> str:
    return trace([event], "compact", bare=True).decode()[1:-1]


OP = written(EVENTS[0])

#: The same on lines as Kineto has them.
LINES = OP.replace('"ph"', '\n    "ph"').replace('"ts"', '\n    "ts"')
#: Later in 2026 each key stood in a line of its own.
LATER = (
    OP.replace('{"ph"', '\n  {\n    "ph"')
    .replace(', "cat"', ',\n    "cat"')
    .replace(', "name"', ',\n    "name"')
    .replace(', "pid"', ',\n    "pid"')
)
SURROGATES = ["\U0001f600 \ufffd \\d::mm"]


@pytest.mark.parametrize(
    ("text", "notes", "names"),
    [
        (OP.replace("aten", "a\x01t\x00en"), {"characters that JSON does not allow": 2}, ["a t en::mm"]),
        (OP.replace("aten", "\udcff\udcfe"), {"characters that JSON does not allow": 2}, ["\ufffd\ufffd::mm"]),
        (OP.replace("aten", "C:\\Users"), {"characters that JSON does not allow": 1}, ["C:\\Users::mm"]),
        (LINES.replace("aten", 'a "quoted" one'), {"characters that JSON does not allow": 1}, ['a "quoted" one::mm']),
        (LINES.replace("aten", '", "x": "y" '), {"characters that JSON does not allow": 1}, ['", "x": "y" ::mm']),
        (LATER.replace("aten", '", "x": "y" '), {"characters that JSON does not allow": 1}, ['", "x": "y" ::mm']),
        (LINES.replace("aten", 'a \\"b\\" "c'), {"characters that JSON does not allow": 1}, ['a "b" "c::mm']),
        (OP.replace("aten", "\\ud83d\\ude00 \\ude00 \\d"), {"characters that JSON does not allow": 2}, SURROGATES),
        (OP.replace("aten", "x\ny"), {"characters that JSON does not allow": 1}, ["x y::mm"]),
        (f'{{"no": 1}}, nonsense {OP}, {{"ph": 2, "a": {{"b": [1}}}}', {LOST: 2}, ["aten::mm"]),
        (OP.replace("[[2", "[NaN, inf, -Infinity, N/A, [2"), {"characters that JSON does not allow": 4}, ["aten::mm"]),
        (OP.replace('"dur": 50', '"dur": null'), {"op events without a duration": 1}, ["aten::mm"]),
        (OP.replace("50", "18446744073709551.615"), {"op events without a duration": 1}, ["aten::mm"]),
        (OP.replace("50", "-50"), {"op events of negative duration": 1}, ["aten::mm"]),
        (OP.replace("10.5", "-10.5"), {"op events at negative times": 1}, ["aten::mm"]),
        (OP.replace("10.5", "null"), {"events without a time": 1}, []),
        (OP.replace("10.5", "9" * 5000), {"events without a time": 1}, []),
        (OP.replace("10.5", "1e99999999999999999999"), {"events without a time": 1}, []),
        (OP.replace("10.5", '"soon"'), {"events without a time": 1}, []),
        (OP.replace("aten", "\\" * 2001), {LOST: 1}, []),
        (OP.replace("cpu_op", "of my own"), {"events of the category of my own": 1}, []),
        (OP.replace("cpu_op", "collective_comm"), {"events of other devices and tools": 1}, []),
        (OP.replace('"cat": "cpu_op", ', ""), {"events without a category": 1}, []),
        (OP.replace('"cpu_op"', "5"), {"events without a category": 1}, []),
        (OP.replace('"aten::mm"', "5"), {}, ["5"]),
        (OP.replace('"aten::mm"', "null"), {}, [None]),
        (OP.replace('{"External', '[{"External') + "]", {LOST: 1}, []),
        ('{"ph": "X", "ph": "X"' + OP.removeprefix('{"ph": "X"'), {}, ["aten::mm"]),
        ("5", {"entries that are no event": 1}, []),
        ('{"a": 1}', {"entries that are no event of a trace": 1}, []),
        (OP.replace("[[2", "[" * 100_000 + "[[2"), {LOST: 1}, []),
        (OP.replace("[[2", "[" * 5_000 + "]" * 5_000 + ", [[2"), None, None),
        ("", {}, []),
    ],
)
def test_what_is_odd_is_read_or_counted(folder, text, notes, names):
    fine = written(EVENTS[1])
    whole = f'{{"traceEvents": [{fine}, {text}, {fine}]}}' if text else f'{{"traceEvents": [{fine}, {fine}]}}'
    report = report_of(folder, whole.encode("utf-8", "surrogateescape"))
    assert report.kind("api").height == 2
    if notes is not None:
        usual = {"events in the trace", "bytes of events that cannot be read"}
        assert {check: count for check, count in counted(report).items() if check not in usual} == notes
    if names is not None:
        assert report.kind("op").get_column("name").cast(str).to_list() == names


@pytest.mark.parametrize("text", ['{"traceEvents": []}', '{"traceEvents": [\n]\n}', "[]", " [ ] \n"])
def test_a_trace_without_events_is_a_trace(folder, text):
    report = report_of(folder, text.encode())
    assert (report.kinds, counted(report)) == ((), {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a": 1}', "JSON without traceEvents"),
        (b"[1, 2]", "JSON without traceEvents"),
        (b'[{"a": 1}, {"b": [2]}]', "JSON without traceEvents"),
        (b"[[[[", "JSON without traceEvents"),
        (gzip.compress(b"#!/bin/sh", mtime=0), "compressed data that is no JSON"),
        (gzip.compress(b'{"a": 1}', mtime=0), "JSON without traceEvents"),
        (b"\x1f\x8b\x08\x00", "nothing that can be read"),
    ],
)
def test_json_that_is_no_trace_is_refused_with_a_word_on_what_is_read(tmp_path, text, found):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    message, remedy = refused(run("summarize", path))
    assert message == f"{path}: {found}, not a {'trace' if 'Events' in found else 'report'} that kanalyze reads."
    assert remedy.endswith("[unknown-format]")


def test_events_of_unknown_categories_are_told_apart_up_to_a_number(folder):
    events = [EVENTS[0], *[x(f"category {number}", "a", 0, 1) for number in range(30)] * 2]
    notes = counted(report_of(folder, trace(events)))
    assert sum(check.startswith("events of the category") for check in notes) == 10
    assert notes["events of 20 more categories"] == 40


BIG = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filler", "closed"),
    [
        (filler, b"]}" * (number % 2))
        for number, filler in enumerate(
            (
                *(b"\0", b"x", b"{", b"[", b'"', b'\\"', b'{"', b'{"a":', b'{"ph":"X","args":{', b"}, {"),
                *(b'}, {"ph": "X", ', b'"name": "', b'{"ph": "X", "cat": "cpu_op", "ts": 1, "args": {"a": ['),
                *(b"9", b"[]", bytes(range(256))),
            )
        )
    ],
)
@pytest.mark.timeout(40)  # what takes the square of the bytes takes longer
def test_a_large_file_of_anything_ends_soon(tmp_path, monkeypatch, filler, closed):
    monkeypatch.setattr(pieces, "PIECE_BYTES", BIG // 8)
    text = b'{"traceEvents": [' + written(EVENTS[0]).encode() + b", " + filler * (BIG // len(filler)) + closed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert report_of(tmp_path, text).kind("op").height == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


@pytest.mark.parametrize("compressed", [False, True])
def test_an_event_larger_than_a_piece_is_read(folder, monkeypatch, compressed):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    large = {"Input Dims": [[number] for number in range(2000)], "text": "}, {" * 500}
    large["list"] = [{"ph": "X", "cat": "odd"}] * 500
    events = [*EVENTS, x("cpu_op", "large", 5, 6, large), *EVENTS]
    report = report_of(folder, trace(events, "compact", HEAD, TAIL), compressed=compressed)
    assert report.kind("op").get_column("name").to_list() == ["large", "aten::mm", "aten::mm"]
    shapes = report.table("op_detail").filter(report.table("op_detail")["event_id"] == report.kind("op")["event_id"][0])
    assert len(shapes.get_column("input_shapes").item().split(",")) == 2000
    assert counted(report)["events in the trace"] == len(events)
    assert not {LOST, CUT}.intersection(counted(report))


@pytest.mark.parametrize(
    ("ids", "shared"),
    [((1, 2, 3), 0), ((5, 5, 5), 2), ((5, 5, 6), 1), ((0, 0, 1), 0), ((None, None, 1), 0)],
    ids=["each its own", "all one", "two one", "none recorded", "without ids"],
)
def test_operators_that_share_an_id_are_doubted(folder, ids, shared):
    """By that id calls tell the operator that made them."""
    args = [{} if one is None else {"External id": one} for one in ids]
    events = [x("cpu_op", "aten::mm", 10 * place, 5, of) for place, of in enumerate(args)]
    notes = report_of(folder, trace(events)).table("notes")
    found = [row[:2] for row in notes.iter_rows() if row[0] == "operators with the id of another one"]
    assert found == [("operators with the id of another one", shared)] * (shared > 0)


#: What the reader's notes say of a trace in order, and of what these have on purpose.
USUAL = (
    "arrows between events",
    "names and marks",
    "events of the category of another tool",
    *(f"{kind} events without a duration" for kind in SLOW_KINDS),
    *(f"{kind} events of negative duration" for kind in SLOW_KINDS),
    *(f"{kind} events at negative times" for kind in SLOW_KINDS),
)

SCHEMA = {name: pl.String if name in {"kind", "name"} else dtype for name, dtype in model.EVENTS.schema.items()}


def assert_same(report, text):
    slow = slow_events(text)
    for kind in SLOW_KINDS:
        found = report.kind(kind).with_columns(pl.col("kind", "name").cast(pl.String))
        expected = pl.DataFrame(slow.get(kind, []), schema=SCHEMA, orient="row")
        assert found.equals(expected), (kind, found, expected)


@slow_given(text=traces(), piece=st.sampled_from([1, 60, 400, 1 << 20]), compressed=st.booleans())
def test_the_slow_reader_reads_the_same(folder, text, piece, compressed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", piece)
        report = report_of(folder, text, compressed=compressed)
    assert_same(report, text)
    assert {"events in the trace", *USUAL}.issuperset(counted(report)), counted(report)


@settings(max_examples=settings.default.max_examples // 2)
@slow_given(text=traces(), piece=st.sampled_from([60, 400]), compressed=st.booleans())
def test_processes_and_large_columns_give_the_same(folder, text, piece, compressed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", piece)
        here = report_of(folder, text, compressed=compressed)
        patch.setattr(pieces, "SMALL_PLAIN_BYTES", 0)
        patch.setattr(pieces, "SMALL_GZIP_BYTES", 0)
        patch.setattr(pieces, "processors", partial(int, 2))
        patch.setattr(frames, "_MANY", 0)
        there = report_of(folder, text, compressed=compressed)
    assert_same(there, text)
    for name in ("op_detail", "copy_detail", "memory_detail", "sync_detail", "processes", "devices", "notes"):
        assert here.table(name).equals(there.table(name)), name
