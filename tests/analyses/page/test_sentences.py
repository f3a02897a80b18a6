"""The first sentence of a page: the limit of an iteration and its cause; sentences that hold only of some reports."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.host._call_kinds import context_calls
from kanalyze.analyses.iterations.phases import phases, steady_part
from kanalyze.analyses.page._limits import first_sentence
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.formats import terminal
from kanalyze.renderers.page import Look
from kanalyze.report import Meta, Report
from kanalyze.units import instead
from support.build import CUDA_KINDS, MS, Listed, again, call, in_line, kernel, launched, memcpy, memset, nvtx, report
from support.command import SAMPLES
from support.real_reports import real_report


def ranged(starts, end, launch, run):
    """A range at each start, with a launch in it and its kernel, whose ends are so far from there."""
    return again(starts, nvtx("step", 0, end), *launched(*launch, kernel(*run)))


def long_launches(*lengths):
    """A launch of each length, 100 ms after the one before, and its kernel 5 µs later."""
    events = []
    for number, length in enumerate(lengths, 1):
        launch = launched(0, length, kernel(length + 5_000, length + 100_000))
        events += again([100 * number * MS], *launch)
    return events


@pytest.mark.parametrize(
    ("first", "others", "made"), [(95 * MS, 10_000, 1), (400_000, 10_000, 0), (50 * MS, 50 * MS, 0)]
)
def test_a_context_may_be_made_in_the_first_launch_unless_all_take_long(first, others, made):
    assert context_calls(report(long_launches(first, *[others] * 7))).height == made


def of_tool(events, **meta):
    return Report(Meta(Path("made by hand"), **meta), Listed(events, CUDA_KINDS, {}, {}))


@pytest.mark.parametrize(
    ("tool", "wsl", "said"),
    [
        ("nsys", False, "The CUDA trace was on"),
        ("nsys", True, "In WSL2, nsys records the GPU's work only if"),
        ("torch.profiler", False, "Record it again with them on"),
    ],
)
def test_launches_without_device_rows(tool, wsl, said):
    of = of_tool([call("cudaLaunchKernel", 0, 10, correlation=1)], tool=tool, wsl=wsl)
    assert said in overview(of).answer
    assert "that trace on" not in overview(of).answer


LAUNCHES = [call("cudaLaunchKernel", 10 * number, 10 * number + 5, correlation=number) for number in range(1, 100)]


def answer(*events, **options):
    return summarize(report(events, **options)).answer


#: Ten steps of 10 µs with a kernel of 2 µs each.
STEP_NS = 10_000
LOOP = report(ranged(range(0, 10 * STEP_NS, STEP_NS), STEP_NS - 10, (100, 200), (300, 2_300)))
STEADY = steady_part(LOOP)
BUSY, IDLE = [(at, at + 2_000) for at in range(300, 90_000, STEP_NS)], [(3_000, 9_000)]


def tables(path, ledger):
    frame = pl.DataFrame(path, schema=["cause", "share"], orient="row")
    rows = [(0, bucket, ns) for bucket, ns in ledger]
    return {"critical_path": frame, "ledger": pl.DataFrame(rows, schema=["device", "bucket", "ns"], orient="row")}


HOST = tables([("host", 0.7), ("launch", 0.2), ("kernel", 0.1)], [("kernel", 20), ("host", 80)])
GPU = tables([("kernel", 0.9), ("host", 0.1)], [("kernel", 95), ("host", 5)])


def finding(headline, claims=None, **told):
    spans, stake = claims and pl.DataFrame(claims, schema=["start", "end"], orient="row"), told.pop("stake", 50_000)
    return Finding("rule", 0, stake, "Text.", "Remedy.", "code", headline=headline, claims=spans, **told)


def gaining(part):
    """What a replay tells of a remedy that gains a part of the steady steps."""
    whole = STEADY.ns
    gain = int(part * whole)
    return {"replayed_ns": gain, "replayed_low_ns": gain, "replayed_high_ns": gain, "unmended_ns": whole}


def said(known, *findings):
    return first_sentence(LOOP.narrow(window=STEADY.window), STEADY, known, list(findings))


@pytest.mark.parametrize(
    ("path", "ledger", "limits"),
    [
        ([("host", 0.4), ("launch", 0.1), ("launch latency", 0.2)], [("host", 1)],
         "The host and launches limit the step."),
        ([("launch", 0.6)], [("launch", 1)], "Launches limit the step."),
        ([("transfer", 0.4), ("communication", 0.2)], [("communication", 1)], "Communication limits the step."),
        ([("host", 0.6), ("kernel", 0.4)], [("kernel", 9), ("host", 1)],
         "The host limits the step, though the GPU works for most of it."),
        ([], [("memcpy", 6), ("host", 4)], "Copies limit the step."),
        ([("unknown", 0.9), ("host", 0.1)], [("unknown", 1)], ""),
        ([("launch latency", 0.9), ("host", 0.1)], [("unknown", 9), ("kernel", 1)], "The GPU limits the step."),
        ([("host", 0.2), ("kernel", 0.2), ("launch", 0.2)], [("host", 1)], ""),
    ],
)  # fmt: skip
def test_the_limit_is_what_takes_most_of_the_path_else_of_the_ledger(path, ledger, limits):
    assert said(tables(path, ledger)) == limits


@pytest.mark.parametrize(
    ("after", "before", "text"),
    [
        (1_600_000, 5_900_000, "1.6 ms instead of 5.9"),
        (1_004, 1_040, "1.00 µs instead of 1.04"),
        (12, 5_900_000, "0.000012 ms instead of 5.9"),
        (0, 500, "0 ns instead of 500"),
        (999_999, 1_000_000, "1.000 ms instead of 1.000 ms"),
    ],
)
def test_both_times_have_the_unit_of_the_second(after, before, text):
    assert instead(after, before) == text


MASK = finding("A mask is made on the CPU", IDLE, line="m.py:41", **gaining(0.5))
COPIES = {"headline": "1 copy of pageable memory a step blocks the host", "claims": IDLE}
FULL = finding("Products are in full float32", BUSY, shortens=True)
CHECKED = "Anomaly detection is on: every operator is checked"


@pytest.mark.parametrize(
    ("known", "found", "text"),
    [
        (HOST, MASK,
         "host limits the step: a mask is made on the CPU, in m.py:41; without that about 5.0 µs instead of 10."),
        # a remedy is something to do, not to do without
        (HOST, finding("12 launches could be replayed as a graph", IDLE, **gaining(0.25)),
         "host limits the step: 12 launches could be replayed as a graph; with that about 7.5 µs instead of 10."),
        # nothing is promised where no gain is sure: no replay, too little, maybe nothing
        *(
            (HOST, finding(**COPIES, **gain), "host limits the step: 1 copy of pageable memory a step blocks the host.")
            for gain in ({}, gaining(0.02), gaining(0.5) | {"replayed_low_ns": 0}, {"replayed_low_ns": 9})
        ),
        # what is about other time is no cause of the limit
        (HOST, FULL, "host limits the step. First: products are in full float32."),
        (GPU, FULL, "GPU limits the step: products are in full float32."),
        (GPU, FULL._replace(claims=None, shortens=False), "GPU limits the step. First: products are in full float32."),
        # what is no cause of the limit has a sentence of its own, or none
        (HOST, finding("A copy blocks the host", IDLE, stake=5_000),
         "host limits the step. First: a copy blocks the host."),
        (HOST, finding(CHECKED, IDLE, where="aten::linear", line="train.py:7"),
         f"host limits the step. First: a{CHECKED[1:]}, in aten::linear in train.py:7."),
        (GPU, finding("1 block for 132 SMs: {0}", BUSY, names=("add(int)",)),
         "GPU limits the step: 1 block for 132 SMs."),
        (HOST, finding("The GPU waits", IDLE, vague=True), "host limits the step."),
        (HOST, None, "host limits the step."),
        ({}, finding("A copy blocks the host", IDLE), "First: a copy blocks the host."),
        (GPU, finding("Few lanes: {0}, and {1}", BUSY, names=("k", "l")), "GPU limits the step: few lanes."),
        ({}, finding("{0} waits", IDLE)._replace(names=("k",)), "First: a kernel waits."),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_the_limit_and_its_cause(known, found, text):
    said_first = said(known, *filter(None, [found]))
    assert said_first.removeprefix("The ") == text
    assert not text or said_first.startswith(("The ", "First"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "text"),
    [
        ("ddp_four/rank0", "Communication limits the step: the GPU does nothing beside allreduce."),
        ("pipeline_four/rank2", "The GPU limits the step. First: the GPU does nothing beside send_recv."),
    ],
)
def test_communication_is_the_cause_of_its_own_limit_alone(of, text):
    assert text in overview(real_report(SAMPLES / f"{of}.json.gz")).answer


BEGINS = "15.54 s of 16.00 s recorded: before the first CUDA call 15.00 s"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "said", "session"),
    [
        ([], None, "The report shows 39.00 ms of the 33.09 s of the session."),
        ([call("cuInit", 15_000 * MS, 15_001 * MS)], BEGINS, ""),
    ],
    ids=["a slice of a session", "a program that begins"],
)
def test_a_program_that_begins_in_the_recording_has_a_start_up(before, said, session):
    events = ranged([(15_540 + at) * MS for at in range(1, 40)], MS - 9, (9, 10_009), (15_009, 110_009))
    of = of_tool([*before, *events], tool="nsys", end_ns=(33_090 if session else 16_000) * MS)
    page = overview(of)
    text = terminal.render([page], Look(), None)
    assert ("START-UP" in text) == bool(said)
    assert not said or f"START-UP  {said}" in text
    assert page.answer.endswith(session)
    assert ("of the session" in page.answer) == bool(session)
    assert not session or 0 < phases(of).get_column("ns").sum() < 100 * MS


NO_CAPTURE = [call("cudaStreamBeginCapture", 0, 5), LAUNCHES[0], call("cudaStreamEndCapture", 50, 60)]
NCCL = kernel(0, 500, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
COPIED_AND_SET = "The GPU was busy 100.0 % of 1.000 µs under test (30.0 % only copying, 20.0 % only setting memory)"
COPIES_MOST = [call("cudaLaunchKernel", 0, 1, correlation=1), memcpy(10, 980), kernel(980, 1000)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "begins"),
    [
        (LAUNCHES, "99 launches were made, but no device activity was recorded: "),
        (LAUNCHES[:1], "1 launch was made, but no device activity was recorded"),
        # no call, no launch, captured into a graph that is never launched
        ([], "No GPU did anything in this report"),
        ([call("cudaMalloc", 0, 10), call("cudaDeviceSynchronize", 20, 30)], "No GPU did anything in this report"),
        (NO_CAPTURE, "No GPU did anything in this report"),
        # it is not just busy where no kernel runs
        (COPIES_MOST, "The GPU was busy 99.0 % of 1.000 µs under test (97.0 % only copying);"),
        ([memcpy(0, 300), memset(300, 500), kernel(500, 1000)], COPIED_AND_SET),
        ([NCCL, kernel(500, 1000)], "The GPU was busy 100.0 % of 1.000 µs under test (50.0 % only communicating)."),
        # kernels alone, a tenth of copies, and copies beside kernels need no word
        ([memcpy(0, 100), kernel(100, 1000)], "The GPU was busy 100.0 % of 1.000 µs under test."),
        ([memcpy(0, 1000), kernel(0, 1000, stream=8)], "The GPU was busy 100.0 % of 1.000 µs under test."),
    ],
)
def test_with_what_the_gpu_was_busy(events, begins):
    said = answer(*events)
    assert said.startswith(begins)
    assert ("Record it again" in said) == ("but no device activity" in begins)
    assert "but no device activity" not in begins or answer(*events, kinds=("api",)) == said


@pytest.mark.parametrize(("end", "said"), [(500_000, ""), (960_000, "The GPU limits the step.")])
def test_nothing_limits_an_iteration_where_what_the_device_waits_for_is_not_recorded(end, said):
    unlaunched, known = report([kernel(0, end), kernel(MS, MS + 10)]), [("unknown", 9), ("kernel", 1)]
    assert first_sentence(unlaunched, STEADY, tables([("kernel", 1.0)], known), []) == said


def rows_of_passes(pause, *lines, rows=3):
    """Rows of six passes of 10 ms with a pause between, and the lines that the thread was in."""
    starts = [((60 + pause) * row + 10 * at) * MS for row in range(rows) for at in range(6)]
    events = ranged(starts, MS - 9, (9, 10_009), (15_009, 110_009))
    table = [in_line(start * MS, (start + ms) * MS, line, "wait()") for line, start, ms in lines]
    table += [in_line(0, 1_000 * MS, 1, "wait()", thread_id=9)]  # a heart that beats
    return report(events, source_lines=table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pause", "lines", "rows", "told"),
    [
        (300, [], 3, "Between rows of steps the program does something else for"),
        (300, [(7, 70, 250), (7, 430, 250)], 3, "of the time from the first to the last, most of it at a.py:7."),
        (300, [(7, 70, 100), (8, 200, 100)], 3, "of the time from the first to the last."),
        (300, [], 2, None),  # once
        (11, [(7, 60, 10)], 3, None),
    ],
)
def test_what_else_is_done_between_rows_of_steps_is_told(pause, lines, rows, told):
    answer = overview(rows_of_passes(pause, *lines, rows=rows)).answer
    assert ("Between rows" in answer) == bool(told)
    assert not told or told in answer
