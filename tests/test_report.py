"""The part of a report that the user asked for: how it is said, and what is then looked at."""

import pytest

from kanalyze.errors import BadWindowError, UnknownNameError
from kanalyze.window import Scope, Window
from support.build import call, graph, kernel, memcpy, report


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        *(("120ms..250ms", 120_000_000, 250_000_000), ("..1.5s", None, 1_500_000_000), ("300us..", 300_000, None)),
        *(("..", None, None), (" 1 ms .. 2 ms ", 1_000_000, 2_000_000), ("-5ns..5ns", -5, 5)),
        ("999999999ns..1s", 999_999_999, 1_000_000_000),
    ],
)
def test_a_window_is_two_times_with_units(text, start, end):
    assert Window.parse(text) == Window(start, end)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no '..' between start and end"),
        ("120ms", "there is no '..' between start and end"),
        ("120ms-250ms", "there is no '..' between start and end"),
        ("120..250ms", "'120' is not a time with a unit (ns, us, ms or s)"),
        ("120ms..250", "'250' is not a time with a unit (ns, us, ms or s)"),
        ("1ms..2ms..3ms", "'2ms..3ms' is not a time with a unit (ns, us, ms or s)"),
        ("1ms...2ms", "'.2ms' is not a time with a unit (ns, us, ms or s)"),
        ("1h..2h", "'1h' is not a time with a unit (ns, us, ms or s)"),
        ("2ms..1ms", "the end is not after the start"),
        ("1ms..1ms", "the end is not after the start"),
        ("1ms..1000us", "the end is not after the start"),
    ],
)
def test_what_is_no_window_says_why(text, reason):
    with pytest.raises(BadWindowError) as caught:
        Window.parse(text)
    assert str(caught.value) == f"--window {text!r}: {reason}."
    assert "120ms..250ms" in caught.value.remedy


# Narrowing

EVENTS = [
    call("cudaLaunchKernel", 0, 10, correlation=1),
    kernel(5, 20, correlation=1),
    kernel(20, 30, device=1, process=2),
    memcpy(30, 30),
    graph(40, 50, process=2),
]


def ids(part, kind):
    return part.seen(kind).get_column("event_id").to_list()


def test_narrowing_adds_to_what_was_asked_for_before():
    part = report(EVENTS).narrow(window="0ns..25ns").narrow(device=1).narrow(process=2)
    assert part.scope == Scope(Window(0, 25), device=1, process=2)
    assert part.narrow(window="..30ns").scope == Scope(Window(None, 30), device=1, process=2)


@pytest.mark.parametrize(
    ("window", "kernels"),
    [
        *(("..", [1, 2]), ("19ns..20ns", [1]), ("20ns..21ns", [2]), ("0ns..5ns", []), ("..6ns", [1])),
        *(("29ns..", [2]), ("30ns..", []), ("10ns..12ns", [1])),
    ],
)
def test_an_event_is_seen_if_it_overlaps_the_window(window, kernels):
    part = report(EVENTS).narrow(window=window)
    assert ids(part, "kernel") == kernels
    assert part.seen("kernel").get_column("dur_ns").to_list() == [15 if number == 1 else 10 for number in kernels]


@pytest.mark.parametrize(("window", "copies"), [("30ns..31ns", [3]), ("29ns..30ns", []), ("29ns..31ns", [3])])
def test_an_instant_is_seen_where_it_is(window, copies):
    assert ids(report(EVENTS).narrow(window=window), "memcpy") == copies


@pytest.mark.parametrize(
    ("where", "seen"),
    [({"device": 1}, [[0], [2], [], []]), ({"process": 2}, [[], [2], [], [4]])],
)
def test_a_device_narrows_what_runs_on_devices_and_a_process_everything(where, seen):
    part = report(EVENTS).narrow(**where)
    assert [ids(part, kind) for kind in ("api", "kernel", "memcpy", "graph")] == seen


@pytest.mark.parametrize(
    ("look", "error", "remedy"),
    [
        (lambda: report(EVENTS).narrow(device=7), "no device '7'", "There are: 0, 1."),
        (lambda: report([]).narrow(device=0), "no device '0'", "There are: none."),
        (lambda: report(EVENTS).narrow(process=7), "no process '7'", "There are: 1, 2."),
        (lambda: report([]).table("device"), "no table 'device'", "Did you mean devices? There are: events, kernel"),
    ],
)
def test_what_is_not_there_names_what_is(look, error, remedy):
    with pytest.raises(UnknownNameError, match=error) as caught:
        look()
    assert caught.value.remedy.startswith(remedy)


# Tables


def test_events_are_all_kinds_in_scope_in_the_order_of_the_model():
    part = report(EVENTS).narrow(window="0ns..25ns")
    assert part.events.get_column("kind").to_list() == ["kernel", "kernel", "api"]
    assert report(EVENTS, kinds=("api", "range", "kernel")).kinds == ("kernel", "graph", "memcpy", "api", "range")
    assert report(EVENTS, kinds=()).kind("fault").is_empty()
