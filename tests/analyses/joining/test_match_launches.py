"""Which kernels and launches ncu measured, on programs whose truth is known: made up, and recorded."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.operators._kernel_groups import matched, same_kernels, same_launches
from kanalyze.decoder.fields import normalised, shortened
from kanalyze.readers.ncu.read_csv_rep import Selection
from support.build import call, graph, kernel, report
from support.command import SAMPLES
from support.counters import measured
from support.real_reports import real_capture
from support.shares import cases, holds
from support.strategies import slow_given

FOLDER = Path("made by hand")
META = replace(report([]).meta, path=FOLDER, tool="nsys", capture=FOLDER)
NAMES = ("void n::k<(int)1>(T1)", "void n::k<(int)2>(T1)", "j(const int *)", "j(float)")
OTHERS = ("void n::k<1>(T1)", "void n::k<2>(T1)", "j(int const*)", "j(float)")  # as ncu writes them

#: A program: its launches in order, each a function and the blocks that it is launched with.
programs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=12)


def recorded(launches, starts, threads=(), calls=(), **tables):
    """The report of nsys of a program, whose kernels started in an order of their own (streams).

    The event_id of each kernel is its place in `launches`; `calls` tells which call made each.
    """
    threads, calls = threads or [1] * len(launches), calls or range(len(launches))
    kernels = [
        kernel(1000 + start, 1001 + start, name=NAMES[name], grid=(grid, 1, 1), block=(1, 1, 1), correlation=1 + made)
        for (name, grid), start, made in zip(launches, starts, calls, strict=True)
    ]
    made = dict(zip(calls, threads, strict=True))
    launching = [call("cudaLaunchKernel", n, n + 1, correlation=1 + n, thread=thread) for n, thread in made.items()]
    return replace(report([*kernels, *launching], **tables), meta=META)


def under_ncu(launches, asked, names, count=None):
    """What ncu reports of a program, and the place of each measured launch in it: the model of its filters."""
    seen, chosen = dict.fromkeys(range(len(NAMES)), 0), []
    for place, (name, _) in enumerate(launches):
        if name not in names:
            continue
        seen[name] += 1
        total = sum(seen.values())
        if seen[name] in asked.numbers if asked.numbers else asked.skip < total <= asked.skip + count:
            chosen.append(place)
    if not chosen:
        return None, []
    kept = [launches[place] for place in chosen]
    made = measured(
        *({} for _ in kept), names=[OTHERS[name] for name, _ in kept], grids=[grid for _, grid in kept], asked=asked
    )
    return made, chosen


def pairs(base, ncu):
    """Launch of the program by kernel of ncu, of those that are known."""
    return dict(same_launches(base, ncu).drop_nulls().select("right", "left").iter_rows())


filters = st.sets(st.integers(0, 3), min_size=1)
numbers = st.sets(st.integers(1, 4), min_size=1, max_size=3).map(lambda some: Selection(tuple(sorted(some))))


@given(programs, filters, numbers, st.data())
def test_launches_by_number_are_the_true_ones_and_none_is_missed(launches, names, asked, data):
    starts = data.draw(st.permutations(range(len(launches))))
    ncu, chosen = under_ncu(launches, asked, names)
    if ncu is None:
        return
    found = pairs(recorded(launches, starts), ncu)
    counts = {name: sum(one == name for one, _ in launches) for name in names}
    whole = {name for name in names if counts[name] >= asked.numbers[-1]}
    expected = {right: left for right, left in enumerate(chosen) if launches[left][0] in whole}
    assert found == expected


@cases(0.3)
@slow_given(programs, filters, st.integers(0, 3), st.integers(1, 5), st.data())
def test_first_launches_are_the_true_ones(launches, names, skip, count, data):
    asked = Selection(None, skip if len(names) == 1 else 0)
    starts = data.draw(st.permutations(range(len(launches))))
    ncu, chosen = under_ncu(launches, asked, names, count)
    if holds(ncu is not None):
        assert pairs(recorded(launches, starts), ncu) == dict(enumerate(chosen))


#: Two runs that launch the same in another order, or have nothing to do with each other.
two_ways = programs.flatmap(lambda one: st.tuples(st.just(one), st.permutations(one) | programs))


@cases(0.1)
@slow_given(two_ways, filters, numbers)
def test_where_the_run_under_ncu_went_another_way_shapes_tell(both, names, asked):
    """No launch is paired with one of another shape, nor is any other of that function."""
    launches, others = both
    ncu, chosen = under_ncu(others, asked, names)
    found = {} if ncu is None else pairs(recorded(launches, range(len(launches))), ncu)
    if not holds(found):
        return
    assert all(launches[left] == others[chosen[right]] for right, left in found.items())
    told = same_launches(recorded(launches, range(len(launches))), ncu)
    doubtful = {others[chosen[right]][0] for right in told.filter(pl.col("left").is_null())["right"]}
    assert not doubtful & {launches[left][0] for left in found.values()}


@cases(0.05)
@slow_given(programs, filters, numbers, st.data())
def test_what_one_call_launched_is_counted_and_not_told_apart(launches, names, asked, data):
    cuts = data.draw(st.lists(st.booleans(), min_size=len(launches), max_size=len(launches)))
    calls = [sum(cuts[: place + 1]) for place in range(len(launches))]
    ncu, chosen = under_ncu(launches, asked, names)
    found = {} if ncu is None else pairs(recorded(launches, range(len(launches)), calls=calls), ncu)
    holds(found)
    assert all(chosen[right] == left for right, left in found.items())
    made = [(name, one) for (name, _), one in zip(launches, calls, strict=True)]
    assert all(made.count(made[left]) == 1 for left in found.values())


@cases(0.05)
@slow_given(programs, filters, numbers, st.data())
def test_two_threads_have_no_order(launches, names, asked, data):
    threads = data.draw(st.lists(st.integers(1, 2), min_size=len(launches), max_size=len(launches)))
    ncu, chosen = under_ncu(launches, asked, names)
    found = {} if ncu is None else pairs(recorded(launches, range(len(launches)), threads=threads), ncu)
    holds(found)
    of_one = {name for name in names if len({t for (n, _), t in zip(launches, threads, strict=True) if n == name}) == 1}
    assert all(chosen[right] == left and launches[left][0] in of_one for right, left in found.items())


TWICE = [(0, 1), (0, 1), (0, 2)]


def second():
    return measured({}, names=[OTHERS[0]], grids=[1], asked=Selection((2,)))


def test_the_match_is_exact_and_the_launch_is_told():
    (row, _) = kanalyze.joined(recorded(TWICE, [0, 5, 9]), second()).to_dicts()
    names = ("ncu_match", "count", "launch_number", "launch_event_id", "launch_ns")
    assert [row[name] for name in names] == ["exact", 2, 2, 1, 1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "base",
    [
        replace(recorded(TWICE, [0, 5, 9]), meta=replace(META, capture=Path("other"))),
        replace(recorded(TWICE, [0, 5, 9]), meta=replace(META, capture=None)),
        replace(recorded(TWICE, [0, 5, 9]), meta=replace(META, tool="torch.profiler")),
        recorded(TWICE, [0, 5, 9]).narrow(process=1),
        recorded(TWICE, [0, 5, 9], calls=[0, 1, 1]),  # of a graph
        recorded(TWICE, [0, 5, 9], symbols=[{"name": NAMES[0], "symbol": one} for one in ("_Z1a", "_Z1b")]),
    ],
)
def test_without_knowing_all_launches_it_is_not(base):
    assert kanalyze.joined(base, second())["ncu_match"][0] == "shape"


def test_a_launch_that_was_lost_or_is_in_a_graph_takes_the_numbers_away():
    calls = [call("cudaLaunchKernel", -9 + n, -8 + n, correlation=n) for n in (1, 2, 3)]
    own = [kernel(n, n + 1, name=NAMES[0], block=(1, 1, 1), correlation=n) for n in (1, 2)]
    for more in ([], [graph(3, 4, correlation=3)]):
        base = replace(report([*own, *calls, *more]), meta=META)
        ncu = measured({}, names=[OTHERS[0]], asked=Selection((1,)))
        assert kanalyze.joined(base, ncu)["ncu_match"].to_list() == ["shape"]


def test_numbers_take_back_what_equal_counts_claim():
    """As many launches of each shape, but the first of them has another one than nsys saw."""
    other = measured({}, {}, names=[OTHERS[0]] * 2, grids=[2, 1], asked=Selection((1, 2)))
    assert kanalyze.joined(recorded([(0, 1), (0, 2)], [0, 5]), other)["ncu_match"].to_list() == ["shape", "shape"]


def test_a_launch_that_the_program_did_not_come_to_is_none_that_it_made():
    """As many launches, but ncu was told to measure the fifth; it takes the numbers of its function away."""
    base = recorded([(0, 1)], [0])
    fifth = measured({}, names=[OTHERS[0]], grids=[1], asked=Selection((5,)))
    assert same_launches(base, fifth).rows() == [(0, 5, None)]
    assert kanalyze.joined(base, fifth).select("ncu_match", "launch_number").rows() == [("shape", None)]
    both = measured({}, {}, names=[OTHERS[0]] * 2, grids=[1, 1], asked=Selection((1, 5)))
    assert same_launches(recorded([(0, 1), (0, 1)], [0, 5]), both)["left"].to_list() == [None, None]


LONG = ("void n::f<int, n::g<float>>(T1)", "void n::f<int, n::h<float>>(T1)")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("_Zg",), "exact"),  # the only one that it can be
        (("_Zg", "_Zother"), "exact"),
        (("_Zg", "_Zh"), "none"),  # one of both
        ((), "none"),
        (("_Zother",), "none"),  # contradicts
    ],
)
def test_a_name_that_ncu_cut_short_is_that_of_the_function_that_was_asked_for(asked, expected):
    events = [kernel(n, n + 1, name=LONG[n % 2], block=(1, 1, 1), correlation=n) for n in range(1, 5)]
    calls = [call("cudaLaunchKernel", -9 + n, -8 + n, correlation=n) for n in range(1, 5)]
    symbols = [{"name": LONG[0], "symbol": "_Zg"}, {"name": LONG[1], "symbol": "_Zh"}]
    base = replace(report([*events, *calls], symbols=symbols), meta=META)
    ncu = measured({}, names=["n::f<int>(T1)"], asked=Selection((2,), symbols=asked))
    rows = kanalyze.joined(base, ncu).filter(pl.col("ncu_count").is_not_null())
    assert rows["ncu_match"].to_list() == [expected]
    if expected == "exact":
        assert (rows["name"][0], rows["launch_event_id"][0]) == (LONG[0], 3)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "exact", "every"),
    [
        *(("add", 1, 1), ("square", 5, 5), ("gelu", 5, 5), ("launch_bound_plain", 5, 5), ("streams", 1, 1)),
        *(("cdist", 5, 5), ("mlp_train", 5, 5), ("launch_bound_graph", 4, 5)),
    ],
)
def test_samples(name, exact, every):
    """What is not exact is launched by two threads, or as here by graphs."""
    found = real_capture(SAMPLES / name)
    rows = kanalyze.joined(*found).filter(pl.col("ncu_count").is_not_null())
    assert (rows.filter(ncu_match="exact").height, rows.height) == (exact, every)
    sure = rows.filter(ncu_match="exact")
    launches = found[0].kind("kernel").join(found[0].kernel_config, on="event_id")
    own = sure.join(launches, left_on="launch_event_id", right_on="event_id")
    assert own.height == exact
    assert (own["registers_per_thread_right"] == own["registers_per_thread"]).all()
    assert (own["dur_ns"] == own["launch_ns"]).all()


def test_a_lambda_of_one_file_has_one_name():
    nsys = "s<std::pair<int, int> n::<unnamed>::u<long>(const A &)::[lambda(long) (instance 1)]>(T1)"
    torch = "_INTERNAL_69efeb29_9_Unique_cu_285fecc2::n::(anonymous namespace)::u<long>(A const&)::{lambda(long)#1}"
    assert normalised(nsys) == normalised(f"s<{torch}>({torch})")


NSYS = ["void n::k<(int)1>(T1)", "void n::k<(int)2>(T1)", "j(const int *)", "j(float)", "m<(bool)1>(T9)", "m"]
TORCH = ["void n::k<1>(T1)", "void n::k<2>(T1)", "j(int const*)", "j(float)", "m<true>(int)", "m", "void k<1>(T1)"]


def groups(launches):
    """The groups of launches (name, grid, device), numbered as they first come."""
    rows = [
        {
            "group": number,
            "name": name,
            "same_name": normalised(name),
            "loose_name": normalised(name, parameters=False),
            "device": device,
            **dict.fromkeys(SHAPE, 1),
            "grid_x": grid,
            "count": count,
        }
        for number, ((name, grid, device), count) in enumerate(Counter(launches).items())
    ]
    types = {"name": pl.String, "same_name": pl.String, "loose_name": pl.String}
    return pl.DataFrame(rows, schema={key: types.get(key, pl.Int64) for key in COLUMNS})


COLUMNS = ("group", "name", "same_name", "loose_name", "device", *SHAPE, "count")


def told(launches, others, *, whole=True):
    """The pairs as (launch of the one, launch of the other): quality."""
    left, right = [list(Counter(one)) for one in (launches, others)]
    pairs = matched(groups(launches), groups(others), whole=whole, one_gpu=one_gpu(launches, others))
    return {(left[a], right[b]): match for a, b, match in pairs.iter_rows()}


def one_gpu(launches, others):
    return len({one[2] for one in launches}) == 1 == len({one[2] for one in others})


def only(rows, key):
    """The one of `rows` with each key, where there is but one."""
    counts = Counter(map(key, rows))
    return {key(row): row for row in rows if counts[key(row)] == 1}


def model(launches, others, *, whole):
    """What :func:`matched` is to find, one rule after the other."""
    left, right, found = Counter(launches), Counter(others), {}

    def device(row):  # a report of one GPU does not say which
        return 0 if one_gpu(left, right) else row[2]

    def pair(key, quality, but=lambda _: False):
        free = [[row for row in rows if row not in taken] for rows, taken in zip((left, right), sides(), strict=True)]
        ours, theirs = (only(rows, key) for rows in free)
        for one in ours.keys() & theirs.keys():
            if not but(ours[one]):
                found[ours[one], theirs[one]] = quality

    def sides():
        return {a for a, _ in found}, {b for _, b in found}

    ours, theirs = (only(rows, lambda row: (normalised(row[0]), row[1], device(row))) for rows in (left, right))
    both = ours.keys() & theirs.keys()
    equal = {key for key in both if left[ours[key]] == right[theirs[key]]}
    every = whole is None and len(equal) == len(left) == len(right)
    found |= {(ours[key], theirs[key]): "exact" if key in equal and (whole or every) else "shape" for key in both}
    pair(lambda row: (normalised(row[0]), device(row)), "name")
    loose = [(normalised(a[0], parameters=False), a[1], device(a)) for a, _ in found]
    pair(
        lambda row: (normalised(row[0], parameters=False), row[1], device(row)),
        "name",
        lambda row: (normalised(row[0], parameters=False), row[1], device(row)) in loose,
    )
    rest = [row for row in right if row not in sides()[1]]
    near = [(a, b) for a, b in product(left, rest) if a[1] == b[1] and device(a) == device(b) and shortened(b[0], a[0])]
    ours, theirs = Counter(a for a, _ in near), Counter(b for _, b in near)
    taken = sides()[0]
    found |= {(a, b): "name" for a, b in near if ours[a] == theirs[b] == 1 and a not in taken}
    return found


def launched(names):
    return st.lists(st.tuples(st.sampled_from(names), st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=12)


@given(launched(NSYS), launched(TORCH), st.sampled_from([True, False, None]))
def test_pairs_are_those_of_the_model(launches, others, whole):
    assert told(launches, others, whole=whole) == model(launches, others, whole=whole)


def of_gpus(*numbers, tool="nsys"):
    events = [kernel(n, n + 1, device=n, process=1 + n, block=(32, 1, 1)) for n in numbers]
    return report(events, meta={"tool": tool})


@pytest.mark.parametrize("tool", ["nsys", "torch.profiler"])
@pytest.mark.parametrize("where", [{"process": 1}, {"process": 2}, {"window": "1ns..2ns"}, {"device": 0}])
def test_a_part_of_a_report_has_not_every_launch(tool, where):
    """ncu measured one launch, of two."""
    one = of_gpus(0, 1, tool=tool).narrow(**where)
    assert "exact" not in same_kernels(one, measured({}, block=(32, 1, 1)))["match"].to_list()


LOST = call("cudaLaunchKernel", 0, 1, correlation=9)


@pytest.mark.parametrize("more", [[graph(5, 6, correlation=9), LOST], [LOST]])
def test_a_report_that_lost_launches_has_not_every_one(more):
    """Nodes of a graph that were not recorded each by itself, too."""
    own = [kernel(0, 1, block=(32, 1, 1))]
    ncu = measured({}, block=(32, 1, 1))
    for events, expected in ((own, "exact"), ([*own, *more], "shape")):
        made = report(events, meta={"tool": "nsys"})
        assert same_kernels(made, ncu)["match"].to_list() == [expected]


def test_two_recordings_of_the_same_launches_are_sure_whatever_their_part():
    nsys, torch = of_gpus(0), of_gpus(0, tool="torch.profiler")
    part = replace(nsys, meta=replace(nsys.meta, partial=True))
    assert same_kernels(part, torch)["match"].to_list() == ["exact"]
    assert same_kernels(part, measured({}, block=(32, 1, 1)))["match"].to_list() == ["shape"]
