"""Recordings that begin in mid-run: what was waited for first is unknown, and nothing is called a first launch."""

from functools import cache

import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.idle._attribution import window_ledgers
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import gaps, ledger
from kanalyze.analyses.launches.cold import cold
from kanalyze.analyses.page.time_page import summarize
from support.build import MS, US, call, kernel, launched, memcpy, overhead, report
from support.command import REPORTS
from support.real_reports import real_report
from support.shares import cases, holds
from support.strategies import EVENTS, few_given

LATE = 500 * MS

#: A launch at the beginning of the recording, whose kernel starts half a second later.
CUT = [call("cudaLaunchKernel", 0, 5 * US, correlation=1), kernel(LATE, 2 * LATE, correlation=1)]

#: What shows that a process was not at work before: a context, or something loaded, before anything ran.
BEGINNINGS = {
    "a module": call("cuModuleLoadData", 1 * US, 2 * US),
    "a library": call("cuLibraryLoadData", 5 * US, 60 * US),
    "a library on another thread": call("cuLibraryLoadData", 5 * US, 60 * US, thread=2),
    "compiling": call("nvrtcCompileProgram", 1 * US, 2 * US),
    "a context outside of calls": overhead("CUDA profiling data flush on context created", 6 * US, 7 * US),
    "a function, lazily": overhead("Lazy Function Loading", 1 * US, 2 * US),
    "the first call of all": call("cuInit", -1, 0),
    "a module, by itself": overhead("Runtime Triggered Module Loading", 1 * US, 2 * US),
}

#: What warm programs do as well.
NONE = {
    "a look-up": call("cuLibraryGetKernel", 1 * US, 2 * US),
    "a look-up in each launch": call("cuKernelGetFunction", 1 * US, 2 * US),
    "loading once something ran": call("cuLibraryLoadData", LATE + 1, LATE + 2),
    "a library that begins": call("cuInit", 1 * US, 2 * US),
    "loading of another process": call("cuLibraryLoadData", 6 * US, 7 * US, process=2),
    "the profiler's buffer": overhead("Activity Buffer Request", 1 * US, 2 * US),
}


@cache
def made(*events):
    return report(events)


def rows(events, *buckets):
    found = ledger(made(*events)).select("bucket", "detail", "ns").rows()
    return [row for row in found if row[0] in buckets]


@pytest.mark.parametrize("shown", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.one_in(4)
def test_where_the_process_began_in_the_recording_it_is_latency(shown):
    found = {bucket: ns for bucket, detail, ns in rows([*CUT, shown], "launch") if detail == "latency"}
    assert found["launch"] >= LATE - 66 * US
    assert rows([*CUT, shown], "unknown") == []
    assert not health(made(*CUT, shown)).filter(check="processes at work before the recording").item(0, "count")


def slow_first(*more, thread=1):
    """A kernel whose first launch takes long, and then four that do not."""
    times = [(0, 400 * US), *((n * MS, n * MS + 4 * US) for n in range(1, 5))]
    events = [call("cudaLaunchKernel", *at, correlation=n + 1, thread=thread) for n, at in enumerate(times)]
    return [*events, *(kernel(end, end + US, correlation=n + 1) for n, (_, end) in enumerate(times)), *more]


@pytest.mark.slow
def test_a_first_launch_is_called_so_only_where_the_process_began_in_the_recording():
    of = report(slow_first())
    (row,) = cold(of).to_dicts()
    assert row["category"] == "first in recording"
    unknown = "what the process did before the recording is not known"
    assert row["evidence"] == f"the recording's first launch of this kernel; later ones: 4; {unknown}"
    assert [one.rule for one in ranked(of) if one.table == "cold"] == []
    shown = report(slow_first(call("cuLibraryLoadData", 1, 2)))
    assert cold(shown).filter(category="first launch").height == 1
    assert "first-launch" in {one.rule for one in ranked(shown)}


def test_in_a_process_at_work_before_a_kernel_that_was_just_loaded_is_launched_first():
    late = [*launched(10 * MS, 11 * MS, kernel(11 * MS, 12 * MS, name="new", correlation=20))]
    found = cold(report(slow_first(*late, call("cuLibraryLoadData", 9 * MS, 10 * MS)))).filter(
        pl.col("category").is_in(["first launch", "first in recording"])
    )
    assert sorted(found.select("what", "category").rows()) == [("k", "first in recording"), ("new", "first launch")]
    elsewhere = cold(report(slow_first(*late, call("cuLibraryLoadData", 9 * MS, 10 * MS, thread=3))))
    assert "first launch" not in elsewhere.get_column("category").to_list()


def test_other_firsts_of_a_process_at_work_before():
    calls = [call("cudaEventCreate", n * 100 * US, n * 100 * US + (90 * US if n == 0 else US)) for n in range(4)]
    ran = [call("cudaLaunchKernel", 5 * MS, 6 * MS, correlation=1), kernel(6 * MS, 7 * MS, correlation=1)]
    (row,) = cold(report([*calls, *ran])).select("category", "evidence").rows()
    assert row[0] == "first in recording"
    assert row[1].startswith("the recording's first call of this name; later ones: 3; ")
    assert cold(report([*calls, *ran, call("cuModuleLoad", 4 * MS, 5 * MS)])).filter(category="first call").height == 1


@cases(0.2)
@few_given(EVENTS, st.sampled_from([1, 5]))
def test_health_says_the_same_of_what_was_attributed_for_windows(events, prompt_ns):
    alone, after = report(events), report(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_call_kinds, "PROMPT_NS", prompt_ns)
        patch.setattr(_call_kinds, "CONTEXT_FROM_NS", 5)
        window_ledgers(after, pl.DataFrame({"start": [-5], "end": [60]}))
        assert health(after).equals(health(alone), null_equal=True)
        holds(health(alone).filter(check="processes at work before the recording").item(0, "count"))


@pytest.mark.slow
def test_real_recordings_that_begin_in_mid_run():
    for name in ("emit_nvtx.sqlite", "findings_clean.sqlite", "torch/ddp.json.gz", "torch/with_modules.json.gz"):
        found = cold(real_report(REPORTS / name)).get_column("category").to_list()
        assert set(found) <= {"first in recording", "module", "library", "graph"}, name
    for name in ("add.sqlite", "torch.sqlite", "nccl.sqlite", "two_processes.sqlite", "visible_devices.sqlite"):
        assert _call_kinds.begun_before(real_report(REPORTS / name)).is_empty(), name


#: Two streams, each of which may hold work from before.
STREAMS = [
    *(call("cudaMemcpyAsync", 0, 5, correlation=1), memcpy(6, 10, correlation=1, stream=9)),
    *(call("cudaLaunchKernel", 20, 25, correlation=2), kernel(LATE, LATE + 9, correlation=2)),
    *(call("cudaLaunchKernel", LATE + 20, LATE + 25, correlation=3), kernel(2 * LATE, 3 * LATE, correlation=3)),
]
LAUNCH = [call("cudaLaunchKernel", 15 * MS, 16 * MS, correlation=1), kernel(16 * MS, 17 * MS, correlation=1)]
#: Operations that were launched before the recording, and a call that waits for both.
EARLIER = [kernel(0, 5 * MS, correlation=9), kernel(6 * MS, 13 * MS, correlation=10)]
TWO_WAITS = [call("cudaDeviceSynchronize", 0, 100 * US), *launched(150 * US, 155 * US, kernel(LATE, 2 * LATE))]


def prompt(waits):
    return [call("cudaLaunchKernel", 0, 5, correlation=1), kernel(5 + waits, MS, correlation=1)]


LATE_SYNC = [("sync", "cudaDeviceSynchronize", MS), ("unknown", "recording begins", MS)]
LATE_LAUNCH = [("launch", "call", 15), ("launch", "latency", LATE - 24), ("unknown", "recording begins", LATE - 25)]


@pytest.mark.parametrize(
    ("events", "buckets", "expected"),
    [
        (CUT, ("launch", "unknown"), [("launch", "call", 5 * US), ("unknown", "recording begins", LATE - 5 * US)]),
        (TWO_WAITS, ("unknown",), [("unknown", "recording begins", 100 * US + LATE - 155 * US)]),
        *(([*CUT, usual], ("unknown",), [("unknown", "recording begins", LATE - 5 * US)]) for usual in NONE.values()),
        # what starts at once waited for nothing else
        (prompt(50 * US), ("launch", "unknown"), [("launch", "call", 5), ("launch", "latency", 50 * US)]),
        (prompt(50 * US + 1), ("unknown",), [("unknown", "recording begins", 50 * US + 1)]),
        # the latency is of the second one on its stream
        (STREAMS, ("launch", "unknown"), LATE_LAUNCH),
        ([*EARLIER, call("cudaDeviceSynchronize", 10, 14 * MS), *LAUNCH], ("sync", "unknown", "loading"), LATE_SYNC),
    ],
)
def test_what_was_waited_for_first(events, buckets, expected):
    assert sorted(rows(events, *buckets)) == expected


@pytest.mark.slow
def test_tables_the_page_and_health_say_that_the_recording_begins_there():
    for events, unknown in ((CUT, LATE - 5 * US), (TWO_WAITS, 100 * US + LATE - 155 * US)):
        found = culprits(report(events)).filter(pl.col("bucket") == "unknown")
        assert found.select("culprit", "ns", "gaps", "longest_ns").rows() == [("recording begins", unknown, 1, unknown)]
        assert gaps(report(events)).select("reason", "unknown_ns").rows() == [("unknown", unknown)]
    assert summarize(report(CUT)).answer.startswith(
        "The GPU was busy 50.0 % of 1.000 s under test; the largest part of the rest went to what the rec"
    )
    (row,) = health(report(CUT)).filter(check="processes at work before the recording").to_dicts()
    assert (row["count"], row["ns"], row["doubt"]) == (1, LATE - 5 * US, True)
    assert "the recording begins there" in row["effect"]
    assert not health(report(CUT)).filter(check="idle time of unknown cause").get_column("count").item()
    assert [one.rule for one in ranked(report(CUT))] == []


def test_a_blocking_call_before_anything_ran_waits_for_what_is_not_recorded():
    calls = [call("cudaDeviceSynchronize", 0, 14 * MS), call("cudaStreamSynchronize", 14 * MS, 14 * MS + 50 * US)]
    told = rows([*calls, *LAUNCH], "sync", "unknown")
    assert told == [("sync", "cudaStreamSynchronize", 50 * US), ("unknown", "recording begins", 14 * MS)]
    (blocks,) = [one for one in ranked(report([*calls, *LAUNCH])) if one.rule == "host-blocks"]
    assert blocks.at_stake_ns == 50 * US
