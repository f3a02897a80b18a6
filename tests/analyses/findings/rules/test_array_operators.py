"""Operations of CuPy: chains that one kernel could do, and arrays of float64."""

import pytest

from kanalyze.analyses.findings.rules.array_operators import array_chains, double_arrays
from support.build import kernel, memcpy, report

CHAIN = (
    "cupy_subtract__float32_float32_float32",
    "cupy_multiply__float32_float32_float32",
    "cupy_sqrt__float32_float32",
)


def kernels(*names, blocks=64):
    return report(
        [
            kernel(10_000 * place, 10_000 * place + 9_000, name=name, grid=(blocks, 1, 1))
            for place, name in enumerate(names)
        ]
    )


def test_elementwise_operations_on_one_size_are_a_chain():
    of = kernels(*CHAIN, "cupy_sum", *CHAIN)
    (finding,) = array_chains(of)
    assert finding.at_stake_ns == 2 * (3 * 9_000 - int(9_000 * 1.5))
    assert finding.headline == "6 elementwise kernels could be one kernel each chain"
    change = finding.mending(of)
    assert (change.shorter.height, len(change.gone)) == (2, 4)


def test_single_operations_and_other_programs_have_none():
    assert array_chains(kernels(CHAIN[0], "cupy_sum", CHAIN[1], "cupy_max")) == []
    assert array_chains(kernels(*CHAIN, "void at::native::add(int)")) == []


def test_operations_in_float64_are_told_by_their_types():
    doubles = "cupy_add__float64_float64_float64"
    (finding,) = double_arrays(kernels(doubles, doubles, CHAIN[0]))
    assert finding.headline == "Arrays are float64: 66.7 % of kernel time"
    assert double_arrays(kernels(*CHAIN)) == []


REDUCES = "void cub::CUB_1_SM_900::detail::reduce::DeviceReduceKernel<double>(double *)"


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
