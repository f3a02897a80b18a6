"""Jobs of several ranks, and the quicker steps of runs, on digests made by hand."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.comparing._comparison import compared
from kanalyze.analyses.comparing._gate import gate_of
from kanalyze.reduction.baselines import TABLES, About, Digest
from kanalyze.renderers.page.comparison import answer

MS = 1_000_000


def process(rank, steps, *, waits=0, idle=0, **about):
    """A run of one rank: its steps in ms, and how many ms of them all it waits for other ranks, or for the host."""
    lengths = [round(step * MS) for step in steps]
    known = {"each": "step", "iterations": len(steps), "recorded_iterations": len(steps), **about}
    ns = sum(lengths)
    rows = {
        "buckets": [
            ("kernel", None, ns - (waits + idle) * MS),
            ("communication", None, waits * MS),
            ("host", None, idle * MS),
        ],
        "steps": [(ns,) for ns in lengths],
    }
    tables = {name: pl.DataFrame(found, schema=TABLES[name].schema, orient="row") for name, found in rows.items()}
    return Digest(About("run", "nsys", "steady", found_by="ranges", ns=ns, rank=rank, **known), **tables)


def compare(base, new):
    """Sides of runs, each a list of digests of its ranks."""
    return compared(*([one for run in side for one in run] for side in (base, new)), ("base", "new"))


def job(*ranks):
    """A run whose ranks have these steps."""
    return [process(rank, steps) for rank, steps in enumerate(ranks)]


def test_a_job_takes_as_long_as_the_slowest_rank_of_each_run():
    base = [job([10, 10], [11, 11]), job([11, 11], [10, 10]), job([11, 11], [11, 11])]
    new = [job([11, 11], [11, 11]), job([10, 10], [11, 11]), job([11, 11], [9, 9])]
    found = compare(base, new)
    assert found.timed.base.values_ns == found.timed.new.values_ns == [11 * MS] * 3
    assert (found.verdict.word, found.verdict.ratio) == ("same", 1.0)
    assert {row["verdict"] for row in found.table("compare_ranks").iter_rows(named=True)} == {"cannot tell"}
    assert answer(found).startswith("A step of 2 ranks takes the same time")


def test_a_step_of_a_job_is_that_of_its_slowest_rank():
    found = compare([job([10, 12, 10], [11, 10, 11])], [job([10, 12, 10], [11, 10, 11])])
    assert found.timed.base.digests[0].steps.get_column("dur_ns").to_list() == [11 * MS, 12 * MS, 11 * MS]


@pytest.mark.parametrize("slow", [0, 1])
def test_the_page_is_of_the_rank_that_waits_least(slow):
    def runs(ms):
        return [[process(rank, [ms] * 3, waits=1 if rank == slow else 5) for rank in (0, 1)] for _ in range(2)]

    found = compare(runs(10), runs(12))
    assert found.base.about.rank == slow
    assert f"more in rank {slow}: " in answer(found)
    verdict = found.verdict
    assert verdict.new_ns - verdict.base_ns == found.table("compare").get_column("delta_ns").sum()


@pytest.mark.parametrize("other", [{"each": "batch"}, {"recorded_iterations": 9}])
def test_ranks_that_do_something_else_are_no_job(other):
    def run():
        return [process(0, [10] * 3), process(1, [20] * 3, **other)]

    found = compare([run(), run()], [run(), run()])
    assert found.job is None
    assert found.base.about.rank == 1
    assert "of rank 1 takes the same time" in answer(found)


def test_a_rank_that_a_run_lacks_leaves_no_job():
    runs = [job([10] * 3, [10] * 3), job([10] * 3)]
    assert compare(runs, runs).job is None


def test_a_run_that_one_rank_began_cold_does_not_count_in_the_job():
    def run(ms, loading=0):
        first = process(0, [ms] * 3)
        rows = [("kernel", None, 3 * ms * MS), ("loading", None, loading * MS)]
        cold = pl.DataFrame(rows, schema=TABLES["buckets"].schema, orient="row")
        second = process(1, [ms + loading / 3] * 3)
        return [first, Digest(second.about, cold, second.steps)]

    base = [run(10), run(10, loading=30), run(10), run(10)]
    found = compare(base, [run(10) for _ in range(4)])
    assert len(found.timed.base.digests) == 3
    assert [one.kind for one in found.doubts] == ["cold"]
    assert found.verdict.word == "same"


HELD_UP = [[10] * 8, [10] * 4 + [13] * 4, [10] * 6 + [12] * 2]


def slower(runs, factor):
    """The same runs, with steps longer by this factor."""
    return [job([factor * step for step in steps]) for steps in runs]


def test_quicker_steps_tell_what_the_mean_does_not():
    found = compare(slower(HELD_UP, 1), slower(HELD_UP, 1.05))
    assert found.verdict.word == "cannot tell"
    assert (found.quick.word, round(found.quick.ratio, 3)) == ("slower", 1.05)
    assert "The quicker steps (the lower quartile of each run) are 1.050 × slower" in answer(found)
    assert gate_of(found, 0.03, "quick", []).state == "failed"
    assert gate_of(found, 0.03, "step", []).state == "cannot judge"


def test_quicker_steps_of_the_same_program_are_the_same():
    found = compare(slower(HELD_UP, 1), slower(HELD_UP, 1))
    assert found.quick.word == "same"
    assert "The quicker steps (the lower quartile of each run) take the same time" in answer(found)
    assert gate_of(found, 0.03, "quick", []).state == "held"


@pytest.mark.parametrize(
    ("base", "new"),
    [
        (slower([[10] * 8] * 3, 1), slower([[10] * 8] * 3, 1.05)),  # the mean tells
        (slower(HELD_UP[1:2], 1), slower(HELD_UP[1:2], 1.05)),  # one run a side
        (slower([steps[:1] + steps[-3:] for steps in HELD_UP], 1), slower([[10] * 4] * 3, 1.01)),  # four steps
    ],
)
def test_quicker_steps_are_not_told_where_they_say_nothing_more(base, new):
    assert compare(base, new).quick is None


def test_a_gate_of_quicker_steps_needs_steps():
    few = slower([[10] * 4] * 3, 1)
    gate = gate_of(compare(few, few), 0.03, "quick", [])
    assert (gate.state, gate.reason) == ("cannot judge", "a run has fewer than five iterations")


STEPS = st.lists(st.floats(1, 100), min_size=5, max_size=9)
RUNS = st.lists(STEPS, min_size=2, max_size=5)


@given(RUNS, RUNS)
def test_exchanging_the_sides_exchanges_the_verdict(base, new):
    sides = [slower(side, 1) for side in (base, new)]
    one, other = compare(*sides), compare(*sides[::-1])
    swapped = {"faster": "slower", "slower": "faster"}
    assert swapped.get(one.verdict.word, one.verdict.word) == other.verdict.word
    assert (one.quick is None) == (other.quick is None)
    if one.quick is not None:
        assert swapped.get(one.quick.word, one.quick.word) == other.quick.word
        assert one.quick.ratio * other.quick.ratio == pytest.approx(1)
