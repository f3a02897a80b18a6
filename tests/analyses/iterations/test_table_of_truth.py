"""Programs whose iterations are known: what repeats, how often and how long, with marks and without them."""

from dataclasses import replace

import polars as pl
import pytest

import kanalyze
from support.build import nvtx, report
from support.launches import Launch, Program, copy_in, copy_out, layer, training_step

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
    "fourteen": (14, {}),
    "forty": (40, {}),
    "a start": (16, {-1: BOOT}),
    "an export at the end": (16, {15: [Launch("export", pause=4_000_000)]}),
    "a pause": (24, {11: []}),
    "a checkpoint": (24, {11: CHECKPOINT}),
}

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


@pytest.mark.parametrize("factor", [1, 3], ids=["host", "ahead"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.slow
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
