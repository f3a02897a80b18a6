"""Loading of modules: how many calls, how long; of a call that made a context first only what it took after that."""

import pytest

from kanalyze.analyses.findings.rules.loading import cold_start
from support.build import call, kernel, overhead, report

FIRST = [call("cudaLaunchKernel", -3, 0, correlation=9), kernel(0, 5, correlation=9)]
LAST = [call("cudaLaunchKernel", 1_000, 1_010, correlation=1), kernel(1_010, 1_020, correlation=1)]


def loading(*events):
    found = cold_start(report([*FIRST, *events, *LAST]))
    return [(one.at_stake_ns, one.text.removeprefix("Loading modules and libraries: ")) for one in found
            if one.rule == "module-loading"]  # fmt: skip


def test_calls_that_load():
    events = [call("cuModuleLoadData", 10, 40), call("cuLibraryLoadData", 50, 60), call("cuModuleLoadData", 70, 75)]
    assert loading(*events) == [(45, "3 calls, the longest 30 ns (most in cuModuleLoadData, cuLibraryLoadData).")]


def test_those_of_a_process_that_does_not_use_the_device_are_not_counted():
    events = [call("cuModuleLoadData", 10, 40), call("cuModuleLoadData", 10, 400, process=2)]
    assert loading(*events) == [(30, "1 call, the longest 30 ns (most in cuModuleLoadData).")]


@pytest.mark.parametrize(
    ("mark", "stake", "text"),
    [
        (110, 590 + 50, "2 calls, the longest 590 ns (most in cuModuleLoadData, cuLibraryLoadData)."),
        (699, 1 + 50, "2 calls, the longest 50 ns (most in cuLibraryLoadData, cuModuleLoadData)."),
        (700, 50, "1 call, the longest 50 ns (most in cuLibraryLoadData)."),
    ],
)
def test_a_call_that_made_a_context_loads_from_then_on(mark, stake, text):
    made = [call("cuModuleLoadData", 100, 700), overhead("CUDA context created", mark, mark)]
    assert loading(call("cuLibraryLoadData", 20, 70), *made) == [(stake, text)]
