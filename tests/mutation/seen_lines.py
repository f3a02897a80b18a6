"""A plugin of pytest that notes which lines of the package each test runs; needs Python 3.12.

Each process writes a file of its own into the folder that SEEN_LINES names, those that a test starts as well: a line
`= TEST SECONDS OUTCOME` for each test, and a line `PATH BITS` for each file of the package, whose bit n is line n.
"""

import os
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_TOOL = sys.monitoring.COVERAGE_ID
_bits = defaultdict(int)
_is_child = [False]


@cache
def _relative(file):
    """The file in the checkout, wherever links to it lie; empty for what is no part of the package."""
    path = os.path.relpath(os.path.realpath(file), _ROOT)
    return path if path.startswith(("analyzer/", "collectors/")) else ""


def _line(code, number):
    path = _relative(code.co_filename)
    if path and _is_child[0]:
        # as it may be killed at any time
        _write(f"{path} {1 << number:x}\n")
    elif path:
        _bits[path] |= 1 << number
    return sys.monitoring.DISABLE


def _write(text):
    with Path(os.environ["SEEN_LINES"], f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
        file.write(text)


def watch():
    sys.monitoring.use_tool_id(_TOOL, "kanalyze")
    sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, _line)
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.LINE)
    os.register_at_fork(after_in_child=of_child)


def of_child():
    """Note what this process runs as done by the test that runs now."""
    _is_child[0] = True
    _write(f"= {os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' ')[0]}\n")
    sys.monitoring.restart_events()


def pytest_configure():
    if sys.monitoring.get_tool(_TOOL) is None:
        watch()
    _is_child[0] = False


_file = [""]


def pytest_runtest_logstart(location):
    if location[0] != _file[0]:
        # each file of tests reads what it asks for itself, as it does when it is run alone
        _file[0] = location[0]
        shared = sys.modules.get("support.real_reports")
        for name in ("real_report", "real_summary", "_reports") if shared else ():
            getattr(shared, name).cache_clear()
    _bits.clear()
    sys.monitoring.restart_events()


_outcome = {}


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ and hasattr(report, "node"):
        return
    _outcome["seconds"] = _outcome.get("seconds", 0.0) + report.duration
    _outcome["failed"] = _outcome.get("failed", 0.0) + report.failed
    if report.when == "teardown":
        lines = "".join(f"{path} {bits:x}\n" for path, bits in _bits.items())
        ended = "failed" if _outcome["failed"] else "passed"
        _write(f"= {report.nodeid}\t{_outcome['seconds']:.3f}\t{ended}\n{lines}")
        _outcome.clear()


def pytest_unconfigure():
    sys.monitoring.set_events(_TOOL, 0)
