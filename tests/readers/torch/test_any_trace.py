"""Any trace, in any layout and cut anywhere, is what a slow reader in plain Python makes of it."""

from functools import partial

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanalyze.model import EVENTS
from kanalyze.readers.torch import frames as torch_frames
from kanalyze.readers.torch import pieces as trace_pool
from kanalyze.readers.torch import pieces as trace_text
from support.made_traces import counted, decimals, report_of, traces
from support.slow_trace import KINDS, slow_events

#: What the reader's notes say of a trace in order, and of what these have on purpose.
USUAL = (
    "arrows between events",
    "names and marks",
    "events of the category of another tool",
    *(f"{kind} events without a duration" for kind in KINDS),
    *(f"{kind} events of negative duration" for kind in KINDS),
    *(f"{kind} events at negative times" for kind in KINDS),
)

SCHEMA = {name: pl.String if name in {"kind", "name"} else dtype for name, dtype in EVENTS.schema.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


def assert_same(report, text):
    slow = slow_events(text)
    for kind in KINDS:
        found = report.kind(kind).with_columns(pl.col("kind", "name").cast(pl.String))
        expected = pl.DataFrame(slow.get(kind, []), schema=SCHEMA, orient="row")
        assert found.equals(expected), (kind, found, expected)


@given(text=traces(), piece=st.sampled_from([1, 60, 400, 1 << 20]), compressed=st.booleans())
def test_the_slow_reader_reads_the_same(folder, text, piece, compressed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_text, "PIECE_BYTES", piece)
        report = report_of(folder, text, compressed=compressed)
    assert_same(report, text)
    assert {"events in the trace", *USUAL}.issuperset(counted(report)), counted(report)


@given(text=traces(times=decimals(wide=True)), piece=st.sampled_from([60, 1 << 20]))
def test_times_of_any_size_are_exact(folder, text, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_text, "PIECE_BYTES", piece)
        assert_same(report_of(folder, text), text)


@settings(max_examples=settings.default.max_examples // 2)
@given(text=traces(), piece=st.sampled_from([60, 400]), compressed=st.booleans())
@pytest.mark.slow
def test_processes_and_large_columns_give_the_same(folder, text, piece, compressed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_text, "PIECE_BYTES", piece)
        here = report_of(folder, text, compressed=compressed)
        patch.setattr(trace_pool, "SMALL_PLAIN_BYTES", 0)
        patch.setattr(trace_pool, "SMALL_GZIP_BYTES", 0)
        patch.setattr(trace_pool, "processors", partial(int, 2))
        patch.setattr(torch_frames, "_MANY", 0)
        there = report_of(folder, text, compressed=compressed)
    assert_same(there, text)
    for name in ("op_detail", "copy_detail", "memory_detail", "sync_detail", "processes", "devices", "notes"):
        assert here.table(name).equals(there.table(name)), name
