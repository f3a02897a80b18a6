"""Iterations of programs on several GPUs: as many as the program makes, not as all GPUs make together."""

from random import Random

import pytest

from kanalyze.analyses.iterations.iterations import iterations
from support.launches import Program, report_of, training_step

STEPS, GPUS = 21, 4


def counted(*programs):
    found = iterations(report_of(*programs)).group_by("process_id", "name").len()
    return sorted(found.rows())


def driven_by_one_thread(process=1, gpus=GPUS):
    """Each step is launched on one GPU after the other."""
    program = Program(process=process, jitter=Random(process))  # noqa: S311 - no secret
    for _ in range(STEPS):
        for gpu in range(gpus):
            program.device = gpu
            program.then(training_step())
    return program


def driven_by_threads(process=1):
    """A thread for each GPU, which run as they like."""
    whole = Program(process=process)
    for gpu in range(GPUS):
        own = Program(process=process, device=gpu, jitter=Random(gpu), correlation=100_000 * gpu)  # noqa: S311 - as above
        own.then([one._replace(thread=gpu + 1) for _ in range(STEPS) for one in training_step()])
        whole.events += own.events
    return whole


@pytest.mark.parametrize("made", [driven_by_one_thread, driven_by_threads])
def test_a_process_that_drives_several_gpus_makes_its_own_steps(made):
    assert counted(made()) == [(1, "repetition", STEPS)]


def test_several_processes_make_theirs():
    ranks = [
        Program(process=gpu + 1, device=gpu, jitter=Random(gpu)).iterations(*[training_step()] * STEPS)  # noqa: S311
        for gpu in range(GPUS)
    ]
    assert counted(*ranks) == [(gpu + 1, "repetition", STEPS) for gpu in range(GPUS)]


def test_processes_with_several_gpus_each_make_theirs():
    assert counted(driven_by_one_thread(1, 2), driven_by_one_thread(2, 2)) == [
        (1, "repetition", STEPS),
        (2, "repetition", STEPS),
    ]
