"""The sample of a large steady part that causes and replays look at."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze import read
from kanalyze.analyses.findings.findings import by_gain
from kanalyze.analyses.iterations import sample
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.iterations.sample import sample_of
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.replay._unprofiled import hosts_of
from kanalyze.renderers.page.overview import overview_page
from support.build import call, kernel, launched, report
from support.command import MLP, TRACE
from support.real_reports import real_report
from support.steps import in_turn, loop, ran

SYNC = "cudaDeviceSynchronize_v3020"


@pytest.fixture(autouse=True)
def of_ten(monkeypatch):
    """Samples of ten iterations of any report."""
    for name, value in {"_LARGE": 1, "_ITERATIONS": 10, "_EVENTS": range(1, 1 << 18), "_FEWEST": 5}.items():
        monkeypatch.setattr(sample, name, value)


def steady_view(whole):
    steady = steady_part(whole)
    return steady, whole.narrow(window=steady.window)


@given(st.lists(st.integers(90, 110), min_size=20, max_size=60))
def test_of_all_stretches_the_first_with_the_mean_of_all_is_the_sample(lengths):
    steady, view = steady_view(report(loop(lengths, gap=0)))
    part, times, which = sample_of(view)
    if steady.number < 20:
        assert (part, times, which) == (view, 1, "")
        return
    starts = [*steady.run.get_column("since_ns"), steady.span[1]]
    mean = (starts[-1] - starts[0]) / steady.number
    first = min(range(steady.number - 9), key=lambda one: (abs(starts[one + 10] - starts[one] - 10 * mean), one))
    window = part.scope.window
    assert (window.start_ns, window.end_ns, window.count) == (starts[first], starts[first + 10], 10)
    assert times == steady.number / 10
    names = steady.run.get_column("window")
    assert which == f"{names[first]} to {names[first + 9]}, 10 of {steady.number}"
    inside = [at for at in view.kind("kernel").get_column("start_ns") if window.start_ns <= at < window.end_ns]
    around = [at for at in view.kind("kernel").get_column("start_ns") if not starts[0] <= at < starts[-1]]
    assert sorted(part.kind("kernel").get_column("start_ns")) == sorted(inside + around)


def test_of_other_windows_there_is_none():
    whole = report(loop([100] * 40, gap=0))
    for part in (whole, whole.narrow(window="step#4"), whole.narrow(window="step#2..step#39")):
        assert sample_of(part) == (part, 1, "")


@pytest.mark.parametrize(("events", "number"), [(range(45, 60), 15), (range(1, 21), 7), (range(1, 3), 5)])
def test_a_sample_has_more_short_iterations_and_fewer_long_ones(events, number, monkeypatch):
    monkeypatch.setattr(sample, "_EVENTS", events)
    _, view = steady_view(report(loop([100] * 60, gap=0)))  # of three events each
    assert sample_of(view).part.scope.window.count == number


def waiting(count):
    """Steps that wait for the device after each kernel."""

    def inside(at, *_):
        kernels = [event for after in (0, 30_000, 60_000) for event in ran(at + after, 5_000, 20_000)]
        return [*kernels, *(call(SYNC, at + after, at + after + 15_000) for after in (8_000, 38_000, 68_000))]

    return steady_view(report(in_turn([100_000] * count, inside)))[1]


def test_of_equal_iterations_a_sample_tells_what_all_of_them_do(monkeypatch):
    of_sample = by_gain(waiting(120))[0]
    monkeypatch.setattr(sample, "_LARGE", 1 << 20)
    of_all = by_gain(waiting(120))[0]
    assert of_sample.rule == of_all.rule == "unneeded-sync"
    for name in ("at_stake_ns", "replayed_ns", "replayed_low_ns", "replayed_high_ns", "unmended_ns"):
        # what waits at the edges is seen less
        assert getattr(of_sample, name) == pytest.approx(getattr(of_all, name), rel=0.1), name


@pytest.mark.parametrize("path", [MLP, TRACE], ids=lambda path: path.name)
def test_of_real_programs_the_page_names_the_sample_and_keeps_its_times(path, monkeypatch):
    monkeypatch.setattr(sample, "_ITERATIONS", 3)
    monkeypatch.setattr(sample, "_FEWEST", 3)
    whole = read(path)  # of a report that others have asked, the sample is known
    page = overview(whole)
    part = sample_of(whole.narrow(window=page.steady.window)).part
    assert hosts_of(part) == hosts_of(whole)
    assert page.steady.number >= 6
    assert page.remarks["findings"].endswith(f"3 of {page.steady.number}")
    texts = [block.text for block in overview_page(page, 5).blocks if block.title == "SAMPLE"]
    assert (
        texts
        == [f"what to do is told of {page.remarks['findings']}, which take as long as all do"][: bool(page.findings)]
    )


def test_calls_that_launched_what_is_left_and_what_reaches_into_the_sample_stay():
    def inside(at, *_):  # the host is a step ahead: the kernel runs in the next one
        return [
            *launched(at + 10, at + 20, kernel(at + 110, at + 180)),
            call("cudaStreamSynchronize", at + 30, at + 95),
        ]

    _, view = steady_view(report(in_turn([100] * 60, inside)))
    part = sample_of(view).part
    assert sample_of(view).which
    calls = set(part.kind("api").get_column("correlation_id").drop_nulls())
    recorded = set(view.kind("api").get_column("correlation_id").drop_nulls())
    assert {*part.kind("kernel").get_column("correlation_id")} & recorded <= calls
    low, high = part.scope.sides
    for kind in ("api", "kernel", "range"):
        every, left = (of.kind(kind).select("event_id", "start_ns", "dur_ns") for of in (view, part))
        within = every.filter(pl.col("start_ns") < high, pl.col("start_ns") + pl.col("dur_ns") > low)
        assert {*within.get_column("event_id")} <= {*left.get_column("event_id")}
        assert left.get_column("event_id").is_in(every.get_column("event_id").implode()).all()


@pytest.mark.parametrize("step", [5, 90])
def test_what_is_paid_once_is_told_once(step, monkeypatch):
    def inside(at, place, _):
        load = [call("cuModuleLoadData", at + 30_000, at + 60_000)] if place == step else []
        return [*ran(at, 5_000, 20_000), *load]

    def loading():
        _, view = steady_view(report(in_turn([100_000] * 120, inside)))
        return [(one.at_stake_ns, one.text) for one in by_gain(view) if one.rule == "module-loading"]

    of_sample = loading()
    monkeypatch.setattr(sample, "_LARGE", 1 << 20)
    assert of_sample == loading() != []


def test_tables_that_are_read_in_parts_stay_so():
    view = steady_view(real_report(MLP))[1]
    part = sample_of(view).part
    counted = part.mapped("cpu_samples", lambda rows: rows.select(pl.len()))
    assert counted.sum().item() == view.table("cpu_samples").height
