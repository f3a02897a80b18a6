"""Tensors made on the CPU and copied to the GPU: by which operator, what that costs, and what is no such copy."""

import pytest

from kanalyze import intervals
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.small_copies import extra_copy
from kanalyze.analyses.idle._attribution import host_pieces
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, nvtx, report

COPY, LAUNCH = "cudaMemcpyAsync_v3020", "cudaLaunchKernel_v7000"
ZEROS = (("aten::zeros", 0, 20), ("aten::zero_", 5, 18))
TENSOR = (("aten::to", 0, 2), ("aten::lift_fresh", 10, 15), ("aten::detach_", 16, 20))


def step(number, fill=ZEROS, between=(), launched=()):
    """A tensor is filled from 0 to 20, and copied from 30 to 60; then comes a kernel."""
    at = 100 * number
    ops = [*fill, *between, ("aten::to", 30, 62), ("aten::_to_copy", 31, 61), ("aten::copy_", 40, 61)]
    return [
        *(host("op", name, at + start, at + end) for name, start, end in ops),
        *(call(LAUNCH, at + start, at + start + 1, correlation=900 + number) for start in launched),
        *(kernel(at + start + 1, at + start + 2, correlation=900 + number) for start in launched),
        call(COPY, at + 42, at + 60, correlation=100 + number),
        memcpy(at + 50, at + 58, correlation=100 + number, size_bytes=4_000, side={"source_memory": "Pageable"}),
        call(LAUNCH, at + 65, at + 70, correlation=number),
        kernel(at + 70, at + 99, correlation=number),
    ]


def steps(**how):
    return [event for number in range(4) for event in step(number, **how)]


def test_a_tensor_filled_on_the_cpu_and_copied():
    """Each step idles 50 until the copy, which takes 8, and 4 after that in the operator."""
    of = report(steps()).narrow(window=Window(100, 300, count=2, each="step"))
    (one,) = extra_copy(of)
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("extra-copy", 0, 2 * (50 + 8 + 4), "copies")
    assert one.text == (
        "1 copy a step to GPU 0 of a tensor that was filled on the CPU right before, by aten::zeros (1 time a step), "
        "up to 4.000 kB each. The GPU idles while they are made and sent, or does nothing but copy, for 62 ns a step."
    )
    assert one.action == "torch.zeros(…, device='cuda') in place of .to('cuda')"
    assert one.where == ""


@pytest.mark.parametrize(
    ("fill", "maker"),
    [
        (TENSOR, "torch.tensor"),
        (TENSOR[:2], "torch.tensor"),
        ((("aten::empty", 0, 5), ("aten::fill_", 10, 20)), "aten::fill_"),
        ((("aten::arange", 0, 20), ("aten::resize_", 5, 18)), "aten::arange"),
        ((("aten::randn", 0, 9), ("aten::normal_", 1, 8), ("aten::randint", 10, 20)), "aten::randint"),
    ],
)
def test_the_operator_that_filled_it(fill, maker):
    (one,) = extra_copy(report(steps(fill=fill)))
    assert f"by {maker} (4 times)" in one.text


@pytest.mark.parametrize(
    "how",
    [
        {"fill": ()},
        {"fill": (("aten::empty", 0, 20),)},
        {"between": (("aten::add", 22, 28),)},  # it is not the tensor that was filled
        {"launched": (10,)},  # it was filled on the GPU
        {"fill": (("aten::detach_", 0, 20),)},
    ],
)
def test_what_does_not_raise_it(how):
    assert extra_copy(report(steps(**how))) == []
    assert extra_copy(report(steps()[:12])) == []  # two of them


FILLS = (("aten::randn", 0, 9), ("aten::normal_", 1, 8), ("aten::randint", 10, 20), ("aten::random_", 11, 19))
SHAPES = {"aten::zero_": "[[8], []]", "aten::normal_": "[[8, 4], [], []]", "aten::random_": "[[8], [], []]"}


def shaped(moved, between=(), **how):
    """The findings on steps in which tensors of known shapes are filled, and one of shape `moved` is copied."""
    events = steps(between=between, **how)
    shapes = SHAPES | {"aten::to": f"[{moved}, []]"}
    rows = [
        {"event_id": number, "input_shapes": shapes.get(event.name)}
        for number, event in enumerate(events)
        if event.kind == "op"
    ]
    return extra_copy(report(events, op_detail=rows))


def test_shapes_tell_which_tensor_was_copied():
    assert "by aten::randn (4 times)" in shaped("[8, 4]", fill=FILLS)[0].text
    assert "by aten::randint (4 times)" in shaped("[8]", fill=FILLS)[0].text
    assert shaped("[3]", fill=FILLS) == []


def test_where_shapes_are_known_the_tensor_may_be_changed_before_it_is_copied():
    few = [("aten::tril", 20 + number, 21 + number) for number in range(8)]
    assert "by aten::zeros (4 times)" in shaped("[8]", few)[0].text
    assert shaped("[9]", few) == []
    assert shaped("[8]", [*few, ("aten::tril", 28, 29)]) == []
    assert shaped("[8]", few, launched=(25,)) == []


def test_it_is_said_where_and_not_twice():
    ranges = [nvtx("mask", 100 * number, 100 * number + 62) for number in range(4)]
    of = report([*steps(), *ranges])
    (one,) = extra_copy(of)
    assert (one.where, ", most in mask, up to" in one.text) == ("mask", True)
    own, claims = intervals.union(host_pieces(of)[0]), intervals.union(one.claims)
    (rest,) = (other for other in ranked(of) if other.rule == "host-computes")
    assert rest.at_stake_ns == intervals.length(intervals.subtract(own, claims)) == 15
