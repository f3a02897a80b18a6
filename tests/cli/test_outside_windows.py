"""Windows before or after everything that was recorded."""

import pytest

from kanalyze.errors import BadWindowError
from support.build import kernel, report
from support.command import ADD, REPORTS, SAMPLES, refused, run

TRACE = REPORTS / "torch" / "ddp.json.gz"
LIMITS = {ADD: "0.000 ms to 1.309239 s", TRACE: "+0.000 ms to +27.145 ms"}


@pytest.mark.parametrize("command", [("summarize",), ("show", "kernels"), ("show", "ledger"), ("show", "events")])
@pytest.mark.parametrize("path", LIMITS, ids=str)
@pytest.mark.parametrize("window", ["100s..200s", "+100s..+200s", "+100s..", "..-1s", "-2s..-1ns"])
@pytest.mark.one_in(4)
def test_a_window_outside_is_refused_with_the_limits(command, path, window):
    message, remedy = refused(run(*command, path, "--window", window))
    assert message == f"--window {window!r}: {path} has nothing then, it was recorded from {LIMITS[path]}."
    assert remedy.endswith("[bad-window]")


@pytest.mark.parametrize("path", LIMITS, ids=str)
def test_the_limits_that_are_told_are_a_window(path):
    _, remedy = refused(run("summarize", path, "--window", "100s..200s"))
    window = remedy.split("part of it: ")[1].split(".  [")[0]
    assert run("summarize", path, "--window", window).status == 0


@pytest.mark.parametrize("command", [("tree",), ("show", "joined")])
def test_what_is_read_of_captures_takes_none_either(command):
    message, _ = refused(run(*command, SAMPLES / "mlp_train", "--window", "100s..200s"))
    assert "was recorded from" in message


@pytest.mark.parametrize("window", ["1.309s..900s", "0ns..1ns", "1ms..2ms", "+0ns..+1ns", "..1ns", "1.3s.."])
def test_a_window_in_the_recording_with_nothing_in_it_is_fine(window):
    assert run("summarize", ADD, "--window", window).status == 0


def test_without_word_of_its_length_a_recording_lasts_until_its_last_event():
    of = report([kernel(1000, 3000)])
    assert of.window("0ns..1ns").end_ns == 1
    assert of.window("3us..4us").start_ns == 3000
    with pytest.raises(BadWindowError, match=r"from 0\.000 ms to 0\.003 ms"):
        of.window("3001ns..4us")
