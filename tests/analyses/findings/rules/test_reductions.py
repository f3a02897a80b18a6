"""Gradients that are reduced for each batch of an update."""

import pytest

from kanalyze.analyses.findings.rules.reductions import repeated_reductions
from support.build import LAUNCH, kernel, launched, nvtx
from support.measures import assert_told
from support.steps import alike

NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def batch(at, reduced, thread=2):
    """A forward pass of 50 µs, and after it reductions of 10 µs each, of which a kernel hides the second half."""
    events = [nvtx("DistributedDataParallel.forward", at, at + 50_000)]
    for number in range(reduced):
        begin = at + 60_000 + 20_000 * number
        events += launched(begin, begin + 1000, kernel(begin + 2000, begin + 12_000, name=NAME), LAUNCH, thread=thread)
        events += launched(begin, begin + 1500, kernel(begin + 7000, begin + 15_000, stream=8), LAUNCH)
    return events


def program(*reduced, updates=1, optimizers=1, **keys):
    """Ten steps, each of batches with so many reductions; after the last of them optimizers update parameters."""
    step = []
    for place, number in enumerate(reduced):
        step += batch(200_000 * place, number, **keys)
        if place >= len(reduced) - updates:
            ends = [200_000 * place + 150_000 + 10_000 * number for number in range(optimizers)]
            step += [nvtx("Optimizer.step#SGD.step", at, at + 9_000) for at in ends]
    return alike(*step, count=10)


@pytest.mark.parametrize(
    ("of", "exposed_ns", "batches"),
    [
        (program(2, 2, 2), 4 * 5000, 3),
        (program(3, 3), 3 * 5000, 2),
        (program(0, 0, 2, 2), 2 * 5000, 2),  # two that are not trained
        (program(0, 0, 2), 0, 0),  # under no_sync
        (program(1, 1, 3), 0, 0),  # so, too, with something else that is reduced
        (program(2, 2, updates=2), 0, 0),
        (program(2, 2, optimizers=2), 0, 0),  # of two networks
        (program(2), 0, 0),
        (program(2, 2, thread=1), 0, 0),  # by the program itself
    ],
)
def test_gradients_that_an_earlier_batch_reduces(of, exposed_ns, batches):
    found = repeated_reductions(of)
    assert_told(found, [10 * exposed_ns] * bool(exposed_ns))
    assert all(f"each of {batches} batches" in one.headline for one in found)
