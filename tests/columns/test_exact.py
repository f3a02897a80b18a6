"""Products, sums and rates up to 2^62: equal to Python's integers, or said not to fit, and never wrapped around."""

import json
import math
from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.columns import exact
from kanalyze.errors import DamagedReportError
from support.build import memcpy, report
from support.command import run

#: All sizes of numbers, not only those near the largest.
NUMBERS = st.integers(0, 62).flatmap(lambda bits: st.integers(0, min(1 << bits, exact.LARGEST)))
FITS = 1 << 63


def one(expression, **values):
    return pl.DataFrame({name: [value] for name, value in values.items()}).select(expression).item()


@given(NUMBERS, NUMBERS)
def test_a_rate_is_that_of_exact_division(amount, ns):
    found = one(exact.rate(pl.col("amount"), pl.col("ns")), amount=amount, ns=ns)
    if ns:
        assert found == pytest.approx(float(Fraction(amount * 10**9, ns)), rel=1e-15)
        assert exact.rate_of(amount, ns) == found
    else:
        assert found is None


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_part_is_that_of_whole_numbers(of, some, whole):
    found = one(exact.part(pl.col("of"), pl.col("some"), pl.col("whole")), of=of, some=some, whole=whole)
    expected = of * some // whole if whole else None
    assert found == (expected if expected is None or expected < FITS else None)


@given(NUMBERS, NUMBERS, st.tuples(*[st.integers(0, (1 << 31) - 1)] * 3))
def test_a_product_is_that_of_whole_numbers_or_none(left, right, sides):
    found = one(exact.product(pl.col("left"), pl.col("right")), left=left, right=right)
    assert found == (left * right if left * right < FITS else None)
    grid = one(exact.product(*map(pl.col, "xyz")), **dict(zip("xyz", sides, strict=True)))
    assert grid == (math.prod(sides) if math.prod(sides) < FITS else None)


@given(st.lists(NUMBERS, max_size=6))
def test_a_sum_is_that_of_whole_numbers_or_none(values):
    found = pl.DataFrame({"at": values}, schema={"at": pl.Int64}).select(exact.added(pl.col("at"))).item()
    assert found == (sum(values) if sum(values) < FITS else None)


@given(st.lists(st.tuples(NUMBERS, st.sampled_from([-1, 1])), max_size=6))
def test_what_could_overflow_is_told(signed):
    values = [value * sign for value, sign in signed]
    frame = pl.DataFrame({"at": values}, schema={"at": pl.Int64})
    assert (exact.too_large(frame, ("at",), ()) is None) == (sum(map(abs, values)) <= exact.LARGEST)
    assert exact.too_large(frame, (), ("at",)) is None


def test_a_single_number_is_too_large_whatever_its_sign():
    for value in (exact.LARGEST + 1, -exact.LARGEST - 1, -(1 << 63)):
        frame = pl.DataFrame({"at": [1, value]})
        assert f"{value:,}" in (exact.too_large(frame, (), ("at",)) or "")


def test_sizes_that_cannot_be_added_up_are_an_error_and_no_wrong_sum():
    huge = report([memcpy(0, 5, size_bytes=1 << 61), memcpy(5, 9, size_bytes=1 << 61)])
    with pytest.raises(DamagedReportError, match="size_bytes adds up to 4,611,686,018,427,387,904"):
        kanalyze.copies(huge)


def test_times_that_cannot_be_added_up_are_an_error():
    for events in ([memcpy(0, 1 << 61), memcpy(0, 1 << 61)], [memcpy(1 << 61, (1 << 61) + (1 << 61))]):
        with pytest.raises(DamagedReportError, match=r"events"):
            kanalyze.ledger(report(events))


def a_copy_of(size, us):
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7, "ts": 10}
    args = {"device": 0, "stream": 7, "correlation": 1, "bytes": size}
    events = [{**call, "args": {"correlation": 1}}, {**copy, "dur": us, "args": args}]
    device = {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    return json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events})


@pytest.mark.parametrize("size", [9_223_372_036, 9_223_372_037, 10_000_000_000, 20_000_000_000, 80 << 30])
def test_a_copy_of_more_than_nine_gigabytes_has_its_rate(tmp_path: Path, size):
    trace = tmp_path / "trace.json"
    trace.write_text(a_copy_of(size, 1_000_000), encoding="utf-8")
    (row,) = kanalyze.copies(kanalyze.read(trace)).to_dicts()
    assert row["bandwidth_bytes_per_s"] == size
    shown = run("show", "copies", trace, "--format", "json")
    assert [row["bandwidth_bytes_per_s"] for row in json.loads(shown.text)] == [size]
