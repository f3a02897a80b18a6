"""Pictures of tables, the roofline among them: what their texts say, in each format."""

import re
import sys

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.joining.joined import roof_points
from kanalyze.errors import OutputError
from kanalyze.renderers.formats.charts import roofline_chart
from kanalyze.renderers.tables import plots
from support.command import SAMPLES, run
from support.counters import measured
from support.real_reports import real_capture

pytest.importorskip("matplotlib")


def test_a_bucket_of_several_rows_is_their_sum():
    rows = [(0, "kernel", 3_000_000), (0, "kernel", 1_000_000), (0, "host", 4_000_000), (1, "host", 5_000_000)]
    frame = pl.DataFrame(rows, schema=["device", "bucket", "ns"], orient="row")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", plots.ledger(frame, "svg").decode())
    found = [text for text in texts if text.endswith("%") or text.startswith("GPU")]
    assert sorted(found) == ["100.0 %", "50.0 %", "50.0 %", "GPU 0", "GPU 1"]


def test_a_picture_in_pixels_says_how_large_it_is():
    made = plots.ledger(pl.DataFrame({"device": [0], "bucket": ["kernel"], "ns": [5]}), "png")
    density = made.index(b"pHYs") + 4
    assert round(int.from_bytes(made[density : density + 4]) * 0.0254) == 160
    assert int.from_bytes(made[16:20]) == 9 * 160


CDIST = SAMPLES / "cdist"


def test_points_are_sized_by_the_time_of_the_program():
    found = roof_points(real_capture(CDIST))
    assert (found.time_from, found.left_out) == ("nsys", 2)
    assert found.points["time_ns"][0] == kanalyze.joined(*real_capture(CDIST))["exclusive_ns"][0]
    assert found.points["time_ns"].is_sorted(descending=True)


def test_the_time_is_that_of_the_report_that_the_counters_belong_to():
    """The first one gives time as well, but ncu measured another capture."""
    timed = kanalyze.read(SAMPLES / "launch_bound_plain" / "nsys.sqlite")
    found, alone = roof_points([timed, *real_capture(CDIST)]), roof_points(real_capture(CDIST))
    assert alone.points.height > 0
    assert found.points.equals(alone.points)
    assert found.title == alone.title
    twice = roof_points([*real_capture(CDIST), *real_capture(SAMPLES / "gelu")])
    assert twice.title.endswith(f", time of {CDIST.name}")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OutputError, match="needs matplotlib") as raised:
        plots.roofline(roofline_chart(roof_points(real_capture(CDIST))), "svg")
    assert "kanalyze[plot]" in raised.value.remedy


@pytest.mark.slow
def test_a_picture_says_what_it_leaves_out(tmp_path):
    path = tmp_path / "roof.svg"
    ran = run("plot", "roofline", CDIST, "-o", path)
    assert (ran.status, ran.error) == (0, "")
    text = path.read_text()
    assert 'width="792pt" height="446.4pt" viewBox="0 0 792 446.4"' in text  # in inches 11 by 6.2
    assert "fp32 50.68 TFLOP/s" in text
    assert "without 2 kernels that did no such work" in text
    assert len(re.findall(r'<g id="PathCollection_\d+">', text)) == 3 + 3  # points, and their list


def test_a_picture_may_be_empty():
    assert b"no kernel did floating-point work" in plots.roofline(roofline_chart(roof_points([measured({})])), "svg")
