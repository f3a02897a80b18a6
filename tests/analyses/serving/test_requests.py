"""Latencies of requests, against a walk over engines of any schedule and the log of kernels/serving.py."""

import itertools
import json
from dataclasses import replace
from functools import cache

import polars as pl
import pytest
from hypothesis import assume, example, strategies as st

import kanalyze
from kanalyze.errors import CannotTellError
from kanalyze.readers.request_log import REQUEST_LOG, read_requests
from support.build import kernel, launched, nvtx, report
from support.command import SAMPLES
from support.real_reports import real_report
from support.strategies import slow_given

LENGTH, GAP, BETWEEN = 1_000_000, 100_000, 10_000


class Engine:
    """Serves requests (steps to wait before arrival, tokens of the prompt, of the answer) as they come, in order."""

    def __init__(self, asked, chunk, *, mixed):
        self.events, self.log, self.sat = [], [], []
        waiting, running, at, step = [], [], 1_000_000, 0
        coming = [[after, prompt, wanted, number] for number, (after, prompt, wanted) in enumerate(asked)]
        while coming or waiting or running:
            for one in [one for one in coming if one[0] <= step]:
                coming.remove(one)
                waiting.append(
                    {"left": one[1], "prompt": one[1], "wanted": one[2], "number": one[3], "arrival": at - BETWEEN}
                )
            room, reads = chunk, []
            for one in waiting:
                if room:
                    reads.append((one, min(room, one["left"])))
                    room -= reads[-1][1]
            decodes = list(running) if mixed or not reads else []
            if reads or decodes:
                self.run(at, reads, decodes, (waiting, running))
            step, at = step + 1, at + LENGTH + GAP

    def run(self, at, reads, decodes, lists):
        (waiting, running), step = lists, len(self.sat)
        end, tokens = at + LENGTH - 1000 * (7 * step % 5), sum(number for _, number in reads)
        label = f"execute_context_{len(reads)}({tokens})_generation_{len(decodes)}({len(decodes)})"
        ran = kernel(at + 5000, end - 5000, correlation=step)
        self.events += [*launched(at + 1000, at + 4000, ran), nvtx(label, at, end)]
        self.sat.append(
            (at, end, {one["number"] for one, _ in reads} | {one["number"] for one in decodes}, bool(decodes))
        )
        for one, number in reads:
            one["left"] -= number
            if not one["left"]:
                waiting.remove(one)
                running.append(one)
        for one in [*decodes, *(one for one, _ in reads if not one["left"])]:
            one.setdefault("first", end)
            one["wanted"] -= 1
            if not one["wanted"]:
                running.remove(one)
                self.log.append((str(one["number"]), one["arrival"], one["first"], end, one["prompt"], None))

    def frame(self, longer=0, lag=0):
        """The log, as of a client whose prompts are so much longer, and that hears of each token so much later."""
        rows = sorted(self.log, key=lambda row: (row[1], int(row[0])))
        log = pl.DataFrame(rows, schema=REQUEST_LOG.schema, orient="row")
        return log.with_columns(pl.col("prompt_tokens") + longer, pl.col("first_ns", "end_ns") + lag)

    def expected(self, name, arrival, first, end):
        inside = [step for step in self.sat if int(name) in step[2]]
        begun = inside[0][0]
        after = [step for step in self.sat if first <= step[0] < end]
        longest = max((step for step in self.sat if begun <= step[0] < end), key=lambda step: step[1] - step[0])
        return {
            "queue_ns": begun - arrival,
            "prefill_ns": sum(step[1] - step[0] for step in self.sat if begun <= step[0] < first),
            "decode_ns": sum(step[1] - step[0] for step in after if step[3]),
            "stall_ns": sum(step[1] - step[0] for step in after if not step[3]),
            "first_step": self.sat.index(inside[0]) + 1,
            "last_step": self.sat.index(inside[-1]) + 1,
            "longest_ns": longest[1] - longest[0],
            "longest_step": self.sat.index(longest) + 1,
        }


ASKED = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=8)


@slow_given(
    ASKED,
    st.integers(5, 30),
    st.booleans(),
    st.sampled_from([0, None, 100]),
    st.sampled_from([0, 900_000, 1_700_000, 2_500_000]),
)
def test_a_latency_is_what_a_walk_over_the_steps_says(asked, chunk, mixed, longer, lag):
    """Also without lengths of prompts, where a part of each is cached, and of a client that hears of tokens later."""
    engine = Engine(asked, chunk, mixed=mixed)
    of, log = report(engine.events, meta={"origin_unix_ns": 0}), engine.frame(longer, lag)
    found = kanalyze.requests(of, log=log)
    assert found.height == len(asked)
    for row, (name, arrival, first, end, *_) in zip(found.iter_rows(named=True), log.iter_rows(), strict=True):
        expected = engine.expected(name, arrival, first - lag, end - lag)
        if lag and (longer != 0 or row["first_step"] is None):  # several lags may be possible then
            assert row["first_step"] in (None, expected["first_step"])
            continue
        assert {key: row[key] for key in expected} == expected
        assert row["first_token_ns"] == first - arrival
        rest = sum(row[part] for part in ("queue_ns", "prefill_ns", "decode_ns", "stall_ns"))
        assert row["gap_ns"] == end - arrival - rest >= 0


@example(asked=[(0, 1, 1)] * 3, chunk=5, mixed=False, lacking=3)
@slow_given(ASKED, st.integers(5, 30), st.booleans(), st.integers(0, 7))
def test_of_a_log_that_lacks_a_request_no_begin_is_false(asked, chunk, mixed, lacking):
    engine = Engine(asked, chunk, mixed=mixed)
    log = engine.frame().filter(pl.col("request") != str(lacking))
    assume(log.height)
    for row, (name, arrival, first, end, *_) in zip(
        kanalyze.requests(report(engine.events), log=log).iter_rows(named=True), log.iter_rows(), strict=True
    ):
        expected = engine.expected(name, arrival, first, end)
        assert row["first_step"] in (None, expected["first_step"])


def test_what_nothing_tells_of_a_request_is_null():
    engine = Engine([(0, 10, 3)], 6, mixed=False)
    others = [replace(one, name=one.name and one.name.replace("context_1", "context_2")) for one in engine.events]
    (row,) = kanalyze.requests(report(others), log=engine.frame(1)).to_dicts()
    assert [row[name] for name in ("queue_ns", "prefill_ns", "gap_ns", "first_step", "steps")] == [None] * 5
    assert (row["first_token_ns"], row["stall_ns"], row["last_step"]) == (BETWEEN + 2 * LENGTH + GAP - 2000, 0, 4)
    nothing = pl.lit(None, dtype=pl.Int64)
    late = engine.frame().with_columns(first_ns=nothing)
    with pytest.raises(CannotTellError, match="the log has neither times of the epoch, nor first tokens"):
        kanalyze.requests(report(others), log=late)
    sample, log = real_report(SERVING / "vllm.sqlite"), read_requests(log_of("vllm.sqlite"))
    whole, without = (kanalyze.requests(sample, log=one) for one in (log, log.with_columns(first_ns=nothing)))
    unknown = without.select("queue_ns", "prefill_ns", "decode_ns", "stall_ns", "gap_ns", "first_step").null_count()
    assert {*unknown.row(0)} == {10}
    assert without.select("latency_ns", "last_step").equals(whole.select("latency_ns", "last_step"))


def test_requests_need_a_log_and_steps():
    engine = Engine([(0, 10, 3)], 20, mixed=False)
    of = report(engine.events)
    with pytest.raises(CannotTellError, match="no log of a client is given"):
        kanalyze.requests(of)
    late = engine.frame().with_columns(pl.col("arrival_ns", "first_ns", "end_ns") + 10**18)
    assert kanalyze.requests(report([kernel(0, 10)]), log=late).is_empty()
    (row,) = kanalyze.requests(of, log=late.with_columns(output_tokens=pl.lit(3))).to_dicts()
    assert (row["first_step"], row["last_step"], row["per_token_ns"]) == (1, 3, LENGTH + GAP - 2000)


def test_ranks_of_one_engine_take_the_same_steps():
    engine = Engine([(0, 700, 3), (1, 300, 2), (4, 900, 4)], 400, mixed=True)
    ranks = [replace(event, process=rank, thread=rank) for rank in (1, 2) for event in engine.events]
    ranks = [event if event.correlation is None else _of_rank(event) for event in ranks]
    alone = kanalyze.requests(report(engine.events), log=engine.frame())
    assert kanalyze.requests(report(ranks), log=engine.frame()).equals(alone)


def _of_rank(event):
    device = event.device if event.device is None else event.process
    return replace(event, device=device, correlation=event.correlation + 1000 * event.process)


def test_of_many_requests_some_tell_the_clock(monkeypatch):
    engine = Engine([(2 * number, 300, 3) for number in range(20)], 400, mixed=True)
    shifted = engine.frame().with_columns(pl.col("arrival_ns", "first_ns", "end_ns") + 10**12)
    whole = kanalyze.requests(report(engine.events), log=shifted)
    monkeypatch.setattr("kanalyze.analyses.serving.requests._MOST_PAIRS", 100)
    assert kanalyze.requests(report(engine.events), log=shifted).equals(whole)


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


@pytest.mark.slow
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
@pytest.mark.parametrize("unit", [1, 10**3, 10**6])
@pytest.mark.parametrize("more", [0, 50])
def test_a_client_s_clock_of_another_origin_or_unit_is_brought_together_with_the_report_s(name, unit, more):
    report, log = real_report(SERVING / name), read_requests(log_of(name))
    since, times = log["arrival_ns"].min(), pl.col("arrival_ns", "first_ns", "end_ns")
    # and as long before and after there were others, that are not recorded
    longer = pl.concat(log.with_columns(times + 770_000_000 * number) for number in range(-more, more + 1))
    other = longer.with_columns((times - since + 7_000_000_000 * (1 + more)) * unit)
    late = pl.col("first_ns") + unit * 10**6 * (3 * pl.col("end_ns") // unit % 7)
    with pytest.raises(CannotTellError, match="nor first tokens of which most come as"):
        kanalyze.requests(report, log=other.with_columns(late))
    apart = kanalyze.requests(report, log=other)["arrival_ns"] - kanalyze.requests(report, log=log)["arrival_ns"]
    assert apart.n_unique() == 1
    assert abs(apart[0]) <= 2 * NEAR
