"""Operations of two sides matched in the order of launch, and programs of which one thing was changed, or nothing."""

from itertools import combinations
from pathlib import Path

import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.comparing._comparison import compared, verdict_of
from kanalyze.analyses.comparing._pair import matches
from kanalyze.reduction.baselines import SLOTS, TABLES, About, Digest, dumped, loaded
from kanalyze.renderers.formats.markdown import render
from kanalyze.renderers.page import page_of_any
from kanalyze.several import Asked
from kanalyze.several.sides import comparison, digests
from support.command import SAMPLES
from support.real_reports import EXPORTS


def slots(names, ns=1000, iterations=10):
    rows = [
        ("kernel", "kernel", name, "1,1,1 × 32,1,1", inner, None, 0, float(place), iterations, ns * iterations, 0)
        for place, (name, inner) in enumerate(names)
    ]
    return pl.DataFrame(rows, schema=SLOTS.schema, orient="row")


def plain(text, inner=None):
    return [(name, inner) for name in text.split()]


def digest_of(about, **tables):
    of = {name: pl.DataFrame(rows, schema=TABLES[name].schema, orient="row") for name, rows in tables.items()}
    return Digest(about, **of)


def digest(rows, host_ns=500, iterations=10, name="a", **about):
    kernels = int(rows.get_column("exclusive_ns").sum())
    buckets = [("kernel", None, kernels), ("host", None, host_ns * iterations)]
    ns = kernels + host_ns * iterations
    said = About(name, "nsys", "steady", "step", "ranges", iterations, iterations, ns, **about)
    return digest_of(said, buckets=buckets, steps=[(ns // iterations,)] * iterations, slots=rows.rows())


def kernels(base, new):
    table = compared([digest(base)], [digest(new)], ("base", "new")).table("compare_kernels")
    return sorted(table.select("change", "base_kernel", "new_kernel", "base_count", "new_count", "delta_ns").rows())


GEMMS = "ampere_sgemm_128x64_nn", "sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x16"
IN_RANGES = [*plain("a b", "forward"), *plain("p q r", "optimizer")]
BOTH_PARTS = [*plain("ab", "forward"), *plain("pqr", "optimizer")]
ONE_FUSED = [("fused", "z", "s", 2.0, 2.0, 0), ("other kernel", *GEMMS, 1.0, 1.0, 0)]


@pytest.mark.parametrize(
    ("base", "new", "others"),
    [
        (plain("a b c"), plain("a b c"), []),
        (plain("x a b c d"), plain("a b c d x"), []),  # what moved is the same
        # several in the place of one are fused
        (plain("a x y z b"), plain("a xyz b"), [("fused", "z", "xyz", 3.0, 1.0, -2000)]),
        (plain("a b"), plain("a x b"), [("new", None, "x", 0.0, 1.0, 1000)]),
        (plain("a x b"), plain("a b"), [("gone", "x", None, 1.0, 0.0, -1000)]),
        # kernels of one family and type are matched whatever their names
        (plain(f"a {GEMMS[0]} b"), plain(f"a {GEMMS[1]} b"), [("other kernel", *GEMMS, 1.0, 1.0, 0)]),
        # but alone within what was replaced it is a part of that, and at an end it is not
        (plain(f"a x y {GEMMS[0]} z b"), plain(f"a p q {GEMMS[1]} r b"), [("fused", "z", GEMMS[1], 4.0, 4.0, 0)]),
        (plain(f"{GEMMS[0]} z w"), plain(f"{GEMMS[1]} r s"), ONE_FUSED),
        # blocks keep to the ranges of both sides
        (IN_RANGES, BOTH_PARTS, [("fused", "b", "ab", 2.0, 1.0, -1000), ("fused", "r", "pqr", 3.0, 1.0, -2000)]),
    ],
)
def test_what_became_of_each_operation(base, new, others):
    assert [row for row in kernels(slots(base), slots(new)) if row[0] != "same"] == others


SEQUENCES = st.lists(st.sampled_from("abcdef"), max_size=30).map(lambda names: [(name, None) for name in names])


@given(SEQUENCES, SEQUENCES)
def test_each_operation_is_matched_once(base, new):
    rows = pl.concat(slots(names).with_columns(side=pl.lit(side)) for side, names in enumerate((base, new)))
    found = matches(rows)
    assert found.select(rows.columns).equals(rows)
    sides = found.filter(pl.col("change").is_null()).group_by("group").agg(pl.col("side").sort())
    assert all(both == [0, 1] for both in sides.get_column("side").to_list())


@given(SEQUENCES, SEQUENCES, st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 7))
def test_deltas_sum_to_the_nanosecond(base, new, base_ns, new_ns, iterations):
    one = digest(slots(base, base_ns, iterations), 333, iterations)
    found = compared([one], [digest(slots(new, new_ns, iterations), 777, iterations)], ("base", "new"))
    rows, verdict = found.table("compare"), found.verdict
    assert rows.get_column("delta_ns").sum() == verdict.new_ns - verdict.base_ns
    assert rows.get_column("new_ns").sum() == verdict.new_ns
    table = found.table("compare_kernels")
    busy = rows.filter(pl.col("bucket") == "kernel")
    for column in ("base_ns", "new_ns", "delta_ns"):
        assert table.get_column(column).sum() == busy.get_column(column).sum()
    assert (table.get_column("count_ns") + table.get_column("time_ns")).to_list() == table.get_column(
        "delta_ns"
    ).to_list()


#: A step of base and of new in microseconds without a profiler, means of the times that the programs printed in turns.
BARE = {
    "work": ([869.9, 870.1, 873.7, 874.5, 873.2], [904.7, 912.1, 906.9, 906.7, 911.5]),
    "delay": ([872.0, 871.7, 878.2, 874.9, 874.2], [1078.7, 1080.4, 1080.3, 1072.8, 1071.0]),
    "optimizer": ([43_778, 37_705], [34_001, 34_096]),
    "graph": ([10_217.5, 9709.9, 9739.2], [836.4, 836.6, 835.7]),
}
#: The verdict, the bucket with most of the difference, the kernels that changed, and the findings that went.
CHANGES = {
    "work": ("slower", "kernel", [("same", 1.0, 1.0)], []),
    "delay": ("slower", "host", [], []),
    "optimizer": ("faster", "launch", [("fused", 1184.0, 9.0)], ["unfused-optimizer"]),
    "graph": ("faster", "launch", [("same", 1000.0, 1000.0)], ["launch-bound", "graph-candidate"]),
}


def change(name, tool="nsys"):
    found = comparison(*([SAMPLES / "changes" / f"{name}_{side}.kz"] for side in ("base", "new")), Asked({}))
    return found if tool == "nsys" else found.others[tool]


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_told_is_what_was_changed(name):
    found = change(name)
    word, bucket, kernels, gone = CHANGES[name]
    assert (found.verdict.word, found.verdict.basis, found.doubts) == (word, "paired runs", [])
    base, new = (sum(times) / len(times) for times in BARE[name])
    assert found.verdict.low <= new / base <= found.verdict.high
    deltas = found.table("compare").group_by("bucket").agg(pl.col("delta_ns").sum())
    sums = deltas.sort("delta_ns", descending=word == "slower")
    assert sums.item(0, "bucket") == bucket
    changed = found.table("compare_kernels").filter("changed")
    assert changed.select("change", "base_count", "new_count").rows() == kernels
    assert found.table("compare_findings").filter(change="gone").get_column("rule").to_list() == gone


def test_traces_tell_the_same_by_operators():
    traces = change("optimizer", "torch.profiler")
    row = traces.table("compare_ops").row(0, named=True)
    assert (row["change"], row["path"].rpartition("#")[2]) == ("replaced", "AdamW.step")
    kernels = traces.table("compare_kernels").row(0, named=True)
    assert kernels["change"] == "fused"
    assert kernels["new_count"] == pytest.approx(9, abs=0.5)  # those that run after the last step are not in it
    assert kernels["base_count"] == pytest.approx(1184, abs=1)


def test_time_in_no_range_is_no_number_of_ranges():
    rows = change("optimizer").table("compare_ranges")
    assert rows.filter(range="(between them)").select("base_count", "new_count").row(0) == (None, None)
    assert rows.filter(rows["range"] != "(between them)").get_column("base_count").null_count() == 0


@pytest.mark.parametrize(("name", "number"), [("again", 45), ("train", 28)])
def test_single_runs_of_one_program_are_never_faster_or_slower(name, number):
    paths = [SAMPLES / "changes" / f"{name}_{side}.kz" for side in ("base", "new")]
    runs = [run for path in paths for run in loaded(path.read_bytes(), path) if run.about.tool.startswith("nsys")]
    words = [verdict_of(compared([one], [other], ("", "")).pair).word for one, other in combinations(runs, 2)]
    assert len(words) == number
    assert {*words} <= {"same", "cannot tell"}


#: Each kind of report, as far as something ran.
REPORTS = [
    *(path for path in EXPORTS if path.stem not in ("empty", "communicators", "libraries")),
    *(SAMPLES / "sampled" / "crowded.sqlite", SAMPLES / "serving" / "vllm.sqlite"),
]


@pytest.mark.slow
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_report_compared_with_its_own_baseline_has_no_difference(path):
    runs = digests([path], Asked({}))["nsys"]
    base = loaded(dumped(runs), Path("base.kz"))
    assert [one.about for one in base] == [one.about for one in runs]
    assert all(one.slots.equals(other.slots) for one, other in zip(base, runs, strict=True))
    found = compared(base, runs, ("base", "new"))
    assert found.verdict.word in ("same", "cannot tell")
    assert found.verdict.base_ns == found.verdict.new_ns
    for name, table in found.tables.items():
        assert not table.get_column("changed").any(), name
        assert not any((delta != 0).any() for delta in table.select(cs.starts_with("delta_"))), name
    assert set(found.table("compare_kernels").get_column("change")) <= {"same"}


def test_of_a_page_that_is_too_long_the_last_sections_are_named_alone(monkeypatch):
    found = comparison(*([SAMPLES / f"{name}.kz"] for name in ("loop_base", "loop_fuse")), Asked({}))
    whole = page_of_any(found, None)
    monkeypatch.setattr("kanalyze.renderers.formats.markdown._MOST_LINES", 16)
    text = render([found], None)
    (also,) = [line for line in text.splitlines() if line.startswith("**Also**")]
    left = [one.plain_title for one in whole.sections if f"{one.plain_title.lower()} (" in also]
    shown = [one.plain_title for one in whole.sections if one.plain_title not in left]
    assert left
    assert [title for title in shown if title.lower() not in text.replace(also, "").lower()] == []
    assert len(text.splitlines()) <= 17 or not shown
