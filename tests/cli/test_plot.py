"""`kanalyze plot`: tables as pictures."""

import re

import pytest

from support.command import ADD, MLP, SAMPLES, refused, run


def drawn(tmp_path, *arguments):
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.svg"
    ran = run("plot", *arguments, "-o", path)
    assert (ran.status, ran.text, ran.error) == (0, "", "")
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())


@pytest.mark.slow
def test_durations_are_of_one_kernel(tmp_path):
    found = drawn(tmp_path, MLP, "durations", "--kernel", "SOFTMAX")
    assert [text for text in found if "softmax" in text and text.endswith("42 launches")]
    assert [text for text in drawn(tmp_path, MLP, "durations") if text.endswith("126 launches")]
    message, _ = refused(run("plot", MLP, "durations", "--kernel", "no such", "-o", tmp_path / "y.svg"))
    assert message == "no kernel 'no such'."


@pytest.mark.slow
def test_a_timeline_is_of_a_window_with_a_row_for_each_track(tmp_path):
    found = drawn(tmp_path, MLP, "timeline", "--window", "step#30")
    assert "Timeline of 954.7 µs" in found
    rows = ("iterations", "GPU 0, ledger", "GPU 0, stream 7", "GPU 0, utilisation", "GPU 0, copied Host-to-Device")
    assert [text for text in found if text in rows] == [*rows]
    assert "GPU 0, copied Device-to-Host" not in found
    assert {"step 30", "forward", "backward", "kernel", "launch"} <= {*found}


@pytest.mark.slow
def test_ranks_say_who_was_late(tmp_path):
    found = drawn(tmp_path, SAMPLES / "ddp_late", "ranks")
    assert {"rank 0", "rank 1", "late by 664.8 µs", "late by 29.53 ms", "transfer"} <= {*found}
    assert "is of one report" in run("plot", ADD, MLP, "timeline", "-o", tmp_path / "x.svg").error


@pytest.mark.slow
def test_a_comparison_goes_from_base_to_new(tmp_path):
    sides = (SAMPLES / f"launch_bound_{name}" / "nsys.sqlite" for name in ("plain", "graph"))
    found = drawn(tmp_path, *sides, "compare")
    assert found.index("base") < found.index("launch") < found.index("host") < found.index("new")
    assert "−6.533 ms" in found


@pytest.mark.parametrize(("form", "begin"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pictures_have_three_formats_and_are_the_same_each_time(tmp_path, form, begin):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"x.{form}"
    assert run("plot", ADD, "ledger", "-o", path).status == 0
    first = path.read_bytes()
    assert first.startswith(begin)
    assert run("plot", ADD, "ledger", "-o", path).status == 0
    assert path.read_bytes() == first


def test_what_cannot_be_drawn_is_said(tmp_path):
    assert "no kind of picture 'gif'" in refused(run("plot", ADD, "ledger", "-o", tmp_path / "x.gif"))[0]
    assert run("plot", ADD, "no such", "-o", tmp_path / "x.svg").status == 2
    assert "is of one report" in run("plot", ADD, MLP, "steps", "-o", tmp_path / "x.svg").error
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_iterations_leave_room_for_the_usual_ones(tmp_path):
    found = drawn(tmp_path, MLP, "steps")
    assert "Iterations: step" in found
    assert [text for text in found if "↑ 196" in text]
    message, _ = refused(run("plot", ADD, "steps", "-o", tmp_path / "y.svg"))
    assert "nothing in it repeats" in message


@pytest.mark.slow
def test_laws_are_points_and_lines_by_the_size_of_a_graph_or_by_tokens(tmp_path):
    found = drawn(tmp_path, SAMPLES / "serving" / "vllm.sqlite", "laws")
    assert {"Steps: decode by graph", "tokens", "ms of the GPU"} <= {*found}
    assert "no kind of step has a law" in drawn(tmp_path, ADD, "laws")
    assert "laws is of one report" in run("plot", ADD, MLP, "laws", "-o", tmp_path / "x.svg").error
