"""One kernel, three tools: what the table says of reports made by hand, and of captures whose truth is known."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.joining._report_set import different
from kanalyze.analyses.joining.joined import gains
from kanalyze.analyses.page.time_page import summarize_together
from kanalyze.errors import CannotTellError
from kanalyze.readers.capture.reports import every_report
from kanalyze.renderers.page.counters import joint_page
from support.build import call, kernel, launched, nvtx, report, rows_of
from support.command import SAMPLES
from support.counters import measured
from support.real_reports import real_capture

TOOK = "gpu__time_duration.sum"
SPEED = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
RULE = (0, None, "Slow", "optimization", "It is slow.", "global", 0.5)
CAPTURES = ("add", "add_parallel", "cdist", "gelu", "launch_bound_graph", "mlp_train", "square", "streams")


def timed(*events, tool="nsys", path=None):
    events = [call("cudaDeviceSynchronize", 0, 1, correlation=1), *events]
    return report(events, meta={"tool": tool, "path": Path(path or f"of {tool}")})


def test_time_and_counters_of_one_kernel_stand_in_one_row():
    nsys = timed(kernel(0, 60, name="void k<(int)1>(T1)"), kernel(60, 80, name="void k<(int)1>(T1)"), kernel(90, 100))
    ncu = measured({SPEED: 25.0}, names=["void k<1>(T1)"], rules=[RULE], block=(32, 1, 1))
    (row, other) = kanalyze.joined(nsys, ncu).to_dicts()
    assert (row["name"], row["count"], row["total_ns"]) == ("void k<(int)1>(T1)", 2, 80)
    assert (row["window_share"], row["ncu_match"], row["compute_share"]) == (0.8, "shape", 0.25)
    assert (row["best_rule"], row["gain_share"], row["gain_ns"]) == ("Slow", 0.4, 40.0)
    assert (other["name"], other["ncu_match"], other["event_id"], other["torch_match"]) == ("k", "none", None, None)


def test_nsys_gives_the_time_whatever_comes_first():
    nsys, torch = timed(kernel(0, 10)), timed(kernel(0, 12), tool="torch.profiler")
    (row,) = kanalyze.joined(torch, nsys).to_dicts()
    assert (row["time_from"], row["total_ns"], row["torch_total_ns"], row["torch_match"]) == ("nsys", 10, 12, "exact")
    with pytest.raises(CannotTellError, match="no report gives the time"):
        kanalyze.joined(measured({}))


@pytest.mark.slow
def test_a_window_is_of_the_report_that_gives_the_time():
    """The page tells what is outside of it from what only one tool saw."""
    nsys = timed(kernel(0, 10), kernel(20, 40, name="j"))
    ncu = measured({}, {}, {}, names=["k", "j", "other"], block=(32, 1, 1))
    rows = kanalyze.joined(nsys, ncu, window="15ns..40ns").select("name", "count", "ncu_match").rows()
    assert rows == [("j", 1, "shape"), ("k", None, "none"), ("other", None, "none")]

    def left_over(**where):
        (page,) = summarize_together(nsys, ncu, **where)
        return next(one.foot for one in joint_page(page, 9).sections if one.title == "KERNELS")

    assert "1 row that only ncu saw; 1 row of ncu outside of the window" in left_over(window="15ns..40ns")
    assert left_over().startswith("left over: 1 row that only ncu saw")
    assert "outside" not in left_over()


def test_each_report_that_gives_time_has_its_rows_with_the_traces_and_counters_of_its_own_capture():
    """Runs or ranks; what is of no capture is of all of them, and as many traces belong to these in their order."""

    def of(folder, made):
        return replace(made, meta=replace(made.meta, capture=Path(folder), path=Path(folder)))

    first, second = timed(kernel(0, 60)), timed(kernel(0, 80), kernel(80, 100, name="j"), path="second")
    traces = [timed(kernel(0, ns), tool="torch.profiler") for ns in (61, 82)]
    fast, slow = (measured({SPEED: share}, rules=[RULE], block=(32, 1, 1)) for share in (25.0, 50.0))
    rows = kanalyze.joined(first, second, *traces, fast)
    assert rows.columns == ["report", *kanalyze.joined(first).columns]
    columns = ("report", "name", "total_ns", "window_share", "torch_total_ns", "compute_share", "ncu_match")
    assert rows.select(columns).rows() == [
        ("of nsys", "k", 60, 1.0, 61, 0.25, "exact"),
        ("second", "k", 80, 0.8, 82, 0.25, "exact"),
        ("second", "j", 20, 0.2, None, None, "none"),
    ]
    shares = gains(first, second, fast).filter(source="ncu").select("report", "name", "gain_share", "gain_ns").rows()
    assert shares == [("of nsys", "k", 0.5, 30.0), ("second", "k", 0.4, 40.0)]
    rows = kanalyze.joined(of("a", first), of("b", second), of("b", slow), of("a", fast))
    assert rows.select("report", "compute_share").rows() == [("a", 0.25), ("b", 0.5), ("b", None)]


RANKS = ("torch-rank0.json.gz", "torch-rank1.json.gz")


@pytest.mark.slow
def test_what_is_given_twice_counts_once(tmp_path):
    """Files, copies of traces, and runs of ncu that are part of a capture."""
    cdist, square = real_capture(SAMPLES / "cdist"), real_capture(SAMPLES / "square")
    copy = shutil.copy(SAMPLES / "cdist/torch.json.gz", tmp_path / "copy.json.gz")
    again = [(cdist, path) for path in (SAMPLES / "cdist/torch.json.gz", SAMPLES / "cdist/../cdist/nsys.sqlite", copy)]
    again += [(square, SAMPLES / "square" / page) for page in ("ncu.raw.csv", "ncu-2.raw.csv", "ncu-2.details.csv")]
    for capture, path in again:
        once, one = kanalyze.joined(*capture), kanalyze.read(path)
        assert kanalyze.joined(*capture, one).equals(once)
        assert kanalyze.joined(one, *capture).equals(once)
    assert kanalyze.joined(*cdist, *cdist).equals(kanalyze.joined(*cdist))


@pytest.mark.parametrize(
    ("times", "process", "left"),
    [
        # as ncu's page of details prints it, 5.89 us: one launch as far as it is printed
        *(((5888, 5890), None, 1), ((5888, 5888), None, 1), ((1_230_000, 1_234_567), None, 1)),
        *(((5890, 5896), None, 2), ((5887, 5888), None, 2), ((1_230_000, 1_236_000), None, 2), ((950, 951), None, 2)),
        # launches of an unknown process may be those of any
        *(((3000, 3000), process, 1) for process in ((None, 7), (7, None), (7, 7))),
        ((3000, 3000), (7, 8), 2),
    ],
)
def test_launches_of_equal_times_are_the_same_unless_of_two_processes(times, process, left):
    runs = [
        measured({TOOK: took}, {TOOK: 77_000}, process=of, block=(32, 1, 1))
        for took, of in zip(times, process or (None, None), strict=True)
    ]
    assert different(runs) == runs[:left]
    assert len(different(runs[::-1])) == left


def test_measurements_of_several_runs_of_ncu_are_added_up():
    nsys = timed(kernel(0, 60), kernel(60, 100, name="j"))
    of_k = measured({SPEED: 25.0, TOOK: 30.0}, rules=[RULE], block=(32, 1, 1))
    of_j = measured({SPEED: 50.0}, names=["j"], rules=[RULE], block=(32, 1, 1))
    rows = kanalyze.joined(nsys, of_k, of_j).select("name", "compute_share", "event_id", "ncu_count", "best_rule")
    assert rows.rows() == [("k", 0.25, 0, 1, "Slow"), ("j", 0.5, 1, 1, "Slow")]
    assert kanalyze.gains(nsys, of_k, of_j).filter(rule="Slow")["name"].to_list() == ["k", "j"]
    again = measured({SPEED: 25.0, TOOK: 30.0}, block=(32, 1, 1))  # the same one twice
    assert kanalyze.joined(nsys, of_k, of_j, again)["ncu_count"].to_list() == [1, 1]


def test_traces_of_ranks_are_added_up_beside_one_report_of_nsys():
    """All ranks have the same number of process and GPU, each in a container of its own."""
    both = [kernel(0, 10), kernel(10, 30), kernel(40, 45, name="j")]
    ranks = [timed(kernel(0, 10), tool="torch.profiler"),
             timed(kernel(0, 20), kernel(20, 25, name="j"), tool="torch.profiler")]  # fmt: skip
    rows = kanalyze.joined(timed(*both), *ranks).select("name", "torch_match", "torch_count", "torch_total_ns")
    assert rows.rows() == [("k", "exact", 2, 30), ("j", "exact", 1, 5)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "flags", [["--delay=1"], ["--duration=1"], ["--capture-range=cudaProfilerApi"], ["--some-flag-of-the-future"]]
)
def test_counts_prove_nothing_where_the_capture_may_lack_launches(tmp_path, flags):
    """As many launches as ncu measured: others, it may be."""
    folder = tmp_path / "add"
    shutil.copytree(SAMPLES / "add", folder)
    assert kanalyze.joined(*real_capture(SAMPLES / "add"))["ncu_match"].to_list() == ["exact"]
    told = json.loads((folder / "manifest.json").read_text())
    command = next(step["command"] for made in told["passes"] for step in made["steps"] if step["name"] == "nsys")
    command[2:2] = flags
    (step,) = (step for made in told["passes"] for step in made["steps"] if step["name"] == "ncu")
    step["command"][1:1] = ["--replay-mode", "application"]  # which says nothing of launches
    (folder / "manifest.json").write_text(json.dumps(told))
    rows = kanalyze.joined(*every_report(folder)).select("ncu_match", "launch_event_id").rows()
    assert rows == [("shape", None)]


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request):
    return real_capture(SAMPLES / request.param)


@pytest.mark.one_in(4)
def test_a_capture_has_the_times_of_its_report_and_every_kernel_that_ncu_measured(capture):
    """Registers take no part in matching, and a kernel compiled otherwise would have others."""
    rows, base = kanalyze.joined(*capture), capture[0]
    ncu = next(one for one in capture if one.meta.tool == "ncu")
    sums = [*("count", "total_ns", "exclusive_ns")]
    assert rows.select(pl.col(sums).sum()).equals(kanalyze.kernels(base).select(pl.col(sums).sum()))
    assert rows["ncu_count"].sum() == ncu.kind("kernel").height
    found = rows.filter(pl.col("ncu_count").is_not_null())
    assert found["count"].null_count() == 0
    assert found.join(ncu.kernel_config.select("event_id", *SHAPE), on=["event_id", *SHAPE]).height == found.height
    kernels = base.kind("kernel").join(base.kernel_config, on="event_id")
    config = kernels.select(pl.col("name").cast(pl.String), *SHAPE, own="registers_per_thread").unique()
    both = found.join(config, on=["name", *SHAPE])
    assert both.height == found.height
    assert (both["own"] == both["registers_per_thread"]).all()


# What the program gains by each piece of advice: worked out by hand, and within the roofs on captures.

DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"


def rule(event_id, name, share, scope="global"):
    return (event_id, None, name, "optimization", f"It is {name}.", scope, share)


def rows(*reports, columns=("name", "rule", "window_share", "exclusive_ns", "gain_share", "gain_ns"), **where):
    """What ncu's rules gain; ours speak of counters, of which there are none here."""
    return gains(*reports, **where).filter(source="ncu").select(columns).rows()


def test_every_column_of_a_piece_of_advice():
    """The kernel takes 80 of 100 ns in two launches, a quarter of which could be saved."""
    nsys = timed(kernel(0, 60), kernel(60, 80), kernel(90, 100, name="j"))
    found = gains(nsys, measured({}, rules=[rule(0, "slow", 0.25)], block=(32, 1, 1)))
    assert found.drop(SHAPE).to_dicts() == rows_of(
        "name device event_id ncu_match window_share exclusive_ns gain_share gain_ns source rule scope speedup_share "
        "roof_share possible_share possible_from sentence remedy evidence",
        (
            *("k", 0, 0, "shape", 0.8, 80, pytest.approx(0.2), pytest.approx(20), "ncu", "slow", "global", 0.25),
            *(None, 0.25, "estimate", "It is slow.", None, None),
        ),
    )
    assert found.select(SHAPE).row(0) == (1, 1, 1, 32, 1, 1)


def test_no_more_is_gained_than_the_roof_leaves():
    """At 75 % of the bandwidth of DRAM a quarter of 40 ns is left, whatever the rule hopes for."""
    nsys = timed(kernel(0, 40), kernel(60, 100, name="j"))
    ncu = measured({DRAM: 75}, rules=[rule(0, "slow", 0.9), rule(0, "slower", 0.1)], block=(32, 1, 1))
    columns = ("rule", "speedup_share", "possible_share", "possible_from", "gain_share", "gain_ns")
    assert rows(nsys, ncu, columns=columns) == [
        ("slow", 0.9, 0.25, "roof", pytest.approx(0.1), pytest.approx(10)),
        ("slower", 0.1, 0.1, "estimate", pytest.approx(0.04), pytest.approx(4)),
    ]


def test_advice_that_gains_no_known_time_comes_last_by_the_time_of_its_kernel():
    nsys = timed(kernel(0, 10, name="small"), kernel(10, 100, name="large"))
    rules = [rule(0, "none", None), rule(0, "local", 0.9, "local"), rule(1, "none", None), rule(0, "some", 0.1)]
    rules.append(rule(1, "most", 0.2))
    ncu = measured({}, {}, names=["small", "large"], rules=rules, block=(32, 1, 1))
    assert rows(nsys, ncu, columns=("name", "rule", "exclusive_ns", "gain_share", "gain_ns")) == [
        ("large", "most", 90, pytest.approx(0.18), pytest.approx(18)),
        ("small", "some", 10, pytest.approx(0.01), pytest.approx(1)),
        ("large", "none", 90, None, None),
        ("small", "local", 10, None, None),
        ("small", "none", 10, None, None),
    ]


def test_a_kernel_that_only_ncu_saw_or_that_is_not_in_the_window_has_no_time_to_gain():
    nsys = timed(kernel(0, 20), kernel(50, 100, name="j"))
    rules = [rule(0, "slow", 0.5), rule(1, "slow", 0.5), rule(2, "slow", 0.5)]
    ncu = measured({}, {}, {}, names=["k", "j", "other"], rules=rules, block=(32, 1, 1))
    of_all = [("j", "slow", 0.5, 50, 0.25, 25.0), ("k", "slow", 0.2, 20, 0.1, 10.0)]
    assert rows(nsys, ncu) == [*of_all, ("other", "slow", None, None, None, None)]
    assert rows(nsys, ncu, window="0ns..40ns") == [
        ("k", "slow", 0.5, 20, 0.25, 10.0),
        ("j", "slow", None, None, None, None),
        ("other", "slow", None, None, None, None),
    ]


@pytest.mark.parametrize("name", CAPTURES)
def test_gains_of_captures_stay_within_the_roofs(name):
    reports = real_capture(SAMPLES / name)
    if not {one.meta.tool for one in reports} & {"nsys", "torch.profiler"}:
        pytest.skip("no report gives the time")
    rows = gains(*reports).drop_nulls(["gain_share", "roof_share"])
    assert rows.height
    assert rows.filter(pl.col("gain_share") > pl.col("window_share") * (1 - pl.col("roof_share")) + 1e-9).is_empty()


def test_without_advice_there_are_no_rows_and_without_counters_nothing_can_be_told():
    assert gains(timed(kernel(0, 10)), measured({}, block=(32, 1, 1))).is_empty()
    assert gains(timed(), measured({}, rules=[rule(0, "slow", 0.5)])).get_column("gain_ns").to_list() == [None]
    with pytest.raises(CannotTellError, match="cannot tell gains, because the report has no counters"):
        kanalyze.gains(timed(kernel(0, 10)))


# One operation in several implementations: found by the ranges, measured in their last run.


def implementation(name, at, kernels):
    """A range of that name with a warm-up and two steps that are timed, which launch `kernels` (name, duration)."""
    events = [nvtx(name, at, at + 900), nvtx("warm-up", at, at + 100), nvtx("timed", at + 200, at + 800)]
    starts = [at + 10, at + 310, at + 510]
    events += [nvtx("step", start - 5, start + 100) for start in starts]
    for start in starts:
        for number, (what, duration) in enumerate(kernels):
            first = start + 50 * number
            made = kernel(first + 5, first + 5 + duration, name=what, side={"registers_per_thread": 32})
            events += launched(first, first + 1, made)
    return events


def test_implementations_stand_side_by_side():
    nsys = timed(*implementation("eager", 1000, [("a", 20), ("b", 10)]), *implementation("fused", 3000, [("f", 15)]))
    ncu = measured({"sm__maximum_warps_per_active_cycle_pct": 50.0}, names=["f"], block=(32, 1, 1))
    columns = (
        "variant", "inside", "repeats", "avg_kernel_ns", "slower", "launches", "kernel", "registers", "ncu_match",
    )  # fmt: skip
    found = kanalyze.variants(nsys, ncu)
    expected = [("fused", "timed", 2, 15, 1, 1, "f", 32, "shape"), ("eager", "timed", 2, 30, 2, 2, "a", 32, "none")]
    assert found.select(columns).rows() == expected
    assert found.select("occupancy_share", "measured_share").rows() == [(0.5, 1.0), (None, 0.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("gelu", {"torch": 1, "compile": 1, "triton": 1, "cuda": 1, "manual": 8}),
        ("square", {"mul": 1, "pow": 1, "square": 1}),
    ],
)
def test_workloads_with_variants(name, launches):
    """How many kernels each launches is what the workload itself says."""
    found = kanalyze.variants(*real_capture(SAMPLES / name))
    assert dict(found.select("variant", "launches").iter_rows()) == launches
    assert found["repeats"].unique().to_list() == [10]
    assert found["avg_kernel_ns"].is_sorted()
