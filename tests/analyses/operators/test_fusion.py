"""Chains of elementwise kernels: what counts as one, and what it moves."""

from itertools import groupby

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.operators.fusion import compiled, sizes
from support.build import call, host, kernel, launched, memcpy, report
from support.shares import cases, holds
from support.strategies import slow_given

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&), 4>"
OPTIMIZES = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, float>"
)
GEMM = "ampere_sgemm_128x64_tn"
OPS = {"aten::add": ADD, "aten::mul": ADD, "aten::tanh": ADD, "aten::mm": GEMM, "aten::fill_": ADD}
MORE = {**OPS, "aten::copy_": COPY}
KINDS = ("kernel", "memcpy", "memset", "api", "op", "range")
ONE_GB_PER_S = {"memory_bandwidth_bytes_per_s": 1_000_000_000}


def step(number, name, **given):
    """An operator at 100 × its number, with one call and one kernel."""
    return {"name": name, "at": 100 * number, "elements": 100, "stream": 7, "thread": 1, "ns": 10, **given}


def events_of(steps):
    found = []
    for one in steps:
        at, thread, number = one["at"], one["thread"], len(found)
        sizes = {"input_shapes": f"[[{one['elements']}], []]", "input_types": '["float", "Scalar"]'}
        ran = kernel(at + 5, at + 5 + one["ns"], name=MORE[one["name"]], stream=one["stream"], parent=number)
        found.append(host("op", one["name"], at, at + 50, thread=thread, side=sizes if one["elements"] else {}))
        found += launched(at + 1, at + 2, ran, thread=thread, parent=number)
    return found


def made(steps, *more):
    return report([*events_of(steps), *more], kinds=KINDS, limits=ONE_GB_PER_S)


def test_neighbours_on_a_stream_are_a_chain_with_what_they_move():
    found = kanalyze.fusion(made([step(0, "aten::add"), step(1, "aten::mul"), step(2, "aten::tanh", ns=3000)]))
    # a byte per nanosecond, and no kernel takes less than 1 µs
    assert found.to_dicts() == [
        {
            "device": 0, "chain": "aten::add → aten::mul → aten::tanh", "within": None, "elements": 100, "count": 1,
            "kernels": 3, "launches": 3, "total_ns": 3020, "gaps_ns": 180, "moved_bytes": 3 * 800, "fused_bytes": 800,
            "fused_ns": 1000, "saved_ns": 2020,
        }
    ]  # fmt: skip


def test_another_operation_of_the_stream_between_ends_a_chain():
    steps, copies = [step(0, "aten::add"), step(1, "aten::mul")], call("cudaMemcpyAsync", 80, 85, correlation=7)
    for stream, chains in ((7, 0), (9, 1)):
        found = kanalyze.fusion(made(steps, copies, memcpy(90, 95, correlation=7, stream=stream)))
        assert found.height == chains


def test_one_operator_around_names_the_chain_even_of_one_operator():
    inside = made([step(0, "aten::mul"), step(1, "aten::mul")], host("op", "PowBackward0", 0, 900))
    assert kanalyze.fusion(inside).select("chain", "within").rows() == [("aten::mul → aten::mul", "PowBackward0")]
    two = [host("op", "one", 0, 60), host("op", "other", 90, 200)]
    apart = made([step(0, "aten::add"), step(1, "aten::mul")], *two)
    assert kanalyze.fusion(apart).select("chain", "within").rows() == [("aten::add → aten::mul", None)]


def test_without_shapes_one_takes_as_long_as_the_shortest_kernel():
    steps = [step(0, "aten::add", elements=None, ns=3000), step(10, "aten::mul", elements=None, ns=7000)]
    found = kanalyze.fusion(made(steps)).select("elements", "moved_bytes", "fused_bytes", "fused_ns", "saved_ns")
    assert found.rows() == [(None, None, None, 3000, 7000)]


def of_lists(names, *, elements=1000, parts=1, shapes=True):
    """Operators on lists of tensors, each with so many kernels of 5,000 ns, and sizes for `elements` in all."""
    events = []
    for number, name in enumerate(names):
        at, op = 50_000 * number, len(events)
        lists = {"lerp_": 2, "addcmul_": 3, "addcdiv_": 3, "copy_": 2}.get(name, 1)
        types = '", "'.join(["TensorList"] * lists)
        sizes = {"input_shapes": str([[[elements]]] * lists), "input_types": f'["{types}"]'}
        events.append(host("op", f"aten::_foreach_{name}", at, at + 100, side=sizes if shapes else {}))
        for part in range(parts):
            ran, grid = at + 200 + 5000 * part, (320 - part, 1, 1)
            made_by = kernel(ran, ran + 5000, name=OPTIMIZES, parent=op, grid=grid)
            events += launched(at + 2 * part, at + 2 * part + 1, made_by, parent=op)
    return report(events, kinds=KINDS, limits=ONE_GB_PER_S)


ADAMW = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
RMSPROP = ("mul_", "addcmul_", "sqrt", "add_", "addcdiv_")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("names", "moved"), [(ADAMW, 7), (RMSPROP, 5), (("mul_", "sqrt", "div_"), 2)])
def test_a_fused_optimizer_moves_all_that_it_keeps(names, moved, parts):
    (row,) = kanalyze.fusion(of_lists(names, parts=parts)).to_dicts()
    assert row["fused_bytes"] == moved * 1000 * 4
    assert row["kernels"] == parts * len(names)
    assert row["fused_ns"] == moved * 1000 * 4
    assert row["saved_ns"] == row["total_ns"] - row["fused_ns"]
    # however little it moves, each fused kernel takes a microsecond
    assert kanalyze.fusion(of_lists(names, elements=2, parts=parts)).item(0, "fused_ns") == parts * 1000


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_without_shapes_a_fused_optimizer_takes_as_long_as_what_it_moves(parts):
    """Each of its operators needs as many kernels, of other grids: the first ones show that they are alike."""
    (row,) = kanalyze.fusion(of_lists(ADAMW, parts=parts, shapes=False)).to_dicts()
    assert row["chain"].count(" → ") == len(ADAMW) - 1
    assert (row["kernels"], row["moved_bytes"]) == (parts * len(ADAMW), None)
    assert row["fused_ns"] == parts * 5000 * 7 // 2  # the shortest reads and writes one list, of seven


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_kernels_of_one_operator_are_no_chain(parts, shapes):
    assert kanalyze.fusion(of_lists(("mul_",), parts=parts, shapes=shapes)).is_empty()
    assert kanalyze.fusion(of_lists(("copy_",), parts=parts, shapes=shapes)).is_empty()


def test_copies_alone_are_no_chain():
    """Casts of two tensors that happen to be as large: nobody copies a copy."""
    copies = [step(0, "aten::copy_"), step(1, "aten::copy_")]
    assert kanalyze.fusion(made(copies, host("op", "aten::addmm", 0, 900))).is_empty()
    both = made([copies[0], step(1, "aten::mul")])
    assert kanalyze.fusion(both).select("chain").rows() == [("aten::copy_ → aten::mul",)]


FOREACH = st.lists(st.sampled_from(["mul_", "lerp_", "addcmul_", "sqrt", "copy_", "addcdiv_"]), min_size=1, max_size=6)


@slow_given(FOREACH, st.integers(1, 3))
def test_what_is_saved_is_less_than_what_runs_and_moves_less(names, parts):
    for row in kanalyze.fusion(of_lists(names, parts=parts)).to_dicts():
        assert len(set(row["chain"].split(" → "))) > 1
        assert row["fused_bytes"] < row["moved_bytes"]
        assert row["fused_ns"] >= 1000 * row["count"]
        assert 0 <= row["saved_ns"] < row["total_ns"]


def without_loops(line):
    """The runs of one operator, those of five and more as something that is no elementwise kernel."""

    def key(one):
        return one["name"], one["elements"], one["thread"], one["name"] == "aten::fill_" and one["at"]

    for _, run in groupby(line, key=key):
        same = list(run)
        yield from ({**one, "name": "aten::mm"} for one in same) if len(same) >= 5 else same


def slow_chains(steps):
    """What :func:`kanalyze.fusion` gives, by loops: (chain, elements, count, launches, total_ns)."""
    found = []
    for _, line in groupby(sorted(steps, key=lambda one: (one["stream"], one["at"])), key=lambda one: one["stream"]):
        run = []
        for one in [*without_loops(line), None]:
            fits = (
                one is not None
                and run
                and one["name"] not in ("aten::mm", "aten::fill_")
                and run[-1]["name"] != "aten::mm"
                and (one["elements"], one["thread"]) == (run[-1]["elements"], run[-1]["thread"])
            )
            if not fits:
                found += turns(run)
                run = []
            if one is not None:
                run.append(one)
    sums = {}
    for chain in found:
        key = " → ".join(one["name"] for one in chain), chain[0]["elements"]
        count, launches, ns = sums.get(key, (0, 0, 0))
        sums[key] = count + 1, launches + len(chain), ns + sum(one["ns"] for one in chain)
    return {(*key, *value) for key, value in sums.items()}


def turns(run):
    names = [one["name"] for one in run]
    for period in range(1, len(run) // 2 + 1):
        if all(names[at] == names[at + period] for at in range(len(run) - period)):
            parts = [run[at : at + period] for at in range(0, len(run), period)]
            return [part for part in parts if len(part) > 1]
    return [run] if len(run) > 1 else []


a_step = st.tuples(*map(st.sampled_from, (sorted(OPS), [100] * 9 + [200], [7] * 5 + [8], [1] * 9 + [2])))


@cases(0.15)
@given(st.lists(a_step, min_size=1, max_size=24), st.integers(1, 40))
def test_chains_are_those_of_the_slow_model(chosen, ns):
    steps = [
        step(number, name, elements=elements, stream=stream, thread=thread, ns=ns + number)
        for number, (name, elements, stream, thread) in enumerate(chosen)
    ]
    found = kanalyze.fusion(made(steps))
    holds(found.height)
    assert set(found.select("chain", "elements", "count", "launches", "total_ns").rows()) == slow_chains(steps)
    assert (found["saved_ns"] >= 0).all()
    assert (found["saved_ns"] == found["total_ns"] - found["fused_ns"]).all()


@pytest.mark.parametrize(
    ("name", "shapes", "types", "strides", "expected"),
    [
        ("aten::add", "[[4, 8], [4, 8], []]", '["float", "float", "Scalar"]', None, (32, 256, 128)),
        ("aten::add", "[[4, 8], [8]]", '["float", "c10::BFloat16"]', None, (32, 144, 128)),  # broadcast, widest type
        ("aten::mul", "[[4, 8], [4, 8]]", '["float", "float"]', "[[8, 1], [0, 1]]", (32, 160, 128)),  # expanded
        ("aten::mul", "[[4], []]", '["c10::Half", "double"]', None, (4, 16, 8)),  # a number does not widen
        ("aten::copy_", "[[4], [4], []]", '["c10::Half", "float", "Scalar"]', None, (4, 16, 8)),
        ("aten::fill_", "[[4], []]", '["float", "Scalar"]', None, (4, 0, 16)),
        ("aten::_foreach_mul_", "[[[2, 3], [4]], []]", '["TensorList", "Scalar"]', None, (10, 40, 40)),
        ("aten::add", "[[4]]", '["c10::Unheard"]', None, (None, None, None)),
        ("aten::add", None, None, None, (None, None, None)),
        ("aten::add", "no json", "[]", None, (None, None, None)),
    ],
)
def test_sizes_from_shapes_and_types(name, shapes, types, strides, expected):
    row = {
        "name": name, "input_shapes": shapes, "input_types": types, "input_strides": strides,
        "element_bytes": 4 if "foreach" in name else None,
    }  # fmt: skip
    schema = {**dict.fromkeys(row, pl.String), "element_bytes": pl.Int64}
    assert sizes(pl.DataFrame([row], schema=schema)).row(0) == expected


KEYS = ("name", "hash", "registers", "variants", "count", "total_ns", "avg_ns")


def row(name, key, registers=None):
    return {"name": name, "source": "triton", "hash": key, "registers": registers}


def compiled_rows(of, **where):
    return compiled(of, **where).select(KEYS).rows()


def test_each_compiled_kernel_has_the_launches_of_its_name():
    runs = ((0, 10, "gelu"), (20, 50, "gelu"), (60, 61, "other"), (100, 200, "tuned"))
    events = [kernel(start, end, name=name) for start, end, name in runs]
    rows_of = [row("gelu", "A", 32), row("never", "B"), row("tuned", "C"), row("tuned", "D")]
    of = report(events, compiled_kernels=rows_of)
    assert compiled_rows(of) == [
        ("tuned", "C", None, 2, 1, 100, 100.0), ("tuned", "D", None, 2, 1, 100, 100.0),
        ("gelu", "A", 32, 1, 2, 40, 20.0), ("never", "B", None, 1, 0, 0, None),
    ]  # fmt: skip
    assert compiled_rows(of, window="..15ns")[0] == ("gelu", "A", 32, 1, 1, 10, 10.0)
    assert compiled_rows(report(events, compiled_kernels=[])) == []
