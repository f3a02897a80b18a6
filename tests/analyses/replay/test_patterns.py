"""Patterns of kernels in a change: what they match."""

import polars as pl
import pytest

from kanalyze.analyses.replay._changes import matching

CDIST = "void at::native::<unnamed>::cdist_kernel_cuda_impl<float, at::native::<unnamed>::dists<float>::two>(T1 *)"
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3"
CUTLASS = "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(T1::Params)"
NAMES = pl.Series([CDIST, GEMM, CUTLASS])


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("cdist*", [CDIST]),
        ("cdist_kernel_cuda_impl", [CDIST]),
        ("at::native::cdist*", [CDIST]),
        (CDIST, [CDIST]),
        ("gemm", [GEMM, CUTLASS]),
        ("gemm*", [GEMM, CUTLASS]),
        ("Kernel2", [CUTLASS]),
        ("*xmma*", [GEMM]),
        ("cdist", []),
        ("two", []),
    ],
)
def test_a_pattern_matches_names_and_families(pattern, matched):
    assert matching(NAMES, pattern) == matched
