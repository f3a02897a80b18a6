"""Kernels by name, by launch shape and by what their names say, and which communicate, on reports made by hand."""

import polars as pl
import pytest

from kanalyze import catalog
from kanalyze.analyses.device.kernels import kernels
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.errors import UnknownNameError
from kanalyze.window import Window
from support.build import graph, kernel, memcpy, report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report

GEMM = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(T)"
)
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, MulFunctor<float> > >(int)"  # fmt: skip # noqa: E501
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
WORK = [
    kernel(0, 40, name=GEMM),
    kernel(50, 60, name=ADD),
    kernel(60, 90, name=MUL),
    kernel(80, 100, name=ADD),
    kernel(100, 105, name="mine"),
    kernel(105, 106, name=None),
    kernel(106, 108, name=REDUCE),
]


STATISTICS = ("count", "total_ns", "share", "avg_ns", "median_ns", "min_ns", "max_ns", "stddev_ns")


def test_every_column_of_a_kernel():
    """Durations 10 and 30, each 10 from their mean; the second overlaps a kernel that began before for 5."""
    events = [kernel(0, 10), kernel(20, 45, name="j"), kernel(40, 70, stream=8)]
    found = kernels(report(events))
    assert found.columns == ["name", *STATISTICS, "exclusive_ns"]
    assert found.row(0) == ("k", 2, 40, 40 / 65, 20.0, 20.0, 10, 30, pytest.approx(200**0.5), 35)


def test_kernels_are_sorted_by_time_then_launches_then_name():
    events = [kernel(0, 10, name="b"), kernel(10, 15, name="a"), kernel(15, 20, name="a")]
    events += [kernel(20, 30, name="c"), kernel(30, 41, name="d"), kernel(50, 50, name=None)]
    found = kernels(report(events)).select("name", "count", "total_ns", "avg_ns", "stddev_ns").rows()
    assert found == [
        ("d", 1, 11, 11, 0),
        ("b", 1, 10, 10, 0),
        ("c", 1, 10, 10, 0),
        ("a", 2, 10, 5, 0),
        (None, 1, 0, 0, 0),
    ]


def test_launch_shapes_of_a_kernel_are_rows_of_their_own():
    events = [kernel(0, 10, grid=(4, 2, 1), block=(64, 1, 2)), kernel(10, 25), kernel(25, 35), memcpy(35, 40)]
    found = kernels(report(events), by="launch-shape")
    assert found.select("name", "count", "total_ns", "share", "exclusive_ns").rows() == [
        ("k", 2, 25, 25 / 35, 25),
        ("k", 1, 10, 10 / 35, 10),
    ]
    shapes = found.select(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
    assert shapes.rows() == [(1, 1, 1, 32, 1, 1), (4, 2, 1, 64, 1, 2)]


def test_the_part_that_is_looked_at():
    """A kernel that overlaps the window counts whole, but for the time of its own, which is inside."""
    events = report([kernel(0, 20), kernel(30, 50), kernel(0, 5, device=1, process=2)])

    def found(**where):
        return kernels(events, **where).select("count", "total_ns", "exclusive_ns").rows()

    assert found() == [(3, 45, 45)]
    assert found(window=Window(10, 40)) == [(2, 40, 20)]
    assert found(device=1) == found(process=2) == [(1, 5, 5)]
    assert found(window=Window(20, 30)) == []


def grouped(by, *keys, **tables):
    found = kernels(report(WORK, **tables), by=by)
    return found.select(*keys, "count", "total_ns", "exclusive_ns", "kernels").rows()


@pytest.mark.parametrize(
    ("by", "keys", "rows"),
    [
        (
            "family",
            ["family"],
            [
                ("elementwise", 3, 60, 50, 2),
                ("gemm", 1, 40, 40, 1),
                ("other", 2, 6, 6, 2),
                ("communication", 1, 2, 2, 1),
            ],
        ),
        (
            "library",
            ["library"],
            [("aten", 3, 60, 50, 2), ("cutlass", 1, 40, 40, 1), ("other", 2, 6, 6, 2), ("nccl", 1, 2, 2, 1)],
        ),
        (
            "operation",
            ["family", "operation"],
            [
                ("gemm", "gemm", 1, 40, 40, 1),
                ("elementwise", "mul", 1, 30, 30, 1),
                ("elementwise", "add", 2, 30, 20, 1),
                ("other", "other", 2, 6, 6, 2),
                ("communication", "allreduce", 1, 2, 2, 1),
            ],
        ),
        ("dtype", ["dtype"], [("f32", 4, 62, 52, 3), ("bf16", 1, 40, 40, 1), ("other", 2, 6, 6, 2)]),
        ("arch", ["arch"], [("other", 6, 68, 58, 5), ("sm80", 1, 40, 40, 1)]),
        ("tensor-core", ["tensor_core"], [("other", 6, 68, 58, 5), ("yes", 1, 40, 40, 1)]),
        ("tile", ["tile"], [("other", 6, 68, 58, 5), ("256x128x32", 1, 40, 40, 1)]),
    ],
)
def test_kernels_whose_names_say_the_same_are_one_row(by, keys, rows):
    assert grouped(by, *keys) == rows


def test_every_column_of_a_group():
    found = kernels(report(WORK), by="family")
    assert found.columns == ["family", *STATISTICS, "exclusive_ns", "kernels"]
    assert found.row(0) == ("elementwise", 3, 60, 60 / 108, 20.0, 20.0, 10, 30, 10.0, 50, 2)


def test_a_recorded_collective_communicates_whatever_its_name():
    recorded = {"collective_detail": [{"event_id": 4, "collective": "allreduce"}]}
    assert grouped("family", "family", **recorded)[2:] == [("communication", 2, 7, 7, 2), ("other", 1, 1, 1, 1)]
    buckets = dict(ledger(report(WORK, **recorded)).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    assert (buckets["communication"], buckets["kernel"]) == (7, 91)
    families = hot_kernels(report(WORK, **recorded)).select("name", "family")
    assert dict(families.iter_rows())["mine"] == "communication"


def test_a_name_that_is_missing_beside_a_recorded_collective():
    work = [kernel(0, 5, name=None), kernel(5, 9, name=REDUCE), kernel(9, 10, name=None)]
    recorded = [{"event_id": 0, "collective": "send"}]
    found = kernels(report(work, collective_detail=recorded), by="family")
    assert found.select("family", "total_ns").rows() == [("communication", 9), ("other", 1)]


def test_what_compiled_a_kernel_names_its_library():
    compiled = [
        {"name": "mine", "source": "triton", "hash": "0", "num_warps": 4},
        {"name": GEMM, "source": "inductor", "hash": "1", "num_warps": 4},
    ]
    rows = grouped("library", "library", compiled_kernels=compiled)
    assert [row[0] for row in rows] == ["aten", "cutlass", "triton", "nccl", "other"]


def test_a_whole_graph_has_no_family():
    families = hot_kernels(report([graph(0, 10), kernel(10, 12, name="mine")])).select("name", "family")
    assert families.rows() == [("[CUDA graph 1]", None), ("mine", "other")]


def test_every_grouping_has_a_form_of_its_own():
    declared = catalog.table("kernels")
    assert {form.when for form in catalog.forms("kernels")} == {f"--by {by}" for by in declared.groupings}
    with pytest.raises(UnknownNameError):
        kernels(report(WORK), by="colour")


@pytest.mark.parametrize("path", [REPORTS / "nccl.sqlite", REPORTS / "torch_node.sqlite", SAMPLES / "mlp_train"])
def test_groups_hold_what_kernels_do(path):
    found = real_report(path)
    plain = kernels(found)
    for by in catalog.table("kernels").groupings[1:]:
        rows, sums = kernels(found, by=by), pl.col("count", "total_ns", "exclusive_ns").sum()
        assert rows.select(sums).row(0) == plain.select(sums).row(0)
        assert rows.get_column("share").sum() == pytest.approx(1)
    communication = kernels(found, by="family").filter(pl.col("family") == "communication")
    bucket = ledger(found).filter(pl.col("bucket") == "communication")
    assert communication.get_column("exclusive_ns").sum() == bucket.get_column("ns").sum()
