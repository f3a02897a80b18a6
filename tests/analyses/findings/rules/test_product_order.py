"""Products of three matrices whose other order takes less arithmetic."""

import pytest

from kanalyze.analyses.findings.rules.needless_products import product_order
from support.build import host, kernel, launched, report
from support.measures import assert_told
from support.steps import in_steps

LAUNCH = "cudaLaunchKernel_v7000"
STEP = 2_000_000
NODE = "autograd::engine::evaluate_function: "


def steps(*operators):
    """Five passes of operators (name, shapes of the inputs), with kernels of 10 µs; nodes run on thread 2."""
    events, details = [], []
    for at in range(0, 5 * STEP, STEP):
        for number, (name, inputs) in enumerate(operators):
            begin, thread = at + 100_000 * number, 2 if name.startswith(NODE) else 1
            made = kernel(begin + 10_000, begin + 20_000, name=f"kernel of {number}")
            launch = launched(begin + 1000, begin + 8000, made, LAUNCH, thread=thread)
            details.append({"event_id": len(events), "input_shapes": inputs, "sequence_number": at // STEP * 9})
            details[-1]["sequence_number"] += number if thread == 1 else operators[number].count("[[9]]")
            inside = [host("op", "aten::bmm", begin + 500, begin + 8500, thread=thread)] * (thread == 2)
            events += [host("op", name, begin, begin + 9000, thread=thread), *inside, *launch]
    return in_steps(events, 5, STEP, op_detail=details)


FIRST = ("aten::bmm", "[[16, 4096, 32], [16, 32, 4096]]")
SECOND = ("aten::bmm", "[[16, 4096, 4096], [16, 4096, 32]]")
SCALED = ("aten::div", "[[2, 8, 4096, 4096], [2, 8, 4096, 1]]")
GRAM = ("aten::mm", "[[512, 9000], [9000, 512]]")
VECTOR = ("aten::mv", "[[512, 512], [512]]")


def test_the_products_of_a_layers_gradients_are_no_chain():
    """The gradient of a layer's input has the shape of that input, of which the next product makes its weight's."""
    shapes = ["[]", "[[512, 20], [20, 512]]", "[[20, 512], [512, 512]]"]
    events = []
    for name, start, end in ((f"{NODE}MmBackward0", 0, 90_000), ("aten::mm", 1000, 9000), ("aten::mm", 20_000, 29_000)):
        events.append(host("op", name, start, end))
    for begin in (1000, 20_000):
        made = kernel(begin + 2000, begin + 9000)
        events += launched(begin + 100, begin + 900, made, LAUNCH)
    details = [{"event_id": number, "input_shapes": text} for number, text in enumerate(shapes)]
    assert_told(product_order(report(events, op_detail=details)), [])
    assert product_order(
        report(events[1:], op_detail=[{"event_id": 0, "input_shapes": shapes[1]}, details[2] | {"event_id": 1}])
    )


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("operators", "stake", "words"),
    [
        ((FIRST, SECOND), 20_000, "of 4,096 × 4,096 that are multiplied by far narrower ones"),
        ((FIRST, ("aten::sum", "[[2, 8, 4096, 4096], []]"), SCALED, SECOND), 40_000, "has 128 times less arithmetic"),
        ((FIRST, ("aten::add", "[[16, 4096, 1], []]"), SECOND), 30_000, "100.0 %"),  # of a smaller tensor
        ((FIRST, SECOND, (f"{NODE}BmmBackward0", "[]")), 30_000, "with their gradients"),
        ((GRAM, VECTOR), 20_000, "of 512 × 512"),
        # an update of low rank that is made first: it comes second in the product
        ((("aten::mm", "[[1024, 8], [8, 1024]]"), ("aten::mm", "[[64, 1024], [1024, 1024]]")), 20_000, "1,024 × 1,024"),
        ((("aten::mm", "[[9000, 64], [64, 512]]"), ("aten::addmm", "[[8], [9000, 512], [512, 8]]")), 20_000, "512"),
        ((FIRST, ("aten::_softmax", "[[16, 4096, 4096], [], []]"), SECOND), 0, None),
        ((FIRST, ("aten::relu", "[[16, 4096, 4096]]"), SECOND), 0, None),
        *(
            ((FIRST, between, SECOND), 0, None)
            for between in [
                ("aten::mul", "[[16, 4096, 4096], [16, 4096, 4096]]"),  # masks, decay
                ("aten::mul", "[[16, 4096, 4096], [4096, 4096]]"),
                ("aten::mul", "[[4096, 4096], [16, 4096, 4096]]"),
                ("aten::where", "[[4096, 4096], [16, 4096, 4096], []]"),
                ("aten::add", "[[4096, 4096], [16, 4096, 4096], []]"),
                ("aten::_softmax", "[[4, 4096, 4096], [], []]"),  # head by head
                ("mylib::softmax", "[]"),
                ("mylib::softmax", "[[], [16, 4096, 4096]]"),
                ("python", "[]"),  # a kernel of no operator
            ]
        ),
        ((FIRST, ("aten::mul", "[[16, 4096, 4096], []]"), SECOND), 30_000, "100.0 %"),
        ((FIRST, ("aten::zeros", "[[], [], []]"), SECOND), 30_000, "100.0 %"),
        # what is added to has no other order
        ((("aten::addmm", "[[512, 512], [512, 16], [16, 512]]"), ("aten::mm", "[[16, 512], [512, 512]]")), 0, None),
        ((("aten::addmm", "[[512], [512, 16], [16, 512]]"), ("aten::mm", "[[16, 512], [512, 512]]")), 20_000, "512"),
        ((GRAM, VECTOR, VECTOR), 0, None),  # the matrix is used again
        (
            (("aten::mm", "[[512, 200], [200, 512]]"), ("aten::mm", "[[512, 512], [512, 512]]")),
            0,
            None,
        ),  # twice the work
        ((("aten::mm", "[[99, 5], [5, 99]]"), ("aten::mm", "[[99, 99], [99, 5]]")), 0, None),  # small
        ((FIRST, ("aten::bmm", "[[8, 4096, 4096], [8, 4096, 32]]")), 0, None),  # of another batch
        ((FIRST, ("aten::mm", "[[64, 64], [64, 64]]"), SECOND), 0, None),
        ((("aten::bmm", "[]"), ("aten::bmm", "[]")), 0, None),  # no shapes
        ((FIRST, SECOND, *[("aten::mm", "[[64, 64], [64, 64]]")] * 10), 0, None),  # others take more
    ],
)
def test_products_whose_other_order_takes_less(operators, stake, words):
    assert_told(product_order(steps(*operators)), [5 * stake] * bool(stake), *filter(None, [words]))
