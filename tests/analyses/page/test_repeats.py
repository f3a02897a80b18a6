"""What several runs of one program say together."""

from functools import cache

from kanalyze.analyses.page.overview_page import repeated
from kanalyze.analyses.page.time_page import summarize
from support.build import call, kernel, report

LAUNCH = call("cudaLaunchKernel", 0, 10, correlation=1)


@cache
def runs():
    return [summarize(report([LAUNCH, kernel(20, dur, correlation=1)])) for dur in (100, 130, 110)]


def test_one_run_is_as_it_is():
    assert repeated(runs()[:1]) is runs()[0]


def test_several_are_the_first_with_how_far_they_are_apart():
    found = repeated(runs())
    assert found.windows.equals(runs()[0].windows)
    assert found.answer == (
        f"{runs()[0].answer} This is the first of 3 runs: their windows are 100 ns to 130 ns (median 110 ns, "
        "27.3 % apart), and their busy times 80 ns to 110 ns (median 90 ns, 33.3 % apart)."
    )


def test_a_run_without_gpu_work_is_told():
    nothing = summarize(report([LAUNCH]))
    assert repeated([runs()[0], nothing]).answer.endswith(
        "first of 2 runs; in 1 of them nothing that a GPU did was recorded."
    )
    assert ", in 2 of them nothing" in repeated([runs()[0], nothing, nothing]).answer.replace(";", ",")
