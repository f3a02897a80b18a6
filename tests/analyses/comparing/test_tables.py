"""Tables of two sides, on digests made by hand (operators, memory, findings, ranks), and counters that ncu measured."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from analyses.comparing.test_matching import digest, digest_of, slots
from kanalyze.analyses.comparing._comparison import compared
from kanalyze.reduction.baselines import TABLES, About, Digest
from kanalyze.renderers.page.comparison import comparison_page
from kanalyze.several import Asked
from kanalyze.several.sides import comparison
from support.command import SAMPLES

LINEAR = "aten::linear"


def run(ns=1000, *, iterations=1, rank=0, **tables):
    about = About("run", "torch.profiler", "whole", iterations=iterations, ns=ns, rank=rank)
    return digest_of(about, **{"buckets": [("kernel", None, ns)], **tables})


def rows_of(table, base, new, *columns):
    both = ([side] if isinstance(side, Digest) else side for side in (base, new))
    found = compared(*both, ("base", "new")).table(table)
    return found.select(columns).rows() if columns else found


def test_operators_of_one_side_are_told_at_the_nearest_that_both_have():
    base = run(ops=[(LINEAR, 4, 8, 0), (f"{LINEAR} → aten::addmm", 4, 12, 400), ("aten::add", 1, 1, 50)])
    new = run(
        ops=[
            (LINEAR, 4, 8, 0),
            (f"{LINEAR} → aten::_addmm_activation", 4, 16, 300),
            (f"{LINEAR} → aten::_addmm_activation → aten::view", 8, 4, 20),
            ("aten::add", 1, 1, 50),
        ]
    )
    columns = ("path", "change", "base_ops", "new_ops", "base_count", "new_count", "base_ns", "new_ns")
    assert rows_of("compare_ops", base, new, *columns) == [
        (LINEAR, "replaced", "aten::addmm", "aten::_addmm_activation", 4.0, 4.0, 400, 320),
        ("aten::add", "same", None, None, 1.0, 1.0, 50, 50),
        (LINEAR, "same", None, None, 4.0, 4.0, 0, 0),
    ]
    hosts = ("change", "base_self_host_ns", "new_self_host_ns", "changed")
    assert rows_of("compare_ops", base, new, *hosts)[0] == ("replaced", 12, 20, True)


def test_operators_that_are_in_nothing_of_both_sides_are_told_at_the_outermost():
    base = run(ops=[("aten::relu", 2, 1, 10), ("aten::add", 1, 1, 5)])
    new = run(ops=[("aten::add", 1, 1, 5), ("a", 3, 0, 0), ("a → b", 6, 0, 40), ("c", 1, 0, 0)])
    columns = ("path", "change", "base_ops", "new_ops", "base_count", "new_count", "delta_ns")
    assert rows_of("compare_ops", base, new, *columns)[0] == (None, "replaced", "aten::relu", "a, c", 2.0, 4.0, 30)
    inner, outer = run(ops=[("a", 1, 1, 5), ("a → b", 1, 1, 100)]), run(ops=[("a", 1, 1, 5)])
    for sides, change in (((inner, outer), "gone"), ((outer, inner), "new")):
        assert rows_of("compare_ops", *sides, "path", "change")[0] == ("a", change)


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(" → ".join)
TREES = st.dictionaries(PATHS, st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(0, 10**6)), max_size=8)


@given(TREES, TREES, st.integers(1, 7))
def test_operators_sum_to_what_both_sides_have(base, new, iterations):
    trees = [[(path, *row) for path, row in side.items()] for side in (base, new)]
    sides = [run(5 * 10**7, iterations=iterations, ops=tree) for tree in trees]
    found = rows_of("compare_ops", *sides)
    for name, side in (("base_ns", base), ("new_ns", new)):
        busy = rows_of("compare", *sides).get_column(name).sum()
        others = (5 * 10**7 - sum(row[2] for row in side.values())) / iterations
        # either whole number of a mean in the middle
        assert abs(busy - found.get_column(name).sum() - others) <= 0.5001
    named = [f"{name}_{what}" for name in ("base", "new") for what in ("ns", "count")]
    alone = found.filter(pl.col("change").is_in(["new", "gone"]))
    for row in alone.iter_rows(named=True):
        empty = named[:2] if row["change"] == "new" else named[2:]
        assert not any(row[name] for name in empty)
    same = found.filter(pl.col("change") == "same").get_column("path").to_list()
    assert sorted(same) == sorted({*base} & {*new})


def test_calls_of_hip_and_cuda_match_by_what_they_do():
    cuda = run(calls=[("cudaLaunchKernel_v7000", False, 4, 40), ("cudaStreamSynchronize", True, 1, 9)])
    hip = run(
        calls=[("hipLaunchKernel", False, 3, 60), ("hipStreamSynchronize", True, 1, 9), ("hipMalloc", False, 1, 1)]
    )
    columns = ("name", "base_count", "new_count", "base_ns", "new_ns")
    assert rows_of("compare_calls", cuda, hip, *columns) == [
        ("cudaLaunchKernel_v7000 / hipLaunchKernel", 4.0, 3.0, 40, 60),
        ("hipMalloc", 0.0, 1.0, 0, 1),
        ("cudaStreamSynchronize / hipStreamSynchronize", 1.0, 1.0, 9, 9),
    ]
    assert rows_of("compare_calls", cuda, cuda, "name") == [("cudaLaunchKernel_v7000",), ("cudaStreamSynchronize",)]


def test_families_are_compared_where_another_gpu_has_other_kernels():
    names = {"H100": "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "A100": "ampere_sgemm_128x64_tn"}
    sides = [slots_run(gpu, [(name, 100), (None, 5)]) for gpu, name in names.items()]
    columns = ("family", "base_count", "base_ns", "new_ns")
    assert rows_of("compare_families", *sides, *columns) == [("gemm", 1.0, 100, 100), ("memcpy", 1.0, 5, 5)]
    shown = compared([sides[0]], [sides[1]], ("base", "new"))
    assert "FAMILIES OF KERNELS" not in titles(shown)  # nothing changed
    slower = slots_run("A100", [(names["A100"], 300), (None, 5)])
    assert "FAMILIES OF KERNELS" in titles(compared([sides[0]], [slower], ("base", "new")))
    same = slots_run("H100", [(names["H100"], 300), (None, 5)])
    assert "FAMILIES OF KERNELS" not in titles(compared([sides[0]], [same], ("base", "new")))


def slots_run(gpu, operations):
    """A run on a GPU of operations with their times: kernels by name, and copies without one."""
    rows = [
        {"lane": 0, "place": at, "name": name, "count": 1, "exclusive_ns": ns, "bytes": 0}
        | ({"kind": "kernel", "bucket": "kernel"} if name else {"kind": "memcpy", "bucket": "memcpy"})
        for at, (name, ns) in enumerate(operations)
    ]
    sums = {
        bucket: sum(row["exclusive_ns"] for row in rows if row["bucket"] == bucket) for bucket in ("kernel", "memcpy")
    }
    filled = [tuple(map(row.get, TABLES["slots"].schema)) for row in rows]
    one = run(sum(sums.values()), buckets=[(bucket, None, ns) for bucket, ns in sums.items()], slots=filled)
    return replace(one, about=replace(one.about, gpu=gpu))


def titles(found):
    return [section.title for section in comparison_page(found, 9).sections]


def test_a_peak_is_no_sum_of_iterations_and_allocations_are():
    sides = run(iterations=10, memory=[("Device", 30, 4096)]), run(iterations=10, memory=[("Device", 30, 8192)])
    (row,) = rows_of("compare_memory", *sides).rows(named=True)
    assert (row["base_peak_bytes"], row["new_peak_bytes"], row["delta_bytes"]) == (4096, 8192, 4096)
    assert (row["base_allocations"], row["new_allocations"], row["ratio"], row["changed"]) == (3.0, 3.0, 2.0, True)


def test_memory_has_changed_where_every_run_differs():
    base = [run(memory=[("Device", 1, peak)]) for peak in (100, 120)]
    for peaks, changed in (((121, 140), False), ((130, 140), True), ((110, 200), False)):
        new = [run(memory=[("Device", 1, peak)]) for peak in peaks]
        assert rows_of("compare_memory", base, new, "changed") == [(changed,)]
    assert rows_of("compare_memory", run(), base).is_empty()  # which one side did not record


def test_findings_go_come_and_stay():
    base = run(findings=[("gap", "a gap", None, 300), ("gap", "another", None, 100), ("tail", "a tail", None, 50)])
    new = run(findings=[("gap", "a longer gap", None, 800), ("wait", "it waits", "main", 70)])
    columns = ("rule", "change", "base_ns", "new_ns", "headline", "changed")
    assert rows_of("compare_findings", base, new, *columns) == [
        ("gap", "stays", 400, 800, "a longer gap", True),
        ("wait", "new", 0, 70, "it waits", True),
        ("tail", "gone", 50, 0, "a tail", True),
    ]
    # a finding of some runs of one side has not gone for sure
    columns = ("rule", "change", "base_runs", "new_runs", "changed")
    assert rows_of("compare_findings", [run(findings=[("gap", "a gap", None, 1)]), run()], [run()] * 2, *columns) == [
        ("gap", "gone", 1, 0, False)
    ]


def test_ranks_each_have_their_verdict():
    base = [run(ns, rank=rank) for rank in (0, 1) for ns in (1_000_000, 1_001_000, 999_000)]
    new = [run(ns, rank=rank) for rank in (0, 1) for ns in ((1 + rank) * 10**6, (1 + rank) * 10**6 + 900)]
    columns = ("rank", "verdict", "delta_ns", "changed")
    assert rows_of("compare_ranks", base, new, *columns) == [(0, "same", 450, False), (1, "slower", 1_000_450, True)]


def test_of_captures_the_operators_are_of_the_traces():
    trace = run(ops=[("a", 1, 1, 5)])
    whole = compared([run()], [run()], ("base", "new"))
    assert whole.table("compare_ops").is_empty()
    joined = replace(whole, others={"torch.profiler": compared([trace], [trace], ("base", "new"))})
    assert joined.table("compare_ops").get_column("path").to_list() == ["a"]
    assert joined.tables["compare_ops"].height == 1


@pytest.mark.slow
@pytest.mark.parametrize(("base", "new"), [("square", "square"), ("add", "add_parallel")])
def test_counters_of_both_sides_are_those_of_the_launches(base, new):
    paths = [[next((SAMPLES / name).glob("ncu*.ncu-rep"), SAMPLES / name / "ncu.raw.csv")] for name in (base, new)]
    table = comparison(*paths, Asked({})).table("compare_counters")
    assert table.filter(counter="dur_ns").get_column("base").max() > 0
    assert table.filter(counter="dur_ns").get_column("changed").any() == (base != new)
    both = table.drop_nulls(["base", "new"])
    assert both.get_column("difference").to_list() == (both["new"] - both["base"]).to_list()


def test_an_intensity_counts_by_the_bytes_that_a_kernel_moved():
    """By those that were measured: one whose reads are not known counts by what it wrote."""
    name = "intensity_flop_per_byte"
    known = {
        "a": {name: 1.0, "dram_read_bytes": 3.0, "dram_write_bytes": 1.0},
        "b": {name: 2.0, "dram_write_bytes": 4.0},
        "c": {name: 9.0, "dram_read_bytes": 4.0},
    }
    sides = []
    for kernels in (known, {"abc": known["a"]}):
        one = digest(slots([(kernel, None) for kernel in kernels]))
        rows = [
            (kernel, one.slots.item(0, "shape"), counter, 1, mean)
            for kernel, counters in kernels.items()
            for counter, mean in counters.items()
        ]
        sides.append([replace(one, counters=pl.DataFrame(rows, schema=TABLES["counters"].schema, orient="row"))])
    rows = compared(*sides, ("base", "new")).table("compare_counters")
    told = {row["counter"]: row for row in rows.iter_rows(named=True)}
    assert (told[name]["change"], told[name]["base"], told[name]["new"]) == ("fused", 4.0, 1.0)
    assert told["dram_read_bytes"]["base"] is None  # of fewer kernels it would be a part of the sum
