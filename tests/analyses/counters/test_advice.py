"""Our advice about kernels: each rule on what it is about, silent elsewhere; ncu's results as they are."""

import csv
from collections import Counter
from unittest.mock import Mock

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters.advice import RULES, bound, filled, kernel_facts, paragraph
from kanalyze.analyses.page.time_page import summarize_counters
from kanalyze.readers.ncu import module as ncu_module
from kanalyze.renderers.page.counters import counters_page
from support.command import REPORTS, SAMPLES
from support.counters import measured, needs_module
from support.real_reports import real_report

PAGES = [*sorted((REPORTS / "ncu").glob("*.details.csv")), *sorted(SAMPLES.glob("*/ncu*.details.csv"))]


def ours(path) -> set[tuple[str, str]]:
    """The rules that speak of a sample, with the kernels' short names."""
    found = kanalyze.advice(real_report(SAMPLES / path)).filter(pl.col("source") == "kanalyze")
    return set(found.select(pl.col("name").str.extract(r"(\w+)(?:<|\(|$)"), "rule").iter_rows())


def test_samples_get_the_advice_that_fits():
    assert ours("add_parallel/ncu.details.csv") == {("add", "low-achieved-occupancy"), ("add", "latency-bound")}
    assert ours("add/ncu.details.csv") == {("add", "too-few-blocks")}
    rows = kanalyze.advice(real_report(SAMPLES / "add" / "ncu.details.csv"))
    (row,) = rows.filter(pl.col("source") == "kanalyze").to_dicts()
    assert row["sentence"] == "1 block for 132 SMs: 131 SMs have nothing to do."
    assert row["evidence"] == "blocks=1, sms=132"
    assert (row["kind"], row["scope"]) == ("optimization", "global")
    assert row["speedup_share"] == pytest.approx(131 / 132)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_advice_on_real_kernels(path):
    """All that the page says, as the standard library reads it; ranked by what it gains, and within the roofs."""
    report = real_report(path)
    page = list(csv.DictReader(path.read_text().splitlines()))
    kernels = {number: place for place, number in enumerate(dict.fromkeys(row["ID"] for row in page))}
    printed = Counter(
        (kernels[row["ID"]], row["Rule Name"], row["Rule Description"].strip()) for row in page if row["Rule Name"]
    )
    facts = kernel_facts(report)
    rows = kanalyze.advice(report).join(facts.select("event_id", "roof_share", "dram_share"), on="event_id")
    theirs = rows.filter(pl.col("source") == "ncu")
    assert printed
    assert Counter(theirs.select("event_id", "rule", "sentence").iter_rows()) == printed
    assert Counter(theirs.select("event_id", "sentence", "scope", "speedup_share").iter_rows()) == Counter(
        report.table("rule_results").select("event_id", "message", "scope", "speedup_share").iter_rows()
    )
    stakes = kanalyze.advice(report).get_column("at_stake_ns")
    assert stakes.drop_nulls().to_list() == sorted(stakes.drop_nulls(), reverse=True)
    assert stakes.head(stakes.count()).null_count() == 0  # those without come last
    whole = rows.filter((pl.col("scope") == "global") & pl.col("speedup_share").is_not_null())
    left = (1 - pl.coalesce("roof_share", "dram_share")).clip(0)
    assert whole.height
    assert whole.get_column("possible_share").null_count() == 0
    assert whole.filter(pl.col("possible_share") > pl.min_horizontal("speedup_share", left + 1e-9)).is_empty()
    assert rows.filter((pl.col("scope") != "global") & pl.col("possible_share").is_not_null()).is_empty()
    for row in facts.to_dicts():  # a rule that needs a column names it, so that no sentence meets a null
        assert paragraph(row)
        for rule in RULES:
            if rule.found(row):
                assert filled(rule.sentence, row)
                assert rule.evidence(row).count("=") == len(rule.needs)


@needs_module
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*/ncu*.ncu-rep")), ids=lambda path: path.parent.name)
def test_every_result_in_a_report_is_in_advice(path, tmp_path):
    """Against the module, results without a message included."""
    alone = tmp_path / path.name
    alone.write_bytes(path.read_bytes())
    report = ncu_module.module().load_report(str(alone))
    actions = [part.action_by_idx(at) for part in map(report.range_by_idx, range(report.num_ranges()))
               for at in range(part.num_actions())]  # fmt: skip
    every = Counter((at, one.rule_identifier()) for at, action in enumerate(actions) for one in action.rule_results())
    found = kanalyze.advice(kanalyze.read(alone)).filter(pl.col("source") == "ncu")
    assert every
    assert Counter(found.select("event_id", "rule").iter_rows()) == every


@pytest.mark.parametrize(
    ("compute", "memory", "grid", "expected"),
    [
        (30, 20, (1000, 1, 1), "latency-bound"), (70, 65, (1000, 1, 1), "compute-bound"),
        (70, 20, (1000, 1, 1), "compute-bound"), (20, 60, (1000, 1, 1), "memory-bound"),
        (59, 59, (1000, 1, 1), "latency-bound"), (70, 75, (1000, 1, 1), "memory-bound"),
        (70, 75, (66, 1, 1), "too few blocks"), (70, 75, (67, 1, 1), "memory-bound"),
    ],
)  # fmt: skip
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
    for loads, told in ((0, " In order: nothing spills."), (1, "")):
        local = {f"smsp__sass_inst_executed_op_local_{op}.sum": count for op, count in (("ld", loads), ("st", 0))}
        text = paragraph(kernel_facts(measured(local)).row(0, named=True))
        assert text == f"What holds it back cannot be told: the section SpeedOfLight was not collected.{told}"


DRAM_SHARE = {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 90}

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
    ("metrics", "share", "scope", "possible", "speaks"),
    [
        (ROOF, 0.662, "global", 0.256, "roof"),
        (ROOF, 0.1, "global", 0.1, "estimate"),
        (ROOF, 0.662, "local", None, None),
        (ROOF, None, None, None, None),
        ({**ROOF, "dram__bytes_read.sum": 10_100}, 0.3, "global", 0, "roof"),  # above it
        # of a page of details alone, without the work
        ({"gpu__time_duration.sum": 1000, **DRAM_SHARE}, 0.5, "global", 0.1, "roof"),
    ],
)
def test_no_estimate_is_more_than_the_roof_leaves(metrics, share, scope, possible, speaks):
    rows = kanalyze.advice(measured(metrics, rules=[estimate(share, scope)]))
    (row,) = rows.filter(pl.col("source") == "ncu").to_dicts()
    assert (row["speedup_share"], row["possible_from"]) == (share, speaks)
    assert row["possible_share"] == (None if possible is None else pytest.approx(possible))
    assert row["at_stake_ns"] == (None if possible is None else pytest.approx(possible * 1000, abs=1))


def test_the_page_says_that_the_roof_speaks():
    report = measured(ROOF, names=["k"], rules=[estimate(0.662)])
    (chapter,) = counters_page(summarize_counters(report), 5).chapters
    (one,) = [one for one in chapter.advice if "(ncu: R)" in one.text]
    assert one.title == "25.6 %"
    assert "The estimate is 66.2 % of the kernel, its roof leaves 25.6 %." in one.text


#: Where each rule begins to apply.
BY_NAME = {rule.name: rule for rule in RULES}

#: What the sentence on accesses says more of, where it was measured.
OF_REQUESTS = [f"{what}_{of}" for what in ("load", "store") for of in ("used_share", "sectors_per_request")]

#: For each rule a row that raises it, and changes that do too (True) or no longer do.
CASES = {
    "too-few-blocks": ({"blocks": 131, "sms": 132}, [({"blocks": 132}, False), ({"blocks": 1}, True)]),
    "partial-wave": (
        {"waves": 1.01, "tail_share": 0.1, "blocks": 140, "blocks_per_sm": 1, "sms": 132},
        [({"waves": 1.0}, False), ({"tail_share": 0.099}, False), ({"waves": 7.5}, True)],
    ),
    "low-theoretical-occupancy": (
        {
            "occupancy_share": 0.59, "limiter": "registers", "registers_per_thread": 255, "waves": 1.0,
            "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "eligible_warps": 1.9,
        },
        [
            ({"occupancy_share": 0.6}, False), ({"waves": 0.99}, False), ({"waves": 1.5}, True),
            ({"eligible_warps": 2.0}, False),
        ],
    ),
    "low-achieved-occupancy": (
        {"occupancy_share": 0.5, "achieved_occupancy_share": 0.39, "waves": 1.0},
        [({"achieved_occupancy_share": 0.4}, False), ({"waves": 0.99}, False), ({"waves": 1.5}, True)],
    ),
    "uncoalesced": (dict.fromkeys(OF_REQUESTS) | {"uncoalesced_share": 0.1}, [({"uncoalesced_share": 0.099}, False)]),
    "bank-conflicts": (
        {"bank_conflicts": 5, "bank_conflict_share": 0.1},
        [({"bank_conflict_share": 0.099}, False), ({"bank_conflict_share": 3.0}, True)],
    ),
    "local-memory": (
        {"local_loads": 1, "local_stores": 0, "spill_requests": 0, "registers_per_thread": 255},
        [({"local_loads": 0}, False), ({"local_loads": 0, "local_stores": 1}, True)],
    ),
    "double-precision": (
        {"fp64_flop": 10, "flop": 100},
        [({"fp64_flop": 9}, False), ({"fp64_flop": 0, "flop": 0}, False), ({"fp64_flop": 100}, True)],
    ),
    "no-tensor-cores": (
        {
            "fp32_flop": 51, "flop": 100, "tensor_flop": 9, "roof_share": 0.5, "bound": "compute",
            "achieved_flop_per_s": 1e12, "product": True,
        },
        [
            ({"fp32_flop": 50}, False), ({"tensor_flop": 10}, False), ({"bound": "memory"}, False),
            ({"product": False}, False), ({"tensor_flop": 0}, True),
        ],
    ),
    "at-memory-roof": (
        {"roof_share": 0.8, "bound": "memory", "dram_bytes_per_s": 8e11, "peak_dram_bytes_per_s": 1e12},
        [({"roof_share": 0.799}, False), ({"bound": "compute"}, False)],
    ),
    "at-compute-roof": ({"compute_share": 0.8}, [({"compute_share": 0.799}, False)]),
    "latency-bound": (
        {
            "compute_share": 0.59, "memory_share": 0.59, "active_warps": 4.0, "eligible_warps": 0.5,
            "top_stall": "long_scoreboard", "top_stall_share": 0.5, "cycles_per_instruction": 9.0, "blocks": 132,
            "sms": 132,
        },
        [
            ({"compute_share": 0.6}, False), ({"memory_share": 0.6}, False), ({"blocks": 131}, False),
            ({"compute_share": 0.0, "memory_share": 0.0}, True),
        ],
    ),
}  # fmt: skip

ESTIMATES = {
    "too-few-blocks": 1 / 132, "partial-wave": 0.1, "low-theoretical-occupancy": 0.41, "low-achieved-occupancy": 0.22,
    "uncoalesced": 0.1, "bank-conflicts": 0.1,
}  # fmt: skip


def test_every_rule_has_its_cases():
    assert set(CASES) == set(BY_NAME)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_applies_from_its_bound_on(name):
    (row, changes), rule = CASES[name], BY_NAME[name]
    assert rule.found(row)
    assert [(change, rule.found({**row, **change})) for change, _ in changes] == changes
    assert [column for column in rule.needs if rule.found({**row, column: None})] == []
    assert rule.evidence(row).count("=") == len(rule.needs)
    assert filled(rule.sentence, row)
    saved = rule.estimate(row)
    assert saved == (pytest.approx(ESTIMATES[name]) if name in ESTIMATES else None)
    assert rule.scope == ("local" if saved and name not in ("too-few-blocks", "partial-wave") else "global")


def test_conflicts_save_no_more_than_all():
    row, _ = CASES["bank-conflicts"]
    assert BY_NAME["bank-conflicts"].estimate({**row, "bank_conflict_share": 3.0}) == 1.0


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        (["50% of this line's accesses are excessive.", "12% of …"],
         "Uncoalesced Global Accesses: 2 instructions marked, the first: 50% of this line's accesses are excessive."),
        ([], "Uncoalesced Global Accesses: a table of the source without a message."),
    ],
)  # fmt: skip
def test_a_result_without_a_message_says_what_it_marks(marks, said):
    """There is no such report to read."""
    rule = "UncoalescedGlobalAccess"

    def result(message):
        answers = {"rule_identifier": rule, "section_identifier": "SourceCounters",
                   "name": "Uncoalesced Global Accesses", "has_rule_message": message is not None,
                   "rule_message": {"title": "", "message": message, "type": 2},
                   "has_speedup_estimation": False}  # fmt: skip
        return Mock(**{f"{name}.return_value": value for name, value in answers.items()})

    message = "This kernel has uncoalesced global accesses."
    kernel = Mock()
    kernel.rule_results.return_value = [result(message), result(None)]
    kernel.source_markers.return_value = [{"rule_identifier": rule, "message": mark} for mark in marks]
    rows = ncu_module._rules(kernel, ncu_module.Damage())  # noqa: SLF001
    assert [row[1:4] for row in rows] == [(rule, "optimization", message), (rule, "information", said)]
