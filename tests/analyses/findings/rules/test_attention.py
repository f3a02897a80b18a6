"""The finding about attention that runs as product, softmax and product."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kanalyze.analyses.findings.rules.needless_kernels import unfused_attention
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, memset, report
from support.kernel_names import ADD, BACKWARD, DOWN, GEMM, LOG_SOFTMAX, SOFTMAX
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"

SCALE, CAST, LOG = ADD, DOWN, LOG_SOFTMAX
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, 4> >(int)"


def line(*names, at=0, stream=7):
    """Kernels of 10 ns one after the other."""
    starts = range(at, at + 10 * len(names), 10)
    return [kernel(start, start + 10, name=name, stream=stream) for start, name in zip(starts, names, strict=True)]


def stakes(*events):
    return [found.at_stake_ns for found in unfused_attention(report(events))]


def test_what_stands_from_one_product_to_the_other_and_copies_beside_are_told():
    (found,) = unfused_attention(report(line(*[SUM, CAST, GEMM, SCALE, SOFTMAX, CAST, GEMM, CAST, SUM] * 2)))
    assert (found.at_stake_ns, found.at_most) == (2 * 70, False)
    assert found.text.startswith(
        "Attention runs as product, softmax and product: 2 softmax passes over scores (most {0}) in chains of 7 "
        "kernels, 140 ns, 77.8 % of kernel time."
    )
    assert found.names == (SOFTMAX,)
    change = found.mending(report([]))
    assert (change.shorter["saved_ns"].to_list(), len(change.gone)) == ([4] * 4, 10)
    assert found.action == "F.scaled_dot_product_attention(q, k, v)"


def test_memsets_and_copies_on_the_device_may_stand_between():
    events = [
        *line(GEMM, SCALE),
        memset(20, 30),
        memcpy(30, 40, direction="Device-to-Device"),
        *line(SOFTMAX, GEMM, at=40),
    ]
    again = [*line(GEMM, SCALE, at=100), memset(120, 130), *line(SOFTMAX, GEMM, at=130)]
    assert stakes(*events, *again) == [60 + 50]


@pytest.mark.parametrize(
    "chain",
    [
        [GEMM, SOFTMAX, GEMM],  # a network that ends with it, and is called again
        [GEMM, SCALE, LOG, GEMM],
        [GEMM, SCALE, SOFTMAX, SUM, GEMM],
        [GEMM, SUM, SCALE, SOFTMAX, GEMM],
        [SUM, SCALE, SOFTMAX, GEMM],
        [GEMM, SCALE, SOFTMAX, SUM],
        [GEMM, *[SCALE] * 9, SOFTMAX, GEMM],
    ],
)
def test_other_softmaxes_are_no_attention(chain):
    assert stakes(*line(*chain * 2)) == []


def test_one_is_not_enough_and_other_streams_are_other_chains():
    chain = [GEMM, SCALE, SOFTMAX, GEMM]
    assert stakes(*line(*chain)) == []
    assert stakes(*line(*chain), *line(*chain, at=100, stream=8)) == [80]
    assert stakes(*line(GEMM, SCALE, SOFTMAX), *line(GEMM, at=30, stream=8), *line(GEMM, SCALE, SOFTMAX, at=50)) == []
    (found,) = unfused_attention(report(line(*[*chain, SUM] * 4)).narrow(window=Window(100, 200, count=2, each="step")))
    assert found.at_stake_ns == 80
    assert "1 softmax pass a step over scores" in found.text


def modelled(names):
    """The time at stake of kernels of 10 ns on one stream, by walking from each softmax to both sides."""
    last, taken, found = len(names) - 1, set(), 0
    for place, name in enumerate(names):
        first, end = place - 1, place + 1
        while first >= 0 and names[first] in (SCALE, CAST):
            first -= 1
        while end <= last and names[end] in (SCALE, CAST):
            end += 1
        scaled = name == BACKWARD or SCALE in names[first + 1 : place]
        if name not in (SOFTMAX, BACKWARD) or first < 0 or end > last or max(place - first, end - place) > 9:
            continue
        if {names[first], names[end]} != {GEMM} or not scaled:
            continue
        found += 1
        first -= name == BACKWARD and first > 0 and names[first - 1] == GEMM
        end += name == BACKWARD and end < last and names[end + 1] == GEMM
        while first > 0 and names[first - 1] == CAST:
            first -= 1
        while end < last and names[end + 1] == CAST:
            end += 1
        taken.update(range(first, end + 1))
    return [10 * len(taken)] if found > 1 else []


@given(st.lists(st.sampled_from([GEMM, GEMM, SCALE, CAST, SOFTMAX, BACKWARD, SUM]), max_size=40))
@example([GEMM, SCALE, SOFTMAX, CAST, GEMM, CAST, GEMM, GEMM, BACKWARD, GEMM, GEMM, CAST])
def test_time_at_stake_equals_a_walk_from_each_softmax(names):
    assert stakes(*line(*names)) == modelled(names)


@pytest.mark.parametrize(("operator", "told"), [("aten::bmm", [2 * 30]), ("aten::addmm", [])])
def test_where_operators_are_known_products_are_batched_ones(operator, told):
    events = []
    for number, name in enumerate([GEMM, SOFTMAX, GEMM, SUM] * 2):
        at, made = 10 * number, operator if name == GEMM else "aten::softmax"
        events.append(host("op", made, at, at + 5))
        parent = len(events) - 1
        events.append(call("cudaLaunchKernel", at, at + 2, correlation=number, parent=parent))
        events.append(kernel(at + 5, at + 15, name=name, correlation=number, parent=parent))
    assert stakes(*events) == told


@pytest.mark.parametrize("name", ["torch_node.sqlite", "torch/cuda_graph.json.gz", "torch.sqlite"])
def test_real_programs_without(name):
    """The first two end with a softmax."""
    assert unfused_attention(real_report(REPORTS / name)) == []
