"""What operators would take in another configuration: GPU, batch size, sequence length, type of arithmetic."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import columns, device_limits, errors, units
from kanalyze.analyses.device._operations import WITH_HOST
from kanalyze.analyses.operators.fusion import LISTED, bytes_of, parsed
from kanalyze.analyses.work._models import PRODUCTS, weight_place
from kanalyze.analyses.work.work import WORK, calls_with_work, gpu_called, operations_by_call, with_models, with_roofs
from kanalyze.report import Report

#: Types that a program can compute in, and what a trace calls tensors of them; the products of fp8 alone are of that.
DTYPES: Final = {
    "fp64": "double",
    "fp32": "float",
    "tf32": "float",
    "bf16": "c10::BFloat16",
    "fp16": "c10::Half",
    "fp8": "c10::Float8_e4m3fn",
}
_SIZE: Final = re.compile(r"(?:([1-9]\d{0,11})=)?([1-9]\d{0,11})")


class Size(NamedTuple):
    """A batch size or sequence length as it was recorded, None for what shapes tell, and as it would be."""

    now: int | None
    then: int

    @classmethod
    def of(cls, text: object) -> "Size":
        """The size that a text such as ``2`` or ``8=2`` names; a ValueError for others."""
        if (parts := _SIZE.fullmatch(str(text).strip())) is None:
            raise ValueError(f"{text!r} is not a size, such as 2 or 8=2")
        return cls(int(parts[1]) if parts[1] else None, int(parts[2]))

    @property
    def ratio(self) -> float:
        return self.then / (self.now or self.then)

    def __str__(self) -> str:
        return f"{self.then}" if self.now is None else f"{self.now}={self.then}"


class Configuration(NamedTuple):
    """What is another one than recorded; None for what is not."""

    gpu: str | None = None  # the driver's name of another GPU
    batch: Size | None = None
    length: Size | None = None
    dtype: str | None = None  # of :data:`DTYPES`

    @classmethod
    def of(cls, gpu: str | None, batch: object, length: object, dtype: str | None) -> "Configuration":
        """The configuration of options; an UnknownNameError for an unknown GPU, a ValueError for no size or type."""
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype is of {', '.join(DTYPES)}, not {dtype!r}")
        of_batch, of_length = (None if one is None else Size.of(one) for one in (batch, length))
        return cls(None if gpu is None else gpu_called(gpu), of_batch, of_length, dtype)

    def options(self) -> list[str]:
        """As options of the command."""
        gpu = None if self.gpu is None else f"'{self.gpu}'"
        named = {"gpu": gpu, "batch": self.batch, "length": self.length, "dtype": self.dtype}
        same = [one for one in (self.batch, self.length) if one and one.now == one.then]
        return [f"--{name} {value}" for name, value in named.items() if value is not None and value not in same]

    def recorded(self, asked: "Configuration") -> str:
        """Remark on the sizes of this one that were `asked` for, where it is the recorded one."""
        sizes = (("batch", asked.batch, self.batch), ("length", asked.length, self.length))
        same = [f"{name} is {one.now}" for name, wanted, one in sizes if wanted and one]
        return f"The recorded {' and the '.join(same)}: nothing changes." if same and not self.options() else ""


#: The configuration as it was recorded.
SAME: Final = Configuration()

# Batch size and sequence length stand in shapes by themselves and in products with other dimensions: of activations
# [batch, length, width], [batch, heads, length, width], [batch·length, width], [batch·heads, length, width].

_MATRIX: Final = 2  # dimensions; tensors with more are activations
_AT_LENGTH: Final = (1, 2)  # [batch, length, …] or [batch, heads, length, …]

_ROUNDS: Final = 1e-12  # ratios are so far from whole ones

#: The largest size that so much of the time of operators with shapes has before all others is the batch.
_MOST: Final = 0.9
#: No size is the batch if less than so much of that time changes with it. The rest may be of weights (an optimizer).
_LEAST: Final = 0.1

#: Operators on lists of weights, and of their gradients.
_OF_WEIGHTS: Final = ("aten::_foreach_", "aten::_fused_")

_Shape = tuple[int, ...]


class _Call(NamedTuple):
    """Calls of an operator with the same inputs: their time, and the shapes of tensors without a product's weights."""

    name: str
    inputs: list[Any]
    ns: int

    @property
    def shapes(self) -> list[_Shape]:
        weight = weight_place(self.name)
        return [one for at, dims in enumerate(self.inputs) if at != weight for one in _shapes_in(dims)]

    @property
    def weights(self) -> list[_Shape]:
        weight = weight_place(self.name)
        return [one for at, dims in enumerate(self.inputs) if at == weight for one in _shapes_in(dims)]


def _shapes_in(dims: Any) -> list[_Shape]:  # noqa: ANN401 - what a file says
    """The shapes of an input: of a tensor, or of each tensor of a list."""
    if not isinstance(dims, list):
        return []
    if all(type(one) is int for one in dims):
        return [tuple(dims)] if min(dims, default=0) > 0 else []
    return [shape for one in dims for shape in _shapes_in(one)]


def _weighted_calls(report: Report) -> list[_Call]:
    sums = calls_with_work(report).drop_nulls("input_shapes").group_by("name", "input_shapes")
    rows = sums.agg(pl.col("exclusive_ns").sum()).sort("exclusive_ns", "name", "input_shapes").iter_rows()
    return [_Call(name or "", parsed(shapes), max(ns, 1)) for name, shapes, ns in rows]


def _batch_of(calls: list[_Call]) -> int | None:
    """The size of a batch: the first dimension of activations, or what most of these are multiples of; of matrices.

    Where a batch is not of both, or changes little, and the most frequent first dimension of all, which is none of a
    product's weight and no width, changes more than twice as much: that, or what makes it up with the length. Weights
    of an optimizer tell nothing.
    """
    activations, matrices, every = Counter[int](), Counter[int](), Counter[int]()
    widths = {size for call in calls for shape in call.weights for size in shape}
    widths |= {shape[-1] for call in calls for shape in call.shapes if len(shape) > _MATRIX}
    for call in calls:
        if call.name.startswith(_OF_WEIGHTS):
            continue
        first = next((one for one in call.shapes if len(one) >= _MATRIX), ())
        every.update(dict.fromkeys({shape[0] for shape in call.shapes if shape} - widths, call.ns))
        if len(first) > _MATRIX:
            activations[first[0]] += call.ns
        elif first and call.name not in PRODUCTS:
            matrices[first[0]] += call.ns
    size, other = _common(activations), _common(matrices)
    if not size or not other or not every:
        return size or other
    frequent, share = every.most_common(1)[0][0], _changed_share(calls, size)
    if (size == other and share >= _LEAST) or _changed_share(calls, frequent) <= 2 * share:
        return size
    shapes = (shape for call in reversed(calls) for shape in call.shapes if len(shape) > _MATRIX)  # the longest first
    return next((shape[0] for shape in shapes if shape[0] * shape[1] == frequent), frequent)


def _common(votes: Counter[int]) -> int | None:
    """The largest size that most of these are multiples of; the most frequent if none is."""
    whole = votes.total()
    shares = {size: sum(ns for one, ns in votes.items() if one % size == 0) / whole for size in votes if size}
    enough = [size for size, share in shares.items() if share >= _MOST]
    return max(enough) if enough else max(shares, key=lambda size: (shares[size], size), default=None)


def _changed_share(calls: list[_Call], batch: int) -> float:
    """The part of the time of calls whose shapes change with a batch of that size."""
    sizes = _Sizes.of(calls, Size(batch, 2 * batch), None)
    return sum(call.ns for call in calls if sizes.inputs(call) != call.inputs) / sum(call.ns for call in calls)


def _length_of(calls: Iterable[_Call], batch: int) -> int | None:
    """The length of sequences: the second dimension of most [batch, length, width]."""
    votes: Counter[int] = Counter()
    for call in calls:
        for shape in call.shapes:
            if len(shape) == _MATRIX + 1 and shape[0] == batch:
                votes[shape[1]] += call.ns
    return votes.most_common(1)[0][0] if votes else None


_RECORD: Final = "Profile with record_shapes=True."
_GIVEN: Final = f"Give both, as in `{{}}`. {_RECORD}"
_OTHER: Final = "None has a dimension of {}, which was given: leave it out, or look at `kanalyze show roofs`."
_TRIFLE: Final = "Calls that change with {} hold {} of the time: give the size of others (`kanalyze show roofs`)."


def resolved(report: Report, asked: Configuration) -> Configuration:
    """The configuration with the batch size and the sequence length that were recorded.

    Raises:
        CannotTellError: They are not given, and no shapes tell them; or no types of tensors were recorded.
    """
    path = report.meta.path
    if asked.dtype is not None and not _main_type(calls_with_work(report)):
        raise errors.CannotTellError.without_size(path, "type", "types", _RECORD)
    if asked.batch is None and asked.length is None:
        return asked
    calls = _weighted_calls(report)
    batch = asked.batch or Size(None, 0)
    batch = batch._replace(now=batch.now or _batch_of(calls))
    if batch.now is None:
        raise errors.CannotTellError.without_size(path, "batch size", "shapes", _GIVEN.format("--batch 8=2"))
    length = asked.length or Size(None, 0)
    length = length._replace(now=length.now or _length_of(calls, batch.now))
    if asked.length is not None and length.now is None:
        raise errors.CannotTellError.without_size(path, "sequence length", "shapes", _GIVEN.format("--length 1024=512"))
    # the size that stays tells what dimensions are
    sizes = [one._replace(then=one.then or one.now or 1) for one in (batch, length)]
    dimensions = {one for call in calls for shape in call.shapes for one in shape}
    if dimensions and asked.batch is not None and (share := _changed_share(calls, batch.now)) < _LEAST:
        remedy = _TRIFLE.format(batch.now, units.percent(share))
        raise errors.CannotTellError.without_size(path, "batch size", "shapes", remedy)
    if dimensions and asked.length is not None and length.now not in dimensions:
        raise errors.CannotTellError.without_size(path, "sequence length", "shapes", _OTHER.format(length.now))
    return asked._replace(batch=sizes[0], length=sizes[1] if length.now else None)


class _Sizes(NamedTuple):
    """Batch and length, and by how much dimensions change that are the batch, or a product with what follows it."""

    batch: Size
    length: Size | None
    rows: dict[int, float]

    @classmethod
    def of(cls, calls: Iterable[_Call], batch: Size, length: Size | None) -> "_Sizes":
        rows = {batch.now or 1: batch.ratio}
        first, every = cls(batch, length, {**rows}), [shape for call in calls for shape in call.shapes]
        shapes = dict.fromkeys(shape for shape in every if len(shape) > _MATRIX)
        thens = {shape: first.then(shape) for shape in shapes if shape[0] == batch.now}
        widths = {shape[-1] for shape in shapes}  # a product of three and more that is one of these is one by chance
        for end in range(2, max(map(len, thens), default=0) + 1):
            for shape, then in thens.items():
                product = math.prod(shape[:end])
                if end == _MATRIX or product not in widths:
                    rows.setdefault(product, math.prod(then[:end]) / product)
        return cls(batch, length, rows)

    def then(self, shape: _Shape) -> list[int]:
        """The shape with other sizes: of activations and what is broadcast to them, of matrices the one with rows."""
        now, ratio = (self.length.now, self.length.ratio) if self.length else (None, 1.0)
        factors, first = [1.0] * len(shape), next((at for at, one in enumerate(shape) if one in self.rows), None)
        if len(shape) > _MATRIX and (first == 0 or shape[0] == 1):
            factors = [ratio if one == now and at in _AT_LENGTH else 1.0 for at, one in enumerate(shape)]
            if len(shape) == _MATRIX + 1 and shape[0] == self.batch.now:
                factors[-1] = 1.0  # [batch, length, width], of any width
            elif shape[-2:] == (now, now):
                factors[-1] = ratio  # scores
            factors[0] = self.rows[shape[0]] if first == 0 else 1.0
        elif len(shape) <= _MATRIX and first is not None:
            factors[first] = self.rows[shape[first]]
            factors[-1] *= ratio if shape == (self.batch.now, now) else 1.0
        elif shape == (now,):  # positions
            factors = [ratio]
        return [
            math.ceil(min(one, columns.LARGEST) * factor * (1 - _ROUNDS))
            for one, factor in zip(shape, factors, strict=True)
        ]

    def inputs(self, call: _Call) -> list[Any]:
        """The shapes of an operator's inputs with other sizes: weights of products stay."""
        weight, places = weight_place(call.name), PRODUCTS.get(call.name, (0, 0))

        def then(dims: Any) -> Any:  # noqa: ANN401 - what a file says
            whole = isinstance(dims, list) and all(type(one) is int for one in dims)
            return self.then(tuple(dims)) if whole else [then(one) for one in dims] if isinstance(dims, list) else dims

        changed = [dims if at == weight else then(dims) for at, dims in enumerate(call.inputs)]
        first, second = (_shapes_in(call.inputs[at]) if max(places) < len(changed) else [] for at in places)
        if places[1] and len(first) == len(second) == 1 and len(second[0]) == _MATRIX:
            factor = changed[places[0]]
            if factor and factor[0] != first[0][0]:  # rows change, and nothing else
                factor[-1], changed[places[1]] = first[0][-1], [*second[0]]
        return changed


def _main_type(calls: pl.DataFrame) -> str:
    """The type of tensors that products are of, by time; empty where no types were recorded."""
    votes: Counter[str] = Counter()
    for types, ns in calls.filter(pl.col("flop") > 0).select("input_types", "exclusive_ns").iter_rows():
        votes.update(dict.fromkeys({*map(str, parsed(types))} & {*DTYPES.values()}, ns))
    return votes.most_common(1)[0][0] if votes else ""


#: Casts, of which none is left between tensors of one type.
_CASTS: Final = ("aten::copy_", "aten::_to_copy")

#: What is told of the inputs of calls in another configuration: shapes and types, whether they are others, and what
#: a kernel without a model takes at most, a part of its time.
_THEN: Final = {"shapes": pl.String, "types": pl.String, "retyped": pl.Boolean, "most": pl.Float64}


def _inputs_then(report: Report, asked: Configuration, calls: pl.DataFrame) -> pl.DataFrame:
    """The name, inputs and :data:`_THEN` of each kind of call; most is 0 for casts that there are no more."""
    sizes = _Sizes.of(_weighted_calls(report), asked.batch, asked.length) if asked.batch else None
    main, dtype, rows = _main_type(calls), DTYPES.get(asked.dtype or "", ""), []
    wider = (bytes_of(dtype) or 1) / (bytes_of(main) or 1) if dtype and main else 1.0
    larger = math.prod(one.ratio for one in (asked.batch, asked.length) if one)
    distinct = calls.select(["name", "input_shapes", "input_types"]).unique(maintain_order=True)
    for name, shapes, types in distinct.iter_rows():
        inputs, kinds = parsed(shapes), parsed(types)
        resized = sizes.inputs(_Call(name or "", inputs, 0)) if sizes else inputs
        everything = asked.dtype != "fp8"
        applies = bool(dtype) and main in kinds and (everything or name in PRODUCTS)
        retyped = [dtype if applies and one == main else one for one in kinds]
        before, after = (len({*map(str, one)} & {*DTYPES.values()}) for one in (kinds, retyped))
        most = larger if shapes is None or resized != inputs else 1.0
        most *= wider if applies or (everything and (not kinds or LISTED in kinds)) else 1.0
        most = 0.0 if name in _CASTS and after < before else most
        rows.append((json.dumps(resized) if shapes else None, json.dumps(retyped) if types else None, applies, most))
    return distinct.hstack(pl.DataFrame(rows, schema=_THEN, orient="row"))


def _calls_then(report: Report, asked: Configuration, calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with the work that they would have, type_now, and most of :data:`_THEN`."""
    inputs, keys = _inputs_then(report, asked, calls), ["name", "input_shapes", "input_types"]
    other = calls.join(inputs, on=keys, how="left", nulls_equal=True, maintain_order="left")
    other = other.with_columns(input_shapes="shapes", input_types="types", type_now="type", roof_ns_now="roof_ns")
    in_full = pl.lit(asked.dtype == "fp32") & (pl.col("group") == "attention")  # runs on tensor cores, too
    kind = pl.when(in_full).then(pl.lit("tf32")).otherwise(pl.lit(asked.dtype, dtype=pl.String))
    return with_models(other.drop(*WORK)).with_columns(
        type=pl.when((pl.col("flop") > 0) & pl.col("retyped")).then(kind).otherwise("type_now")
    )


#: What attention reaches of its roof: fused kernels of 16-bit types, and those of float32 in TF32. Measured on an H100.
_ATTENTION_REACHES: Final = {"bf16": 0.23, "tf32": 0.056}


def factors(report: Report, asked: Configuration) -> pl.DataFrame:
    """By how much each operation would take longer or shorter in another configuration, usually and at the bounds.

    Usually a kernel's time changes as its work does, but for some microseconds; on another GPU the part that its roof
    needs changes as the roof does, and the rest, in which it waits for latencies, stays. At the other bound all of it
    changes. A kernel without a model changes as the whole does, or not at all, usually by half of that; one whose
    shapes are known and stay does not. Copies within a device and memsets change with the bandwidth.

    The configuration is :func:`resolved`. Columns: row (of the table of operations), usual, low, high. Copies between
    host and device have no row.

    Raises:
        CannotTellError: The GPU of the report has no known bandwidth, or the other one no units for a type.
    """
    calls, devices = calls_with_work(report), report.devices
    moved, slower = devices, pl.lit(1.0)
    if asked.gpu is not None:
        there = pl.lit(device_limits.memory_bandwidth_bytes_per_s(asked.gpu))
        slower = pl.col("memory_bandwidth_bytes_per_s") / there
        unknown = pl.lit(None, dtype=pl.Int64)
        moved = devices.with_columns(name=pl.lit(asked.gpu), memory_bandwidth_bytes_per_s=there, l2_bytes=unknown)
    speeds = devices.select("device", slower=slower)
    work = operations_by_call(report).join(speeds, on="device", how="left", maintain_order="left")
    if work.get_column("slower").has_nulls():
        raise errors.CannotTellError.without_bandwidth(report.meta.path)
    then, uncached = _calls_then(report, asked, calls), devices.with_columns(l2_bytes=pl.lit(0, dtype=pl.Int64))
    runs = then if asked.gpu is None else _runs_on(then, asked.gpu, report)
    sides = {"now": (calls, uncached), "then": (then, uncached), "here": (then, devices), "there": (runs, moved)}
    roofs = [with_roofs(rows, on).select(pl.col("roof_ns").clip(1).alias(name)) for name, (rows, on) in sides.items()]
    now_type, then_type = (pl.col(side).replace("fp16", "bf16") for side in ("type_now", "type"))  # of one rate
    reaches = [
        one.replace_strict(_ATTENTION_REACHES, default=None, return_dtype=pl.Float64) for one in (now_type, then_type)
    ]
    reached = pl.when(pl.col("group") == "attention").then(reaches[0] / reaches[1]).fill_null(1.0)
    # so much nearer to their roof come products of one type (H100: 56 % in TF32, 73 % in bfloat16 and float32)
    apart = pl.when(now_type.ne_missing(then_type)).then(1.3).otherwise(1.0)
    of_calls = then.select("device", "call", "most", "roof_ns_now", reached=reached, apart=apart, took_ns="dur_ns")
    each = work.join(
        pl.concat([of_calls, *roofs], how="horizontal"), on=["device", "call"], how="left", maintain_order="left"
    )
    # what a kernel takes whatever its work: its launch on the device, and its last wave
    return _between(each, fixed_ns=0 if asked == Configuration(asked.gpu) else 2000)


def _runs_on(calls: pl.DataFrame, gpu: str, report: Report) -> pl.DataFrame:
    """The calls as a `gpu` runs them, TF32 as FP32 where it has none; refused where it lacks another type."""
    lacking = [kind for kind in (*DTYPES, "int8") if not getattr(device_limits.peaks_of(gpu), kind, 0)]
    runs = calls.with_columns(pl.col("type").replace("tf32", "fp32") if "tf32" in lacking else "type")
    for kind in runs.filter((pl.col("group") != "memory") & pl.col("type").is_in(lacking)).get_column("type").head(1):
        raise errors.CannotTellError.without_peak(report.meta.path, gpu, kind)
    return runs


def _between(each: pl.DataFrame, fixed_ns: int) -> pl.DataFrame:
    """The factors of operations: with slower, and those of calls with took_ns, most, reached, apart, and roofs."""
    took = pl.col("took_ns").clip(lower_bound=1)
    share = (pl.col("roof_ns_now") / took).clip(upper_bound=1.0)
    scale, gpu = pl.col("then") / pl.col("now") * pl.col("reached"), pl.col("there") / pl.col("here")
    fixed = pl.min_horizontal(1 - share, fixed_ns / took)
    usual = fixed + scale * (share * gpu + 1 - share - fixed)
    ends = pl.col("most").fill_null(1.0) * pl.col("slower")
    kernel = pl.col("bucket") == "kernel"
    known = kernel & usual.is_not_null()
    inside = ~pl.col("detail").cast(pl.String).str.contains(WITH_HOST).fill_null(value=False)
    sides = each.filter(kernel | (pl.col("bucket").is_in(["memcpy", "memset"]) & inside)).with_columns(
        usual=pl.when(known).then(usual).when(kernel).then((1 + ends) / 2).otherwise("slower"),
        whole=pl.when(known).then(scale * gpu).otherwise(ends),
        part=pl.when(known).then(share * scale * gpu + 1 - share).when(kernel).then(1.0).otherwise("slower"),
    )
    every = ("usual", "whole", "part")
    spared = (pl.col("most") == 0).fill_null(value=False)
    apart, bounds = pl.col("apart").fill_null(1.0), {"usual": pl.col("usual")}
    bounds |= {"low": pl.min_horizontal(every) / apart, "high": pl.max_horizontal(every) * apart}
    return sides.select("row", **{name: pl.when(spared).then(0.0).otherwise(one) for name, one in bounds.items()})
