"""Series of launches in a window, of which only the launches near it are looked at."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.launches._graph_candidates import launch_series
from kanalyze.window import Window
from support.command import REPORTS


@pytest.mark.parametrize("name", ["torch", "graph_node", "graph_graph", "two_gpus", "two_processes", "add_um"])
@pytest.mark.parametrize("part", [(0.0, 0.4), (0.3, 0.6), (0.55, 1.0)])
@pytest.mark.one_in(4)
def test_a_window_tells_of_its_launches_what_the_whole_recording_does(name, part):
    report = kanalyze.read(REPORTS / f"{name}.sqlite")
    start, end = exclusive_operations(report).select(pl.col("start").min(), pl.col("end").max()).row(0)
    sides = (start + round((end - start) * share) for share in part)
    view = report.narrow(window=Window(*sides))
    own = launch_series(view)
    whole = launch_series(report).join(exclusive_operations(view).select("row"), on="row", how="semi")
    assert own.get_column("row").sort().to_list() == whole.get_column("row").sort().to_list()
    both = own.join(whole, on="row", suffix="_whole")
    assert both.get_column("first").to_list() == both.get_column("first_whole").to_list()
    assert both.get_column("code").to_list() == both.get_column("code_whole").to_list()
    goes_on = pl.col("stretch") == pl.col("stretch").shift(1)
    after = own.filter(goes_on).select("row", "apart").join(whole.select("row", there="apart"), on="row")
    assert after.get_column("apart").to_list() == after.get_column("there").to_list()
