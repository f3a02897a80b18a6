"""What of a report cannot be trusted: each check on a report in which it finds something, and all of them on none."""

from dataclasses import replace

import pytest

from kanalyze.analyses.findings.health import health
from kanalyze.window import Window
from support.build import call, graph, host, kernel, memcpy, memset, nvtx, overhead, report
from support.counters import measured

LAUNCH = "cudaLaunchKernel_v7000"
LIMITS = {"compute_capability": "9.0", "sm_count": 4}
SIDE = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}

#: What shows that the process began in the recording.
BEGUN = overhead("Lazy Function Loading", 0, 1)

#: The checks of a trace, in order; the last is of kernels alone.
CHECKS = (
    "launches without an operation",
    "launches captured into graphs",
    "operations without a launch",
    "unified-memory copies",
    "negative durations",
    "operations of zero duration",
    "operations outside the recording",
    "kernels that overlap within a stream",
    "kernels started before the one before ended",
    "host events that end before they start",
    "host events outside the recording",
    "operations that start before their launch",
    "operations without a device or stream",
    "calls without a thread",
    "events recorded twice",
    "sizes that are missing or cannot be",
    "kernels of an impossible shape",
    "graph launches without nodes",
    "events without a name",
    "idle time of unknown cause",
    "processes at work before the recording",
    "kernels of unknown occupancy",
)


def launch(number, start, **keys):
    """A call of 10 and its kernel of 20, in order in every way."""
    return [
        call(LAUNCH, start, start + 10, correlation=number, process=keys.get("process", 1)),
        kernel(start + 10, start + 30, **{"correlation": number, "side": SIDE, **keys}),
    ]


SOUND = [BEGUN, *launch(1, 1)]


def wrong(*events, end=None, **tables):
    """The checks that found something beside the sound launch: check, count, ns, doubt."""
    made = report([*SOUND, *events], limits=LIMITS, **tables)
    found = health(replace(made, meta=replace(made.meta, end_ns=end)))
    return found.filter(found["count"] > 0).select("check", "count", "ns", "doubt").rows()


def test_every_check_is_told_where_all_is_in_order():
    found = health(report(SOUND, limits=LIMITS))
    assert found.get_column("check").to_list() == list(CHECKS)
    assert found.select("count", "ns", "doubt").unique().rows() == [(0, 0, False)]
    assert "" not in found.get_column("effect")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([call(LAUNCH, 40, 47, correlation=9)], ("launches without an operation", 1, 7, True)),
        ([memcpy(40, 45)], ("operations without a launch", 1, 5, True)),
        ([memcpy(40, 45, direction="Unified Host-to-Device")], ("unified-memory copies", 1, 5, False)),
        ([call("cudaFree", 40, 38)], ("negative durations", 1, 2, True)),
        (launch(2, 31, name=None), ("events without a name", 1, 20, True)),
        ([call(None, 40, 43)], ("events without a name", 1, 3, True)),
        ([call("cudaFree", 40, 43, thread=None)], ("calls without a thread", 1, 3, True)),
        (launch(2, 31, stream=None), ("operations without a device or stream", 1, 20, True)),
        ([call("cudaFree", 40, 43)] * 3, ("events recorded twice", 2, 6, True)),
        (launch(2, 31, block=(2048, 1, 1)), ("kernels of an impossible shape", 1, 20, True)),
        ([host("osrt", "poll", 40, 37)], ("host events that end before they start", 1, 3, True)),
        (
            [call("cudaGraphLaunch", 31, 41, correlation=2), graph(41, 50, correlation=2)],
            ("graph launches without nodes", 1, 9, True),
        ),
        (
            [call("cudaMemcpyAsync", 31, 41, correlation=2), memcpy(41, 50, correlation=2, size_bytes=None)],
            ("sizes that are missing or cannot be", 1, 9, True),
        ),
        (
            [call(LAUNCH, 31, 41, correlation=2), kernel(41, 41, correlation=2, side=SIDE)],
            ("operations of zero duration", 1, 0, True),
        ),
        (
            [call(LAUNCH, 36, 41, correlation=2), kernel(32, 44, correlation=2, side=SIDE)],
            ("operations that start before their launch", 1, 4, True),
        ),
        (
            [call(LAUNCH, 12, 14, correlation=2), kernel(28, 44, correlation=2, side=SIDE)],
            ("kernels started before the one before ended", 1, 3, False),
        ),
        (
            [call(LAUNCH, 12, 14, correlation=2), kernel(28, 30, correlation=2, side=SIDE)],
            ("kernels that overlap within a stream", 1, 3, True),
        ),
    ],
    ids=lambda value: value[0].replace(" ", "_") if isinstance(value, tuple) else "",
)
def test_a_check_says_how_many_are_not_in_order_and_their_time(events, told):
    assert told in wrong(*events)


@pytest.mark.parametrize("capability", ["8.9", None, "gfx942"])
def test_kernels_of_other_gpus_cannot_overlap_within_a_stream(capability):
    events = [*SOUND, call(LAUNCH, 12, 14, correlation=2), kernel(28, 44, correlation=2, side=SIDE)]
    found = health(report(events, limits=LIMITS | {"compute_capability": capability}))
    told = found.filter(found["count"] > 0, found["check"].str.contains("kernels (that overlap|started)"))
    assert told.select("check", "count", "ns", "doubt").rows() == [("kernels that overlap within a stream", 1, 3, True)]


def test_what_a_check_finds_is_of_no_other_check():
    assert wrong(call(LAUNCH, 40, 47, correlation=9)) == [("launches without an operation", 1, 7, True)]
    assert wrong(*launch(2, 31, name=None)) == [("events without a name", 1, 20, True)]


def test_calls_of_two_interfaces_inside_each_other_are_one_launch():
    """As nsys records them where it takes stacks of calls: under one correlation id."""
    inside = [call("cudaLaunchKernel", 31, 41, correlation=2), call("cudaLaunchKernel_v7000", 32, 40, correlation=2)]
    assert wrong(*inside, kernel(42, 44, correlation=2, side=SIDE)) == []
    inside += [kernel(42, 44, correlation=2, side=SIDE), call(LAUNCH, 50, 57, correlation=2, process=2)]
    assert ("launches without an operation", 1, 7, True) in wrong(*inside)


def test_what_lies_outside_of_the_recording_is_told_where_its_end_is_known():
    late = [*launch(2, 31), call("cudaFree", 61, 65)]
    assert wrong(*late, end=65) == []
    assert wrong(*late, end=60) == [
        ("operations outside the recording", 1, 20, True),
        ("host events outside the recording", 1, 4, True),
    ]


def test_idle_time_without_calls_is_of_unknown_cause():
    """The two are launched by nothing that is recorded: 20 between them are not explained."""
    found = health(report([kernel(0, 10, side=SIDE), kernel(30, 40, side=SIDE)], limits=LIMITS))
    told = found.filter(found["count"] > 0).select("check", "count", "ns", "doubt").rows()
    assert told == [
        ("operations without a launch", 2, 20, True),
        ("idle time of unknown cause", 1, 20, True),
    ]


def test_a_process_that_was_at_work_before_is_a_doubt_only_where_that_hides_much():
    """The long wait of the first kernel of a stream, from the return of its launch on, began before the recording."""
    prompt = health(report(launch(1, 0), limits=LIMITS))
    found = prompt.filter(check="processes at work before the recording").select("count", "ns", "doubt").rows()
    assert found == [(1, 0, False)]
    waited = [call(LAUNCH, 0, 10, correlation=1), kernel(60_000, 100_000, correlation=1, side=SIDE)]
    late = health(report(waited, limits=LIMITS)).filter(check="processes at work before the recording")
    assert late.select("count", "ns", "doubt").rows() == [(1, 59_990, True)]


def test_kernels_whose_launch_is_not_known_have_no_occupancy():
    found = wrong(*launch(2, 31, side={}), *launch(3, 61, side={}))
    assert ("kernels of unknown occupancy", 2, 40, True) in found
    effect = health(report(launch(1, 1, side={}), limits=LIMITS)).filter(check="kernels of unknown occupancy")
    assert effect.item(0, "effect").endswith(
        "leave these out: the report lacks the block, registers or shared memory of the launch"
    )


def test_gpus_that_processes_share_are_told_where_there_are_several_processes():
    """Kernels of both ran from 12 to 31."""
    other = [overhead("Lazy Function Loading", 0, 1, process=2), *launch(1, 2, process=2, stream=8)]
    assert wrong(*other) == [("shared use of a GPU", 1, 19, True)]
    apart = [overhead("Lazy Function Loading", 0, 1, process=2), *launch(1, 31, process=2)]
    names = health(report([*SOUND, *apart], limits=LIMITS)).get_column("check").to_list()
    assert names == [*CHECKS, "shared use of a GPU"]
    assert wrong(*apart) == []


def test_notes_of_the_reader_come_last_and_count_at_least_one():
    notes = [
        {"check": "lost events", "count": 3, "ns": 70, "effect": "they are missing"},
        {"check": "a missing table", "count": None, "ns": None, "effect": "nothing is known of it"},
        {"check": "rows that were left out", "count": 0, "ns": 0, "effect": "none"},
        {"check": "events in the trace", "count": 9, "ns": None, "effect": "that is how many there are"},
    ]
    found = health(report(SOUND, limits=LIMITS, notes=notes))
    assert found.get_column("check").to_list() == [*CHECKS, *(note["check"] for note in notes)]
    assert found.select("check", "count", "ns", "effect", "doubt").rows()[len(CHECKS) :] == [
        ("lost events", 3, 70, "they are missing", True),
        ("a missing table", 1, None, "nothing is known of it", True),
        ("rows that were left out", 0, 0, "none", False),
        ("events in the trace", 9, None, "that is how many there are", False),
    ]


def test_the_whole_report_is_looked_at_whatever_the_window_and_device():
    made = report([*SOUND, memcpy(40, 45), memcpy(40, 49, device=1), *launch(2, 31, device=1, side={})], limits=LIMITS)
    whole = health(made)
    assert whole.filter(check="operations without a launch").select("count", "ns").rows() == [(2, 14)]
    assert whole.filter(check="kernels of unknown occupancy").select("count", "ns").rows() == [(1, 20)]
    assert health(made, window=Window(0, 5)).equals(whole)
    assert health(made, device=0).equals(whole)


def test_without_devices_only_events_are_looked_at_and_of_counters_only_names():
    assert health(report([nvtx("step", 0, 10)], kinds=("range",))).get_column("check").to_list() == list(CHECKS[:19])
    found = health(measured({}))
    assert found.get_column("check").to_list() == [
        "events without a name",
        "kernels without SpeedOfLight",
        "kernels without LaunchStats",
    ]
    assert found.select("count", "ns", "doubt").rows() == [(0, 0, False), (1, None, True), (1, None, True)]


MEMSET = "cudaMemsetAsync"


@pytest.mark.parametrize(
    ("name", "ns", "process", "lost"),
    [
        (MEMSET, 2_000, 1, 0),
        (MEMSET, 2_600, 1, 1),
        (MEMSET, 2_000, 2, 1),
        ("cudaMemset", 2_000, 1, 1),
    ],
)
def test_a_memset_that_returns_sooner_than_any_that_sets_something_is_of_no_bytes(name, ns, process, lost):
    some = [call(MEMSET, 31, 5_031, correlation=2), memset(5_031, 5_040, correlation=2)]
    found = wrong(*some, call(name, 6_000, 6_000 + ns, correlation=3, process=process))
    told = [one for one in found if one[0] == "launches without an operation"]
    assert told == [("launches without an operation", 1, ns, True)] * lost


def test_without_another_memset_none_is_of_no_bytes():
    assert wrong(call(MEMSET, 50, 51, correlation=3)) == [("launches without an operation", 1, 1, True)]


def test_of_short_memsets_most_of_the_shortest_set_something():
    some = [call(MEMSET, 31, 41, correlation=2), memset(41, 44, correlation=2)]
    assert wrong(*some, call(MEMSET, 50, 57, correlation=3)) == []
    assert wrong(*some, call(MEMSET, 50, 58, correlation=3)) == [("launches without an operation", 1, 8, True)]
