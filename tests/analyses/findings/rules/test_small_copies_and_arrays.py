"""Copies that need not be, and programs of arrays: rows of small copies, tensors of the CPU, loops, what grows."""

from dataclasses import replace
from itertools import count

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.arrays import array_chains, double_arrays, host_grid_loop
from kanalyze.analyses.findings.rules.memory import many_small_copies
from kanalyze.analyses.findings.rules.needless_work import growing_concatenations, history_again
from kanalyze.window import Window
from support.build import again, call, graph, host, in_line, kernel, launched, memcpy, memset, nvtx, overhead, report
from support.kernel_names import CAT, GEMM
from support.measures import assert_told, measures
from support.nsys_csv import report_of


def copy(at, correlation, *, size=1000, dur=10, name="cudaMemcpyAsync", **keys):
    """A call of 20 ns and, 5 ns after it began, its copy."""
    made = memcpy(at + 5, at + 5 + dur, size_bytes=size, correlation=correlation, **keys)
    return launched(at, at + 20, made, name)


def row(number, *, start=0, every=50, **keys):
    return [event for at in range(number) for event in copy(start + every * at, start + at + 1, **keys)]


def launching(make, stream, at=230, **how):
    """Two fives of copies, and work that the process launched `at`: it may write what they read, or read the other."""
    keys = how | ({"direction": "Device-to-Host"} if make is memcpy else {})
    work = call("anything", at, at + 10, correlation=99, process=how.get("process", 1))
    return [*row(5), *row(5, start=250), work, make(700, 702, correlation=99, stream=stream, **keys)]


ONE = (
    "10 copies Host-to-Device of 1.000 kB on average, one after the other, at 100.0 GB/s, by cudaMemcpyAsync. They "
    "cost 90 ns of copying and 90 ns in which the device waited for their calls, more than one copy of all would. More "
    "may follow: the host is spared the calls."
)
IN_RUNS = "20 copies Host-to-Device of 1.000 kB on average, one after the other in 2 runs, at"
PINNED, PAGEABLE = ({"side": {"source_memory": kind}} for kind in ("Pinned", "Pageable"))
SLOW = copy(5000, 900, size=1 << 20, dur=1 << 10, **PAGEABLE)
FAST = copy(9000, 901, size=1 << 20, dur=1 << 9, **PINNED)
OF_ONE_CALL = [call("cudaMemcpyBatchAsync", 0, 20, correlation=1)]
OF_ONE_CALL += [memcpy(at, at + 5, correlation=1) for at in range(30, 200, 10)]
TO_HOST = {"direction": "Device-to-Host"}

COPIED = copy(104, None, stream=13, name="cudaMemcpy_v3020", **TO_HOST)
RESULTS = again(range(0, 6_000, 200), *launched(0, 4, kernel(6, 100)), *COPIED)

#: Two streams, called in turns: what is between the calls of one is no more than the copies of the other.
AT_ONCE = [
    replace(
        one, start=one.start - 1_950, end=one.end - 1_950, stream=one.stream and 8, correlation=one.correlation + 100
    )
    for one in row(10, start=2_000)
]


def parted(other, at=300, **keys):
    return [*row(5, **keys), other, *row(5, start=at, **keys)]


def waits_behind():
    """Behind each copy the device waits in its call, but for a kernel of another process: that is the host's time."""
    waits = again(range(0, 500, 50), *launched(22, 24, kernel(24, 30, process=2), thread=9, process=2))
    other = launched(0, 400, kernel(400, 410, device=1, process=3), process=3)
    return [*row(10), *waits, kernel(0, 1, device=1, process=3), *other]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("events", "stakes", "words"),
    [
        # nine in ten of the copying, and of the 10 ns around each copy in its call
        (row(10), [9 * 10 + 90], (ONE,)),
        ([*row(10), kernel(502, 504), *row(10, start=1000)], [360], (IN_RUNS, "than one copy per run would.")),
        # large copies tell what one copy would take, of other memory only without better ones
        ([*row(200), *copy(20_000, 900, size=1 << 20, dur=1 << 9)], [3892], ("1.049 MB and more at 2.048 TB/s",)),
        ([*row(10, **PINNED), *SLOW, *FAST], [180], ("at 2.048 TB/s",)),
        ([*row(10, **PINNED), *SLOW], [180], ("at 1.024 TB/s",)),
        (row(9), [], ()),
        (row(20, size=65537), [], ()),
        (row(20, size=65536), [380], ()),
        (row(20, side={"graph_node_id": 7}), [], ()),
        ([*row(10), kernel(0, 1000, stream=8)], [], ()),  # which hides them
        ([event for event in row(20) if event.kind == "memcpy"], [], ()),  # without calls
        (OF_ONE_CALL, [], ()),
        (row(10, name="cudaMemcpy_v3020", **TO_HOST), [180], ()),  # blocking, with nothing between them
        (parted(kernel(252, 254, stream=8)), [180], ()),
        (parted(kernel(252, 254, process=2)), [180], ()),
        # work between them, a call that orders streams, or a wait after which the host may have looked at the data
        (parted(kernel(252, 254)), [], ()),
        (parted(memcpy(252, 254, size_bytes=1 << 20)), [], ()),
        (parted(memcpy(252, 254, **TO_HOST)), [], ()),
        *((launching(make, at), [], ()) for make in (kernel, memset, memcpy, graph) for at in (7, 8)),
        (launching(kernel, 8, at=530), [180], ()),
        (launching(kernel, 8, device=1, process=1), [180], ()),
        (launching(kernel, 8, process=2), [180], ()),
        (parted(call("cudaEventRecord_v3020", 230, 235), 250), [180], ()),
        *(
            (parted(call(name, 230, 235), 250), [], ())
            for name in ("cudaStreamWaitEvent_v3020", "cudaLaunchHostFunc", "cuStreamWaitValue32")
        ),
        *(
            (parted(call(name, 230, 235), 250, **keys), stakes, ())
            for name in ("cudaStreamSynchronize_v3020", "cudaEventSynchronize", "cuCtxSynchronize")
            for keys, stakes in ((TO_HOST, []), ({}, [180]))
        ),
        (RESULTS, [], ()),
        ([*row(10, every=100), *AT_ONCE], [280], ("20 copies",)),
        # not at stake: the profiler's work in the calls, and what the device does not wait for by its own ledger
        ([*row(10), overhead("CUPTI buffer flush", 15, 20)], [9 * 10 + 85], ()),
        (waits_behind(), [9 * 10 + 10 * (5 + 2)], ()),
        ([*row(10), *row(10, start=1000, **TO_HOST)], [180, 180], ("10 copies Host-to-Device",)),
        ([*row(10), nvtx("upload", 0, 1000)], [180], ("by cudaMemcpyAsync in the range upload.",)),
        ([*row(10), nvtx("upload", 0, 300)], [180], ("by cudaMemcpyAsync, most often in the range upload.",)),
    ],
)
def test_small_copies_in_a_row(events, stakes, words):
    assert_told(many_small_copies(report(events)), stakes, *words)


@pytest.mark.parametrize(("since", "stakes"), [(500, [180]), (600, [])])
def test_a_window_cuts_what_is_at_stake(since, stakes):
    assert_told(many_small_copies(report(row(20)).narrow(window=Window(since, None))), stakes)


@pytest.mark.slow
def test_a_real_report_that_has_it():
    (one,) = [one for one in ranked(report_of("findings")) if one.rule == "small-copies"]
    assert "500 copies Host-to-Device of 4.096 kB" in one.text
    assert "range a tiny copies" in one.text


LIMITS = {"sm_count": 8}


def loop(*names, turns=40, blocks=1, between=(), took=lambda _: 2_000, after=(), **limits):
    """Turns of 10 µs for each kernel, of which it runs 2 µs; `between` makes calls in each turn, blocks may too.

    `after` it kernels of other names have these grids.
    """
    events = []
    for place in range(turns * len(names)):
        at, grid = 10_000 * place, blocks(place) if callable(blocks) else blocks
        one = kernel(at + 4_000, at + 4_000 + took(place), name=names[place % len(names)], grid=(grid, 1, 1))
        events += [*launched(at, at + 3_000, one), *(call(name, at + 6_500, at + 7_000) for name in between)]
    for at, grid in zip(count(10**9, 10_000), after, strict=False):
        events.append(kernel(at, at + 5_000, name="best(X)", grid=grid))
    return report(events, limits=LIMITS | limits)


SLICES = loop("cupy_min", "cupy_subtract", "cupy_true_divide", "cupy_copy", blocks=7)

TURN = [*launched(0, 500, memcpy(0, 1_000), "cudaMemcpyAsync"), *launched(600, 900, kernel(2_000, 3_000))]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "told"), [(392, 1), (4096, 1), (65_536, 0)])
def test_little_that_an_operation_on_arrays_is_given_is_of_its_turn(size, told):
    turn = launched(0, 500, memcpy(600, 1_000, size_bytes=size), "cudaMemcpyAsync")
    turn += launched(1_500, 2_000, kernel(3_000, 5_000, name="cupyx_scipy_ndimage_correlate"))
    turns = again(range(0, 400_000, 10_000), *turn)
    assert len(list(host_grid_loop(report(turns, limits=LIMITS)))) == told


@pytest.mark.slow
@pytest.mark.parametrize(("others", "copies", "told"), [(1, 1, 1), (1, 0, 0), (8, 1, 0)])
def test_long_turns_of_arrays_are_rows_where_each_is_copied_into_a_result(others, copies, told):
    names = [*(f"cupy_add__{number}" for number in range(20)), *(f"_exists_nan_{number}" for number in range(others))]
    turn = [kernel(1000 * at + 600, 1000 * at + 900, name=name) for at, name in enumerate(names)]
    turn += [memcpy(29_600, 29_900, direction="Device-to-Device", size_bytes=1 << 13)] * copies
    events = [event for one in turn for event in launched(one.start - 500, one.start - 200, one)]
    assert len(host_grid_loop(report(again(range(0, 40 * 30_000, 30_000), *events), limits=LIMITS))) == told


@pytest.mark.parametrize(
    "of",
    [
        loop("row(float *)", turns=20),
        loop("row(float *)", blocks=5),
        loop("row(float *)", blocks=lambda at: 7 - at // 8),  # an elimination
        loop("row(float *)", between=["cudaDeviceSynchronize"]),
        loop("level(int *)", between=["cudaDeviceSynchronize"], blocks=lambda at: 5 + at % 3),  # of a graph
        loop("row(float *)", between=["cudaMalloc", "cudaFree"]),
        loop("void at::native::reduce_kernel<512>(int)"),
        loop("wrapped_tanh"),  # JAX
        loop("pull", "accelerate", "move"),
        loop("pull", "accelerate", "move", after=[(39, 1, 1)]),  # steps that are not as many as anything
        loop("pull", "accelerate", "move", turns=64, after=[(64, 1, 1)]),
        loop("blur", "describe", "norm", blocks=200, after=[(40, 1, 1)]),  # that fill the GPU
        loop("step(X)", blocks=7, took=lambda at: 5_000 + 500 * (at % 2)),  # about as long in each turn
        loop("row(float *)", sm_count=None),
        loop("cupy_min", "cupy_subtract", blocks=8),  # large arrays
        report(again(range(0, 400_000, 10_000), *TURN), limits=LIMITS),
    ],
)
def test_other_loops_are_none(of):
    assert host_grid_loop(of) == []


PRODUCTS, UNLIKE = loop("ampere_sgemm_32x32_sliced1x4_nn"), loop("row(float *)", blocks=lambda at: 5 + at % 3)
UNEVEN = loop("sum(X)", blocks=7, took=lambda at: 8_500 - 3_000 * (at % 2))
FLAKES = loop("blur", "describe", "norm", blocks=7, after=[(3, 40, 1)])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("of", "headline", "text", "action", "figures"),
    [
        # 256 rows at a time
        (loop("row(float *)"), "39 launches of 1 block each", "One kernel is", "independent turns in", (380, 38, 0)),
        (loop("sum(X)", "scale(X)"), "78 launches", "2 kernels are", "independent turns in one launch", (768, 76, 0)),
        # parts of different sizes
        (UNLIKE, "39 launches of up to 7", "One", "independent turns in", None),
        # as many turns as another kernel's grid has rows
        (FLAKES, "117 launches of 7", "3 kernels", "independent turns in one", None),
        # parts that take now longer, now shorter
        (UNEVEN, "39 launches of 7", "One", "independent turns in one", None),
        (loop("nvkernel_main_F1L21_2"), "39 launches", "One", "independent turns in one region", (380, 38, 0)),
        (PRODUCTS, "39 launches", "One", "independent turns in one batched call", (380, 38, 0)),
        (SLICES, "The same 4 kernels run over and over", "4 kernels are", "independent turns on", (1536, 152, -8)),
    ],
)
def test_the_remedy_is_in_the_language_of_the_program(of, headline, text, action, figures):
    (finding,) = host_grid_loop(of)
    assert finding.headline.startswith(headline)
    assert finding.text.startswith(text)
    assert "in 1 loop of up to 39 turns" in finding.text
    assert finding.action.startswith(action)
    if figures is None:
        return
    stake, gone, saved, spared = measures(finding, of)
    assert (stake / 1000, gone, saved / 1000) == figures
    assert spared / 1000 in (figures[0], figures[0] + 2, figures[0] + 14)


CHAIN = (*(f"cupy_{name}__float32_float32_float32" for name in ("subtract", "multiply")), "cupy_sqrt__float32_float32")
TRANSFORM = (
    "void cub::CUB_300001_SM_900::detail::transform::transform_kernel<cub::detail::transform::policy_hub<(bool)0, "
    "cuda::std::tuple<thrust::{}<float>>>::policy1000, int, {}, thrust::normal_iterator<float>, const float *>(T2)"
)
OF_THRUST = [TRANSFORM.format("normal_iterator", name) for name in ("Snowfall", "MeltRate", "Aged")]
OVER_INDICES = [TRANSFORM.format("counting_iterator", name) for name in ("Electric", "Magnetic")]
OF_JULIA = [f"_Z23gpu_broadcast_kernel_linear16CompilerMetadata{name}" for name in ("1a", "1b", "1c")]
DOUBLES = "cupy_add__float64_float64_float64"
OF_CUBLAS = "sm90_xmma_gemm_{0}{0}_{0}{0}_{0}_nn_n_tilesize32x64x32_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel"
REDUCES = "void cub::CUB_1_SM_900::detail::reduce::DeviceReduceKernel<double>(double *)"


def kernels(*names):
    every = enumerate(names)
    return report([kernel(10_000 * at, 10_000 * at + 9_000, name=name, grid=(64, 1, 1)) for at, name in every])


def filled(size_bytes, reduces):
    """Threads of a kernel for as many bytes each as were copied, and a kernel that reduces."""
    last = kernel(9_300, 9_400, name="cupy_copy__float32_float32")
    work = [kernel(200, 9_000, name="black_scholes", grid=(64_000, 1, 1)), kernel(9_100, 9_200, name=reduces), last]
    return report([memcpy(0, 100, size_bytes=size_bytes * 64_000 * 32), *work])


FFT_OF_DOUBLES = (
    "void vector_fft_r2c<4096u, EPT<32u>, 1u, 3u, (padding_t)70, unsigned int, double>(kernel_arguments_t<T9>)"
)


@pytest.mark.parametrize(
    ("name", "blocks", "limits", "saved"),
    [
        # three arrays of 64 × 32 elements in float32, 24,576 bytes, in 4.5 µs and more, in 2.25 µs, and at once
        (DOUBLES, 64, {}, 4500),
        (DOUBLES, 64, {"memory_bandwidth_bytes_per_s": 5_000_000_000}, 4500),
        (DOUBLES, 64, {"memory_bandwidth_bytes_per_s": int(24_576 / 2.25e-6)}, 5625),
        (DOUBLES, 64, {"memory_bandwidth_bytes_per_s": 10**18}, 6750),
        # starting as many blocks takes 8.1 µs
        (DOUBLES, round(1.66 * 8_100), {"memory_bandwidth_bytes_per_s": 10**18, "compute_capability": "9.0"}, 900),
        (FFT_OF_DOUBLES, 64, {"memory_bandwidth_bytes_per_s": 10**18}, 4500),
    ],
)
def test_what_operations_on_doubles_save_as_floats(name, blocks, limits, saved):
    events = [kernel(0, 9_000, name=name, grid=(blocks, 1, 1), block=(32, 1, 1)), kernel(9_000, 9_100, name=DOUBLES)]
    of = report(events, limits={"name": "GPU"} | limits)
    (found,) = double_arrays(of)
    assert found.change(of).shorter.get_column("saved_ns").to_list()[0] == pytest.approx(saved, abs=2)


@pytest.mark.parametrize(("operations", "saved"), [(0, None), (1, [4_500]), (2, [4_500] * 2)])
def test_what_products_of_doubles_save_nobody_knows(operations, saved):
    """A GPU may multiply floats as slowly; what operations on arrays save is told where these take half of the time."""
    of = kernels(OF_CUBLAS.format("f64"), *[DOUBLES] * operations, CHAIN[0])
    (found,) = double_arrays(of)
    assert (found.change(of) and found.change(of).shorter.get_column("saved_ns").to_list()) == saved


@pytest.mark.parametrize(
    ("rule", "of", "stakes", "words"),
    [
        (array_chains, kernels(*CHAIN, "cupy_sum", *CHAIN), [31_500], ("6 elementwise kernels could be one kernel",)),
        # half of the longest is added for the second and third
        (array_chains, kernels(*OF_THRUST), [13_500], ("3 elementwise kernels of Thrust", "thrust::for_each over a")),
        (array_chains, kernels(*OF_THRUST, *OF_THRUST), [27_000], ("in 2 chains of up to 3 on arrays of one size",)),
        (array_chains, kernels(*OF_JULIA), [13_500], ("one statement with dots",)),
        (array_chains, kernels(*OF_THRUST[:1] * 6), [], ()),  # one array after the other
        (array_chains, kernels(*OVER_INDICES * 3), [], ()),  # which may read their neighbours
        (array_chains, kernels(OF_THRUST[0], "void cub::DeviceScanKernel<float>(X)", OF_THRUST[1]), [], ()),
        (array_chains, kernels(*OF_THRUST, "void at::native::add(int)"), [], ()),
        (array_chains, kernels(CHAIN[0], "cupy_sum", CHAIN[1], "cupy_max"), [], ()),
        (array_chains, kernels(*CHAIN, "void at::native::add(int)"), [], ()),
        (double_arrays, kernels(DOUBLES, DOUBLES, CHAIN[0]), [18_000], ("Arrays are float64: 66.7 % of kernel time",)),
        (double_arrays, kernels(*CHAIN), [], ()),
        (double_arrays, kernels(OF_CUBLAS.format("f64"), CHAIN[0]), [9_000], ("Arrays are float64: 50.0 %",)),
        (double_arrays, kernels(OF_CUBLAS.format("f32"), CHAIN[0]), [], ()),
        # arrays of 8 bytes for each thread, where a kernel reduces doubles
        (double_arrays, filled(8, REDUCES), [8_800], ("black_scholes",)),
        (double_arrays, filled(4, REDUCES), [], ()),
        (double_arrays, filled(8, "cupy_sum"), [], ()),
    ],
)
def test_operations_on_arrays_by_sizes_and_types(rule, of, stakes, words):
    assert_told(rule(of), stakes, *words)


def test_a_chain_of_operations_becomes_one_kernel():
    of = kernels(*CHAIN, "cupy_sum", *CHAIN)
    (finding,) = array_chains(of)
    assert measures(finding, of)[1:3] == (4, -2 * int(9_000 * 0.25))


TWENTY = range(0, 2000, 100)


@pytest.mark.parametrize(
    ("text", "shapes", "told"),
    [
        ("self.k = torch.cat([self.k, k], dim=2)", "[]", 1),
        ("past = ks[n] = cat((ks[n], k))", "[]", 1),
        ("x = torch.cat([y, x])", "[]", 0),
        ("x = torch.cat(ys)", "[[[4, 640, 8], [4, 9, 8]], []]", 1),
        ("x = torch.cat(ys)", "[[[4, 640, 8], [4, 9, 8], [4, 1, 8]], []]", 1),
        ("x = torch.cat(ys)", "[[[4, 640, 8], [4, 64, 8]], []]", 0),  # as layers join what they compute
        ("x = torch.cat(ys)", "[[[4, 640, 8]], []]", 0),
        ("x = torch.cat(ys)", "[[[4, 9, 8], [4, 640, 8]], []]", 0),  # put before what is new each time
        ("x = torch.cat(ys)", "[[[4, 640, 8], [4, 640, 1], [4, 640, 1]], []]", 0),  # further channels
    ],
)
def test_a_result_in_the_place_of_what_is_joined_grows_and_pieces_join_a_large_tensor(text, shapes, told):
    """Twenty concatenations in a line of the program."""
    events = again(TWENTY, host("op", "aten::cat", 0, 12), *launched(0, 9, kernel(10, 90, name=CAT)))
    details = [{"event_id": at, "input_shapes": shapes} for at, one in enumerate(events) if one.kind == "op"]
    of = report(events, op_detail=details, source_lines=[in_line(0, 3000, 7, text)])
    assert [one.at_stake_ns for one in growing_concatenations(of)] == [20 * 80] * told


@pytest.mark.parametrize(("name", "told"), [("aten::cat", 1), ("aten::clone", 0)])
def test_what_has_too_many_elements_for_a_kernel_is_joined_by_copies(name, told):
    copied = launched(1, 9, memcpy(10, 80, direction="Device-to-Device"), "cudaMemcpyAsync")
    events = again(TWENTY, host("op", name, 0, 50), *copied, *launched(60, 70, kernel(81, 95)))
    of = report(events, source_lines=[in_line(0, 3000, 7, "self.x = torch.cat([self.x, x])[-n:]")])
    assert [one.at_stake_ns for one in growing_concatenations(of)] == [20 * 70] * told


@pytest.mark.parametrize(
    ("took", "told"),
    [
        ([3_000 + 60 * at for at in range(20)], 1),
        ([3_000 + 40 * at for at in range(20)], 0),  # by less than a third
        ([3_000, 3_100] * 10, 0),
        ([3_000 + 60 * at for at in range(15)], 0),  # few
        ([*range(3_000, 3_150, 15), *range(9_000, 9_150, 15)], 0),  # of images of two sizes
        ([*range(3_000, 3_020, 10), *range(9_000, 9_170, 10)], 1),  # the first ones are of a prompt
    ],
)
def test_concatenations_may_grow_within_each_iteration(took, told):
    at, events = 0, []
    for ns in took * 4:
        events.append(kernel(at, at + ns, name=CAT))
        at += ns + 1_000
    of = report(events).narrow(window=Window(0, at, count=4, each="step"))
    assert [one.at_stake_ns for one in growing_concatenations(of)] == [4 * sum(took)] * told


def joining(*between, pieces=20, stages=20, apart=0, free=0, kept=False):
    """A pass that joins pieces of 64 rows one by one, with other operators (name, shapes) after each: `{rows}` so far.

    The tensor begins anew after so many `stages`, and so many rows are left out each time (`apart`). Behind each
    concatenation runs a kernel, for so long, that no operator launches (`free`). All results may be `kept` to the end.
    """
    events, shapes = [], []

    def add(name, text, start, made=None, ns=80):
        shapes.append({"event_id": len(events), "input_shapes": text})
        events.append(host("op", name, start, start + 90))
        if made:
            events.extend(launched(start + 10, start + 20, kernel(start + 100, start + 100 + ns, name=made)))

    for at in range(pieces):
        rows, start = 64 * (1 + at % stages), 10_000 * at
        add("aten::cat", f"[[[{rows - apart * at}, 8], [64, 8]], []]", start, CAT)
        for number, (name, text) in enumerate(between, 1):
            add(name, text.format(rows=rows + 64), start + 1000 * number, GEMM)
        if free:
            events += launched(start + 8000, start + 8010, kernel(start + 8100, start + 8100 + free, name="own"))
    for at in range(pieces * kept):
        add("aten::sum", f"[[{64 * (at + 2)}, 8]]", 10_000 * (pieces + at), GEMM)
    return report(events, op_detail=shapes)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (joining(), 19),
        (joining(("aten::cat", "[[[64, 7], [64, 1]], []]"), ("aten::mul", "[[64, 8], []]")), 19),
        (joining(free=2), 19),
        (joining(free=20), 0),  # it may read what grows
        (joining(("aten::conv2d", "[[{rows}, 8], [8, 8]]")), 0),  # as layers of a DenseNet
        (joining(("aten::matmul", "[[1, 8], [8, {rows}]]")), 0),  # as attention by hand
        (joining(("flash::attention", "[[1, 8], [1, {rows}, 8]]")), 0),
        (joining(("aten::add", "[[8, 64], [{rows}, 2, 4], []]")), 0),
        (joining(pieces=60, stages=4), 0),  # three sizes
        (joining(pieces=60, stages=20), 57),
        (joining(kept=True), 0),  # each result is wanted
        (joining(apart=1), 0),  # of a part, or of others
        (joining(pieces=16), 0),
    ],
)
def test_nothing_takes_what_grows_before_it_is_whole(of, told):
    found = [*growing_concatenations(of)]
    assert [one.at_stake_ns for one in found] == [told * 80] * bool(told)
    for one in found:
        assert "no other operator takes the tensor while it grows" in one.text
        saved = [int(80 * (at + 1) / (at + 2)) for _ in range(told // 19) for at in range(1, 20)]
        assert one.mending.shorter["saved_ns"].to_list() == saved


def kept(*takers, stages=6, most=99, along=0):
    """Three epochs that join a list of pieces of 64 rows when it gets one more, with operators (name, shape) behind."""
    events, shapes = [], []
    for at in range(3 * stages):
        pieces = ["[64, 8]"] * min(1 + at % stages, most)
        joined = ("aten::cat", f"[[{', '.join(pieces)}], []]")
        for number, (name, text) in enumerate([joined, *takers]):
            start, values = 10_000 * at + 1000 * number, f'["", "{along}"]'
            shape = text.format(rows=64 * len(pieces))
            shapes.append({"event_id": len(events), "input_shapes": shape, "input_values": values})
            events += [host("op", name, start, start + 90)]
            events += launched(start + 10, start + 20, kernel(start + 100, start + 180, name=GEMM))
    return report(events, op_detail=shapes)


SORT, BATCH = ("aten::argsort", "[[{rows}, 8], []]"), ("aten::linear", "[[64, 8], [8, 8]]")


@pytest.mark.parametrize(
    ("of", "times"),
    [
        # the second to the fifth of six
        (kept(SORT, BATCH), 3 * 4 * 2),
        (kept(SORT, most=5), 3 * 3 * 2),  # a list of so many at most is as long from then on
        (kept(SORT, most=2), 0),
        (kept(SORT, stages=3), 0),
        (kept(SORT, along=1), 0),
        (kept(SORT, ("aten::conv2d", "[[{rows}, 8], [8, 8]]")), 0),  # as dense networks
        (kept(("aten::matmul", "[[1, 8], [8, {rows}]]")), 0),  # as attention to what was read so far
    ],
)
def test_all_that_a_list_holds_is_worked_on_again(of, times):
    found = history_again(of)
    assert_told(found, [80 * times] * bool(times), *["up to 6 tensors", "compute once"][2 * (times != 24) :])
    assert not times or len(found[0].mending.gone) == times
