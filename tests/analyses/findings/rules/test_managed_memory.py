"""Work of the CPU on managed memory, told by its page faults."""

from pathlib import Path

from kanalyze.analyses.findings.rules.memory import cpu_page_faults
from support.build import call, host, kernel, report
from support.real_reports import real_report

SAMPLES = Path(__file__).parents[4] / "sample_reports"


def program(faults):
    """Two kernels with 90 µs of the program's own code between, and CPU page faults in it."""
    return report(
        [
            call("cudaLaunchKernel", 0, 100, correlation=1),
            kernel(100, 1_000, correlation=1),
            *(host("fault", "", 2_000 + at, 2_000 + at, side={"function": "check(float *)"}) for at in range(faults)),
            call("cudaLaunchKernel", 91_000, 91_100, correlation=2),
            kernel(91_200, 92_000, correlation=2),
        ]
    )


def test_the_function_that_faults_is_named():
    (finding,) = cpu_page_faults(program(10))
    assert (finding.at_stake_ns, finding.where) == (90_000, "check(float *)")
    assert "faults in 10 pages as it goes: check(float *) 90.00 µs" in finding.text


def test_a_few_faults_are_nothing():
    assert cpu_page_faults(program(4)) == []


def test_work_after_the_last_kernel_is_told_as_that():
    (finding,) = cpu_page_faults(real_report(SAMPLES / "add_parallel"))
    assert "is after the last kernel" in finding.text
    assert finding.claims.height
