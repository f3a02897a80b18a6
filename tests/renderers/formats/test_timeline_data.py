"""The timeline's data: what a decoder of its own reads is what was written."""

import json
import zlib
from base64 import b64decode
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.timeline._tracks import TONES, Counter, Timeline, Track, timeline
from kanalyze.renderers.formats import document
from kanalyze.renderers.formats.document import encoded, fitted
from support.command import SAMPLES
from support.real_reports import real_report


def decoded(text):
    """Header, and by name the numbers of each column."""
    data = zlib.decompress(b64decode(text))
    length = int.from_bytes(data[:4], "little")
    head, at = json.loads(data[4 : 4 + length]), 4 + length
    columns = {}
    for told in head["columns"]:
        planes = [data[at + plane * told["count"] : at + (plane + 1) * told["count"]] for plane in range(told["width"])]
        values = [sum(plane[row] << (8 * place) for place, plane in enumerate(planes)) for row in range(told["count"])]
        for row, high in told["beyond"]:
            values[row] += high << 32
        columns[told["name"]] = values
        at += told["width"] * told["count"]
    assert at == len(data)
    return head, columns


def events_of(text):
    """Rows of the events: track, lane, start, end, name, note, tone, launch, count, covered."""
    head, columns = decoded(text)
    begins = [lane["at"] for lane in head["lanes"]] + [len(columns["length"])]
    sums, at = {}, 0
    for step, covered, count in zip(columns["at"], columns["covered"], columns["count"], strict=True):
        at += step
        sums[at] = (count, covered)
    rows = []
    for lane, stop in zip(head["lanes"], begins[1:], strict=True):
        now = lane["start"]
        for row in range(lane["at"], stop):
            now += columns["step"][row]
            length = columns["length"][row]
            texts = [head["texts"][columns[name][row]] for name in ("name", "note")]
            rows.append(
                (
                    lane["track"], lane["lane"], now, now + length, *texts, head["tones"][columns["tone"][row]],
                    columns["launch"][row] - 1, *sums.get(row, (1, length)),
                )
            )  # fmt: skip
    return rows


def expected(found):
    told = found.events.select(
        "track", "lane", pl.col("start", "end") - found.start_ns, pl.col("name", "note").cast(pl.String).fill_null(""),
        pl.col("tone").cast(pl.String), pl.col("launch").fill_null(-1), "count", "covered_ns",
    )  # fmt: skip
    return told.rows()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("mlp_train", 300), ("streams", 100_000)])
def test_real_timelines_come_back(name, most):
    found = timeline(real_report(SAMPLES / name / "nsys.sqlite"), most)
    assert events_of(encoded(found)) == expected(found)


def made(spans, start=0):
    rows = [(0, lane, low, low + length) for lane, (low, length) in enumerate(spans)]
    events = pl.DataFrame(
        rows, schema={"track": pl.UInt16, "lane": pl.UInt16, "start": pl.Int64, "end": pl.Int64}, orient="row"
    )
    events = events.with_columns(
        name=pl.lit("k").cast(pl.Categorical), note=pl.lit(None).cast(pl.Categorical),
        launch=pl.lit(None, dtype=pl.Int64),
        tone=pl.lit("kernel").cast(pl.Enum(TONES)), covered_ns=pl.col("end") - pl.col("start"),
        count=pl.lit(1, dtype=pl.UInt32), several=pl.lit(value=False),
    )  # fmt: skip
    track = Track("GPU 0", "ledger", "ledger")
    return Timeline(start, start + (1 << 50), start, [track], events, [], 0, 0)


@given(st.lists(st.tuples(st.integers(0, 1 << 49), st.integers(0, 1 << 49)), min_size=1, max_size=5))
def test_times_beyond_32_bits_are_exact(spans):
    found = made(spans)
    assert events_of(encoded(found)) == expected(found)


def test_a_counter_of_many_points_keeps_its_highest():
    points = pl.DataFrame({"t_ns": range(100_000), "value": [at % 977 for at in range(100_000)]}).with_columns(
        value=pl.when(pl.col("t_ns") == 54_321).then(5000).otherwise("value")
    )
    found = replace(made([(0, 100_000)]), counters=[Counter("GPU 0", "memory", "bytes", points)], end_ns=100_000)
    head, _ = decoded(encoded(found))
    (counter,) = head["counters"]
    assert len(counter["t"]) <= 2002
    assert (54_321, 5000) in zip(counter["t"], counter["value"], strict=True)
    assert counter["value"][-1] == 99_999 % 977


def test_names_beyond_the_room_are_said_to_be_left_out(monkeypatch):
    monkeypatch.setattr(document, "_ALL_NAMES", 40)
    found = made([(0, 5)] * 3)
    names = pl.Series(["a" * 30, "b" * 30, ""], dtype=pl.Categorical)
    head, columns = decoded(encoded(replace(found, events=found.events.with_columns(name=names))))
    told = [head["texts"][number] for number in columns["name"]]
    assert told == ["a" * 30, "(name left out of this file)", ""]


def test_what_does_not_fit_is_reduced_until_it_does():
    found = timeline(real_report(SAMPLES / "mlp_train" / "nsys.sqlite"), 100_000)
    room = len(encoded(found)) // 3
    fewer, data = fitted(found, room)
    assert len(data) <= room
    assert fewer.events.get_column("count").sum() == found.events.get_column("count").sum()
    assert events_of(data) == expected(fewer)
