"""Work of the CPU between launches, loops of Python over tensors, and models run for a few samples."""

from dataclasses import replace

import pytest

from kanalyze.analyses.findings.rules.cpu_work import anomaly_detection, cpu_work
from kanalyze.analyses.findings.rules.few_samples import small_batches
from kanalyze.analyses.findings.rules.loops import python_loops, recurrent_history
from kanalyze.analyses.findings.rules.slower_kernels import scattered_weights
from kanalyze.analyses.operators._host_tree import NODE
from kanalyze.window import Window
from support.build import HOPPER, LAUNCH, again, call, host, in_line, kernel, launched, memcpy, memset, nvtx, report
from support.measures import assert_told, measures
from support.steps import alike, in_steps, shaped

COPY = "cudaMemcpyAsync_v3020"
STEP = 1_000_000
TO_HOST = "Device-to-Host"


def step(at, names, *, down=4096, up=512, took=150_000):
    """A kernel, a copy of `down` bytes to the host, operators of the CPU by `names`, and a copy of `up` bytes back."""
    start, events = at + 40_000, [host("op", "aten::mm", at, at + 9000)]
    events += launched(at + 1000, at + 8000, kernel(at + 10_000, at + 20_000, name="void at::native::k()"), LAUNCH)
    if down:
        copy = memcpy(at + 24_000, at + 26_000, direction=TO_HOST, size_bytes=down)
        events += [host("op", "aten::to", at + 20_000, start), *launched(at + 21_000, at + 30_000, copy, COPY)]
    for name in names:
        events.append(host("op", name, start, start + took))
        start += took
    if up:
        copy = memcpy(start + 6000, start + 7000, size_bytes=up)
        events += [host("op", "aten::to", start, start + 30_000), *launched(start + 1000, start + 9000, copy, COPY)]
    return events


def program(*names, **keys):
    return in_steps(again(range(0, 10 * STEP, STEP), *step(0, names, **keys)))


def in_a_line(text):
    """What was copied to the host, and comes back as a tensor that such a line makes."""
    lines = [in_line(at + 41_000, at + STEP, 7, text) for at in range(0, 10 * STEP, STEP)]
    return in_steps(again(range(0, 10 * STEP, STEP), *step(0, (LIFT, DETACH), took=75_000)), source_lines=lines)


def lists(took):
    """Lists that become large tensors, each in a step of ten times the length."""
    steps = (step(10 * at * STEP, ("aten::lift_fresh",), down=0, up=1 << 20, took=took) for at in range(10))
    return in_steps([event for one in steps for event in one], step_ns=10 * STEP)


def converted(types, *others, elements=1 << 19, down=0):
    events = [event for at in range(10) for event in step(at * STEP, (*others, "aten::to"), down=down, up=1 << 21)]
    starts = [event.start for event in events if (event.name, event.end - event.start) == ("aten::to", 150_000)]
    shapes = f"[[{elements}],[{elements}]]"
    details = [
        {"event_id": len(events) + number, "input_types": types, "input_shapes": shapes}
        for number in range(len(starts))
    ]
    return in_steps([*events, *(host("op", "aten::copy_", at + 10, at + 140_000) for at in starts)], op_detail=details)


def by_the_copy(types, *, until=900, elements=1 << 19, pins=()):
    """Uploads of 2 MB in 0.4 ms, in whose operators a copy changes the type, which ends before the call if not told."""
    copying = host("op", "aten::copy_", 40_100, 40_000 + until)
    events = again(range(0, 10 * STEP, STEP), *step(0, (), down=0, up=1 << 21), copying)
    events = [replace(one, end=one.start + 400_000) if one.kind == "memcpy" else one for one in events]
    inside = [number for number, one in enumerate(events) if one.name == copying.name]
    known = {"input_shapes": f"[[{elements}],[{elements}]]"}
    details = [{"event_id": number, "input_types": types, **known} for number in inside]
    details += [{"event_id": len(events) + number, "input_types": f'["{of}", ""]'} for number, of in enumerate(pins)]
    events += [host("op", "aten::pin_memory", 100, 200, thread=3) for _ in pins]
    return in_steps(events, op_detail=details, limits=HOPPER)


def losses():
    """Lengths that are made on the CPU, and a loss that copies them, and works for longer than that takes."""
    loss = [host("op", "aten::ctc_loss", 0, 90_000), *launched(1000, 9000, memcpy(6000, 7000, size_bytes=512), COPY)]
    loss += launched(60_000, 70_000, kernel(80_000, 600_000, name="ctc()"), LAUNCH)
    own = step(0, ("aten::full",), down=0, up=0) + again([190_000], *loss)
    return in_steps(again(range(0, 10 * STEP, STEP), *own))


def between(*calls, size_bytes=4096, named=()):
    """Copies to the host and back, 2 ms apart, with calls between, and ranges."""
    turn = [call(*one) for one in calls] + [nvtx("detokenize", *one) for one in named]
    turn += launched(2_030_000, 2_040_000, kernel(2_050_000, 2_900_000))
    for begin, way in ((0, TO_HOST), (2_000_000, "Host-to-Device")):
        copy = memcpy(begin + 5000, begin + 10_000, direction=way, size_bytes=size_bytes)
        turn += launched(begin, begin + 20_000, copy, "cudaMemcpy")
    return report(again(range(0, 60_000_000, 3_000_000), *turn))


SORTED = [event for number in range(10) for event in step(number * STEP, ("aten::sort",)) if event.kind != "op"]
FUSED = [replace(event, name="fusion") if event.kind == "kernel" else event for event in SORTED]
SOFTMAX = (
    "The CPU computes in the middle of the GPU's work: aten::softmax",
    "The CPU computes on tensors of the host between launches, most in aten::softmax, 1 time a step, 512 B copied to",
    "the GPU each time: GPU 0 idles, or works for it, for 350.0 µs a step.",
)
MASK = ("A tensor is made on the CPU (most time in aten::full) and copied to the GPU, 1 time a step",)
OF_PYTHON = ("Data of Python or NumPy become tensors and are copied, each time", "most time in Python and NumPy")
LIFT, DETACH, LARGE = "aten::lift_fresh", "aten::detach_", {"down": 0, "up": 1 << 21}
WIDENS = '["float", "unsigned char"]'


@pytest.mark.parametrize(
    ("of", "rule", "words", "figures"),
    [
        (program("aten::softmax", "aten::view", "aten::multinomial", took=100_000), "cpu-operators", SOFTMAX, None),
        (program("aten::full", "aten::triu", down=0), "cpu-tensors", MASK, (3_300_000, 10, 0, 3_300_000)),
        (program(LIFT, DETACH, down=0, took=75_000), "cpu-tensors", OF_PYTHON, (2_010_000, 10, 0, 2_110_000)),
        # an array that becomes a tensor without a copy: what NumPy computed in the time, or a loop of Python
        (program(LIFT, down=0, up=1 << 15), "cpu-tensors", OF_PYTHON, (2_010_000, 10, 0, 2_110_000)),
        (program(LIFT, down=0), None, (), None),
        (
            program("aten::mul", "aten::div", **LARGE),
            "large-upload",
            ("2.097 MB copied to the GPU each time",),
            (3_300_000, 0, 7_500, 3_100_000),
        ),
        # what is on the CPU already is not converted to it
        (program("aten::to", "aten::div", **LARGE), "large-upload", (), (1_800_000, 0, 7_500, 1_700_000)),
        # a layer that was left on the CPU; no preparation of data
        (program("aten::embedding", **LARGE), "cpu-operators", ("in aten::embedding",), (1_800_000, 10, 0, 1_700_000)),
        # features of sound; an operator that copies its own inputs and works on them, with its kernels
        (program("aten::view", "aten::stft", "aten::add", **LARGE), "cpu-operators", ("in aten::stft",), None),
        (losses(), "cpu-tensors", ("most time in aten::full",), (1_500_000, 0, 0, 1_500_000)),
        # numbers that are drawn into an empty tensor
        (program("aten::empty", "aten::normal_", down=0), "cpu-tensors", ("torch.empty(…, device=x.device).n",), None),
        # rows of a list of tensors; what is joined as fast as memory is copied is left
        (program("aten::stack", down=0), "data-loading", ("by aten::stack",), (1_500_000, 0, 0, 1_400_000)),
        (program("aten::stack", down=0, up=1 << 18), None, (), None),
        # what NumPy makes of what was copied is lifted, and copied back
        (program(LIFT), "cpu-operators", ("most in what the host does between a",), (2_000_000, 20, 0, 2_000_000)),
        (in_a_line("x = torch.tensor(rows, device=device)"), "cpu-tensors", OF_PYTHON, None),
        (in_a_line("x = torch.tensor(label(mask), device=device)"), "cpu-operators", (), None),
        (lists(3_000_000), "cpu-tensors", (), None),
        (lists(1_000_000), None, (), None),
        (converted(WIDENS), "large-upload", (), None),
        (converted(WIDENS, LIFT), "large-upload", (), None),  # of NumPy's bytes
        # the next batch, after results that the host has looked at
        (converted(WIDENS, down=1 << 20), "large-upload", (), None),
        # and a few labels
        (converted(WIDENS, "aten::randn", elements=9), "cpu-tensors", (), None),
        (converted('["c10::BFloat16", "float"]'), None, (), None),
        (
            by_the_copy(WIDENS),
            "large-upload",
            ("(aten::to), convert on the CPU before they",),
            (4_060_000, 0, 3_000_000, 200_000),
        ),
        (by_the_copy(WIDENS, pins=["unsigned char"]), "large-upload", (), (4_060_000, 0, 3_883_490, 200_000)),
        (by_the_copy(WIDENS, pins=["float"]), "large-upload", (), (4_060_000, 0, 3_000_000, 200_000)),
        (by_the_copy(WIDENS, until=9500), None, (), None),  # what is copied is of the larger type on the GPU alone
        (by_the_copy(WIDENS, elements=9), None, (), None),  # of a few labels in it
        (by_the_copy('["float", "float"]'), None, (), None),  # rows that are put side by side
        (program("aten::view", "aten::select", took=5000), None, (), None),  # views compute nothing
        (program("aten::add", down=0, up=0, took=5000), None, (), None),  # a counter of an optimizer
        (program("aten::add", down=4, up=0, took=5000), None, (), None),  # a number that is read
        (program("aten::to", "aten::div", down=0, up=1 << 19), None, (), None),  # few data
        (program(LIFT, down=0, up=2 << 20), None, (), None),  # a batch
        # 2 MB that are copied to the host and back: an annotation makes a tensor of its own meanwhile
        (program("aten::zeros", down=1 << 21, up=1 << 21, took=3000), None, (), None),
        (program("aten::zeros", took=3000, **LARGE), None, (), None),
        # not until the batch
        (program("aten::bincount", up=1 << 20), "cpu-operators", (), (1_700_000, 10, 0, 1_600_000)),
        # without operators the time between two copies tells, of which only what is in no call counts
        (in_steps(SORTED), "cpu-operators", ("between a copy to it and one back, 1 time a step",), None),
        (in_steps(FUSED), "cpu-operators", ("compute it on the GPU, too: no copy to the host, and back",), None),
        (between(), "cpu-operators", (), (40_400_000, 40, 0, 40_200_000)),
        (between(("cudaPointerGetAttributes", 1_990_000, 1_991_000)), "cpu-operators", (), None),
        (between(("cudaStreamSynchronize", 30_000, 1_950_000)), None, (), None),
        (between(("cudaFoo", 1000, 2_999_000)), None, (), None),
        # what a range names is the program's own, if nothing is launched in it; so is what takes too long for such data
        (between(named=[(100_000, 1_800_000)]), None, (), None),
        (between(named=[(100_000, 800_000), (1_000_000, 2_950_000)]), "cpu-operators", (), None),
        (between(named=[(100_000, 1_800_000)], size_bytes=1 << 21), "cpu-operators", (), None),
        (between(size_bytes=96), None, (), None),
    ],
)
def test_work_of_the_cpu_is_told_by_what_is_copied(of, rule, words, figures):
    found = cpu_work(of)
    assert [one.rule for one in found] == ([rule] if rule else [])
    assert_told(found, [one.at_stake_ns for one in found], *words)
    assert figures is None or measures(found[0], of) == figures


def counted(*names, way=TO_HOST, then=("aten::mul", "aten::softmax")):
    """Data are copied to the host, operators by `names` run there, a number is copied, others run, data go back."""
    own, later = step(0, names, up=0, took=100_000), step(500_000, then, down=0, took=100_000)
    number = memcpy(455_000, 456_000, direction=way, size_bytes=4)
    own += [host("op", "aten::to", 450_000, 470_000), *launched(451_000, 459_000, number, COPY)]
    own += [one for one in later if one.start >= 540_000]  # no kernel between
    return in_steps(again(range(0, 10 * STEP, STEP), *own))


def by_another_thread(*, name="aten::mm", node=True):
    """In backward, the device's thread copies a gradient to the host, and the caller's computes on it."""
    own = [replace(one, thread=2) for one in step(0, (name,)) if 20_000 <= one.start < 40_000]
    own += [one for one in step(0, (name,), down=0) if one.kind != "kernel" or one.start < 20_000]
    own += [host("op", f"{NODE}: MmBackward0", 39_000, 195_000)] * node
    return in_steps(again(range(0, 10 * STEP, STEP), *own))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("of", "rules", "words"),
    [
        # a weight that stayed on the GPU; its gradient, which goes back before the other one
        (counted("aten::cdist"), ["cpu-operators"], "2 times a step"),
        (counted("aten::cdist", way="Host-to-Device"), ["cpu-operators"], "2 times a step"),
        # a metric, and the next batch, made of what is on the host
        (counted("aten::argmax", then=("aten::randn",)), ["cpu-tensors"], "aten::randn"),
        (counted(then=("aten::randn",)), ["cpu-tensors"], "torch.randn(…, device=x.device)"),
        (by_another_thread(), ["cpu-operators"], "aten::mm, 1 time a step"),
        (by_another_thread(node=False), ["cpu-operators"], "aten::mm, 1 time a step"),
        (by_another_thread(name="aten::cdist", node=False), [], ""),
    ],
)
def test_what_the_cpu_computes_on_may_come_before_a_number_or_by_another_thread(of, rules, words):
    found = cpu_work(of)
    assert [one.rule for one in found] == rules
    assert all(words in f"{one.text} {one.action}" for one in found)


COMPARE = "void at::native::vectorized_elementwise_kernel<4, CompareEqFunctor>()"
ANY = "void at::native::reduce_kernel<or_kernel_cuda>()"
OWN = "void at::native::backward()"


def launching(at, name):
    """An operator's launch of a kernel, or of a copy of one byte to the host."""
    if name == "copy":
        return launched(at, at + 2000, memcpy(at + 1500, at + 1800, direction=TO_HOST, size_bytes=1), COPY)
    return launched(at, at + 2000, kernel(at + 2000, at + 3000, name=name), LAUNCH)


def node(at, number, *, own=True, every=1, fills=False):
    """A node of autograd: an operator of its own, and the check of its result, which may set memory for the second."""
    events = [host("op", f"{NODE}: MmBackward0", at, at + 45_000)]
    if own:
        events += [host("op", "MmBackward0", at + 1000, at + 9000), *launching(at + 2000, OWN)]
    if number % every == 0:
        for place, name, kernels in ((1, "isnan", COMPARE), (2, "_is_any_true", ANY), (3, "item", "copy")):
            start = at + 10_000 * place
            events += [host("op", f"aten::{name}", start, start + 9000), *launching(start + 2000, kernels)]
            if fills and name == "_is_any_true":
                events += launched(start, start + 900, memset(start + 900, start + 1000), "cudaMemsetAsync")
    return events


LOOP_STEP = 2_000_000


def line(names, at):
    """Operators one after the other, each of 10 µs, with a kernel of 1 µs in all that are no views.

    ``cat:3`` joins three tensors, ``copy_:up`` copies from the host.
    """
    events = []
    for start, (name, _, joined) in enumerate(name.partition(":") for name in names):
        begin = at + 20_000 * start
        events.append(host("op", f"aten::{name}", begin, begin + 10_000))
        parts = range(20) if name == "unbind" else ()
        events += [host("op", "aten::select", begin + 100 * part, begin + 100 * part + 50) for part in parts]
        if name in ("select", "slice", "unbind", "chunk"):
            continue
        made = kernel(begin + 9000, begin + 10_000, name=f"void at::native::{name}()")
        if joined.isdigit():
            made = replace(made, name="void CatArrayBatchedCopy<float>(int)", grid=(1, int(joined), 1))
        if name in {"item", "is_nonzero", "index", "_to_copy"} or name.startswith("linalg_") or joined == "up":
            way = "Host-to-Device" if "copy" in name else TO_HOST
            made = memcpy(begin + 6000, begin + 7000, direction=way, size_bytes=4)
        events += launched(begin + 4000, begin + 8000, made, LAUNCH)
    return events


def twice(names):
    return again((0, LOOP_STEP), *line(names, 0))


def looping(names, *, kinds=("op", "api", "kernel", "memcpy")):
    return in_steps([event for event in twice(names) if event.kind in kinds], 2, LOOP_STEP)


@pytest.mark.parametrize(
    ("operators", "how", "stakes"),
    [
        (True, {}, [870_000]),
        (False, {}, [1_037_000]),
        (False, {"fills": True}, [1_037_000]),
        (True, {"every": 3}, []),  # a hook that checks some gradients
        (False, {"own": False}, []),  # a loop over all
    ],
)
def test_each_node_is_checked(operators, how, stakes):
    nodes = [event for number in range(30) for event in node(50_000 * number, number, **how)]
    of = in_steps([event for event in nodes if operators or event.kind != "op"], 2, 750_000)
    words = "(15 checks a step), by two kernels and a copy to the host each", "torch.autograd.set_detect_anomaly(False)"
    assert_told(anomaly_detection(of), stakes, *(words if stakes else ()))


UPDATE = ["mul_", "add_", "mul_", "addcmul_", "sqrt", "div", "sub_"]

CELLS = (
    "A recurrent network is run cell by cell, 10 times in a row, in 10 launches a step (aten::lstm_cell): GPU 0 idles, "
    "or works for it, for 370.0 µs a step."
)
IN_PLACE = "20 times in a row, in 80 launches a step (mul → mul → add → copy_)"
GATES = "12 times in a row, in 60 launches a step (linear → chunk → sigmoid → tanh → …)"
READS = "in each pass of a loop, 20 times in a row, in 40 launches a step (norm → item)"
#: Words of a text, of which each is read, and changed by what was read.
BRANCHES = [
    name for at in range(12) for name in ("select", "lt", "item", "select", ("mul_", "div_", "sub_")[at * at % 3])
]
ONE_BY_ONE = "11 times in a row, in 33 launches a step (select → mul_ → select → lt → …)"
#: Samples of a batch, of which some are changed otherwise.
SAMPLES = [name for at in range(12) for name in ("slice", *["flip"] * (at * at % 3), "mul", "clamp")]
DIFFERENT = "11 times in a row, in 32 launches a step (slice → mul → clamp → slice)"
ROWS = ["eq", "index", "mean"]
INVERSES, FACTORS = ["eq", "index", "linalg_inv", "mean"], ["mm", "linalg_cholesky", "linalg_eigvalsh"]
WORK, MASKED = "repeated-work", "boolean-masks"
WRITTEN_OUT = ("gone through one by one, as by an optimizer that is written out, 10 times",)
READS_OF_20 = (READS, "20 values are read one by one in a Python loop")
CONDITIONS_OF_20 = ("20 conditions are read one by one in a Python loop", "validate_args=False")
GATED = ["unbind", *["linear", "chunk", "sigmoid", "tanh", "mul", "add"] * 12, "mm"]


@pytest.mark.parametrize(
    ("names", "rule", "words", "figures"),
    [
        (["zeros", *["select", "lstm_cell"] * 10, "stack"], "rnn-cells", (CELLS,), (740_000, 18, 2_000)),
        # taken in each pass, put together; taken apart before; written into parts; no weights; an ensemble
        (["mul", *["select", "mm", "relu"] * 9, "stack"], WORK, ("9 times",), (1_060_000, 32, -32_000)),
        (["unbind", *["mm", "relu"] * 9, "cat"], WORK, ("9 times",), (700_000, 32, -32_000)),
        (["unbind", *["mm", "linalg_inv", "add"] * 9, "mm"], WORK, ("(mm → linalg_inv → add)",), None),
        (["mul", *["select", "mm", "select", "copy_"] * 9, "sum"], WORK, ("9 times",), (1_420_000, 32, -32_000)),
        (["mul", *["select", "mm", "select", "copy_:up"] * 9, "sum"], None, (), None),  # its inputs come from the host
        (["mul", *["slice", "mul", "add"] * 9, "sum"], WORK, ("9 times",), (1_060_000, 32, -32_000)),
        # elements of what layers made, each with a gradient of its own; readings of a batch
        (["linear", *["select"] * 18, "stack"], "loop-indexing", ("18 times in a row, in 0 launches",), None),
        (["linear", *["gru"] * 9, "cat"], "rnn-cells", ("A recurrent network is run cell by cell, 9 times",), None),
        (["linear", *["_to_copy"] * 9, "stack"], "small-copies", ("Tensors are copied to the GPU one by one",), None),
        (["linear", *["select"] * 18, "linear"], None, (), None),
        (["conv2d", *["slice"] * 8, "cat", "linear"], None, (), None),  # patches are merged
        (["linear", *["embedding", "gru", "linear", "topk"] * 9, "cat"], None, (), None),  # each word is the next input
        (["mm", *["linear", "relu", "linear"] * 9, "stack"], WORK, ("9 times",), (1_060_000, 48, -48_000)),
        (["mm", *["mm", "relu"] * 9, "cat:9"], WORK, ("9 times",), None),
        (["mm", *["mul", "mul", "add", "copy_"] * 20, "mm"], WORK, (IN_PLACE,), (3_180_000, 152, -152_000)),
        (GATED, "rnn-cells", (GATES,), (2_860_000, 110, 10_000)),
        (["linear", *["norm", "item"] * 20, "mm"], "blocking-read", READS_OF_20, (1_580_000, 76, -76_000)),
        (["linear", *["ge", "all", "is_nonzero"] * 20, "mm"], "blocking-read", CONDITIONS_OF_20, None),
        (["linear", *["exp"] * 16, *["norm", *["exp"] * 16, "item"] * 10, "mm"], None, (), None),  # work of its own
        (["linear", "unbind", *SAMPLES, "stack"], WORK, (DIFFERENT,), None),
        (["linear", *SAMPLES, "cat"], WORK, (DIFFERENT,), None),
        (["linear", "unbind", *SAMPLES, "sum"], None, (), None),
        (["linear", "unbind", *SAMPLES[:20], "linear", *SAMPLES[20:], "stack"], None, (), None),
        (["linear", *BRANCHES, "linear"], "blocking-read", (ONE_BY_ONE,), (2_180_000, 60, -60_000)),
        # words of two texts, with layers between
        (["linear", *BRANCHES[:35], "linear", *BRANCHES[35:]], None, (), None),
        (["linear", *[name for name in BRANCHES if name != "select"], "linear"], None, (), None),  # parts of nothing
        # indices of a row are no mask, for which its operator would wait
        (
            ["linear", *["select", "_to_copy", "item", "index_put_"] * 20, "linear"],
            "row-loops",
            ("rows are read and changed",),
            None,
        ),
        # each pass needs the one before; a log
        (["linear", *["select", "mv", "norm", "item", "copy_"] * 20, "linear"], "blocking-read", (), None),
        (["linear", *["select", "mul", "sum", "item", "copy_"] * 20, "linear"], "blocking-read", (), None),
        (["linear", *ROWS * 20, "stack"], MASKED, ("eq → index → mean",), (2_380_000, 114, -114_000)),
        (["linear", *INVERSES * 20, "stack"], MASKED, ("(eq → index → linalg_inv → mean)",), None),
        (["linear", *["maximum", "minimum", "index"] * 20, "stack"], MASKED, ("batched_nms",), None),
        (["linear", *FACTORS * 20, "stack"], WORK, ("(mm → linalg_cholesky → linalg_eigvalsh)",), None),
        (["linear", *UPDATE * 10, "mm"], "unfused-optimizer", WRITTEN_OUT, (2_780_000, 126, -126_000)),
        *(
            (names, None, (), None)
            for names in (
                [*["select", "lstm_cell"] * 7, "stack"],
                [*["lstm_cell", "bmm", "softmax"] * 10, "stack"],  # with attention
                ["embedding", *["layer_norm", "linear", *["select"] * 2, "linear", "add"] * 12, "layer_norm", "linear"],
                ["mul", *["mm", "relu"] * 9, "sum"],  # nothing is taken, nothing put together
                ["mul", *["mm", "relu"] * 9],
                ["conv2d", *["cat", "batch_norm", "relu", "conv2d"] * 9, "cat"],  # of layers that need those before
                ["unbind", *["layer_norm", "mm", "relu"] * 9, "sum"],  # layers, of which each has a part
                ["unbind", *["mm", "relu", "cat"] * 9, "sum"],  # what grows
                ["mm", *["mm", "relu"] * 9, "cat:2"],  # of the last one and something else
                ["linear", *["layer_norm", "linear", "relu"] * 9, "stack"],  # what each layer made
                ["mul", *["to"] * 30, "sum"],  # casts
                ["mul", *["select", "eq", "nonzero"] * 3, "sum"],
                ["mul", *["select", "mm", "relu"] * 7, "stack"],
                [*["layer_norm", "linear", "slice", "copy_"] * 12, "linear"],  # a cache is written by each layer
                ["linear", *["eq", "index", "linear"] * 20, "stack"],  # experts
            )
        ),
    ],
)
def test_a_loop_is_told_by_what_its_passes_do(names, rule, words, figures):
    of = looping(names)
    found = python_loops(of)
    assert [one.rule for one in found] == ([rule] if rule else [])
    assert_told(found, [one.at_stake_ns for one in found], *words)
    assert figures is None or measures(found[0], of)[:3] == figures


@pytest.mark.parametrize(
    ("kernels", "regions", "thread", "told"), [(9, 0, 1, 0), (9, 2, 1, 0), (9, 9, 1, 1), (2, 0, 1, 1), (9, 0, 5, 1)]
)
def test_passes_of_compiled_code_are_no_loop_of_python(kernels, regions, thread, told):
    loop = line(["unbind", *["mm", "relu"] * 9, "cat"], 0) + line(["unbind", *["mm", "relu"] * 9, "cat"], LOOP_STEP)
    inside = [event for event in loop if event.kind == "op" and event.name == "aten::relu"]
    compiled = [
        replace(at, name=name, end=at.start + 1, thread=thread)
        for name, many in (("triton_poi_fused_relu_0", kernels), ("Torch-Compiled Region: 0/0", regions))
        for at in (*inside[:many], *inside[9:][:many])
    ]
    assert len(list(python_loops(in_steps([*loop, *compiled], 2, LOOP_STEP)))) == told


@pytest.mark.parametrize(("first", "second", "passes"), [(12, 8, 12), (8, 12, 12), (7, 7, 0), (10, 10, 10)])
def test_a_loop_ends_where_the_program_does_something_else_for_long(first, second, passes):
    names, later = ["norm", "item"], 1_200_000  # a compilation between two reads
    own = line(["linear", *names * first], 0) + line([*names * second, "linear"], later)
    found = python_loops(in_steps(again((0, LOOP_STEP), *own), 2, LOOP_STEP))
    told = sum(many for many in (first, second) if many >= 8)
    assert [one.at_stake_ns < 2 * told * 60_000 for one in found] == [True] * bool(passes)
    assert all(f"{passes} times in a row" in one.text for one in found)


def test_passes_of_several_steps_may_be_all_that_a_program_does():
    events = [one for at in range(0, 6 * STEP, STEP) for one in line(["select", "mul", "add_"] * 12, at)]
    (found,) = python_loops(in_steps(events, 6, STEP))
    assert found.rule == "repeated-work"
    assert found.at_stake_ns >= 6 * 300_000


def test_the_loop_over_steps_is_none_of_a_step():
    events = [one for at in range(STEP, 13 * STEP, STEP) for one in line(["abs", "amax", "unbind"], at)]
    assert python_loops(in_steps([*line(["unbind", "mul"], 0), *events], 13, STEP)) == []


@pytest.mark.parametrize(("size_bytes", "steps"), [(1 << 20, 1), (4, None)])
def test_large_tensors_are_no_small_copies_nor_is_a_model_that_is_moved(size_bytes, steps):
    events = [replace(event, size_bytes=size_bytes) for event in line(["linear", *["_to_copy"] * 9, "stack"], 0)]
    assert python_loops(report(events).narrow(window=Window(0, 220_000, count=steps, each="step"))) == []


def test_without_operators_kernels_of_cells_tell():
    of = looping(["zeros", *["mm", "lstm_cell_forward"] * 10, "stack"], kinds=("api", "kernel"))
    (one,) = python_loops(of)
    assert (one.rule, "(lstm_cell_forward)" in one.text) == ("rnn-cells", True)
    assert measures(one, of)[:3] == (2_365_000, 39, -18_000)  # cells stay


def with_details(events, name, **columns):
    """Details of the operators of one name, column by column, each with values in turn."""
    places = [at for at, one in enumerate(events) if one.name == f"aten::{name}"]
    return [
        {"event_id": at, **{column: values[turn % len(values)] for column, values in columns.items()}}
        for turn, at in enumerate(places)
    ]


def trained(names, operator, numbers):
    """A loop, and nodes of autograd of 10 µs, 20 after each other, of the numbers of its passes and one of no pass."""
    events = twice(names)
    details = with_details(events, operator, sequence_number=numbers)
    for begin, number in zip(range(1_000_000, 1_300_000, 30_000), [*numbers, 99], strict=True):
        details.append({"event_id": len(events), "sequence_number": number})
        events.append(host("op", f"{NODE}: MmBackward0", begin, begin + 10_000, thread=2))
    return in_steps(events, 2, LOOP_STEP, op_detail=details)


@pytest.mark.parametrize(("numbers", "spared"), [(range(1, 10), 1_060_000 + 8 * 30_000 + 10_000), ([1] * 9, 1_060_000)])
def test_what_backward_runs_for_a_loop_is_of_it(numbers, spared):
    of = trained(["mul", *["select", "mm", "relu"] * 9, "stack"], "mm", numbers)
    (one,) = python_loops(of)
    assert measures(one, of)[3] == spared


@pytest.mark.parametrize(("numbers", "told"), [(range(1, 10), []), ([1] * 9, ["blocking-read"])])
def test_values_that_are_trained_on_are_read_by_no_loop_that_could_be_one(numbers, told):
    of = trained(["linear", *["norm", "item"] * 9, "mm"], "norm", numbers)
    assert [one.rule for one in python_loops(of)] == told


@pytest.mark.parametrize(
    ("shapes", "passes", "told"),
    [
        (["[[64,64]]", "[[64]]"], 16, True),  # weights and biases
        (["[[64,64]]"], 16, False),  # what goes on with the same tensor
        (["[[64,64]]", "[[64]]"], 15, False),
    ],
)
def test_a_loop_over_tensors_of_various_shapes_is_over_parameters(shapes, passes, told):
    events = twice(["linear", *["pow", "sum", "add"] * passes, "linear"])
    of = in_steps(events, 2, LOOP_STEP, op_detail=with_details(events, "pow", input_shapes=shapes))
    assert [one.rule for one in python_loops(of)] == [WORK] * told


@pytest.mark.parametrize(
    ("names", "widths", "told"),
    [
        (["select", "embedding", "add"], [16], "Embeddings are looked up column by column, 9 in a row"),
        (["embedding"], [16], "Embeddings are looked up column by column, 9 in a row"),
        (["embedding", "add"], [16, 8], None),  # tables that no one table can hold
        (["embedding"], [16, 8], None),
        (["select", "embedding", "add"], [], None),  # of widths that are not recorded
        (["embedding", "argmax"], [16], None),  # each is the next one's input
        (["embedding", "gru_cell", "linear"], [16], None),
    ],
)
def test_columns_of_embeddings_of_one_width_are_one_table(names, widths, told):
    events = twice(["linear", *names * 9, "linear"])
    shapes = [f"[[{100 * width},{width}],[512],[],[],[]]" for width in widths]
    details = with_details(events, "embedding", input_shapes=shapes) if shapes else []
    found = python_loops(in_steps(events, 2, LOOP_STEP, op_detail=details))
    assert [one.headline for one in found if one.rule == WORK] == ([told] if told else [])


BOXES = ["slice", *(name for many in range(1, 8) for name in ("maximum", *["sub"] * many, "mul")), "mean"]
VARIOUS, EQUAL = ["[[16,4]]", "[[4,4]]", "[[7,4]]"], ["[[16,4]]"]
OF_SIZES = "One sample after the other, of various sizes: 18 in a row"


@pytest.mark.parametrize(
    ("names", "shapes", "told"),
    [
        ([*BOXES * 18, "stack"], VARIOUS, OF_SIZES),
        ([*BOXES * 9, *BOXES[1:], *BOXES * 9, "stack"], VARIOUS, OF_SIZES),  # a whole sample, which needs no slice
        ([*BOXES * 18, "stack"], EQUAL, "The same sequence of operators runs over and over in Python"),
        ([*BOXES * 18, "mul"], EQUAL, None),  # steps of a simulation, each of which may need the one before
        ([*[*BOXES, "linear"] * 18, "stack"], VARIOUS, None),  # layers
        ([*[*BOXES, "item"] * 18, "stack"], VARIOUS, None),  # what is read
    ],
)
def test_a_loss_that_is_written_out_is_computed_for_one_sample_after_the_other(names, shapes, told):
    step = 20_000 * (len(names) + 10)
    events = again((0, step), *line(["linear", "relu", *names, "log"], 0))
    of = in_steps(events, 2, step, op_detail=with_details(events, "slice", input_shapes=shapes))
    assert [one.headline for one in python_loops(of) if one.rule == WORK] == ([told] if told else [])


SHAPES = ["[[64,64]]", "[[64,64]]", "[[64,64]]", "[[64,64]]", "[[64]]"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("names", "shapes", "backward", "rule"),
    [
        (["mul", "add", "sub_"], SHAPES, True, "unfused-optimizer"),  # plain steps down the slope
        (["lerp_"], SHAPES, True, "unfused-optimizer"),
        (["norm"], SHAPES, True, "unfused-optimizer"),  # of all gradients
        (["mul", "add", "sub_"], SHAPES, False, WORK),
        (["mul", "add", "sub_"], SHAPES[:1], True, WORK),  # one tensor, or equal ones, which may be a batch
        (["slice", "mul", "sub_"], SHAPES, True, WORK),  # parts
        (["mul", "cat", "sub_"], SHAPES, True, WORK),  # what grows
    ],
)
def test_what_changes_tensors_of_various_shapes_in_training_is_an_optimizer(names, shapes, backward, rule):
    events = twice(["linear", "relu", *names * 16, "stack" if len(names) == 1 else "mm"])
    starts = [one.start for one in events if one.name == "aten::relu"] * backward
    nodes = [host("op", f"{NODE}: ReluBackward0", at, at + 10_000) for at in starts]
    details = with_details(events, names[-1], input_shapes=shapes)
    assert [one.rule for one in python_loops(in_steps([*events, *nodes], 2, LOOP_STEP, op_detail=details))] == [rule]


PASS = 1_000_000
GEMM = "nvjet_sm90_tst_40x64_64x16_4x2_h_bz_TNN"
NORM = "void at::native::vectorized_layer_norm_kernel<float>()"
LIMITS = {"sm_count": 100, "max_warps_per_sm": 64, "threads_per_warp": 32}
LAYER = [host("op", "aten::linear", 0, 10)]


def passed(at, *, blocks=20, apart=190_000, took=2000, last=()):
    """A pass: products of matrices and norms, each of `blocks` blocks, launched `apart` from each other."""
    events, shape = [], {"grid": (blocks, 1, 1), "block": (256, 1, 1)}
    for place, name in enumerate((GEMM, NORM, GEMM, NORM, f"{GEMM}_2", *last)):
        start = at + apart * place
        events += launched(start, start + 5000, kernel(start + 6000, start + 6000 + took, name=name, **shape), LAUNCH)
    return events


def model(*, passes=20, each=1, more=LAYER, **keys):
    events = again(range(0, passes * PASS, PASS), *passed(0, **keys))
    return in_steps([*events, *more], passes // each, each * PASS, limits=LIMITS)


def inside(*names, every=1):
    """Operators (name, at, ns) of each of so many passes."""
    operators = (host("op", f"aten::{name}", at, at + ns) for name, at, ns in names)
    return again(range(0, 20 * PASS, every * PASS), *operators)


def gradients(added):
    """A gradient in each of 20 passes, in so many of which it is added to an earlier one."""
    events = []
    for at in range(910_000, 20 * PASS, PASS):
        events.append(host("op", "torch::autograd::AccumulateGrad", at, at + 10))
        events += [host("op", "aten::add_", at + 1, at + 9)] * (at < added * PASS)
    return events


UPDATES = [nvtx("Optimizer.step#AdamW.step", at + 980_000, at + 981_000) for at in range(4 * PASS, 20 * PASS, 5 * PASS)]
SLICES = (("embedding", 0, 8000), ("linear", 190_000, 8000), ("slice", 960_000, 10))
SPLIT = (("split", 10, 10), ("cat", 970_000, 10))
FIRST = inside(*(("linear", place * 190_000, 8000) for place in range(1, 5)))
BACKWARD = inside(("ones_like", 900_000, 10))
SPLITS = [*FIRST, *inside(*SPLIT[:1], every=5)]
NODES = [host("op", f"{NODE}: LossBackward0", at + 900_020, at + 900_030, thread=2) for at in range(0, 20 * PASS, PASS)]
ADDS = [*inside(("ones_like", 900_000, 10)), *NODES, *gradients(added=16)]
INNER = inside(("empty_like", 900_002, 5))
NORM_BACK = ("void at::native::layer_norm_backward_kernel<float>()",)
DRAWN_BACK = (*NORM_BACK, "void at::native::distribution_elementwise_grid_stride_kernel<float>()")


@pytest.mark.parametrize(
    ("how", "general"),
    [
        ({}, [True]),
        ({"more": ()}, []),  # of few layers: may be a part of a model
        ({"blocks": 85}, [True]),
        *(({"blocks": blocks}, []) for blocks in (95, 200)),  # they all but fill the GPU
        ({"took": 180_000}, []),  # the GPU is busy
        ({"last": ("void at::native::multi_tensor_apply_kernel<FusedAdam>()",)}, []),  # an optimizer
        ({"last": ("void at::native::reduce_kernel<ArgMaxOps>()",)}, []),  # the next pass needs it
        ({"passes": 6}, []),
        ({"apart": 10_000}, []),  # the host does something else for long
        # several passes in each iteration, by how a batch is taken apart
        ({"each": 5, "more": ()}, []),
        ({"each": 5, "more": inside(*SLICES)}, [False]),
        ({"each": 5, "more": inside(("stack", 0, 8000), *SLICES[1:])}, [False]),  # put in order for the first layer
        ({"each": 5, "more": inside(("cat", 0, 8000), *SLICES[1:])}, []),  # with what the layers before made
        ({"each": 5, "more": [*FIRST, *inside(*SPLIT, every=5)]}, [False]),
        ({"each": 5, "more": [*FIRST, *inside(*SPLIT)]}, []),  # layers do that, too
        # samples that are trained on one by one are split and not joined
        ({"each": 5, "more": [*SPLITS, *BACKWARD], "last": NORM_BACK}, [False]),
        # gradients of passes are added up, and there is an update for several of them
        ({"each": 5, "more": [*FIRST, *ADDS, *UPDATES], "last": NORM_BACK}, [False]),
        # of noise, with an operator in the one that begins backward
        ({"each": 5, "more": [*FIRST, *ADDS, *INNER, *UPDATES], "last": DRAWN_BACK}, [False]),
        # masks
        ({"each": 5, "more": [*FIRST, *BACKWARD, *NODES[4::5], *gradients(added=16), *UPDATES], "last": NORM_BACK}, []),
        ({"each": 5, "more": [*FIRST, *ADDS, *UPDATES * 2], "last": NORM_BACK}, []),
        ({"each": 5, "more": [*FIRST, *BACKWARD, *gradients(added=11), *UPDATES], "last": NORM_BACK}, []),
        ({"each": 5, "more": SPLITS, "last": NORM_BACK}, []),  # one backward of all passes: steps of time
        ({"each": 5, "more": [*SPLITS, *BACKWARD]}, []),  # what is only run is joined again
    ],
)
def test_passes_that_fill_a_part_of_the_gpu(how, general):
    of = model(**how)
    found = small_batches(of)
    assert [one.general for one in found] == general
    if not how:
        assert found[0].text.startswith(
            "The model is run 1 time a step, for few samples each time: its kernels fill 13.1"
        )
        assert measures(found[0], of) == (18_810_000, 86, -13_200, 17_000_000)


CHOICE = "void at::native::sbtopk::gatherTopK<float>()"


@pytest.mark.parametrize(
    ("how", "general"),
    [
        ({}, [False]),
        ({"taken": 7}, []),
        ({"batch": "[1, 3]"}, []),  # may be what the pass before made
        ({"batch": "[8, 3, 96, 96]"}, []),
        ({"layers": 3}, []),  # steps of time
        ({"more": "gru_cell"}, []),
        ({"more": "embedding"}, []),  # of what was chosen: a decoder
        ({"last": "relu"}, []),  # a result that is made better step by step
        ({"drawn": "void at::native::distribution_elementwise_grid_stride_kernel<float>()"}, []),  # so is noise
    ],
)
def test_samples_that_are_chosen_for_one_by_one(how, general):
    keys = {"taken": 10, "batch": "[1, 3, 96, 96]", "layers": 8, "more": "relu", "last": "topk", "drawn": NORM} | how
    kernels = (*(GEMM,) * keys["layers"], keys["drawn"], CHOICE)
    names = ["conv2d", keys["more"], *["linear"] * (2 + len(kernels)), keys["last"]]
    events = again(range(0, 20 * PASS, PASS), *passed(0, last=kernels, apart=60_000))
    events += inside(*((name, 60_000 * at, 8000) for at, name in enumerate(names)))
    events += inside(*(("slice", 990_000 + 2 * at, 1) for at in range(keys["taken"])), every=5)
    details = [
        row
        for name in dict.fromkeys(names)
        for row in with_details(
            events,
            name,
            input_shapes=[f"[{keys['batch'] if name == 'conv2d' else '[1, 1200]'}]"],
            input_types=['["long int"]' if name == "embedding" else '["float"]'],
        )
    ]
    found = small_batches(in_steps(events, 4, 5 * PASS, limits=LIMITS, op_detail=details))
    assert [one.general for one in found] == general


def recurrent(copies, *, inner="aten::empty"):
    """Calls of a recurrent network in eight steps, each with so many copies in it before its kernel."""
    events = []
    for at in range(0, 8 * STEP, STEP):
        events += [host("op", "aten::_cudnn_rnn", at, at + 90_000), host("op", inner, at + 85_000, at + 89_000)]
        for begun in range(at + 1000, at + 1000 + 10_000 * copies, 10_000):
            made = memcpy(begun + 8000, begun + 9000, direction="Device-to-Device", size_bytes=4096)
            events += [host("op", "aten::copy_", begun, begun + 7000), *launched(begun, begun + 6000, made, COPY)]
        events += launched(at + 70_000, at + 80_000, kernel(at + 75_000, at + 89_000, name="lstm"), LAUNCH)
    return in_steps(events, 8)


def test_weights_that_each_call_of_a_recurrent_network_copies():
    of = recurrent(5)
    (one,) = scattered_weights(of)
    assert_told([one], [one.at_stake_ns], "1 call a step copied them into a buffer first, in 5 launches a step")
    assert measures(one, of)[1] == 40  # copies that are gone; the networks' own kernels stay
    assert list(scattered_weights(recurrent(3))) == []
    assert list(scattered_weights(recurrent(5, inner="aten::_cudnn_rnn"))) == []  # autocast's


def grown(*lengths, name="gru", batch_first=True, layers=1, node=()):
    """Calls of recurrent layers of 1 ms with sequences of such lengths, each of which launches a kernel of 0.5 ms."""
    step = list(node)
    for place, length in enumerate(length for length in lengths for _ in range(layers)):
        at, sides = place * STEP, f"4, {length}" if batch_first else f"{length}, 4"
        step.append(shaped(f"aten::{name}", at, at + 900_000, f"[[{sides}, 8], [1, 4, 8]]"))
        step += launched(at + 1000, at + 9000, kernel(at + 20_000, at + 520_000))
    return alike(*step, step_ns=len(lengths) * layers * STEP)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("of", "told"),
    [
        (grown(40, 41, 42, 43, 44), True),
        (grown(40, 41, 42, 43, 44, batch_first=False, name="lstm"), True),
        (grown(40, 41, 42, 43, 44, layers=2), True),
        (grown(96, 102, 108, 114, name="rnn_tanh"), True),
        (grown(40, 40, 40, 40), False),
        (grown(4, 5, 6, 7, 8), False),  # the new part is large
        (grown(40, 43, 44, 46, 47), False),  # samples of any length
        (grown(40, 41, 42, 43, 44, name="linear"), False),
        (grown(40, 41, 42, 43, 44, node=[host("op", f"{NODE}: GruBackward0", 0, 10, thread=2)]), False),
    ],
)
def test_a_recurrent_layer_goes_through_what_it_went_through_again(of, told):
    findings = recurrent_history(of)
    assert_told(findings, [one.at_stake_ns for one in findings], *["and a sequence that is a"] * told)
    assert [one.rule for one in findings] == ["no-kv-cache"] * told
