"""The package as users of Python and notebooks see it: names, help, errors, and what other libraries are given."""

import importlib
import inspect
import sys
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.notebook import NotebookTable
from kanalyze.schema import COLUMNS
from support.command import ADD, ADD_UM, REPORTS, SAMPLES, TORCH

NO_TABLES = (
    *("Comparison", "KanalyzeError", "Overview", "Report", "Summary", "Verdict", "Window"),
    *("compare", "overview", "ranks", "read", "read_all", "reduce", "sql", "summarize", "timeline", "whatif"),
    *("read_requests", "without_profiler"),
)
TABLES = [name for name in kanalyze.__all__ if name not in NO_TABLES]


def test_the_directory_is_the_public_names():
    assert dir(kanalyze) == sorted([*NO_TABLES, *TABLES])
    assert set(TABLES) <= set(catalog.names())


@pytest.fixture
def _with_data(tmp_path, monkeypatch):
    """The folder `kernels` among the package's own, as where it is installed plainly."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "square.cu").write_text("")
    monkeypatch.delitem(sys.modules, "kanalyze.kernels", raising=False)
    monkeypatch.setattr(kanalyze, "__path__", [str(tmp_path), *kanalyze.__path__])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("kanalyze.kernels", None)


@pytest.mark.usefixtures("_with_data")
def test_importing_the_workloads_leaves_the_table_of_their_name():
    data = importlib.import_module("kanalyze.kernels")
    assert any((Path(folder) / "square.cu").exists() for folder in data.__path__)
    assert kanalyze.kernels(kanalyze.read(ADD))["count"].to_list() == [1]


@pytest.mark.parametrize("name", TABLES)
def test_help_of_a_table_lists_its_columns_with_units(name):
    doc = inspect.getdoc(getattr(kanalyze, name))
    assert doc.count(f"{COLUMNS}\n") == 1
    words = " ".join(doc.split())
    for table in (catalog.table(name), *catalog.forms(name)):
        for column in table.columns:
            assert f" {column.name} ({column.dtype.base_type().__name__}" in words
            assert " ".join(column.doc.split()) in words
            assert f"{column.unit}" in words
    assert max(map(len, doc.splitlines())) <= 120


@pytest.mark.parametrize(
    ("path", "where", "told"),
    [
        (TORCH, {}, "of nsys 2025.3.2"),
        (ADD_UM, {"window": "400ms..1.5s", "device": 0}, "of nsys 2025.3.2, window '400ms..1500ms', GPU 0"),
        (SAMPLES / "mlp_train", {"window": "step#3"}, "of nsys 2025.3.2, window 'step#3'"),
        (REPORTS / "torch" / "ddp.json.gz", {}, "of torch.profiler, rank 0 of 2"),
    ],
)
def test_a_report_is_one_readable_line(path, where, told):
    assert repr(kanalyze.read(path).narrow(**where)) == f"<Report '{path}' {told}>"


PATH = r"takes a report, not a path: kanalyze.kernels\(kanalyze.read\('run.nsys-rep'\)\)"


@pytest.mark.parametrize("given", ["run.nsys-rep", Path("run.nsys-rep")])
def test_a_path_in_place_of_a_report_says_what_to_pass(given):
    with pytest.raises(TypeError, match=PATH):
        kanalyze.kernels(given)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_so(name):
    with pytest.raises(TypeError, match=rf"kanalyze.{name} takes (a report|reports), not a path"):
        getattr(kanalyze, name)("run.nsys-rep")
    with pytest.raises(TypeError, match=rf"kanalyze.{name} takes (a report|reports), which .*, not DataFrame"):
        getattr(kanalyze, name)(pl.DataFrame())


@pytest.mark.parametrize("name", ["summarize", "joined", "gains"])
def test_several_reports_are_not_a_list(name):
    reports = kanalyze.read_all(SAMPLES / "cdist")
    with pytest.raises(TypeError, match=rf"one by one, not a list of them: kanalyze.{name}\(\*reports\)"):
        getattr(kanalyze, name)(reports)
    with pytest.raises(TypeError, match="not a path"):
        getattr(kanalyze, name)(reports[0], "run.nsys-rep")


@pytest.mark.slow
def test_integers_stay_integers_in_pandas():
    pd = pytest.importorskip("pandas", reason="comes with `.[pandas]` only")
    table = kanalyze.gaps(kanalyze.read(TORCH))
    frame = table.to_pandas()
    assert table["thread_id"].null_count()
    assert [str(frame[name].dtype) for name in ("dur_ns", "stream", "thread_id")] == ["int64", "Int64", "Int64"]
    for name in ("dur_ns", "stream", "thread_id"):
        assert [None if value is pd.NA else value for value in frame[name]] == table[name].to_list()
    assert list(frame.columns) == table.columns


def test_large_integers_and_truth_values_with_nulls():
    pytest.importorskip("pandas", reason="comes with `.[pandas]` only")
    values = {"at": [(1 << 62) + 1, None], "small": [None, 3], "yes": [None, True], "share": [0.5, None]}
    frame = NotebookTable(values, schema_overrides={"small": pl.UInt32}).to_pandas()
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "UInt32", "boolean", "float64"]
    assert frame["at"][0] == (1 << 62) + 1
    assert frame["at"].isna().tolist() == [False, True]
    assert frame["yes"].isna().tolist() == [True, False]
    assert bool(frame["yes"][1])
    frame.loc[1, "at"] = 7  # nothing of it is read-only
    assert frame["at"].tolist() == [(1 << 62) + 1, 7]
