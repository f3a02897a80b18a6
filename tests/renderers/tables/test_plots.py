"""Pictures of tables made by hand: what their texts say."""

import re

import polars as pl
import pytest

pytest.importorskip("matplotlib")

from kanalyze.renderers.tables import plots


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg.decode())


def test_a_bucket_of_several_rows_is_their_sum():
    rows = [(0, "kernel", 3_000_000), (0, "kernel", 1_000_000), (0, "host", 4_000_000), (1, "host", 5_000_000)]
    frame = pl.DataFrame(rows, schema=["device", "bucket", "ns"], orient="row")
    found = [text for text in texts(plots.ledger(frame, "svg")) if text.endswith("%") or text.startswith("GPU")]
    assert sorted(found) == ["100.0 %", "50.0 %", "50.0 %", "GPU 0", "GPU 1"]


def test_a_picture_in_pixels_says_how_large_it_is():
    frame = pl.DataFrame({"device": [0], "bucket": ["kernel"], "ns": [5]})
    made = plots.ledger(frame, "png")
    density = made.index(b"pHYs") + 4
    assert round(int.from_bytes(made[density : density + 4]) * 0.0254) == 160
    assert int.from_bytes(made[16:20]) == 9 * 160
