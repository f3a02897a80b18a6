"""`kanalyze summarize` of several reports, and of all instances of a range."""

import json
import re
import shutil
from functools import cache

import pytest

import kanalyze
from support.command import ADD, ADD_UM, REPORTS, run

NVTX, EMPTY = REPORTS / "nvtx.sqlite", REPORTS / "empty.sqlite"


@cache
def page(*arguments, **keys):
    ran = run("summarize", "--full", *arguments, **keys)
    assert (ran.status, ran.error) == (0, "")
    return ran.text


def content(*arguments):
    return json.loads(page(*arguments, "--format", "json"))


def one_line(text):
    return " ".join(text.replace("\\\n", " ").split())


# Several reports


@pytest.mark.parametrize("columns", [60, 80, 130])
@pytest.mark.one_in(4)
def test_each_report_has_its_page_and_nothing_else(columns):
    pages = re.split(r"^\n─+\n\n", page(ADD, ADD_UM, EMPTY, columns=columns), flags=re.MULTILINE)
    assert pages == [page(path, columns=columns) for path in (ADD, ADD_UM, EMPTY)]


# Several tools that cannot be joined

NO_KERNELS, COUNTERS = REPORTS / "torch" / "cpu_only.json.gz", REPORTS / "ncu" / "add.details.csv"


def test_so_it_is_of_a_capture(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema": 1}')
    shutil.copyfile(NO_KERNELS, tmp_path / "torch.json.gz")
    shutil.copyfile(COUNTERS, tmp_path / "ncu.details.csv")
    time, counters = content(tmp_path)["reports"]
    assert time["answer"] == content(NO_KERNELS)["answer"]
    assert counters["answer"] == content(tmp_path / "ncu.details.csv")["answer"]


# All instances of a range


def test_instances_look_as_they_should(gold):
    gold(page(NVTX, "--window", "step"), "summarize_nvtx_step_80.txt")


def test_instances_as_markdown_look_as_they_should(gold):
    gold(page(NVTX, "--window", "step", "--top", "3", "--format", "markdown"), "summarize_nvtx_step.md")


def test_all_instances_by_name_or_with_a_star():
    assert page(NVTX, "--window", "step#*") == page(NVTX, "--window", "step")
    named, told = (page(NVTX, "--window", name) for name in ("step", ":step"))
    named = named.replace(" step", " :step").replace("'step#1'", "':step#1'")
    assert one_line(told) == one_line(named)  # where the command at the end breaks depends on the report's folder


def test_instances_as_json():
    found = content(NVTX, "--window", "step")
    assert found["range"] == "step"
    assert [row["instance"] for row in found["instances"]] == list(range(1, 21))
    assert [row["instance"] for row in found["instances"] if row["odd"]] == [6, 14]
    assert found["scope"]["window"] == "step#*"
    assert found["answer"].startswith("20 instances of step: 44.38 µs in the median")
    for row in found["instances"]:
        buckets = [value for name, value in row.items() if name.endswith("_ns") and name not in ("start_ns", "dur_ns")]
        assert sum(buckets) == row["dur_ns"]
    report = kanalyze.read(NVTX)
    third = kanalyze.ledger(report, window="step#3")
    assert third.get_column("ns").sum() == found["instances"][2]["dur_ns"]
