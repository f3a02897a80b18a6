"""The list of foreign reports, and that its figures are told as they are of the repository's own reports."""

import re
from pathlib import Path

import pytest

import kanalyze
from foreign.figures import figures
from foreign.run import HEAD, LIST, NO_FIGURES, REFUSED, figures_of, rows_of, verdict

ROOT = Path(__file__).parents[2]
OWN = [
    *sorted((ROOT / "sample_reports").glob("*/nsys.sqlite")),
    *sorted((ROOT / "sample_reports").glob("*/torch.json.gz")),
    *(ROOT / "tests/reports" / name for name in ("two_gpus.sqlite", "graph_graph.sqlite", "visible_devices.sqlite")),
]


def test_the_list_names_files_by_what_is_in_them():
    rows = rows_of(LIST)
    assert len(rows) >= 150
    assert len({row["repository"] for row in rows}) >= 30
    assert len({row["sha256"] for row in rows}) == len(rows)
    for row in rows:
        assert tuple(row) == HEAD
        assert re.fullmatch(r"[0-9a-f]{64}", row["sha256"])
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert row["expected"] in {NO_FIGURES, REFUSED} or row["expected"].startswith('{"kernel_count":')


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", OWN, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_plain_sql_and_json_tell_what_kanalyze_tells(path):
    told = figures(path)
    assert told["kernel_ns"] > 0
    assert figures_of(kanalyze.read(path)) == told


def test_a_figure_that_differs_is_wrong():
    result = {"failures": [], "ran": 1, "figures": {"kernel_count": 2, "busy_ns": {"0": 5}}}
    assert verdict('{"kernel_count":2,"busy_ns":{"0":5}}', result) == []
    assert verdict('{"kernel_count":2,"busy_ns":{"0":6}}', result) == ["busy_ns: {'0': 5} instead of {'0': 6}"]
    assert verdict(REFUSED, result) == ["is read, and should be refused"]
    assert verdict(NO_FIGURES, {"failures": ["x"], "ran": 0, "refused": "why"}) == ["x", "refused: why"]
