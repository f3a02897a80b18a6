"""Two recordings of kernels/serving.py against what it wrote itself of each step and each request."""

import itertools
import json
from functools import cache

import polars as pl
import pytest

import kanalyze
from kanalyze.readers.request_log import read_requests
from support.command import SAMPLES
from support.real_reports import real_report

SERVING = SAMPLES / "serving"
BOTH = pytest.mark.parametrize("name", ["vllm.sqlite", "sglang.json.gz"])

#: What is told has to be as near to the log as this (ns).
NEAR = 20_000


@cache
def logged(name):
    lines = [json.loads(line) for line in log_of(name).read_text().splitlines()]
    return [one for one in lines if "step" in one], [one for one in lines if "request" in one]


def log_of(name):
    return SERVING / f"{name.partition('.')[0]}.jsonl"


def steps_of(name):
    return kanalyze.engine_steps(real_report(SERVING / name)).sort("start_ns")


@pytest.mark.slow
@BOTH
def test_each_step_is_told_with_what_was_in_it(name):
    steps, log = steps_of(name), logged(name)[0]
    assert steps["label"].to_list() == [one["label"] for one in log]
    assert steps["kind"].to_list() == [one["kind"] for one in log]
    assert {*steps["kind"]} == ({"prefill", "mixed", "decode"} if name == "vllm.sqlite" else {"prefill", "decode"})
    assert steps["requests"].to_list() == [one["prefills"] + one["decodes"] for one in log]
    assert steps["tokens"].to_list() == [one["tokens"] for one in log]
    assert (steps["mode"] == "graph").to_list() == [one["graph"] for one in log]
    replayed = steps.filter(mode="graph").get_column("padded").to_list()
    if name == "vllm.sqlite":  # by the mark around the capture; a trace has no names of nodes
        assert replayed == [one["padded"] for one in log if one["graph"]]


@BOTH
def test_steps_and_gaps_are_as_long_as_the_engine_says(name):
    """With what entering and leaving a range takes."""
    steps, log = steps_of(name), logged(name)[0]
    for (start, length), one in zip(steps.select("start_ns", "host_ns").rows(), log, strict=True):
        assert length == pytest.approx((one["end"] - one["start"]) * 1e9, abs=NEAR)
        assert start == pytest.approx(one["start"] * 1e9 - real_report(SERVING / name).meta.origin_unix_ns, abs=NEAR)
    ends = steps["start_ns"] + steps["host_ns"]
    for told, (before, after) in zip(steps["start_ns"][1:] - ends[:-1], itertools.pairwise(log), strict=True):
        assert told == pytest.approx((after["start"] - before["end"]) * 1e9, abs=NEAR)


@BOTH
def test_gaps_are_of_those_who_slept(name):
    """The scheduler sleeps for 150 µs, and the detokenizer for 300 µs, on average; none of it while the GPU works."""
    report, log = real_report(SERVING / name), logged(name)[0]
    gaps = kanalyze.engine_steps(report, by="gap").filter(bucket="host").group_by("culprit").agg(pl.col("ns").sum())
    told = dict(gaps.iter_rows())
    for part, steps in (("detokenize", log[:-1]), ("schedule", log[1:])):
        assert told[part] == pytest.approx(sum(one[part] for one in steps) * 1e9, rel=0.1)


@BOTH
def test_each_request_is_told_with_its_steps_and_a_latency_that_closes(name):
    steps, requests = logged(name)
    found = kanalyze.requests(real_report(SERVING / name), log=read_requests(log_of(name)))
    assert found["request"].to_list() == [str(one["request"]) for one in requests]
    parts = found.select("queue_ns", "prefill_ns", "decode_ns", "stall_ns", "gap_ns")
    assert parts.sum_horizontal().to_list() == found["latency_ns"].to_list()
    assert parts.min_horizontal().min() >= 0
    for row, one in zip(found.iter_rows(named=True), requests, strict=True):
        inside = [step for step in steps if one["request"] in step["requests"]]
        assert (row["first_step"], row["last_step"]) == (inside[0]["step"] + 1, inside[-1]["step"] + 1)
        assert row["latency_ns"] == pytest.approx((one["end"] - one["arrival"]) * 1e9, abs=1000)
        assert row["queue_ns"] == pytest.approx((inside[0]["start"] - one["arrival"]) * 1e9, abs=2 * NEAR)
        reading = [step for step in inside if step["end"] <= one["first"]]
        spent = sum(step["end"] - step["start"] for step in reading) * 1e9
        between = sum(
            step["end"] - step["start"] for step in steps
            if inside[0]["start"] < step["start"] < one["first"] and step not in reading
        ) * 1e9  # fmt: skip
        assert row["prefill_ns"] == pytest.approx(spent + between, abs=2 * NEAR * len(reading))
        assert row["steps"] == inside[-1]["step"] - inside[0]["step"] + 1


@BOTH
def test_a_client_s_clock_of_another_origin_is_brought_together_with_the_report_s(name):
    report, log = real_report(SERVING / name), read_requests(log_of(name))
    other = log.with_columns(pl.col("arrival_ns", "first_ns", "end_ns") - log["arrival_ns"].min() + 7_000_000_000)
    apart = kanalyze.requests(report, log=other)["arrival_ns"] - kanalyze.requests(report, log=log)["arrival_ns"]
    assert apart.n_unique() == 1
    assert abs(apart[0]) <= 2 * NEAR
