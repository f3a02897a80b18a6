"""Repetitions that launch nearly the same: tokens and batches whose kernels change, and what is none of it."""

from random import Random

import pytest

from kanalyze.analyses.iterations._launch_periods import launch_periods
from support.launches import Launch, Program, copy_in, copy_out, layer, report_of

BOOT = [Launch("fill"), Launch("random")]


def frame(program):
    return launch_periods(report_of(program))


def token(length, *, blocks=1, ns=10_000, names=("gemm 64", "gemm 32")):
    """A pass: kernels of attention differ with the parity of the length, and one more pads every eighth."""
    odd = length % 2
    attention = [Launch(names[odd], blocks, ns), Launch("flash" if odd else "pad", blocks, ns)]
    padding = [Launch("align")] if length % 8 == 0 else []
    block = [Launch("norm", blocks, ns), *attention, Launch("add", blocks, ns), Launch("gelu", blocks, ns)]
    return [Launch("embedding", blocks, pause=50_000), *block * 4, *padding, Launch("argmax"), copy_out()]


@pytest.mark.parametrize("seed", range(4))
def test_tokens_whose_kernels_change_with_the_length(seed):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    program, phases = Program(jitter=random).then(BOOT), []
    for _ in range(5):
        length, tokens = random.randrange(20, 60), random.randrange(9, 30)
        program.iterations(token(length, blocks=4 * length, ns=40_000))
        program.iterations(*(token(length + number) for number in range(1, tokens)))
        phases += ["prefill", *["decode"] * (tokens - 1)]
    rows = frame(program)
    assert rows.get_column("phase").to_list() == phases
    assert rows.get_column("start").to_list() == program.begun


@pytest.mark.parametrize("requests", [1, 2])
def test_of_one_or_two_requests_nothing_is_said_about_phases(requests):
    program = Program().then(BOOT)
    for _ in range(requests):
        program.then(token(20, blocks=80, ns=40_000))
        program.iterations(*(token(20 + number) for number in range(1, 25)))
    rows = frame(program)
    assert rows.get_column("phase").null_count() == rows.height
    assert {*program.begun} <= {*rows.get_column("start")}


def batch(random):
    """A pass whose products are computed by whichever kernel suits the size of the batch."""
    size = random.randrange(1, 17)
    product = random.choice(["nvjet tst", "splitk", "sgemm", "cutlass"])
    block = [Launch("norm", size), Launch(f"{product} {size}", size), Launch("gather", size), Launch("add", size)]
    split = [Launch("reduce", size)] if product == "splitk" else []
    return [copy_in(pause=50_000), Launch("embedding", size), *block * 5, *split, Launch("argmax", size), copy_out()]


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_size(seed):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    program = Program(jitter=random).then(BOOT).iterations(*(batch(random) for _ in range(40)))
    rows = frame(program)
    assert rows.get_column("start").to_list()[1:] == program.begun[1:]
    assert rows.get_column("name").unique().to_list() == ["repetition"]
    assert rows.get_column("usual").all()


def test_what_the_host_takes_no_part_in_is_none():
    passes = [token(number)[:-1] for number in Random(1).sample(range(500), 60)]  # noqa: S311 - no secret
    assert frame(Program().then(BOOT).iterations(*passes)).is_empty()


def test_parts_of_a_training_are_none():
    passes = [token(number) for number in Random(1).sample(range(500), 60)]  # noqa: S311 - no secret
    assert not frame(Program().iterations(*passes)).is_empty()
    assert frame(Program().iterations(*passes).then([Launch("adam")])).is_empty()


def test_two_models_in_turn_are_one_repetition():
    """They launch equally much, but other kernels."""
    pair = [
        [Launch("first embedding", pause=50_000), *layer(4, "first"), copy_out()],
        [Launch("second embedding"), *layer(4, "second"), copy_out()],
    ]
    rows = frame(Program().then(BOOT).iterations(*[pair[0] + pair[1]] * 20))
    assert rows.height == 20
    assert rows.get_column("launches").unique().to_list() == [52]


@pytest.mark.parametrize("seed", range(10))
def test_results_returned_now_and_then_are_none(seed):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    names = [Launch(f"kernel {number}") for number in range(12)]
    line = [copy_out() if random.random() < 0.08 else random.choice(names) for _ in range(600)]
    assert frame(Program().then(line)).is_empty()
