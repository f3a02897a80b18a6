"""Iterations without marks: what was planted is found where it begins, and what is random repeats nothing."""

from dataclasses import replace
from random import Random
from statistics import median

import polars as pl
import pytest
from hypothesis import assume, example, strategies as st

import kanalyze
from kanalyze.analyses.iterations._launch_periods import launch_periods, timed_runs
from support.build import kernel, report
from support.launches import Launch, Program, copy_in, copy_out, layer, report_of, training_step
from support.strategies import EVENTS, few_given, slow_given

BOOT = [Launch(f"init {number}") for number in range(20)]
EVALUATION = [copy_in(pause=60_000), Launch("embedding", pause=40_000), *layer(6, "forward"), Launch("hits")]


def found(*programs, name="repetition"):
    """Starts of the repetitions of that name."""
    return launch_periods(report_of(*programs)).filter(pl.col("name") == name).get_column("start").to_list()


def frame(*programs):
    return launch_periods(report_of(*programs))


def started(*launches):
    """A program that launched these once, at its start."""
    return Program().then(BOOT).then(launches)


def repeated(*steps, **how):
    return Program(**how).then(BOOT).iterations(*steps)


def waiting(*rounds):
    """A program that waits after each of these rounds of iterations."""
    program = Program().then(BOOT)
    for each in rounds:
        program.iterations(*each).waits()
    return program


UNIT = [Launch("product"), Launch("relu")]


def between_waits(*numbers):
    """A program that launches a short unit so often, and then waits."""
    return waiting(*([UNIT * number] for number in numbers))


def chunks(size):
    """A program that launches a unit of that size five times, and then waits."""
    return waiting(*[[[Launch(f"part {part}") for part in range(size)] * 5]] * 12)


def of_layers(number, layers, pause):
    """Steps of like layers, before each of which the host pauses so long."""
    step = [Launch("copy", pause=pause), *[Launch("product"), Launch("relu"), Launch("copy")] * layers]
    return repeated(*[step[:-1]] * number, jitter=Random(1))  # noqa: S311 - no secret depends on it


def of_turned_layers(first):
    """Steps of layers each of which pauses before another kernel than the first one."""
    parts = [Launch("copy"), Launch("product", pause=8_000), Launch("relu")]
    parts = parts[first:] + parts[:first]
    step = [parts[0]._replace(pause=16_000), *(parts * 5)[1:]]
    return repeated(*[step] * 20, jitter=Random(1))  # noqa: S311 - no secret depends on it


def threads_that_swap(seed):
    """Steps of three threads, whose launches change places."""
    random, steps = Random(seed), []  # noqa: S311 - no secret depends on it
    for _ in range(30):
        step = [one._replace(thread=2) if "backward" in one.name else one for one in training_step()]
        for _ in range(3):
            place = random.randrange(5, len(step) - 6)
            step[place : place + 2] = step[place + 1], step[place]
        step.insert(random.randrange(1, len(step)), copy_in()._replace(thread=3, blocks=77))
        steps.append(step)
    return repeated(*steps, jitter=random)


def within_epochs():
    """Steps in the middle of an epoch, whose other halves adjoin: one launch more would be between them."""
    program = Program()
    for _ in range(12):
        program.then([Launch("prepare", pause=200_000), *layer(1, "load")])
        program.iterations(*[training_step(layers=1)] * 4).then(layer(1, "judge"))
    return program


CLEARS, RECORD = Launch("FillFunctor", 12800), Launch("cudaEventRecord")
#: Eight kernels that a library times, each after a fill that clears the cache; and the fill alone, to time that.
TIMED = [
    launch for number in range(8) for launch in [CLEARS] * 30 + [CLEARS, RECORD, Launch(f"try {number}"), RECORD] * 60
]
TOKEN = [Launch("embedding", pause=40_000), *layer(12), Launch("head"), Launch("argmax")]
GRAPH = [copy_in(pause=50_000), Launch("[CUDA graph 1]", ns=100_000), Launch("sample"), copy_out()]
SHAPES = [[one._replace(blocks=7 * number % 5 + 1) for one in training_step()] for number in range(40)]
TWICE = [Launch("a", pause=9_000), Launch("a"), Launch("b"), Launch("b")]
REPEATED = {
    "a step and its layers": repeated(*[training_step(layers=12)] * 10),
    "a step without any copy": repeated(*[training_step(layers=12, data=False)] * 10),
    "identical layers and little else": repeated(*[TOKEN] * 10),
    **{f"{number} steps": repeated(*[training_step()] * number) for number in (4, 5, 60)},
    "steps of other shapes": repeated(*SHAPES),
    "one kernel": Program().iterations(*[[Launch("only")]] * 1000),
    "launches that occur twice": Program().iterations(*[TWICE] * 50),
    "a graph beside other launches": repeated(*[GRAPH] * 40),
    "a graph alone": started().iterations(*[[Launch("[CUDA graph 1]", ns=200_000)]] * 8),
    "a graph after a copy, and its layers one by one": (
        started(Launch("Host-to-Device", ns=10**7), *layer(1) * 10).iterations(
            *[[Launch("[CUDA graph 1]", ns=10**6)]] * 8
        )
    ),
    "kernels that a library timed, and few steps": started(*TIMED).iterations(*[training_step(layers=1)] * 4),
    "kernels that a library timed, and many steps": started(*TIMED).iterations(*[training_step(layers=1)] * 40),
    "steps before and after": (
        Program().iterations(*[GRAPH] * 3, [*GRAPH, CLEARS]).then(TIMED[1:]).iterations(*[GRAPH] * 40)
    ),
    "fills within a step": repeated(*[[*training_step(layers=2), *[Launch("FillFunctor"), Launch("add")] * 10]] * 10),
    "steps within epochs": within_epochs(),
    "a result at the end": repeated(*[[*layer(1), copy_out()]] * 20),
    "an update at the end": repeated(*[[*layer(1), Launch("adam")]] * 20),
    "a loss after the update": repeated(*[[*layer(1), Launch("adam"), copy_out()]] * 20),
    "data at the start": repeated(*[[copy_in(), copy_in(), *layer(1)]] * 20),
    "a short unit between waits": between_waits(*[20] * 30),
    "fewer and more of it": between_waits(10, *[20] * 15, 25, *[20] * 15),
    "eight launches between waits": chunks(8),
    "one kernel often": started().iterations(*[[Launch("kernel")]] * 64),
    # it runs ahead: of some iterations it waits after each third alone
    "a host that waits late": waiting([UNIT * 20], *[[UNIT * 20] * 3, [UNIT * 20]] * 5),
    "a host that waits twice": waiting([UNIT] * 3, [UNIT] * 60),
    "steps of which every tenth waits": waiting(*[[training_step(layers=1, data=False)] * 10] * 6),
    **{f"{layers} layers between pauses": of_layers(20, layers, pause=9_000) for layers in (5, 12)},
    **{f"layers that pause before kernel {first}": of_turned_layers(first) for first in (0, 1, 2)},
    **{f"threads that swap launches {seed}": threads_that_swap(seed) for seed in (0, 3)},
}


@pytest.mark.parametrize("program", REPEATED.values(), ids=REPEATED)
def test_repetitions_begin_where_they_were_planned(program):
    rows = frame(program)
    assert rows.select("start", "launches").rows() == [*zip(program.begun, program.sizes, strict=True)]
    assert rows.select("name", "found_by", "phase").unique().rows() == [("repetition", "launches", None)]


@pytest.mark.parametrize(("pause", "tells"), [(12_000, False), (13_000, True), (60_000, True)])
def test_a_longer_pause_tells_a_step_from_its_layers(pause, tells):
    """Steps of blocks whose results the host takes, with so long a pause before the first of them."""
    block = [Launch("norm", pause=10_000), *layer(2, "block"), copy_out()]
    program = repeated(*[[Launch("embed", pause=pause), *block * 8]] * 10)
    starts = frame(program).get_column("start").to_list()
    assert (starts == program.begun) == tells
    assert tells or len(starts) >= 70


@pytest.mark.parametrize("step", [[copy_in(pause=5_000)], [Launch("adam", pause=5_000)]])
def test_what_takes_data_or_updates_is_the_step_however_long_the_host_pauses_before_an_epoch(step):
    program = Program().then(BOOT)
    for _ in range(6):
        program.now += 300_000
        program.iterations(*[[*step, *layer(3)]] * 6).then([Launch("judge", pause=9_000)] * 3)
    assert len({*program.begun} & {*frame(program).get_column("start")}) >= 35


NOT_REPEATED = {
    "three": repeated(*[training_step()] * 3),
    "less than half of the time": Program().then([Launch("a", ns=10**8)]).iterations(*[training_step()] * 10),
    "one kernel of little time": Program().then([Launch("large", ns=10**8)]).then([Launch("only")] * 1000),
    "one kernel, not often": started().iterations(*[[Launch("kernel")]] * 63),
    "no launch": Program(),
    "a start": started(),
    "three starts": started(*BOOT * 2),
    "what a library timed": Program().then(TIMED),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("program", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_what_is_rare_or_takes_little_time_is_no_repetition(program):
    assert frame(program).is_empty()


#: Programs whose repetitions are parts of what might be one: regular pauses and waits would tell.
PARTS = {
    "nine launches between waits": (chunks(9), 5),
    "waits now and then": (between_waits(*(5 + 7 * number % 31 for number in range(30))), 10),
    "layers between short pauses": (of_layers(20, 5, pause=3_000), 5),
}


@pytest.mark.parametrize(("program", "times"), PARTS.values(), ids=PARTS)
def test_what_nothing_puts_together_is_told_as_it_repeats(program, times):
    assert len(found(program)) >= times * len(program.begun)


TEN = [Launch("first", pause=50_000), *(Launch(f"part {part}") for part in range(9))]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("odd", "number"),
    [
        (TEN[:5], 40),  # half of the launches
        (TEN[:4], 39),
        (TEN + TEN[1:6], 40),  # one and a half times as many
        (TEN + TEN[1:7], 41),  # what is more is one of its own
        (TEN + TEN[1:5], 40),
        (TEN[:7] + BOOT[:3], 40),  # two thirds of them
        (TEN[:6] + BOOT[:4], 39),
    ],
)
def test_an_odd_repetition_has_a_like_size_and_mostly_launches_of_the_others(odd, number):
    program = repeated(*[TEN] * 20, odd, *[TEN] * 19)
    rows = frame(program)
    assert rows.height == number
    assert {*program.begun[:20], *program.begun[21:]} <= {*rows.get_column("start")}
    assert (program.begun[20] in rows.get_column("start")) == (number >= 40)


STENCIL = [copy_in(pause=300_000), Launch("stencil"), Launch("scale"), Launch("square"), copy_out()]
LOGGED, LOSS = [*STENCIL[:-1], Launch("memset"), Launch("total"), copy_out()], [Launch("norm"), copy_out()]
ODD = {
    "fewer and more": (REPEATED["fewer and more of it"], [0, 16]),
    "the last of each loop": (Program().then(BOOT[:1]).iterations(*[*[STENCIL] * 39, LOGGED] * 3), [39, 79, 119]),
    **{
        f"every tenth logs {len(more)}": (  # not what follows the last
            repeated(*[training_step(data=len(more) > 1) + more * (at % 10 == 9) for at in range(60)]),
            [9, 19, 29, 39, 49],
        )
        for more in (LOSS, LOSS[:1])
    },
}


@pytest.mark.parametrize(("program", "odd"), ODD.values(), ids=ODD)
def test_repetitions_that_launch_less_or_more_are_not_usual(program, odd):
    rows = frame(program)
    assert rows.get_column("start").to_list() == program.begun
    assert (~rows.get_column("usual")).arg_true().to_list() == odd


def test_operations_without_any_calls():
    line = [kernel(100 * at, 100 * at + 50, name=name) for at, name in enumerate("abcdefgh" * 30)]
    assert launch_periods(report(line)).get_column("start").to_list() == list(range(0, 24_000, 800))


@pytest.mark.parametrize(("blocks", "filled", "runs"), [(1, 2_048, 480), (12_800, 12_800, 480), (1, 2_047, 0)])
def test_kernels_are_timed_after_fills_that_clear_a_cache(blocks, filled, runs):
    sizes = {True: filled, False: blocks}
    trials = [one._replace(blocks=sizes[one.name == CLEARS.name]) for one in TIMED]
    assert timed_runs(report_of(Program().then(trials))).height == runs


TRY, WAIT = Launch("try"), Launch("cudaStreamSynchronize")
RUNS = {
    "once": [RECORD, TRY, RECORD],
    "sixteen times": [RECORD, *[TRY] * 16, RECORD],
    "waited for later": [RECORD, TRY, RECORD, WAIT],
    "before a pause": [RECORD, TRY, RECORD, Launch("cudaMalloc", pause=10_000_000)],
}
NO_RUNS = {
    "more often": [RECORD, *[TRY] * 17, RECORD], "nothing": [], "without a start": [TRY, RECORD],
    "without an end": [RECORD, TRY], "waited for": [RECORD, TRY, WAIT, RECORD],
}  # fmt: skip


@slow_given(st.integers(45, 50), st.lists(st.sampled_from([*RUNS, *NO_RUNS]), max_size=8))
@example(49, ["once"])
@example(49, ["nothing"])
def test_runs_are_timed_by_events_before_and_after_them(number, others):
    kinds = [*["once"] * 20, *others, *["once"] * (number - 20)]
    program, begun = Program(), []
    for kind in kinds:
        before = len(program.events)
        program.then([CLEARS, *RUNS.get(kind, NO_RUNS.get(kind, []))])
        calls = [event for event in program.events[before:] if event.kind == "api"]
        records = [event.start for event in calls if event.name == "cudaEventRecord"]
        begun.append((kind, calls[0].start, max(records, default=None)))
    following = [*(start for _, start, _ in begun[1:]), 1 << 60]
    runs = [(start, then, end) for (kind, start, end), then in zip(begun, following, strict=True) if kind in RUNS]
    usual = median(then - start for start, then, _ in runs)
    expected = [(start, then if then - start <= 3 * usual else end) for start, then, end in runs]
    rows = timed_runs(report_of(program)).select("start", "end").rows()
    assert rows == (expected if len(expected) >= 50 else [])


@pytest.mark.parametrize("pause", [10, 5_000_000])
def test_repetitions_adjoin_and_the_last_one_ends_with_its_work(pause):
    found = report_of(Program().then(BOOT).iterations(*[training_step()] * 10).then([Launch("export", pause=pause)]))
    rows = kanalyze.iterations(found)
    ends = rows.select(pl.col("start_ns") + pl.col("dur_ns")).to_series().to_list()
    assert ends[:-1] == rows.get_column("start_ns").to_list()[1:]
    work = found.kind("kernel").sort("start_ns")
    assert ends[-1] == work.item(-2, "start_ns") + work.item(-2, "dur_ns")


@pytest.mark.parametrize(("call", "together"), [("cudaMemcpyAsync", 10), ("cudaMemcpy", 1)])
def test_chunks_are_parts_of_what_the_host_waits_for_unless_each_copy_waits(call, together):
    program = waiting(*[[[copy_in(), Launch("product"), copy_out()]] * 10] * 6)
    events = [replace(event, name=call) if event.name == "cudaMemcpyAsync" else event for event in program.events]
    assert launch_periods(report(events)).get_column("start").to_list() == program.begun[::together]


@few_given(st.integers(3, 56), st.integers(1, 98), st.sampled_from(["more", "less"]))
def test_one_odd_step_of_sixty(which, place, change):
    steps = [training_step() for _ in range(60)]
    if change == "more":
        steps[which].insert(place, Launch("extra"))
    else:
        del steps[which][place]
    program = Program().then(BOOT).iterations(*steps)
    assert found(program) == program.begun


@few_given(st.integers(3, 12), st.integers(3, 20), st.integers(1, 8), st.booleans())
def test_steps_and_not_epochs(epochs, steps, evaluated, data):
    assume(evaluated <= steps)  # of more evaluations than steps each could be the other
    program, evaluation = Program().then(BOOT), EVALUATION if data else EVALUATION[1:]
    for _ in range(epochs):
        program.iterations(*[training_step(data=data)] * steps).then(evaluation * evaluated)
    rows = frame(program)
    assert rows.filter(name="repetition").get_column("start").to_list() == program.begun
    assert rows.filter(pl.col("name") != "repetition").get_column("usual").all()


def test_a_thread_that_launches_at_a_rate_of_its_own():
    random = Random(3)  # noqa: S311 - no secret depends on it
    program = Program().then(BOOT).iterations(*[training_step()] * 30)
    parts = [part for _ in range(900) for part in range(3)]
    program.beside((Launch(f"augment {part}", ns=100, pause=random.randrange(10, 90_000)) for part in parts), 2)
    rows = frame(program)
    assert rows.get_column("start").to_list() == program.begun
    assert rows.get_column("usual").all()


@pytest.mark.slow
def test_a_rank_that_does_other_things_as_well():
    programs = [Program(process=rank).then(BOOT).iterations(*[training_step()] * 20) for rank in range(2)]
    programs[1].then(Launch(f"other {number}", ns=20_000) for number in range(1_500))
    told = frame(*programs).group_by("process_id", "name").len().sort("process_id").rows()
    assert told == [(0, "repetition", 20), (1, "repetition", 20)]
    assert frame(programs[1]).is_empty()


def test_a_recording_that_begins_and_ends_within_a_step():
    steps = [training_step()] * 10
    program = Program().iterations(steps[0][50:], *steps, steps[0][:70])
    assert frame(program).filter("usual").get_column("start").to_list() == program.begun[1:11]


def test_epochs_of_training_have_no_phases():
    program = Program().then(BOOT)
    for _ in range(5):
        large = [one._replace(blocks=9, ns=30_000) for one in EVALUATION]
        program.iterations(*[training_step()] * 8).then(large)
    rows = frame(program)
    assert rows.filter(name="repetition").get_column("start").to_list() == program.begun
    assert rows.get_column("phase").null_count() == rows.height


def chained(random, number):
    """Launches of which each depends on the one before, which it follows at most 8 times in 10."""
    kernels = random.randrange(2, 30)
    rows = []
    for _ in range(kernels):
        weights = [random.random() ** random.choice([1, 6, 20]) + 1e-6 for _ in range(kernels)]
        total = sum(weights)
        most = max(weights) / total
        scale = 0.2 / (1 - most) if most > 0.8 else 1.0
        rows.append([0.8 if scale < 1 and weight == max(weights) else scale * weight / total for weight in weights])
    at, line = 0, []
    for _ in range(number):
        at = random.choices(range(kernels), rows[at])[0]
        line.append(Launch(f"kernel {at}", ns=1_000 * (at % 7 + 1)))
    return line


@pytest.mark.one_in(2)
@pytest.mark.parametrize("programs", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [30, 100, 600])
def test_random_launches_repeat_nothing(number, programs):
    """One of some hundred may, since a loop of one kernel is a loop, and chance makes such."""
    made = (Program().then(chained(Random(seed), number)) for seed in range(programs))  # noqa: S311 - no secret
    assert sum(not frame(program).is_empty() for program in made) <= 1


LAUNCHES = st.builds(
    Launch,
    name=st.sampled_from(["a", "b", "c", "d", "memset", "Host-to-Device", "[CUDA graph 1]"]),
    blocks=st.integers(1, 2),
    ns=st.integers(0, 60_000),
    pause=st.integers(0, 40_000),
    thread=st.integers(1, 2),
)


@st.composite
def noisy_loops(draw):
    """Some launches again and again, now and then without one of them, and any other events."""
    program, pattern = Program(), draw(st.lists(LAUNCHES, min_size=2, max_size=10))
    for _ in range(draw(st.integers(3, 30))):
        dropped = draw(st.integers(0, 200))
        program.then(one for place, one in enumerate(pattern) if place != dropped)
    return [*draw(EVENTS), *program.events]


@slow_given(noisy_loops())
def test_repetitions_are_disjoint_and_begin_with_a_launch(events):
    found = report(events)
    rows = launch_periods(found)
    assert rows.equals(rows.sort("process_id", "start"))
    starts = {*found.kind("api")["start_ns"], *(one.start for one in events if one.kind != "api")}
    assert {*rows["start"]} <= starts
    assert (rows["start"] <= rows["end"]).all()
    for part in rows.partition_by("process_id"):
        assert part.height >= 4
        assert (part["end"].slice(0, part.height - 1) <= part["start"].slice(1)).all()
