"""Pictures of measured kernels and copies: places are by the logarithm, and all of it is inside."""

import polars as pl
import pytest

from kanalyze.analyses.joining._roof_points import RoofPoints
from kanalyze.analyses.page.file_page import CopyPoints
from kanalyze.renderers.report_file import charts

SCHEMA = ["name", "time_ns", "intensity_flop_per_byte", "achieved_flop_per_s", "precision", "peak_flop_per_s",
          "peak_dram_bytes_per_s", "bound", "roof_share", "flop"]  # fmt: skip


def roofs(*rows):
    return RoofPoints("report", pl.DataFrame(rows, schema=SCHEMA, orient="row"), 2, "nsys")


def drawn(found):
    return charts.roofline(
        roofs(
            ("a<1>", 900, 0.1, 1e11, "fp32", 6e13, 4e12, "memory", 0.25, 1.0),
            ("b<2>", 100, 10.0, 1e12, "fp32", 6e13, 4e12, "compute", 0.5, 1.0),
        )
        if found is None
        else found
    )


def test_points_are_where_their_logarithms_are():
    chart = drawn(None)
    (first, second) = chart["points"]
    ticks = dict(chart["columns"])
    assert first.text.startswith("a<1>: 90.0 % of the time, 100.0 GFLOP/s, 25.0 % of its roof")
    assert [point.kind for point in chart["points"]] == ["memory", "compute"]
    places = {text: float(x) for x, text in chart["columns"]}
    assert places["10"] - places["1"] == pytest.approx(places["1"] - places["0.1"], abs=0.2)
    assert float(first.x) == pytest.approx(places["0.1"], abs=0.1)
    assert float(second.x) == pytest.approx(places["10"], abs=0.1)
    assert float(first.y) > float(second.y)
    assert ticks
    assert "without 2 kernels" in chart["remark"]


def test_the_roofs_meet_at_the_ridge():
    (compute, *_), (memory, *_) = drawn(None)["lines"]
    assert memory.text == "DRAM 4.000 TB/s"
    assert compute.text == "fp32 60.00 TFLOP/s"
    assert memory.points[-1] == pytest.approx(compute.points[-1])


def test_everything_is_inside_the_picture():
    chart = drawn(None)
    for point in chart["points"]:
        assert chart["axes"].left <= float(point.x) <= chart["axes"].right
        assert chart["axes"].top <= float(point.y) <= chart["axes"].bottom
    for line, *_ in chart["lines"]:
        for x, y in line.points:
            assert chart["axes"].left - 0.1 <= x <= chart["axes"].right + 0.1
            assert chart["axes"].top - 0.1 <= y <= chart["axes"].bottom + 0.1


def test_one_kernel_whose_peaks_are_not_known():
    chart = drawn(roofs(("k", 0, 1.0, 1e9, None, None, None, None, None, 1.0)))
    assert chart["lines"] == []
    assert chart["points"][0].kind == "unbound"


def test_copies_say_direction_memories_and_bandwidth():
    points = pl.DataFrame(
        [("Host-to-Device", "Pageable", "Device", 1 << 20, 3, 300_000, 1.05e10), (None, None, None, 8, 1, 1000, 8e6)],
        schema=[
            "direction",
            "source_memory",
            "target_memory",
            "size_bytes",
            "count",
            "total_ns",
            "bandwidth_bytes_per_s",
        ],
        orient="row",
    )
    links = pl.DataFrame(
        [("Host-to-Device", 1 << 20, 2e10)], schema=["direction", "size_bytes", "bandwidth_bytes_per_s"], orient="row"
    )
    chart = charts.copies(CopyPoints(points, links, 0))
    assert chart["points"][0].text == (
        "Host-to-Device, Pageable to Device: 3 × 1.049 MB at 10.50 GB/s, 300.0 µs in all"
    )
    assert [kind for kind, _ in chart["key"]] == ["to-device", "other-way"]
    assert [line.text for line, *_ in chart["lines"]] == ["Host-to-Device: 20.00 GB/s"]


def test_labels_of_lines_that_lie_close_together_are_below_each_other():
    points = pl.DataFrame(
        [("Host-to-Device", "Pinned", "Device", 1 << 20, 3, 300_000, 1e10)],
        schema=[
            "direction",
            "source_memory",
            "target_memory",
            "size_bytes",
            "count",
            "total_ns",
            "bandwidth_bytes_per_s",
        ],
        orient="row",
    )
    links = pl.DataFrame(
        [("Host-to-Device", 1 << 20, 5.53e10), ("Device-to-Host", 1 << 20, 5.54e10)],
        schema=["direction", "size_bytes", "bandwidth_bytes_per_s"],
        orient="row",
    )
    upper, lower = charts.copies(CopyPoints(points, links, 0))["lines"]
    assert upper[0].text.startswith("Device-to-Host")
    assert lower[2] - upper[2] == pytest.approx(20, abs=0.2)
