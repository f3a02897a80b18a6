"""Gradients that are reduced for each batch of an update."""

import pytest

from kanalyze.analyses.findings.rules.reductions import repeated_reductions
from support.build import LAUNCH, kernel, launched, nvtx
from support.measures import assert_told
from support.steps import in_steps

NAME, STEP = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1_000_000


def batch(at, reduced, *, in_forward=0):
    """A forward pass of 50 µs, and after it reductions of 10 µs each, of which a kernel hides the second half."""
    events = [nvtx("DistributedDataParallel.forward", at, at + 50_000)]
    for number in range(reduced):
        begin = at + 60_000 + 20_000 * number - 60_000 * (number < in_forward)
        events += launched(begin, begin + 1000, kernel(begin + 2000, begin + 12_000, name=NAME), LAUNCH)
        events += launched(begin, begin + 1500, kernel(begin + 7000, begin + 15_000, stream=8), LAUNCH)
    return events


def program(*reduced, updates=1, **keys):
    """Ten steps, each of batches with so many reductions, and at the end of its last batches an update."""
    events = []
    for start in range(0, 10 * STEP, STEP):
        for place, number in enumerate(reduced):
            events += batch(start + 200_000 * place, number, **keys)
            if place >= len(reduced) - updates:
                events.append(
                    nvtx(
                        "Optimizer.step#SGD.step", start + 200_000 * place + 150_000, start + 200_000 * place + 160_000
                    )
                )
    return in_steps(events)


@pytest.mark.parametrize(
    ("of", "exposed_ns"),
    [
        (program(2, 2, 2), 4 * 5000),
        (program(3, 3), 3 * 5000),
        (program(0, 0, 2), 0),  # under no_sync
        (program(1, 1, 3), 0),  # so, too, with something else that is reduced
        (program(2, 2, updates=2), 0),
        (program(2), 0),
        (program(2, 2, in_forward=2), 0),
    ],
)
def test_gradients_that_an_earlier_batch_reduces(of, exposed_ns):
    batches = ["each of 3 batches", "each of 2 batches"][exposed_ns == 3 * 5000]
    found = repeated_reductions(of)
    assert_told(found, [10 * exposed_ns] * bool(exposed_ns))
    assert all(batches in one.headline for one in found)
