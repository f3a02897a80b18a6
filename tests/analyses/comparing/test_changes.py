"""Programs of which one thing was changed, or nothing, and reports compared with their baselines and each other."""

from itertools import combinations
from pathlib import Path

import polars as pl
import polars.selectors as cs
import pytest

from kanalyze.analyses.comparing._comparison import compared, verdict_of
from kanalyze.reduction.baselines import dumped, loaded
from kanalyze.renderers.formats.markdown import render
from kanalyze.renderers.page import page_of_any
from kanalyze.several import Asked
from kanalyze.several.sides import comparison, digests
from support.command import ROOT, SAMPLES

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
    *sorted(path for path in (ROOT / "tests" / "reports").glob("*.sqlite") if path.stem != "empty"),
    *(SAMPLES / name / "nsys.sqlite" for name in ("launch_bound_graph", "mlp_train")),
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
