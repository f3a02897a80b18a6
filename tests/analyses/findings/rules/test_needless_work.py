"""Needless work: inverses, SVDs, factors of the same matrix, masks of attention, rows."""

from dataclasses import replace
from functools import partial

import pytest

from kanalyze.analyses.findings.rules import needless_work
from kanalyze.analyses.findings.rules.launches import padded_graphs
from kanalyze.analyses.findings.rules.needless_work import different_rows, factored_again, padded_batches
from kanalyze.analyses.findings.rules.slower_kernels import deterministic_sums
from kanalyze.report import BareRun, BareRuns, Batches
from kanalyze.window import Window
from support import steps
from support.build import host, kernel, launched, nvtx, report
from support.measures import assert_told
from support.steps import alike, in_steps, operator, operators, shaped

of_shapes = partial(steps.of_shapes, types='["float", "float"]')


INVERSE = ("aten::linalg_inv", "[[4, 512, 512]]", 30_000)
SVD = ("aten::linalg_svd", "[[4096, 256], [], []]", 30_000)
PRODUCT = ("aten::matmul", "[[4, 512, 512], [4, 512, 8]]", 20_000)
SUM = ("aten::sum", "[[4, 512]]", 20_000)
PSEUDO = ("aten::linalg_pinv", "[[4096, 8, 8], [], [], []]", 30_000)
SMALL = ("aten::matmul", "[[4096, 8, 8], [4096, 8, 2]]", 20_000)


@pytest.mark.parametrize(
    ("each", "stake", "words"),
    [
        ((INVERSE, PRODUCT), 5 * 30_000, "Inverses of matrices that are multiplied at once: 60.0 %"),
        ((("aten::linalg_pinv", *INVERSE[1:]), PRODUCT), 5 * 30_000, "`linalg_pinv` of matrices of 512 × 512"),
        ((INVERSE, SUM, PRODUCT), 0, None),  # it may be wanted itself
        ((INVERSE, SUM), 0, None),
        ((INVERSE, ("aten::mm", "[[64, 1000], [1000, 10]]", 20_000)), 0, None),  # of other matrices
        ((("aten::linalg_pinv", "[[4096, 512]]", 30_000), PRODUCT), 0, None),  # least squares
        ((INVERSE, PRODUCT, ("aten::linalg_inv", "[[9000, 4, 4]]", 9_000)), 5 * 30_000, "50.8 %"),
        ((("aten::linalg_inv", "[[4096, 4, 4]]", 30_000), PRODUCT), 0, None),  # cameras
        ((("aten::linalg_inv", "[]", 30_000), PRODUCT), 0, None),  # no shapes
        ((PSEUDO, SMALL), 5 * 30_000, "Pseudo-inverses that are multiplied at once: 60.0 %"),
        ((("aten::linalg_pinv", "[[4096, 64, 8]]", 30_000), SMALL), 0, None),  # least squares
        ((PSEUDO, SUM, SMALL), 0, None),
        ((PSEUDO, ("aten::clone", "[[4096, 8, 8], []]", 1_000), SMALL), 5 * 30_000, "of 8 × 8"),
        ((PSEUDO, ("aten::matmul", "[[4096, 8], [4096, 8, 2]]", 20_000)), 0, None),  # of something else
        ((INVERSE, ("aten::mm", PRODUCT[1], 80_000), ("aten::mm", PRODUCT[1], 80_000)), 0, None),  # others take more
        ((SVD, SUM), 5 * 30_000, "SVDs of matrices far longer than wide: 60.0 %"),
        ((("aten::linalg_svd", "[[256, 4096], [], []]", 30_000), SUM), 5 * 30_000, "matrices of 4096 × 256"),
        ((("aten::linalg_svd", "[[512, 256], [], []]", 30_000), SUM), 0, None),
        ((("aten::linalg_svd", "[[4096, 6], [], []]", 30_000), SUM), 0, None),  # of the first few, by svd_lowrank
    ],
)
def test_less_than_an_inverse_or_a_long_svd_would_do(each, stake, words):
    assert_told(needless_work.decompositions(of_shapes(*each)), [stake] * bool(stake), *filter(None, [words]))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ('["", "", "", "False"]', 1),
        ('["", "1.0000000000000001e-15", "False"]', 1),
        ('["", "0.001", "", "False"]', 0),
        ('["", "1.0000000000000001e-05", "False"]', 0),
    ],
)
def test_a_pseudo_inverse_may_have_to_leave_out_small_singular_values(values, told):
    pseudo, small = (
        (name, {"input_shapes": shapes, "input_values": values}, ns) for name, shapes, ns in (PSEUDO, SMALL)
    )
    found = needless_work.decompositions(operators(pseudo, small))
    assert_told(found, [5 * 30_000] * told)
    assert [one.mending.shorter["saved_ns"].to_list() for one in found] == [[27_000] * 5] * told  # an LU takes a tenth


SOLVES = ("jit(f)/jit(inv)/jit(solve)/lu", "jit(f)/jit(inv)/jit(solve)/triangular_solve")
DIFFERENTIATED = (
    "jit(f)/jvp(jit(inv))/jit(solve)/lu",
    "jit(f)/transpose(jvp(jit(inv)))/jit(solve)/vmap()/triangular_solve",
)
LOGARITHM = "jit(f)/jvp(jit(slogdet))/jit(solve)/lu"


@pytest.mark.parametrize(
    ("names", "stake", "words"),
    [
        (SOLVES, 10 * 30_000, "Inverses of matrices: 66.7 % of kernel time"),
        (DIFFERENTIATED, 10 * 30_000, "Inverses of matrices: 66.7 %"),
        (["jit(f)/vmap(jit(pinv))/svd"], 5 * 30_000, "Inverses of matrices: 50.0 %"),
        ([*DIFFERENTIATED, LOGARITHM], 15 * 30_000, "Inverses and determinants of matrices: 75.0 %"),
        ([SOLVES[0], *[LOGARITHM] * 4], 0, None),  # inverses take little beside them
        ([LOGARITHM], 0, None),
        (["jit(f)/jit(invert)/mul", "jit(inverse)/jit(solve)/lu"], 0, None),  # functions of the program
    ],
)
def test_of_jax_ranges_say_what_an_inverse_is_made_of(names, stake, words):
    events = []
    for at, name in enumerate([*names, "jit(f)/dot_general"] * 5):
        start, ran = at * 100_000, kernel(at * 100_000 + 9_000, at * 100_000 + 39_000, name=f"of_{name[-5:]}")
        events += launched(start + 1_000, start + 5_000, replace(ran, correlation=at), thread=1)
        events.append(nvtx(f"Thunk:#name={name},hlo_op=x.{at}#", start, start + 8_000, domain="TSL"))
    assert_told(needless_work.inverses_of_jax(report(events)), [stake] * bool(stake), *filter(None, [words]))


def test_different_rows_of_few_integers_could_be_found_by_one_number_each():
    def rows(shape, kind="long int", dimension="0"):
        known = {"input_types": f'["{kind}", "Scalar"]', "input_values": f'["", "{dimension}", "True"]'}
        return "aten::unique_dim", {"input_shapes": f"[{shape}, []]", **known}, 30_000

    others = [rows("[90000, 4]", kind="float"), rows("[90000, 4]", dimension="1")]
    others += [rows(shape) for shape in ("[90000, 300]", "[90000]", "[300, 2]")]
    (one,) = different_rows(operators(rows("[90000, 4]"), *others))
    assert (one.at_stake_ns, one.headline) == (5 * 30_000, "Rows of 4 integers are compared to sort them: 16.7 %")
    assert different_rows(operators(*others)) == []


SOLVE = ("aten::linalg_solve", "[[4096, 4096], [4096, 1], []]", 60_000)
SHORT, LONG = ("aten::mul", "[[4096, 1], []]", 500), ("aten::add_", "[[4096, 4096], []]", 30_000)
H100 = {"memory_bandwidth_bytes_per_s": 3_350_000_000_000, "l2_bytes": 50 << 20}


@pytest.mark.parametrize(
    ("each", "device", "stake"),
    [
        ((SOLVE, SHORT), H100, 5 * 60_000),
        ((SOLVE, LONG), H100, 0),  # long enough to write the matrix, or a part of it
        ((SOLVE, ("aten::index_put_", "[[4096, 4096], [], [], []]", 3_000)), H100, 0),
        ((SOLVE, ("aten::mv", "[[4096, 4096], [4096]]", 30_000)), H100, 5 * 60_000),  # whose result is a vector
        ((SOLVE, SHORT), {}, 0),  # nobody knows how long that takes
        ((SOLVE, SHORT, (SOLVE[0], "[[2048, 2048], [2048]]", 30_000)), H100, 0),
        ((SOLVE, *[SHORT] * 8), H100, 0),  # which together may write it in pieces
        (((SOLVE[0], "[[32, 32], [32]]", 60_000), SHORT), H100, 0),
    ],
)
def test_solves_of_a_matrix_that_nothing_can_have_written(each, device, stake):
    assert_told(factored_again(of_shapes(*each, limits=device)), [stake] * bool(stake))


def ahead(*each, lag_ns):
    """Five of twenty passes of operators whose kernels begin so much later than the first launch, 1 ms a pass."""
    events = []
    for at in range(0, 2_000_000, 100_000):
        for place, (name, shapes, took) in enumerate(each):
            begun, runs = at + 20_000 * place, lag_ns + 10 * at + 600_000 * place
            events.append(shaped(name, begun, begun + 9_000, shapes))
            events += launched(begun + 1_000, begun + 8_000, kernel(runs, runs + took, name="k"))
    window = Window(lag_ns + 7_000_000, lag_ns + 12_000_000, count=5, each="step")
    return report(events, limits=H100).narrow(window=window)


@pytest.mark.parametrize("lag_ns", [10_000, 9_000_000])
@pytest.mark.parametrize(("between", "stake"), [((), 5 * 500_000), ((("aten::add_", SHORT[1], 100_000),), 0)])
def test_what_was_launched_before_the_window_counts_as_well(between, stake, lag_ns):
    solves = ahead((SOLVE[0], SOLVE[1], 500_000), *between, lag_ns=lag_ns)
    assert_told(factored_again(solves), [stake] * bool(stake))


ADDS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>(int)"
)


@pytest.mark.parametrize(
    ("name", "shapes", "stake"),
    [
        (ADDS, "[[4096, 1], [1, 128]]", 5 * 60_000),  # too small a result for a part of the matrix
        (ADDS, "[[4096, 1], [1, 4096]]", 0),
        (ADDS, "[]", 0),
        ("add_kernel", "[[4096, 1], [1, 128]]", 0),  # which may write anything
    ],
)
def test_what_writes_less_than_a_part_of_the_matrix_may_take_as_long(name, shapes, stake):
    made = of_shapes(SOLVE, ("aten::add", shapes, 5_000), limits=H100, kernels=["getrf", name])
    assert_told(factored_again(made), [stake] * bool(stake))


COPIES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda(float)#1}, std::array<char*, 2>>(int)"
)


@pytest.mark.parametrize(
    ("name", "rows", "stake"),
    [("aten::copy_", 4, 5 * 60_000), ("aten::copy_", 140, 0), ("aten::clone", 140, 5 * 60_000)],
)
def test_pieces_that_are_written_into_a_matrix_count_together(name, rows, stake):
    pieces = [(name, f"[[{rows}, 4096], [{rows}, 4096], []]", 2_000)] * 4
    made = of_shapes(SOLVE, *pieces, limits=H100, kernels=["getrf", *[COPIES] * 4])
    assert_told(factored_again(made), [stake] * bool(stake))


def test_solving_by_the_factors_stays():
    solve = shaped(SOLVE[0], 0, 90_000, SOLVE[1], input_types='["float"]')
    parts = operator("aten::linalg_lu_factor_ex", 1_000) + operator("aten::linalg_lu_solve", 40_000)
    told = factored_again(alike(solve, *parts, limits=H100))
    assert_told(told, [5 * 20_000])
    assert len(told[0].mending.gone) == 5


HEADS = "[2, 8, 2048, 64]"
QKV = ", ".join([HEADS] * 3)
SDPA = "aten::scaled_dot_product_attention"
BACKWARD = "aten::_scaled_dot_product_efficient_attention_backward"


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        (((SDPA, f"[{QKV}, [2048, 2048], [], []]", 30_000), SHORT), 5 * 30_000),
        (((SDPA, f"[{QKV}, [2, 1, 2048, 2048], [], []]", 30_000), SHORT), 5 * 30_000),
        (((BACKWARD, f"[{HEADS}, {QKV}, [2048, 2048], [], []]", 60_000), SHORT), 5 * 60_000),
        (((SDPA, f"[{QKV}, [], [], []]", 30_000), SHORT), 0),
        (((SDPA, f"[{QKV}, [2, 1, 1, 2048], [], []]", 30_000), SHORT), 0),  # of padding
        (((SDPA, f"[{QKV}, [49, 49], [], []]", 30_000), SHORT), 0),
        (((SDPA, f"[{QKV}, [2048, 2048], [], []]", 30_000), *[("aten::mm", "[]", 80_000)] * 4), 0),
    ],
)
def test_masks_of_all_pairs(each, stake):
    for types in ('["float", "bool"]', '["float", "float"]'):  # a mask, and a bias, which hides nothing
        told = needless_work.attention_masks(of_shapes(*each, types=types))
        assert_told(told, [stake] * bool(stake))
        assert [one.mending is not None for one in told] == ["bool" in types] * bool(stake)


PASS_NS = 1_000_000
FILLS = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(int)"
NODE = "autograd::engine::evaluate_function: "
ADDS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, X>(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)"


def sliced(many, *, part="aten::select", whole="[8, 40, 320]", place=None, adds=True, other=100_000, falls=7):  # noqa: PLR0913
    """Five passes that take parts of a tensor at different places or one; backward makes a gradient for each."""
    events = []
    for at in range(0, 5 * PASS_NS, PASS_NS):
        events += operator("aten::mm", at, took=other)
        for number in range(many):
            begin, known = at + 200_000 + 10_000 * number, {"sequence_number": at - falls * number + 900}
            values = f'["", "{whole}", "1", "{number if place is None else place}"]'
            for name, start, end, more in (
                (part, at + 150_000 + 1000 * number, at + 150_900 + 1000 * number, known),
                (f"{NODE}SelectBackward0", begin, begin + 9000, known),
                (f"{part}_backward", begin + 100, begin + 6000, {"input_shapes": "[[8]]", "input_values": values}),
                ("aten::add_" if adds else "aten::mul_", begin + 6800, begin + 8900, {}),
            ):
                events.append(host("op", name, start, end, thread=1 + (start >= begin), side=more))
            for start, name, took in ((200, FILLS, 1000), (2000, COPY, 500), (7000, ADDS, 2000)):
                made = kernel(begin + start + 500, begin + start + 500 + took, name=name)
                events += launched(begin + start, begin + start + 400, made, thread=2)
    return in_steps(events, 5, PASS_NS)


@pytest.mark.parametrize(
    ("of", "stake"),
    [
        (sliced(8), 5 * 8 * 3500),
        (sliced(8, part="aten::slice"), 5 * 8 * 3500),
        (sliced(7), 0),
        (sliced(8, falls=-7), 0),  # each in a pass of backward of its own
        (sliced(8, place=3), 0),  # one part of each of many tensors, as layers take
        (sliced(8, adds=False), 0),
        (sliced(8, whole=""), 0),  # without inputs
        (sliced(8, part="aten::index"), 0),
        (sliced(8, other=1_000_000 - 60_000), 0),  # little beside products
    ],
)
def test_gradients_of_parts_that_a_loop_takes(of, stake):
    found = needless_work.slice_gradients(of)
    assert_told(found, [stake] * bool(stake), *(["Gradients of slices are each as large as the whole"] * bool(stake)))
    # the copies stay, which put the parts together
    assert [len(one.change(of).gone) for one in found] == [5 * 8 * 2] * bool(stake)


@pytest.mark.parametrize(
    ("operator", "inner", "stake"),
    [
        ("aten::scatter_add_", "aten::_index_put_impl_", 5 * 60_000),
        ("aten::index_add", "aten::index_put_", 5 * 60_000),
        ("aten::scatter_add_", "aten::gather", 0),  # by atomics
        ("aten::_index_put_impl_", "aten::sort", 0),  # what backward of indexing does in any program
    ],
)
def test_sums_that_deterministic_algorithms_sort_for(operator, inner, stake):
    """At stake is what runs there, and that the device waits for it; what adds goes on to."""
    step = [host("op", operator, 0, 60_000), host("op", inner, 1000, 59_000)]
    for at, name in ((2000, "DeviceRadixSortOnesweepKernel"), (30_000, "at::native::indexing_backward_kernel")):
        step += launched(at, at + 4000, kernel(at + 5000, at + 10_000, name=f"void {name}<float>(int)"))
    step += launched(70_000, 80_000, kernel(100_000, 900_000, name="sgemm"))
    found = deterministic_sums(alike(*step))
    assert_told(found, [stake] * bool(stake), *(["Deterministic algorithms sort what"] * bool(stake)))
    assert [len(one.change(None).gone) for one in found] == [5] * bool(stake)


@pytest.mark.parametrize(
    ("batches", "others", "spared"),
    [
        (((64, (16, 15)),), (), 1 - 16 / 64),  # a fixed width
        (((64, (64, 16)), (48, (48, 16))), (), 1 - (128 + 32) / 224),  # texts of all lengths
        (((64, (64, 16)),), (), 0),  # alone, none of a like length is there
        (((64, (60, 62)),), (), 0),
        (((64, (16, 16)),), (), 0),  # a border
        (((32, (8, 9)),), (), 0),  # of other operators
        ((), (), 0),
        (((64, (16, 15)),), (("aten::conv2d", "[[2, 64, 56, 56]]", 900_000),), 0),  # little beside others
        (((64, (16, 15)),), (("aten::add_", "[[128, 128]]", 900_000),), 0),  # of an optimizer
    ],
)
def test_padding_of_batches_that_a_run_without_a_profiler_saw(batches, others, spared):
    looked_up, layer = ("aten::embedding", "[[99, 32], [2, 64]]", 30_000), ("aten::mm", "[[128, 32], [32, 9]]", 20_000)
    of = of_shapes(looked_up, layer, *others)
    run = BareRun(1, None, {}, Batches("train.py:7", batches))
    bare = [replace(each, bare=lambda: BareRuns((1,), (run,))) for each in (of, of_shapes(layer, *others))]
    told = padded_batches(bare[0])
    assert_told(told, [int(5 * 50_000 * spared)] * bool(spared))
    assert [one.change(of).shorter.get_column("saved_ns").sum() for one in told] == (
        [pytest.approx(5 * 50_000 * spared, abs=20)] * bool(spared)
    )
    assert all("train.py:7" in one.where and "sorted by length" in one.text for one in told if len(batches) > 1)
    assert_told(padded_batches(bare[1]), [])  # of no tokens


@pytest.mark.parametrize(("other", "spared"), [(16, 1 - 736 / 1120), (48, 0)])
def test_padding_of_batches_that_pad_sequence_puts_together(other, spared):
    joins = [("aten::pad_sequence", f"[[[{width}, 9], [{other}, 9]], [], []]", 1000) for width in (64, 48)]
    of = of_shapes(*joins, ("aten::linear", "[[2, 64, 9], [9, 9]]", 50_000))
    told = padded_batches(of)
    assert_told(told, [int(5 * 50_000 * spared)] * bool(spared), *["With samples sorted by length"] * bool(spared))
    assert padded_batches(of_shapes(("aten::pad_sequence", None, 1000))) == []


@pytest.mark.parametrize(
    ("part", "given", "sizes", "left", "words"),
    [
        ("aten::slice", 64, (5, 8, 16), (8 + 8 + 16) / 192, "A graph of 64 rows runs for 16 at most"),
        ("aten::narrow", 64, (33, 40), 1, None),  # the next power of two is all
        ("aten::slice", 64, (64,), 1, None),
        ("aten::view", 64, (8,), 1, None),  # of no part
        ("aten::slice", 8, (8,), 1, None),  # of a data set, or the next place of a cache
        ("aten::slice", None, (8,), 1, None),  # and of what follows the next part is copied in
    ],
)
def test_graphs_of_more_rows_than_are_copied_in(part, given, sizes, left, words):
    events = []
    for at in range(12):
        start, rows = 1_000_000 * at, sizes[at % len(sizes)]
        copies = ((part, 0, [64, 512, 24]), ("aten::copy_", 20_000, [rows, 512, 24]))
        for name, begin, shape in (*copies, *[("aten::slice", 60_000, [given, 512])] * bool(given)):
            events.append(shaped(name, start + begin, start + begin + 9000, f"[{shape}, []]"))
        events += launched(start + 40_000, start + 50_000, kernel(start + 60_000, start + 560_000), "cudaGraphLaunch")
    told = padded_graphs(in_steps(events, 12))
    assert_told(told, [pytest.approx(12 * 500_000 * (1 - left), abs=1)] * bool(words), *filter(None, [words]))
