"""A gate, the noise floor, and runs that cannot be judged, on digests made by hand."""

import pytest

from analyses.comparing.test_matching import digest, plain, slots
from kanalyze.analyses.comparing._comparison import compared, gate_of, noise_of
from kanalyze.errors import IncomparableError, UnknownNameError


def side(values, **about):
    return [digest(slots(plain("a b"), ns), name=f"run{ns}", **about) for ns in values]


def gate(base, new, *, limit=0.03, metric="step", allowed=()):
    return gate_of(compared(base, new, ("base", "new")), limit, metric, allowed)


BASE = [10_000, 10_010, 9_990, 10_005]


@pytest.mark.parametrize("metric", ["step", "busy", "bucket:kernel", "kernel:a"])
@pytest.mark.parametrize(
    ("new", "state"),
    [
        ([10_020, 10_000, 9_980], "held"),
        ([11_000, 11_020, 10_990], "failed"),
        ([10_300, 9_900, 11_000], "cannot judge"),
    ],
)
def test_a_gate_holds_fails_or_cannot_judge_whatever_it_is_of(new, state, metric):
    assert gate(side(BASE), side(new), metric=metric).state == state


def test_one_run_a_side_is_refused_unless_allowed():
    refused = gate(side(BASE[:1]), side([11_000]))
    assert refused.state == "cannot judge"
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
