"""Programs of which one thing was changed: what a comparison says of them, and of programs that did not change."""

from itertools import combinations

import polars as pl
import pytest

from kanalyze.analyses.comparing._comparison import compared, verdict_of
from kanalyze.analyses.comparing._statistics import LEAST_EFFECT, judged, ratio_of_runs
from kanalyze.reduction.baselines import loaded
from kanalyze.several import Asked
from kanalyze.several.sides import comparison
from support.command import SAMPLES

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
    sums = (
        found.table("compare")
        .group_by("bucket")
        .agg(pl.col("delta_ns").sum())
        .sort("delta_ns", descending=word == "slower")
    )
    assert sums.item(0, "bucket") == bucket
    changed = found.table("compare_kernels").filter("changed")
    assert changed.select("change", "base_count", "new_count").rows() == kernels
    findings = found.table("compare_findings")
    assert findings.filter(change="gone").get_column("rule").to_list() == gone


def test_how_much_was_changed():
    """5 % more multiply-adds of the one kernel, and 200 µs of the host."""
    work = change("work").table("compare_kernels").row(0, named=True)
    assert work["base_kernel"] == "burn(float *, int)"
    assert work["new_ns"] / work["base_ns"] == pytest.approx(1.05, abs=0.001)
    host = change("delay").table("compare").filter(bucket="host").get_column("delta_ns").sum()
    assert host == pytest.approx(200_000, rel=0.02)


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
    between = rows.filter(range="(between them)")
    assert between.select("base_count", "new_count").row(0) == (None, None)
    assert rows.filter(rows["range"] != "(between them)").get_column("base_count").null_count() == 0


# Programs that did not change


def runs_of(name):
    paths = [SAMPLES / "changes" / f"{name}_{side}.kz" for side in ("base", "new")]
    return [run for path in paths for run in loaded(path.read_bytes(), path) if run.about.tool.startswith("nsys")]


@pytest.mark.parametrize(("name", "number"), [("again", 45), ("train", 28)])
def test_single_runs_of_one_program_are_never_faster_or_slower(name, number):
    words = [verdict_of(compared([one], [other], ("", "")).pair).word for one, other in combinations(runs_of(name), 2)]
    assert len(words) == number
    assert {*words} <= {"same", "cannot tell"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "number", "most"), [("again", (2, 3, 4, 5), 4431, 0), ("train", (2, 3, 4), 525, 6)]
)
def test_runs_of_one_program_split_in_every_way_keep_the_level(name, sizes, number, most):
    times = [run.about.iteration_ns for run in runs_of(name)]
    words = []
    for size in sizes:
        for base in combinations(range(len(times)), size):
            rest = [run for run in range(len(times)) if run not in base]
            for new in (some for some in combinations(rest, size) if some > base):
                ratio = ratio_of_runs([times[run] for run in base], [times[run] for run in new])
                words.append(judged(ratio, LEAST_EFFECT))
    assert len(words) == number
    assert sum(word in ("faster", "slower") for word in words) <= most


def test_interleaved_runs_of_one_program_are_not_told_apart():
    for name in ("again", "train"):
        found = change(name)
        assert found.verdict.word == "cannot tell"
        assert not found.table("compare_kernels").get_column("changed").any()
