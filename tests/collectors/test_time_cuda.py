"""Timing: the distribution, and what is done in which order on a GPU that a stand-in plays."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kanalyze.collectors.time_cuda import Timing, time_cuda
from kanalyze.errors import CollectError


def timing(*times_ns, **more):
    return Timing(
        **{"times_ns": times_ns, "first_ns": 209_800, "warmup": 5, "device": "H<200>", "clock": "cuda events"} | more
    )


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.floats(0, 1))
def test_the_figures_are_numpys(times_ns, share):
    told = timing(*times_ns)
    low, middle, high = np.quantile(np.array(times_ns, dtype=np.float64), [0.25, 0.5, 0.75])
    assert (*told.quartiles_ns, told.median_ns) == pytest.approx((low, high, middle), rel=1e-12, abs=1e-3)
    assert told.spread == pytest.approx((high - low) / middle if middle else 0.0, abs=1e-3)
    expected = np.quantile(np.array(times_ns, dtype=np.float64), share)
    assert timing(*times_ns).quantile_ns(share) == pytest.approx(float(expected), rel=1e-12, abs=1e-3)


def test_a_timing_is_one_line():
    assert repr(timing(9_000, 9_450, 9_900, 12_000, flushed_bytes=1)) == (
        "Timing: median 9.675 µs (quartiles 9.338 µs to 10.43 µs, 9.000 µs to 12.00 µs in all) of 4 calls on H<200> by "
        "cuda events, L2 flushed; first call 209.8 µs"
    )


def test_a_notebook_shows_a_table_and_a_bar_for_each_mode(gold):
    gold(timing(*[1_000] * 3, *[2_000] * 6)._repr_html_().replace("><", ">\n<"), "timing.html")
    assert timing(5)._repr_html_().endswith("</svg>")


class Gpu:
    """A device whose clock goes on by what is put on its stream; it writes down what that was."""

    def __init__(self, *, available=True, call_ns=1_000):
        self.told, self.now_ns, self.call_ns = [], 0, call_ns
        gpu, self.module = self, MagicMock()

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing

            def record(self):
                gpu.told.append("event")
                self.at_ns = gpu.now_ns

            def elapsed_time(self, later):
                assert gpu.told[-1] == "wait"
                return (later.at_ns - self.at_ns) / 1e6

        cuda = self.module.cuda
        cuda.Event, cuda.is_available.return_value = Event, available
        cuda.get_device_properties.return_value.configure_mock(name="Stand-in", L2_cache_size=1_000)
        cuda.synchronize.side_effect = lambda: self.told.append("wait")
        cuda._sleep.side_effect = lambda cycles: self.put("sleep", cycles)  # noqa: SLF001 - torch's own
        self.module.zeros.side_effect = lambda count, **_: SimpleNamespace(nbytes=count * 4)
        self.module.sum.side_effect = lambda *_, **__: self.put("flush", 500)

    def put(self, what, takes_ns):
        self.told.append(what)
        self.now_ns += takes_ns

    def call(self):
        self.put("call", self.call_ns)
        self.call_ns += 10


@pytest.fixture
def gpu(monkeypatch):
    made = Gpu()
    monkeypatch.setitem(sys.modules, "torch", made.module)
    return made


def test_only_the_call_is_between_the_events(gpu):
    told = time_cuda(gpu.call, warmup=2, repeats=3, flush_l2=True, device="cuda:1")
    assert gpu.told[-16:] == [*["flush", "sleep", "event", "call", "event"] * 3, "wait"]
    calls = gpu.told.count("call")
    assert told.times_ns == tuple(1_000 + 10 * n for n in range(calls - 3, calls))
    assert (told.device, told.clock, told.warmup, told.flushed_bytes) == ("Stand-in", "cuda events", 2, 2_000)
    gpu.module.cuda.device.assert_called_once_with("cuda:1")


@pytest.mark.slow
def test_the_budget_gives_the_number_of_calls(gpu):
    assert len(time_cuda(gpu.call, budget_s=1e-9).times_ns) == 10
    assert len(time_cuda(gpu.call, budget_s=1e9).times_ns) == 10_000


def test_the_host_clock_on_request():
    calls = []
    told = time_cuda(lambda: calls.append(1), device="cpu", repeats=7, warmup=3)
    assert (len(calls), len(told.times_ns), told.warmup, told.device, told.clock) == (10, 7, 3, "CPU", "host")
    assert min(told.times_ns) > 0


def test_without_a_gpu_or_torch_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Gpu(available=False).module)
    with pytest.raises(CollectError, match="torch finds no GPU here") as raised:
        time_cuda(lambda: None)
    assert 'device="cpu"' in raised.value.remedy
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CollectError, match="torch cannot be imported"):
        time_cuda(lambda: None)


@pytest.mark.parametrize(
    "wrong", [{"warmup": -1}, {"repeats": 0}, {"budget_s": 0}, {"device": "cpu", "flush_l2": True}]
)
def test_counts_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"warmup is 0 or more|flush_l2 is for GPUs"):
        time_cuda(lambda: None, **wrong)
