"""The first sentence of a page: the limit of an iteration, its cause and place, and what it would take without."""

import polars as pl
import pytest

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.iterations.phases import known_steady_part
from kanalyze.analyses.page.overview_page import first_sentence, limit_of
from kanalyze.units import instead
from support.build import call, kernel, nvtx, report

#: Ten steps of 10 µs with a kernel of 2 µs each.
STEP_NS = 10_000
LOOP = report(
    [
        event
        for at in range(0, 10 * STEP_NS, STEP_NS)
        for event in (
            nvtx("step", at, at + STEP_NS - 10),
            call("cudaLaunchKernel", at + 100, at + 200, correlation=at + 1),
            kernel(at + 300, at + 2_300, correlation=at + 1),
        )
    ]
)
STEADY = known_steady_part(LOOP)
VIEW = LOOP.narrow(window=STEADY.window)
BUSY, IDLE = [(at, at + 2_000) for at in range(300, 90_000, STEP_NS)], [(3_000, 9_000)]


def tables(path, ledger):
    frame = pl.DataFrame(path, schema=["cause", "share"], orient="row")
    rows = [(0, bucket, ns) for bucket, ns in ledger]
    return {"critical_path": frame, "ledger": pl.DataFrame(rows, schema=["device", "bucket", "ns"], orient="row")}


HOST = tables([("host", 0.7), ("launch", 0.2), ("kernel", 0.1)], [("kernel", 20), ("host", 80)])
GPU = tables([("kernel", 0.9), ("host", 0.1)], [("kernel", 95), ("host", 5)])


def finding(headline, claims=None, **told):
    spans, stake = claims and pl.DataFrame(claims, schema=["start", "end"], orient="row"), told.pop("stake", 50_000)
    return Finding("rule", 0, stake, "Text.", "Remedy.", "code", headline=headline, claims=spans, **told)


def gaining(part):
    """What a replay tells of a remedy that gains a part of the steady steps."""
    whole = STEADY.ns
    gain = int(part * whole)
    return {"replayed_ns": gain, "replayed_low_ns": gain, "replayed_high_ns": gain, "unmended_ns": whole}


def said(known, *findings):
    return first_sentence(VIEW, STEADY, known, list(findings))


def test_it_says_the_limit_the_cause_the_line_and_what_is_left_without_it():
    found = finding("A mask is made on the CPU and copied", IDLE, line="model.py:41", **gaining(0.5))
    assert said(HOST, found) == (
        "The host limits the step: a mask is made on the CPU and copied, in model.py:41; "
        "without that about 5.0 µs instead of 10."
    )


@pytest.mark.parametrize(
    "gain",
    [
        {},
        gaining(0.02),
        gaining(0.5) | {"replayed_low_ns": 0},
    ],
    ids=["no replay", "too little", "maybe nothing"],
)
def test_nothing_is_promised_where_no_gain_is_sure(gain):
    found = finding("1 copy of pageable memory a step blocks the host", IDLE, **gain)
    assert said(HOST, found) == "The host limits the step: 1 copy of pageable memory a step blocks the host."


def test_a_remedy_is_something_to_do_not_to_do_without():
    found = finding("12 launches a step could be replayed as a graph", IDLE, **gaining(0.25))
    assert said(HOST, found).endswith("replayed as a graph; with that about 7.5 µs instead of 10.")


def test_what_is_about_other_time_is_no_cause_of_the_limit():
    found = finding("Products are in full float32", BUSY, shortens=True)
    assert said(HOST, found) == "The host limits the step. First: Products are in full float32."
    assert said(GPU, found) == "The GPU limits the step: Products are in full float32."
    assert said(GPU, found._replace(claims=IDLE and None, shortens=False)).startswith("The GPU limits the step. First:")


@pytest.mark.parametrize(
    ("known", "found", "text"),
    [
        (
            HOST,
            finding("A copy blocks the host", IDLE, stake=5_000),
            "host limits the step. First: a copy blocks the host.",
        ),
        (
            HOST,
            finding(
                "Anomaly detection is on: every operator is checked", IDLE, where="aten::linear", line="train.py:7"
            ),
            (
                "host limits the step. First: Anomaly detection is on: every operator is checked, in aten::linear "
                "in train.py:7."
            ),
        ),
        (
            GPU,
            finding("1 block for 132 SMs: {0}", BUSY, names=("add(int)",)),
            "GPU limits the step: 1 block for 132 SMs.",
        ),
        (HOST, finding("The GPU waits", IDLE, vague=True), "host limits the step."),
        (HOST, None, "host limits the step."),
        ({}, None, ""),
    ],
    ids=["little", "a colon", "names of kernels", "no more than the ledger", "no finding", "no ledger"],
)
def test_what_is_no_cause_of_the_limit_has_a_sentence_of_its_own_or_none(known, found, text):
    assert said(known, *filter(None, [found])) == (text and f"The {text}")


@pytest.mark.parametrize(
    ("path", "ledger", "limits"),
    [
        ([("host", 0.4), ("launch", 0.1), ("launch latency", 0.2)], [("host", 1)],
         "The host and launches limit the step."),
        ([("launch", 0.6)], [("launch", 1)], "Launches limit the step."),
        ([("transfer", 0.4), ("communication", 0.2)], [("communication", 1)], "Communication limits the step."),
        ([("host", 0.6), ("kernel", 0.4)], [("kernel", 9), ("host", 1)],
         "The host limits the step, though the GPU works for most of it."),
        ([], [("memcpy", 6), ("host", 4)], "Copies limit the step."),
        ([("unknown", 0.9), ("host", 0.1)], [("unknown", 1)], ""),
        ([("host", 0.2), ("kernel", 0.2), ("launch", 0.2)], [("host", 1)], ""),
    ],
)  # fmt: skip
def test_the_limit_is_what_takes_most_of_the_path_else_of_the_ledger(path, ledger, limits):
    assert said(tables(path, ledger)) == limits


def test_of_equal_parts_the_order_does_not_change():
    path = [("host", 0.3), ("launch", 0.3), ("kernel", 0.3)]
    told = {limit_of(STEADY, tables(order, [("host", 1)])) for order in (path, path[::-1])}
    assert len(told) == 1


def test_without_a_ledger_there_is_the_finding_alone():
    assert said({}, finding("A copy blocks the host", IDLE)) == "First: a copy blocks the host."


@pytest.mark.parametrize(
    ("after", "before", "text"),
    [
        (1_600_000, 5_900_000, "1.6 ms instead of 5.9"),
        (274_600, 991_900, "270 µs instead of 990"),
        (1_004, 1_040, "1.00 µs instead of 1.04"),
        (12, 5_900_000, "0.000012 ms instead of 5.9"),
        (0, 500, "0 ns instead of 500"),
        (999_999, 1_000_000, "1.000 ms instead of 1.000 ms"),
        (60_000_000_000, 90_000_000_000, "60 s instead of 90"),
    ],
)
def test_both_times_have_the_unit_of_the_second(after, before, text):
    assert instead(after, before) == text
