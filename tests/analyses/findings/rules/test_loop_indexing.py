"""Loops that index a tensor element by element."""

import pytest

from kanalyze.analyses.findings.rules.host_computes import loop_indexing
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report

LAUNCH = "cudaLaunchKernel_v7000"
PASS = ("aten::select", "aten::copy_")


def loop(passes=12, names=PASS, *, at=0, last=()):
    """Passes of 10 each: operators of 2 in a row, with one inside of the first; a kernel after them."""
    events = []
    for number in range(passes):
        start = at + 10 * number
        events += [host("op", name, start + 2 * place, start + 2 * place + 2) for place, name in enumerate(names)]
        events.append(host("op", "aten::as_strided", start, start + 1))
    end = at + 10 * passes
    events += [host("op", name, end + 11 + place, end + 12 + place) for place, name in enumerate(last)]
    return [
        *events,
        call(LAUNCH, end + 1, end + 10, correlation=at + 1),
        kernel(end + 10, end + 20, correlation=at + 1),
    ]


def found(*events, window=None):
    window = window or Window(0, 140)
    return loop_indexing(report([call("cudaEventQuery", 0, 0), *events]).narrow(window=window))


def test_the_same_operators_over_and_over():
    (one,) = found(*loop(), nvtx("fill", 0, 130), window=Window(0, 140, count=1, each="step"))
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("loop-indexing", 0, 114, "tree")
    assert one.text == (
        "A tensor is indexed element by element in 1 loop a step, 12 passes in all, up to 12 in a row of aten::select "
        "→ aten::copy_ in fill: GPU 0 idles in them for 114 ns a step."
    )
    assert one.where == "fill"


@pytest.mark.parametrize(
    "names", [("aten::select", "aten::select", "aten::copy_"), ("aten::select", "aten::mul", "aten::add_")]
)
def test_other_passes(names):
    (one,) = found(*loop(names=names))
    assert f"up to 12 in a row of {' → '.join(names)}:" in one.text


def test_what_follows_the_last_pass_is_none_of_it_if_it_is_long():
    (one,) = found(*loop(last=["aten::sum"] * 5))
    assert "11 passes in all" in one.text


def test_a_loop_may_have_branches():
    """Each third pass does something else, too."""
    events = [
        event
        for number in range(12)
        for event in loop(1, PASS if number % 3 else ("aten::select", "aten::add_"), at=40 * number)[:-2]
    ]
    (one,) = found(*events, *loop(1, at=480), window=Window(0, 480))
    assert "13 passes in all, up to 13 in a row of aten::select → aten::copy_:" in one.text


def test_getting_samples_from_a_loader_is_none():
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert found(*loop(), nvtx(name, 0, 125)) == []
    assert len(found(*loop(), nvtx(name, -5, 0))) == 1


@pytest.mark.parametrize(
    "events",
    [
        loop(9),
        loop(names=("aten::mul", "aten::add_")),
        loop(names=("aten::select", *(f"aten::{name}" for name in "abcd"))[:1] + ("aten::a",) * 6),
        [event for number in range(12) for event in loop(1, (*PASS, f"aten::f{number}"), at=40 * number)],
    ],
)
def test_what_is_no_such_loop(events):
    assert found(*events, window=Window(0, 480)) == []


def test_a_loop_beside_which_the_gpu_works_costs_nothing():
    events = [*loop(), call(LAUNCH, 0, 0, correlation=99), kernel(0, 140, stream=9, correlation=99)]
    assert found(*events) == []
