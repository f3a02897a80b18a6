"""Windows before or after everything that was recorded."""

import pytest

from support.command import ADD, REPORTS, refused, run

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
