"""Two reports compared: sums, matches and verdicts."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import polars.selectors as cs
import pytest

from kanalyze.analyses.comparing._gate import KINDS, gate_of
from kanalyze.reduction.baselines import dumped, loaded
from kanalyze.renderers.formats.markdown import render
from kanalyze.renderers.page import page_of_any
from kanalyze.several import Asked
from kanalyze.several.sides import comparison, digests

ROOT = Path(__file__).parents[3]
REPORTS = sorted(
    path
    for folder in ("tests/reports", "sample_reports/*")
    for path in ROOT.glob(f"{folder}/*.sqlite")
    if path.stem != "empty"  # nothing ran
)


@pytest.mark.slow
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_report_compared_with_itself_has_no_difference(path):
    found = comparison([path], [path], Asked({}))
    assert_baseline_is_its_runs([*found.base.digests])
    assert found.verdict.word in ("same", "cannot tell")
    assert found.verdict.base_ns == found.verdict.new_ns
    for name, table in found.tables.items():
        assert not table.get_column("changed").any(), name
        assert not any((delta != 0).any() for delta in table.select(cs.starts_with("delta_"))), name
    kernels = found.table("compare_kernels")
    assert set(kernels.get_column("change")) <= {"same"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "tests/reports/torch/fsdp.json.gz",  # in these three the host runs ahead
        "tests/reports/torch/cuda_graph.json.gz",
        "sample_reports/launch_bound_graph/torch.json.gz",
        "sample_reports/mlp_train/torch.json.gz",
    ],
)
def test_operators_and_buckets_are_of_one_window(name):
    for runs in digests([ROOT / name], Asked({})).values():
        for one in runs:
            busy = one.buckets.filter(pl.col("bucket").is_in(["kernel", "communication", "memcpy", "memset"]))
            unknown = one.slots.filter(pl.col("op").is_null()).get_column("exclusive_ns").sum()
            launched = one.ops.get_column("device_ns").sum()
            assert busy.get_column("ns").sum() - unknown <= launched <= busy.get_column("ns").sum()
            assert one.ops.get_column("count").sum() > 0
            assert one.ops.get_column("path").is_unique().all()


def assert_baseline_is_its_runs(runs):
    again = loaded(dumped(runs), Path("base.kz"))
    assert [one.about for one in again] == [one.about for one in runs]
    assert all(one.slots.equals(other.slots) for one, other in zip(again, runs, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        "sample_reports/add",
        pytest.param("sample_reports/gelu", marks=pytest.mark.slow),
        "sample_reports/sampled/python.sqlite",
        "tests/reports/communicators.sqlite",
        "tests/reports/two_gpus.sqlite",
    ],
)
def test_a_baseline_is_its_runs(name):
    for runs in digests([ROOT / name], Asked({})).values():
        assert_baseline_is_its_runs(runs)


PAIRS = [
    ("sample_reports/launch_bound_plain", "sample_reports/square"),
    ("tests/reports/torch/sync_events.json.gz", "tests/reports/torch/cuda_graph.json.gz"),
    ("tests/reports/findings.sqlite", "tests/reports/prefetch.sqlite"),
    ("tests/reports/add_um.sqlite", "tests/reports/two_processes.sqlite"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("base", "new"), PAIRS)
def test_a_page_for_a_pull_request_has_under_40_lines(base, new):
    found = replace(comparison([ROOT / base], [ROOT / new], Asked({})), names=("base", "new"))
    gated = replace(found, gate=gate_of(found, 0.03, "step", KINDS))
    for one in (found, gated):
        lines = render([one], None).splitlines()
        assert len(lines) < 40
        told = page_of_any(one, None).sections
        assert all(any(section.plain_title.lower() in line.lower() for line in lines) for section in told)
    assert len(render([found], 20).splitlines()) >= len(render([found], None).splitlines())  # as many as are asked for


@pytest.mark.parametrize("names", [("loop_base", "loop_fuse"), ("changes/optimizer_base", "changes/optimizer_new")])
def test_a_short_page_is_whole(names):
    found = comparison(*([ROOT / f"sample_reports/{name}.kz"] for name in names), Asked({}))
    text = render([found], None)
    assert len(text.splitlines()) < 40
    assert "**Also**" not in text


def test_of_a_page_that_is_too_long_the_last_sections_are_named_alone(monkeypatch):
    names = ("loop_base", "loop_fuse")
    found = comparison(*([ROOT / f"sample_reports/{name}.kz"] for name in names), Asked({}))
    whole = page_of_any(found, None)
    monkeypatch.setattr("kanalyze.renderers.formats.markdown._MOST_LINES", 16)
    text = render([found], None)
    (also,) = [line for line in text.splitlines() if line.startswith("**Also**")]
    left = [one.plain_title for one in whole.sections if f"{one.plain_title.lower()} (" in also]
    shown = [one.plain_title for one in whole.sections if one.plain_title not in left]
    assert left
    assert [title for title in shown if title.lower() not in text.replace(also, "").lower()] == []
    assert len(text.splitlines()) <= 17 or not shown
