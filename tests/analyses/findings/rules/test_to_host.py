"""Data that go to the host in the middle of the work: numbers of a mask's true elements, and large tensors."""

from kanalyze.analyses.findings.rules.pageable_copies import boolean_masks, downloads
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report

LAUNCH = "cudaLaunchKernel_v7000"
COPY = "cudaMemcpyAsync_v3020"
STEP = 1_000_000
MIB = 1 << 20


def launch(at, name):
    return [call(LAUNCH, at, at + 5000, correlation=at), kernel(at + 6000, at + 10_000, name=name, correlation=at)]


def copy(at, size, *, direction="Device-to-Host", took=20_000):
    made = memcpy(at + 5000, at + took, direction=direction, size_bytes=size, correlation=at)
    return [call(COPY, at, at + took, correlation=at), made]


def masked(at):
    """nonzero: a count that is copied to the host, and the kernel that selects."""
    return [
        host("op", "aten::nonzero", at, at + 100_000),
        *launch(at + 10_000, "void at_cuda_detail::cub::DeviceReduceKernel<NonZeroOp<bool>>()"),
        *copy(at + 30_000, 8),
        *launch(at + 70_000, "void at_cuda_detail::cub::DeviceSelectSweepKernel()"),
    ]


def found(rule, *steps):
    events = [event for number, step in enumerate(steps) for event in step(number * STEP)]
    return rule(report(events).narrow(window=Window(0, len(steps) * STEP, count=len(steps), each="step")))


def step(at):
    own = launch(at + 500_000, "void at::native::k()")
    return [event for place in range(3) for event in masked(at + 150_000 * place)] + own


def test_each_mask_is_waited_for():
    (one,) = found(boolean_masks, *[step] * 4)
    assert one.text.startswith(
        "Indices of a mask's true elements are asked for 3 times a step, for whose number the host waits: GPU 0 idles"
    )


def test_kernels_tell_without_operators():
    (one,) = found(boolean_masks, *[lambda at: [event for event in step(at) if event.kind != "op"]] * 4)
    assert "asked for 3 times a step" in one.text


def test_masks_of_cupy_are_told_by_their_kernels():
    def own(at):
        chosen = [
            *launch(at + 10_000, "cupy_scan_naive"),
            *copy(at + 30_000, 8),
            *launch(at + 70_000, "cupy_getitem_mask"),
        ]
        return [
            *launch(at, "cupy_greater__float32_float_bool"),
            *chosen,
            *launch(at + 150_000, "cupy_minimum__float32"),
        ]

    (one,) = found(boolean_masks, *[own] * 4)
    assert one.action == "cupy.where(mask, x, 0) in place of x[mask]"


def test_a_number_that_is_read_is_no_mask():
    assert found(boolean_masks, *[lambda at: [*launch(at, "void at::native::k()"), *copy(at + 100_000, 4)]] * 4) == []


def test_a_model_that_is_copied_to_the_host():
    parameters = [
        lambda at: [event for part in range(5) for event in copy(at + 100_000 * part, 2 * MIB, took=80_000)]
    ] * 3
    (one,) = found(downloads, *parameters)
    assert one.text.startswith("5 copies to the host a step, 10.49 MB in each: GPU 0 idles")


def test_few_bytes_and_those_that_come_back_are_none():
    assert found(downloads, *[lambda at: copy(at, MIB // 2)] * 3) == []
    back = [lambda at: [*copy(at, 20 * MIB), *copy(at + 300_000, MIB, direction="Host-to-Device")]] * 3
    assert found(downloads, *back) == []
