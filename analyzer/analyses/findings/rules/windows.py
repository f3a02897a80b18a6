"""Windows of images and signals: sums, pools, filters and convolutions in a form that other kernels do sooner.

Sums over views whose elements overlap; pools and filters of whole windows, in whose place a pass along each axis does;
convolutions by copies of their windows; those, and recurrent layers, in whose place cuDNN's or transforms do.
"""

import math
from functools import partial
from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, with_facts
from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_host import elements, side, sides
from kanalyze.analyses.findings.rules import Finding, Findings, Rule
from kanalyze.analyses.host._call_kinds import CUPY
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import source_lines
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.analyses.work.work import names_inputs, operations_with_roofs
from kanalyze.columns import nearest
from kanalyze.report import Report

_WON: Final = 0.5  # what is left by another way of computing at most, where it is not sure how long that takes

# Sums over views whose elements overlap: windows of a signal, or tensors that were expanded.

_ADDS: Final = r"^aten::(?:nan)?(?:sum|mean|var|std|var_mean|std_mean)$"
_AGAIN: Final = 20  # times that each element is read at least


@Rule
def overlapping_windows(report: Report) -> Findings:
    """At most one finding per device on sums that read each element many times."""
    # what a sum's gradient expands is nobody's to change
    sums = on_host.working_forward(report).filter(pl.col("name").str.contains(_ADDS))
    sums = sums.with_columns(sizes=sides(pl.col("input_shapes")), steps=sides(pl.col("input_strides")))
    sums = sums.filter(pl.col("sizes").list.len() == pl.col("steps").list.len(), pl.col("sizes").list.min() > 0)
    stored = ((pl.col("sizes") - 1) * pl.col("steps")).list.sum() + 1
    sums = sums.with_columns(again=elements() / stored).filter(pl.col("again") >= _AGAIN)
    again = min(sums.get_column("again").to_list(), default=1.0)
    for work in on_host.works_within(report, sums):
        # times that memory is read and written by a running sum and its differences; reading again from caches is that
        # faster
        yield work.finding("overlapping-windows", left=min(10 / again, 1.0), at_most=True, again=again)


# Pools and filters that go through all elements of their windows, in whose place a pass along each axis does.

_POOLS: Final = r"^aten::(?:avg_pool2d|max_pool2d_with_indices)(?:_backward)?$"

#: Kernels of cupyx.scipy.ndimage, whose names end with the sides of their weights: ``w17_17``.
_FILTERS: Final = r"^cupyx?_(?:scipy_)?ndimage_correlate_\d+d_[a-z_-]+_w(\d+(?:_\d+)+)"

#: What is read and written of each element: float32, of a maximum with its place.
_ELEMENT_BYTES: Final = 8


@Rule
def pooled_windows(report: Report) -> Findings:
    """At most one finding per device on means and maxima of large windows of images, which overlap along both axes."""
    if not names_inputs(report):
        return
    pools = operations_with_roofs(report).filter(pl.col("op").str.contains(_POOLS))
    if pools.is_empty():
        return
    maxima, later = pl.col("op").str.contains("max"), pl.col("op").str.ends_with("_backward")
    pools = on_gpu.with_operators(report, pools)
    # of which a program wants the places of maxima, too
    pools = pools.filter(~(maxima & (pl.col("outer") == "aten::max_pool2d_with_indices").fill_null(value=False).any()))
    image = pl.when(later).then(sides(pl.col("input_shapes"), 1)).otherwise(sides(pl.col("input_shapes")))
    lengths, across = zip(*(_along(image, axis) for axis in (-2, -1)), strict=True)
    pools = pools.with_columns(
        sizes=pl.concat_list(lengths),
        # of a result, where the first pass is along either axis, and has results for all lines of the image
        taken=pl.min_horizontal(lengths[0] * across[1] + lengths[1], lengths[1] * across[0] + lengths[0]),
        values=pl.max_horizontal(elements(), elements(1)),
        # with the place of the maximum
        value_bytes=pl.when(maxima).then(16).otherwise(_ELEMENT_BYTES),
    )
    for work in on_gpu.works(report, _by_axes(report, pools)):
        function = "avg_pool2d" if work.rows.filter(~maxima).height else "max_pool2d"
        yield _whole(work, "overlapping-windows: pools", function)


def _along(image: pl.Expr, axis: int) -> tuple[pl.Expr, pl.Expr]:
    """The elements of a window of a pool along an axis, and those of the image there for each window."""
    length = image.list.get(axis, null_on_oob=True)
    given = (sides(pl.col("input_values"), which) for which in range(3))  # of both axes, or of each
    window, step, padding = (pl.coalesce(one.list.get(at, null_on_oob=True) for at in (axis, 0)) for one in given)
    windows = ((length + 2 * padding - window) / pl.coalesce(step, window)).floor() + 1
    return pl.min_horizontal(window, length), length / windows


@on_gpu.choosing(pl.col("name").str.contains(_FILTERS), 0)
def filtered_windows(own: on_gpu.Work) -> Finding | None:
    """One finding per device on filters of CuPy that multiply by large weights of several dimensions."""
    weights = pl.col("name").cast(pl.String).str.extract(_FILTERS).str.extract_all(r"\d+").cast(pl.List(pl.Float64))
    sizes = weights.list.eval(pl.element().filter(pl.element() > 1))
    filters = with_facts(own.report, own.rows, *SHAPE).with_columns(
        sizes=sizes,
        taken=sizes.list.sum(),
        values=math.prod(map(pl.col, SHAPE), start=pl.lit(1.0)),
        value_bytes=pl.lit(_ELEMENT_BYTES),
    )
    left = _by_axes(own.report, filters)
    return _whole(own._replace(rows=left), "overlapping-windows: filters", at_most=True) if left.height else None


@Rule
def convolved_windows(report: Report) -> Findings:
    """At most one finding per device on convolutions of each channel with a large filter that nothing trains."""
    if on_host.traced(report) is None or not names_inputs(report):
        return
    image, weight, later = (sides(pl.col("input_shapes"), which) for which in range(3))
    channels, each, high, wide, deep = (weight.list.get(at, null_on_oob=True) for at in range(5))
    # of a picture's channels: weights of more are of a layer, unless all channels have the same ones (stride 0)
    same = (sides(pl.col("input_strides"), 1).list.first() == 0) | channels.is_between(2, 4)
    # of the gradients of image, weight and bias those that are wanted
    wanted = pl.col("input_values").cast(pl.String).str.contains(r"\[\w+, True, \w+\]").fill_null(value=True)
    backward = on_host.operators(report).filter(name="aten::convolution_backward")
    trained = backward.filter(wanted).select(later).to_series()
    forward = (pl.col("group") == "convolutions") & ~pl.col("op").str.contains("transpose|backward")
    own = operations_with_roofs(report).filter(forward)
    own = own.filter(
        same & (each == 1) & (channels == image.list.get(1, null_on_oob=True)) & ~weight.is_in(trained.implode()),
        (pl.min_horizontal(high, wide) > 1) & deep.is_null(),
    )
    results = pl.col("flop") / (2 * high * wide)
    # a result takes as long as 66 taps besides its own in PyTorch's kernel, and in a pass along an axis as 28, and 2.5
    # times its own: 5 to 31 taps on an H200, of 3 and 64 channels; of one channel there are other kernels
    along, across = (28 + 2.5 * length for length in (high, wide))
    along *= (elements() / results).sqrt()  # the first pass has a result for each line of the image
    taken = (along + across) * high * wide / (high * wide + 66)
    own = own.with_columns(sizes=pl.concat_list(high, wide), taken=taken, values=results, value_bytes=_ELEMENT_BYTES)
    for work in on_gpu.works(report, _by_axes(report, own)):
        yield _whole(work, "overlapping-windows: convolutions", at_most=True)


def _by_axes(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Work on windows (sizes, by axis) of which passes along each axis leave half or less (left_ns), by window.

    These go through so many elements (taken) for each result, and read and write the image (values) each time.
    """
    rates = report.devices.select("device", rate="memory_bandwidth_bytes_per_s")
    moved_ns = pl.col("values") * pl.col("value_bytes") * 1e9 / pl.col("rate") / on_gpu.REACHED["memory"]
    passes_ns = pl.col("sizes").list.len() * moved_ns.clip(lower_bound=on_gpu.SHORTEST_NS)
    all_of = pl.col("sizes").list.eval(pl.element().product()).list.first()
    work = work.join(rates, on="device", how="left", maintain_order="left")
    work = work.with_columns(left_ns=pl.col("dur_ns") * pl.col("taken") / all_of + passes_ns).drop_nulls("left_ns")
    of_window = [pl.col(name).sum().over("device", "sizes") for name in ("left_ns", "dur_ns")]
    return work.filter(of_window[0] <= _WON * of_window[1])


def _whole(work: on_gpu.Work, name: str, function: str = "", *, at_most: bool = False) -> Finding:
    """The finding of this name on windows that are computed whole, with the `size` of the largest."""
    saved = pl.col("dur_ns") - pl.min_horizontal("dur_ns", "left_ns").cast(pl.Int64)
    largest = max(work.rows.get_column("sizes").unique().to_list(), key=math.prod)
    size = " × ".join(f"{side:.0f}" for side in largest)
    return work.finding(name, saved=saved, at_most=at_most, size=size, function=function)


# Convolutions and recurrent layers in whose place others are quicker: those of cuDNN, and transforms.

#: What PyTorch runs in place of cuDNN: products of copied rows of pixels, image by image, and networks step by step.
_IN_ITS_PLACE: Final = r"^aten::(?:_slow_conv2d_forward|lstm|gru|rnn_tanh|rnn_relu)$"
_OF_A_LAYER: Final = 8  # operations of a layer that cuDNN does in a few


@Rule
def cudnn_off(report: Report) -> Findings:
    """At most one finding per device, where nothing runs by cuDNN, and layers do that it has kernels for."""
    every, name = on_host.operators(report), pl.col("name")
    if every.filter(name.str.contains("^aten::(?:_?cudnn_(?:convolution|batch_norm|rnn)|_?miopen_)")).height:
        return
    # that cuDNN takes, and is quick with, on any GPU
    typed = pl.col("input_types").cast(pl.String).str.contains(r'^\["(?:float|c10::Half)"').fill_null(value=False)
    own = every.filter(name.str.contains(_IN_ITS_PLACE) & typed).select(at="row", inner="name")
    layers = on_host.working(report).filter((pl.col("launches") >= _OF_A_LAYER) & ~name.str.ends_with("_backward"))
    layers = nearest(own, layers.sort("row"), ("at", "row")).filter(pl.col("at") < pl.col("stop")).unique("row")
    which = " and ".join(sorted(layers.get_column("name").str.strip_prefix("aten::").unique()))
    inside = on_host.within(report, on_host.with_gradients(report, layers))
    yield from on_host.on_time(report, "cudnn-off", inside, partial(_by_cudnn, inside=inside), which=which)


def _by_cudnn(report: Report, inside: on_host.Within) -> Mending:
    """Each layer is one launch, forward and backward, which takes a part of the time of its kernels."""
    # what is left of the kernels: no rows are copied, products are of all images or steps, float32 ones are in TF32
    left = on_gpu.part("dur_ns", 0.25).sum().over("span")
    groups = on_host.by_span(report, inside).select("row", "dur_ns", group="span", kept=pl.lit(1), merged_ns=left)
    return on_gpu.merged(groups.sort("group"))._replace(calls=inside.mending.calls, host=inside.mending.host)


# Convolutions of so many taps that transforms (FFT) do the same with far less arithmetic.

_TAPS: Final = 512  # the least number of taps that is told of


@Rule
def long_convolution(report: Report) -> Findings:
    """At most one finding per device on convolutions by channel whose kernels have very many taps in one dimension."""
    if not names_inputs(report):
        return
    group = (pl.col("group") == "convolutions").fill_null(value=False)
    every = operations_with_roofs(report).filter(group, ~pl.col("op").str.contains("transpose"))
    later, shapes = pl.col("op").str.ends_with("_backward"), pl.col("input_shapes")  # which is given the gradient first
    images, weights = (pl.when(later).then(sides(shapes, at + 1)).otherwise(sides(shapes, at)).list for at in (0, 1))
    padded = [(images.get(at, null_on_oob=True) + weights.get(at, null_on_oob=True) - 1).fill_null(1) for at in (2, 3)]
    batch, channels, results = (of.get(at, null_on_oob=True) for of, at in ((images, 0), (images, 1), (weights, 0)))
    rows = batch * channels + results + batch * results
    padded_bytes = 4 * rows * padded[0] * padded[1]
    taps, every_tap = weights.slice(2).list.max(), weights.slice(2).list.eval(pl.element().product()).list.first()
    # three transforms, and a product of these, read or write so many times what they are given, padded, and take so
    # long at least, in a dozen kernels; by a stride they are not fewer; backward they are twice as many
    passes = 16 * (1 + later.cast(pl.Int64))
    least_ns = passes * padded_bytes * pl.col("dram_ns") / pl.col("bytes") + 60_000
    own = every.with_columns(taps=taps, left=least_ns / pl.col("took_ns")).filter(pl.col("left") <= _WON)
    # by channel, in one dimension
    own = own.filter(weights.get(1, null_on_oob=True) == 1, every_tap == taps, pl.col("taps") >= _TAPS)
    for work in on_gpu.works(report, own):
        saved = on_gpu.part("dur_ns", 1 - pl.col("left"))
        yield work.finding("long-convolution", taps=work.rows.get_column("taps").max(), saved=saved)


# Transforms of real values, brought to complex ones first, of which half says the same as the other half.

_FFT: Final = on_gpu.FAMILY == "fft"
_WIDENS: Final = pl.col("name").cast(pl.String).str.contains(r"^cupy_copy__float\d+_complex\d+$")
#: What takes the real part of the transform back.
_TAKES_REAL: Final = r"\bifft[2n]?\(.*\)\.real\b"


@on_gpu.choosing(_FFT, 0.1, CUPY)
def real_transforms(transforms: on_gpu.Work) -> Finding | None:
    """One finding per device on transforms of CuPy that begin with a copy of real values as complex ones."""
    report = transforms.report
    lines = on_gpu.with_decoded(on_gpu.stream_lines(report, transforms.device.device), transforms=_FFT)
    lines = lines.with_columns(
        widens=_WIDENS & pl.col("transforms").shift(-1).over("line"),
        run=(pl.col("transforms") & ~pl.col("transforms").shift(1, fill_value=False)).cum_sum(),
        complex=pl.col("name").cast(pl.String).str.contains("complex"),
    )
    copies = lines.filter("widens")
    if copies.is_empty():
        return None
    halves = lines.filter("transforms", (pl.col("run") - 1).is_in(copies.get_column("run").implode()))
    there_and_back = lines.get_column("run").max() == 2 * copies.height
    if there_and_back and source_lines(report).get_column("text").cast(pl.String).str.contains(_TAKES_REAL).any():
        halves = lines.filter(pl.col("transforms") | pl.col("complex"), ~pl.col("widens"))
    saved = halves.select("row", saved_ns=on_gpu.part("exclusive_ns", 0.5))
    return transforms._replace(rows=pl.concat([copies, halves])).finding(
        "real-transforms",
        transforms.most,
        at_stake_ns=total(copies, "exclusive_ns") + total(saved, "saved_ns"),
        mending=on_gpu.without(copies)._replace(shorter=saved),
        copies=copies.height,
    )


# Convolutions that are written as a copy of their windows and a product.

_UNFOLDS: Final = "aten::im2col"
_LARGEST: Final = 16  # the side of a window: of larger ones transforms, or products, may be quicker
#: What may copy the windows again, in another order or type, before they are multiplied.
_ORDERS: Final = ("aten::contiguous", "aten::clone", "aten::reshape", "aten::flatten", "aten::to")
#: What may add one value to all of a window, for which the weights' sum has a convolution of 1 × 1, or their centre.
_SHIFTS: Final = r"^aten::(?:add|sub)_?$"


@Rule
def unfolded_convolutions(report: Report) -> Findings:
    """One finding per device on windows of images that are copied, and only multiplied by weights of their length."""
    every = _on_windows(report)
    unfolds, added = every.filter(name=_UNFOLDS), every.filter(pl.col("name").str.contains(_SHIFTS))
    whole, gone, sums = (outermost(on_host.with_gradients(report, spans)) for spans in (every, unfolds, added))
    for work in on_host.works_within(report, whole):
        change = on_host.within(report, sums).mending
        own = on_gpu.decoded_as(work.rows, on_gpu.FAMILY == "copy") | work.rows["row"].is_in(change.gone.implode())
        copies = work._replace(rows=work.rows.filter(own))
        change = on_gpu.without(copies.rows).with_all_of(change).with_all_of(on_host.within(report, gone).mending)
        name = f"unfolded-convolution{': added' * bool(added.height)}"
        yield copies.finding(name, mending=change, where=on_host.site_of(report, unfolds))


def _on_windows(report: Report) -> pl.DataFrame:
    """The operators that copy windows, and that take these, where all of the latter multiply them by weights."""
    every = on_host.working_forward(report)
    if every.filter(name=_UNFOLDS).is_empty() or not on_host.names_most(report):
        return every.clear()
    numbers = pl.col("input_values").cast(pl.String).str.extract_all(r"\d+").cast(pl.List(pl.Float64))
    windows = pl.lit(1.0)
    for axis in range(2):
        # of the kernel, its dilation, the padding and the stride
        kernel, apart, pad, step = (numbers.list.get(2 * at + axis, null_on_oob=True) for at in range(4))
        windows *= ((side(0, axis - 2) + 2 * pad - apart * (kernel - 1) - 1) / step).floor() + 1
    high, wide = (numbers.list.get(at, null_on_oob=True) for at in range(2))
    length = side(0, -3) * high * wide
    images = elements() / (side(0, -3) * side(0, -2) * side(0, -1))
    own = every.filter(pl.max_horizontal(high, wide) <= _LARGEST, name=_UNFOLDS)
    own = own.select("row", *THREAD, length=length, windows=windows, size=images * length * windows, of=high * wide)
    # what is not PyTorch's may do anything with them
    others = on_host.each_input(on_host.forward(report).filter(~pl.col("name").str.starts_with("aten::")))
    own = own.join(others, on="size", how="anti")
    alike = [*THREAD, "size"]
    given = on_host.each_input(every)
    taken = given.select("row", *alike).join(own.drop("row").unique(), on=alike)
    matrices = pl.col("sides").list.len() == len(("inputs", "outputs"))
    weights = given.filter(matrices, ~pl.col("size").is_in(own["size"].implode()))
    weights = taken.join(weights.select("row", "sides"), on="row").filter(
        pl.col("sides").list.contains(pl.col("length")) & ~pl.col("sides").list.contains(pl.col("windows"))
    )
    # with what has an element for each window of a channel
    least = pl.min_horizontal(elements(), elements(1))
    adds = every.select("row", "name", added=pl.when(pl.col("name").str.contains(_SHIFTS)).then(least))
    named = adds.filter(pl.col("row").is_in(taken["row"].implode()))
    multiplies = pl.col("name").str.contains(on_host.MULTIPLIES) & pl.col("row").is_in(weights["row"].implode())
    taken = taken.join(named, on="row").with_columns(multiplies=multiplies)
    folds = (pl.col("added") * pl.col("of") == pl.col("size")).fill_null(value=False)
    told = (pl.col("multiplies") | pl.col("name").is_in(_ORDERS) | folds).all() & pl.col("multiplies").any()
    taken = taken.filter(told.over(alike))
    rows = [taken["row"], own.join(taken, on=alike, how="semi")["row"]]
    return every.filter(pl.col("row").is_in(pl.concat(rows).implode()))
