"""A small kernel for each row, launched by a loop of the host; chains and float64 of CuPy; arrays that grow."""

from itertools import chain

import pytest

from kanalyze.analyses.findings.rules.arrays import array_chains, double_arrays, host_grid_loop
from kanalyze.analyses.findings.rules.small_copies import growing_concatenations
from kanalyze.window import Window
from support.build import call, kernel, memcpy, report
from support.measures import measures

LIMITS = {"sm_count": 8}
OF_TORCH = "void at::native::reduce_kernel<512>(int)"


def loop(*names, turns=40, blocks=1, between=(), **limits):
    """Turns of 10 µs for each kernel, of which it runs 2 µs; `between` makes calls in each turn."""
    events = []
    for place in range(turns * len(names)):
        at = 10_000 * place
        events += [
            call("cudaLaunchKernel", at, at + 3_000, correlation=place + 1),
            kernel(at + 4_000, at + 6_000, name=names[place % len(names)], grid=(blocks, 1, 1), correlation=place + 1),
            *(call(name, at + 6_500, at + 7_000) for name in between),
        ]
    return report(events, limits=LIMITS | limits)


def test_one_launch_over_all_rows_is_told_with_what_it_would_take():
    (finding,) = host_grid_loop(loop("row(float *)"))
    assert finding.headline == "39 launches of 1 block each, in a loop"
    assert finding.at_stake_ns == 39 * 10_000 - 8_000 - 2_000  # 256 rows at a time


@pytest.mark.parametrize(
    "other",
    [
        loop("row(float *)", turns=20),
        loop("row(float *)", blocks=5),
        loop("row(float *)", between=["cudaDeviceSynchronize"]),
        loop("row(float *)", between=["cudaMalloc", "cudaFree"]),
        loop(OF_TORCH),
        loop("wrapped_tanh"),
        loop("pull", "accelerate", "move"),
        loop("row(float *)", sm_count=None),
        loop("cupy_min", "cupy_subtract", blocks=8),
    ],
    ids=["few", "many blocks", "waits", "allocations", "PyTorch", "JAX", "three kernels", "no limits", "large arrays"],
)
def test_other_loops_are_none(other):
    assert host_grid_loop(other) == []


def test_copies_between_are_another_trouble():
    turns = (
        [
            memcpy(at, at + 1_000, correlation=at),
            kernel(at + 2_000, at + 3_000, correlation=at + 1),
            call("cudaMemcpyAsync", at, at + 500, correlation=at),
            call("cudaLaunchKernel", at + 600, at + 900, correlation=at + 1),
        ]
        for at in range(0, 400_000, 10_000)
    )
    assert host_grid_loop(report([*chain.from_iterable(turns)], limits=LIMITS)) == []


SLICES = loop("cupy_min", "cupy_subtract", "cupy_true_divide", "cupy_copy", blocks=7)


@pytest.mark.parametrize(
    ("of", "rule", "text", "action", "figures"),
    [
        (loop("row(float *)"), "host-grid-loop", "One kernel is", "one launch over all turns", (380, 38, 0, 380)),
        (loop("sum(X)", "scale(X)"), "host-grid-loop", "2 kernels are", "one launch over all turns", (768, 76, 0, 770)),
        (loop("nvkernel_main_F1L21_2"), "host-grid-loop", "One kernel is", "the loop inside the", (380, 38, 0, 380)),
        (loop("ampere_sgemm_32x32_sliced1x4_nn"), "host-grid-loop", "One", "one batched call", (380, 38, 0, 380)),
        (SLICES, "repeated-work", "4 kernels are", "whole arrays in place of slices", (1536, 152, -8, 1550)),
    ],
)
def test_the_remedy_is_in_the_language_of_the_program(of, rule, text, action, figures):
    (finding,) = host_grid_loop(of)
    assert finding.rule == rule
    assert finding.text.startswith(text)
    assert "launched over and over" in finding.text
    assert "in 1 loop of up to 39 turns" in finding.text
    assert finding.action.startswith(action)
    stake, gone, saved, spared = measures(finding, of)
    assert (stake / 1000, gone, saved / 1000, spared / 1000) == figures


def test_work_that_is_repeated_for_each_slice_is_told_as_such():
    (finding,) = host_grid_loop(SLICES)
    assert finding.headline == "The same 4 kernels run for one slice after the other"


# Operations of CuPy

CHAIN = (
    "cupy_subtract__float32_float32_float32",
    "cupy_multiply__float32_float32_float32",
    "cupy_sqrt__float32_float32",
)
DOUBLES = "cupy_add__float64_float64_float64"
REDUCES = "void cub::CUB_1_SM_900::detail::reduce::DeviceReduceKernel<double>(double *)"


def kernels(*names):
    every = enumerate(names)
    return report([kernel(10_000 * at, 10_000 * at + 9_000, name=name, grid=(64, 1, 1)) for at, name in every])


def test_elementwise_operations_on_one_size_are_a_chain():
    of = kernels(*CHAIN, "cupy_sum", *CHAIN)
    (finding,) = array_chains(of)
    assert finding.at_stake_ns == 2 * (3 * 9_000 - int(9_000 * 1.5))
    assert finding.headline == "6 elementwise kernels could be one kernel each chain"
    change = finding.change(of)
    assert (change.shorter.height, len(change.gone)) == (2, 4)
    assert array_chains(kernels(CHAIN[0], "cupy_sum", CHAIN[1], "cupy_max")) == []
    assert array_chains(kernels(*CHAIN, "void at::native::add(int)")) == []


def test_operations_in_float64_are_told_by_their_types():
    (finding,) = double_arrays(kernels(DOUBLES, DOUBLES, CHAIN[0]))
    assert finding.headline == "Arrays are float64: 66.7 % of kernel time"
    assert double_arrays(kernels(*CHAIN)) == []


@pytest.mark.parametrize(("size_bytes", "reduces", "told"), [(8, REDUCES, 1), (4, REDUCES, 0), (8, "cupy_sum", 0)])
def test_arrays_of_8_bytes_for_each_thread_are_float64_where_a_kernel_reduces_doubles(size_bytes, reduces, told):
    of = report(
        [
            memcpy(0, 100, size_bytes=size_bytes * 64_000 * 32),
            kernel(200, 9_000, name="black_scholes", grid=(64_000, 1, 1)),
            kernel(9_100, 9_200, name=reduces),
            kernel(9_300, 9_400, name="cupy_copy__float32_float32"),
        ]
    )
    assert len([one for one in double_arrays(of) if one.names == ("black_scholes",)]) == told


CAT = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(X)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("self.k = torch.cat([self.k, k], dim=2)", 1),
        ("past = ks[n] = cat((ks[n], k))", 1),
        ("x = torch.cat([y, x])", 0),
    ],
)
def test_a_result_that_takes_the_place_of_what_is_joined_grows(text, told):
    work = [
        (call("cudaLaunchKernel", at, at + 9, correlation=at), kernel(at + 10, at + 90, name=CAT, correlation=at))
        for at in range(0, 2000, 100)
    ]
    lines = {"process_id": 1, "thread_id": 1, "file": "a.py", "function": "f", "line": 7, "start_ns": 0, "dur_ns": 3000}
    of = report([one for pair in work for one in pair], source_lines=[{**lines, "text": text}])
    assert len(growing_concatenations(of)) == told


@pytest.mark.parametrize(
    ("took", "told"),
    [
        ([3_000 + 60 * at for at in range(20)], 1),
        ([3_000 + 40 * at for at in range(20)], 0),  # by less than a third
        ([3_000, 3_100] * 10, 0),
        ([3_000 + 60 * at for at in range(15)], 0),  # few
        ([*range(3_000, 3_150, 15), *range(9_000, 9_150, 15)], 0),  # of images of two sizes
        ([*range(3_000, 3_020, 10), *range(9_000, 9_170, 10)], 1),  # the first ones are of a prompt
    ],
)
def test_concatenations_may_grow_within_each_iteration(took, told):
    at, events = 0, []
    for ns in took * 4:
        events.append(kernel(at, at + ns, name=CAT))
        at += ns + 1_000
    of = report(events).narrow(window=Window(0, at, count=4, each="step"))
    assert [one.at_stake_ns for one in growing_concatenations(of)] == [4 * sum(took)] * told
