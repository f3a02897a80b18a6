"""What formulas in elementwise kernels need, by what a trace shows beside them."""

import polars as pl
import pytest

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.on_gpu import Work, kernel_sums
from kanalyze.analyses.findings.rules.unfused import _searches, _words
from support.build import host, kernel, launched, report
from support.steps import shaped

MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>, X>(int)"
OF_COMPILER = "triton_poi_fused_mul_0"


def words(*operators, name=MUL):
    return _words(made(*operators, name=name))


def made(*operators, name=MUL):
    """The kernels of a trace of operators (name, shapes of inputs or None) of which each launches a kernel but regions.

    A region is around the operator that follows it.
    """
    events = []
    for number, (operator, shapes) in enumerate(operators):
        at = 1000 * number
        if operator.startswith("Torch"):
            events.append(host("op", operator, at, at + (1500 if "Region" in operator else 500)))
            continue
        ran = launched(at + 10, at + 80, kernel(at + 100, at + 200, name=name), "cudaLaunchKernel")
        events += [shaped(operator, at, at + 90, shapes), *ran]
    of = report(events)
    return Work(of, kernel_sums(of)[0], exclusive_operations(of))


def regions(*versions, inside="aten::mm", eager=0):
    """Calls of a compiled function, of which each version has one operator, and of which some have none."""
    compiled = [
        step
        for version in versions
        for step in ((LOOKUP, None), (f"Torch-Compiled Region: {version}", None), (inside, None))
    ]
    return [*compiled, *[(LOOKUP, None)] * eager]


LOOKUP = "TorchDynamo Cache Lookup"
POW = ("aten::pow", None)
EIGHT = [f"0/{version}" for version in range(8)]


@pytest.mark.parametrize(
    ("shapes", "after", "told"),
    [
        ("[[4096, 1, 128], [1, 1024, 128], []]", POW, ": distances"),
        ("[[1, 1024, 128], [4096, 1, 128], []]", POW, ": distances"),
        ("[[4096, 1, 128], [1024, 128], []]", POW, ": distances"),
        ("[[8, 4096, 1, 128], [8, 1, 1024, 128], []]", ("aten::abs", None), ": distances"),
        ("[[4096, 1, 128], [1, 1024, 128], []]", ("aten::exp", None), ""),
        ("[[4096, 1, 128], [1, 1024, 128], []]", ("aten::mul", None), ""),  # a gate
        ("[[4096, 1024, 128], [1, 1024, 128], []]", POW, ""),  # the mean of all rows
        ("[[4096, 128], [128], []]", POW, ""),
        ("[[4096, 1, 128], [4096, 1, 128], []]", POW, ""),
        ("[[1, 1, 4096], [1, 1, 1], []]", POW, ""),  # norms of one token, and of pictures
        ("[[1, 512, 768], [1, 1, 768], []]", POW, ""),
        ("[[32, 1, 64], [1, 1, 64], []]", POW, ""),
        ("[[8, 1, 512, 512], [8, 1, 1, 1], []]", POW, ""),
        (None, POW, ""),
    ],
)
def test_differences_of_all_pairs_are_a_product(shapes, after, told):
    assert words(("aten::sub", shapes), after) == f"fusion{told}"


@pytest.mark.parametrize(
    ("operator", "shapes", "after", "searches"),
    [
        ("aten::lt", "[[128, 1, 2048], [128, 900, 1]]", "aten::sum", True),
        ("aten::ge", "[[900, 1], [2048]]", "aten::argmax", True),
        ("aten::eq", "[[900, 1], [2048]]", "aten::sum", False),  # labels of pairs
        ("aten::gt", "[[900, 1], [2048]]", "aten::to", False),  # a mask
        ("aten::gt", "[[900, 2048], [2048]]", "aten::sum", False),  # one threshold for each column
        ("aten::gt", "[[900, 1], [1, 1]]", "aten::sum", False),
        ("aten::gt", None, "aten::sum", False),
    ],
)
def test_comparisons_of_all_pairs_that_are_counted_are_a_search(operator, shapes, after, searches):
    runs = made((operator, shapes), (after, None))
    grouped = runs._replace(rows=runs.rows.with_columns(group=pl.lit(3)))
    assert _searches(grouped).to_list() == [3] * searches
    others = made((operator, shapes), (after, None), *[("aten::exp", None)] * 3)
    assert _searches(others._replace(rows=others.rows.with_columns(group=pl.lit(3)))).is_empty()


def test_distances_beside_more_of_other_formulas_are_no_words():
    pairs = [("aten::sub", "[[8, 1, 3], [1, 8, 3], []]"), POW]
    assert words(*pairs, *[("aten::tanh", None)] * 5) == "fusion"


@pytest.mark.parametrize(
    ("calls", "name", "told"),
    [
        (regions(*EIGHT, eager=16), OF_COMPILER, ": limit"),
        (regions(*EIGHT), OF_COMPILER, ""),  # as many as there are shapes
        (regions(*EIGHT[1:], eager=16), OF_COMPILER, ""),
        (regions(*(f"{function}/0" for function in range(9)), eager=9), OF_COMPILER, ""),
        (regions("0/0", inside="aten::mul"), MUL, ": backend"),
        (regions("0/0"), MUL, ""),  # products have no kernel of the compiler, graphs no operator
    ],
)
def test_a_compiler_that_gave_up_or_fuses_nothing(calls, name, told):
    assert words(*calls, POW, name=name) == f"fusion{told}"
