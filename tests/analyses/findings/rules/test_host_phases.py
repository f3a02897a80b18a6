"""Host-bound phases: the program's own code that the device waits for, by range or between which calls."""

from pathlib import Path

import pytest

from kanalyze import intervals
from kanalyze.analyses.findings.findings import findings, ranked
from kanalyze.analyses.findings.rules.host_computes import host_computes
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, kernel, nvtx, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"

LAUNCH = "cudaLaunchKernel_v7000"


def launched(number, start, end):
    """A kernel that runs from `start` on, launched in the 10 before."""
    return [call(LAUNCH, start - 10, start, correlation=number), kernel(start, end, correlation=number)]


def test_phases_are_named_by_range_and_by_the_calls_around_them():
    events = [
        *launched(1, 10, 100),
        nvtx("data {raw}", 100, 400),
        *launched(2, 200, 300),
        *launched(3, 400, 500),
        call("cudaEventRecord_v3020", 500, 510),
        *launched(4, 560, 600),
    ]
    (one,) = host_computes(report(events))
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("host-computes", 0, 90 + 90 + 40, "culprits")
    assert one.text.format(*one.names) == (
        "GPU 0 idle while the program runs its own code, in no CUDA call: 36.7 % of the window. Most in data {raw}: "
        "180 ns in 2 gaps, the longest 90 ns; before launches: 40 ns. The longest stretch is 90 ns, "
        "from 100 ns on. More may follow: the host could run ahead."
    )


def test_a_phase_that_matters_little_is_not_named():
    events = [
        *launched(1, 10, 100),
        nvtx("a", 100, 290),
        *launched(2, 300, 400),
        nvtx("b", 400, 410),
        *launched(3, 420, 500),
    ]
    (one,) = host_computes(report(events))
    assert one.at_stake_ns == 200
    assert "in a: 190 ns" in one.text
    assert "in b" not in one.text


def test_no_host_time_is_no_finding():
    assert host_computes(report([*launched(1, 10, 100), *launched(2, 110, 200)])) == []


def test_host_time_is_said_once():
    rows = findings(real_report(REPORTS / "findings.sqlite"))
    assert rows.filter(rows.get_column("rule") == "host-computes").height == 1


def test_the_real_program_that_computes_on_the_host_raises_it():
    of = real_report(REPORTS / "findings.sqlite")
    (one,) = (one for one in ranked(of) if one.rule == "host-computes")
    every = ledger(of).filter(bucket="host").get_column("ns").item()
    assert one.at_stake_ns == intervals.length(one.claims) == every - 2_540_489
    assert "Most in host computes: 27.62 ms in 14 gaps" in one.text


def test_the_real_program_that_does_all_well_does_not():
    assert host_computes(real_report(REPORTS / "findings_clean.sqlite")) == []


US = 1000
LOAD = "cuLibraryLoadData"
STEPS = Window(count=2, each="step")


def spaced(*loads, gap=800 * US):
    """Two launches, and calls of these names late in the time between."""
    calls = [call(name, gap, gap + 10) for name in loads]
    return [*launched(1, 10, 100), *calls, *launched(2, gap + gap // 2, 2 * gap)]


#: Two short stretches, of the host's own code.
TWICE = [*spaced(gap=20 * US), *launched(3, 60 * US, 70 * US)]


#: The same, and a long one after them.
ONE_LONG = [*TWICE, *launched(4, 800 * US, 900 * US)]


@pytest.mark.parametrize(
    ("events", "window", "headline", "action"),
    [
        (TWICE, None, "The GPU waits for the program in 2 short stretches", "fuse them"),
        (TWICE, STEPS, "The GPU waits for the program in 1 short stretch a step", "fuse them"),
        (spaced(gap=20 * US), None, "The GPU waits ", "see what it does there"),
        (spaced(gap=20 * US), STEPS, "The GPU waits ", "see what it does there"),
        (ONE_LONG, STEPS, "The GPU waits ", "see what it does there"),
        (spaced(), None, "The GPU waits ", "see what it does there"),
        (spaced(LOAD), None, "The GPU waits ", "see what it does there"),
        (
            spaced(LOAD),
            STEPS,
            "The GPU waits while the host prepares new kernels",
            "keep to a few shapes",
        ),
    ],
)
def test_what_to_do_is_told_by_the_length_of_gaps_and_what_comes_next(events, window, headline, action):
    (one,) = host_computes(report(events).narrow(window=window))
    assert one.headline.startswith(headline)
    assert one.action.startswith(action)


@pytest.mark.parametrize(("many", "told"), [(5, "waits for the program"), (6, "the host prepares new kernels")])
def test_modules_that_are_loaded_all_along_are_new_kernels_where_nothing_repeats(many, told):
    """Eight launches far apart, before so many of which modules are loaded."""
    events = []
    for number in range(8):
        at = 1_000 * US * number
        events += [call(LOAD, at - 20, at - 10)] if number and number <= many else []
        events += launched(number + 1, at, at + 10 * US)
    (one,) = host_computes(report(events))
    assert told in one.headline


def test_a_program_of_pytorch_is_told_what_its_user_can_do():
    events = [*spaced(gap=20 * US), kernel(60 * US, 61 * US, name="void at::native::add(int)")]
    (one,) = host_computes(report(events))
    assert one.action.startswith("torch.compile(…")
    assert "torch.compile" in one.remedy


def test_it_lies_where_half_of_it_is():
    half = [*launched(1, 10, 100), nvtx("data", 100, 290), *launched(2, 300, 400), *launched(3, 500, 600)]
    (one,) = host_computes(report(half))
    assert one.where == "data"
    (one,) = host_computes(report([*half, *launched(4, 900, 950)]))
    assert one.where == ""
