"""`kanalyze export`: reports as files of other programs."""

import json

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyarrow import feather, parquet

import kanalyze
from kanalyze import catalog, schema
from support.command import ADD, ADD_UM, REPORTS, SAMPLES, refused, run


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """All tables of a report, as Parquet, with what the command said."""
    folder = tmp_path_factory.mktemp("exported") / "tables"
    ran = run("export", ADD_UM, "--to", "parquet", "-o", folder)
    assert (ran.status, ran.text) == (0, "")
    return folder, ran.error


@pytest.mark.slow
def test_every_table_is_written_or_its_reason(exported):
    folder, said = exported
    contents = json.loads((folder / "tables.json").read_text())
    assert {*contents["tables"]} | {*contents["cannot_tell"]} == {*catalog.names()}
    assert {file.name for file in folder.iterdir()} == {f"{name}.parquet" for name in contents["tables"]} | {
        "tables.json"
    }
    for name, reason in contents["cannot_tell"].items():
        assert f"cannot tell {name}" in reason
        assert name in said
    assert f"{len(contents['tables'])} tables in {folder}" in said


def test_fields_say_unit_and_meaning(exported):
    folder, _ = exported
    for file in folder.glob("*.parquet"):
        found = parquet.read_schema(file)
        assert found.metadata[b"description"].decode() == catalog.table(file.stem).doc
        for field in found:
            assert field.metadata[b"description"], (file.stem, field.name)
            assert field.metadata.get(b"unit", b"").decode() == schema.unit_of(field.name)
    contents = json.loads((folder / "tables.json").read_text())
    columns = {column["name"]: column for column in contents["tables"]["ledger"]["columns"]}
    assert (columns["ns"]["unit"], columns["ns"]["type"], columns["bucket"]["type"]) == ("ns", "Int64", "Enum")


@pytest.mark.slow
def test_arrow_of_several_reports_and_csv_of_windows(tmp_path):
    words = (ADD, REPORTS / "nvtx.sqlite", "--to", "arrow", "--tables", "kernels,ranges")
    ran = run("export", *words, "-o", tmp_path / "a")
    assert ran.status == 0
    found = feather.read_table(tmp_path / "a" / "kernels.arrow")
    assert found.schema.field("report").metadata[b"description"]
    assert pa.types.is_int64(found.schema.field("total_ns").type)
    assert {*found["report"].to_pylist()} == {str(ADD), str(REPORTS / "nvtx.sqlite")}
    assert f"{ADD}: cannot tell ranges" in ran.error
    window = ("--window", "step#*")
    mlp = SAMPLES / "mlp_train" / "nsys.sqlite"
    assert run("export", mlp, "--to", "csv", "--tables", "ledger", *window, "-o", tmp_path / "c").status == 0
    shown = run("show", "ledger", mlp, *window, "--format", "csv")
    assert (tmp_path / "c" / "ledger.csv").read_bytes() == shown.raw


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([ADD, "--to", "csv", "--tables", "kernels,ranges"], "cannot tell ranges"),
        ([ADD, "--to", "csv", "--tables", "kernls"], "Did you mean kernels?"),
        ([ADD, ADD_UM, "--to", "perfetto"], "no report names its rank"),
        ([SAMPLES / "ddp_late", "--window", "+1ms..", "--to", "perfetto"], "written whole"),
        ([ADD, "--to", "perfetto", "--tables", "kernels"], "--tables is for parquet, arrow, csv"),
        ([REPORTS / "ncu" / "add.details.csv", "--to", "perfetto"], "when they ran"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing(tmp_path, words, said):
    ran = run("export", *words, "-o", tmp_path / "x")
    assert (ran.status, said in ran.error) == (2, True)
    assert [*tmp_path.iterdir()] == []


def test_nothing_that_is_there_is_overwritten(tmp_path):
    (tmp_path / "kept").write_text("mine")
    message, _ = refused(run("export", ADD, "--to", "csv", "--tables", "kernels", "-o", tmp_path))
    assert "is not overwritten" in message
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "empty").mkdir()
    assert run("export", ADD, "--to", "csv", "--tables", "kernels", "-o", tmp_path / "empty").status == 0
    assert (tmp_path / "empty" / "kernels.csv").exists()
    message, _ = refused(run("export", ADD, "--to", "csv", "--tables", "kernels", "-o", tmp_path / "no" / "where"))
    assert "cannot be written" in message
    assert "it is the report itself" in refused(run("export", ADD, "--to", "perfetto", "-o", ADD))[0]


@pytest.mark.slow
def test_traces_are_files_and_say_what_is_in_them(tmp_path):
    graphs = REPORTS / "graph_node.sqlite"
    for form in ("perfetto", "speedscope"):
        ran = run("export", graphs, "--to", form, "-o", tmp_path / form)
        assert (ran.status, ran.text) == (0, "")
        assert f"680 events on 13 tracks, in {tmp_path / form}." in ran.error
        assert (tmp_path / form).stat().st_size > 10_000
    ran = run("export", REPORTS / "add_um.sqlite", "--to", "speedscope", "-o", tmp_path / "um")
    assert "1 of them for what overlaps" in ran.error


READ = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": lambda path: pl.from_arrow(feather.read_table(path))}


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("table", ["cpu_samples", "ledger", "kernels", "events", "gaps"])
def test_an_export_has_the_rows_of_the_table(tmp_path, form, table):
    report = REPORTS / "sampled_host.sqlite"
    assert run("export", report, "--to", form, "--tables", table, "-o", tmp_path / "out").status == 0
    found = READ[form](tmp_path / "out" / f"{table}.{form}")
    texts = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    made = catalog.make(kanalyze.read(report), table)
    assert_frame_equal(found.with_columns(texts), made.with_columns(texts), check_dtypes=form != "csv")
    told = json.loads((tmp_path / "out" / "tables.json").read_text())["tables"][table]
    assert (told["rows"], [column["name"] for column in told["columns"]]) == (found.height, found.columns)


def test_a_trace_of_several_windows_is_refused_and_a_page_compares_them(tmp_path):
    words = [REPORTS / "nvtx.sqlite", "--window", "step#*", "-o", tmp_path / "made"]
    ran = run("export", "--to", "perfetto", *words)
    assert ran.status == 2
    assert "a trace is of one window, and these are 20; name one of them, such as step#1." in ran.error
    assert not (tmp_path / "made").exists()
    assert run("html", *words).status == 0
    assert "20 instances of step" in (tmp_path / "made").read_text()
