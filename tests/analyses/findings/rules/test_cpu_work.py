"""Work of the CPU between two launches: operators on tensors of the host, tensors made there, data converted there."""

from dataclasses import replace

import pytest

from kanalyze.analyses.findings.rules.cpu_work import cpu_operators, cpu_tensors, large_upload
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report

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


def found(rule, *names, count=10, **keys):
    events = [event for number in range(count) for event in step(number * STEP, names, **keys)]
    window = Window(0, count * STEP, count=count, each="step")
    return rule(report(events).narrow(window=window))


def test_operators_of_the_cpu_after_a_copy_to_the_host():
    (one,) = found(cpu_operators, "aten::softmax", "aten::view", "aten::multinomial", took=100_000)
    assert one.headline == "The CPU computes in the middle of the GPU's work: aten::softmax"
    assert one.text == (
        "The CPU computes on tensors of the host between launches, most in aten::softmax, 1 time a step, 512 B copied "
        "to the GPU each time: GPU 0 idles, or works for it, for 350.0 µs a step."
    )
    assert one.claims.height == 10
    assert found(cpu_tensors, "aten::softmax") == found(large_upload, "aten::softmax") == []


def test_a_tensor_that_is_made_on_the_cpu():
    (one,) = found(cpu_tensors, "aten::full", "aten::triu", down=0)
    assert one.text.startswith(
        "A tensor is made on the CPU (most time in aten::full) and copied to the GPU, 1 time a step"
    )
    assert found(cpu_operators, "aten::full", "aten::triu", down=0) == []


def test_data_that_are_converted_before_they_are_copied():
    (one,) = found(large_upload, "aten::to", "aten::div", down=0, up=1 << 21)
    assert "2.097 MB copied to the GPU each time" in one.text
    assert found(large_upload, "aten::to", "aten::div", down=0, up=1 << 19) == []


@pytest.mark.parametrize(("types", "told"), [('["c10::BFloat16", "float"]', 0), ('["float", "unsigned char"]', 1)])
def test_data_that_are_converted_into_a_shorter_type_are_well_copied(types, told):
    events = [event for at in range(10) for event in step(at * STEP, ("aten::to",), down=0, up=1 << 21)]
    starts = [event.start for event in events if (event.name, event.end - event.start) == ("aten::to", 150_000)]
    events += [host("op", "aten::copy_", at + 10, at + 140_000) for at in starts]
    copies = [number for number, event in enumerate(events) if event.name == "aten::copy_"]
    details = [{"event_id": number, "input_types": types} for number in copies]
    made = report(events, op_detail=details).narrow(window=Window(0, 10 * STEP, count=10, each="step"))
    assert len(large_upload(made)) == told


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("aten::view", "aten::select"), {"took": 5000}),  # views compute nothing
        (("aten::add",), {"down": 0, "up": 0, "took": 5000}),  # a counter of an optimizer
        (("aten::add",), {"down": 4, "up": 0, "took": 5000}),  # a number that is read
    ],
)
def test_what_is_no_work_of_the_cpu(names, keys):
    assert [one for rule in (cpu_operators, cpu_tensors, large_upload) for one in found(rule, *names, **keys)] == []


def test_without_operators_the_time_between_two_copies_tells():
    events = [event for number in range(10) for event in step(number * STEP, ("aten::sort",)) if event.kind != "op"]
    (one,) = cpu_operators(report(events).narrow(window=Window(0, 10 * STEP, count=10, each="step")))
    assert "between a copy to it and one back, 1 time a step" in one.text
    others = [replace(event, name="fusion") if event.kind == "kernel" else event for event in events]
    (one,) = cpu_operators(report(others).narrow(window=Window(0, 10 * STEP, count=10, each="step")))
    assert one.action == "compute it on the GPU, too: no copy to the host, and back"


def test_data_of_python_are_made_on_the_cpu():
    (one,) = found(cpu_tensors, "aten::lift_fresh", down=0)
    assert "most time in Python and NumPy" in one.text
    assert one.headline == "Data of Python or NumPy become tensors and are copied, each time"
    assert found(cpu_tensors, "aten::lift_fresh", down=0, up=2 << 20) == []  # a batch


def test_metrics_on_the_cpu_do_not_end_with_the_next_batch():
    (one,) = found(cpu_operators, "aten::bincount", down=4096, up=1 << 20)
    assert one.at_stake_ns < 10 * 190_000


def test_a_converted_upload_is_a_quarter_by_replay():
    (one,) = found(large_upload, "aten::to", "aten::div", down=0, up=1 << 21)
    change = one.mending(report(list(step(0, ("aten::to", "aten::div"), down=0, up=1 << 21))))
    assert change.shorter["saved_ns"].to_list() == [750]


def test_numpy_between_two_copies_computes_on_the_cpu():
    """What NumPy makes of what was copied is lifted, and copied back."""
    (one,) = found(cpu_operators, "aten::lift_fresh")
    assert "most in what the host does between a copy to it and one back" in one.text
    assert found(cpu_tensors, "aten::lift_fresh") == []
