"""Loops of Python over the parts of a tensor: cells of recurrent networks, and the same operators slice by slice."""

import pytest

from kanalyze.analyses.findings.rules.python_loops import (
    masks_in_loops,
    optimizers_by_hand,
    reads_in_loops,
    repeated_work,
    rnn_cells,
)
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report

LAUNCH = "cudaLaunchKernel_v7000"
VIEWS = ("select", "slice", "unbind", "chunk")
STEP = 2_000_000
LSTM = "void at::native::lstm_cell_forward<float>()"


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
            if name in {"item", "index"}:
                sides = {"direction": "Device-to-Host", "size_bytes": 4, "correlation": begin}
                events.append(memcpy(begin + 6000, begin + 7000, **sides))
                continue
            events.append(kernel(begin + 9000, begin + 10_000, name=f"void at::native::{name}()", correlation=begin))
    return events


def found(rule, names, *, count=2, kinds=("op", "api", "kernel", "memcpy")):
    events = [event for number in range(count) for event in line(names, number * STEP) if event.kind in kinds]
    return rule(report(events).narrow(window=Window(0, count * STEP, count=count, each="step")))


def test_cells_one_after_the_other():
    (one,) = found(rnn_cells, ["zeros", *["select", "lstm_cell"] * 10, "stack"])
    assert one.text == (
        "A recurrent network is run cell by cell, 10 times in a row, in 10 launches a step (aten::lstm_cell): GPU 0 "
        "idles, or works for it, for 370.0 µs a step."
    )
    assert found(repeated_work, ["zeros", *["select", "lstm_cell"] * 10, "stack"]) == []


@pytest.mark.parametrize("names", [["select", "lstm_cell"] * 7, ["lstm_cell", "bmm", "softmax"] * 10])
def test_few_cells_and_cells_with_attention_are_none(names):
    assert found(rnn_cells, [*names, "stack"]) == []


@pytest.mark.parametrize(
    "names",
    [
        ["mul", *["select", "mm", "relu"] * 9, "stack"],  # taken in each pass, put together
        ["unbind", *["mm", "relu"] * 9, "cat"],  # taken apart before
        ["mul", *["select", "mm", "select", "copy_"] * 9, "sum"],  # written into parts
        ["mul", *["slice", "mul", "add"] * 9, "sum"],  # no weights
        ["mm", *["linear", "relu", "linear"] * 9, "stack"],  # an ensemble
    ],
)
def test_the_same_operators_slice_by_slice(names):
    (one,) = found(repeated_work, names)
    assert (one.rule, one.claims.is_empty()) == ("repeated-work", False)
    assert "9 times in a row" in one.text


def test_tensor_by_tensor_without_weights():
    (one,) = found(repeated_work, ["mm", *["mul", "mul", "add", "copy_"] * 20, "mm"])
    assert "20 times in a row, in 80 launches a step (mul → mul → add → copy_)" in one.text


def test_gates_by_hand_are_a_recurrent_network():
    (one,) = found(rnn_cells, ["unbind", *["linear", "chunk", "sigmoid", "tanh", "mul", "add"] * 12, "mm"])
    assert "12 times in a row" in one.text


@pytest.mark.parametrize(
    "names",
    [
        ["embedding", *["layer_norm", "linear", "select", "select", "linear", "add"] * 12, "layer_norm", "linear"],
        ["mul", *["mm", "relu"] * 9, "sum"],  # nothing is taken, nothing put together
        ["mul", *["to"] * 30, "sum"],  # casts
        ["mul", *["select", "eq", "nonzero"] * 3, "sum"],
        ["mul", *["select", "mm", "relu"] * 7, "stack"],
        [*["layer_norm", "linear", "slice", "copy_"] * 12, "linear"],  # a cache of keys is written by each layer
    ],
)
def test_layers_and_short_loops_are_none(names):
    assert found(repeated_work, names) == []


def test_without_operators_kernels_of_cells_tell():
    (one,) = found(rnn_cells, ["zeros", *["mm", "lstm_cell_forward"] * 10, "stack"], kinds=("api", "kernel"))
    assert "(lstm_cell_forward)" in one.text


def test_a_value_read_in_each_pass():
    (one,) = found(reads_in_loops, ["linear", *["linalg_vector_norm", "item"] * 20, "mm"])
    assert one.headline == "20 values are read one by one in a Python loop"
    assert "in each pass of a loop, 20 times in a row, in 40 launches a step (linalg_vector_norm → item)" in one.text
    assert found(repeated_work, ["linear", *["linalg_vector_norm", "item"] * 20, "mm"]) == []


def test_a_mask_in_each_pass():
    (one,) = found(masks_in_loops, ["linear", *["eq", "index", "mean"] * 20, "stack"])
    assert "(eq → index → mean)" in one.text
    assert found(repeated_work, ["linear", *["eq", "index", "mean"] * 20, "stack"]) == []
    assert found(masks_in_loops, ["linear", *["eq", "index", "linear"] * 20, "stack"]) == []  # experts


def test_an_optimizer_written_out():
    update = ["mul_", "add_", "mul_", "addcmul_", "sqrt", "div", "sub_"]
    (one,) = found(optimizers_by_hand, ["linear", *update * 10, "mm"])
    assert (one.rule, found(repeated_work, ["linear", *update * 10, "mm"])) == ("unfused-optimizer", [])
