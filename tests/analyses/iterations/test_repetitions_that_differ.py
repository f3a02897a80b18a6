"""Repetitions that launch nearly the same, or end with an update of parameters; and what is none of it."""

from itertools import cycle
from random import Random

import pytest

from kanalyze.analyses.iterations._launch_periods import launch_periods
from support.launches import Launch, Program, copy_in, copy_out, layer, random_launches, report_of

pytestmark = pytest.mark.slow

BOOT = [Launch("fill"), Launch("random")]


def frame(program):
    return launch_periods(report_of(program))


def of_seed(seed):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    return random, Program(jitter=random).then(BOOT)


def token(length, *, blocks=1, ns=10_000, names=("gemm 64", "gemm 32")):
    """A pass: kernels of attention differ with the parity of the length, and one more pads every eighth."""
    odd = length % 2
    attention = [Launch(names[odd], blocks, ns), Launch("flash" if odd else "pad", blocks, ns)]
    padding = [Launch("align")] if length % 8 == 0 else []
    block = [Launch("norm", blocks, ns), *attention, Launch("add", blocks, ns), Launch("gelu", blocks, ns)]
    return [Launch("embedding", blocks, pause=50_000), *block * 4, *padding, Launch("argmax"), copy_out()]


@pytest.mark.parametrize("seed", range(4))
def test_tokens_whose_kernels_change_with_the_length(seed):
    (random, program), phases = of_seed(seed), []
    for _ in range(5):
        length, tokens = random.randrange(20, 60), random.randrange(9, 30)
        program.iterations(token(length, blocks=4 * length, ns=40_000))
        program.iterations(*(token(length + number) for number in range(1, tokens)))
        phases += ["prefill", *["decode"] * (tokens - 1)]
    rows = frame(program)
    assert rows.get_column("phase").to_list() == phases
    assert rows.get_column("start").to_list() == program.begun


@pytest.mark.parametrize(("requests", "phases"), [(1, 0), (2, 0), (3, 75)])
def test_of_one_or_two_requests_nothing_is_said_about_phases(requests, phases):
    program = Program().then(BOOT)
    for _ in range(requests):
        program.then(token(20, blocks=80, ns=40_000))
        program.iterations(*(token(20 + number) for number in range(1, 25)))
    rows = frame(program)
    assert rows.get_column("phase").count() == phases
    assert {*program.begun} <= {*rows.get_column("start")}


def batch(random):
    """A pass whose products are computed by whichever kernel suits the size of the batch."""
    size = random.randrange(1, 17)
    product = random.choice(["nvjet tst", "splitk", "sgemm", "cutlass"])
    block = [Launch("norm", size), Launch(f"{product} {size}", size), Launch("gather", size), Launch("add", size)]
    split = [Launch("reduce", size)] if product == "splitk" else []
    return [copy_in(pause=50_000), Launch("embedding", size), *block * 5, *split, Launch("argmax", size), copy_out()]


@pytest.mark.parametrize(("number", "tells"), [(9, True), (8, False)])
def test_of_few_tokens_the_length_may_be_like_by_accident(number, tells):
    passes = [token(length) for length in Random(1).sample(range(500), number)]  # noqa: S311 - no secret
    program = Program().then(BOOT).iterations(*passes)
    assert (frame(program).get_column("start").to_list() == program.begun) == tells


def test_what_the_host_takes_no_part_in_is_none():
    passes = [token(number)[:-1] for number in Random(1).sample(range(500), 60)]  # noqa: S311 - no secret
    assert frame(Program().then(BOOT).iterations(*passes)).is_empty()


def test_parts_of_a_training_are_none():
    passes = [token(number) for number in Random(1).sample(range(500), 60)]  # noqa: S311 - no secret
    assert not frame(Program().iterations(*passes)).is_empty()
    assert frame(Program().iterations(*passes).then([Launch("adam")])).is_empty()


CONV = [Launch("conv"), Launch("batch_norm"), Launch("elementwise")]
BACKWARD = [Launch("conv"), Launch("conv_bwd"), Launch("elementwise"), Launch("batch_norm_bwd")]
TRAINING = [
    [copy_in(pause=80_000), *CONV * 20, Launch("nll_loss"), copy_out()],
    [*BACKWARD * 12, *[Launch("elementwise"), Launch("addcmul"), Launch("addcdiv")] * 3, Launch("norm"), copy_out()],
]
DETECTOR = [[copy_in(pause=60_000), *CONV * 20, copy_out()], [Launch("roi"), *CONV * 18, copy_out()]]
TOWERS = [[Launch(f"embedding {side}", pause=20_000), *layer(5), copy_out()] for side in ("query", "document")]


@pytest.mark.parametrize("parts", [TRAINING, DETECTOR, TOWERS])
@pytest.mark.parametrize("more", [0, 6])
def test_several_results_of_one_iteration_make_no_parts_of_it(parts, more):
    """Names of its kernels are those of either part."""
    *whole, end = [*parts[0], *parts[1]]
    steps = [[*whole, *[Launch("log")] * (more and not number % more), end] for number in range(40)]
    rows = frame(Program().then(BOOT).iterations(*steps))
    assert rows.height == 40
    assert rows.get_column("launches").median() == len(parts[0]) + len(parts[1])


@pytest.mark.parametrize("sizes", [(10, 11), (6, 6)])
def test_two_loops_of_like_kernels_are_two(sizes):
    program = Program()
    for name, layers in zip("AB", sizes, strict=True):
        block = [Launch("gemm"), Launch(f"{name} act"), Launch("norm"), Launch(f"{name} mix")] * layers
        program.then(BOOT * 3).iterations(*[[copy_in(pause=50_000), Launch(f"{name} embed"), *block, copy_out()]] * 40)
    assert frame(program).group_by("name").len().sort("name").rows() == [("repetition", 40), ("repetition 2", 40)]


def decoded(blocks, ns):
    parts = [Launch(part, blocks, ns) for part in ("norm", "gemm", "attention", "product", "act", "add")]
    ends = [Launch("head", 64), Launch("argmax"), copy_out()]
    return [Launch("embedding", blocks, ns, pause=30_000), *parts * 6, *ends]


@pytest.mark.parametrize("larger", [(7,), (7, 0)])
def test_batches_of_decodes_that_take_as_long_are_no_prefills(larger):
    random = Random(3)  # noqa: S311 - no secret depends on it
    program, phases = Program().then(BOOT), []
    for _ in range(8):
        tokens = random.randrange(15, 25)
        program.iterations(decoded(60, 40_000))
        for at in range(1, tokens):
            program.iterations(decoded(10, 11_600) if at % 8 in larger else decoded(4, 10_000))
        phases += ["prefill", *["decode"] * (tokens - 1)]
    assert frame(program).get_column("phase").to_list() == phases


@pytest.mark.parametrize(("decodes", "number"), [(1, 0), (2, 24), (3, 32)])
def test_there_are_twice_as_many_decodes_as_prefills(decodes, number):
    program = Program().then(BOOT)
    for _ in range(8):
        program.iterations(decoded(60, 40_000), *[decoded(4, 10_000)] * decodes)
    assert frame(program).get_column("phase").count() == number


def test_prefills_of_other_kernels_are_no_phase():
    program = Program().then(BOOT)
    for _ in range(6):
        step = decoded(60, 40_000)
        large = [one._replace(name=f"large {one.name}") for one in step[1:-3]]
        program.iterations([step[0], *large, *step[-3:]], *[decoded(4, 10_000)] * 15)
    assert frame(program).get_column("phase").null_count() == frame(program).height


def test_an_unrelated_process_is_no_reason_to_keep_what_repeats_little():
    random = Random(5)  # noqa: S311 - no secret depends on it
    other = Program(process=1).then(BOOT).iterations(*(batch(random) for _ in range(40)))
    program = Program(process=2, device=1).then(BOOT).iterations(*(token(length) for length in range(20, 60)))
    for _ in range(300):
        program.then([Launch(f"other {chr(97 + random.randrange(26))}{chr(97 + random.randrange(26))}", ns=70_000)])
    assert frame(program).is_empty()
    assert launch_periods(report_of(other, program)).get_column("process_id").unique().to_list() == [1]


@pytest.mark.parametrize("seed", range(5))
def test_results_returned_now_and_then_are_none(seed):
    random = Random(seed)  # noqa: S311 - no secret depends on it
    names = [Launch(f"kernel {number}") for number in range(12)]
    line = [copy_out() if random.random() < 0.08 else random.choice(names) for _ in range(600)]
    assert frame(Program().then(line)).is_empty()


NORM = "multi_tensor_apply_kernel<LpNorm>"
SGD = "multi_tensor_apply_kernel<sgd>"


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
@pytest.mark.parametrize("kind", ["texts", "texts whose gradients are clipped", "batches"])
def test_texts_of_any_length_and_batches_of_any_size(seed, kind):
    (random, program), known = of_seed(seed), int(kind == "batches")
    steps = [batch(random) for _ in range(40)] if kind == "batches" else texts(random, 40, clip="clipped" in kind)
    rows = frame(program.iterations(*steps))
    assert rows.get_column("start").to_list()[known:] == program.begun[known:]
    assert rows.get_column("name").unique().to_list() == ["repetition"]
    assert kind != "batches" or rows.get_column("usual").all()


@pytest.mark.parametrize(("number", "tells"), [(15, True), (14, False)])
def test_of_few_texts_the_length_may_be_like_by_accident(number, tells):
    """The first one has no update before it that would tell where it begins."""
    random, program = of_seed(1)
    program.iterations(*texts(random, number))
    assert (frame(program).get_column("start").to_list() == program.begun) == tells


def test_before_an_update_of_another_kind_is_no_repetition():
    random, program = of_seed(1)
    first, other = (text(40, update=f"multi_tensor_apply_kernel<{name}>") for name in ("init", "other"))
    program.iterations(first, *texts(random, 1)).then(other).iterations(*texts(random, 30))
    assert frame(program).get_column("start").to_list() == program.begun[1:]


@pytest.mark.parametrize("size", [400, 1_200])
def test_an_evaluation_between_epochs_is_no_part_of_an_iteration(size):
    random, program = of_seed(3)
    for _ in range(3):
        program.iterations(*texts(random, 20)).then([*cells(size, "judge"), copy_out()])
    assert frame(program).get_column("start").to_list() == program.begun


def test_parameters_updated_one_by_one_are_parts_of_an_update():
    random, program = of_seed(4)
    update = [launch for _ in range(12) for launch in (Launch("square"), Launch("adam"))]
    for _ in range(30):
        length = random.randrange(20, 60)
        program.iterations([copy_in(pause=60_000), *cells(length), Launch("loss"), *cells(length, "back"), *update])
    assert frame(program).get_column("start").to_list() == program.begun


def varied(random, number, names=6):
    """Kernels of which some are chosen by the shape of the data."""
    drawn = (f"gemm {random.randrange(names)}" for _ in range(2 * number))
    return [Launch(name) for pair in zip(drawn, cycle(["add", "gelu"])) for name in pair]


def fsdp(random):
    """Parameters are gathered by copies of lists before each layer."""
    gather = [Launch("multi_tensor_apply_kernel<CopyFunctor>"), Launch("ncclAllGather"), Launch("split")]
    forward = [launch for _ in range(8) for launch in gather + varied(random, 3)]
    backward = [launch for _ in range(8) for launch in [*gather, *varied(random, 6), Launch("ncclReduceScatter")]]
    return [copy_in(pause=60_000), *forward, Launch("loss"), *backward, Launch(NORM), Launch(SGD), copy_out()]


def large(random):
    """A model so large that its update launches more than all else."""
    update = [Launch(f"multi_tensor_apply_kernel<{one}>") for one in ("lerp", "adam") for _ in range(150)]
    return [copy_in(pause=60_000), Launch("embedding"), *varied(random, random.randrange(40, 75)), *update, copy_out()]


def pair(random):
    """Two models in turn that are updated by the same kernel, and a kernel more now and then."""
    more = [Launch(f"split {number}") for number in range(random.randrange(1, 4) if random.random() < 0.2 else 0)]
    half = [*layer(3, size=8), *more, *layer(2, "back", 8), Launch("reduce"), Launch("fused adam")]
    return [copy_in(pause=60_000), *half, Launch("normal"), *half, copy_out()]


@pytest.mark.parametrize("step", [fsdp, large, pair])
def test_an_iteration_is_neither_a_part_of_a_step_nor_several(step):
    random, program = of_seed(5)
    for _ in range(4):
        evaluation = [launch for _ in range(10) for launch in [Launch("embedding"), *varied(random, 30), copy_out()]]
        program.iterations(*(step(random) for _ in range(10))).then(evaluation if step is large else [])
    rows = frame(program)
    assert len({*program.begun} & {*rows.get_column("start")}) >= 39
    assert rows.height <= 40


def test_averages_of_parameters_now_and_then_are_part_of_an_update():
    random, program = of_seed(6)
    average = [Launch("multi_tensor_apply_kernel<lerp>")]
    steps = [
        [*one[:-1], *(average if number % 10 == 9 else []), one[-1]] for number, one in enumerate(texts(random, 40))
    ]
    assert frame(program.iterations(*steps)).get_column("start").to_list() == program.begun


def test_layers_updated_as_their_gradients_arrive_are_no_iterations():
    random, program = of_seed(7)
    for _ in range(40):
        back = [launch for _ in range(12) for launch in [Launch("mul"), *varied(random, 1), Launch("adam")]]
        program.then([copy_in(pause=60_000), *varied(random, random.randrange(20, 30)), Launch("loss"), *back])
    assert frame(program).is_empty()


@pytest.mark.parametrize("updates", [4, 6, 8, 12])
def test_few_updates_anywhere_are_none(updates):
    for seed in range(10):
        random = Random(seed)  # noqa: S311 - no secret depends on it
        launches = random_launches(random, ["gemm", "add", "copy"], [9, 1, 1], 400)
        for at in random.sample(range(400), updates):
            launches.insert(at, Launch("adam"))
        assert frame(Program().then(launches)).is_empty()


def test_a_transform_of_that_name_is_no_optimizer():
    random, program = of_seed(8)

    def token(number):
        attention = Launch("mla" if number % 2 else "mla pad")
        block = [Launch("norm"), Launch("fast_hadamard_transform"), attention, *varied(random, 1)]
        return [Launch("embedding", pause=50_000), *block * 6, Launch("argmax"), copy_out()]

    assert frame(program.iterations(*map(token, range(80)))).get_column("start").to_list() == program.begun


PLAIN = "at::unrolled_elementwise_kernel<add, std::array<char *, (unsigned long)3>, (int)4, LoadWithoutCast>(int, T1)"


def wide(width):
    return f"at::vectorized_elementwise_kernel<(int){width}, add, std::array<char *, (unsigned long)3>>(int, T2)"


@pytest.mark.parametrize("other", [wide(2), wide(8), PLAIN, PLAIN.replace("std::array", "at::detail::Array")])
def test_how_many_values_are_loaded_at_once_makes_no_other_iteration(other):
    def step(number):
        width = 4 if number // 2 % 2 else 2
        sizes = [Launch(wide(4) if number // 2 % 2 else other), *layer(3, size=12)]
        return [copy_in(pause=60_000), *sizes, Launch(f"vectorized_gather_kernel<{width * 4}, long>"), copy_out()]

    program = Program().then(BOOT).iterations(*map(step, range(40)))
    rows = frame(program)
    assert rows.get_column("start").to_list() == program.begun
    assert rows.get_column("usual").all()


@pytest.mark.parametrize("extra", [1, 2])
def test_names_with_a_number_that_is_another_each_time(extra):
    usual = [Launch(f"op{at}" + "_" * (at % 5)) for at in range(20)]
    program = Program()
    for number in range(30):
        program.iterations([*usual, *(Launch(f"fused_{1000 * number + at}_of") for at in range(extra))])
    assert frame(program).height == 30
