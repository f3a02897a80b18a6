"""Layers that PyTorch runs without cuDNN, and convolutions whose kernels are long."""

import pytest

from kanalyze.analyses.findings.rules.needless_products import cudnn_off, long_convolution
from support.build import host, kernel, launched
from support.measures import assert_told, measures
from support.steps import in_steps

IMAGES = "[[64, 3, 32, 32], [8, 3, 3, 3], [8]]"
SLOW, FLOAT = "aten::_slow_conv2d_forward", '["float", "float", "float"]'


def layers(outer, inner=SLOW, types=FLOAT, launches=10, beside=None):
    """Five steps of a layer of 800 µs, and what runs backward for it, each with kernels of 20 µs, 40 µs apart."""
    events, details = [], []

    def add(name, at, took, **columns):
        details.append({"event_id": len(events), "input_types": types, "input_shapes": IMAGES, **columns})
        events.append(host("op", name, at, at + took))

    def run(at):
        for begin in range(at, at + 40_000 * launches, 40_000):
            events.extend(launched(begin, begin + 5_000, kernel(begin + 10_000, begin + 30_000)))

    for number, at in enumerate(range(0, 10_000_000, 2_000_000)):
        add(outer, at, 800_000, sequence_number=number)
        add(inner, at + 1_000, 790_000)
        run(at + 2_000)
        if beside:
            add(beside, at + 850_000, 20_000)
        add("autograd::engine::evaluate_function: ConvolutionBackward0", at + 900_000, 500_000, sequence_number=number)
        run(at + 902_000)
    return in_steps(events, 5, 2_000_000, op_detail=details)


@pytest.mark.parametrize(
    ("outer", "known", "told"),
    [
        ("aten::conv2d", {}, "(conv2d) image by image"),
        ("aten::lstm", {"inner": "aten::lstm", "types": '["c10::Half", "TensorList"]'}, "(lstm) image by image"),
        ("aten::lstm", {"inner": "aten::lstm", "types": '["c10::BFloat16", "TensorList"]'}, None),  # not everywhere
        ("aten::conv2d", {"types": '["double", "double", "double"]'}, None),  # of which cuDNN has no quick ones
        ("aten::lstm", {"inner": "aten::_cudnn_rnn"}, None),
        ("aten::conv2d", {"inner": "aten::cudnn_convolution"}, None),
        ("aten::conv2d", {"beside": "aten::cudnn_convolution"}, None),  # off for some alone
        ("aten::conv2d", {"inner": "aten::_conv_depthwise2d"}, None),  # which PyTorch takes by itself
        ("aten::conv2d", {"inner": "aten::slow_conv_dilated2d"}, None),  # as deterministic ones, too
        ("aten::conv2d", {"launches": 2}, None),
        ("aten::conv2d", {"launches": 0}, None),  # on the CPU
    ],
)
def test_layers_without_cudnn(outer, known, told):
    of = layers(outer, **known)
    found = cudnn_off(of)
    # all that the GPU does forward and backward, and what it idles in between
    assert_told(found, [5 * 1_300_000] * bool(told), *([told, "in 20 launches a step"] if told else ()))
    if told:  # of each layer and its backward pass one kernel is left, of a quarter of the time
        assert measures(found[0], of)[1:3] == (5 * 18, 5 * 2 * (20_000 - 50_000))


H100 = {"memory_bandwidth_bytes_per_s": 3_350_000_000_000, "name": "NVIDIA H100 80GB HBM3"}


def convolved(image, weights, took, stride="[1, 1]", name="aten::_conv_depthwise2d"):
    """Five steps of a convolution of float32."""
    events, details = [], []
    values = f'["", "", "", "", "{stride}", "[0, 0]", "[1, 1]"]'
    types = '["float", "float", "ScalarList", "", "ScalarList", "ScalarList", "ScalarList"]'
    shapes = f"[{image}, {weights}, [], [], [], [], []]" if image else "[]"
    for at in range(0, 100_000_000, 20_000_000):
        details.append({"event_id": len(events), "input_types": types, "input_shapes": shapes, "input_values": values})
        made = kernel(at + 10_000, at + 10_000 + took, name="void conv_depthwise2d_forward_kernel<float>(int)")
        events += [host("op", name, at, at + 9_000), *launched(at + 1_000, at + 8_000, made)]
    return in_steps(events, 5, 20_000_000, op_detail=details, limits=H100)


ROOM, LINE = "[16, 1, 1, 24000]", "[1, 16, 1, 87999]"


@pytest.mark.parametrize(
    ("image", "weights", "took", "left"),
    [
        (LINE, ROOM, 17_000_000, (150_000, 180_000)),
        (LINE, ROOM, 200_000, None),  # as quick as transforms are
        (LINE, "[16, 1, 1, 31]", 17_000_000, None),  # few taps
        ("[1, 16, 1, 87999]", "[16, 16, 1, 24000]", 17_000_000, None),  # products of channels
        ("[8, 64, 56, 56]", "[64, 1, 31, 31]", 2_000_000, None),  # of two dimensions
        ("[16, 1, 1, 160000]", "[514, 1, 1, 1024]", 9_000_000, None),  # frames, each a step apart
        ("", "", 17_000_000, None),
    ],
)
def test_convolutions_of_many_taps(image, weights, took, left):
    of = convolved(image, weights, took, stride="[1, 256]" if "160000" in image else "[1, 1]")
    found = long_convolution(of)
    assert_told(found, [5 * took] * bool(left))
    if left:
        each = took - measures(found[0], of)[2] // 5
        assert left[0] <= each <= left[1]


def test_transposed_convolutions_have_other_weights():
    of = convolved("[16, 1026, 1, 1000]", "[1026, 1, 1, 1024]", 9_000_000, name="aten::cudnn_convolution_transpose")
    assert list(long_convolution(of)) == []
