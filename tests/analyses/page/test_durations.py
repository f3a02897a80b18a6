"""Distributions of durations: of the kernels with most time in sum, in bins of equal ratios."""

from kanalyze.analyses.page.file_page import durations
from support.build import kernel, report


def one_after_the_other(*launches):
    """A report of kernels, each a name and how long it ran."""
    events, at = [], 0
    for name, ns in launches:
        events.append(kernel(at, at + ns, name=name))
        at += ns
    return report(events)


def test_the_kernels_with_most_time_have_one():
    """40 of 42; what one launch takes, or their number, would choose others."""
    once = [(f"once{number:02}", 200) for number in range(39)]
    often, long, many = [("often", 30)] * 10, [("long", 150)], [("many", 1)] * 100
    rows = durations(one_after_the_other(*long, *many, *often, *once))
    assert rows.get_column("name").to_list() == ["often", *(name for name, _ in once)]


def test_a_launch_is_in_the_bin_of_its_logarithm():
    (row,) = durations(one_after_the_other(*(("k", ns) for ns in (10, 100, 100, 1_000)))).to_dicts()
    counts = row.pop("counts")
    assert row == {"name": "k", "least_ns": 10, "most_ns": 1_000}
    last = len(counts) - 1
    assert {at: count for at, count in enumerate(counts) if count} == {0: 1, len(counts) // 2: 2, last: 1}
