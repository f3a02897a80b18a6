"""Reports in the repository, read once per process: every table that a test asks for stays for the tests after it.

Only for tests that take a report as it is. One that closes it, replaces a part of the program or measures what reading
takes reads its own by `kanalyze.read`.
"""

from functools import cache

import kanalyze
from kanalyze.readers.capture.reports import every_report


@cache
def real_report(path):
    """The report at `path`, the same object for all tests of a process."""
    return kanalyze.read(path)


@cache
def real_summary(path):
    """The page of the report at `path`, made once as well."""
    return kanalyze.summarize(real_report(path))


@cache
def _reports(folder):
    return tuple(every_report(folder))


def real_capture(folder):
    """The reports of the capture in `folder`, the same objects for all tests of a process."""
    return [*_reports(folder)]
