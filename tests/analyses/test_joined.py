"""One kernel, three tools: what the table says of reports made by hand, and of captures whose truth is known."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze.errors import CannotTellError
from kanalyze.readers.capture_reports import every_report
from support.build import call, kernel, report
from support.command import SAMPLES, run
from support.counters import measured

SHAPE = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
SPEED = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
RULE = (0, None, "Slow", "optimization", "It is slow.", "global", 0.5)

CAPTURES = ("add", "add_parallel", "cdist", "gelu", "launch_bound_graph", "mlp_train", "square", "streams")


def of_tool(made, tool):
    return replace(made, meta=replace(made.meta, tool=tool, path=Path(f"of {tool}")))


def timed(*events, tool="nsys"):
    return of_tool(report([call("cudaLaunchKernel", 0, 1, correlation=1), *events]), tool)


def test_time_and_counters_of_one_kernel_stand_in_one_row():
    nsys = timed(kernel(0, 60, name="void k<(int)1>(T1)"), kernel(60, 80, name="void k<(int)1>(T1)"), kernel(90, 100))
    ncu = measured({SPEED: 25.0}, names=["void k<1>(T1)"], rules=[RULE], block=(32, 1, 1))
    (row, other) = kanalyze.joined(nsys, ncu).to_dicts()
    assert (row["name"], row["count"], row["total_ns"]) == ("void k<(int)1>(T1)", 2, 80)
    assert (row["window_share"], row["ncu_match"], row["compute_share"]) == (0.8, "shape", 0.25)
    assert (row["best_rule"], row["gain_share"], row["gain_ns"]) == ("Slow", 0.4, 40.0)
    assert (other["name"], other["ncu_match"], other["event_id"], other["torch_match"]) == ("k", "none", None, None)


def test_a_kernel_that_only_ncu_saw_is_left_over():
    ncu = measured({}, names=["other"], block=(32, 1, 1))
    rows = kanalyze.joined(timed(kernel(0, 100)), ncu).select("name", "count", "ncu_count", "ncu_match").rows()
    assert rows == [("k", 1, None, "none"), ("other", None, 1, "none")]


def test_advice_is_ranked_by_what_the_program_gains():
    nsys = timed(kernel(0, 10, name="small"), kernel(10, 100, name="large"))
    rules = [(0, None, "A", "optimization", "a", "global", 0.9), (1, None, "B", "optimization", "b", "global", 0.2),
             (1, None, "C", "optimization", "c", "local", 0.9)]  # fmt: skip
    ncu = measured({}, {}, names=["small", "large"], rules=rules, block=(32, 1, 1))
    found = kanalyze.gains(nsys, ncu).filter(source="ncu").select("rule", "gain_share").rows()
    assert found == [("B", pytest.approx(0.18)), ("A", pytest.approx(0.09)), ("C", None)]


def test_nsys_gives_the_time_whatever_comes_first():
    nsys, torch = timed(kernel(0, 10)), timed(kernel(0, 12), tool="torch.profiler")
    (row,) = kanalyze.joined(torch, nsys).to_dicts()
    assert (row["time_from"], row["total_ns"], row["torch_total_ns"], row["torch_match"]) == ("nsys", 10, 12, "exact")


def test_a_window_is_of_the_report_that_gives_the_time():
    nsys = timed(kernel(0, 10), kernel(20, 40, name="j"))
    ncu = measured({}, {}, names=["k", "j"], block=(32, 1, 1))
    rows = kanalyze.joined(nsys, ncu, window="15ns..40ns").select("name", "count", "ncu_match").rows()
    assert rows == [("j", 1, "shape"), ("k", None, "none")]


def test_two_reports_of_one_tool_are_refused():
    with pytest.raises(CannotTellError, match="not the only report of nsys"):
        kanalyze.joined(timed(kernel(0, 1)), timed(kernel(0, 1)))


def test_counters_alone_have_no_time():
    with pytest.raises(CannotTellError, match="no report gives the time"):
        kanalyze.joined(measured({}))


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request):
    return every_report(SAMPLES / request.param)


def test_times_are_those_of_the_report_and_each_launch_counts_once(capture):
    rows, base = kanalyze.joined(*capture), capture[0]
    kernels = kanalyze.kernels(base)
    assert [rows[name].sum() for name in ("count", "total_ns", "exclusive_ns")] == [
        kernels[name].sum() for name in ("count", "total_ns", "exclusive_ns")
    ]
    ncu = next(one for one in capture if one.meta.tool == "ncu")
    assert rows["ncu_count"].sum() == ncu.kind("kernel").height


def test_every_kernel_that_ncu_measured_is_found_in_its_shape(capture):
    """All were measured in the same program; nobody launches a name in shapes that only one tool sees."""
    rows = kanalyze.joined(*capture).filter(pl.col("ncu_count").is_not_null())
    assert rows["count"].null_count() == 0
    ncu = next(one for one in capture if one.meta.tool == "ncu")
    shapes = ncu.kernel_config.select("event_id", *SHAPE)
    assert rows.join(shapes, on=["event_id", *SHAPE]).height == rows.height


def test_registers_confirm_every_match(capture):
    """Registers take no part in matching, and a kernel compiled otherwise would have others."""
    rows = kanalyze.joined(*capture).filter(pl.col("ncu_count").is_not_null())
    kernels = capture[0].kind("kernel").join(capture[0].kernel_config, on="event_id")
    config = kernels.select(pl.col("name").cast(pl.String), *SHAPE, own="registers_per_thread").unique()
    both = rows.join(config, on=["name", *SHAPE])
    assert both.height == rows.height
    assert (both["own"] == both["registers_per_thread"]).all()


@pytest.mark.parametrize("name", ["cdist", "launch_bound_graph", "square", "streams"])
def test_torch_and_nsys_saw_the_same_launches(name):
    rows = kanalyze.joined(*every_report(SAMPLES / name))
    assert rows["torch_match"].unique().to_list() == ["exact"]
    assert (rows["count"] == rows["torch_count"]).all()


def test_operators_of_a_trace_come_with_its_kernels():
    rows = kanalyze.joined(*every_report(SAMPLES / "cdist"))
    assert rows["operator"][0] == "aten::_cdist_forward"
    assert rows["path"][0] == "aten::cdist → aten::_cdist_forward"


def test_summarize_puts_a_capture_on_one_page():
    ran = run("summarize", SAMPLES / "cdist", columns=120)
    assert (ran.status, ran.error) == (0, "")
    assert "with cdist (ncu)" in ran.text
    assert "left over: 17 rows that ncu did not see" in ran.text
    assert ran.text.count("\nKERNELS ") == 1


def test_reports_of_different_tools_given_together_are_the_same_page():
    folder = SAMPLES / "square"
    files = [folder / name for name in ("nsys.sqlite", "torch.json.gz", "ncu.details.csv")]
    ran = run("summarize", *files, "--format", "json")
    assert '"joined_with"' in ran.text
    shown = run("show", "joined", *files, "--format", "csv")
    assert len(shown.lines) == 1 + kanalyze.joined(*map(kanalyze.read, files)).height


def test_a_table_of_one_report_is_not_made_of_several():
    ran = run("show", "kernels", SAMPLES / "add/nsys.sqlite", SAMPLES / "add/ncu.raw.csv")
    assert ran.status == 2
    assert "kernels is of one report; `kanalyze show joined` puts several together." in ran.error
