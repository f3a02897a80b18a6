"""Reports in the repository, read once per process, and the lists of them that tests of any report go through.

Every table that a test asks for stays for the tests after it. Only for tests that take a report as it is: one that
closes it, replaces a part of the program or measures what reading takes reads its own by `kanalyze.read`.
"""

from functools import cache

import kanalyze
from kanalyze.readers.capture.reports import every_report
from support.command import REPORTS

#: Exports of nsys, one for each set of what is recorded: devices and processes, ranges, syncs, memory, graphs, samples.
_EXPORTS = """add communicators empty findings gpu_metrics graph_graph graph_node libraries memory network nvtx
sampled_python thrash torch two_gpus two_processes"""
EXPORTS = [REPORTS / f"{name}.sqlite" for name in _EXPORTS.split()]

#: Traces of torch.profiler, likewise.
_TRACES = """autograd_profiler cpu_only cuda_graph ddp device_only memory overlapping_annotations sync_events
with_modules"""
TRACES = [REPORTS / "torch" / f"{name}.json.gz" for name in _TRACES.split()]


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
