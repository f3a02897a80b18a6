"""The registry of recipes: what each switches on, and what may be changed."""

from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kanalyze.collectors.in_workload.recipes import CYCLE_FIELDS, RECIPES, Cycle, Switches


def test_each_recipe_says_what_it_makes_and_has_one_line():
    told = {name: (recipe.makes, recipe.cycle is not None, recipe.leaves_out) for name, recipe in RECIPES.items()}
    left_out = {"": ("cpu", "cuda"), "-none": (), "-cpu-off": ("cpu",), "-cuda-off": ("cuda",)}
    left_out["-both-off"] = left_out[""]
    assert told == {
        **{f"toggle{name}": ("trace", False, parts) for name, parts in left_out.items()},
        "plain": ("trace", False, None),
        "schedule": ("trace", True, None),
        "events": ("times", True, None),
        "nvtx": ("ranges", False, None),
        "tensorboard": ("tensorboard", True, None),
        "output-code": ("code", False, None),
        "own": ("nothing", False, None),
    }
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert all("\n" not in recipe.answers and recipe.answers.endswith(".") for recipe in RECIPES.values())


def test_changes_reach_switches_and_cycle():
    changed = RECIPES["schedule"].with_changes({"active": 3, "repeat": 0, "with_stack": True, "record_shapes": False})
    assert changed.cycle == Cycle(active=3, repeat=0)
    assert changed.switches == Switches(with_stack=True)
    assert RECIPES["schedule"].cycle == Cycle()


def test_a_count_for_a_recipe_without_steps_is_refused():
    with pytest.raises(ValueError, match="recipe plain has no steps, so it takes no active, wait"):
        RECIPES["plain"].with_changes({"active": 3, "wait": 1})


@example({"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0})  # the least of each
@given(st.fixed_dictionaries({name: st.integers(-2, 3) for name in CYCLE_FIELDS}))
def test_a_cycle_has_an_active_step_and_no_negative_count(counts):
    possible = counts["active"] >= 1 and min(counts.values()) >= 0
    if possible:
        assert asdict(RECIPES["schedule"].with_changes(counts).cycle) == counts
    else:
        with pytest.raises(ValueError, match="active is 1 or more"):
            RECIPES["schedule"].with_changes(counts)
