"""What of a report cannot be trusted: each check on a report in which it finds something, and all of them on none."""

import gzip
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import kanalyze
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.page.time_page import overviews_together
from kanalyze.readers.capture.reports import every_report
from kanalyze.window import Window
from support.build import LAUNCH, call, graph, host, kernel, launched, memcpy, memset, nvtx, overhead, report
from support.command import REPORTS, captured, run
from support.counters import measured
from support.exports import altered

LIMITS = {"compute_capability": "9.0", "sm_count": 4}
SIDE = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}

#: What shows that the process began in the recording.
BEGUN = overhead("Lazy Function Loading", 0, 1)


def launch(number, start, **keys):
    """A call of 10 and its kernel of 20, in order in every way."""
    made = kernel(start + 10, start + 30, **{"correlation": number, "side": SIDE, **keys})
    return launched(start, start + 10, made, LAUNCH, process=made.process)


def ran(calling, running):
    return launched(*calling, kernel(*running, side=SIDE), LAUNCH)


SOUND = [BEGUN, *launch(1, 1)]


def wrong(*events, end=None, **tables):
    """The checks that found something beside the sound launch: check, count, ns, doubt."""
    found = health(report([*SOUND, *events], limits=LIMITS, meta={"end_ns": end}, **tables))
    return found.filter(found["count"] > 0).select("check", "count", "ns", "doubt").rows()


#: The checks of a trace in order, which are those of docs/definitions.md; the last three are no events' own.
CHECKS = health(report(SOUND, limits=LIMITS))["check"].to_list()


def test_every_check_is_told_where_all_is_in_order():
    found = health(report(SOUND, limits=LIMITS))
    assert (len(CHECKS), len({*CHECKS})) == (29, 29)
    assert found.select("count", found["ns"].fill_null(0), "doubt").unique().rows() == [(0, 0, False)]
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
        (launched(31, 41, graph(41, 50), "cudaGraphLaunch"), ("graph launches without nodes", 1, 9, True)),
        (ran((31, 41), (41, 41)), ("operations of zero duration", 1, 0, True)),
        (ran((12, 14), (28, 44)), ("kernels started before the one before ended", 1, 3, False)),
        (ran((12, 14), (28, 30)), ("kernels that overlap within a stream", 1, 3, True)),
    ],
)
def test_a_check_says_how_many_are_not_in_order_and_their_time(events, told):
    """Of what cannot be tests/analyses/device/test_recorded_time.py has more."""
    assert told in wrong(*events)


@pytest.mark.parametrize("capability", ["8.9", None, "gfx942"])
def test_kernels_of_other_gpus_cannot_overlap_within_a_stream(capability):
    events = [*SOUND, *ran((12, 14), (28, 44))]
    found = health(report(events, limits=LIMITS | {"compute_capability": capability}))
    told = found.filter(found["count"] > 0, found["check"].str.contains("kernels (that overlap|started)"))
    assert told.select("check", "count", "ns", "doubt").rows() == [("kernels that overlap within a stream", 1, 3, True)]


def test_calls_of_two_interfaces_inside_each_other_are_one_launch():
    """As nsys records them where it takes stacks of calls: under one correlation id."""
    inside = [call("cudaLaunchKernel", 31, 41, correlation=2), call("cudaLaunchKernel_v7000", 32, 40, correlation=2)]
    assert wrong(*inside, kernel(42, 44, correlation=2, side=SIDE)) == []
    inside += [kernel(42, 44, correlation=2, side=SIDE), call(LAUNCH, 50, 57, correlation=2, process=2)]
    assert ("launches without an operation", 1, 7, True) in wrong(*inside)


def test_what_lies_outside_of_the_recording_is_told_where_its_end_is_known():
    late = [*launch(2, 31), call("cudaFree", 61, 65)]
    assert wrong(*late, end=65) == []
    expected = [("operations outside the recording", 1, 20, True), ("host events outside the recording", 1, 4, True)]
    assert wrong(*late, end=60) == expected


def test_idle_time_without_calls_is_of_unknown_cause():
    """The two are launched by nothing that is recorded: 20 between them are not explained."""
    found = health(report([kernel(0, 10, side=SIDE), kernel(30, 40, side=SIDE)], limits=LIMITS)).filter("doubt")
    told = [("operations without a launch", 2, 20), ("idle time of unknown cause", 1, 20)]
    assert found.select("check", "count", "ns").rows() == told


def test_a_process_that_was_at_work_before_is_a_doubt_only_where_that_hides_much():
    """The long wait of the first kernel of a stream, from the return of its launch on, began before the recording."""
    prompt = health(report(launch(1, 0), limits=LIMITS))
    found = prompt.filter(check="processes at work before the recording").select("count", "ns", "doubt").rows()
    assert found == [(1, 0, False)]
    late = health(report(ran((0, 10), (60_000, 100_000)), limits=LIMITS)).filter(
        check="processes at work before the recording"
    )
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
    place = CHECKS.index("launches outside their operator")
    found = health(report([nvtx("step", 0, 10)], kinds=("range",))).get_column("check").to_list()
    assert found == [*CHECKS[:place], "host events that cross on a thread", *CHECKS[place:-3]]
    found = health(measured({}))
    shown = found.get_column("check").to_list()
    assert shown == ["events without a name", "kernels without SpeedOfLight", "kernels without LaunchStats"]
    assert found.select("count", "ns", "doubt").rows() == [(0, 0, False), (1, None, True), (1, None, True)]


MEMSET = "cudaMemsetAsync"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("some", "name", "ns", "process", "lost"),
    [
        (5_000, MEMSET, 2_000, 1, 0),
        (5_000, MEMSET, 2_600, 1, 1),
        (5_000, MEMSET, 2_000, 2, 1),
        (5_000, "cudaMemset", 2_000, 1, 1),
        (None, MEMSET, 900, 1, 0),  # none sets anything, and it takes less than a launch
        (None, MEMSET, 1_000, 1, 1),
        (10, MEMSET, 7, 1, 0),  # of short ones most of the shortest set something
        (10, MEMSET, 8, 1, 1),
    ],
)
def test_a_memset_that_returns_sooner_than_any_that_sets_something_is_of_no_bytes(some, name, ns, process, lost):
    events = [call(name, 6_000, 6_000 + ns, correlation=3, process=process)]
    if some:
        events += [call(MEMSET, 31, 31 + some, correlation=2), memset(31 + some, 40 + some, correlation=2)]
    told = [one for one in wrong(*events) if one[0] == "launches without an operation"]
    assert told == [("launches without an operation", 1, ns, True)] * lost


def test_most_of_the_calls_that_set_nothing_tell_of_those_that_take_longer():
    lengths = dict.fromkeys(range(100, 108), 300) | {2_000: 2_900}
    events = [call(MEMSET, at, at + ns, correlation=at) for at, ns in lengths.items()]
    events += [call(MEMSET, 31, 3_031, correlation=2), memset(3_031, 3_040, correlation=2)]
    assert "launches without an operation" not in {one[0] for one in wrong(*events)}


def synced(name, at, number, kind, **record):
    """A call that waits for 10, and the profiler's record of that."""
    record = host("sync", kind, at, at + 10, correlation=number, context=1, **record)
    return [call(name, at, at + 10, correlation=number), record]


TO_HOST = launched(50, 60, memcpy(51, 59, direction="Device-to-Host", size_bytes=8), "cudaMemcpy")
WAITS = synced("cudaEventSynchronize", 50, 4, "Event sync", side={"record_id": 5})
OF_EVENT = [call("cudaEventRecord", 43, 44, correlation=3), *WAITS]


@pytest.mark.parametrize(
    ("waits", "ended", "told"),
    [
        (synced("cudaDeviceSynchronize", 50, 3, "Stream sync"), 90_000, 1),
        (synced("cudaDeviceSynchronize", 50, 3, "Stream sync"), 10_000, 0),
        (synced("cudaStreamSynchronize", 50, 3, "Stream sync", stream=7), 90_000, 1),
        (synced("cudaStreamSynchronize", 50, 3, "Stream sync", stream=8), 90_000, 0),
        (synced("cudaStreamSynchronize", 50, 3, "Stream sync", stream=7), 10_000, 0),
        (synced("cudaStreamQuery", 50, 3, "Stream sync", stream=7), 90_000, 0),
        (TO_HOST, 90_000, 1),
        (TO_HOST, 10_000, 0),
        (OF_EVENT, 90_000, 1),
        (OF_EVENT, 10_000, 0),
    ],
)
def test_an_operation_ends_before_a_call_returns_that_waited_for_it(waits, ended, told):
    """The launch returns at 41, the wait lasts from 50 to 60; clocks of GPU and host may differ by 10 microseconds."""
    events = [*ran((31, 41), (42, ended)), *waits]
    record = {"process_id": 1, "context_id": 1, "stream": 7, "correlation_id": 3, "record_id": 5}
    found = wrong(*events, event_records=[record] if waits == OF_EVENT else [])
    assert [row[1] for row in found if row[0] == "operations that end after a wait for them"] == [1] * told


def test_what_is_launched_while_a_call_waits_need_not_end_before_it_returns():
    late = [call(LAUNCH, 51, 55, correlation=2, thread=2), kernel(56, 90_000, correlation=2, side=SIDE)]
    assert wrong(call("cudaDeviceSynchronize", 50, 60, correlation=3), *late) == []


def doubts_of(*events, tool="nsys", end=None, **tables):
    """As :func:`wrong`, in a report of a tool, of the events alone: check and count."""
    found = health(report(events, limits=LIMITS, meta={"tool": tool, "duration_ns": end}, **tables))
    return found.filter(found["doubt"]).select("check", "count").rows()


@pytest.mark.parametrize(("number", "told"), [(2, []), (3, [("ranges that start at one instant", 3)])])
def test_three_ranges_of_a_thread_start_one_after_the_other(number, told):
    ranges = [nvtx("step", 40, 43 + place) for place in range(number)]
    assert doubts_of(*ranges) == told
    assert doubts_of(*ranges, nvtx("step", 40, 48, thread=2)) == told
    assert doubts_of(*ranges, tool="torch.profiler") == []


FREE, MM = call("cudaFree", 0, 9_000), host("op", "aten::mm", 0, 9_000)
LATER_MM, LATER_STEP = host("op", "aten::mm", 4_000, 20_000), nvtx("step", 4_000, 20_000)
CROSSING = [(FREE, LATER_STEP), (FREE, LATER_MM), (MM, call("cudaFree", 4_000, 20_000)), (MM, LATER_MM)]
APART = [
    (FREE, replace(LATER_STEP, thread=2)),
    *((FREE, nvtx("step", *at)) for at in ((4_000, 9_900), (8_500, 20_000), (4_000, 8_000), (4_000, None))),
    (MM, LATER_STEP),
    *((nvtx("step", 0, 9_000), later) for later in (call("cudaFree", 4_000, 20_000), LATER_STEP)),
]


@pytest.mark.parametrize(("pairs", "told"), [(CROSSING, 4), (APART, 0)])
def test_what_a_thread_begins_in_a_call_or_operator_ends_in_it(pairs, told):
    """A microsecond may be due to rounding; a range may be one that another thread ends."""
    events = [replace(one, thread=one.thread + 10 * at) for at, pair in enumerate(pairs) for one in reversed(pair)]
    found = [row for row in doubts_of(*events) if row[0] != "ranges never closed"]
    assert found == [("host events that cross on a thread", told)] * bool(told)


@pytest.mark.parametrize(("starts", "told"), [((4_000, 500, 20_500), 0), ((30_000,), 1)])
def test_a_launch_lies_in_the_operator_that_made_it(starts, told):
    """In it, a little early, a little late, and outside."""
    events = []
    for at, start in enumerate(starts):
        keys = {"thread": at + 1, "correlation": at + 1}
        events += [host("op", "aten::mm", 1_000, 20_000, thread=at + 1)]
        events += [call(LAUNCH, start, start + 10, parent=3 * at, **keys)]
        events += [kernel(40_000, 50_000, correlation=at + 1, side=SIDE, stream=at + 7)]
    found = [row for row in doubts_of(*events, BEGUN, tool="torch.profiler") if "operator" in row[0]]
    assert found == [("launches outside their operator", 1)] * told


@pytest.mark.parametrize(
    ("names", "told"),
    [((LAUNCH, "cuLaunchKernelEx"), 2), (("cudaGraphLaunch", "cudaLaunchCooperativeKernelMultiDevice"), 0)],
)
def test_a_launch_of_one_kernel_launches_one(names, told):
    events = [BEGUN, *(call(name, 100 * at + 2, 100 * at + 9, correlation=at) for at, name in enumerate(names, 1))]
    starts = [(100 * at + start, at) for at in (1, 2) for start in (10, 20)]
    events += [kernel(start, start + 5, correlation=at, side=SIDE) for start, at in starts]
    assert doubts_of(*events) == [("kernels that share a launch of one kernel", told)] * bool(told)


@pytest.mark.parametrize(
    ("known", "told"), [([(7, "blocking")], 0), ([(8, "blocking")], 2), ([(8, "null")], 0), ([], 0)]
)
def test_operations_run_on_streams_that_were_made(known, told):
    """A table of the null streams alone does not say what streams there were."""
    rows = [{"process_id": 1, "context_id": 1, "stream": stream, "type": kind} for stream, kind in known]
    found = doubts_of(BEGUN, *launch(1, 2), *launch(2, 40), streams=rows)
    assert found == [("operations on unknown streams", 2)] * bool(told)


@pytest.mark.parametrize(("names", "told"), [(("0", "1", "2"), 0), (("0", "3"), 2), (("9",), 0), (("x", "1"), 0)])
def test_steps_are_numbered_one_by_one(names, told):
    steps = [nvtx(f"ProfilerStep#{name}", 10 * place, 10 * place + 9) for place, name in enumerate(names)]
    assert doubts_of(*steps, tool="torch.profiler") == [("steps missing", told)] * bool(told)


def test_ranges_start_before_the_recording_ends_and_are_recorded_once():
    ranges = [nvtx("step", 10, 20), nvtx("step", 30, 35), nvtx("other", 5, 45)]
    assert doubts_of(*ranges, end=25) == [("host events outside the recording", 1)]
    assert doubts_of(*ranges, end=45) == []
    assert doubts_of(*ranges, nvtx("step", 10, 20)) == [("ranges recorded twice", 1)]


MLP = Path(__file__).parents[3] / "sample_reports" / "mlp_train" / "nsys.sqlite"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("statement", "check", "count"),
    [
        ("UPDATE NVTX_EVENTS SET start = start + 10000000, end = end + 10000000", "host events that cross", None),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET contextId = 55", "operations on unknown streams", 1303),
        ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 99", "copies of unknown memory", 140),
        ("UPDATE StringIds SET value = 'x' WHERE id % 2", "operations called like calls", None),
        ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 700", "operations whose launch failed", 1485),
        ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 600", None, 0),
    ],
    ids=["shifted", "context", "memory", "names", "failed", "not-ready"],
)
def test_damages_of_a_real_report_are_doubts(tmp_path, statement, check, count):
    with kanalyze.read(altered(tmp_path, MLP, statement)) as damaged:
        found = health(damaged).filter("doubt").select("check", "count").rows()
    if check is None:
        assert found == []
    else:
        (told,) = [number for name, number in found if name.startswith(check)]
        assert told == count if count is not None else told > 0


SAMPLED = Path(__file__).parents[3] / "sample_reports" / "sampled" / "loader.sqlite"
UNITS = SAMPLED.parent / "units"
TRAINED = SAMPLED.parents[1] / "mlp_train"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("statement", "unread"),
    [
        ("UPDATE SCHED_EVENTS SET start = x'00' WHERE rowid = 5", "scheduling"),
        ("UPDATE SAMPLING_CALLCHAINS SET stackDepth = x'00' WHERE rowid = 5", "stack_frames"),
        ("UPDATE PROCESSES SET pid = 'none'", "processes"),
    ],
)
def test_a_damaged_table_is_a_doubt_on_the_page_that_leaves_it_out(tmp_path, statement, unread):
    with kanalyze.read(altered(tmp_path, SAMPLED, statement), cache=False) as damaged:
        page = kanalyze.overview(damaged)
    found = page.tables["health"].filter("doubt").select("check", "count").rows()
    assert unread == "processes" or "By samples" not in page.answer
    assert (f"table {unread} not read", 1) in found


def half(data):
    return data[: len(data) // 2]


LATE, TRACE = pytest.mark.slow, "torch.json.gz"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capture", "name", "damage", "told", "by_itself"),
    [
        (UNITS, "samples.sqlite", lambda data: bytes(len(data)), "report samples.sqlite not read", True),
        (UNITS, "samples.sqlite", half, "report samples.sqlite not read", True),
        (UNITS, "samples.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL SET start", "table kernel events of samples", True),
        (UNITS, "samples.sqlite", "GPU_METRICS SET value", "table gpu_metrics of samples.sqlite not read", True),
        (UNITS, "samples.sqlite", "SCHED_EVENTS SET start", "table scheduling of samples.sqlite not read", True),
        pytest.param(TRAINED, TRACE, lambda _: gzip.compress(b"{}"), "report torch.json.gz not read", True, marks=LATE),
        pytest.param(TRAINED, TRACE, half, f"early end of the compressed data ({TRACE})", False, marks=LATE),
        pytest.param(
            TRAINED, "ncu.raw.csv", lambda data: half(data) + b'"\0', "report of ncu not read", False, marks=LATE
        ),
    ],
)
def test_damage_of_a_further_report_of_a_capture_is_a_doubt_on_its_page(  # noqa: PLR0913 - a row has as many
    tmp_path, capture, name, damage, told, by_itself
):
    folder = shutil.copytree(capture, tmp_path / "run")
    file = folder / name
    if callable(damage):
        file.write_bytes(damage(file.read_bytes()))
    else:
        with closing(sqlite3.connect(file)) as database, database:
            assert database.execute(f"UPDATE {damage} = x'00' WHERE rowid = 2").rowcount == 1
    reports = every_report(folder, left_out=lambda _: None)
    (page,) = overviews_together(*reports) if len(reports) > 1 else [kanalyze.overview(reports[0])]
    alone = kanalyze.health(kanalyze.read(folder)).filter("doubt").get_column("check").to_list()
    on_page = page.tables["health"].filter("doubt").get_column("check").to_list()
    assert [check for check in on_page if check.startswith(told)]
    assert bool([check for check in alone if check.startswith(told)]) == by_itself


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "names", [["ncu.raw.csv"], [TRACE], ["torch-0.json.gz", "torch-1.json.gz"], ["samples.sqlite"]]
)
def test_every_report_of_a_capture_that_does_not_open_is_in_its_health(tmp_path, names):
    folder = captured(tmp_path / "run", nsys_sqlite=REPORTS / "add.sqlite")
    for name in names:
        (folder / name).write_bytes(b"garbage")
    told = [f"report {name.replace('ncu.raw.csv', 'of ncu')} not read" for name in names]
    ran = run("show", "health", folder, "--format", "csv", "--columns", "check,doubt")
    assert ran.status == 0
    assert [line.split(",")[0] for line in ran.text.splitlines() if "not read" in line] == told
    page = tmp_path / "page.html"
    assert run("html", folder, "-o", page).status == 0
    (beside,) = re.findall(r"health: [^<]*", page.read_text())[:1]
    assert [check for check in told if check not in beside] == []


@pytest.mark.one_in(5)
@pytest.mark.parametrize("cut", ["substr(binaryData, 1, 40)", "zeroblob(64)", "x'00'"])
def test_stacks_that_cannot_be_decoded_are_counted(tmp_path, cut):
    check, report_of = "stacks of Python that cannot be decoded", REPORTS / "sampled_python.sqlite"
    rows = "WHERE rowid IN (SELECT rowid FROM NVTX_EVENTS WHERE length(binaryData) >= 56 LIMIT 3)"
    found = health(kanalyze.read(altered(tmp_path, report_of, f"UPDATE NVTX_EVENTS SET binaryData = {cut} {rows}")))
    assert dict(found.filter("doubt").select("check", "count").iter_rows())[check] == 3
    assert check not in health(kanalyze.read(report_of)).get_column("check")
