"""What is no file where one is expected, and columns of types that no tool writes: told in words, and never waited for.

Every part of a report can be a pipe, a folder, a link to itself or to nothing.
"""

import os
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest

import kanalyze
from support.command import REPORTS, SAMPLES, refused, run

PARQUET = REPORTS / "nvtx.parquetdir"
KERNEL, RUNTIME, STRINGS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"

#: What can lie where a file is expected, how it is made, and what is said of it.
ODD = {
    "a folder": (lambda path: path.mkdir(), "it is a folder"),
    "a pipe": (os.mkfifo, "it is a pipe or a device"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "No such file or directory"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a pipe or a device"),
    "a link to a folder": (lambda path: path.symlink_to("."), "it is a folder"),
}

odd = pytest.mark.parametrize(("make", "found"), ODD.values(), ids=ODD)


def in_place_of(file, make):
    file.unlink(missing_ok=True)
    make(file)


def told(ran, file, found):
    message, remedy = refused(ran)
    assert message == f"{file}: cannot be read ({found})."
    assert remedy.endswith("[report-unreadable]")


def capture(folder, *names):
    """A capture with some of the files of a real one."""
    folder.mkdir()
    for name in ("manifest.json", *names):
        shutil.copyfile(SAMPLES / "cdist" / name, folder / name)
    return folder


@odd
@pytest.mark.parametrize(
    ("name", "line"),
    [
        *(("nsys.sqlite", line) for line in ("summarize", "show kernels", "show tree", "verify")),
        *(("torch.json.gz", line) for line in ("summarize", "show kernels", "show tree")),
        *(("ncu.details.csv", "show counters"), ("compiled.json", "show compiled")),
    ],
)
def test_a_file_of_a_capture_that_is_no_file(tmp_path, name, line, make, found):
    path = capture(tmp_path / "capture", *["nsys.sqlite"] * (name == "compiled.json"))
    in_place_of(path / name, make)
    told(run(*line.split(), path), path / name, found)


@odd
def test_a_manifest_that_is_no_file_is_none(tmp_path, make, found):
    del found
    path = capture(tmp_path / "capture", "ncu.details.csv")
    in_place_of(path / "manifest.json", make)
    assert run("summarize", path).status == 0  # it is a folder with pages of ncu then


@pytest.mark.slow
def test_a_manifest_and_compiled_kernels_nested_too_deep(tmp_path):
    path = capture(tmp_path / "capture", "nsys.sqlite")
    for name in ("manifest.json", "compiled.json"):
        (path / name).write_text("[" * 100_000)
    assert run("summarize", path).status == 0
    message, _ = refused(run("show", "compiled", path))
    assert message.startswith(f"{path / 'compiled.json'}: damaged at the rows of kernels")


@odd
@pytest.mark.parametrize("table", [KERNEL, STRINGS, "TARGET_INFO_GPU", "META_DATA_EXPORT"])
@pytest.mark.one_in(5)
def test_a_table_of_a_folder_that_is_no_file_is_not_as_good_as_absent(tmp_path, table, make, found):
    path = shutil.copytree(PARQUET, tmp_path / "report")
    in_place_of(path / f"{table}.parquet", make)
    told(run("summarize", path), path / f"{table}.parquet", found)


@pytest.mark.one_in(5)
@odd
@pytest.mark.parametrize("name", ["r.sqlite", "r.json", "r.json.gz", "r.ncu-rep", "r.nsys-rep", "r.csv", "r.parquet"])
@pytest.mark.parametrize(
    "command", [("summarize",), ("show", "kernels"), ("verify",), ("show", "source")], ids=" ".join
)
def test_no_report_at_all(tmp_path, command, name, make, found):
    del found
    make(tmp_path / name)
    more = ("1",) if command == ("show", "source") else ()
    message, remedy = refused(run(*command, tmp_path / name, *more))
    assert message.startswith(str(tmp_path / name))
    assert remedy.endswith(("[unknown-format]", "[report-not-found]", "[report-unreadable]"))


@pytest.mark.parametrize(
    "command", [("summarize",), ("show", "kernels"), ("show", "tree"), ("verify",), ("show", "roofline")]
)
@pytest.mark.parametrize("name", ["x" * 300, "y/" * 3000, "caf\udce9.sqlite"], ids=["long", "deep", "no UTF-8"])
def test_a_name_that_no_file_can_have(tmp_path, command, name):
    message, remedy = refused(run(*command, f"{tmp_path}/{name}"))
    assert message
    assert remedy.endswith(("[report-not-found]", "[report-unreadable]"))


def test_a_name_that_cannot_be_written_and_a_file_that_went_away_since_it_was_opened(tmp_path):
    with pytest.raises(kanalyze.KanalyzeError, match="no file has such a name"):
        kanalyze.read("\ud800.sqlite")
    path = shutil.copytree(PARQUET, tmp_path / "report")
    report = kanalyze.read(path)
    shutil.rmtree(path)
    with pytest.raises(kanalyze.KanalyzeError, match="cannot be read"):
        report.kind("kernel")


#: Values of types that nsys does not write, which make a wrong figure if they are taken for whole numbers.
TYPES = {
    "struct": {"a": 1}, "list": [1, 2], "decimal": Decimal("1.5"),
    "time of day": datetime(2026, 1, 1, tzinfo=UTC).time(), "date": datetime(2026, 1, 1, tzinfo=UTC).date(),
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC), "duration": timedelta(seconds=1), "binary": b"1", "text": "1",
    "fraction": 1.5, "not a number": float("nan"),
}  # fmt: skip


@pytest.mark.one_in(10)
@pytest.mark.parametrize("value", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *((KERNEL, "start"), (KERNEL, "end"), (KERNEL, "gridX"), (RUNTIME, "nameId"), ("NVTX_EVENTS", "end")),
        *(("TARGET_INFO_GPU", "smCount"), ("ANALYSIS_DETAILS", "duration"), (STRINGS, "id"), (STRINGS, "value")),
    ],
)
def test_a_column_that_holds_something_else(tmp_path, table, column, value):
    path = shutil.copytree(PARQUET, tmp_path / "report")
    frame = pl.read_parquet(path / f"{table}.parquet")
    other = 1 if (column, value) == ("value", "1") else value  # a text is one there
    frame.with_columns(pl.Series(column, [other] * frame.height)).write_parquet(path / f"{table}.parquet")
    message, remedy = refused(run("summarize", path))
    assert message == f"{path}: damaged at table {table}: a value is not of its column's type."
    assert remedy.endswith("[report-damaged]")


def test_whole_numbers_and_texts_of_other_types_are_what_they_are(tmp_path):
    path = shutil.copytree(PARQUET, tmp_path / "report")
    changes = {
        KERNEL: pl.col("start", "gridX").cast(pl.Float64),
        RUNTIME: pl.col("correlationId").cast(pl.Int32),
        STRINGS: pl.col("value").cast(pl.Categorical),
    }
    for table, change in changes.items():
        file = path / f"{table}.parquet"
        pl.read_parquet(file).with_columns(change).write_parquet(file)
    assert run("show", "launches", path).text == run("show", "launches", PARQUET).text


@pytest.mark.parametrize("first", ["1", "1.5", '"x"', "null", "[1]", '{"External id":7}'])
@pytest.mark.one_in(4)
def test_arguments_that_stand_twice_are_the_last(tmp_path, first):
    args = '{"External id":1,"Input Dims":[[1]],"Sequence number":3}'
    event = f'{{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":1,"dur":2,"args":{first},"args":{args}}}'
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents":[{event}]}}')
    detail = kanalyze.read(path).table("op_detail")
    assert detail.select("external_id", "sequence_number", "input_shapes").rows() == [(1, 3, "[[1]]")]
    for command in (("summarize",), ("show", "tree")):
        assert run(*command, path).status == 0
