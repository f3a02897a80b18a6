"""Total against exposed: what hides what, and launches, of which latency is no part of any call."""

import pytest
from hypothesis import given

from kanalyze.analyses.idle.exposure import exposure
from kanalyze.window import Window
from support.build import kernel, launched, memcpy, overhead, report
from support.shares import cases, holds
from support.slow_model import SlowModel
from support.strategies import EVENTS, WINDOWS

#: What shows that the process began in the recording.
BEGUN = overhead("Lazy Function Loading", -9, -8)


def rows(events, category, *columns):
    return exposure(report(events)).filter(category=category).select(columns).rows()


def test_latency_is_not_taken_off_the_calls():
    """Two calls of 10 ns: in the first the device waits for 10 and then for 30 more, in the second it runs."""
    events = [
        BEGUN,
        *launched(0, 10, kernel(40, 100, correlation=1)),
        *launched(50, 60, kernel(100, 110, correlation=2)),
    ]
    columns = ("total_ns", "union_ns", "exposed_ns", "hidden_share")
    assert rows(events, "launch", *columns) == [(20, 20, 40, 0.5)]


def test_copies_behind_kernels_are_hidden():
    events = [kernel(0, 60), memcpy(40, 80), memcpy(50, 70, direction="Device-to-Host")]
    found = rows(events, "memcpy", "detail", "total_ns", "union_ns", "exposed_ns", "hidden_share")
    assert found == [(None, 60, 40, 20, 0.5), ("Host-to-Device", 40, 40, 20, 0.5), ("Device-to-Host", 20, 20, 0, 1.0)]


@cases(0.02)
@given(EVENTS, WINDOWS)
def test_the_hidden_share_of_launches_is_that_of_a_loop_over_every_instant(events, window):
    model, parts = SlowModel(events, window), []
    found = exposure(report(events).narrow(window=Window(*window)))
    for device in model.devices:
        low, high = model.window(device)
        launches = {model.launch_of(item) for item in model.operations if item.event.device == device} - {None}
        calling = {at for item in launches for at in range(max(item.start, low), min(item.end, high))}
        waited = sum(told == ["launch", "call"] for _, *told in model.instants(device))
        shares = found.filter(device=device, category="launch").get_column("hidden_share").to_list()
        assert shares == [pytest.approx(1 - waited / len(calling))] if calling else shares in ([], [None])
        parts.append(0 < waited < len(calling))
    holds(any(parts))
