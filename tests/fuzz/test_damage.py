"""Damaged reports of every format: an error, the same tables, or others with a word; and never anything else."""

from collections import Counter

import pytest

from fuzz.cases import DAMAGE, SEEDS, TOLD
from fuzz.damage import BYTES
from fuzz.run import Found, run


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("form", SEEDS)
def test_damage_ends_in_an_error_or_a_word(form):
    """Each kind of damage to each report once, to a baseline, which is read quickly, three times; run.py draws more.

    Of traces the oldest and the newest are damaged, which those of versions between do not differ from in kind, and of
    one that is compressed the bytes alone.
    """
    if form == "ncu rep":
        pytest.importorskip("ncu_report")
    found, kinds, seeds = Found(), len(DAMAGE[form]), len(SEEDS[form])
    parts = {
        "torch json": [(0, kinds), ((seeds - 1) * kinds, kinds)],
        "torch json.gz": [(0, len(BYTES))],
        "baseline": [(0, 3 * kinds * seeds)],
    }.get(form, [(0, kinds * seeds)])
    for first, count in parts:
        run(form, first, count, found)
    assert sum(found.counts.values()) == sum(count for _, count in parts)
    assert not found.bad
    assert not [key for key in found.silent if key[:2] in TOLD]
    outcomes = Counter(outcome for _, _, outcome in found.counts.elements())
    assert outcomes["error"] + outcomes["word"] > 0
    assert form != "baseline" or outcomes["error"] > outcomes["same"] > 0
