"""Two durations are apart by no more than launches are where their spans touch, and by more from the next step on."""

from types import SimpleNamespace

import pytest

from kanalyze.analyses.joining._reasons import Reasons, UnderNcu

SPREAD = SimpleNamespace(around=lambda row, suffix="": row[f"span{suffix}"])


@pytest.mark.parametrize(
    ("own", "other", "explained"),
    [((10, 20), (20, 30), True), ((10, 20), (21, 30), False), ((20, 30), (10, 20), True), ((21, 30), (10, 20), False)],
)
def test_of_two_tools(own, other, explained):
    reasons = Reasons(("nsys", "torch.profiler"), SPREAD, None, [], None)
    found = reasons.of({"figure": "duration", "span": own, "span_other": other})
    assert (found is not None) == explained
    if found:
        assert found[0] == "spread"


@pytest.mark.parametrize(("measured", "within"), [(10, True), (20, True), (15, True), (9, False), (21, False)])
def test_under_ncu(measured, within):
    under = UnderNcu("nsys", SPREAD, clock_hz=1_000, l2_bytes=1, dram_bytes_per_s=1, selective=None)
    row = {"span": (10, 20), "second": measured, "sm_clock_hz": None, "cold_share": None}
    found = under.duration(row | {"faulted": True})
    assert (found is not None and found[0] == "spread") == within
