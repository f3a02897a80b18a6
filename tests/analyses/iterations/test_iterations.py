"""Iterations by marks and by the passes of loops, and which of them are odd, cut or of the start."""

import gzip
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import assume, given, strategies as st

import kanalyze
from kanalyze.analyses.iterations._marks import marked_iterations, passes
from kanalyze.analyses.iterations.iterations import iterations_at
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.replay._unprofiled import lengths_of
from kanalyze.model import LOOP_PASSES
from kanalyze.readers import read
from support.build import kernel, launched, nvtx, report
from support.command import ROOT, SAMPLES
from support.exports import altered
from support.real_reports import real_report
from support.steps import in_phases, in_turn, loop, ran
from support.strategies import few_given, slow_given


def kinds(lengths, **keys):
    return kanalyze.iterations(report(loop(lengths, **keys)))


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
    """Steps of 100 ns, or of `lengths`, with the device at work for so many ns in each."""
    events = in_turn(lengths or [100] * len(works), lambda at, place, _: ran(at, 4, 4 + works[place]))
    rows = kanalyze.iterations(report(events)).filter(pl.col("kind") == "odd").select("index", "reason")
    assert [*odd] == rows.get_column("index").to_list()
    assert all(reason.startswith(odd[index]) for index, reason in rows.iter_rows())


@pytest.mark.one_in(4)
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
        (3, {2: 200, 3: 400}, []),
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


@pytest.mark.one_in(4)
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


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "name"), [((3, 3), "request"), ((3, 4), "request"), ((3, 4, 5), "token")])
def test_ranges_in_varying_number_inside_others_are_the_loop(counts, name):
    """Of two numbers one may be that of an outer range that is cut."""

    def tokens(at, place, _):
        return loop([100] * counts[place % len(counts)], name="token", start=at + 5)

    events = in_turn([110 * count + 10 for count in counts * 10], tokens, name="request", gap=10)
    assert kanalyze.iterations(report(events)).get_column("name").unique().to_list() == [name]


@pytest.mark.one_in(4)
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


@pytest.mark.slow
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
        (tried("XlaModule:#hlo_module=cudnn-conv-bw-filter.11#"), {"step": 6}),  # where nsys lost the name around it
        (tried("XlaModule:#hlo_module=jit_learn.2,program_id=7#"), {}),  # a function whose name has a dot
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
        *(("gemm", "cuBLAS"), ("gemm", "libcublas"), ("cub::DeviceReduce::Sum", "CCCL")),
        *(("ncclGroupEnd", domain) for domain in (None, "NCCL")),
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
    names = ("embed", *map(name.format, range(4)), "head")
    parts = [(part, 100 * at, 100 * at + 90) for at, part in enumerate(names)]
    rows = kanalyze.iterations(report(in_phases([(1_000 * at, parts) for at in range(1, 7)])))
    assert rows.get_column("start_ns").to_list() == [1_000 * at for at in range(1, 7)]
    assert rows.get_column("found_by").unique().to_list() == ["ranges embed to head"]


@slow_given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9_000)), max_size=8),
    st.lists(st.integers(50, 300), min_size=3, max_size=9),
)
def test_the_iteration_around_an_instant_is_that_of_a_walk(points, lengths):
    found = report([*loop(lengths), *loop(lengths[:3], start=4_000, process=2)])
    rows = kanalyze.iterations(found).with_row_index("place")
    known = rows.select("process_id", "start_ns", "dur_ns", "place", "name").rows()

    def around(own, at):
        inside = (told for process, start, lasts, *told in known if process == own and start <= at < start + lasts)
        return tuple(next(inside, (None, None)))

    asked = pl.DataFrame(points, {"process_id": pl.Int64, "at": pl.Int64}, orient="row")
    assert iterations_at(found, asked).rows() == [around(*point) for point in points]


@pytest.mark.slow
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


@few_given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50)), min_size=1), min_size=3, max_size=7)
)
def test_iterations_run_the_same_kernels(steps):
    """Three quarters of the time of an iteration's kernels, in the mean, are in kernels of at least half of them."""
    often = {name: 2 * sum(any(name == one for one, _ in step) for step in steps) >= len(steps) for name in "abcd"}
    parts = [sum(ns for name, ns in step if often[name]) / sum(ns for _, ns in step) for step in steps]
    assume(abs(sum(parts) / len(parts) - 0.75) > 1e-9)
    assert kanalyze.iterations(programs(*steps)).is_empty() == (sum(parts) / len(parts) < 0.75)


CAPTURE = ROOT / "sample_reports" / "launch_bound_plain"


def passes_of(rows, others=(), yields=None, text="yield from pool"):
    """The passes of loops (time, line) of one thread, and of another one; a line may be one of a generator."""
    threads = [2] * len(rows) + [3] * len(others)
    table = pl.DataFrame([*rows, *others], {"time_ns": pl.Int64, "line": pl.Int64}, orient="row").with_columns(
        pl.Series("thread_id", threads, pl.Int64), process_id=pl.lit(1, pl.Int64), file=pl.lit("train.py")
    )
    texts = {"line": [yields], "file": "train.py", "function": "batches", "text": text}
    lines = pl.DataFrame(
        texts if yields else [], {"line": pl.Int64, **dict.fromkeys(("file", "function", "text"), pl.String)}
    )
    marks = "kanalyze.analyses.iterations._marks"
    with (
        patch(f"{marks}.loop_passes", return_value=LOOP_PASSES.select(table)),
        patch(f"{marks}.source_lines", return_value=lines),
    ):
        return passes(None)


@given(st.lists(st.sampled_from([0, 2, 3, 4, 5, 6]), min_size=3, max_size=12))
def test_passes_of_nested_loops_are_those_of_a_walk(counts):
    """Each outer pass runs an inner loop so many times, whose last jump finds that there is no further pass.

    Which of two loops is the outer one nothing tells where the inner one jumps once in each run.
    """
    rows, outer, inner, now = [], [], [], 0
    for count in counts:
        jumps = [now := now + 10 for _ in range(count)]
        rows += [(at, 20) for at in jumps]
        inner += [(start, end, "train.py:20") for start, end in pairwise(jumps)]
        now += 7
        rows.append((now, 10))
        outer.append(now)
    expected = [(start, end, "train.py:10") for start, end in pairwise(outer)]
    found = passes_of(rows).select("start", "end", "name").rows()
    assert [row for row in found if row[2] == "train.py:10"] == expected
    # an inner loop that runs in few passes of the other is not known to lie in it
    if 2 * sum(count > 0 for count in counts[1:]) > len(counts) - 1 and sum(counts) >= len(counts):
        assert [row for row in found if row[2] == "train.py:20"] == inner


@pytest.mark.parametrize("every", [2, 3])
def test_a_loop_in_no_more_than_half_of_the_passes_of_another_one_runs_beside_it(every):
    outer, inner = range(10, 140, 10), [at + more for at in range(20, 130, 10 * every) for more in (2, 4)]
    rows = passes_of([*((at, 10) for at in outer), *((at, 20) for at in inner)])
    found = rows.filter(pl.col("name") == "train.py:20").select("start", "end").rows()
    assert found == list(pairwise(inner))


@pytest.mark.parametrize("text", ['loss = f(batch["yield"])', "loss = f(x)  # yield per hectare", "crop_yield = f(x)"])
def test_the_word_alone_makes_no_generator(text):
    rows = sorted([*((at, 10) for at in range(10, 130, 10)), *((at, 20) for at in (11, 51, 91))])
    assert passes_of(rows, yields=20, text=text).equals(passes_of(rows))


@pytest.mark.parametrize(("yields", "steps"), [(20, 11), (None, 8)])
def test_a_loop_that_goes_through_the_data_again_is_around_no_steps_if_it_is_a_generators(yields, steps):
    rows = sorted([*((at, 10) for at in range(10, 130, 10)), *((at, 20) for at in (11, 51, 91))])
    found = passes_of(rows, yields=yields)
    assert found.filter(pl.col("name") == "train.py:10").height == steps
    assert found.filter(pl.col("name") == "train.py:20").height == (0 if yields else 2)


@pytest.mark.parametrize(
    ("steps", "every", "known"),
    [
        (6, (2, 4), 0),  # layers that the thread of backward computes again in each step
        (6, (2,), 5),  # a loop that keeps step with the other one
        (5, (2, 4), 9),  # around it are too few passes
    ],
)
def test_a_loop_of_another_thread_that_runs_in_each_pass_is_a_part_of_it(steps, every, known):
    begun = [10 * number for number in range(steps)]
    rows = passes_of([(at, 10) for at in begun], [(at + more, 20) for at in begun for more in every])
    assert rows.filter(pl.col("name") == "train.py:20").height == known


def test_the_loop_that_launched_most_in_all_is_the_pass():
    events, rows, at = [], [], 1_000
    for line, lengths in ((7, [500, *[20] * 5]), (9, [100] * 12)):
        for length in lengths:
            rows.append((at, line))
            events += launched(at + 1, at + 3, kernel(at + 4, at + 4 + length, correlation=len(rows)))
            at += length + 10
        rows.append((at, line))
        at += 10_000
    keys = {"process_id": events[0].process, "thread_id": events[0].thread}
    table = pl.DataFrame(rows, {"time_ns": pl.Int64, "line": pl.Int64}, orient="row").with_columns(
        **{name: pl.lit(key, pl.Int64) for name, key in keys.items()}, file=pl.lit("train.py")
    )
    with patch("kanalyze.analyses.iterations._marks.loop_passes", return_value=LOOP_PASSES.select(table)):
        found = marked_iterations(report(events))
    told = sorted(found.group_by("name", "found_by").len().rows())
    assert told == [("pass", "loop train.py:9", 12), ("pass of train.py:7", "loop train.py:7", 6)]


@pytest.fixture
def looped(tmp_path):
    """A capture without marks, with the program's loop, which began a pass with each 35th launch."""
    folder = tmp_path / "capture"
    shutil.copytree(CAPTURE, folder)
    altered(folder, CAPTURE / "nsys.sqlite", "DELETE FROM NVTX_EVENTS")
    with read(folder) as report:
        calls = report.kind("api").filter(pl.col("name").cast(pl.String).str.contains("LaunchKernel")).sort("start_ns")
        key = calls.select("process_id", "thread_id").row(0)
        times = (calls.get_column("start_ns")[::35] - 500).to_list()
        origin = report.meta.origin_unix_ns
    since = [after - before for before, after in zip([0, *times], times, strict=False)]
    content = {
        "schema": 1,
        "process": key[0],
        "exact": True,
        "clocks": [[origin, 0], [origin + 10**10, 10**10]],
        "files": ["train.py"],
        "places": [[0, 28, "main", "for batch in batches:"]],
        "threads": [
            {"id": key[1], "lines": {"times": [], "places": []}, "loops": {"times": since, "places": [0] * len(since)}}
        ],
    }
    (folder / "lines-nsys.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    return folder, times


@pytest.mark.slow
def test_a_loop_of_the_program_is_what_repeats(looped):
    folder, times = looped
    with read(folder) as report:
        steady = steady_part(report)
        rows = steady.rows.sort("start_ns")
    assert steady.each == "pass"
    assert steady.found_by == "loop train.py:28"
    assert rows.height == len(times) - 1
    assert rows.get_column("start_ns").to_list() == times[:-1]


def test_ranges_of_the_program_come_before_its_loops(looped):
    folder, _ = looped
    shutil.copy(CAPTURE / "nsys.sqlite", folder)
    with read(folder) as report:
        assert steady_part(report).found_by == "ranges"


def test_a_run_without_a_profiler_may_have_a_last_pass_of_a_loop_that_is_none():
    starts = list(range(0, 110, 10))
    assert lengths_of({"train.py:28": starts}, "train.py:28", 10, 2, 9) == ("train.py:28", [10] * 7)
    assert lengths_of({"the outermost module's call": starts}, "train.py:28", 10, 2, 9) is None
