"""The same tiny program as older versions of torch wrote it (tests/reports/torch_versions): the same figures."""

import json

import polars as pl
import pytest

import kanalyze
from support.command import REPORTS
from support.made_traces import counted

VERSIONS = REPORTS / "torch_versions"

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::square_kernel>"
    "(int, at::native::square_kernel, at::detail::Array<char*, 2>)"
)
DEVICE = {
    "kernel": [(KERNEL, 50_000, 30_000), (KERNEL, 270_000, 25_000)],
    "memcpy": [("[CUDA memcpy Host-to-Device]", 120_000, 28_000)],
    "memset": [("[CUDA memset]", 195_000, 2_000)],
}
CALLS = [
    ("cudaLaunchKernel", 30_000, 10_000), ("cudaMemcpyAsync", 110_000, 40_000), ("cudaMemsetAsync", 180_000, 10_000),
    ("cudaLaunchKernel", 250_000, 10_000), ("cudaDeviceSynchronize", 320_000, 70_000),
]  # fmt: skip

#: Those that say which operator a call was made in, but by time.
TELLING = {"torch-1.8", "torch-1.8-bare", "torch-1.9", "torch-2.3", "torch-2.4"}


@pytest.fixture(params=sorted(VERSIONS.glob("torch-*.json")), ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def report(path):
    return kanalyze.read(path)


def rows(report, kind, begin):
    times = ("name", pl.col("start_ns") - begin, "dur_ns")
    return report.kind(kind).with_columns(pl.col("name").cast(pl.String)).select(times).rows()


def test_each_event_has_its_name_time_and_place(report):
    begin = report.kind("range").item(0, "start_ns")
    assert rows(report, "range", begin) == [("ProfilerStep#3", 0, 400_000)]
    assert {kind: rows(report, kind, begin) for kind in DEVICE} == DEVICE
    assert rows(report, "api", begin) == CALLS
    names = ["aten::square", "aten::pow", "aten::copy_", "aten::zero_", "PowBackward0", "aten::mul"]
    assert report.kind("op").get_column("name").to_list() == names
    assert report.kind("op").get_column("thread_id").to_list() == [4000, 4000, 4000, 4000, 4007, 4007]
    work = pl.concat(report.kind(kind) for kind in DEVICE).select("process_id", "device", "context_id", "stream")
    assert work.unique().rows() == [(4000, 0, 1, 7)]


def test_calls_and_what_they_launched_share_a_correlation_id(report):
    calls = report.kind("api").select("correlation_id", call="name")
    work = pl.concat(report.kind(kind).select("kind", "correlation_id") for kind in DEVICE)
    joined = work.join(calls, on="correlation_id", how="left", maintain_order="left").select("kind", "call").rows()
    of_others = [("memcpy", "cudaMemcpyAsync"), ("memset", "cudaMemsetAsync")]
    assert joined == [*[("kernel", "cudaLaunchKernel")] * 2, *of_others]


def test_a_parent_is_the_operator_or_nothing(report, path):
    ops = report.kind("op").select(parent_id="event_id", op="name")
    calls = report.kind("api").join(ops, on="parent_id", how="left", maintain_order="left").get_column("op").to_list()
    known = ["aten::pow", "aten::copy_", "aten::zero_", "aten::mul", None]
    assert calls == (known if path.stem in TELLING else [None] * 5)


@pytest.mark.one_in(3)
def test_operators_take_the_same_times(report):
    found = kanalyze.ops(report).select("name", "count", "cpu_ns", "self_device_ns", "device_ns")
    expected = [
        (row["name"].replace("#3", "*"), row["count"], *(row[key] * 1000 for key in ("cpu", "self_device", "device")))
        for row in json.loads((VERSIONS / "expected.json").read_text())["ops_us"]
    ]
    assert sorted(found.rows()) == sorted(expected)


def test_shapes_and_sequence_numbers_are_read_where_they_are_told(report, path):
    detail = report.table("op_detail").join(report.kind("op").select("event_id", "name"), on="event_id")
    assert detail.filter(pl.col("name") == "aten::square").get_column("input_shapes").to_list() == ["[[2, 3]]"]
    numbers = detail.drop_nulls("sequence_number").select("name", "sequence_number").rows()
    told = [("aten::square", 5), ("aten::pow", 5), ("PowBackward0", 5)]
    assert numbers == ([] if path.stem.startswith("torch-1.8") else told)


def test_allocations_are_read_with_and_without_a_category(report, path):
    memory = report.kind("memory").join(report.table("memory_detail"), on="event_id")
    expected = [("Allocation", 512), ("Deallocation", 512)]
    assert memory.select("name", "size_bytes").rows() == ([] if path.stem.startswith("torch-1.8") else expected)


def test_every_entry_of_the_file_is_accounted_for(path):
    report = kanalyze.read(path)
    data = json.loads(path.read_text())
    entries = len(data if isinstance(data, list) else data["traceEvents"])
    notes = counted(report)
    apart = ("arrows between events", "names and marks", "ranges drawn on devices")
    assert notes["events in the trace"] == entries
    assert (
        sum(report.kind(kind).height for kind in report.kinds) + sum(notes.get(check, 0) for check in apart) == entries
    )
    assert set(notes) <= {"events in the trace", *apart}


def test_the_machine_and_the_rank_are_read_where_they_are_told():
    told = kanalyze.read(VERSIONS / "torch-2.0.json")
    assert (told.meta.rank, told.meta.world_size, told.meta.duration_ns) == (3, 8, 400_000)
    assert told.table("devices").select("name", "sm_count").rows() == [("Tesla V100-SXM2-32GB", 80)]
    untold = kanalyze.read(VERSIONS / "torch-1.8.json")
    assert (untold.meta.rank, untold.meta.world_size) == (None, None)
    assert untold.table("devices").select("device", "name").rows() == [(0, None)]
    assert kanalyze.read(VERSIONS / "torch-2.4.json").meta.origin_unix_ns == 1_719_619_200_000_000_000


def test_the_first_profilers_say_what_an_operator_ran_by_an_arrow():
    report = kanalyze.read(VERSIONS / "autograd-legacy-1.6.json")
    assert report.kinds == ("kernel", "memcpy", "memset", "range", "op")
    kernels = report.kind("kernel").select("name", "start_ns", "dur_ns", "device", "parent_id")
    ops = report.kind("op").select(parent_id="event_id", op="name", begin="start_ns")
    joined = kernels.join(ops, on="parent_id", how="left", maintain_order="left").drop("parent_id")
    assert joined.rows() == [
        ("aten::pow", 50_000, 30_000, 0, "aten::pow", 15_125),
        ("aten::copy_", 120_000, 28_000, 0, "aten::copy_", 100_125),
        ("aten::zero_", 195_000, 2_000, 0, "aten::zero_", 170_125),
        ("aten::mul", 270_000, 25_000, 0, "aten::mul", 230_125),
    ]
    later = kanalyze.read(VERSIONS / "autograd-legacy-1.9.json")
    assert later.kinds == ("range", "op")
    assert rows(later, "op", 125) == rows(report, "op", 125)
