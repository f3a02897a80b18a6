"""Kernels that take far longer than their bytes: told only where these are known, and long pieces for each thread."""

import pytest

from kanalyze.analyses.findings.rules.occupancy import far_apart
from support.build import kernel, memset, report

#: 1 GB/s: a byte takes 1 ns.
LIMITS = {"sm_count": 4, "memory_bandwidth_bytes_per_s": 1_000_000_000}


def program(*before, name="sum_rows(float *)", dur=1_000_000, blocks=8, bytes_there=100_000):
    """Two launches of `dur` ns with 16 threads a block, after `bytes_there` were set; `before` ran at first."""
    side = {"grid": (blocks, 1, 1), "block": (16, 1, 1)}
    return report(
        [
            *before,
            memset(100, 200, size_bytes=bytes_there),
            kernel(1_000, 1_000 + dur, name=name, **side),
            kernel(2_000 + dur, 2_000 + 2 * dur, name=name, **side),
        ],
        limits=LIMITS,
    )


def test_a_kernel_that_takes_far_longer_than_its_bytes():
    of = program()
    (finding,) = far_apart(of)
    assert finding.headline == "A thread for 781 B: accesses are uncoalesced in {0}"
    assert finding.at_stake_ns == 2 * (1_000_000 - 130_000)
    assert finding.change(of).shorter.get_column("saved_ns").to_list() == [870_000, 870_000]


@pytest.mark.parametrize(
    "other",
    [
        program(dur=250_000),
        program(blocks=64),
        program(blocks=2),
        program(kernel(0, 10, name="fill(float *)")),
        program(name="void cub::DeviceReduceKernel<float>(float *)"),
        program(name="void at::native::sum(int)"),
        program(bytes_there=1_000),
        report([memset(0, 5)], limits=LIMITS),
    ],
    ids=["near", "short pieces", "few blocks", "made by a kernel", "library", "PyTorch", "few bytes", "no kernel"],
)
def test_what_is_not_known_is_not_said(other):
    assert far_apart(other) == []
