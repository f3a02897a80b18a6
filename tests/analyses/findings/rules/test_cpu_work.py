"""Work of the CPU between launches: on tensors of the host, tensors and data made there, checks of each gradient."""

from dataclasses import replace

import pytest

from kanalyze.analyses.findings.rules.cpu_work import anomaly_detection, cpu_work
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, memset, report
from support.measures import measures

LAUNCH = "cudaLaunchKernel_v7000"
COPY = "cudaMemcpyAsync_v3020"
STEP = 1_000_000
TO_HOST = "Device-to-Host"


def step(at, names, *, down=4096, up=512, took=150_000):
    """A kernel, a copy of `down` bytes to the host, operators of the CPU by `names`, and a copy of `up` bytes back."""
    number, events, start = at, [host("op", "aten::mm", at, at + 9000)], at + 40_000
    events += [call(LAUNCH, at + 1000, at + 8000, correlation=number + 1)]
    events += [kernel(at + 10_000, at + 20_000, name="void at::native::k()", correlation=number + 1)]
    if down:
        events += [
            host("op", "aten::to", at + 20_000, start),
            call(COPY, at + 21_000, at + 30_000, correlation=number + 2),
        ]
        events += [memcpy(at + 24_000, at + 26_000, direction=TO_HOST, size_bytes=down, correlation=number + 2)]
    for name in names:
        events.append(host("op", name, start, start + took))
        start += took
    if up:
        events += [
            host("op", "aten::to", start, start + 30_000),
            call(COPY, start + 1000, start + 9000, correlation=number + 3),
        ]
        events += [memcpy(start + 6000, start + 7000, size_bytes=up, correlation=number + 3)]
    return events


def in_steps(events, count=10):
    return report(events).narrow(window=Window(0, count * STEP, count=count, each="step"))


def program(*names, **keys):
    return in_steps([event for number in range(10) for event in step(number * STEP, names, **keys)])


def found(*names, **keys):
    return cpu_work(program(*names, **keys))


def test_operators_of_the_cpu_after_a_copy_to_the_host():
    (one,) = found("aten::softmax", "aten::view", "aten::multinomial", took=100_000)
    assert one.rule == "cpu-operators"
    assert one.headline == "The CPU computes in the middle of the GPU's work: aten::softmax"
    assert one.text == (
        "The CPU computes on tensors of the host between launches, most in aten::softmax, 1 time a step, 512 B copied "
        "to the GPU each time: GPU 0 idles, or works for it, for 350.0 µs a step."
    )
    assert one.claims.height == 10


@pytest.mark.parametrize(
    ("names", "keys", "rule", "said", "figures"),
    [
        (
            ("aten::full", "aten::triu"),
            {"down": 0},
            "cpu-tensors",
            "A tensor is made on the CPU (most time in aten::full) and copied to the GPU, 1 time a step",
            (3_300_000, 10, 0, 3_300_000),
        ),
        (
            ("aten::lift_fresh",),
            {"down": 0},
            "cpu-tensors",
            "most time in Python and NumPy",
            (2_010_000, 10, 0, 2_110_000),
        ),
        (
            ("aten::to", "aten::div"),
            {"down": 0, "up": 1 << 21},
            "large-upload",
            "2.097 MB copied to the GPU each time",
            (3_300_000, 0, 7_500, 3_200_000),
        ),
        # a layer that was left on the CPU; no preparation of data
        (
            ("aten::embedding",),
            {"down": 0, "up": 1 << 21},
            "cpu-operators",
            "most in aten::embedding",
            (1_800_000, 10, 0, 1_700_000),
        ),
        # what NumPy makes of what was copied is lifted, and copied back
        (
            ("aten::lift_fresh",),
            {},
            "cpu-operators",
            "most in what the host does between a copy to it and one back",
            (2_000_000, 20, 0, 2_000_000),
        ),
    ],
)
def test_work_is_told_by_what_is_copied(names, keys, rule, said, figures):
    of = program(*names, **keys)
    (one,) = cpu_work(of)
    assert (one.rule, said in one.text) == (rule, True)
    assert measures(one, of) == figures


@pytest.mark.parametrize(("took", "rules"), [(3_000_000, ["cpu-tensors"]), (1_000_000, [])])
def test_lists_that_become_large_tensors_are_told_by_the_time_that_it_takes(took, rules):
    events = [
        one for at in range(10) for one in step(10 * at * STEP, ("aten::lift_fresh",), down=0, up=1 << 20, took=took)
    ]
    made = report(events).narrow(window=Window(0, 100 * STEP, count=10, each="step"))
    assert [one.rule for one in cpu_work(made)] == rules


def test_data_of_python_are_made_on_the_cpu():
    (one,) = found("aten::lift_fresh", down=0)
    assert one.headline == "Data of Python or NumPy become tensors and are copied, each time"


@pytest.mark.parametrize(("types", "told"), [('["c10::BFloat16", "float"]', 0), ('["float", "unsigned char"]', 1)])
def test_data_that_are_converted_into_a_shorter_type_are_well_copied(types, told):
    events = [event for at in range(10) for event in step(at * STEP, ("aten::to",), down=0, up=1 << 21)]
    starts = [event.start for event in events if (event.name, event.end - event.start) == ("aten::to", 150_000)]
    details = [{"event_id": len(events) + number, "input_types": types} for number in range(len(starts))]
    events += [host("op", "aten::copy_", at + 10, at + 140_000) for at in starts]
    made = report(events, op_detail=details).narrow(window=Window(0, 10 * STEP, count=10, each="step"))
    assert [one.rule for one in cpu_work(made)] == ["large-upload"] * told


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("aten::view", "aten::select"), {"took": 5000}),  # views compute nothing
        (("aten::add",), {"down": 0, "up": 0, "took": 5000}),  # a counter of an optimizer
        (("aten::add",), {"down": 4, "up": 0, "took": 5000}),  # a number that is read
        (("aten::to", "aten::div"), {"down": 0, "up": 1 << 19}),  # few data
        (("aten::lift_fresh",), {"down": 0, "up": 2 << 20}),  # a batch
    ],
)
def test_what_is_no_work_of_the_cpu(names, keys):
    assert found(*names, **keys) == []


def test_without_operators_the_time_between_two_copies_tells():
    events = [event for number in range(10) for event in step(number * STEP, ("aten::sort",)) if event.kind != "op"]
    (one,) = cpu_work(in_steps(events))
    assert "between a copy to it and one back, 1 time a step" in one.text
    others = [replace(event, name="fusion") if event.kind == "kernel" else event for event in events]
    (one,) = cpu_work(in_steps(others))
    assert one.action == "compute it on the GPU, too: no copy to the host, and back"


@pytest.mark.parametrize(
    ("calls", "stakes"),
    [
        pytest.param([], [40_400_000], id="the host computes"),
        pytest.param([("cudaPointerGetAttributes", 1_990_000, 1_991_000)], [40_400_000], id="a short call before"),
        pytest.param([("cudaStreamSynchronize", 30_000, 1_950_000)], [], id="it waits"),
        pytest.param([("cudaFoo", 1000, 2_999_000)], [], id="it is in a call"),
    ],
)
def test_between_two_copies_only_time_in_no_call_counts(calls, stakes):
    events = []
    for number in range(20):
        at, first = 3_000_000 * number, 4 * number
        moved = {"size_bytes": 4096}
        events += [call("cudaMemcpy", at, at + 20_000, correlation=first)]
        events += [memcpy(at + 5000, at + 10_000, direction="Device-to-Host", correlation=first, **moved)]
        events += [call(name, at + start, at + end) for name, start, end in calls]
        events += [call("cudaMemcpy", at + 2_000_000, at + 2_020_000, correlation=first + 1)]
        events += [memcpy(at + 2_005_000, at + 2_010_000, correlation=first + 1, **moved)]
        events += [call("cudaLaunchKernel", at + 2_030_000, at + 2_040_000, correlation=first + 2)]
        events += [kernel(at + 2_050_000, at + 2_900_000, correlation=first + 2)]
    assert [one.at_stake_ns for one in cpu_work(report(events))] == stakes


def test_metrics_on_the_cpu_do_not_end_with_the_next_batch():
    (one,) = found("aten::bincount", down=4096, up=1 << 20)
    assert (one.rule, one.at_stake_ns < 10 * 190_000) == ("cpu-operators", True)


# Anomaly detection, by operators or else by kernels.

COMPARE = "void at::native::vectorized_elementwise_kernel<4, CompareEqFunctor>()"
ANY = "void at::native::reduce_kernel<or_kernel_cuda>()"
OWN = "void at::native::backward()"


def launched(at, name):
    """An operator's launch of a kernel, or of a copy of one byte to the host."""
    if name == "copy":
        return [
            call("cudaMemcpyAsync_v3020", at, at + 2000, correlation=at),
            memcpy(at + 1500, at + 1800, direction="Device-to-Host", size_bytes=1, correlation=at),
        ]
    return [call(LAUNCH, at, at + 2000, correlation=at), kernel(at + 2000, at + 3000, name=name, correlation=at)]


def node(at, number, *, own=True, every=1, fills=False):
    """A node of autograd: an operator of its own, and the check of its result, which may set memory for the second."""
    events = [host("op", "autograd::engine::evaluate_function: MmBackward0", at, at + 45_000)]
    if own:
        events += [host("op", "MmBackward0", at + 1000, at + 9000), *launched(at + 2000, OWN)]
    if number % every == 0:
        for place, name, kernels in ((1, "isnan", COMPARE), (2, "_is_any_true", ANY), (3, "item", "copy")):
            start = at + 10_000 * place
            events += [host("op", f"aten::{name}", start, start + 9000), *launched(start + 2000, kernels)]
            if fills and name == "_is_any_true":
                events += [call("cudaMemsetAsync", start, start + 900, correlation=start)]
                events += [memset(start + 900, start + 1000, correlation=start)]
    return events


def checked(*, operators=True, **how):
    nodes = [event for number in range(30) for event in node(50_000 * number, number, **how)]
    events = [event for event in nodes if operators or event.kind != "op"]
    return anomaly_detection(report(events).narrow(window=Window(0, 50_000 * 30, count=2, each="step")))


@pytest.mark.parametrize(
    ("how", "stake"),
    [({}, 870_000), ({"operators": False}, 1_037_000), ({"operators": False, "fills": True}, 1_037_000)],
)
def test_each_node_is_checked(how, stake):
    (one,) = checked(**how)
    assert one.at_stake_ns == stake
    assert "(15 checks a step), by two kernels and a copy to the host each" in one.text
    assert one.action == "torch.autograd.set_detect_anomaly(False)"


def test_a_hook_that_checks_some_gradients_and_a_loop_over_all_are_none():
    assert checked(every=3) == []
    assert checked(operators=False, own=False) == []
