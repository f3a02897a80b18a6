"""What the Python workloads share: checks that cannot be fooled, arguments, samples and clocks."""

import argparse
import math
from itertools import pairwise

import pytest

from support.kernel_files import NEEDS_TORCH, load

torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
common = load("_common")
CPU = torch.device("cpu")


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (tensor(1, 2, 3), tensor(1, 2, 3), 0.0),
        (tensor(1, 2, 3), tensor(1, 4.5, 2), 2.5),
        (tensor(1, -2), tensor(1, 2), 4.0),
        (tensor(1, 2), tensor(1, 2, 3), math.inf),
        (tensor(1, 2), tensor(1, 2)[:, None], math.inf),
        (tensor(math.inf), tensor(1), math.inf),
        (tensor(), tensor(), 0.0),
    ],
)
def test_max_error(got, want, error):
    assert common.max_error(got, want) == error


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (tensor(1, math.nan, 3), tensor(1, 2, 3)),
        (tensor(1, 2, 3), tensor(1, math.nan, 3)),
        (tensor(9, math.nan), tensor(1, 2)),
        (tensor(math.inf), tensor(math.inf)),
    ],
)
def test_what_is_no_number_is_an_error(got, want):
    assert math.isnan(common.max_error(got, want))


def test_float32_is_compared_with_a_float64_reference_without_rounding_it():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert common.max_error(third.float(), third) == pytest.approx(9.9e-9, rel=0.01)


WITH_NAN = [("a", 1.0, 2.0, 0.0), ("b", math.nan, 2.0, 9.0)]
WITHIN = [("a", 1.0, 1.5, 0.25), ("b", 2.0, 2.0, 0.0)]


@pytest.mark.parametrize(
    ("compared", "line", "status"),
    [
        ([("a", 1.0, 1.0, 0.0), ("b", 2.0, 2.25, 0.5)], "check: ok max_error=0.25", 0),
        ([("a", 1.0, 1.0, 0.0)], "check: ok max_error=0", 0),
        ([("a", 1.0, 1.5, 0.5)], "check: ok max_error=0.5", 0),
        (WITHIN, "check: FAILED max_error=0.5 (a is 0.5 off, 0.25 is allowed)", 1),
        (WITH_NAN, "check: FAILED max_error=nan (a is 1 off, 0 is allowed; b is nan off, 9 is allowed)", 1),
        ([("a", 1.0, 1.0, math.nan)], "check: FAILED max_error=0 (a is 0 off, nan is allowed)", 1),
        ([], "check: FAILED max_error=nan (nothing was compared)", 1),
    ],
)
def test_the_check_line(compared, line, status, capsys):
    check = common.Check()
    for name, got, want, budget in compared:
        check.compare(name, tensor(got), tensor(want), budget)
    assert check.finish() == status
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(("text", "values"), [("7", [7]), ("1,20,300", [1, 20, 300]), (" 5, 6", [5, 6])])
def test_several(text, values):
    assert common.several(text) == values


@pytest.mark.parametrize(
    ("text", "why"),
    [*((text, "is no list such as 512,1024") for text in ("", "1,", "1;2", "1.5", "x")), ("0", "0 is less than 1")],
)
def test_several_refuses_what_is_no_list_of_counts(text, why):
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        common.several(text)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 128, 129, 1000, 8192])
def test_a_sample_has_the_first_row_and_the_last_and_is_small(count):
    rows = common.sampled(torch.arange(count)[:, None])[:, 0].tolist()
    assert (rows[0], rows[-1]) == (0, count - 1)
    assert len(rows) <= 129
    assert max(later - earlier for earlier, later in pairwise(rows)) <= max(1, count // 64)


def test_phases_are_ranges_of_the_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        common.median_ms(lambda: torch.ones(3), CPU, steps=4, warmups=2)
    counts = {event.key: event.count for event in profiler.key_averages()}
    found = {name: counts[name] for name in ("warm-up", "timed", "step", "aten::ones")}
    assert found == {"warm-up": 1, "timed": 1, "step": 4, "aten::ones": 6}


def test_a_row_of_results(capsys):
    common.report("name", 2.0, size_bytes=6_000_000, operations=8_000_000_000)
    common.report("name", 0.0, size_bytes=1)
    assert capsys.readouterr().out.splitlines() == [
        "name                            2.0000 ms       3.0 GB/s    4000.0 GFLOP/s",
        "name                            0.0000 ms",
    ]
