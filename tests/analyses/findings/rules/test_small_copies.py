"""Small copies in a row: what one copy in place of them would save."""

from dataclasses import replace

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.small_copies import many_small_copies
from kanalyze.window import Window
from support.build import call, graph, kernel, memcpy, memset, nvtx, overhead, report
from support.nsys_csv import report_of


def copy(at, correlation, *, size=1000, dur=10, name="cudaMemcpyAsync", **keys):
    """A call of 20 ns and, 5 ns after it began, its copy."""
    return [
        call(name, at, at + 20, correlation=correlation),
        memcpy(at + 5, at + 5 + dur, size_bytes=size, correlation=correlation, **keys),
    ]


def row(count, *, start=0, every=50, **keys):
    return [event for number in range(count) for event in copy(start + every * number, start + number + 1, **keys)]


def test_a_row_of_small_copies_could_be_one():
    (finding,) = many_small_copies(report(row(10)))
    # nine in ten of the copying, and of the 10 ns around each copy in its call
    assert finding.at_stake_ns == 9 * 10 + 90
    assert finding.text == (
        "10 copies Host-to-Device of 1.000 kB on average, one after the other, at 100.0 GB/s, by cudaMemcpyAsync. They "
        "cost 90 ns of copying and 90 ns in which the device waited for their calls, more than one copy of all would. "
        "More may follow: the host is spared the calls."
    )


def test_several_rows_are_several_copies():
    (finding,) = many_small_copies(report([*row(10), kernel(502, 504), *row(10, start=1000)]))
    assert finding.text.startswith("20 copies Host-to-Device of 1.000 kB on average, one after the other in 2 runs, at")
    assert "more than one copy per run would. " in finding.text


def test_large_copies_tell_what_one_copy_would_take():
    large = copy(20_000, 900, size=1 << 20, dur=1 << 9)
    (finding,) = many_small_copies(report([*row(200), *large]))
    assert "1.049 MB and more at 2.048 TB/s" in finding.text
    assert finding.at_stake_ns == (2000 - 200 * 1000 // 2048 - 1) + 199 * 10


def test_large_copies_of_other_memory_tell_it_only_without_better_ones():
    pinned, pageable = ({"side": {"source_memory": kind}} for kind in ("Pinned", "Pageable"))
    slow = copy(5000, 900, size=1 << 20, dur=1 << 10, **pageable)
    fast = copy(9000, 901, size=1 << 20, dur=1 << 9, **pinned)
    (finding,) = many_small_copies(report([*row(10, **pinned), *slow, *fast]))
    assert "at 2.048 TB/s" in finding.text
    (finding,) = many_small_copies(report([*row(10, **pinned), *slow]))
    assert "at 1.024 TB/s" in finding.text


BATCH = [call("cudaMemcpyBatchAsync", 0, 20, correlation=1)]


@pytest.mark.parametrize(
    ("events", "number"),
    [
        (row(9), 0),
        (row(20, size=65537), 0),
        (row(20, size=65536), 1),
        (row(20, side={"graph_node_id": 7}), 0),
        ([*row(10), kernel(0, 1000, stream=8)], 0),  # which hides them
        ([event for event in row(20) if event.kind == "memcpy"], 0),  # without calls
        ([*BATCH, *(memcpy(at, at + 5, correlation=1) for at in range(30, 200, 10))], 0),  # several of one call
        (row(10, name="cudaMemcpy_v3020", direction="Device-to-Host"), 1),  # blocking, with nothing between them
        ([*row(5), kernel(252, 254, stream=8), *row(5, start=300)], 1),
        ([*row(5), kernel(252, 254, process=2), *row(5, start=300)], 1),
    ],
)
def test_what_is_a_row(events, number):
    assert len(many_small_copies(report(events))) == number


@pytest.mark.parametrize(
    "other", [kernel(252, 254), memcpy(252, 254, size_bytes=1 << 20), memcpy(252, 254, direction="Device-to-Host")]
)
def test_work_between_them_makes_two_rows(other):
    assert many_small_copies(report([*row(5), other, *row(5, start=300)])) == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stream", [7, 8])
@pytest.mark.parametrize("make", [kernel, memset, memcpy, graph])
def test_work_that_the_process_launched_between_them_makes_two_rows_on_any_stream(make, stream):
    """It may have written what the next copy reads, or read what the last one wrote."""
    keys = {"direction": "Device-to-Host"} if make is memcpy else {}

    def between(at=230, **how):
        launched = call("anything", at, at + 10, correlation=99, process=how.get("process", 1))
        return [launched, make(700, 702, correlation=99, stream=stream, **keys, **how)]

    rows = [*row(5), *row(5, start=250)]
    assert many_small_copies(report([*rows, *between()])) == []
    assert len(many_small_copies(report([*rows, *between(at=530)]))) == 1
    assert len(many_small_copies(report([*rows, *between(device=1, process=1)]))) == 1
    assert len(many_small_copies(report([*rows, *between(process=2)]))) == 1


@pytest.mark.parametrize("name", ["cudaStreamWaitEvent_v3020", "cudaLaunchHostFunc", "cuStreamWaitValue32"])
def test_a_call_that_orders_streams_makes_two_rows(name):
    assert many_small_copies(report([*row(5), call(name, 230, 235), *row(5, start=250)])) == []
    assert len(many_small_copies(report([*row(5), call("cudaEventRecord_v3020", 230, 235), *row(5, start=250)]))) == 1


def test_copies_to_the_host_that_it_waits_for_are_not_one():
    """It may have looked at the data before it asked for more; what goes to the device it does not look at."""
    for name in ("cudaStreamSynchronize_v3020", "cudaEventSynchronize", "cuCtxSynchronize"):
        wait = call(name, 230, 235)
        events = [*row(5, direction="Device-to-Host"), wait, *row(5, start=250, direction="Device-to-Host")]
        assert many_small_copies(report(events)) == []
        assert len(many_small_copies(report([*row(5), wait, *row(5, start=250)]))) == 1


def test_a_loop_that_copies_a_result_to_the_host_in_each_step_is_no_row():
    events = []
    for number in range(30):
        at, launch, moved = 200 * number, 2 * number, 2 * number + 1
        events += [
            call("cudaLaunchKernel", at, at + 4, correlation=launch),
            kernel(at + 6, at + 100, correlation=launch),
            *copy(at + 104, moved, stream=13, direction="Device-to-Host", name="cudaMemcpy_v3020"),
        ]
    assert many_small_copies(report(events)) == []


def test_copies_that_two_threads_make_at_once():
    """Two streams, called in turns: what is between the calls of one is no more than the copies of the other."""
    one, other = row(10, every=100), row(10, start=2_000)
    at_once = [
        replace(event, start=event.start - 1_950, end=event.end - 1_950, stream=event.stream and 8) for event in other
    ]
    at_once = [replace(event, correlation=event.correlation + 100) for event in at_once]
    assert many_small_copies(report([*one, *at_once]))[0].text.startswith("20 copies")


def test_the_profilers_work_in_the_calls_is_not_at_stake():
    (finding,) = many_small_copies(report([*row(10), overhead("CUPTI buffer flush", 15, 20)]))
    assert finding.at_stake_ns == 9 * 10 + 85


def test_no_more_is_at_stake_than_the_device_waits_by_its_own_ledger():
    """Behind each copy the device waits in its call, but for a kernel of another process: that is the host's time."""
    events = row(10)
    for number, at in enumerate(range(0, 500, 50)):
        keys = {"process": 2, "correlation": 500 + number}
        events += [call("cudaLaunchKernel", at + 22, at + 24, thread=9, **keys), kernel(at + 24, at + 30, **keys)]
    keys = {"process": 3, "correlation": 800}
    other = [kernel(0, 1, device=1, process=3), call("cudaLaunchKernel", 0, 400, **keys)]
    (finding,) = many_small_copies(report([*events, *other, kernel(400, 410, device=1, **keys)]))
    assert finding.at_stake_ns == 9 * 10 + 10 * (5 + 2)  # by their calls alone 9 * (5 + 5)


def test_directions_are_found_one_by_one():
    events = [*row(10), *row(10, start=1000, direction="Device-to-Host")]
    assert [finding.text.split(" of ")[0] for finding in many_small_copies(report(events))] == [
        "10 copies Host-to-Device",
        "10 copies Device-to-Host",
    ]


def test_the_range_that_they_were_called_in():
    (finding,) = many_small_copies(report([*row(10), nvtx("upload", 0, 1000)]))
    assert "by cudaMemcpyAsync in the range upload." in finding.text
    (finding,) = many_small_copies(report([*row(10), nvtx("upload", 0, 300)]))
    assert "by cudaMemcpyAsync, most often in the range upload." in finding.text


def test_a_window_cuts_what_is_at_stake():
    (finding,) = many_small_copies(report(row(20)).narrow(window=Window(500, None)))
    assert "10 copies" in finding.text
    assert many_small_copies(report(row(20)).narrow(window=Window(600, None))) == []


@pytest.mark.parametrize(("name", "count"), [("findings", 1), ("findings_clean", 0), ("torch", 0), ("thrash", 0)])
def test_real_reports_that_have_it_and_that_have_not(name, count):
    found = [one for one in ranked(report_of(name)) if one.rule == "small-copies"]
    assert len(found) == count
    assert all(
        "500 copies Host-to-Device of 4.096 kB" in one.text and "range a tiny copies" in one.text for one in found
    )
