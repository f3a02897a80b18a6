"""Loops of Python over the parts of a tensor, and a model that is run for a few samples at a time."""

import pytest

from kanalyze.analyses.findings.rules.loops import python_loops, small_batches
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report
from support.measures import measures

LAUNCH = "cudaLaunchKernel_v7000"
VIEWS = ("select", "slice", "unbind", "chunk")
STEP = 2_000_000


def line(names, at):
    """Operators one after the other, each of 10 µs, with a kernel of 1 µs in all that are no views."""
    events = []
    for start, name in enumerate(names):
        begin = at + 20_000 * start
        events.append(host("op", f"aten::{name}", begin, begin + 10_000))
        parts = range(20) if name == "unbind" else ()
        events += [host("op", "aten::select", begin + 100 * part, begin + 100 * part + 50) for part in parts]
        if name not in VIEWS:
            events.append(call(LAUNCH, begin + 4000, begin + 8000, correlation=begin))
            if name in {"item", "index"} or name.startswith("linalg_"):
                sides = {"direction": "Device-to-Host", "size_bytes": 4, "correlation": begin}
                events.append(memcpy(begin + 6000, begin + 7000, **sides))
                continue
            events.append(kernel(begin + 9000, begin + 10_000, name=f"void at::native::{name}()", correlation=begin))
    return events


def program(names, *, count=2, kinds=("op", "api", "kernel", "memcpy")):
    events = [event for number in range(count) for event in line(names, number * STEP) if event.kind in kinds]
    return report(events).narrow(window=Window(0, count * STEP, count=count, each="step"))


def found(names, **how):
    return python_loops(program(names, **how))


def test_cells_one_after_the_other():
    (one,) = found(["zeros", *["select", "lstm_cell"] * 10, "stack"])
    assert (one.rule, one.claims.is_empty()) == ("rnn-cells", False)
    assert one.text == (
        "A recurrent network is run cell by cell, 10 times in a row, in 10 launches a step (aten::lstm_cell): GPU 0 "
        "idles, or works for it, for 370.0 µs a step."
    )


UPDATE = ["mul_", "add_", "mul_", "addcmul_", "sqrt", "div", "sub_"]


@pytest.mark.parametrize(
    ("names", "rule", "said", "figures"),
    [
        # taken in each pass, put together; taken apart before; written into parts; no weights; an ensemble
        (["mul", *["select", "mm", "relu"] * 9, "stack"], "repeated-work", "9 times", (1_060_000, 32, -32_000)),
        (["unbind", *["mm", "relu"] * 9, "cat"], "repeated-work", "9 times", (700_000, 32, -32_000)),
        (
            ["mul", *["select", "mm", "select", "copy_"] * 9, "sum"],
            "repeated-work",
            "9 times",
            (1_420_000, 32, -32_000),
        ),
        (["mul", *["slice", "mul", "add"] * 9, "sum"], "repeated-work", "9 times", (1_060_000, 32, -32_000)),
        (["mm", *["linear", "relu", "linear"] * 9, "stack"], "repeated-work", "9 times", (1_060_000, 48, -48_000)),
        (
            ["mm", *["mul", "mul", "add", "copy_"] * 20, "mm"],
            "repeated-work",
            "20 times in a row, in 80 launches a step (mul → mul → add → copy_)",
            (3_180_000, 152, -152_000),
        ),
        (
            ["unbind", *["linear", "chunk", "sigmoid", "tanh", "mul", "add"] * 12, "mm"],
            "rnn-cells",
            "12 times in a row, in 60 launches a step (linear → chunk → sigmoid → tanh → …)",
            (2_860_000, 110, -110_000),
        ),
        (
            ["linear", *["norm", "item"] * 20, "mm"],
            "blocking-read",
            "in each pass of a loop, 20 times in a row, in 40 launches a step (norm → item)",
            (1_580_000, 76, -76_000),
        ),
        (
            ["linear", *["eq", "index", "mean"] * 20, "stack"],
            "boolean-masks",
            "(eq → index → mean)",
            (2_380_000, 114, -114_000),
        ),
        (
            ["linear", *["eq", "index", "linalg_inv", "mean"] * 20, "stack"],
            "boolean-masks",
            "(eq → index → linalg_inv → mean)",
            None,
        ),
        (
            ["linear", *["mm", "linalg_cholesky", "linalg_eigvalsh"] * 20, "stack"],
            "repeated-work",
            "(mm → linalg_cholesky → linalg_eigvalsh)",
            None,
        ),
        (
            ["linear", *UPDATE * 10, "mm"],
            "unfused-optimizer",
            "An optimizer runs parameter by parameter, 10 times",
            (2_780_000, 126, -126_000),
        ),
    ],
)
def test_a_loop_is_told_by_what_its_passes_do(names, rule, said, figures):
    of = program(names)
    (one,) = python_loops(of)
    assert one.rule == rule
    assert said in one.text
    assert figures is None or measures(one, of) == (*figures, one.at_stake_ns)


def test_the_headline_has_the_number_of_values_that_are_read():
    (one,) = found(["linear", *["norm", "item"] * 20, "mm"])
    assert one.headline == "20 values are read one by one in a Python loop"


@pytest.mark.parametrize(
    "names",
    [
        [*["select", "lstm_cell"] * 7, "stack"],
        [*["lstm_cell", "bmm", "softmax"] * 10, "stack"],  # with attention
        ["embedding", *["layer_norm", "linear", "select", "select", "linear", "add"] * 12, "layer_norm", "linear"],
        ["mul", *["mm", "relu"] * 9, "sum"],  # nothing is taken, nothing put together
        ["mul", *["to"] * 30, "sum"],  # casts
        ["mul", *["select", "eq", "nonzero"] * 3, "sum"],
        ["mul", *["select", "mm", "relu"] * 7, "stack"],
        [*["layer_norm", "linear", "slice", "copy_"] * 12, "linear"],  # a cache of keys is written by each layer
        ["linear", *["eq", "index", "linear"] * 20, "stack"],  # experts
    ],
)
def test_layers_and_short_loops_are_none(names):
    assert [one.rule for one in found(names)] == []


def test_without_operators_kernels_of_cells_tell():
    (one,) = found(["zeros", *["mm", "lstm_cell_forward"] * 10, "stack"], kinds=("api", "kernel"))
    assert (one.rule, "(lstm_cell_forward)" in one.text) == ("rnn-cells", True)


@pytest.mark.parametrize(("numbers", "spared"), [(range(1, 10), 1_060_000 + 8 * 30_000 + 10_000), ([1] * 9, 1_060_000)])
def test_what_backward_runs_for_a_loop_is_of_it(numbers, spared):
    """Nodes of autograd of 10 µs, 20 after each other, with the numbers of nine passes, and one of no pass."""
    names, details = ["mul", *["select", "mm", "relu"] * 9, "stack"], []
    events = [event for number in range(2) for event in line(names, number * STEP)]
    for at, one in enumerate(events):
        if one.name == "aten::mm":
            details.append({"event_id": at, "sequence_number": numbers[len(details) % 9]})
    for at, number in enumerate([*numbers, 99]):
        details.append({"event_id": len(events), "sequence_number": number})
        begin = 1_000_000 + 30_000 * at
        events.append(host("op", "autograd::engine::evaluate_function: MmBackward0", begin, begin + 10_000, thread=2))
    of = report(events, op_detail=details).narrow(window=Window(0, 2 * STEP, count=2, each="step"))
    (one,) = python_loops(of)
    assert measures(one, of)[3] == spared


# Few samples at a time

PASS = 1_000_000
GEMM = "nvjet_sm90_tst_40x64_64x16_4x2_h_bz_TNN"
NORM = "void at::native::vectorized_layer_norm_kernel<float>()"
LIMITS = {"sm_count": 100, "max_warps_per_sm": 64, "threads_per_warp": 32}
LAYER = [host("op", "aten::linear", 0, 10)]


def passed(at, *, blocks=20, apart=190_000, took=2000, last=()):
    """A pass: products of matrices and norms, each of `blocks` blocks, launched `apart` from each other."""
    events = []
    for place, name in enumerate((GEMM, NORM, GEMM, NORM, f"{GEMM}_2", *last)):
        start = at + apart * place
        events.append(call(LAUNCH, start, start + 5000, correlation=start))
        shape = {"grid": (blocks, 1, 1), "block": (256, 1, 1)}
        events.append(kernel(start + 6000, start + 6000 + took, name=name, correlation=start, **shape))
    return events


def model(*, passes=20, each=1, more=LAYER, **keys):
    events = [event for number in range(passes) for event in passed(number * PASS, **keys)]
    window = Window(0, passes * PASS, count=passes // each, each="step")
    return report([*events, *more], limits=LIMITS).narrow(window=window)


def small(**how):
    return small_batches(model(**how))


def test_passes_that_fill_a_part_of_the_gpu():
    (one,) = small()
    assert one.text.startswith(
        "The model is run 1 time a step, for few samples each time: its kernels fill 13.1 % of the"
    )
    assert one.general
    assert measures(one, model()) == (18_810_000, 86, -13_200, 17_000_000)
    assert small(more=()) == []  # of few layers: may be a part of a model


@pytest.mark.parametrize(("blocks", "told"), [(85, 1), (95, 0)])
def test_layers_that_all_but_fill_the_gpu_gain_nothing_by_more_samples(blocks, told):
    assert len(small(blocks=blocks)) == told


def inside(*names, every=1):
    """Operators (name, at, ns) of each of so many passes."""
    return [
        host("op", f"aten::{name}", n * PASS + at, n * PASS + at + ns)
        for n in range(0, 20, every)
        for name, at, ns in names
    ]


SLICES = (("embedding", 0, 8000), ("linear", 190_000, 8000), ("slice", 960_000, 10))
SPLIT = (("split", 10, 10), ("cat", 970_000, 10))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), []),
        (inside(*SLICES), [False]),
        ([host("op", "aten::linear", 100, 8000), *inside(*SPLIT, every=5)], [False]),
        ([host("op", "aten::linear", 100, 8000), *inside(*SPLIT)], []),  # layers do that, too
    ],
)
def test_several_passes_in_each_iteration_by_how_a_batch_is_taken_apart(more, told):
    assert [one.general for one in small(each=5, more=more)] == told


def test_samples_that_are_trained_on_one_by_one_are_split_and_not_joined():
    more = [host("op", "aten::linear", 100, 8000), *inside(*SPLIT[:1], every=5)]
    backward = inside(("ones_like", 900_000, 10))
    last = ("void at::native::layer_norm_backward_kernel<float>()",)
    assert [one.general for one in small(each=5, more=[*more, *backward], last=last)] == [False]
    assert small(each=5, more=more, last=last) == []  # one backward of all passes: steps of time
    assert small(each=5, more=[*more, *backward]) == []  # what is only run is joined again


@pytest.mark.parametrize(
    "keys",
    [
        {"blocks": 200},  # they fill the GPU
        {"took": 180_000},  # the GPU is busy
        {"last": ("void at::native::multi_tensor_apply_kernel<FusedAdam>()",)},  # an optimizer
        {"last": ("void at::native::reduce_kernel<ArgMaxOps>()",)},  # the next pass needs it
        {"passes": 6},
        {"apart": 10_000},  # the host does something else for long
    ],
)
def test_what_a_larger_batch_would_not_mend(keys):
    assert small(**keys) == []
