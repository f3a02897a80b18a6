"""Jobs of several ranks, compared; gates, and the noise of several runs."""

import pytest
from hypothesis import given, strategies as st

from analyses.comparing.test_matching import digest, digest_of, plain, slots
from kanalyze.analyses.comparing._comparison import compared, gate_of, noise_of
from kanalyze.analyses.comparing._pair import Limits
from kanalyze.errors import IncomparableError, UnknownNameError
from kanalyze.reduction.baselines import About
from kanalyze.renderers.page.comparison import answer
from kanalyze.several import Asked
from kanalyze.several.sides import comparison
from support.build import MS
from support.command import SAMPLES
from support.strategies import slow_given


def process(rank, steps, *, waits=0, idle=0, **about):
    """A run of one rank: its steps in ms, and how many ms of them all it waits for other ranks, or for the host."""
    lengths = [round(step * MS) for step in steps]
    known = {"each": "step", "iterations": len(steps), "recorded_iterations": len(steps), **about}
    ns = sum(lengths)
    parts = {"kernel": ns - (waits + idle) * MS, "communication": waits * MS, "host": idle * MS}
    about = About("run", "nsys", "steady", found_by="ranges", ns=ns, rank=rank, **known)
    buckets = [(bucket, None, part) for bucket, part in parts.items()]
    return digest_of(about, buckets=buckets, steps=[(ns,) for ns in lengths])


def compare(base, new):
    """Sides of runs, each a list of digests of its ranks."""
    return compared(*([one for run in side for one in run] for side in (base, new)), ("base", "new"))


def job(*ranks):
    return [process(rank, steps) for rank, steps in enumerate(ranks)]


def test_a_job_takes_as_long_as_the_slowest_rank_of_each_run():
    base = [job([10, 10], [11, 11]), job([11, 11], [10, 10]), job([11, 11], [11, 11])]
    found = compare(base, [job([11, 11], [11, 11]), job([10, 10], [11, 11]), job([11, 11], [9, 9])])
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

    assert compare([run(), run()[:1]], [run(), run()[:1]]).job is None  # which a run lacks
    found = compare([run(), run()], [run(), run()])
    assert found.job is None
    assert found.base.about.rank == 1
    assert "of rank 1 takes the same time" in answer(found)


def test_a_run_that_one_rank_began_cold_does_not_count_in_the_job():
    def run(ms, loading=0):
        first = process(0, [ms] * 3)
        second = process(1, [ms + loading / 3] * 3)
        rows = [("kernel", None, 3 * ms * MS), ("loading", None, loading * MS)]
        return [first, digest_of(second.about, buckets=rows, steps=second.steps.rows())]

    base = [run(10), run(10, loading=30), run(10), run(10)]
    found = compare(base, [run(10) for _ in range(4)])
    assert len(found.timed.base.digests) == 3
    assert [one.kind for one in found.doubts] == ["cold"]
    assert found.verdict.word == "same"


HELD_UP = [[10] * 8, [10] * 4 + [13] * 4, [10] * 6 + [12] * 2]


def slower(runs, factor):
    return [job([factor * step for step in steps]) for steps in runs]


@pytest.mark.parametrize(
    ("factor", "word", "text", "state"),
    [(1.05, "slower", "are 1.050 × slower", "failed"), (1, "same", "take the same time", "held")],
)
def test_quicker_steps_tell_what_the_mean_does_not(factor, word, text, state):
    found = compare(slower(HELD_UP, 1), slower(HELD_UP, factor))
    assert found.verdict.word == "cannot tell"
    assert (found.quick.word, round(found.quick.ratio, 3)) == (word, factor)
    assert f"The quicker steps (the lower quartile of each run) {text}" in answer(found)
    assert gate_of(found, 0.03, "quick", []).state == state
    assert gate_of(found, 0.03, "step", []).state == "cannot judge"
    few = compare(*[slower([[10] * 4] * 3, 1)] * 2)
    assert gate_of(few, 0.03, "quick", []).reason == "a run has fewer than five iterations"


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


RUNS = st.lists(st.lists(st.floats(1, 100), min_size=5, max_size=9), min_size=2, max_size=5)


@slow_given(RUNS, RUNS)
def test_exchanging_the_sides_exchanges_the_verdict(base, new):
    sides = [slower(side, 1) for side in (base, new)]
    one, other = compare(*sides), compare(*sides[::-1])
    swapped = {"faster": "slower", "slower": "faster"}
    assert swapped.get(one.verdict.word, one.verdict.word) == other.verdict.word
    assert (one.quick is None) == (other.quick is None)
    if one.quick is not None:
        assert swapped.get(one.quick.word, one.quick.word) == other.quick.word
        assert one.quick.ratio * other.quick.ratio == pytest.approx(1)


def alone(base, new, *, floor=None, idle=0):
    """One run a side with these steps, of which the GPU is idle for some ms."""
    sides = ([process(0, steps, idle=idle)] for steps in (base, new))
    return compared(*sides, ("base", "new"), limits=Limits(floor=floor))


STEADY = [10, 10.01, 9.99, 10, 10.02, 9.98, 10, 10]
VARYING = [9, 11, 10, 9.2, 10.8, 10, 9.5, 10.5]


def times(factor, steps):
    return [factor * step for step in steps]


@pytest.mark.parametrize(
    ("base", "new", "how", "differs", "word"),
    [
        (STEADY, times(1.05, STEADY), {}, False, "cannot tell"),
        (STEADY, times(1.2, STEADY), {}, True, "cannot tell"),
        # steps that vary within a run say that runs vary, unless it is known by how much
        (VARYING, times(1.3, VARYING), {}, False, "cannot tell"),
        (VARYING, times(4, VARYING), {}, True, "cannot tell"),
        (STEADY, times(1.2, STEADY), {"floor": 0.05}, True, "slower"),
        (VARYING, times(1.3, VARYING), {"floor": 0.05}, True, "slower"),
        # of few steps idle time may come once more
        ([10] * 3, [12] * 3, {}, True, "cannot tell"),
        ([10] * 3, [12] * 3, {"idle": 9}, False, "cannot tell"),
        ([10] * 5, [12] * 5, {"idle": 9}, True, "cannot tell"),  # of which steps show that they do not vary
    ],
)
def test_single_runs_are_said_to_differ_and_get_no_verdict_without_the_noise_of_runs(base, new, how, differs, word):
    found = alone(base, new, **how)
    assert (found.verdict.word, not found.verdict.low <= 1 <= found.verdict.high) == (word, differs)
    assert answer(found).startswith("These two runs differ, a step by +") == (differs and word == "cannot tell")


@pytest.mark.parametrize(
    ("base", "new", "told"),
    [
        ([[10]], [[12]], "too few iterations (step: 1 in base and 1 in new)"),
        ([[10]], [[12] * 5], "too few iterations (step: 1 in base and 5 in new)"),
        ([[10, 40, 90]], [[90, 10, 1]], "Iterations (step) within one run a side vary too much"),
        ([STEADY], [STEADY] * 3, "1 of base against 3 of new do not show how much runs vary"),
        ([STEADY, times(1.5, STEADY), STEADY], [[11] * 3] * 3, "Runs of base differ among themselves by 50.0 %."),
    ],
)
def test_why_there_is_no_interval_is_said(base, new, told):
    found = compared(*([process(0, steps) for steps in side] for side in (base, new)), ("base", "new"))
    assert told in answer(found)
    assert found.verdict.low is None or len(base) > 1


@pytest.mark.parametrize(
    ("steps", "times", "word"),
    [(STEADY, 1.2, "slower"), (VARYING, 1.2, "cannot tell"), (VARYING, 2, "slower"), (VARYING, 1, "same")],
)
def test_two_runs_a_side_count_for_as_much_as_their_iterations_vary(steps, times, word):
    base, new = ([process(0, [by * step for step in steps])] * 2 for by in (1, times))
    verdict = compared(base, new, ("base", "new")).verdict
    assert verdict.word == word
    assert (verdict.repeats == 3) == (word == "cannot tell")


TIMES = st.lists(st.floats(1, 100), min_size=1, max_size=12)


@given(TIMES, TIMES)
def test_an_interval_holds_its_ratio_and_never_less_than_the_noise_of_runs(base, new):
    verdict = alone(base, new).verdict
    if verdict.low is not None:
        assert verdict.low * 1.05 <= verdict.ratio * (1 + 1e-9)
        assert verdict.ratio <= verdict.high / 1.05 * (1 + 1e-9)
        assert verdict.high <= 10 * verdict.ratio


@pytest.mark.slow
def test_the_iterations_of_a_window_are_its_steps():
    path = SAMPLES / "launch_bound_plain" / "nsys.sqlite"
    three = comparison([path], [path], Asked({"window": "step#2..step#4"}))
    steps = three.base.digests[0].steps.get_column("dur_ns")
    assert (len(steps), steps.sum()) == (3, three.base.about.ns)
    assert three.verdict.basis == "steps"
    single = comparison([path], [path], Asked({"window": "step#2"}))
    assert single.base.digests[0].steps.is_empty()
    assert "says nothing of how much" in answer(single)


def side(values, **about):
    return [digest(slots(plain("a b"), ns), name=f"run{ns}", **about) for ns in values]


def gate(base, new, *, limit=0.03, metric="step", allowed=()):
    return gate_of(compared(base, new, ("base", "new")), limit, metric, allowed)


BASE, UNSURE = [10_000, 10_010, 9_990, 10_005], "cannot judge"


@pytest.mark.parametrize("metric", ["step", "busy", "bucket:kernel", "kernel:a"])
@pytest.mark.parametrize(
    ("new", "state"),
    [([10_020, 10_000, 9_980], "held"), ([11_000, 11_020, 10_990], "failed"), ([10_300, 9_900, 11_000], UNSURE)],
)
def test_a_gate_holds_fails_or_cannot_judge_whatever_it_is_of(new, state, metric):
    assert gate(side(BASE), side(new), metric=metric).state == state


def test_one_run_a_side_is_refused_unless_allowed():
    refused = gate(side(BASE[:1]), side([11_000]))
    assert refused.state == UNSURE
    assert "too few runs" in refused.sentence
    assert "to judge even so: --allow runs" in refused.sentence
    assert gate(side(BASE[:1]), side([12_000]), allowed=["runs"]).state == "failed"


def test_another_gpu_is_refused_unless_allowed():
    base, new = side(BASE, gpu="H200"), side(BASE, gpu="H100")
    assert "H100" in gate(base, new).reason
    assert gate(base, new, allowed=["gpu"]).state == "held"


def test_the_runs_that_would_tell_are_those_of_the_means():
    """A longest or shortest run in place of the mean is farther from the limit, and fewer runs would seem to tell."""
    reason = gate(side([10_000, 10_200, 9_800]), side([10_300, 10_100, 10_900])).reason
    assert reason == "the interval reaches beyond the limit; 142 runs of each side would tell"


@pytest.mark.parametrize("metric", ["bucket:nothing", "kernel:nothing", "speed", "bucket:"])
def test_a_metric_that_there_is_not_is_an_error(metric):
    with pytest.raises(UnknownNameError):
        gate(side(BASE), side(BASE), metric=metric)


def test_the_noise_floor_is_that_of_several_runs():
    noise = noise_of(side(BASE))
    assert 0 < noise.floor < 0.01
    assert {*noise.kernels} == {"a", "b"}
    with pytest.raises(IncomparableError, match="1 run with a time"):
        noise_of(side(BASE[:1]))
