"""Programs whose iterations are known: with marks and without them, on several GPUs, and real ones."""

from dataclasses import replace
from random import Random

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.iterations.iterations import iterations
from kanalyze.analyses.iterations.phases import steady_part, steady_part_by_launches
from support.build import nvtx, report
from support.command import ROOT
from support.launches import Launch, Program, copy_in, copy_out, layer, report_of, training_step
from support.real_reports import real_report

pytestmark = pytest.mark.slow

#: What an iteration launches.
STEPS = {
    "training of 2 layers": training_step(layers=2),
    "training of 24 layers": training_step(layers=24),
    "training with data on the device": training_step(layers=6, data=False),
    "training by adam": training_step(layers=4, optimizer="multi_tensor_apply adam"),
    "a token": [Launch("embedding", pause=40_000), *layer(12), Launch("head"), Launch("argmax"), copy_out()],
    "a request": [copy_in(pause=50_000), *layer(3, size=4), copy_out()],
    "a graph": [copy_in(pause=50_000), Launch("[CUDA graph 1]", ns=200_000), copy_out()],
    "one kernel that is waited for": [Launch("stencil", ns=50_000, pause=30_000)],
}

#: What comes before and between them: the number of iterations, and launches after one of them by its number.
BOOT = [Launch(f"init {number}") for number in range(20)]
CHECKPOINT = [*[Launch(f"gather {part}", ns=60_000) for part in range(9)], *[copy_out(pause=90_000)] * 9]
SCHEDULES = {
    "fourteen": (14, {}), "forty": (40, {}), "a start": (16, {-1: BOOT}),
    "an export at the end": (16, {15: [Launch("export", pause=4_000_000)]}), "a pause": (24, {11: []}),
    "a checkpoint": (24, {11: CHECKPOINT}),
}  # fmt: skip

#: Time of a pause of the host.
PAUSE = 30_000_000


def made(step, schedule):
    """The program's events, its iterations' starts, and the ends of their last calls."""
    number, others = SCHEDULES[schedule]
    program, ends = Program().then(others.get(-1, [])), []
    for place in range(number):
        program.iterations(STEPS[step])
        ends.append(program.now)
        if "waited" in step:
            program.waits(60_000)
        if place in others:
            program.then(others[place])
            program.now += PAUSE * (not others[place])
    return program.events, program.begun, ends


def queued(events, factor):
    """The events with operations that run one after the other on the device, `factor` times as long."""
    told, busy = [], 0
    for event in events:
        if event.kind == "api":
            told.append(event)
            continue
        start = max(event.start, busy)
        busy = start + factor * (event.end - event.start)
        told.append(replace(event, start=start, end=busy))
    return told


#: Each step with half of the schedules, in turns limited by the host and three times as long on the device.
CASES = [
    pytest.param(step, schedule, 1 + 2 * ((row + column) % 2), id=f"{step}-{schedule}")
    for row, step in enumerate(STEPS)
    for column, schedule in enumerate(SCHEDULES)
    if column // 3 == row % 2
]


@pytest.mark.parametrize(("step", "schedule", "factor"), CASES)
def test_what_repeats_how_often_and_how_long_is_told_with_marks_and_without(step, schedule, factor):
    events, begun, ends = made(step, schedule)
    events = queued(events, factor)
    marks = [nvtx("step", start, end) for start, end in zip(begun, ends, strict=True)]
    marked, bare = (kanalyze.iterations(report(one)) for one in ([*events, *marks], events))
    assert marked.get_column("start_ns").to_list() == begun
    if "waited" in step and schedule in {"a pause", "a checkpoint"} and bare.is_empty():
        return  # neither half is a loop of one kernel that covers half
    told = [
        rows.filter(pl.col("name") == marked_as).select("start_ns", "dur_ns")
        for rows, marked_as in ((marked, "step"), (bare, "repetition"))
    ]
    if schedule == "a checkpoint":  # without marks it may belong to the one before
        told = [rows.filter(~pl.col("start_ns").is_between(begun[11], begun[12] - 1)) for rows in told]
    assert told[0].equals(told[1])


#: Reports whose launches tell how long an iteration takes as their marks do, within a twentieth.
SAME = (
    *("sample_reports/ddp_four/rank0.json.gz", "sample_reports/ddp_late/rank1.json.gz"),
    *(f"sample_reports/launch_bound_graph/{name}" for name in ("nsys.sqlite", "torch.json.gz")),
    *(f"sample_reports/mlp_train/{name}" for name in ("nsys.sqlite", "torch.json.gz")),
    *(f"sample_reports/sampled/{name}.sqlite" for name in ("crowded", "functions", "units/nsys")),
    "sample_reports/streams/nsys.sqlite",
    *(f"tests/reports/{name}.sqlite" for name in ("emit_nvtx", "findings_clean", "libraries", "nccl", "torch_node")),
    *(f"tests/reports/torch/{name}.json.gz" for name in ("ddp", "fsdp")),
)


@pytest.mark.parametrize("path", SAME)
def test_launches_tell_what_marks_do(path):
    marked, launched = steady_part(real_report(ROOT / path)), steady_part_by_launches(real_report(ROOT / path))
    assert marked.found_by != launched.found_by == "launches"
    assert launched.ns / launched.number == pytest.approx(marked.ns / marked.number, rel=0.05)


STEP_COUNT, GPUS = 21, 4


def driven_by_one_thread(process=1, gpus=GPUS):
    """Each step is launched on one GPU after the other."""
    program = Program(process=process, jitter=Random(process))  # noqa: S311 - no secret
    for _ in range(STEP_COUNT):
        for gpu in range(gpus):
            program.device = gpu
            program.then(training_step())
    return program


def driven_by_threads(process=1):
    """A thread for each GPU, which run as they like."""
    whole = Program(process=process)
    for gpu in range(GPUS):
        own = Program(process=process, device=gpu, jitter=Random(gpu), correlation=100_000 * gpu)  # noqa: S311 - as above
        own.then([one._replace(thread=gpu + 1) for _ in range(STEP_COUNT) for one in training_step()])
        whole.events += own.events
    return whole


@pytest.mark.parametrize("made", [driven_by_one_thread, driven_by_threads])
def test_each_process_that_drives_several_gpus_makes_its_own_steps(made):
    found = iterations(report_of(made(1), made(2))).group_by("process_id", "name").len()
    assert sorted(found.rows()) == [(process, "repetition", STEP_COUNT) for process in (1, 2)]
