"""The recording computed anew: exact without a change, never later with a faster one, right of simulated programs."""

import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze.analyses.replay._changes import Changes, changed, matching
from kanalyze.analyses.replay._host_time import HostTime
from kanalyze.analyses.replay._network import as_recorded, replayed
from kanalyze.analyses.replay._whatif import prepared, whatif_of, window_without
from kanalyze.analyses.replay.critical_path import critical_path
from kanalyze.errors import KanalyzeError, UnknownNameError
from kanalyze.window import Window
from support.build import again, call, kernel, launched, memcpy, nvtx, report, timeline
from support.command import SAMPLES
from support.real_reports import real_report
from support.slow_replay import TURNS, simulated
from support.strategies import EVENTS, few_given, slow_given

REPORTS = sorted([*SAMPLES.glob("*/nsys.sqlite"), *SAMPLES.glob("*/*.json.gz")])


def _whatif(found, *, each=False, measured_ns=None, **changes):
    return whatif_of(found, Changes(**changes), [], each=each, measured_ns=measured_ns)


def _same(found):
    net = prepared(found)
    for lags in ("lag", "low", "high"):
        assert replayed(net, as_recorded(net, lags)).to_list() == net.nodes["at"].to_list(), lags


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: "-".join(path.parts[-2:]))
@pytest.mark.slow
def test_without_a_change_every_time_is_as_recorded(path):
    _same(real_report(path))


@slow_given(EVENTS)
def test_without_a_change_every_time_of_odd_recordings_is_as_recorded(events):
    _same(report(events))


FACTORS = st.sampled_from([1, 2, 4])


@slow_given(TURNS, st.fixed_dictionaries({"a": FACTORS, "b": FACTORS, "host:work": FACTORS}))
def test_faster_kernels_and_host_code_of_simulated_programs(turns, by):
    found, before = _whatif(simulated(turns).report, faster=tuple(by.items())), simulated(turns).end
    host = by["host:work"]
    after = simulated(turns, kernel_ns=lambda one: one.ns // by[one.name], host_ns=lambda one: one.ns // host).end
    assert found.low_ns <= found.then_ns == after <= found.now_ns == before
    assert host > 1 or found.low_ns <= found.then_ns * 0.97 <= found.then_ns * 1.03 <= found.high_ns


@few_given(TURNS, st.lists(st.sampled_from(["a", "b", "host", "calls", "host:work"]), min_size=1, unique=True))
def test_faster_is_never_later(turns, names):
    made = simulated(turns).report
    took = [_whatif(made, faster=tuple((name, factor) for name in names)).then_ns for factor in (1, 1.5, 3, 100)]
    assert took == sorted(took, reverse=True)
    assert took[0] == simulated(turns).end


def _host_bound(unit=1):
    work = launched(90 * unit, 95 * unit, kernel(97 * unit, 147 * unit, name="void ns::gemm<float>(int)"))
    events = again(range(0, 1000 * unit, 100 * unit), nvtx("prepare", 0, 80 * unit), *work)
    return report([*events, call("cudaDeviceSynchronize", 1000 * unit, 1055 * unit)])


FIRST = launched(0, 2, kernel(10, 110, name="gemm"))
COPIED = launched(0, 5, memcpy(10, 1010, size_bytes=10_000), "cudaMemcpyAsync")
PAGEABLE = memcpy(1010, 1020, side={"source_memory": "Pageable", "target_memory": "Device"})
BEFORE_COPY = [*launched(0, 5, kernel(9, 1009, name="gemm")), *launched(10, 100, PAGEABLE, "cudaMemcpyAsync")]
BEFORE_COPY += [nvtx("work", 101, 2000), call("cudaDeviceSynchronize", 2000, 2010)]
#: The next launch is after the window: what came before it is no call.
HELD_BY_NONE = [*launched(0, 5, kernel(10, 50, name="gemm")), *launched(90, 95, kernel(96, 130, name="b"))]
UNWAITED = launched(0, 5_000, kernel(4_000, 300_000, name="gemm"))
UNWAITED += launched(6_000, 8_000, kernel(301_000, 302_000, name="b"))


@pytest.mark.parametrize(
    ("of", "changes", "now_ns", "saved_ns", "amdahl_ns"),
    [
        # a faster kernel of a host-bound program gains what follows the last launch
        (_host_bound(), {"faster": (("gemm", 2),)}, 965, 25, 250),
        # host code of a range until the device is the limit, and in a window nothing that is before it
        (_host_bound(), {"faster": (("host:prep*", 2),)}, 965, 9 * 40, 9 * 40),
        (_host_bound().narrow(window="500ns..1000ns"), {"faster": (("host:prepare", 2),)}, 500, 5 * 40, None),
        # what begins in the last quarter of an operation follows its end
        (report([*FIRST, *launched(4, 6, kernel(105, 205, name="b"))]), {"faster": (("gemm", 2),)}, 205, 50, None),
        (report([*FIRST, *launched(4, 6, kernel(60, 160, name="b"))]), {"faster": (("gemm", 2),)}, 160, 0, None),
        (report([*COPIED, call("cudaDeviceSynchronize", 6, 1015)]), {"copies_bytes_per_s": 20e9}, 1015, 500, None),
        # a call that returned before its copy began waited for nothing
        (report(BEFORE_COPY), {"faster": (("gemm", 2),)}, 2010, 0, None),
        (report(HELD_BY_NONE).narrow(window=Window(0, 70)), {"faster": (("gemm", 4),)}, 70, 0, None),
        # a launch that nothing waited for takes no longer than launches do
        (report(UNWAITED), {"faster": (("gemm", 1000),)}, 302_000, 302_000 - 19_000, None),
    ],
)
def test_what_a_change_saves(of, changes, now_ns, saved_ns, amdahl_ns):
    found = _whatif(of, **changes)
    assert (found.now_ns, found.now_ns - found.then_ns) == (now_ns, saved_ns)
    assert amdahl_ns is None or found.now_ns - found.amdahl_ns == amdahl_ns


def test_a_host_that_no_call_holds_is_in_its_own_code_at_the_end_of_a_window():
    found = _whatif(report(HELD_BY_NONE).narrow(window=Window(0, 70)), faster=(("gemm", 4),))
    assert {one.cause: one.then_ns for one in found.critical} == {"host": 65, "launch": 5}


def test_without_the_device_the_host_s_time_is_left():
    whole, alone = (window_without(_host_bound(), device=device) for device in (True, False))
    assert whole(HostTime()) == 965
    assert alone(HostTime()) == pytest.approx(965 - 50, rel=0.01)
    assert alone(HostTime(0.5)) < 0.6 * alone(HostTime())


@pytest.mark.parametrize("change", [("gemm", 2), ("host:prepare", 2), ("host", 2), ("calls", 2)])
def test_a_window_that_ends_in_an_operation(change):
    found = _whatif(_host_bound().narrow(window="100ns..420ns"), faster=(change,))
    assert found.then_ns <= found.now_ns == 320
    assert sum(one.then_ns for one in found.critical) == found.then_ns


def _two_ranks(late_ns, kernel_ns=50):
    """Two ranks of one process each: host, kernel, a collective that ends when both came and 20 ns have passed."""
    events, begun = [], (10, 10 + late_ns)
    end = max(begun) + 7 + kernel_ns + 1 + 20
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for rank, at in enumerate(begun):
        of, keys = {"process": rank + 1}, {"process": rank + 1, "device": rank}
        came = at + 7 + kernel_ns + 1
        events += launched(0, 5, kernel(6, 7, name="first", **keys), **of)
        events += [nvtx("delay", 6, at, **of)] if rank * late_ns else []
        events += launched(at, at + 5, kernel(at + 7, at + 7 + kernel_ns, name="gemm", **keys), **of)
        events += launched(at + 6, at + 11, kernel(came, end, name=name, **keys), **of)
        events.append(call("cudaDeviceSynchronize", came - 10, end + 3, **of))
    return report(events)


def test_a_collective_ends_after_the_last_rank_came():
    made = _two_ranks(200)
    found = _whatif(made, faster=(("host:delay", 2),))
    assert found.now_ns == 10 + 200 + 7 + 50 + 1 + 20 + 3
    assert found.now_ns - found.then_ns == (200 + 4) // 2
    faster = _whatif(made, faster=(("nccl*", 2),))
    assert faster.now_ns - faster.then_ns == 10


def _in_fours(start, step_ns, apart_ns, call_ns, ran, waits):  # noqa: PLR0913 - what a step has
    """Six steps of four launches each, so far apart, and a wait."""
    events = []
    for begin in range(start, start + 6 * step_ns, step_ns):
        for place in range(4):
            at = begin + apart_ns * place
            events += launched(at, at + call_ns, kernel(at + ran[0], at + ran[1], name=f"k{place}"))
        events.append(call("cudaDeviceSynchronize", begin + waits[0], begin + waits[1]))
    return events


@pytest.mark.slow
def test_launches_as_one_graph_take_less_and_never_longer_than_what_it_replaces():
    found = _whatif(report(_in_fours(0, 200, 20, 10, (14, 16), (80, 85))), graph=True)
    assert found.then_ns < found.now_ns - 6 * 20
    slow = launched(0, 150, kernel(160, 170, name="g"), "cudaGraphLaunch_v10000")
    found = _whatif(report([*slow, *_in_fours(200, 100, 8, 6, (7, 8), (40, 50))]), graph=True)
    assert found.then_ns <= found.now_ns == 750


def _uploads(kernel_ns, copy_ns, api, target):
    """Three steps: a kernel, a copy from pageable memory behind it, whose call returns 20 ns before the copy ends."""
    events, at, free, memory = [], 0, 0, {"source_memory": "Pageable", "target_memory": target}
    for _ in range(3):
        start = max(at + 9, free + 1)
        free = start + kernel_ns
        events += launched(at, at + 5, kernel(start, free, name="gemm"))
        begun, start = at + 6, max(at + 6 + 90, free + 1)
        free = start + copy_ns
        events += launched(begun, free - 20, memcpy(start, free, side=memory), api)
        at = free + 30
    return report([*events, call("cudaDeviceSynchronize", at, free + 40)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "target"),
    [
        *((api, "Device") for api in ("cudaMemcpyAsync", "cudaMemcpy_v3020", "cuMemcpyHtoDAsync_v2", "hipMemcpyAsync")),
        *(("cudaMemcpyAsync", target) for target in ("Array", None)),
    ],
)
def test_a_call_that_puts_a_copy_aside_returns_with_the_copy(api, target):
    made = _uploads(1000, 200, api, target)
    for change, after in ((("gemm", 2), (500, 200)), (("gemm", 10), (100, 200)), (("copies", 2), (1000, 100))):
        assert _whatif(made, faster=(change,)).then_ns == _whatif(_uploads(*after, api, target)).now_ns
    assert _whatif(made, without=("sync",)).then_ns <= 3 * 1300


@pytest.mark.slow
def test_the_window_is_that_of_the_critical_path():
    of_other = [call("cuInit", 0, 10, process=2), call("cuMemFree", 9_000, 9_900, process=2)]
    events = [call("cudaLaunchKernel", 100, 105, correlation=1), kernel(109, 209, correlation=1), *of_other]
    for where in ({}, {"window": "0ns..5000ns"}, {"window": "120ns..8000ns"}, {"device": 0}):
        made = report(events).narrow(**where)
        assert _whatif(made).now_ns == critical_path(made).get_column("ns").sum()


@pytest.mark.slow
def test_what_matches_nothing_is_an_error_that_says_what_there_is():
    with pytest.raises(UnknownNameError, match="nope") as caught:
        _whatif(_host_bound(), faster=(("nope", 2),))
    assert "gemm" in caught.value.remedy
    with pytest.raises(UnknownNameError, match="nope"):
        _whatif(_host_bound(), faster=(("host:nope", 2),))
    with pytest.raises(UnknownNameError):
        _whatif(_host_bound(), faster=(("copies", 2),))


@pytest.mark.slow
def test_single_changes_by_gain():
    found = _whatif(_host_bound(), each=True)
    gains = [found.now_ns - one.then_ns for one in found.single]
    assert gains == sorted(gains, reverse=True)
    assert {"--faster host:prepare=2", "--faster gemm=2", "--without sync"} <= {one.change for one in found.single}


@pytest.mark.slow
def test_single_changes_have_families_of_kernels_beside_their_names():
    tiles = (f"sm80_xmma_gemm_f32f32_f32f32_f32_{tile}x8" for tile in ("tn_n_tilesize32x32", "nt_n_tilesize64x64"))
    names = dict(zip((0, 10), tiles, strict=True))
    events = [one for at, name in names.items() for one in launched(at, at + 1, kernel(at + 2, at + 8, name=name))]
    found = _whatif(report(events), each=True)
    told = {one.change: one.amdahl_ns for one in found.single}
    assert told["--faster gemm=2"] == found.now_ns - 6
    assert {told[f"--faster {name}=2"] for name in names.values()} == {found.now_ns - 3}


@pytest.mark.slow
def test_the_measured_time_tells_what_is_left_of_the_host_s():
    found = _whatif(_host_bound(1000), measured_ns=900_000)
    assert 0.1 < found.host_kept_low < found.host_kept < found.host_kept_high < 1
    assert found.then_ns == found.now_ns == pytest.approx(900_000, rel=0.003)
    assert (found.low_ns, found.high_ns) == pytest.approx((0.97 * 873_000, 1.03 * 927_000), rel=0.005)


@pytest.mark.slow
def test_of_a_device_bound_program_the_bounds_have_what_the_host_may_take_without_the_profiler():
    found = _whatif(_device_bound(), faster=(("gemm", 100),), measured_ns=520_000)
    assert (found.host_kept, found.host_kept_high) == (1, 1)
    assert found.host_kept_low < 0.5
    assert 65_000 < found.then_ns == pytest.approx(found.high_ns / 1.03, abs=1)  # the host as recorded
    assert found.low_ns < 0.7 * found.then_ns


@pytest.mark.slow
def test_changes_of_one_thing_multiply():
    made = _host_bound(1000)
    twice, once = (_whatif(made, faster=faster).then_ns for faster in ((("gemm", 2), ("*", 3)), (("gemm", 6),)))
    assert twice == pytest.approx(once, abs=20)
    host = _whatif(made, faster=(("gemm", 1000), ("host", 2), ("host:prepare", 3)))
    each = 5_000 + 15_000 / 2 + 80_000 / 6  # call, host code outside of the range and in it
    assert host.then_ns == pytest.approx(9 * each + 5_000 + 2_000 + 8_000, abs=1_000)  # launched, begun, returned


def _device_bound():
    """Launches one after the other, and kernels that take longer; the host then waits."""
    events = []
    for step in range(10):
        at, start = 6_000 * step, 4_000 + 51_000 * step
        events += launched(at, at + 5_000, kernel(start, start + 50_000, name="gemm"))
    return report([*events, call("cudaDeviceSynchronize", 62_000, 520_000)])


@pytest.mark.slow
def test_the_end_of_a_window_does_not_wait_for_a_host_that_waits():
    part = _device_bound().narrow(window="55us..513us")  # from the start of the second kernel to the last one's end
    found = _whatif(part, faster=(("gemm", 2),))
    assert (found.now_ns, found.then_ns) == (458_000, 458_000 - 9 * 25_000)
    halved = _whatif(_device_bound().narrow(window="55us..500us"), faster=(("gemm", 2),))
    assert halved.then_ns == 8 * 25_000 + 8 * 1_000 + 37_000 // 2


ANY = st.sampled_from(
    [
        {"faster": (("*", 2),)},
        {"faster": (("host", 3), ("calls", 3))},
        {"faster": (("copies", 2),)},
        {"faster": (("host:*", 2),)},
        {"without": ("sync",)},
        {"without": ("startup",)},
        {"without": ("launch-gaps",)},
        {"graph": True},
        {"copies_bytes_per_s": 1e9},
    ]
)


@slow_given(EVENTS, ANY, st.none() | st.tuples(st.integers(0, 60), st.integers(1, 60)), st.none() | st.floats(0, 200))
def test_of_odd_recordings_every_change_has_an_answer(events, change, sides, measured_ns):
    made = report(events)
    try:
        part = made if sides is None else made.narrow(window=f"{sides[0]}ns..{sides[0] + sides[1]}ns")
        found = _whatif(part, measured_ns=measured_ns, **change)
    except KanalyzeError:
        return
    if "copies_bytes_per_s" not in change and "graph" not in change:
        assert found.low_ns <= found.then_ns <= found.high_ns
        assert found.then_ns <= found.now_ns
    assert measured_ns is None or found.host_kept_low <= found.host_kept <= found.host_kept_high
    assert sum(one.now_ns for one in found.critical) == found.now_ns
    assert sum(one.then_ns for one in found.critical) == found.then_ns


FIRST = "0-0 cudaLaunchKernel #1; 0-0 kernel #1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("0-2 cudaLaunchKernel #1; 0-0 kernel #1; 1-3 cudaLaunchKernel", {"launch": 1, "call": 2}),  # that overlap
        # a kernel that begins before its launch
        (f"{FIRST}; 15-15 cudaLaunchKernel #2; 13-16 kernel:gemm #2", {"host": 13, "kernel": 3}),
        # a kernel that ends before it begins, after all else: nothing ran at the end
        ("0-0 cudaLaunchKernel; 26-26 cudaLaunchKernel #1; 43-42 kernel:gemm #1", {"host": 42}),
    ],
)
def test_the_critical_path_adds_up_in_odd_recordings(text, causes):
    found = _whatif(report(timeline(text)))
    assert {one.cause: one.now_ns for one in found.critical} == causes
    path = critical_path(report(timeline(text))).select(pl.col("cause").cast(pl.String), "ns")
    assert dict(path.iter_rows()) == causes
    assert found.now_ns == sum(causes.values())


@few_given(EVENTS)
def test_what_is_critical_now_is_the_critical_path(events):
    made = report(events)
    path = critical_path(made)
    if path.is_empty():
        return
    now = pl.DataFrame(_whatif(made).critical, schema={"cause": pl.String, "name": pl.String, "now": int, "then": int})
    sums = now.filter(pl.col("now") > 0).group_by("cause").agg(pl.col("now").sum())
    assert sorted(sums.rows()) == sorted(path.select(pl.col("cause").cast(pl.String), "ns").rows())


@few_given(EVENTS)
def test_the_less_is_left_of_the_host_s_time_the_sooner_it_ends(events):
    made = report(events)
    ends = []
    for kept in (1.0, 0.7, 0.2):
        net = prepared(made)
        ends.append(replayed(net, changed(made, net, Changes(host=HostTime(kept))))[-1])
    assert ends == sorted(ends, reverse=True)


CDIST = "void at::native::<unnamed>::cdist_kernel_cuda_impl<float, at::native::<unnamed>::dists<float>::two>(T1 *)"
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3"
CUTLASS = "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(T1::Params)"


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        *(("cdist*", [CDIST]), ("cdist_kernel_cuda_impl", [CDIST]), ("at::native::cdist*", [CDIST])),
        *((CDIST, [CDIST]), ("gemm", [GEMM, CUTLASS]), ("gemm*", [GEMM, CUTLASS]), ("Kernel2", [CUTLASS])),
        *(("*xmma*", [GEMM]), ("cdist", []), ("two", [])),
    ],
)
def test_a_pattern_matches_names_and_families(pattern, matched):
    assert matching(pl.Series([CDIST, GEMM, CUTLASS]), pattern) == matched
