"""Parts of the HTML report that are limited say what they leave out."""

import re
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from markupsafe import Markup

from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.renderers.report_file.document import (
    _SECTIONS,
    _iterations,
    _own_parts,
    _rendered,
    _timeline,
    _waiting,
    _waits,
    environment,
)
from kanalyze.report import Meta
from support.hostile import ALL, obeyed_by_terminal


def rendered(**parts):
    texts = {"title": "t", "beside": "", "answer": "", "first_remark": "", "timeline": None}
    meta = Meta(Path("a"), "nsys", "2026.1", rank=2, world_size=8)
    recorded = {"recorded": [meta]}
    return _rendered(dict.fromkeys(_SECTIONS, ()) | texts | recorded | _own_parts() | parts)


def waits(ranks, steps):
    rows = [(rank, step, 100, rank, step == 0 and rank == 5) for rank in range(ranks) for step in range(steps)]
    return pl.DataFrame(rows, schema=["rank", "step", "ns", "wait_ns", "late"], orient="row").with_columns(
        late_ns=pl.col("late").cast(pl.Int64) * 50
    )


def test_the_grid_of_waiting_has_room_for_the_latest_ranks_and_the_first_steps():
    found = _waiting(waits(100, 200))
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


def test_a_small_grid_of_waiting_is_whole():
    found = _waiting(waits(8, 3))
    assert found["remark"].startswith("8 ranks by 3 steps; ")
    assert len(found["cells"]) == 24
    assert [cell["wait_ns"] for cell in found["cells"] if cell["y"] == 70] == [7] * 3


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


def test_a_tree_of_waiting_is_chosen_by_the_time_of_all_its_roots():
    columns = {"parent": [None, None, 1], "name": ["main", "load", "read"], "kind": "function", "count": [1, 2, 1]}
    tree = pl.DataFrame({**columns, "ns": [10_000, 20_000, 15_000], "nodes": 1})
    ((chosen, nodes),) = _waits({"GPU 0": tree}).items()
    assert chosen == "GPU 0: 30.00 µs"
    assert nodes[2] == (1, "read", "function", 1, 15_000)


@pytest.mark.parametrize("text", [text for text in ALL if len(text) < 1000])
def test_every_text_that_the_template_takes_is_printable(text):
    template = environment().from_string('<a title="{{ text }}">{{ text }}</a>{{ ours }}')
    made = template.render(text=text, ours=Markup("<b>\n</b>"))
    assert obeyed_by_terminal(made) == ""
    assert made.endswith("<b>\n</b>")
    assert made.count("<") == 4


def test_bars_of_durations_stand_on_one_line():
    kernel = {"least_ns": 10, "most_ns": 2_000, "counts": [1, 0, 4]}
    drawn = environment().get_template("charts.html.j2").module.distribution(kernel)
    assert "<title>10 ns to 2.000 µs</title>" in drawn
    bars = re.findall(r'<rect x="(.*?)" y="(.*?)" width="39.6" height="(.*?)"', drawn)
    assert bars == [("0.0", "16.0", "6.0"), ("80.0", "1.0", "21.0")]
    assert {float(y) + float(height) for _, y, height in bars} == {22.0}


def test_contents_link_to_the_parts_that_there_are():
    drawn = {"remark": "", "data": "", "legend": []}
    without, found = (
        re.findall('<a href="#(.*?)">(.*?)</a>', rendered(timeline=timeline)) for timeline in (None, drawn)
    )
    assert without == [("recorded", "How it was recorded")]
    assert [one for one in found if one not in without] == [("timeline", "Timeline")]


def test_the_heading_of_the_timeline_counts_what_is_drawn_one_by_one():
    rows = [(0, "kernel", 1, False), (0, "kernel", 1, False), (0, "host", 40, True), (1, "kernel", 7, True)]
    events = pl.DataFrame(rows, schema=["track", "tone", "count", "several"], orient="row")
    tracks = [SimpleNamespace(kind="stream"), SimpleNamespace(kind="ledger")]
    found = _timeline(SimpleNamespace(events=events, tracks=tracks, left_out=0, tracks_left_out=0), "", 0)
    assert found["remark"] == "42 events, 2 of them one by one, the shorter ones in 1 sums"
    assert [name for name, _ in found["legend"]] == ["kernel", "host"]


def test_lines_of_the_template_alone_leave_nothing_in_the_file():
    made = environment().from_string("  {% if true %}\n  <b>\n  {% endif %}\n").render()
    assert made == "  <b>\n"
