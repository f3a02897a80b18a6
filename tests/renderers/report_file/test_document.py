"""Parts of the HTML report that are limited say what they leave out."""

import polars as pl

from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.renderers.report_file.document import _iterations, _waiting


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
    assert late["text"] == "rank 5, step 0: waits 5 ns of 100 ns, late by 50 ns"


def test_a_small_grid_of_waiting_is_whole():
    found = _waiting(waits(8, 3))
    assert found["remark"].startswith("8 ranks by 3 steps; ")
    assert len(found["cells"]) == 24
    assert [cell["full"] for cell in found["cells"] if cell["y"] == 70] == ["0.070"] * 3


def steps(*durations, kind="steady"):
    rows = [(f"s<{kind}>", at, kind, ns) for at, ns in enumerate(durations)]
    frame = pl.DataFrame(rows, schema=["name", "index", "kind", "dur_ns"], orient="row")
    return frame.with_columns(pl.lit(0).alias(f"{bucket}_ns") for bucket in BUCKETS).with_columns(kernel_ns="dur_ns")


def test_the_heading_of_iterations_says_how_many_are_drawn():
    found = _iterations(steps(*[1000] * 500))
    assert found["remark"] == "the first 400 of 500 × s<steady>; the picture is 1.000 µs high; pale: not steady"
    assert len(found["pieces"]) == 400


def test_the_heading_of_iterations_says_what_is_cut():
    found = _iterations(pl.concat([steps(50_000, kind="warm-up"), steps(1000, 800)]))
    assert found["remark"] == "3 × s<warm-up>; the picture is 1.250 µs high; what is longer is cut; pale: not steady"
    assert [piece["odd"] for piece in found["pieces"]] == [True, False, False]
    assert found["pieces"][0]["height"] == "120.00"
    assert found["pieces"][1]["height"] == "96.00"
