"""Where each rule on a measured kernel begins to apply: the last row that raises it, and the first that does not."""

import pytest

from kanalyze.analyses.counters._kernel_rules import RULES

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
            "occupancy_share": 0.59,
            "limiter": "registers",
            "registers_per_thread": 255,
            "waves": 1.0,
            "static_shared_bytes": 0,
            "dynamic_shared_bytes": 0,
            "eligible_warps": 1.9,
        },
        [
            ({"occupancy_share": 0.6}, False),
            ({"waves": 0.99}, False),
            ({"waves": 1.5}, True),
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
            "fp32_flop": 51,
            "flop": 100,
            "tensor_flop": 9,
            "roof_share": 0.5,
            "bound": "compute",
            "achieved_flop_per_s": 1e12,
            "product": True,
        },
        [
            ({"fp32_flop": 50}, False),
            ({"tensor_flop": 10}, False),
            ({"bound": "memory"}, False),
            ({"product": False}, False),
            ({"tensor_flop": 0}, True),
        ],
    ),
    "at-memory-roof": (
        {"roof_share": 0.8, "bound": "memory", "dram_bytes_per_s": 8e11, "peak_dram_bytes_per_s": 1e12},
        [({"roof_share": 0.799}, False), ({"bound": "compute"}, False)],
    ),
    "at-compute-roof": ({"compute_share": 0.8}, [({"compute_share": 0.799}, False)]),
    "latency-bound": (
        {
            "compute_share": 0.59,
            "memory_share": 0.59,
            "active_warps": 4.0,
            "eligible_warps": 0.5,
            "top_stall": "long_scoreboard",
            "top_stall_share": 0.5,
            "cycles_per_instruction": 9.0,
            "blocks": 132,
            "sms": 132,
        },
        [
            ({"compute_share": 0.6}, False),
            ({"memory_share": 0.6}, False),
            ({"blocks": 131}, False),
            ({"compute_share": 0.0, "memory_share": 0.0}, True),
        ],
    ),
}

ESTIMATES = {
    "too-few-blocks": 1 / 132,
    "partial-wave": 0.1,
    "low-theoretical-occupancy": 0.41,
    "low-achieved-occupancy": 0.22,
    "uncoalesced": 0.1,
    "bank-conflicts": 0.1,
}


def test_every_rule_has_its_cases():
    assert set(CASES) == set(BY_NAME)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_applies_from_its_bound_on(name):
    row, changes = CASES[name]
    assert BY_NAME[name].found(row)
    assert [(change, BY_NAME[name].found({**row, **change})) for change, _ in changes] == changes


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_silent_where_a_column_that_it_needs_is_null(name):
    row, _ = CASES[name]
    rule = BY_NAME[name]
    assert [column for column in rule.needs if rule.found({**row, column: None})] == []
    assert rule.evidence(row).count("=") == len(rule.needs)
    assert rule.sentence(row)


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_saved_at_most(name):
    found = BY_NAME[name].estimate(CASES[name][0])
    assert found == (pytest.approx(ESTIMATES[name]) if name in ESTIMATES else None)
    assert BY_NAME[name].scope == ("local" if found and name not in ("too-few-blocks", "partial-wave") else "global")


def test_conflicts_save_no_more_than_all():
    row, _ = CASES["bank-conflicts"]
    assert BY_NAME["bank-conflicts"].estimate({**row, "bank_conflict_share": 3.0}) == 1.0
