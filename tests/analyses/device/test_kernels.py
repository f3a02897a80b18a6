"""Kernels by name, by launch shape and by what their names say, and which communicate, on reports made by hand."""

import polars as pl
import pytest

from kanalyze import catalog
from kanalyze.analyses.device.kernels import copies, gpu, kernels
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.window import Window
from support.build import graph, kernel, memcpy, memset, report
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

#: Sorted by time, then launches, then name.
SORTED = [
    *(kernel(0, 10, name="b"), kernel(10, 15, name="a"), kernel(15, 20, name="a")),
    *(kernel(20, 30, name="c"), kernel(30, 41, name="d"), kernel(50, 50, name=None)),
]
#: A kernel that overlaps the window counts whole, but for the time of its own, which is inside.
SEVERAL = [kernel(0, 20), kernel(30, 50), kernel(0, 5, device=1, process=2)]
TIMES = ("count", "total_ns", "exclusive_ns")


@pytest.mark.parametrize(
    ("events", "where", "columns", "rows"),
    [
        (SORTED, {}, ("name", "count"), [("d", 1), ("b", 1), ("c", 1), ("a", 2), (None, 1)]),
        (SEVERAL, {"window": Window(10, 40)}, TIMES, [(2, 40, 20)]),
        (SEVERAL, {"device": 1}, TIMES, [(1, 5, 5)]),
    ],
)
def test_kernels(events, where, columns, rows):
    assert kernels(report(events), **where).select(columns).rows() == rows


def grouped(by, *keys, **tables):
    found = kernels(report(WORK, **tables), by=by)
    return found.select(*keys, "count", "total_ns", "exclusive_ns", "kernels").rows()


#: Launches, times and names of the kernels of each family.
POINT, GEMMS, OTHERS, SENT = (3, 60, 50, 2), (1, 40, 40, 1), (2, 6, 6, 2), (1, 2, 2, 1)
FAMILIES = [("elementwise", *POINT), ("gemm", *GEMMS), ("other", *OTHERS), ("communication", *SENT)]


@pytest.mark.parametrize(
    ("by", "keys", "rows"),
    [
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
        ("family", ["family"], FAMILIES),
        ("library", ["library"], [("aten", *POINT), ("cutlass", *GEMMS), ("other", *OTHERS), ("nccl", *SENT)]),
        ("dtype", ["dtype"], [("f32", 4, 62, 52, 3), ("bf16", 1, 40, 40, 1), ("other", 2, 6, 6, 2)]),
        *(
            (by, [by.replace("-", "_")], [("other", 6, 68, 58, 5), (value, 1, 40, 40, 1)])
            for by, value in (("arch", "sm80"), ("tensor-core", "yes"), ("tile", "256x128x32"))
        ),
    ],
)
def test_kernels_whose_names_say_the_same_are_one_row(by, keys, rows):
    assert grouped(by, *keys) == rows
    assert kernels(report(WORK), by=by).columns == [*keys, *STATISTICS, "exclusive_ns", "kernels"]


def test_a_recorded_collective_communicates_whatever_its_name():
    recorded = {"collective_detail": [{"event_id": 4, "collective": "allreduce"}]}
    assert grouped("family", "family", **recorded)[2:] == [("communication", 2, 7, 7, 2), ("other", 1, 1, 1, 1)]
    buckets = dict(ledger(report(WORK, **recorded)).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    assert (buckets["communication"], buckets["kernel"]) == (7, 91)
    families = hot_kernels(report(WORK, **recorded)).select("name", "family")
    assert dict(families.iter_rows())["mine"] == "communication"


def test_what_compiled_a_kernel_names_its_library():
    compiled = [
        {"name": "mine", "source": "triton", "hash": "0", "num_warps": 4},
        {"name": GEMM, "source": "inductor", "hash": "1", "num_warps": 4},
    ]
    rows = grouped("library", "library", compiled_kernels=compiled)
    assert [row[0] for row in rows] == ["aten", "cutlass", "triton", "nccl", "other"]


def test_every_grouping_has_a_form_of_its_own():
    declared = catalog.table("kernels")
    assert {form.when for form in catalog.forms("kernels")} == {f"--by {by}" for by in declared.groupings}


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


TO_DEVICE, TO_HOST, SET = (f"[CUDA {what}]" for what in ("memcpy Host-to-Device", "memcpy Device-to-Host", "memset"))


MIXED = [memset(0, 10), kernel(10, 30), memcpy(30, 80), memcpy(80, 90, direction="Device-to-Host"), kernel(90, 100)]
TWO_GPUS = [kernel(0, 10), kernel(20, 40, name="j"), kernel(20, 40, device=1, process=2)]


@pytest.mark.parametrize(
    ("events", "where", "rows"),
    [
        # the longest first
        (MIXED, {}, [(TO_DEVICE, 1, 50, 0.5), ("k", 2, 30, 0.3), (TO_HOST, 1, 10, 0.1), (SET, 1, 10, 0.1)]),
        # operations that overlap count in full
        ([kernel(0, 10), memcpy(0, 10, stream=8)], {}, [(TO_DEVICE, 1, 10, 0.5), ("k", 1, 10, 0.5)]),
        # whole graphs are left out
        ([graph(0, 90), kernel(90, 100)], {}, [("k", 1, 10, 1.0)]),
        # a kernel that is called like a memset is one
        ([kernel(0, 30, name=SET)], {}, [(SET, 1, 30, 1.0)]),
        # a missing name, and no time at all
        ([kernel(5, 5, name=None)], {}, [(None, 1, 0, 0.0)]),
        # what overlaps the window counts, whole
        (TWO_GPUS, {"window": Window(35, 50), "device": 0}, [("j", 1, 20, 1.0)]),
        (TWO_GPUS, {"process": 2}, [("k", 1, 20, 1.0)]),
    ],
)
def test_kernels_and_copies_in_one_list(events, where, rows):
    found = gpu(report(events), **where)
    assert found.select("operation", "count", "total_ns", "share").rows() == rows
    names = {event.name for event in events if event.kind == "kernel"}
    kinds = ["CUDA_KERNEL" if name in names else "MEMORY_OPER" for name in found["operation"]]
    assert found["category"].to_list() == kinds


NS_PER_S = 1_000_000_000
SIZES = ("total_bytes", "avg_bytes", "stddev_bytes", "bandwidth_bytes_per_s")
SUMS = ("count", "total_ns", "total_bytes", "exclusive_ns")
KNOWN, UNKNOWN = memcpy(0, 10, size_bytes=100), memcpy(10, 20, size_bytes=None)
COPIES = [memcpy(0, 20, size_bytes=1), memcpy(30, 50, size_bytes=2), memcpy(0, 5, size_bytes=4, device=1, process=2)]


@pytest.mark.parametrize(
    ("events", "columns", "where", "rows"),
    [
        # time of its own is what no kernel and no copy takes; bandwidth is of all its time
        (
            [kernel(0, 10), memcpy(5, 25, stream=8), memset(15, 30, stream=9)],
            ("total_ns", "exclusive_ns", "bandwidth_bytes_per_s"),
            {},
            [(20, 15, NS_PER_S / 20), (15, 5, NS_PER_S / 15)],
        ),
        # sizes that are not known are left out, and null where none is
        ([KNOWN, UNKNOWN], SIZES, {}, [(100, 100.0, 0.0, 100 * NS_PER_S / 20)]),
        ([UNKNOWN], SIZES, {}, [(None, None, None, None)]),
        # no time gives no bandwidth
        ([memcpy(5, 5)], ("share", "total_bytes", "bandwidth_bytes_per_s"), {}, [(0.0, 1, None)]),
        # a copy that overlaps the window counts whole, but for the time of its own, which is inside
        (COPIES, SUMS, {"window": Window(10, 40)}, [(2, 40, 3, 20)]),
        (COPIES, SUMS, {"process": 1}, [(2, 40, 3, 40)]),
    ],
)
def test_copies(events, columns, where, rows):
    assert copies(report(events), **where).select(columns).rows() == rows
