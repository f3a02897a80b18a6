"""Iterations by marks, and which of them are odd, cut or of the start."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.iterations.iterations import iterations_at
from kanalyze.analyses.iterations.phases import steady_part
from support.build import kernel, launched, nvtx, report
from support.command import SAMPLES
from support.real_reports import real_report
from support.steps import in_phases, in_turn, loop, ran
from support.strategies import FEWER


def kinds(lengths, **keys):
    return kanalyze.iterations(report(loop(lengths, **keys)))


def working(works, lengths=None):
    """Steps of 100 ns, or of `lengths`, with the device at work for so many ns in each."""
    events = in_turn(lengths or [100] * len(works), lambda at, place, _: ran(at, 4, 4 + works[place]))
    return kanalyze.iterations(report(events))


def odd_ones(rows):
    return rows.filter(pl.col("kind") == "odd").get_column("index").to_list()


#: Of forty steps the 21st takes longer than the others.
ONE_LONG = [100] * 20 + [180] + [100] * 19


@pytest.mark.parametrize(
    ("works", "lengths", "odd"),
    [
        ([40] * 6 + [90] + [40] * 7, None, {7: "its work takes the GPU 2.25 × the median"}),
        ([40] * 6 + [10] + [40] * 7, None, {7: "its work takes the GPU 0.25 × the median"}),
        ([40] * 6 + [90] + [40] * 3, None, {7: "its work takes the GPU 2.25 × the median"}),
        ([40] * 6 + [90] + [40] * 2, None, {}),
        ([40] * 6 + [55] + [40] * 7, None, {}),  # less than half more
        (([40] * 15 + [90]) * 6, None, {}),  # an update after every 16th pass
        (([40] * 19 + [90]) * 20, None, {}),
        ([40] * 97 + [90] * 3, None, {}),
        (([40] * 49 + [90]) * 2, None, dict.fromkeys((50, 100), "its work takes the GPU 2.25 × the median")),
        ([40] * 95 + [90] * 8, None, {}),
        ([40, 40, 90, 40, 40], None, {}),  # too few to tell
        ([0] * 10 + [40] + [0] * 10, None, {}),
        # what takes long is odd whatever its work
        ([90 if number % 8 == 7 else 40 for number in range(40)], ONE_LONG, {21: "1.80 × the median"}),
        ([40] * 10 + [90] + [40] * 29, ONE_LONG, {11: "its work takes", 21: "1.80 × the median"}),
    ],
)
def test_few_with_other_work_are_odd_however_long_they_take(works, lengths, odd):
    rows = working(works, lengths).filter(pl.col("kind") == "odd").select("index", "reason")
    assert [*odd] == rows.get_column("index").to_list()
    assert all(reason.startswith(odd[index]) for index, reason in rows.iter_rows())


@pytest.mark.parametrize("name", ["XlaCompile:#module=jit_step#", "compile_inner (dynamo_timed)"])
@pytest.mark.parametrize(
    ("compiled_ns", "others", "odd"),
    [
        ({12: 700}, {}, [12]),
        ({7: 700, 12: 700}, {}, []),
        ({7: 700, 12: 700}, {3: 150}, []),
        ({7: 300, 12: 300}, {}, [7, 12]),
    ],
)
def test_what_compiles_again_is_odd_only_once(name, compiled_ns, others, odd):
    """Nor is another one odd then, that takes longer."""

    def inside(at, place, length):
        compiles = [nvtx(name, at + 5, at + 5 + compiled_ns.get(place + 1, 0))] * (place + 1 in compiled_ns)
        return [*compiles, *ran(at, length - 80, length - 20)]

    lengths = [900 if number in compiled_ns else others.get(number, 100) for number in range(1, 24)]
    rows = kanalyze.iterations(report(in_turn(lengths, inside)))
    assert odd_ones(rows.filter(pl.col("name") == "step")) == odd


def test_a_collective_that_waits_for_another_rank_is_no_work():
    collective = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "stream": 9}

    def inside(at, place, _):
        spins = 900 if place == 6 else 100
        return [*ran(at, 4, 504), *launched(at + 5, at + 7, kernel(at + 8, at + 8 + spins, **collective))]

    assert odd_ones(kanalyze.iterations(report(in_turn([1_000] * 14, inside)))) == []


@pytest.mark.parametrize(
    ("number", "others", "odd"),
    [
        (7, {4: 125}, []),  # of few a quarter of the median
        (7, {4: 126}, [4]),
        (13, {7: 110}, []),  # of more a tenth
        (13, {7: 111}, [7]),
        (3, {3: 200}, [3]),
        (3, {3: 199}, []),
        (3, {2: 120, 3: 240}, [3]),
        (20, {5: 150, 15: 150}, [5, 15]),  # a tenth of them may take another time, and differ in nothing else
        (19, {5: 150, 15: 150}, []),
        (10, {4: 300, 7: 300}, []),
        (10, {4: 301, 7: 301}, [4, 7]),
        (10, {4: 34, 7: 34}, []),
        (10, {4: 33, 7: 33}, [4, 7]),
        (12, {2: 400, 5: 400, 10: 400}, [2, 5, 10]),
        (12, {2: 400, 5: 400, 9: 400}, []),  # at a regular distance
        (12, {2: 400, 3: 400, 5: 400, 10: 400}, []),  # more than a quarter
        (16, {2: 400, 3: 400, 5: 400, 10: 400}, [2, 3, 5, 10]),
    ],
)
def test_how_far_an_odd_one_is_from_the_others(number, others, odd):
    lengths = [others.get(index, 100) for index in range(1, number + 1)]
    rows = kinds(lengths, gap=0)
    assert odd_ones(rows) == odd
    assert rows.filter(kind="steady").height == number - len(odd)
    assert rows.filter(kind="odd").get_column("reason").str.contains("× the median").all()
    assert rows.select("dur_ns", "operations").rows() == [(length, 1) for length in lengths]


@pytest.mark.parametrize("name", ["step", "ProfilerStep#{}"])
def test_the_first_ones_of_a_schedule_warm_up_though_the_process_began_before(name):
    """Two steps pay for the profiler's start; the context was made long before the recording."""
    rows = kanalyze.iterations(report(in_turn([2_718, 420, *[120] * 8], lambda at, *_: ran(at, 4, 100), name=name)))
    assert rows.get_column("kind").to_list()[2:] == ["steady"] * 8
    assert set(rows.get_column("kind").to_list()[:2]) <= {"warm-up", "odd"}


def several(launches, apart):
    """Steps with so many launches each, so far apart; they last as long, but no less than ten."""

    def inside(at, place, _):
        return [event for number in range(launches[place]) for event in ran(at + apart * number, 4, apart - 4)]

    return in_turn([apart * max(many, 10) for many in launches], inside)


@pytest.mark.parametrize(
    ("few", "launches", "cut"), [(0, 3, [1]), (7, 3, [8]), (3, 3, []), (0, 9, []), (7, 9, []), (0, 8, [1]), (7, 8, [8])]
)
def test_the_first_and_the_last_one_are_cut_where_they_launch_less(few, launches, cut):
    rows = kanalyze.iterations(report(several([launches if place == few else 10 for place in range(8)], 80)))
    assert rows.get_column("kind").to_list() == ["cut" if index in cut else "steady" for index in range(1, 9)]


def test_many_that_launch_more_are_odd():
    """Of ten steps two evaluate."""
    events = several([30 if number in (3, 7) else 10 for number in range(10)], 20)
    assert odd_ones(kanalyze.iterations(report(events))) == [4, 8]


@pytest.mark.parametrize(("counts", "name"), [((3, 3), "request"), ((3, 4), "request"), ((3, 4, 5), "token")])
def test_ranges_in_varying_number_inside_others_are_the_loop(counts, name):
    """Of two numbers one may be that of an outer range that is cut."""

    def tokens(at, place, _):
        return loop([100] * counts[place % len(counts)], name="token", start=at + 5)

    events = in_turn([110 * count + 10 for count in counts * 10], tokens, name="request", gap=10)
    assert kanalyze.iterations(report(events)).get_column("name").unique().to_list() == [name]


@pytest.mark.parametrize(
    ("name", "outers", "inners", "ns", "told"),
    [
        ("request", 4, 2, 900, "token"),  # of few outer ones the inner ones launched nine tenths
        ("request", 4, 2, 898, "request"),
        ("request", 4, 1, 1_000, "request"),
        ("request", 5, 2, 1_000, "request"),
        ("epoch", 6, 2, 500, "token"),
        ("epoch", 6, 2, 498, "epoch"),
        ("epoch", 6, 1, 1_000, "epoch"),
    ],
)
def test_ranges_inside_others_are_the_loop_if_they_launched_enough(name, outers, inners, ns, told):
    """Of 1,000 ns of each outer range the inner ones launched some."""

    def inside(at, *_):
        tokens = in_turn([1_100] * inners, lambda at, *_: ran(at, 10, 10 + ns // inners), name="token", start=at)
        return [*tokens, *ran(at + 5_000, 10, 1_010 - ns)]

    rows = kanalyze.iterations(report(in_turn([9_000] * outers, inside, name=name, start=10_000, gap=1_000)))
    assert told in rows.get_column("name").to_list()
    assert rows.height == outers * (inners if told == "token" else 1)


@pytest.mark.parametrize(
    ("seconds", "ns", "told"),
    [
        (range(8), 11, {"iteration": 8}),
        (range(7), 12, {"iteration": 8}),  # the last one is cut
        (range(6), 12, {"forward": 8, "optimizer": 6}),
        ([0, 1, 2, 4, 5, 6, 7], 12, {"iteration": 8}),
        ([0, 1, 2, 4, 6, 7], 12, {"forward": 8, "optimizer": 6}),
        (range(8), 10, {"forward": 8}),
    ],
)
def test_ranges_that_take_turns_are_phases_of_one_iteration(seconds, ns, told):
    """Of each 90 ns of the first phase the second one, which some have, takes some more."""
    phases = [("forward", 0, 95)], [("optimizer", 100, 105 + ns)]
    steps = [(1_000 * at, [*phases[0], *(phases[1] if at - 1 in seconds else [])]) for at in range(1, 9)]
    rows = kanalyze.iterations(report(in_phases(steps)))
    names = rows.group_by("name", maintain_order=True).len().rows()
    assert {name: number for name, number in names if name in told} == told
    assert {"iteration", "forward"}.intersection(name for name, _ in names) == {next(iter(told))}


@pytest.mark.parametrize(("late", "ahead"), [(9, False), (10, True)])
def test_a_host_runs_ahead_where_the_device_ends_a_tenth_later(late, ahead):
    steady = steady_part(report(in_turn([100] * 8, lambda at, *_: ran(at, late, 100 + late))))
    assert steady.lengths.to_list() == ([110, *[100] * 7] if ahead else [*[100] * 7, 109])


OTHER_THREAD = [replace(event, thread=event.thread and 2) for event in loop([30] * 8, name="load", start=1_005)]
LATE = loop([100] * 6, start=30_000)
EPOCHS = [event for start in (1_000, 2_000, 3_000) for event in loop([100] * 4, start=start)]
EPOCHS += [nvtx("epoch", start - 1, start + 449) for start in (1_000, 2_000, 3_000)]


def tried(name):
    """What a range of another thread launches, far longer than all steps after it."""
    return [nvtx(name, 0, 300, thread=2), *launched(10, 12, kernel(20, 20_000), thread=2), *LATE]


@pytest.mark.parametrize(
    ("events", "names"),
    [
        # what repeats beside steps without work of its own, ranges of another thread, and one that occurs twice
        ([*loop([100] * 12), *(nvtx("log", at, at + 6) for at in (1_322, 1_652, 1_872, 2_202))], {"step": 12}),
        ([*loop([100] * 8), *OTHER_THREAD], {"step": 8}),
        (loop([100, 100], name="work"), {}),
        (EPOCHS, {"step": 12}),
        (loop([100] * 6, name="train#step_num={}#", domain="TSL"), {"train": 6}),  # as JAX numbers them
        # work while another thread compiles is the program's, what a compiler runs to choose kernels is not
        ([nvtx("compile_inner (dynamo_timed)", 0, 10**6, thread=9), *LATE], {"step": 6}),
        (tried("XlaCompile:#module=jit_learn#"), {"step": 6}),
        (tried("check"), {}),
        # from a twentieth of the device's time on
        ([*loop([105] * 4), *launched(90_000, 90_010, kernel(90_020, 97_620))], {"step": 4}),
        ([*loop([105] * 4), *launched(90_000, 90_010, kernel(90_020, 97_720))], {}),
        # a step by name that is little of the program, and one loop after another
        ([*loop([100] * 30, name="decode"), *loop([200], name="test_step", start=90_000)], {"decode": 30}),
        (loop([100] * 8, name="train") + loop([60] * 8, name="evaluate", start=9_000), {"train": 8, "evaluate": 8}),
    ],
)
def test_which_ranges_are_iterations(events, names):
    of = report(events)
    rows = kanalyze.iterations(of)
    assert dict(rows.group_by("name", maintain_order=True).len().iter_rows()) == names
    assert set(rows.get_column("found_by")) <= {"ranges"}
    assert kanalyze.phases(of).is_empty() == (not names)


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("XlaCompileBackend:#module=gemm_fusion_dot.1#", "TSL"),
        ("XlaModule:#prefix=a,hlo_module=jit_step,program_id=7#", "TSL"),
        ("## Call CompiledFxGraph fhbtb5c2nxpxkzbcv2znbgqmoysj7qlvrfqcfnjeikd7mzdxl3qm ##", None),
        ("Torch-Compiled Region: 0/0", None),
        ("CompiledFunctionBackward", None),
        ("gemm", "cuBLAS"),
    ],
)
def test_ranges_of_libraries_are_no_iterations(name, domain):
    side = {"domain": domain} if domain else {}
    assert kinds([100] * 8, name=name, **side).is_empty()
    within = [nvtx("forward", at, at + 105) for at in range(999, 1_800, 110)]
    rows = kanalyze.iterations(report([*loop([100] * 8, name=name, **side), *within]))
    assert rows.get_column("name").unique().to_list() == ["forward"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("training_step", "training_step"),
        ("step 7", "step 7"),
        ("step[DECODE bs=32]", "decode step"),
        ("epoch", "layer"),
        ("warm up", "layer"),
        ("optimizer_step", "layer"),
    ],
)
@pytest.mark.parametrize("many", [1, 2, 3, 4])
def test_what_repeats_in_a_named_step_is_a_layer(name, found, many):
    layers = in_turn([1_401] * many, lambda at, *_: loop([100] * 12, name="layer", start=at + 1), name=name, gap=599)
    rows = kanalyze.iterations(report(layers))
    assert (rows.item(0, "name"), rows.height) == (found, many if found != "layer" else 12 * many)


def test_what_occurs_in_named_steps_is_a_layer_also_where_it_occurs_outside_of_them():
    """They may end with it."""
    before = [*loop([400] * 12, name="block"), *loop([400] * 12, name="other", start=7_000)]
    inside = [(13_000 + 1_000 * at, [("step", 0, 900), ("block", 100, 400), ("other", 500, 900)]) for at in range(5)]
    rows = kanalyze.iterations(report([*before, *in_phases(inside)]))
    assert rows.get_column("name").to_list() == ["step"] * 5
    decoder = steady_part(real_report(SAMPLES / "inside_graphs" / "decoder.sqlite"))
    assert (decoder.each, decoder.number) == ("iteration", 24)


@pytest.mark.parametrize("name", ["layers.{}", "model.layers.{}.mlp"])
def test_numbers_in_the_path_of_a_models_part_are_places(name):
    parts = [
        ("embed", 0, 90),
        *((name.format(at), 100 + 100 * at, 190 + 100 * at) for at in range(4)),
        ("head", 500, 590),
    ]
    rows = kanalyze.iterations(report(in_phases([(1_000 * at, parts) for at in range(1, 7)])))
    assert rows.get_column("start_ns").to_list() == [1_000 * at for at in range(1, 7)]
    assert rows.get_column("found_by").unique().to_list() == ["ranges embed to head"]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9_000)), max_size=8),
    st.lists(st.integers(50, 300), min_size=3, max_size=9),
)
def test_the_iteration_around_an_instant_is_that_of_a_walk(points, lengths):
    found = report([*loop(lengths), *loop(lengths[:3], start=4_000, process=2)])
    rows = kanalyze.iterations(found).with_row_index("place").with_columns(many=pl.len().over("process_id", "name"))
    known = rows.select("process_id", "start_ns", "dur_ns", "place", "name", "many").rows()

    def around(own, at):
        inside = (told for process, start, lasts, *told in known if process == own and start <= at < start + lasts)
        return tuple(next(inside, (None, None, None)))

    asked = pl.DataFrame(points, {"process_id": pl.Int64, "at": pl.Int64}, orient="row")
    assert iterations_at(found, asked).rows() == [around(*point) for point in points]


@pytest.mark.parametrize("power", [1, 2, 3])
def test_work_that_shrinks_step_by_step_is_no_start_up(power):
    lengths = [20 + 10 * (40 - step) ** power for step in range(40)]
    assert kinds(lengths).get_column("kind").to_list() == ["steady"] * 40


def programs(*steps):
    """Ranges one after the other; in each, kernels of these names and lengths, launched one by one."""
    events, at = [], 1_000
    for step in steps:
        began = at
        for name, length in step:
            events += launched(at + 1, at + 3, kernel(at + 4, at + 4 + length, name=name))
            at += length + 10
        events.append(nvtx("timed", began, at))
        at += 10
    return report(events)


def test_variants_of_a_benchmark_are_no_iterations():
    variants = [[(name, 100)] * 8 + [("check", 5)] for name in ("pow", "mul", "square")]
    assert kanalyze.iterations(programs(*variants)).is_empty()  # nor are the launches of one of them
    assert steady_part(programs(*variants)) is None


def server(prefill, decode):
    """Requests: one step for a text of any length, and five for a token each; how long their kernels take."""
    events, at = [], 1_000
    for request in range(100, 106):
        for new, cached, ns in [(request, 0, prefill), *((0, request + token, decode) for token in range(5))]:
            events += loop([ns], name=f"serve_new_{new}_cached_{cached}", start=at)
            at += ns + 10
    return kanalyze.iterations(report(events))


def test_names_that_differ_by_numbers_are_one_kind_if_they_do_the_same():
    rows = server(1_000, 100).group_by("name", maintain_order=True).agg(pl.len(), pl.col("kind").unique())
    assert rows.rows() == [("serve_new_#_cached_0", 6, ["steady"]), ("serve_new_0_cached", 30, ["steady"])]
    assert server(100, 100).get_column("name").unique().to_list() == ["serve_new_#_cached"]


def test_products_of_another_shape_are_the_same_kernel():
    tiles = (f"sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{tile}x64x8_stage3_kernel" for tile in (32, 64, 128, 256))
    assert kanalyze.iterations(programs(*[[(tile, 100)] for tile in tiles])).height == 4


@FEWER
@given(st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50)), min_size=1), min_size=3, max_size=7))
def test_iterations_run_the_same_kernels(steps):
    """Three quarters of the time of an iteration's kernels, in the mean, are in kernels of at least half of them."""
    often = {name: 2 * sum(any(name == one for one, _ in step) for step in steps) >= len(steps) for name in "abcd"}
    parts = [sum(ns for name, ns in step if often[name]) / sum(ns for _, ns in step) for step in steps]
    assume(abs(sum(parts) / len(parts) - 0.75) > 1e-9)
    assert kanalyze.iterations(programs(*steps)).is_empty() == (sum(parts) / len(parts) < 0.75)
