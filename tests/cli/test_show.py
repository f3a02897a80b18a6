"""`kanalyze show`: one table in full, for reading and for programs."""

import csv
import io
import json
import re
from functools import cache

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.errors import CannotTellError
from kanalyze.readers.capture.reports import every_report
from kanalyze.renderers.tables.frame import FORMATS, PROSE
from support.command import ADD, REPORTS, SAMPLES, TORCH, refused, report_with, run
from support.exports import only
from support.real_reports import real_report

EVERY = [
    pytest.param(path, marks=[] if path.stem in ("add", "empty") else pytest.mark.slow)
    for path in sorted(REPORTS.glob("*.sqlite"))
]
TWO_GPUS = REPORTS / "two_gpus.sqlite"


@cache
def shown(*arguments, **keys):
    ran = run("show", *arguments, **keys)
    assert (ran.status, ran.error) == (0, "")
    return ran.text


def rows(*arguments):
    return list(csv.DictReader(io.StringIO(shown(*arguments, "--format", "csv"))))


def column(name, *arguments):
    return [row[name] for row in rows(*arguments)]


def message(*arguments):
    return refused(run("show", *arguments))


# Formats


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", catalog.names())
def test_csv_and_json_hold_what_python_gives(name):
    path = report_with(name)
    report, *others = every_report(path) if catalog.table(name).together else [kanalyze.read(path)]
    frame = getattr(kanalyze, name)(report, *others) if name in kanalyze.__all__ else report.table(name)
    assert json.loads(shown(name, path, "--format", "json")) == json.loads(frame.write_json())
    assert rows(name, path) == list(csv.DictReader(io.StringIO(frame.write_csv())))
    assert len(rows(name, path)) == frame.height > 0


@pytest.mark.parametrize("name", ["kernels", "events", "copy_detail"])
def test_parquet_read_back_is_the_table_with_its_types(tmp_path, name):
    report, path = kanalyze.read(TORCH), tmp_path / "table.parquet"
    assert shown(name, TORCH, "--format", "parquet", "-o", path) == ""
    found = pl.read_parquet(path)
    expected = kanalyze.kernels(report) if name == "kernels" else report.table(name)
    assert found.equals(expected, null_equal=True)
    assert found.schema.names() == expected.schema.names()
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


#: What is recorded only where it was asked for, or used, and the kinds of events that tell.
OPTIONAL = {
    "faults": "fault",
    "memory": "memory",
    "ranges": "range",
    "range_gpu": "range",
    "range_kernels": "range",
    "libraries": "library, osrt, range",
    "fusion": "op",
    "gpu_units": "gpu_metrics",
    "ops": "op",
    "op_kernels": "op",
    "steps": "range, op",
    "tree": "op, python",
    "variants": "range",
}


#: The line that says which columns do not fit.
HIDDEN = re.compile(r"(\d+) columns? hidden \(--columns all, or a,b,…\)")

#: What only ncu measures.
COUNTERS = ("advice", "counters", "gains", "hot_lines", "roofline", "stalls")


@pytest.mark.parametrize("name", catalog.names())
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
@pytest.mark.one_in(4)
def test_every_table_can_be_read(name, path):
    ran = run("show", name, path)
    if ran.status == 2:
        told, remedy = refused(ran)
        if name == "compiled":
            assert told == str(CannotTellError.without_capture(name, path))
            return
        if name == "agreement" and "no second report" in told:
            assert told == str(CannotTellError.without_second(name, path))
            return
        if name in COUNTERS:
            assert told == str(CannotTellError.without_counters(name, path))
            return
        assert told == f"{path}: cannot tell {name}, because the report records no events of kind {OPTIONAL[name]}."
        assert remedy.endswith("[cannot-tell]")
    else:
        assert (ran.status, ran.error) == (0, "")
        found = catalog.make(real_report(path), name)
        assert [line for line in ran.lines if len(line) > 80] == []
        lines = ran.lines[: -1 if HIDDEN.match(ran.lines[-1]) else None]
        assert len(lines) == 1 + max(found.height, 1) or {*PROSE} & {*found.columns}
        assert found.height or lines[1] == "(no rows)"
        read_back = csv.DictReader(io.StringIO(FORMATS["csv"](found).decode()))
        assert len([*read_back]) == found.height
        assert read_back.fieldnames == found.columns


# Columns


def test_the_columns_that_fit_are_shown_and_the_others_told():
    every = kanalyze.kernels(kanalyze.read(TORCH)).columns
    for columns in (60, 80, 110, 140, 200):
        head, *lines = shown("kernels", TORCH, columns=columns).splitlines()
        assert [line for line in lines if len(line) > columns] == []
        hidden = HIDDEN.match(lines[-1])
        assert len(head.split()) + (int(hidden[1]) if hidden else 0) == len(every)
        assert head.split()[-1] == "name"
    assert not hidden


# Order and choice of rows


def numbers(texts):
    return [int(text) for text in texts]


def test_sort_is_ascending_and_with_a_minus_descending():
    plain = numbers(column("count", "kernels", TORCH))
    assert plain != sorted(plain)
    assert numbers(column("count", "kernels", TORCH, "--sort", "count")) == sorted(plain)
    assert numbers(column("count", "kernels", TORCH, "--sort", "-count")) == sorted(plain, reverse=True)


@pytest.mark.parametrize("order", ["queue_ns", "-queue_ns"])
def test_missing_values_are_sorted_last(order):
    found = column("queue_ns", "launches", TORCH, "--sort", order)
    known = [text for text in found if text]
    assert 0 < len(known) < len(found)
    assert found == [*known, *[""] * (len(found) - len(known))]
    assert numbers(known) == sorted(numbers(known), reverse=order.startswith("-"))


def test_a_window_a_device_and_a_process_narrow_every_table():
    whole = kanalyze.read(TWO_GPUS)
    process = whole.processes["process_id"][0]
    where = {"window": "1000ms..1002ms", "device": 1, "process": process}
    options = [text for name, value in where.items() for text in (f"--{name}", value)]
    for name in ("kernels", "ledger", "api", "health"):
        expected = getattr(kanalyze, name)(whole, **where)
        assert json.loads(shown(name, TWO_GPUS, *options, "--format", "json")) == json.loads(expected.write_json())


# What there is not

TABLES, GROUPINGS = ", ".join(catalog.every_name()), ", ".join(catalog.table("kernels").groupings)


@pytest.mark.parametrize(
    ("arguments", "said", "remedy"),
    [
        (["kernal", TORCH], "no table 'kernal'.", f"Did you mean kernels? There are: {TABLES}.  [unknown-name]"),
        *(([name, "nowhere.sqlite"], f"no table {name!r}.", "") for name in ("summary", "_walk", "", "Kernels")),
        (["kernels", TORCH, "--sort", "-totl_ns"], "no column 'totl_ns'.", "Did you mean total_ns? There are: name, "),
        (
            ["kernels", TORCH, "--by", "launch_shape"],
            "no grouping of kernels 'launch_shape'.",
            f"Did you mean launch-shape? There are: {GROUPINGS}.  [unknown-name]",
        ),
        (["api", TORCH, "--by", "launch-shape"], "no grouping of api 'launch-shape'.", "There are: none.  ["),
        (["kernels", TWO_GPUS, "--device", "2"], "no device '2'.", "There are: 0, 1.  [unknown-name]"),
        (["kernels", TWO_GPUS, "--process", "-1"], "no process '-1'.", ""),
        (
            ["kernels", TORCH, "--window", "1..2s"],
            "--window '1..2s': '1' is not a time with a unit (ns, us, ms or s).",
            "Write start..end with units, as in 120ms..250ms (",
        ),
        (
            ["kernels", TORCH, "--format", "parquet"],
            "--format parquet is binary and is not printed.",
            "Say where it goes: -o FILE.  [output-failed]",
        ),
    ],
)
def test_what_there_is_not_is_told_with_the_nearest(arguments, said, remedy):
    found = message(*arguments)
    assert found[0] == said
    assert found[1].startswith(remedy)


def test_a_table_that_the_report_cannot_give_is_told_and_nothing_is_written(tmp_path):
    report, path = only(tmp_path, ADD, "NVTX_EVENTS", "StringIds"), tmp_path / "out.csv"
    told, remedy = message("kernels", report, "--format", "csv", "-o", path)
    assert told == f"{report}: cannot tell kernels, because the report records no events of kind kernel."
    assert remedy.endswith("[cannot-tell]")
    assert not path.exists()


def test_top_is_of_each_report_and_with_sort_of_all():
    reports = [SAMPLES / name for name in ("square", "gelu")]
    each = pl.read_csv(io.StringIO(run("show", "kernels", *reports, "--top", "2", "--format", "csv").text))
    assert each.group_by("report", maintain_order=True).len().get_column("len").to_list() == [2, 2]
    every = pl.read_csv(
        io.StringIO(run("show", "kernels", *reports, "--sort", "-total_ns", "--top", "3", "--format", "csv").text)
    )
    assert every.height == 3
    assert every.get_column("total_ns").is_sorted(descending=True)
