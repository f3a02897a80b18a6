"""CPU samples as files, which are written part by part: with the rows of the table, in order, or made whole."""

import json
import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyarrow import feather

import kanalyze
from kanalyze.readers.nsys import samples
from kanalyze.report import Report
from support.command import REPORTS, run

READ = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": lambda path: pl.from_arrow(feather.read_table(path))}


@pytest.fixture(params=["as written", "shuffled"])
def report(request, tmp_path, monkeypatch):
    """Samples in parts of 13, those of nsys or the same in another order."""
    path = tmp_path / "sampled.sqlite"
    shutil.copyfile(REPORTS / "sampled_host.sqlite", path)
    if request.param == "shuffled":
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE mixed AS SELECT * FROM COMPOSITE_EVENTS ORDER BY id * 7919 % 1009")
            database.execute("DELETE FROM COMPOSITE_EVENTS")
            database.execute("INSERT INTO COMPOSITE_EVENTS SELECT * FROM mixed ORDER BY rowid")
            database.execute("DROP TABLE mixed")
    whole = samples.Samples.mapped_cpu_samples

    def cut(self, transform):
        rows = whole(self, lambda part: part)
        return pl.concat(transform(rows.slice(at, 13)) for at in range(0, rows.height, 13))

    monkeypatch.setattr(samples.Samples, "mapped_cpu_samples", cut)
    return path


def same(found, path):
    assert_frame_equal(found, kanalyze.read(path).table("cpu_samples"), check_dtypes=False)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_has_the_rows_of_the_table(report, tmp_path, form):
    written = tmp_path / f"out.{form}"
    assert run("show", "cpu_samples", report, "--format", form, "-o", written).status == 0
    same(READ[form](written), report)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("form", READ)
def test_an_export_has_the_rows_of_the_table(report, tmp_path, form):
    assert run("export", report, "--to", form, "--tables", "cpu_samples", "-o", tmp_path / "out").status == 0
    found = READ[form](tmp_path / "out" / f"cpu_samples.{form}")
    same(found, report)
    told = json.loads((tmp_path / "out" / "tables.json").read_text())["tables"]["cpu_samples"]
    assert (told["rows"], [column["name"] for column in told["columns"]]) == (found.height, found.columns)


def test_the_table_is_not_made_where_parts_are_in_order(tmp_path, monkeypatch):
    asked = []
    table = Report.table
    monkeypatch.setattr(Report, "table", lambda self, name: asked.append(name) or table(self, name))
    source, written = REPORTS / "sampled_host.sqlite", tmp_path / "out.csv"
    assert run("show", "cpu_samples", source, "--format", "csv", "-o", written).status == 0
    assert run("show", "cpu_samples", source, "--top", "3").status == 0
    assert "cpu_samples" not in asked
