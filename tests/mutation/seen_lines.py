"""A plugin of pytest that notes which lines of the package each file of tests runs; needs Python 3.12.

Written to the file that SEEN_LINES names, as JSON: by file of the package, by file of tests, the lines; and under the
key `seconds` what each file of tests took.
"""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

from hypothesis import settings

_ROOT = Path(__file__).parents[2]
_PACKAGE = tuple(f"{_ROOT / folder}{os.sep}" for folder in ("analyzer", "collectors"))

# which lines are run is known after a few examples
settings.register_profile("seen", deadline=None, max_examples=10)

_lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
_seconds: dict[str, float] = defaultdict(float)
_current = [""]


def _line(code, number):
    if code.co_filename.startswith(_PACKAGE):
        _lines[os.path.relpath(code.co_filename, _ROOT)][_current[0]].add(number)
    return sys.monitoring.DISABLE


def pytest_configure():
    tool = sys.monitoring.COVERAGE_ID
    sys.monitoring.use_tool_id(tool, "kanalyze")
    sys.monitoring.register_callback(tool, sys.monitoring.events.LINE, _line)
    sys.monitoring.set_events(tool, sys.monitoring.events.LINE)


def pytest_runtest_logstart(location):
    if location[0] != _current[0]:
        _current[0] = location[0]
        _write()
        sys.monitoring.restart_events()


def pytest_runtest_logreport(report):
    _seconds[report.location[0]] += report.duration


def pytest_sessionfinish():
    _write()


def _write():
    """After every file of tests: a run that is stopped leaves what it saw."""
    found = {file: {test: sorted(lines) for test, lines in by.items() if test} for file, by in _lines.items()}
    target = Path(os.environ["SEEN_LINES"])
    target.write_text(json.dumps({"seconds": dict(_seconds), "lines": found}))
