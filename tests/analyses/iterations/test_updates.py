"""Repetitions from update to update: texts and graphs of any size between them, and what is none of it."""

from random import Random

import pytest

from kanalyze.analyses.iterations._launch_periods import launch_periods
from support.launches import Launch, Program, copy_in, copy_out, layer, random_launches, report_of

BOOT = [Launch("fill"), Launch("random")]
NORM = "multi_tensor_apply_kernel<LpNorm>"
SGD = "multi_tensor_apply_kernel<sgd>"


def frame(program):
    return launch_periods(report_of(program))


def cells(number, name="cell"):
    """Kernels of a recurrent network over a text: which one runs depends on the place in it."""
    return [launch for at in range(number) for launch in (Launch(f"{name} {at % 3}"), Launch(f"gemm {at % 7 // 3}"))]


def text(length, *, clip=True, update=SGD):
    """A training step over a text: forward, backward, norms of the gradients, the update, and its loss."""
    norms = [Launch(NORM), *layer(1, "norm", 5)] if clip else []
    passes = [Launch("embedding"), *cells(length), Launch("loss"), *cells(length, "back"), Launch("embedding back")]
    return [copy_in(pause=60_000), *passes, *norms, Launch(update), copy_out()]


def texts(random, number, **how):
    return [text(random.randrange(20, 60), **how) for _ in range(number)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clip", [True, False])
def test_texts_of_any_length(seed, clip):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    program = Program(jitter=random).then(BOOT).iterations(*texts(random, 40, clip=clip))
    rows = frame(program)
    assert rows.get_column("start").to_list() == program.begun
    assert rows.get_column("name").unique().to_list() == ["repetition"]


def test_the_first_update_may_launch_something_else():
    random = Random(1)  # noqa: S311 - no secret depends on it
    program = Program(jitter=random).then(BOOT)
    program.iterations(text(40, update="multi_tensor_apply_kernel<init>"), *texts(random, 30))
    assert frame(program).get_column("start").to_list() == program.begun


def test_two_models_in_turn_are_one_iteration():
    random = Random(2)  # noqa: S311 - no secret depends on it
    program = Program(jitter=random).then(BOOT)
    for _ in range(30):
        one, other = (random.randrange(20, 50) for _ in range(2))
        judged = [copy_in(pause=60_000), Launch("noise"), *cells(one, "judge"), Launch("adam judge")]
        program.iterations([*judged, *cells(other, "paint"), *layer(9), Launch("adam paint")])
    starts = frame(program).get_column("start").to_list()
    assert len(starts) in {29, 30}
    assert len({sum(start <= at for start in starts) for at in program.begun}) >= len(starts) - 1  # one in each


def test_an_evaluation_between_epochs_is_no_part_of_an_iteration():
    random = Random(3)  # noqa: S311 - no secret depends on it
    program = Program(jitter=random).then(BOOT)
    for _ in range(3):
        program.iterations(*texts(random, 20)).then([*cells(400, "judge"), copy_out()])
    assert frame(program).get_column("start").to_list() == program.begun


@pytest.mark.parametrize("seed", range(30))
def test_random_launches_are_none(seed):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    names = [f"kernel {number}" for number in range(random.randrange(3, 30))]
    names += ["adam", SGD][: random.randrange(1, 3)]
    weights = [random.uniform(0.1, 1) for _ in names]
    assert frame(Program().then(random_launches(random, names, weights, random.randrange(100, 900)))).is_empty()


def test_parameters_updated_one_by_one_are_parts_of_an_update():
    random = Random(4)  # noqa: S311 - no secret depends on it
    program = Program(jitter=random).then(BOOT)
    update = [launch for _ in range(12) for launch in (Launch("square"), Launch("adam"))]
    for _ in range(30):
        length = random.randrange(20, 60)
        program.iterations([copy_in(pause=60_000), *cells(length), Launch("loss"), *cells(length, "back"), *update])
    assert frame(program).get_column("start").to_list() == program.begun


def test_how_many_values_are_loaded_at_once_makes_no_other_iteration():
    def step(number):
        width = 4 if number // 2 % 2 else 2
        sizes = [Launch(f"at::vectorized_elementwise_kernel<(int){width}, add>"), *layer(3, size=12)]
        return [copy_in(pause=60_000), *sizes, Launch(f"vectorized_gather_kernel<{width * 4}, long>"), copy_out()]

    program = Program().then(BOOT).iterations(*map(step, range(40)))
    rows = frame(program)
    assert rows.get_column("start").to_list() == program.begun
    assert rows.get_column("usual").all()
