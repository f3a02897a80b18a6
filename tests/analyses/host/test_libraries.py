"""Host time by library as nsys' own CSV has it, and what a program is written with."""

import polars as pl
import pytest

from kanalyze.analyses.findings.findings import _WORDS, in_words_of
from kanalyze.analyses.findings.rules import ACTION_LONGEST, Finding
from kanalyze.analyses.findings.rules._kernels import launch_less
from kanalyze.analyses.findings.rules.occupancy import small_grid
from kanalyze.analyses.host._call_kinds import CUPY, JAX, NUMBA, OPENACC, OPENMP, PYTHON, PYTORCH, world
from kanalyze.analyses.host.calls import libraries
from kanalyze.tools import CUDA
from kanalyze.window import Window
from support.build import host, kernel, nvtx, report
from support.nsys_csv import TIMES, assert_rows, report_of, reports_with, rows_of
from support.shares import some

KEYS = ("library", "name", "count", "total_ns", "share", "idle_ns")


def rows(of, *columns, **where):
    return libraries(of, **where).select(columns or KEYS).rows()


@pytest.mark.parametrize(("name", "prefix"), [("libraries", "cuBLAS"), ("nccl", "NCCL"), ("torch_node", "CCCL")])
def test_ranges_of_a_domain_are_those_of_nsys(name, prefix):
    theirs = [row for row in rows_of(name, "nvtx_sum") if row["Range"].startswith(prefix + ":")]
    ours = libraries(report_of(name))
    ours = ours.filter(ours["library"] == prefix).rows(named=True)
    found = {(f"{prefix}:{row['name']}", str(row["count"]), str(row["total_ns"])) for row in ours}
    assert found == {(row["Range"], row["Instances"], row["Total Time (ns)"]) for row in theirs}
    assert len(theirs) == len(ours) > 0


def test_libraries_and_their_calls_the_longest_first():
    events = [
        *(kernel(0, 10), kernel(90, 100)),
        *(host("osrt", "poll", 5, 35), host("osrt", "read", 40, 50), host("osrt", "poll", 50, 60)),
        *(host("library", "cublasSgemm", 10, 20), host("library", "cudnnFind", 10, 21), host("library", "mine", 0, 1)),
        *(nvtx("ncclSend", 85, 95, domain="NCCL"), nvtx("step", 0, 50), nvtx("ncclSend", 20, 20, domain="NCCL")),
    ]
    assert rows(report(events)) == [
        ("OS runtime", "poll", 2, 40, 0.8, 35),
        ("OS runtime", "read", 1, 10, 0.2, 10),
        ("cuDNN", "cudnnFind", 1, 11, 1.0, 11),
        ("NCCL", "ncclSend", 2, 10, 1.0, 5),
        ("cuBLAS", "cublasSgemm", 1, 10, 1.0, 10),
        ("other", "mine", 1, 1, 1.0, 0),
    ]


KERNELS = {
    "void at::native::vectorized_elementwise_kernel<4>(int)": PYTORCH,
    "triton_poi_fused_add_0": PYTORCH,
    "loop_multiply_fusion": JAX,
    "input_reduce_fusion_1": JAX,
    "wrapped_tanh": JAX,
    "cupy_multiply__float32_float32_float32": CUPY,
    "_ZN6cudapy8__main__3addB2v1B92cw51cXTLSUwv1sCUt9Uw11Ew0NRRQPKzLTg9gaTkAdUEii": NUMBA,
    "__omp_offloading_10302_3c0aa4_main_l21": OPENMP,
    "nvkernel_main_F1L21_2": OPENMP,
    "main_21_gpu": OPENACC,
    "main_21_gpu__red": OPENACC,
    "add(int, float *, float *)": CUDA,
    "wrap(float *)": CUDA,
    "sum_on_gpu": CUDA,
    "void cub::DeviceReduceKernel<float>(float *)": CUDA,
}


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
    of = report([kernel(0, 1000, name=name, grid=(blocks, 1, 1), side=side)], limits=limits)
    assert [one.action for one in small_grid(of)] == [action]


def test_a_rule_without_words_of_a_world_keeps_its_own():
    own = Finding("allocation-in-loop", 0, 5, "…", "remedy", "memory", action="action")
    assert in_words_of(report([kernel(0, 5, name="add(int)")]), own) == own
    assert in_words_of(report([kernel(0, 5, name="cupy_add")]), own).action.startswith("no free_all_blocks()")
    other = own._replace(rule="tail")
    assert in_words_of(report([kernel(0, 5, name="cupy_add")]), other) == other


def test_actions_fit_their_line():
    assert [action for worlds in _WORDS.values() for action, _ in worlds.values() if len(action) > ACTION_LONGEST] == []


@pytest.mark.parametrize("name", some(reports_with("osrt_sum")))
def test_system_calls_equal_those_of_nsys(name):
    theirs, of = rows_of(name, "osrt_sum"), report_of(name)
    if not {"osrt", "range", "library"}.intersection(of.kinds):
        assert not theirs
        return
    ours = libraries(of).filter(pl.col("library") == "OS runtime")
    columns = {**TIMES, "Time (%)": "percent", "Num Calls": "count", "Name": "name"}
    assert_rows(ours.with_columns(percent=pl.col("share") * 100), theirs, columns)


TWO_DEVICES = [kernel(0, 10), kernel(30, 40), kernel(5, 25, device=1), host("osrt", "poll", 0, 50)]
OF_PROCESSES = [
    *(kernel(0, 1), kernel(0, 1, process=2, device=1), host("osrt", "a", 0, 10)),
    *(host("osrt", "b", 20, 30, process=2), nvtx("c", 40, 50, domain="lib")),
]


@pytest.mark.parametrize(
    ("events", "columns", "where", "expected"),
    [
        # time outside of the windows of the devices, or while another device works, is not idle
        ([kernel(10, 20), kernel(30, 40), host("osrt", "poll", 0, 50)], ("idle_ns",), {}, [(10,)]),
        (TWO_DEVICES, ("idle_ns",), {}, [(5,)]),
        (TWO_DEVICES, ("idle_ns",), {"device": 0}, [(20,)]),
        ([host("osrt", "poll", 0, 50)], ("total_ns", "idle_ns"), {}, [(50, None)]),
        # an open range lasts until the last event, and calls without time share nothing
        ([nvtx("open", 10, None, domain="lib", open_until_ns=35)], ("name", "total_ns"), {}, [("open", 25)]),
        ([host("osrt", None, 5, 5)], ("name", "share"), {}, [(None, 0.0)]),
        (OF_PROCESSES, ("name",), {"window": Window(5, 25)}, [("a",), ("b",)]),
        (OF_PROCESSES, ("name",), {"window": Window(49, None)}, [("c",)]),
        (OF_PROCESSES, ("name",), {"device": 1}, [("b",)]),
        (OF_PROCESSES, ("name",), {"process": 1}, [("a",), ("c",)]),
    ],
)
def test_which_time_counts(events, columns, where, expected):
    assert rows(report(events), *columns, **where) == expected


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
