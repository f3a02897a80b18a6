"""Which kernels of two reports are the same, against a model in plain Python."""

from collections import Counter
from dataclasses import replace
from itertools import product

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.operators._kernel_groups import matched, same_kernels
from kanalyze.decoder.fields import normalised, shortened
from support.build import call, graph, kernel, report
from support.counters import measured

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


K, J = "void n::k<(int)1>(T1)", "j(float)"


def test_counts_that_are_equal_prove_nothing_where_no_report_has_all():
    assert [*told([(K, 1, 0), (J, 1, 0)], [(K, 1, 0)], whole=None).values()] == ["shape"]
    assert [*told([(K, 1, 0)], [(K, 1, 0)], whole=None).values()] == ["exact"]  # both have the same ones
    assert [*told([(K, 1, 0)], [(K, 1, 0)], whole=False).values()] == ["shape"]  # and one of them may lack some


def of_gpus(*numbers, tool="nsys"):
    """A report with one launch of k on each of these GPUs."""
    made = report([kernel(n, n + 1, device=n, process=1 + n, block=(32, 1, 1)) for n in numbers])
    return replace(made, meta=replace(made.meta, tool=tool))


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
        made = report(events)
        made = replace(made, meta=replace(made.meta, tool="nsys"))
        assert same_kernels(made, ncu)["match"].to_list() == [expected]


def test_two_recordings_of_the_same_launches_are_sure_whatever_their_part():
    nsys, torch = of_gpus(0), of_gpus(0, tool="torch.profiler")
    part = replace(nsys, meta=replace(nsys.meta, partial=True))
    assert same_kernels(part, torch)["match"].to_list() == ["exact"]
    assert same_kernels(part, measured({}, block=(32, 1, 1)))["match"].to_list() == ["shape"]
