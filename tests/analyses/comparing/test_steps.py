"""Steps of serving engines compared by kind and size: another mix of requests is the same, a slower kernel is found."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.comparing._comparison import compared, gate_of
from kanalyze.analyses.comparing._digesting import digests_of
from kanalyze.errors import UnknownNameError
from kanalyze.reduction.baselines import dumped, loaded
from kanalyze.renderers.page.comparison import answer, comparison_page
from support.build import report
from support.serving import USUAL, events_of
from support.strategies import FEWER

pytestmark = pytest.mark.slow

#: Mixes of requests: few at a time, many at a time, and mostly prompts.
FEW = ((900, 0), *((0, number) for number in (1, 2, 3, 3, 4, 4, 5, 6))) * 6
MANY = ((300, 9), *((0, number) for number in (1, 2, 3, 4, 6, 12, 13, 14, 15, 16, 16))) * 6
PROMPTS = ((400, 0), (800, 0), (600, 3), (900, 2), (0, 1), (0, 2), (0, 3), (0, 6), (0, 9), (0, 16)) * 6


def detailed(prompt, decodes, _):
    """vLLM's label with tokens of KV, of which requests here have as many as tokens."""
    told = f"sq{prompt}sk{prompt}sqsq1sqsk1", f"sq{decodes}sk{decodes * 100}sqsq1sqsk1"
    return f"execute_9_context_{int(prompt > 0)}({told[0]})_generation_{decodes}({told[1]})"


@cache
def side(steps, runs=2, **engine):
    """Runs of an engine, each a little slower than the one before; as a baseline holds them."""
    made = []
    for run in range(runs):
        slower = engine.get("slower", 1.0)
        own = slower if callable(slower) else 1.0005**run * slower
        (one,) = digests_of(report(events_of(steps, **{**engine, "slower": own, "host": 150_000 + 40 * run})))
        made.append(replace(one, about=replace(one.about, name=f"run {run}")))
    return loaded(dumped(made), "made by hand")


def slow_above(size):
    """Decode steps of larger graphs take a third longer."""
    return lambda prompt, decodes, padded: 1.33 if not prompt and (padded or decodes) > size else 1.0


@pytest.mark.parametrize("other", [MANY, PROMPTS, USUAL])
def test_another_mix_of_requests_is_the_same(other):
    found = compared(side(FEW), side(other), ("base", "new"))
    assert found.verdict.word == "same"
    assert not found.table("compare_steps").filter("changed").height
    mean = found.pair.ns[1] / found.pair.ns[0] - 1
    assert abs(mean) > 0.02  # though a step takes another time in the mean
    assert found.other_mix.endswith("longer" if mean > 0 else "shorter")
    assert answer(found).count("another mix of requests, which alone makes a ") == 1
    assert gate_of(found, 0.05, "step", []).state == "held"
    assert "--allow mix" in gate_of(found, 0.05, "busy", []).reason
    assert gate_of(found, 1.0, "bucket:kernel", ["mix"]).state == "held"
    assert not compared(side(FEW), side(FEW), ("base", "new")).other_mix


def test_sides_of_which_one_reads_no_prompts_are_of_steps_of_any_kind():
    decodes = side(tuple((0, number) for number in (1, 2, 3, 4)) * 12)
    for found in (compared(decodes, side(FEW), ("base", "new")), compared(side(FEW), decodes, ("base", "new"))):
        assert (found.each, found.verdict.word) == ("step", "same")


def test_a_slower_kernel_is_found_in_its_size():
    base, new = side(MANY, runs=3), side(MANY + FEW, runs=3, slower=slow_above(8))
    found = compared(base, new, ("base", "new"))
    rows = found.table("compare_steps").filter("changed")
    assert set(rows.drop_nulls("size").select("kind", "size").rows()) == {("decode", 16)}
    (ratio,) = rows.filter(size=16, part="busy_ns")["ratio"]
    assert ratio == pytest.approx(1.33, abs=0.02)
    assert found.verdict.word == "slower"
    (steps,) = (one for one in comparison_page(found, 1).sections if one.title == "ENGINE STEPS")
    assert "decode, up to 16" in str(steps.grid.rows)


def test_a_gate_holds_the_time_of_a_token_by_kind():
    same = compared(side(FEW), side(MANY), ("base", "new"))
    slower = compared(side(FEW), side(MANY, slower=1.2), ("base", "new"))
    states = {name: gate_of(one, 0.05, "token:decode", []).state for name, one in (("same", same), ("slower", slower))}
    assert states == {"same": "held", "slower": "failed"}
    assert gate_of(same, 0.05, "step", []).state == "held"
    with pytest.raises(UnknownNameError, match="no kind of step 'draft'"):
        gate_of(same, 0.05, "token:draft", [])
    verified = side(
        FEW, label=lambda prompt, decodes, _: f"step[{'EXTEND' if prompt else 'TARGET_VERIFY'} bs={decodes}]"
    )
    with pytest.raises(UnknownNameError, match="no kind of step 'decode'"):  # the labels say no tokens
        gate_of(compared(verified, verified, ("base", "new")), 0.05, "token:decode", [])


def test_steps_count_as_with_equal_tokens_read():
    """The time of a decode step grows with its requests inside of a size, and so do the tokens that it reads."""
    low = tuple((0, number) for number in (9, 9, 10, 11, 13)) * 8
    high = tuple((0, number) for number in (12, 14, 15, 16, 16)) * 8
    found = compared(side(low, sizes=(), label=detailed), side(high, sizes=(), label=detailed), ("base", "new"))
    (ratio,) = found.table("compare_steps").filter(size=16, part="busy_ns")["ratio"]
    assert ratio == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("label", [{}, {"label": detailed}])
def test_mixed_steps_count_as_with_equal_prompts_and_requests(label):
    few, many = (
        tuple((prompt, number) for prompt in (270, 300, 350, 420) for number in numbers)
        for numbers in ((2, 4, 7), (9, 25, 40))
    )
    found = compared(side(few, sizes=(), **label), side(many, sizes=(), **label), ("base", "new"))
    (row,) = found.table("compare_steps").filter(size=512, part="busy_ns").to_dicts()
    assert row["ratio"] == pytest.approx(1, abs=0.005)
    slower = compared(side(few, sizes=(), **label), side(many, sizes=(), slower=1.2, **label), ("base", "new"))
    (row,) = slower.table("compare_steps").filter(size=512, part="busy_ns").to_dicts()
    assert row["ratio"] == pytest.approx(1.2, abs=0.05)  # slopes are those of both sides together


def test_runs_of_no_engine_are_compared_as_they_are():
    base, new = ([replace(one, engine=one.engine.clear()) for one in side(FEW)] for _ in range(2))
    found = compared(base, new, ("base", "new"))
    assert (found.table("compare_steps").height, found.timed) == (0, found.pair)


@FEWER
@given(st.lists(st.integers(1, 16), min_size=4, max_size=12), st.lists(st.integers(1, 16), min_size=4, max_size=12))
def test_fixed_weights_are_those_of_both_sides_together(one, other):
    """A second statement: of each size the mean of its steps, weighed by how many steps both sides have of it."""
    sides = [side(tuple((0, number) for number in numbers), runs=1, sizes=(4, 16)) for numbers in (one, other)]
    rows = compared(*sides, ("base", "new")).table("compare_steps")
    one, other = one[1:], other[1:]  # before the first step is no gap
    size = lambda number: next(size for size in (1, 2, 4, 8, 16) if size >= number)  # noqa: E731 - as short as it is
    shared = {*map(size, one)} & {*map(size, other)}
    assert {*rows.drop_nulls("size")["size"]} == shared
    if shared:
        weights = {of: sum(size(number) == of for number in [*one, *other]) for of in shared}
        busy = {row["size"]: row for row in rows.filter(part="busy_ns").to_dicts()}
        for name in ("base_ns", "new_ns"):
            mean = sum(busy[of][name] * weight for of, weight in weights.items()) / sum(weights.values())
            assert busy[None][name] == pytest.approx(mean, abs=1)


def test_the_table_names_sizes_and_parts():
    rows = compared(side(FEW), side(MANY), ("base", "new")).table("compare_steps")
    shown = rows.filter(kind="decode").select("size", "part").rows()[:4]
    assert shown == [(None, "ns"), (None, "busy_ns"), (1, "ns"), (1, "busy_ns")]
    assert rows.filter(kind="decode").select("base_count", "new_count").row(0) == (48, 30)
