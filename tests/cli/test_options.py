"""What only some tables of `kanalyze show` take: thresholds, chunks, other forms; and windows that are several."""

import csv
import io
import json

import polars as pl
import pytest

import kanalyze
from support.command import REPORTS, refused, run

NVTX = REPORTS / "nvtx.sqlite"


def shown(*arguments):
    ran = run("show", *arguments)
    assert (ran.status, ran.error) == (0, "")
    return ran.text


def rows(*arguments):
    return json.loads(shown(*arguments, "--format", "json"))


def told(frame):
    return json.loads(frame.write_json())


def message(*arguments):
    return refused(run("show", *arguments))


# --threshold


@pytest.mark.parametrize(("text", "ns"), [("10us", 10_000), ("0.05 ms", 50_000), ("0ns", 0)])
@pytest.mark.one_in(4)
def test_a_time_leaves_out_shorter_gaps(text, ns):
    expected = told(kanalyze.gaps(kanalyze.read(NVTX), threshold_ns=ns))
    assert rows("gaps", NVTX, "--threshold", text) == expected
    assert all(row["dur_ns"] > ns for row in expected)
    assert 0 < len(expected) < len(rows("gaps", NVTX, "--threshold", "0ns")) or ns == 0


@pytest.mark.parametrize(
    ("table", "text", "what", "example"),
    [
        *(("gaps", "10", "a time", "10us"), ("gaps", "10%", "a time", "10us"), ("gaps", "soon", "a time", "10us")),
        *(("utilisation", "10us", "a share", "50%"), ("utilisation", "0.5", "a share", "50%")),
        ("utilisation", "", "a share", "50%"),
    ],
)
def test_what_is_no_threshold_of_the_table_is_told(table, text, what, example):
    expected = (
        f"--threshold {text!r}: not {what}.",
        f"Write a number with its unit, as in {example}.  [bad-threshold]",
    )
    assert message(table, NVTX, "--threshold", text) == expected


# --chunks, --as-nsys, --trace, --graphs


@pytest.mark.parametrize(
    ("option", "table", "known"),
    [
        (["--trace"], "ranges", "none"),
        (["--graphs"], "utilisation", "--chunks, --as-nsys, --threshold"),
        (["--as-nsys"], "range_gpu", "--trace, --graphs"),
        (["--chunks", "3"], "events", "none"),
        (["--threshold", "none"], "kernels", "none"),
    ],
)
def test_an_option_of_another_table_is_told_with_its_own(option, table, known):
    what, remedy = message(table, NVTX, *option)
    assert what == f"no option of {table} {option[0]!r}."
    assert f"There are: {known}." in remedy


# --window by name


@pytest.mark.slow
def test_all_instances_are_one_table_with_a_column_that_names_them():
    found = rows("ledger", NVTX, "--window", "step#*")
    assert found == rows("ledger", NVTX, "--window", "step")
    names = [f"step#{number}" for number in range(1, 21)]
    assert list(dict.fromkeys(row["instance"] for row in found)) == names
    report = kanalyze.read(NVTX)
    for name in names:
        own = [row for row in found if row["instance"] == name]
        assert own == [{"instance": name, **row} for row in told(kanalyze.ledger(report, window=name))]


def test_instances_are_named_in_every_format(tmp_path):
    arguments = ("kernels", NVTX, "--window", "step#*", "--sort", "-total_ns", "--top", "2")
    (first, second) = csv.DictReader(io.StringIO(shown(*arguments, "--format", "csv")))
    assert next(iter(first)) == "instance"
    assert first["instance"] == "step#14"
    assert [line.split()[0] for line in shown(*arguments).splitlines()[:3]] == [
        "instance",
        "step#14",
        second["instance"],
    ]
    shown(*arguments, "--format", "parquet", "-o", tmp_path / "kernels.parquet")
    assert pl.read_parquet(tmp_path / "kernels.parquet").get_column("instance").to_list()[0] == "step#14"
