"""Our advice about kernels: each rule on what it is about, silent elsewhere; ncu's results as they are."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters._kernel_rules import RULES, bound, paragraph
from kanalyze.analyses.counters.advice import kernel_facts
from kanalyze.analyses.page.counters_page import summarize_counters
from kanalyze.renderers.page.counters import counters_page
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report

PAGES = [REPORTS / "ncu" / "add.details.csv", *sorted(SAMPLES.glob("*/ncu*.details.csv"))]


def ours(path) -> set[tuple[str, str]]:
    """The rules that speak of a sample, with the kernels' short names."""
    found = kanalyze.advice(real_report(SAMPLES / path)).filter(pl.col("source") == "kanalyze")
    return set(found.select(pl.col("name").str.extract(r"(\w+)(?:<|\(|$)"), "rule").iter_rows())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("add/ncu.details.csv", {("add", "too-few-blocks")}),
        ("add_parallel/ncu.details.csv", {("add", "low-achieved-occupancy"), ("add", "latency-bound")}),
    ],
)
def test_samples_get_the_advice_that_fits(path, expected):
    assert ours(path) == expected


def test_one_thread_is_told_with_its_proof():
    (row,) = (
        kanalyze.advice(real_report(SAMPLES / "add" / "ncu.details.csv"))
        .filter(pl.col("source") == "kanalyze")
        .to_dicts()
    )
    assert row["sentence"] == "1 block for 132 SMs: 131 SMs have nothing to do."
    assert row["evidence"] == "blocks=1, sms=132"
    assert (row["kind"], row["scope"]) == ("optimization", "global")
    assert row["speedup_share"] == pytest.approx(131 / 132)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_results_of_ncu_are_kept_as_they_are(path):
    report = real_report(path)
    found = kanalyze.advice(report).filter(pl.col("source") == "ncu").sort("event_id", "rule", "sentence")
    told = report.table("rule_results").sort("event_id", "rule", "message")
    for column, theirs in {
        "event_id": "event_id",
        "sentence": "message",
        "scope": "scope",
        "speedup_share": "speedup_share",
    }.items():
        assert found.get_column(column).to_list() == told.get_column(theirs).to_list()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_advice_is_ranked_by_what_it_gains(path):
    stakes = kanalyze.advice(real_report(path)).get_column("at_stake_ns")
    known = stakes.drop_nulls()
    assert known.to_list() == sorted(known, reverse=True)
    assert stakes.head(len(known)).null_count() == 0  # those without come last


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_every_sentence_can_be_said_of_every_real_kernel(path):
    """A rule that needs a column names it, so that no sentence meets a null."""
    for row in kernel_facts(real_report(path)).to_dicts():
        assert paragraph(row)
        for rule in RULES:
            if rule.found(row):
                assert rule.sentence(row)
                assert rule.evidence(row).count("=") == len(rule.needs)


@pytest.mark.parametrize(
    ("compute", "memory", "grid", "expected"),
    [
        (30, 20, (1000, 1, 1), "latency-bound"),
        (70, 65, (1000, 1, 1), "compute-bound"),
        (70, 20, (1000, 1, 1), "compute-bound"),
        (20, 60, (1000, 1, 1), "memory-bound"),
        (59, 59, (1000, 1, 1), "latency-bound"),
        (70, 75, (1000, 1, 1), "memory-bound"),
        (70, 75, (66, 1, 1), "too few blocks"),
        (70, 75, (67, 1, 1), "memory-bound"),
    ],
)
def test_verdict(compute, memory, grid, expected):
    metrics = {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": compute,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": memory,
        "launch__sm_count": 132,
    }
    assert bound(kernel_facts(measured(metrics, grid=grid)).row(0, named=True)) == expected


def test_without_the_speed_of_light_nothing_is_claimed():
    row = kernel_facts(measured({"gpu__time_duration.sum": 5})).row(0, named=True)
    assert bound(row) == "unknown"
    assert paragraph(row).startswith("What holds it back cannot be told")
    assert kanalyze.advice(measured({"gpu__time_duration.sum": 5})).is_empty()


ROOF = {  # at 74.4 % of its memory roof, and no work
    "dram__bytes_read.sum": 7440,
    "dram__bytes_write.sum": 0,
    "dram__bytes.sum.peak_sustained": 10,
    "dram__cycles_elapsed.avg.per_second": 1e9,
    "gpu__time_duration.sum": 1000,
    "smsp__cycles_elapsed.avg": 1000,
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 0,
    **{
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed": 0
        for op in ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")
    },
}


def estimate(share, scope="global"):
    return (0, None, "R", "optimization", "It could be faster.", scope, share)


@pytest.mark.parametrize(
    ("share", "scope", "possible", "speaks"),
    [
        (0.662, "global", 0.256, "roof"),
        (0.1, "global", 0.1, "estimate"),
        (0.662, "local", None, None),
        (None, None, None, None),
    ],
)
def test_no_estimate_is_more_than_the_roof_leaves(share, scope, possible, speaks):
    report = measured(ROOF, rules=[estimate(share, scope)])
    (row,) = kanalyze.advice(report).filter(pl.col("source") == "ncu").to_dicts()
    assert row["speedup_share"] == share
    assert row["possible_share"] == (None if possible is None else pytest.approx(possible))
    assert row["possible_from"] == speaks
    assert row["at_stake_ns"] == (None if possible is None else int(possible * 1000))


def test_a_kernel_above_its_roof_gains_nothing():
    report = measured({**ROOF, "dram__bytes_read.sum": 10_100}, rules=[estimate(0.3)])
    (row,) = kanalyze.advice(report).filter(pl.col("source") == "ncu").to_dicts()
    assert (row["possible_share"], row["possible_from"]) == (0, "roof")


def test_without_the_work_the_memory_roof_speaks():
    """As of a page of details alone."""
    report = measured({"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 90}, rules=[estimate(0.5)])
    (row,) = kanalyze.advice(report).filter(pl.col("source") == "ncu").to_dicts()
    assert (row["possible_share"], row["possible_from"]) == (pytest.approx(0.1), "roof")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_estimates_of_real_kernels_stay_within_their_roofs(path):
    report = real_report(path)
    roofs = kernel_facts(report).select("event_id", "roof_share", "dram_share")
    rows = kanalyze.advice(report).join(roofs, on="event_id")
    whole = rows.filter((pl.col("scope") == "global") & pl.col("speedup_share").is_not_null())
    assert whole.height
    assert whole.get_column("possible_share").null_count() == 0
    assert whole.filter(pl.col("possible_share") > pl.col("speedup_share")).is_empty()
    left = 1 - pl.coalesce("roof_share", "dram_share")
    assert whole.filter(pl.col("possible_share") > left.clip(0) + 1e-9).is_empty()
    assert rows.filter((pl.col("scope") != "global") & pl.col("possible_share").is_not_null()).is_empty()


def test_the_page_says_that_the_roof_speaks():
    report = measured(ROOF, names=["k"], rules=[estimate(0.662)])
    (chapter,) = counters_page(summarize_counters(report), 5).chapters
    (one,) = [one for one in chapter.advice if "(ncu: R)" in one.sentence]
    assert one.worth == "25.6 %"
    assert "The estimate is 66.2 % of the kernel, its roof leaves 25.6 %." in one.sentence
