"""Products with one-hot and diagonal matrices, and layers of rows that were gathered before."""

import pytest

from kanalyze.analyses.findings.rules.needless_products import diagonal_products, gathered_layers, one_hot_products
from support.build import host, kernel, launched
from support.kernel_names import GEMM, UP
from support.measures import assert_told, measures
from support.steps import in_steps

STEP = 2_000_000
NODE = "autograd::engine::evaluate_function: "
FILL = "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>, std::array<char*, 1ul> >(int)"
ONES = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_fill_internal_kernel<"
    "at::native::OpaqueType<8>>::operator()<at::native::TensorAssign>(at::TensorIterator&)::{lambda(int)#1}>(int)"
)
H100 = {"memory_bandwidth_bytes_per_s": 3_350_000_000_000}


def passes(*operators, limits=None, threads=()):
    """Five passes of operators: name, shapes of the inputs, kernels (name, ns).

    Each has its place as number; of nodes, which run on thread 2, the name ends with that of their operator. `threads`
    are those of others by name.
    """
    events, details = [], []
    for at in range(0, 5 * STEP, STEP):
        begin = at
        for number, (text, inputs, kernels) in enumerate(operators):
            name, _, of = text.partition("#")
            node = name.startswith(NODE)
            thread = dict(threads).get(name, 2 if node else 1)
            known = {"sequence_number": at // STEP * 50 + int(of or number), "forward_thread_id": int(node)}
            details.append({"event_id": len(events), "input_shapes": inputs, **known})
            events.append(host("op", name, begin, begin + 90_000, thread=thread))
            if node:
                details.append({"event_id": len(events), "input_shapes": "[]", **known})
                events.append(host("op", "MmBackward0", begin + 500, begin + 89_000, thread=thread))
                events.append(host("op", "aten::mm", begin + 1000, begin + 88_000, thread=thread))
            for place, (made, ns) in enumerate(kernels):
                start = begin + 20_000 * place
                launch = kernel(start + 10_000, start + 10_000 + ns, name=made)
                events += launched(start + 1000, start + 8000, launch, thread=thread)
            begin += 100_000
    return in_steps(events, 5, STEP, op_detail=details, limits=limits)


WORK = (GEMM, 16_000)
DIAG = ("aten::diag", "[[8192], []]", [(FILL, 9_000)])
SCALED = ("aten::matmul", "[[512, 8192], [8192, 8192]]", [WORK])
OTHER = ("aten::mm", "[[16, 16], [16, 16]]", [WORK])
JOINED = "[5, 8192], [9, 8192], [7, 8192]"


@pytest.mark.parametrize(
    ("operators", "stake", "gone"),
    [
        ((DIAG, SCALED), 25_000, 5),
        ((DIAG, ("aten::mm", "[[8192, 8192], [8192, 512]]", [WORK])), 25_000, 5),
        (
            (("aten::diag_embed", "[[4, 512], []]", DIAG[2]), ("aten::bmm", "[[4, 9, 512], [4, 512, 512]]", [WORK])),
            25_000,
            5,
        ),
        ((DIAG, SCALED, (f"{NODE}MmBackward0#1", "[]", [WORK, (UP, 2_000)])), 43_000, 10),
        ((DIAG, SCALED, OTHER, (f"{NODE}MmBackward0#2", "[]", [WORK])), 25_000, 5),  # another one's gradients
        ((("aten::diag", "[[8192, 8192], []]", DIAG[2]), SCALED), 0, 0),  # the diagonal of a matrix
        ((("aten::diag", "[[32], []]", DIAG[2]), ("aten::mm", "[[9, 32], [32, 32]]", [WORK])), 0, 0),
        ((DIAG, ("aten::add", "[[8192, 8192], [8192, 8192]]", [WORK]), SCALED), 0, 0),  # it is added
        ((DIAG, OTHER, SCALED), 0, 0),
        ((DIAG, SCALED, ("aten::add", "[[8192, 8192], [8192, 8192]]", [WORK])), 0, 0),  # the product is of another one
        ((DIAG, SCALED, ("aten::cat", f"[[{JOINED}, [8192, 8192]], []]", [WORK])), 0, 0),
        ((DIAG, SCALED, ("aten::einsum", f"[[], [{JOINED}, [8192, 8192]], []]", [WORK])), 0, 0),
        ((DIAG, SCALED, *[OTHER] * 15), 0, 0),
    ],
)
def test_products_with_diagonals(operators, stake, gone):
    told = diagonal_products(passes(*operators))
    assert_told(told, [5 * stake] * bool(stake), *["multiplied by diagonal ones"] * bool(stake))
    assert [len(one.mending.gone) for one in told] == [gone] * bool(stake)


GATHER = ("aten::index_select", "[[100, 64], [], [4000]]", [("gather", 5_000)])
LINEAR = ("aten::linear", "[[4000, 64], [64, 64], [64]]", [WORK])
RELU = ("aten::relu", "[[4000, 64]]", [("relu", 8_000)])
FURTHER = ("aten::index_select", "[[16, 64], [], [4000]]", GATHER[2])
CANDIDATES = ("aten::embedding", "[[100, 64], [40, 100]]", GATHER[2])
PLACES = "[[40, 100, 64], [], [100, 64], [100, 64], [], []]"
ROWS = "[[40, 100, 64], [64, 64], [64]]"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("operators", "stake"),
    [
        ((GATHER, LINEAR), 16_000),
        ((GATHER, LINEAR, RELU, LINEAR), 40_000),
        ((CANDIDATES, LINEAR), 16_000),
        ((("aten::index", "[[100, 64], []]", [("gather", 5_000)]), LINEAR), 0),  # nobody knows by how many
        ((("aten::index_select", "[[0, 64], [], [4000]]", GATHER[2]), LINEAR), 0),
        ((GATHER, LINEAR, ("aten::layer_norm", "[[4000, 64], [], [64], [64], [], []]", [WORK])), 32_000),
        ((GATHER, LINEAR, (f"{NODE}AddmmBackward0#1", "[]", [WORK])), 32_000),
        # what makes no node has the number of the next one that does
        ((GATHER, LINEAR, ("aten::relu#3", *RELU[1:]), OTHER, (f"{NODE}MmBackward0#3", "[]", [WORK])), 24_000),
        ((GATHER, LINEAR, ("aten::dropout", "[[4000, 64]]", [WORK]), LINEAR), 16_000),  # of each row another one
        ((("aten::index_select", "[[2000, 64], [], [4000]]", GATHER[2]), LINEAR), 0),  # not far fewer
        ((("aten::index_select", "[[100, 64], [], [500]]", GATHER[2]), LINEAR), 0),  # rows of something else
        ((GATHER, ("aten::linear", "[[4000, 64], [256, 64], [256]]", [WORK])), 0),  # wider than what was gathered
        ((GATHER, ("aten::linear", "[[8000, 32], [32, 32], [32]]", [WORK])), 0),
        ((GATHER, ("aten::cat", "[[[4000, 64], [4000, 64]], []]", [WORK]), LINEAR), 0),
        ((GATHER, RELU), 0),
        ((GATHER, LINEAR, ("aten::mul", "[[4000, 1], [4000, 64]]", [WORK])), 16_000),
        ((GATHER, LINEAR, OTHER, ("aten::add", "[[4000, 64], [4000, 64], []]", [WORK])), 0),  # of what was gathered
        ((GATHER, LINEAR, ("aten::mul", "[[4000, 8, 8], [4000, 8, 8]]", [WORK])), 0),  # in another shape
        ((GATHER, LINEAR, FURTHER, OTHER, ("aten::add", "[[4000, 64], [4000, 64], []]", [WORK])), 0),
        ((CANDIDATES, ("aten::matmul", "[[40, 100, 64], [40, 64, 1]]", [WORK])), 0),  # a matrix for each sample
        ((GATHER, ("aten::matmul", "[[16, 250, 64], [16, 64, 64]]", [WORK])), 0),  # for each expert
        ((CANDIDATES, ("aten::layer_norm", PLACES, [WORK]), ("aten::linear", ROWS, [WORK])), 0),  # by place, too
    ],
)
def test_layers_on_gathered_rows(operators, stake):
    told = gathered_layers(passes(*operators))
    assert_told(told, [5 * stake] * bool(stake), *["40 times for each", "100 rows, not 4,000"] * bool(stake))


def test_each_thread_numbers_what_it_runs_for_itself():
    images = "[[8, 3, 64, 64], [8, 3, 3, 3], []]"
    node, other = (f"{NODE}AddmmBackward0#1", "[]", [WORK]), ("aten::conv2d#{}", images, [("conv", 15_000)])
    for number, stake in ((2, 32_000), (1, 16_000)):
        beside = (other[0].format(number), *other[1:])
        made = passes(GATHER, LINEAR, beside, node, threads={"aten::conv2d": 3})
        assert_told(gathered_layers(made), [5 * stake])


HOT = ("aten::one_hot", "[[128, 32], []]", [(FILL, 9_000), (ONES, 1_000)])
CAST = ("aten::to", "[[128, 32, 4096], [], [], [], []]", [(UP, 8_000)])
LOOKED_UP = ("aten::linear", "[[128, 32, 4096], [64, 4096], []]", [WORK])
SMOOTHED = ("aten::scatter_", "[[8192, 1000], [], [8192, 1], []]", [(FILL, 9_000), (ONES, 1_000)])
LAYER = ("aten::linear", "[[8192, 784], [512, 784], [512]]", [WORK])
CLASSES = ("aten::mm", "[[1000, 8192], [8192, 64]]", [WORK])


@pytest.mark.parametrize(
    ("operators", "stake", "gone"),
    [
        ((HOT, CAST, LOOKED_UP), 34_000, 3),
        ((HOT, CAST, LOOKED_UP, (f"{NODE}MmBackward0#2", "[]", [WORK])), 50_000, 3),
        ((HOT, CAST, LOOKED_UP, OTHER, (f"{NODE}MmBackward0#3", "[]", [WORK])), 34_000, 3),  # another one's gradients
        ((SMOOTHED, CLASSES), 26_000, 2),  # it sums by class
        ((SMOOTHED, LAYER, (f"{NODE}AddmmBackward0#1", "[]", [WORK])), 0, 0),  # of something else: targets were made
        ((HOT, LAYER), 0, 0),  # as are actions
    ],
)
def test_products_with_one_hot_matrices(operators, stake, gone):
    told = one_hot_products(passes(*operators, limits=H100))
    assert_told(told, [5 * stake] * bool(stake), *["One-hot matrices are multiplied"] * bool(stake))
    assert [len(one.mending.gone) for one in told] == [5 * gone] * bool(stake)


def test_without_shapes_products_with_one_hot_matrices_take_as_long_as_now():
    node = (f"{NODE}MmBackward0#2", "[]", [WORK])
    made = passes(*[(name, "[]", kernels) for name, _, kernels in (HOT, CAST, LOOKED_UP, node)], limits=H100)
    told = one_hot_products(made)
    assert_told(told, [5 * 34_000])
    assert_mends(told, made, 15, 0)


def test_no_product_takes_longer_for_a_larger_result():
    large = ("aten::linear", "[[100000, 10], [512, 10], []]", [(GEMM, 70_000)])  # of which to write it takes 60 µs
    cast = ("aten::to", "[[100000, 10], [], [], [], []]", [(UP, 3_000)])
    made = passes(("aten::one_hot", "[[100000], []]", HOT[2]), cast, large, limits=H100)
    assert_mends(one_hot_products(made), made, 15, 0)


def assert_mends(told, made, gone, saved_ns):
    """How many operations are gone, and what others save."""
    assert [measures(one, made)[1:3] for one in told] == [(gone, saved_ns)]
