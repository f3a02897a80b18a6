"""What `nsys stats` wrote for the reports of the tests and the samples, and how its rows are compared with ours.

The files are tests/reports/expected/<report>/<nsys report>.csv; a sample's report is called samples/<name>. nsys rounds
averages, medians and deviations to one decimal; integers must be equal. An empty file is a report without rows, or one
that nsys could not make.
"""

import re
from pathlib import Path

from support.real_reports import real_report

TESTS = Path(__file__).parent.parent
EXPECTED = TESTS / "reports" / "expected"

#: nsys' columns of durations, and ours.
TIMES = {
    "Total Time (ns)": "total_ns", "Avg (ns)": "avg_ns", "Med (ns)": "median_ns", "Min (ns)": "min_ns",
    "Max (ns)": "max_ns", "StdDev (ns)": "stddev_ns",
}  # fmt: skip

#: A field: quoted, up to a quote that ends it (nsys does not double those within), or plain.
_FIELD = re.compile(r'(?:"(?P<quoted>.*?)"|(?P<plain>[^,]*))(?:,|$)')


def reports_with(nsys_report, within=""):
    """The names of the reports for which nsys' CSV of that kind is there; of samples `within` ``samples/``."""
    return sorted(str(path.parent.relative_to(EXPECTED)) for path in EXPECTED.glob(f"{within}*/{nsys_report}.csv"))


def path_of(name):
    _, sample, folder = name.partition("samples/")
    return TESTS.parent / "sample_reports" / folder / "nsys.sqlite" if sample else TESTS / "reports" / f"{name}.sqlite"


def report_of(name):
    return real_report(path_of(name))


def fields_of(line):
    found, at = [], 0
    while at <= len(line):
        match = _FIELD.match(line, at)
        quoted = match["quoted"]
        found.append(match["plain"] if quoted is None else quoted)
        more = match.end() > at and line[match.end() - 1] == ","
        at = match.end() if more else len(line) + 1
    return found


def rows_of(name, nsys_report):
    """The rows that nsys printed, by its own names of the columns."""
    lines = (EXPECTED / name / f"{nsys_report}.csv").read_text(encoding="utf-8").splitlines()
    if not lines:
        return []
    header, *rows = map(fields_of, lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def assert_rows(ours, theirs, columns):
    """Our rows are nsys' rows, in nsys' order; `columns` are our names of nsys' columns."""
    mine = ours.rows(named=True)
    assert len(mine) == len(theirs)
    for number, (row, expected) in enumerate(zip(mine, theirs, strict=True)):
        wrong = {
            name: (row[name], expected[key]) for key, name in columns.items() if not agrees(row[name], expected[key])
        }
        assert not wrong, (number, wrong)


def agrees(value, text):
    """Whether nsys' text is our value, within half of its last digit."""
    if value is None:
        return text == ""
    if isinstance(value, float):
        places = len(text.partition(".")[2])
        return abs(value - float(text)) <= 0.5 * 10**-places + 1e-9 * abs(value)
    return str(value) == text
