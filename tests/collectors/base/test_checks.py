"""Check lines in logs: which there are, and which passed."""

import pytest

from kanalyze.collectors.base.checks import checks


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        ("Max error: 0", True),
        ("Max error: 0.001", True),
        ("Max error: -0.001.", True),
        ("Max error: 0.0011", False),
        ("Max error: -0.5", False),
        ("Max error: inf", False),
        ("Max error: nan", False),
        ("Max error: none", False),
        ("check: ok", True),
        ("check: FAILED in 3 of 4", False),
        ("rank0: check: ok", True),
    ],
)
def test_a_check_passes_within_the_tolerance(tmp_path, line, passed):
    (tmp_path / "log").write_text(f"before\n{line}\nafter\n")
    (found,) = checks(tmp_path / "log")
    assert found.passed is passed
    assert found.line == line.removeprefix("rank0: ")


def test_lines_count_once_and_only_near_the_end_of_a_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("check: ok one\n" + "x" * (1 << 20) + "\ncheck: ok two\rcheck: FAILED three\ncheck: ok two\n")
    assert [(one.line, one.passed) for one in checks(log)] == [("check: ok two", True), ("check: FAILED three", False)]
