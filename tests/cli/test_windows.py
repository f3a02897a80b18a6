"""Windows on the command line: times since the first event, before or after everything, and without duration."""

import json

import pytest

from support.command import ADD, REPORTS, SAMPLES, refused, run
from support.exports import altered

TRACE = REPORTS / "torch" / "ddp.json.gz"
LIMITS = {ADD: "0.000 ms to 1.309239 s", TRACE: "+0.000 ms to +27.145 ms"}


def test_times_since_the_first_event():
    trace = SAMPLES / "mlp_train" / "torch.json.gz"
    events, page = (
        json.loads(run(*words, "--format", "json").text)
        for words in (("show", "events", trace), ("summarize", trace, "--window", "+1ms..+2ms"))
    )
    first, found = min(row["start_ns"] for row in events), page["scope"]
    assert (found["window_start_ns"] - first, found["window_end_ns"] - first) == (1_000_000, 2_000_000)


@pytest.mark.parametrize("command", [("summarize",), ("show", "kernels"), ("show", "ledger"), ("show", "events")])
@pytest.mark.parametrize("path", LIMITS, ids=str)
@pytest.mark.parametrize("window", ["100s..200s", "+100s..", "..-1s", "-2s..-1ns"])
@pytest.mark.one_in(4)
def test_a_window_outside_is_refused_with_the_limits(command, path, window):
    message, remedy = refused(run(*command, path, "--window", window))
    assert message == f"--window {window!r}: {path} has nothing then, it was recorded from {LIMITS[path]}."
    assert remedy.endswith("[bad-window]")


def test_of_instances_without_duration_it_is_said_that_they_are_left_out(tmp_path):
    first = "SELECT rowid FROM NVTX_EVENTS WHERE text = 'step' ORDER BY start LIMIT 2"
    emptied = f"UPDATE NVTX_EVENTS SET end = start WHERE rowid IN ({first}) OR text = 'sibling'"
    result = run("summarize", altered(tmp_path, REPORTS / "nvtx.sqlite", emptied), "--window", "step#*")
    assert (result.status, result.error) == (0, "kanalyze: --window 'step#*': left out 2 ranges without duration.\n")
    assert "18 instances of step" in result.text
