"""Windows of images and signals: sums, pools, filters, convolutions in place of which others are quicker."""

import pytest

from kanalyze.analyses.findings.rules import windows
from support.build import again, host, in_line, kernel, launched
from support.kernel_names import GEMM, UP
from support.measures import assert_told, measures
from support.steps import NODE, alike, in_steps, operator, operators as operators_of, passes, shaped

H100 = {"memory_bandwidth_bytes_per_s": 3_350_000_000_000, "name": "NVIDIA H100 80GB HBM3"}
WORK = (GEMM, 16_000)


WINDOWS = ("void at::native::im2col_kernel<float>(long)", 14_000)
SUMMED = ("void at::native::col2im_batched_kernel<float>(long)", 13_000)
ORDERED = ("void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(int)>(int)", 12_000)
THREE = '["", "[3, 3]", "[1, 1]", "[1, 1]", "[1, 1]"]'  # kernel, dilation, padding, stride
IMAGES = "[[4, 64, 28, 28], [], [], [], []]"
UNFOLD = ("aten::im2col", IMAGES, [WINDOWS], THREE)
BY_WEIGHTS = ("aten::matmul", "[[32, 576], [4, 576, 784]]", [ORDERED, WORK])
CENTRED = ("aten::sub", "[[4, 64, 9, 784], [4, 64, 1, 784], []]", [(UP, 9_000)])
SUM = (f"{NODE}Im2ColBackward0#0", "[[4, 576, 784]]", [SUMMED])


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("operators", "stake"),
    [
        ([UNFOLD, BY_WEIGHTS], 26_000),  # the product itself stays
        ([UNFOLD, BY_WEIGHTS, (f"{NODE}MmBackward0#1", "[]", [ORDERED, WORK]), SUM], 51_000),
        ([UNFOLD, ("aten::linear", "[[4, 784, 576], [32, 576], [32]]", [ORDERED, WORK])], 26_000),
        ([UNFOLD, ("aten::einsum", "[[], [[32, 576], [4, 576, 784]], []]", [WORK])], 14_000),
        ([UNFOLD, BY_WEIGHTS, BY_WEIGHTS], 38_000),  # two layers of one input
        ([UNFOLD, ("aten::to", "[[4, 576, 784], []]", [ORDERED]), BY_WEIGHTS], 38_000),  # under autocast
        (
            [
                UNFOLD,
                ("aten::reshape", "[[4, 784, 576], []]", [ORDERED]),
                ("aten::mm", "[[3136, 576], [576, 32]]", [WORK]),
            ],
            26_000,
        ),
        # windows beside each other, and some with a distance
        (
            [
                ("aten::im2col", "[[4, 3, 60, 60], []]", [WINDOWS], THREE.replace('1, 1]"]', '2, 2]"]')),
                ("aten::matmul", "[[32, 27], [4, 27, 900]]", [WORK]),
            ],
            14_000,
        ),
        ([UNFOLD, CENTRED, BY_WEIGHTS], 35_000),  # differences to the centre, which weights may take
        ([UNFOLD, CENTRED, BY_WEIGHTS, (f"{NODE}SubBackward0#1", "[]", [(UP, 8_000)]), SUM], 56_000),
        # by a weight of each place; among the windows of two images
        ([UNFOLD, ("aten::sub", "[[4, 64, 9, 784], [4, 1, 9, 784], []]", [(UP, 9_000)]), BY_WEIGHTS], 0),
        ([UNFOLD, UNFOLD, ("aten::sub", "[[4, 576, 784], [4, 576, 784], []]", [(UP, 9_000)]), BY_WEIGHTS], 0),
        ([UNFOLD, CENTRED, ("aten::relu", "[[4, 64, 9, 784]]", [(UP, 9_000)]), BY_WEIGHTS], 0),
        ([UNFOLD], 0),  # nothing known of what takes them
        # weights of each sample; of each place; what has the windows' own size; a sum over places
        ([UNFOLD, ("aten::bmm", "[[4, 32, 576], [4, 576, 784]]", [WORK])], 0),
        ([UNFOLD, ("aten::mul", "[[4, 64, 9, 28, 28], [4, 1, 9, 28, 28]]", [(UP, 9_000)])], 0),
        ([UNFOLD, ("aten::mm", "[[576, 3136], [3136, 576]]", [WORK])], 0),
        ([UNFOLD, ("aten::matmul", "[[4, 576, 784], [784, 576]]", [WORK])], 0),
        # keys and values, unfolded alike, of which one is projected
        ([UNFOLD, UNFOLD, BY_WEIGHTS, ("aten::mul", "[[4, 64, 9, 784], [4, 64, 1, 784]]", [(UP, 9_000)])], 0),
        # windows that are normalized before
        ([UNFOLD, ("aten::sub", "[[4, 576, 784], [4, 1, 784], []]", [(UP, 9_000)]), BY_WEIGHTS], 0),
        ([UNFOLD, BY_WEIGHTS, ("mylib::attend", "[[4, 576, 784]]", [(UP, 9_000)])], 0),  # what another library takes
        ([UNFOLD[:3], BY_WEIGHTS], 0),  # without its values
        # a convolution that PyTorch does so by itself
        ([("aten::conv2d", "[[4, 64, 28, 28], [32, 64, 3, 3]]", [WINDOWS, WORK])], 0),
    ],
)
def test_convolutions_by_products_with_windows(operators, stake):
    told = windows.unfolded_convolutions(passes(*operators, ("aten::relu", "[[9]]", [(UP, 9_000)])))
    assert_told(told, [5 * stake] * bool(stake), *["F.unfold"] * bool(stake))


@pytest.mark.parametrize(
    ("name", "shapes", "strides", "stake", "words"),
    [
        ("aten::mean", "[[16, 9000, 101], [], [], []]", "[[9100, 1, 1], [], [], []]", 150_000, "100 times and more"),
        ("aten::sum", "[[64, 4096]]", "[[0, 1]]", 150_000, "each element 64 times"),
        ("aten::sum", "[[16, 9000, 101]]", "[[909000, 101, 1]]", 0, None),
        ("aten::sum", "[[4096, 9000]]", "[[1, 4096]]", 0, None),  # transposed
        ("aten::sum", "[[16, 9000, 9]]", "[[9100, 1, 1]]", 0, None),  # short windows
        ("aten::max", "[[16, 9000, 101]]", "[[9100, 1, 1]]", 0, None),  # no running sum gives it
        ("aten::sum", "[[16, 0, 101]]", "[[9100, 1, 1]]", 0, None),
        ("aten::sum", "[[]]", "[[]]", 0, None),
        ("aten::sum", "[[16, 9000, 101]]", None, 0, None),
    ],
)
def test_sums_read_elements_again(name, shapes, strides, stake, words):
    made = operators_of((name, {"input_shapes": shapes, "input_strides": strides}, 30_000))
    assert_told(windows.overlapping_windows(made), [stake] * bool(stake), *filter(None, [words]))


def test_what_takes_little_beside_others_is_left_out():
    columns = {"input_shapes": "[[16, 9000, 101]]", "input_strides": "[[9100, 1, 1]]"}
    made = operators_of(("aten::mean", columns, 30_000), ("aten::mm", columns, 400_000))
    assert_told(windows.overlapping_windows(made), [])


MEAN, MEAN_BACK = "aten::avg_pool2d", "aten::avg_pool2d_backward"
MAXIMUM = "aten::max_pool2d_with_indices"
PHOTOS, OTHERS = "[4, 1, 384, 512]", "[], [], [], [], [], []"


def pooled(*each, image=PHOTOS, within=None, limits=H100):
    """Five steps of pools of an image: name, window, step and padding of both axes (None: not recorded), ns."""
    step = []
    for number, (name, window, stride, padding, took) in enumerate(each):
        at, back = 3_000_000 * number, name.endswith("backward")
        step += [host("op", within, at, at + 9_500)] if within and not back else []
        inputs = '"", ' * (1 + back)
        given = f'[{inputs}"{window}", "{stride}", "{padding}", "[1, 1]", "False", ""]'
        known = {"input_values": given} if window else {}
        shapes = f"[{image}, {image}, {OTHERS}]" if back else f"[{image}, {OTHERS}]"
        of = f"void {name.removeprefix('aten::')}<float>(int)"
        step += operator(name, at + 100, took=took, of=of, input_shapes=shapes, **known)
    return alike(*step, step_ns=10_000_000, limits=limits)


def square(name, side, took, *, step=1):
    return (name, [side] * 2, [step] * 2, [side // 2] * 2, took)


WIDE = square(MEAN, 49, 347_000)


@pytest.mark.parametrize(
    ("pools", "left_ns"),
    [
        # a 49th of their time twice, and two passes over the image, each of 5 µs as it is small
        ([WIDE], 24_000),
        ([WIDE, square(MEAN_BACK, 49, 2_140_000)], 24_000 + 97_000),
        # what one kernel does not gain others of its windows do
        ([square(MEAN, 9, 22_000), square(MEAN_BACK, 9, 150_000)], 15_000 + 43_000),
        ([square(MAXIMUM, 31, 300_000)], 29_000),
        # windows 7 apart are fewer: what the first pass leaves is 7 times as much as the result
        ([square(MEAN, 49, 347_000, step=7)], 67_000),
        ([(MEAN, [49, 25], [1], [24, 12], 347_000)], 31_000),
    ],
)
def test_pools_of_large_windows(pools, left_ns):
    of = pooled(*pools, within="aten::max_pool2d" if pools[0][0] == MAXIMUM else None)
    found = list(windows.pooled_windows(of))
    took = sum(one[-1] for one in pools)
    size, function = " × ".join(map(str, pools[0][1])), "max_pool2d" if pools[0][0] == MAXIMUM else "avg_pool2d"
    assert_told(found, [5 * took], f"Windows of up to {size}", f"F.{function}(x, (1, k), …)")
    assert not found[0].at_most
    assert took - measures(found[0], of)[2] // 5 == pytest.approx(left_ns, rel=0.05)


@pytest.mark.parametrize(
    ("pools", "others"),
    [
        ([square(MEAN, 3, 347_000)], {}),  # few elements
        ([square(MEAN, 9, 22_000)], {}),  # nearly as quick as two passes
        ([(MEAN, [49, 49], [49, 49], [0, 0], 347_000)], {}),  # windows beside each other
        ([(MEAN, [49, 49], [1, 1], [0, 0], 347_000)], {"image": "[4, 64, 49, 49]"}),  # a single one
        ([(MEAN, [1, 49], [1, 1], [0, 24], 347_000)], {}),  # one pass
        ([(MEAN, None, None, None, 347_000)], {}),
        ([square(MAXIMUM, 31, 300_000)], {}),  # with places, of which a pass along an axis has others
        ([WIDE, square(MEAN_BACK, 2, 2_140_000), square(MEAN_BACK, 2, 2_140_000)], {}),  # a small part of the time
        ([WIDE], {"limits": {"name": "unknown"}}),  # of unknown bandwidth
        ([WIDE], {"image": "[512, 16, 384, 512]"}),  # of so many elements it is quick
    ],
)
def test_pools_that_passes_along_axes_do_not_spare(pools, others):
    assert_told(windows.pooled_windows(pooled(*pools, **others)), [])


def filtered(*kernels, side=4096):
    """Five steps of kernels of CuPy (name, ns), each of which has a thread for each pixel."""
    shape = {"grid": (side * side // 128, 1, 1), "block": (128, 1, 1)}
    step, at = [], 0
    for name, took in kernels:
        step += launched(at + 1_000, at + 8_000, kernel(at + 10_000, at + 10_000 + took, name=name, **shape))
        at += took + 20_000
    return alike(*step, step_ns=10_000_000, limits=H100)


CORRELATES = "cupyx_scipy_ndimage_correlate_"


@pytest.mark.parametrize(
    ("kernels", "left_ns", "size"),
    [
        ([("2d_nearest_w17_17", 2_660_000), ("2d_reflect_w9_9", 755_000)], 413_000 + 268_000, "17 × 17"),
        ([("3d_grid_constant_w1_17_17_i64", 2_660_000)], 413_000, "17 × 17"),
        ([("3d_mirror_w7_7_7", 2_660_000)], 314_000, "7 × 7 × 7"),
    ],
)
def test_filters_by_all_of_their_weights(kernels, left_ns, size):
    of = filtered(*((f"{CORRELATES}{name}", took) for name, took in kernels))
    found, took = list(windows.filtered_windows(of)), sum(took for _, took in kernels)
    assert_told(found, [5 * took], f"Filters of up to {size}", "if weights are separable")
    assert found[0].at_most
    assert took - measures(found[0], of)[2] // 5 == pytest.approx(left_ns, rel=0.05)


@pytest.mark.parametrize(
    "kernels",
    [
        [(f"{CORRELATES}2d_nearest_w1_17", 2_660_000)],  # along an axis
        [(f"{CORRELATES}2d_nearest_w17_17", 200_000)],  # most of the weights are zero, and no work
        [("cupyx_scipy_ndimage_max_2d_nearest_w17_17", 2_660_000)],  # of a footprint that is no rectangle
        [(f"{CORRELATES}2d_nearest_w17_17", 700_000), ("k", 7_000_000)],  # a small part of the time
    ],
)
def test_filters_that_passes_along_axes_do_not_spare(kernels):
    assert_told(windows.filtered_windows(filtered(*kernels)), [])


IMAGES = "[[64, 3, 32, 32], [8, 3, 3, 3], [8]]"
SLOW, FLOAT = "aten::_slow_conv2d_forward", '["float", "float", "float"]'


def layers(outer, inner=SLOW, types=FLOAT, launches=10, beside=None):
    """Five steps of a layer of 800 µs, and what runs backward for it, each with kernels of 20 µs, 40 µs apart."""

    def add(name, at, took, **columns):
        return shaped(name, at, at + took, IMAGES, input_types=types, **columns)

    run = again(range(2_000, 2_000 + 40_000 * launches, 40_000), *launched(0, 5_000, kernel(10_000, 30_000)))
    events = []
    for number, at in enumerate(range(0, 10_000_000, 2_000_000)):
        events += [add(outer, at, 800_000, sequence_number=number), add(inner, at + 1_000, 790_000)]
        events += [add(beside, at + 850_000, 20_000)] if beside else []
        events.append(add(f"{NODE}ConvolutionBackward0", at + 900_000, 500_000, sequence_number=number))
        events += again((at, at + 900_000), *run)
    return in_steps(events, 5, 2_000_000)


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
    found = windows.cudnn_off(of)
    # all that the GPU does forward and backward, and what it idles in between
    assert_told(found, [5 * 1_300_000] * bool(told), *([told, "in 20 launches a step"] if told else ()))
    if told:  # of each layer and its backward pass one kernel is left, of a quarter of the time
        assert measures(found[0], of)[1:3] == (5 * 18, 5 * 2 * (20_000 - 50_000))


def convolved(image, weights, took, stride="[1, 1]", name="aten::_conv_depthwise2d", **others):
    """Five steps of a convolution of float32, `others` with strides of its weights, and gradients that are computed."""
    types = '["float", "float", "ScalarList", "", "ScalarList", "ScalarList", "ScalarList"]'
    known = {"input_types": types, "input_values": f'["", "", "", "", "{stride}", "[0, 0]", "[1, 1]"]'}
    known["input_shapes"] = f"[{image}, {weights}, [], [], [], [], []]" if image else "[]"
    known["input_strides"] = f"[[1, 1, 1, 1], {others.get('strides', '[]')}, [], [], [], [], []]"
    later = {
        "input_shapes": f"[{image}, {image}, {weights}]",
        "input_values": f'["", "", "", "{others.get("gradients")}"]',
    }
    kernels = ["void conv_depthwise2d_forward_kernel<float>(int)"]
    parts = [(name, known, took), *[("aten::convolution_backward", later, 1000)] * ("gradients" in others)]
    return operators_of(*parts, kernels=kernels * len(parts), step_ns=20_000_000, limits=H100)


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
    found = windows.long_convolution(of)
    assert_told(found, [5 * took] * bool(left))
    if left:
        each = took - measures(found[0], of)[2] // 5
        assert left[0] <= each <= left[1]


PHOTO, BELL = "[128, 3, 150, 150]", "[3, 1, 23, 23]"


@pytest.mark.parametrize(
    ("image", "weights", "others", "left_ns"),
    [
        (PHOTO, BELL, {}, 387_000),
        ("[16, 64, 150, 150]", "[64, 1, 23, 23]", {"strides": "[0, 529, 23, 1]"}, 447_000),
        (PHOTO, BELL, {"gradients": "[True, False, False]"}, 387_000),
        (PHOTO, BELL, {"gradients": "[True, True, False]"}, None),  # which may become any weights
        ("[16, 64, 150, 150]", "[64, 1, 23, 23]", {"strides": "[529, 529, 23, 1]"}, None),
        (PHOTO, "[3, 1, 1, 23]", {}, None),  # one pass
        (PHOTO, "[3, 1, 5, 5]", {}, None),  # a few taps, of which two passes take as long
    ],
)
def test_blurs_by_all_weights_at_once(image, weights, others, left_ns):
    took, of = 1_126_000, convolved(image, weights, 1_126_000, **others)
    found = list(windows.convolved_windows(of))
    assert_told(found, [5 * took] * bool(left_ns))
    if left_ns:
        assert took - measures(found[0], of)[2] // 5 == pytest.approx(left_ns, rel=0.05)


def test_transposed_convolutions_have_other_weights():
    of = convolved("[16, 1026, 1, 1000]", "[1026, 1, 1, 1024]", 9_000_000, name="aten::cudnn_convolution_transpose")
    assert list(windows.long_convolution(of)) == []


WIDENED, TRANSFORMED = (
    "cupy_copy__float32_complex64",
    "void regular_fft<1024u, EPT<8u>, float>(kernel_arguments_t<float>)",
)
MULTIPLIED, SUMMED_UP = "cupy_multiply__complex64_float32_complex64", "cupy_sum"


@pytest.mark.parametrize(
    ("names", "line", "saved"),
    [
        ([WIDENED, TRANSFORMED, MULTIPLIED, TRANSFORMED, SUMMED_UP], "y = cp.fft.ifft2(s * band).real", (1, 150_000)),
        ([WIDENED, TRANSFORMED, MULTIPLIED, TRANSFORMED, SUMMED_UP], "y = cp.fft.ifft2(s * band)", (1, 50_000)),
        ([MULTIPLIED, TRANSFORMED, SUMMED_UP], "y = cp.fft.ifft2(s).real", None),  # of complex values
        # one of several
        ([WIDENED, *[TRANSFORMED, MULTIPLIED] * 3], "y = cp.fft.ifft2(w).real", (1, 50_000)),
        ([WIDENED, MULTIPLIED, TRANSFORMED, SUMMED_UP], "y = cp.fft.fft2(x * phase)", None),
    ],
)
def test_transforms_of_real_values_as_complex_ones(names, line, saved):
    step = []
    for at, name in enumerate(names):
        start = 120_000 * at
        step += launched(start + 1000, start + 9000, kernel(start + 10_000, start + 110_000, name=name))
    of = alike(*step, source_lines=[in_line(0, 5_000_000, 7, line)])
    told = [measures(one, of)[1:3] for one in windows.real_transforms(of)]
    assert told == ([] if saved is None else [(5 * saved[0], 5 * saved[1])])
