"""Parts of the HTML report: what is limited says what it leaves out, and pictures have their points inside."""

import re
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from markupsafe import Markup

from kanalyze.analyses.joining.joined import RoofPoints
from kanalyze.analyses.page.file_page import CopyPoints
from kanalyze.analyses.page.time_page import TABLES
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.renderers.formats import charts, document
from kanalyze.renderers.formats.document import _SECTIONS, _iterations, _rendered, _timeline, _waiting, environment
from kanalyze.renderers.page import Page
from kanalyze.report import Meta
from support.hostile import ALL, obeyed_by_terminal


def rendered(**parts):
    texts = {"page": Page(["t"], "", [], ""), "timeline": None}
    recorded = {"recorded": [Meta(Path("a"), "nsys", "2026.1", rank=2, world_size=8)]}
    return _rendered(dict.fromkeys(_SECTIONS, ()) | texts | recorded | parts)


@pytest.mark.slow
def test_the_grid_of_waiting_has_room_for_the_latest_ranks_and_the_first_steps():
    rows = [(rank, step, 100, rank, step == 0 and rank == 5) for rank in range(100) for step in range(200)]
    waits = pl.DataFrame(rows, schema=["rank", "step", "ns", "wait_ns", "late"], orient="row")
    found = _waiting(waits.with_columns(late_ns=pl.col("late").cast(pl.Int64) * 50))
    assert len(found["ranks"]) == 64
    assert 5 in found["ranks"]  # it is late, and waits least but for five
    assert found["ranks"] == sorted(found["ranks"])
    assert len(found["cells"]) == 64 * (6000 // 64) <= 6000
    assert found["remark"].startswith("the latest 64 of 100 ranks by the first 93 of 200 steps; ")
    (late,) = (cell for cell in found["cells"] if cell["late"])
    assert (late["rank"], late["step"]) == (5, 0)
    drawn = rendered(waiting=found)
    assert 'fill-opacity="0.050" class="tone-communication late"' in drawn
    assert "<title>rank 5, step 0: waits 5 ns of 100 ns, late by 50 ns</title>" in drawn


def steps(*durations, kind="steady"):
    rows = [(f"s<{kind}>", at, kind, ns) for at, ns in enumerate(durations)]
    frame = pl.DataFrame(rows, schema=["name", "index", "kind", "dur_ns"], orient="row")
    return frame.with_columns(pl.lit(0).alias(f"{bucket}_ns") for bucket in BUCKETS).with_columns(kernel_ns="dur_ns")


def test_the_heading_of_iterations_says_how_many_are_drawn():
    found = _iterations(steps(*[1000] * 500))
    assert found["remark"] == "the first 400 of 500 × s<steady>; the picture is 1.000 µs high; pale: not steady"
    assert rendered(iterations=found).count("<rect ") == 400


def test_the_heading_of_iterations_says_what_is_cut():
    found = _iterations(pl.concat([steps(50_000, kind="warm-up"), steps(1000, 800)]))
    assert found["remark"] == "3 × s<warm-up>; the picture is 1.250 µs high; what is longer is cut; pale: not steady"
    drawn = re.findall(r'height="([\d.]+)" class="tone-kernel( odd)?"><title>(.*?)</title>', rendered(iterations=found))
    assert drawn[:2] == [
        ("120.00", " odd", "s&lt;warm-up&gt; 0 (warm-up): kernel 50.00 µs of 50.00 µs"),
        ("96.00", "", "s&lt;steady&gt; 0 (steady): kernel 1.000 µs of 1.000 µs"),
    ]
    assert len(drawn) == 3


@pytest.mark.parametrize("text", [text for text in ALL if len(text) < 1000])
def test_every_text_that_the_template_takes_is_printable(text):
    template = document.environment().from_string('<a title="{{ text }}">{{ text }}</a>{{ ours }}')
    made = template.render(text=text, ours=Markup("<b>\n</b>"))
    assert obeyed_by_terminal(made) == ""
    assert made.endswith("<b>\n</b>")
    assert made.count("<") == 4


def test_bars_of_durations_stand_on_one_line():
    kernel = {"least_ns": 10, "most_ns": 2_000, "counts": [1, 0, 4]}
    drawn = document.environment().get_template("charts.html.j2").module.distribution(kernel)
    assert "<title>10 ns to 2.000 µs</title>" in drawn
    bars = re.findall(r'<rect x="(.*?)" y="(.*?)" width="39.6" height="(.*?)"', drawn)
    assert bars == [("0.0", "16.0", "6.0"), ("80.0", "1.0", "21.0")]
    assert {float(y) + float(height) for _, y, height in bars} == {22.0}


def test_the_heading_of_the_timeline_counts_what_is_drawn_one_by_one():
    rows = [(0, "kernel", 1, False), (0, "kernel", 1, False), (0, "host", 40, True), (1, "kernel", 7, True)]
    events = pl.DataFrame(rows, schema=["track", "tone", "count", "several"], orient="row")
    tracks = [SimpleNamespace(kind="stream"), SimpleNamespace(kind="ledger")]
    found = _timeline(SimpleNamespace(events=events, tracks=tracks, left_out=0, tracks_left_out=0), "", 0)
    assert found["remark"] == "42 events, 2 of them one by one, the shorter ones in 1 sums"
    assert [name for name, _ in found["legend"]] == ["kernel", "host"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["exclusive_ns", "exclusive_share", "count"], ["time", "share", "count"]),
        (["ns", "exclusive_ns"], ["time", "exclusive time"]),
        (["memcpy_ns", "memcpy_share", "d2h_bytes", "gpu_busy_ns"], ["memcpy", "memcpy share", "to host", "GPU busy"]),
        (["api", "api_ns", "avg_cpu_ns"], ["api", "api time", "average CPU"]),
        (["start_ns", "t_ns", "longest_ns"], ["start", "at", "longest"]),
    ],
)
def test_headings_are_words_and_differ(columns, expected):
    assert document.headings(columns) == dict(zip(columns, expected, strict=True))


def test_every_column_of_every_table_has_a_heading_of_its_own():
    for table in TABLES:
        texts = document.headings([column.name for column in table.columns])
        assert len({*texts.values()}) == len(table.columns)
        assert not [text for text in texts.values() if text.endswith("_ns")]


def test_glyphs_of_bars_and_of_legends_have_colours_and_texts_are_escaped():
    box = '<span class="key part-{}"></span>'
    keyed = environment().filters["keyed"]
    assert keyed("█░▓·") == "".join(map(box.format, ("kernel", "waiting", "transfer", "rest")))
    assert keyed("  █|") == f"  {box.format('kernel')}|"
    assert keyed("█ kernels <b>") == f"{box.format('kernel')} kernels &lt;b&gt;"


SCHEMA = ["name", "time_ns", "intensity_flop_per_byte", "achieved_flop_per_s", "precision", "peak_flop_per_s",
          "peak_dram_bytes_per_s", "bound", "roof_share", "flop"]  # fmt: skip

KERNELS = (
    ("a<1>", 900, 0.1, 1e11, "fp32", 6e13, 4e12, "memory", 0.25, 1.0),
    ("b<2>", 100, 10.0, 1e12, "fp32", 6e13, 4e12, "compute", 0.5, 1.0),
)


def drawn(*rows):
    return charts.roofline_chart(RoofPoints("report", pl.DataFrame(rows, schema=SCHEMA, orient="row"), 2, "nsys"))


def test_points_are_where_their_logarithms_are():
    chart = drawn(*KERNELS)
    (first, second) = chart["points"]
    assert first["text"].startswith("a<1>: 90.0 % of the time, 100.0 GFLOP/s, 25.0 % of its roof")
    assert [point["kind"] for point in chart["points"]] == ["memory", "compute"]
    places = {text: float(x) for x, text in chart["columns"]}
    assert places["10"] - places["1"] == pytest.approx(places["1"] - places["0.1"], abs=0.2)
    assert float(first["x"]) == pytest.approx(places["0.1"], abs=0.1)
    assert float(second["x"]) == pytest.approx(places["10"], abs=0.1)
    assert float(first["y"]) > float(second["y"])
    assert "without 2 kernels" in chart["remark"]


def test_the_roofs_meet_at_the_ridge_and_everything_is_inside_the_picture():
    chart = drawn(*KERNELS)
    axes, ((compute, *_), (memory, *_)) = chart["axes"], chart["lines"]
    assert [memory["text"], compute["text"]] == ["DRAM 4.000 TB/s", "fp32 60.00 TFLOP/s"]
    assert memory["points"][-1] == pytest.approx(compute["points"][-1])
    for x, y in [(one["x"], one["y"]) for one in chart["points"]] + memory["points"] + compute["points"]:
        assert axes.left - 0.1 <= x <= axes.right + 0.1
        assert axes.top - 0.1 <= y <= axes.bottom + 0.1


COPIES = ["direction", "source_memory", "target_memory", "size_bytes", "count", "total_ns", "bandwidth_bytes_per_s"]
LINKS = ["direction", "size_bytes", "bandwidth_bytes_per_s"]


def copied(points, links):
    return charts.copies_chart(
        CopyPoints(*(pl.DataFrame(*one, orient="row") for one in ((points, COPIES), (links, LINKS))), 0)
    )


def test_copies_say_direction_memories_and_bandwidth():
    large = ("Host-to-Device", "Pageable", "Device", 1 << 20, 3, 300_000, 1.05e10)
    chart = copied([large, (None, None, None, 8, 1, 1000, 8e6)], [("Host-to-Device", 1 << 20, 2e10)])
    assert chart["points"][0]["text"] == (
        "Host-to-Device, Pageable to Device: 3 × 1.049 MB at 10.50 GB/s, 300.0 µs in all"
    )
    assert [kind for kind, _ in chart["key"]] == ["to-device", "other-way"]
    assert [line["text"] for line, *_ in chart["lines"]] == ["Host-to-Device: 20.00 GB/s"]


def test_labels_of_lines_that_lie_close_together_are_below_each_other():
    links = [("Host-to-Device", 1 << 20, 5.53e10), ("Device-to-Host", 1 << 20, 5.54e10)]
    upper, lower = copied([("Host-to-Device", "Pinned", "Device", 1 << 20, 3, 300_000, 1e10)], links)["lines"]
    assert upper[0]["text"].startswith("Device-to-Host")
    assert lower[2] - upper[2] == pytest.approx(20, abs=0.2)
