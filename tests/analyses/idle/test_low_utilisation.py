"""Stretches of little work, of work whose process is not known."""

import warnings

from kanalyze.analyses.idle.utilisation import utilisation
from support.build import kernel, overhead, report


def test_work_without_a_process_has_the_overhead_without_one():
    profiled = "CUDA profiling overhead"
    events = [kernel(1, 10, process=None), kernel(90, 101, process=None), overhead(profiled, 20, 90, process=None)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = utilisation(report(events[:2]), chunks=1, as_nsys=True)
        found = utilisation(report(events), chunks=1, as_nsys=True)
    assert alone.get_column("in_use_share").to_list() == [0.2]
    assert found.is_empty()  # with the overhead it is at 90 %
