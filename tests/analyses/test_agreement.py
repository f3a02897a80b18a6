"""What two tools tell of one program: equal, explained, or neither, which is a gate that fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import kanalyze
from kanalyze.errors import CannotTellError
from kanalyze.readers.capture_reports import every_report
from support.build import call, kernel, memcpy, nvtx, report
from support.command import SAMPLES, run
from support.counters import measured

CONFIG = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 64}


def of_tool(tool, *events):
    made = report([call("cudaLaunchKernel", 0, 1), *events])
    return replace(made, meta=replace(made.meta, tool=tool, path=Path(f"of {tool}")))


def k(start, end, name="k", **config):
    return kernel(start, end, name=name, side=CONFIG | config)


def told(*reports):
    """Figure and what both tell, with verdict and the first word of why."""
    columns = ("figure", "first", "second", "verdict", "why")
    rows = kanalyze.agreement(*reports).select(columns).rows()
    return {
        (figure, first, second): (verdict, (why or "").partition(" ")[0])
        for figure, first, second, verdict, why in rows
    }


def nsys(*events):
    return of_tool("nsys", *events)


def torch(*events):
    return of_tool("torch.profiler", *events)


def test_the_same_program_is_equal_but_for_its_time():
    assert told(nsys(k(0, 1000)), torch(k(0, 1100))) == {
        ("launches", 1, 1): ("equal", ""),
        ("registers", 32, 32): ("equal", ""),
        ("shared memory", 64, 64): ("equal", ""),
        ("duration", 1000, 1100): ("explained", "two"),
    }


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([k(0, 1000, registers_per_thread=40)], ("registers", 32, 40)),
        ([k(0, 1000, dynamic_shared_bytes=128)], ("shared memory", 64, 128)),
        ([k(0, 1000), k(2000, 3000)], ("launches", 1, 2)),
        ([k(0, 1000), k(2000, 3000, name="j")], ("launches", None, 1)),
        ([k(0, 9000)], ("duration", 1000, 9000)),
        ([k(0, 1000), memcpy(2000, 2100, size_bytes=7)], ("bytes copied", None, 7)),
    ],
)
def test_what_nothing_explains(other, expected):
    assert told(nsys(k(0, 1000)), torch(*other))[expected] == ("unexplained", "")


def test_a_trace_of_some_steps_has_fewer_launches():
    steps = [nvtx("ProfilerStep#3", 0, 4000)]
    found = told(nsys(k(0, 1000), k(2000, 3000)), torch(k(0, 1000), *steps))
    assert found["launches", 2, 1] == ("explained", "the")
    more = told(nsys(k(0, 1000)), torch(k(0, 1000), k(2000, 3000), *steps))
    assert more["launches", 1, 2] == ("unexplained", "")


def test_ncu_measures_some_launches_alone():
    found = told(nsys(k(0, 1000), k(2000, 3000)), measured({}, names=["k"], block=(32, 1, 1)))
    assert found["launches", 2, 1] == ("explained", "ncu")


def test_a_kernel_that_only_ncu_has_is_not_explained():
    found = told(nsys(k(0, 1000)), measured({}, names=["other"], block=(32, 1, 1)))
    assert found["launches", None, 1] == ("unexplained", "")


def test_ncu_in_another_shape_is_not_explained():
    found = told(nsys(k(0, 1000)), measured({}, names=["k"], grid=(7, 1, 1), block=(32, 1, 1)))
    assert found["launches", None, 1] == ("unexplained", "")


def test_one_report_is_compared_with_nothing():
    with pytest.raises(CannotTellError, match="no second report"):
        kanalyze.agreement(nsys(k(0, 1)))


@pytest.mark.parametrize("name", ["add", "cdist", "gelu", "launch_bound_graph", "mlp_train", "square", "streams"])
def test_tools_agree_on_the_samples(name):
    rows = kanalyze.agreement(*every_report(SAMPLES / name))
    assert rows.filter(verdict="unexplained").is_empty()
    assert rows.filter(figure="registers")["verdict"].unique().to_list() == ["equal"]


def test_the_command_shows_what_differs_and_why():
    ran = run("verify", SAMPLES / "streams", columns=120)
    assert (ran.status, ran.error) == (0, "")
    assert ran.lines[0].endswith(" 0 unexplained")
    assert ran.lines[2].split() == [
        "figure",
        "first",
        "tool",
        "second",
        "tool",
        "difference",
        "why",
        "kernel",
        "or",
        "copy",
    ]


def test_the_command_fails_where_nothing_explains_it():
    """Reports of two different programs."""
    files = (SAMPLES / "square" / "nsys.sqlite", SAMPLES / "cdist" / "torch.json.gz")
    ran = run("verify", *files, "--format", "json")
    assert (ran.status, ran.error) == (1, "")
    assert "unexplained" in {row["verdict"] for row in json.loads(ran.text)}
