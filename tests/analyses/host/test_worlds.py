"""What a program is written with, and remedies in its language."""

import pytest

from kanalyze.analyses.findings.findings import in_words_of
from kanalyze.analyses.findings.on_gpu import launch_less
from kanalyze.analyses.findings.rules import ACTION_LONGEST, WORDS, Finding
from kanalyze.analyses.findings.rules.occupancy import small_grid
from kanalyze.analyses.host._call_kinds import CUPY, JAX, NUMBA, OPENACC, OPENMP, PYTHON, PYTORCH, world
from kanalyze.tools import CUDA
from support.build import host, kernel, nvtx, report

KERNELS = {
    "void at::native::vectorized_elementwise_kernel<4>(int)": PYTORCH, "triton_poi_fused_add_0": PYTORCH,
    "loop_multiply_fusion": JAX, "input_reduce_fusion_1": JAX, "wrapped_tanh": JAX,
    "cupy_multiply__float32_float32_float32": CUPY,
    "cupyx_scipy_ndimage_correlate_2d_nearest_w1_49": CUPY,
    "_ZN6cudapy8__main__3addB2v1B92cw51cXTLSUwv1sCUt9Uw11Ew0NRRQPKzLTg9gaTkAdUEii": NUMBA,
    "__omp_offloading_10302_3c0aa4_main_l21": OPENMP, "nvkernel_main_F1L21_2": OPENMP, "main_21_gpu": OPENACC,
    "main_21_gpu__red": OPENACC, "add(int, float *, float *)": CUDA, "wrap(float *)": CUDA, "sum_on_gpu": CUDA,
    "void cub::DeviceReduceKernel<float>(float *)": CUDA,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [
        ("wrapped_tanh", "jax.jit", "cuda"),
        ("cupy_add__float32_float32", "cupy", "cuda"),
        ("main_21_gpu", "collapse", "cuda"),
    ],
)
def test_launching_less_is_told_in_its_language(name, own, other):
    less = launch_less(report([kernel(0, 5, name=name)]), 0)
    texts = (less.action, less.remedy, less.capture, less.ahead)
    assert own in less.action
    assert not any(other in text or "torch" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "blocks", "action"),
    [
        ("add(int)", 1, "<<<(n + 255) / 256, 256>>>: a thread for each element"),
        ("add(int)", 2, "more blocks: smaller tiles, a larger batch, or kernels side by side"),
        ("nvkernel_main_F1L21_2", 1, "teams distribute parallel for, collapse(2) where the loop is short"),
    ],
)
def test_a_small_grid_is_told_in_its_language(name, blocks, action):
    limits = {"compute_capability": "9.0", "sm_count": 4}
    side = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    of = report([kernel(0, 20_000, name=name, grid=(blocks, 1, 1), side=side)], limits=limits)
    assert [one.action for one in small_grid(of)] == [action]


def test_a_rule_without_words_of_a_world_keeps_its_own():
    own = Finding("allocation-in-loop", 0, 5, "…", "remedy", "memory", action="action")
    assert in_words_of(report([kernel(0, 5, name="add(int)")]), own) == own
    assert in_words_of(report([kernel(0, 5, name="cupy_add")]), own).action.startswith("no free_all_blocks()")
    other = own._replace(rule="tail")
    assert in_words_of(report([kernel(0, 5, name="cupy_add")]), other) == other


@pytest.mark.parametrize(("name", "in_triton"), [("softmax_rows", True), ("raw_kernel", False)])
def test_a_kernel_that_triton_compiled_has_its_own_words(name, in_triton):
    compiled = [{"name": "softmax_rows", "source": "triton", "hash": "1"}]
    made = report([host("op", "aten::mm", 0, 1), kernel(2, 5, name=name)], compiled_kernels=compiled)
    one = Finding("uncoalesced", 0, 5, "{0}", "remedy", "kernels", names=(name,), action="action")
    assert ("tl.arange" in in_words_of(made, one).action) == in_triton


def test_actions_fit_their_line():
    actions = [action for worlds in WORDS["worlds"].values() for action, _ in worlds.values()]
    assert [action for action in actions if len(action) > ACTION_LONGEST] == []


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        *(([kernel(0, 5, name=name), kernel(5, 9, name="gemm")], expected) for name, expected in KERNELS.items()),
        ([kernel(0, 5, name="cupy_add"), host("op", "aten::mm", 0, 1)], PYTORCH),  # operators tell first
        ([kernel(0, 5), nvtx("XlaModule:#hlo_module=jit_f#", 0, 9, domain="TSL")], JAX),
    ],
)
def test_kernels_operators_and_domains_tell(events, expected):
    assert world(report(events)) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/opt/venv/bin/python3.12", PYTHON), ("python", PYTHON), ("./python_like", CUDA), ("/usr/bin/solver", CUDA)],
)
def test_an_interpreter_tells(path, expected):
    of = report([kernel(0, 5)], processes=[{"process_id": 1, "name": path, "cuda_ordinal": 0, "device": 0}])
    assert world(of) == expected
