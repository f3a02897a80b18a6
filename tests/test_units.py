"""Quantities become text in one place, and no text says more than the quantity does."""

import pytest
from hypothesis import given, strategies as st

from kanalyze import units

#: What each function makes of a quantity, the last of each row; µ is the micro sign, μ the Greek letter.
CASES = {
    units.parse_time_ns: (
        *(("0ns", 0), ("904 ns", 904), ("300us", 300_000), ("300µs", 300_000), ("300μs", 300_000)),
        *(("1.5 ms", 1_500_000), (" 2s ", 2_000_000_000), ("+2s", 2_000_000_000), ("-0.25s", -250_000_000)),
        *(("0.0000000019s", 1), ("7.071573 s", 7_071_573_000), ("9007199.254740993s", 9_007_199_254_740_993)),
        *(("", None), ("12", None), ("12 m", None), ("12 MS", None), ("1,5ms", None), (".5ms", None)),
        *(("1.ms", None), ("1e3ns", None), ("nans", None), ("\u0661ms", None)),
    ),
    units.time: (
        *((0, "0 ns"), (1, "1 ns"), (0.5, "0.5 ns"), (801.5, "801.5 ns"), (999, "999 ns"), (999.5, "1.000 µs")),
        *((1000, "1.000 µs"), (9450, "9.450 µs"), (209_768, "209.8 µs"), (999_499, "999.5 µs")),
        *((999_999, "1.000 ms"), (57_255_472, "57.26 ms"), (99_996_000, "100.0 ms"), (999_500_000, "1.000 s")),
        *((2_903_424_000, "2.903 s"), (86_400_000_000_000, "86400.0 s"), (-57_255_472, "-57.26 ms")),
    ),
    units.size: (
        *((0, "0 B"), (512, "512 B"), (999.5, "1.000 kB"), (8_388_608, "8.389 MB"), (4_194_304, "4.194 MB")),
        *((143_771_041_792, "143.8 GB"), (2 * 10**12, "2.000 TB")),
    ),
    units.percent: (
        *((0, "0.0 %"), (1e-9, "<0.1 %"), (0.000_499, "<0.1 %"), (0.0005, "0.1 %"), (0.278, "27.8 %")),
        *((0.9995, "100.0 %"), (0.9997, ">99.9 %"), (1 - 1e-9, ">99.9 %"), (1, "100.0 %"), (1.5, "150.0 %")),
    ),
    units.change: (
        *((1.0, "+0.0 %"), (1.0499, "+5.0 %"), (0.958, "−4.2 %"), (1.0004, "<+0.1 %"), (0.9996, ">−0.1 %")),
        *((0.0001, "<−99.9 %"), (1.9998, ">+99.9 %"), (0.0, "−100.0 %"), (9.5, "+850.0 %")),
    ),
    units.instant: (
        *((0, "0.000 ms"), (317_837_081, "317.837 ms"), (7_071_573_210, "7.071573 s"), (-1_000_000, "-1.000 ms")),
        *((1_000_200_000, 1_000_000_000, "+0.200 ms"), (3_500_000_001, 1_000_000_001, "+2.500000 s")),
        *((900_000_000, 1_000_000_000, "-100.000 ms"), (1_000_000_000, 1_000_000_000, "+0.000 ms")),
    ),
    units.plural: (
        *((1, "kernel", "1 kernel"), (0, "kernel", "0 kernels"), (3000, "kernel", "3,000 kernels")),
        *((2, "process", "2 processes"), (2, "launch", "2 launches"), (2, "copy", "2 copies")),
        *((1, "copy", "1 copy"),),
    ),
    units.mean: (
        *((71_040, 60, "1,184"), (71_039, 60, "1,184"), (5999, 60, "100.0"), (150, 60, "2.5"), (121, 60, "2.0")),
        *((120, 60, "2"), (0, 60, "0")),
    ),
    units.parse_percent: (
        *(("50%", 0.5), (" 12.5 % ", 0.125), ("0%", 0.0), ("150%", 1.5), ("50", None), ("0.5", None)),
        *(("-5%", None), (".5%", None), ("5 % %", None), ("\u0665%", None), ("", None)),
    ),
    units.times: (
        *((0, "0.00 ×"), (1, "1.00 ×"), (8.418, "8.42 ×"), (9.994, "9.99 ×"), (9.996, "10.0 ×")),
        *((33.58, "33.6 ×"), (99.94, "99.9 ×"), (99.96, "100 ×"), (1104.2, "1,104 ×")),
    ),
    units.moment: (*((1500, 0, "1.500 µs"), (1500, 500, "+1.000 µs")),),
    units.rate: (*((30_840_000_000, "30.84 GB/s"),),),
    units.count: (*((270_336, "270,336"),),),
}

PARTS = st.lists(st.integers(0, 10**13), min_size=1, max_size=12)


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_quantities_as_text_and_back(function):
    for *given_, expected in CASES[function]:
        assert function(*given_) == expected, given_


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_share_that_is_not_none_or_all_never_looks_so(share):
    assert units.percent(share) not in ("0.0 %", "100.0 %")


def test_parts_are_printed_in_the_unit_of_their_total():
    assert units.adding_up([57_255_472, 111_089_700, 296], 168_345_468) == ["57.255 ms", "111.090 ms", "<0.001 ms"]
    assert units.adding_up([3, 4], 7) == ["3 ns", "4 ns"]
    assert units.adding_up([], 0) == []


@given(PARTS)
def test_printed_parts_add_up_to_the_printed_total(parts):
    total = sum(parts)
    texts, (whole,) = units.adding_up(parts, total), units.adding_up([total], total)
    (unit,) = {text.split()[1] for text in (*texts, whole)}
    digits = [0 if text.startswith("<") else int(text.split()[0].replace(".", "")) for text in texts]
    assert sum(digits) == int(whole.split()[0].replace(".", ""))
    assert unit in ("ns", "µs", "ms", "s")


@given(PARTS, st.integers(0, 10**6))
def test_apportioned_parts_sum_to_the_whole_and_are_off_by_less_than_one(parts, whole):
    cut = units.apportioned(parts, whole)
    total = sum(parts)
    assert sum(cut) == (whole if total else 0)
    assert all(abs(piece * total - part * whole) < total for piece, part in zip(cut, parts, strict=True) if total)


@pytest.mark.parametrize(
    ("check", "one", "two"),
    [
        ("operations without a launch", "1 operation without a launch", "2 operations without a launch"),
        ("kernels that overlap within a stream", "1 kernel that overlaps within a stream", None),
        ("processes at work before the recording", "1 process at work before the recording", None),
        ("graph launches without nodes", "1 graph launch without nodes", None),
        ("unified-memory copies", "1 unified-memory copy", None),
        ("rows missing from A", "1 row missing from A", "2 rows missing from A"),
        ("negative durations", "1 negative duration", "2 negative durations"),
        ("shared use of a GPU", "1 shared use of a GPU", None),
        ("idle time of unknown cause", "1 idle time of unknown cause", None),
        ("nsys: Not all events were collected.", "nsys: Not all events were collected", None),
    ],
)
def test_a_check_is_told_with_its_count(check, one, two):
    assert units.checked(check, 1) == one
    assert two is None or units.checked(check, 2) == two
