"""FLOPs and least bytes of operators, by the shapes, types and values of their inputs.

A product of A (m × k) and B (k × n) takes 2·m·n·k FLOPs, a fused multiply-add being two. Least bytes are those of each
tensor that must be read or written, once; what stays in registers or shared memory is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from kanalyze.analyses.operators.fusion import OVERWRITES, Tensor, inputs_of, is_elementwise, parsed, sizes_of
from kanalyze.columns import LARGEST
from kanalyze.decoder.fields import KernelName

#: How the work of an operator is known: from its formula, or at least so much, such as rows that an index chooses.
MODEL, BOUND = "model", "bound"


class Product(NamedTuple):
    """`batch` products of m × k and k × n, as one kernel computes them.

    Tiles lie on m, n and k in that order. BLAS stores matrices by columns, so that it computes the transposed result of
    row-major tensors: m is then the columns of the result.
    """

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.batch


class Pairs(NamedTuple):
    """Queries and keys of attention, the FLOPs of a pair over all heads, and which pairs a mask keeps.

    A query at i sees keys up to i of a causal mask; of one whose end is aligned, up to i + keys - queries.
    """

    queries: int
    keys: int
    flop: int
    causal: bool
    at_end: bool = False

    @property
    def kept(self) -> int:
        """Pairs that the mask keeps."""
        if not self.causal:
            return self.queries * self.keys
        queries, first = self.queries, 0
        if self.at_end:
            first = max(self.keys - queries, 0)
            queries = min(queries, self.keys)
        seen = min(queries, self.keys - first)
        return seen * (2 * first + seen + 1) // 2 + (queries - seen) * self.keys


class Work(NamedTuple):
    """What one call of an operator has to do.

    Attributes:
        flop: FLOPs of products, convolutions and attention; 0 for operators that their bytes bound.
        bytes: The least that it reads and writes.
        tiled: What one kernel computes in tiles, by which more is executed; None for others.
        known: :data:`MODEL` or :data:`BOUND`.
    """

    flop: int
    bytes: int
    tiled: Product | Pairs | None = None
    known: str = MODEL


class Call(NamedTuple):
    """A call of an operator.

    Attributes:
        name: The operator.
        inputs: The tensors of each input.
        values: The value of each input that is no tensor, as text; empty where they were not recorded, as in nsys.
        causal: Whether the kernel's name says that the mask is causal; None for names that do not tell.
        result: The shape of its result, where that is known by what takes it.
    """

    name: str
    inputs: list[list[Tensor]]
    values: list[str]
    causal: bool | None = None
    result: tuple[int, ...] = ()

    def tensor(self, place: int) -> Tensor | None:
        """The only tensor of an input; None if it is something else."""
        one = self.inputs[place] if place < len(self.inputs) else []
        return one[0] if len(one) == 1 else None

    def numbers(self, place: int) -> list[int] | None:
        """An input that is a list of integers, such as a stride."""
        return [int(one) for one in re.findall(r"-?\d{1,18}(?!\d)", self.value(place))] if self.value(place) else None

    def true(self, place: int) -> bool:
        """Whether an input is True, or the number of a mask's kind that is causal."""
        return self.value(place) in {"True", "1", "2"}

    def value(self, place: int) -> str:
        return self.values[place] if place < len(self.values) else ""


def _bytes(*tensors: Tensor | None) -> int:
    """The bytes of tensors as they lie in memory."""
    return sum(one.stored * one.element_bytes for one in tensors if one is not None)


def _read(call: Call) -> int:
    return _bytes(*(tensor for one in call.inputs for tensor in one))


# Products of matrices. Sources: the definitions of aten's native_functions.yaml.

#: Where the two factors stand among the inputs, by operator.
PRODUCTS: Final = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::matmul", "aten::_int_mm", "aten::_scaled_mm"), (0, 1)),
    **dict.fromkeys(("aten::_scaled_mm_v2", "aten::_scaled_grouped_mm_v2"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_", "aten::addbmm"), (1, 2)),
    **dict.fromkeys(("aten::mv", "aten::dot", "aten::vdot"), (0, 1)),
    **dict.fromkeys(("aten::addmv", "aten::addmv_", "aten::_addmm_activation"), (1, 2)),
    **dict.fromkeys(("aten::linear", "aten::_grouped_mm", "aten::_scaled_grouped_mm"), (0, 1)),
}

#: Bytes of each element of the result where it has another type than the factors: aten's out_dtype, by its number.
_OUT_BYTES: Final = {"5": 2, "6": 4, "15": 2}


def _product(call: Call) -> Work | None:
    first, second = (call.tensor(place) for place in PRODUCTS[call.name])
    if first is None or second is None or not first.shape:
        return None
    if "grouped_mm" in call.name:
        return _grouped(call, first, second)
    if not second.shape:
        return None
    b = second.shape[::-1] if call.name == "aten::linear" else second.shape
    k = first.shape[-1]
    m = first.shape[-2] if len(first.shape) > 1 else 1
    n = b[-1] if len(b) > 1 else 1
    batch = math.prod(first.shape[:-2])
    if len(b) == 2 and batch > 1:  # noqa: PLR2004 - a matrix, which all products share
        m, batch = m * batch, 1
    if (b[-2] if len(b) > 1 else b[0]) != k:
        return None
    added = _bytes(call.tensor(0)) if PRODUCTS[call.name] == (1, 2) and call.value(3) in {"0", "0."} else 0
    product = Product(n, m, k, batch) if len(b) > 1 else Product(m, n, k, batch)
    out = m * n * max(first.element_bytes, _OUT_BYTES.get(call.values[6] if len(call.values) > 6 else "", 0))  # noqa: PLR2004
    out *= 1 if call.name == "aten::addbmm" else batch  # which sums its products
    return Work(product.flop, _read(call) - added + out, product)


def _grouped(call: Call, first: Tensor, second: Tensor) -> Work | None:
    """Products of groups, whose sizes are not recorded, but their sum is: of rows, of columns, or of what is summed.

    Gradients of weights cut both matrices along what is summed, and have a result for each group.
    """
    a, b = first.shape[-2:], second.shape[-2:]
    if len(a) != len(b) or len(b) < 2 or a[1] != b[0]:  # noqa: PLR2004
        return None
    stacked = [one for one in (first, second) if len(one.shape) > 2]  # noqa: PLR2004
    batch = first.shape[0] if len(stacked) > 1 else 1
    ends = call.tensor(2) if call.name == "aten::_grouped_mm" else None
    results = ends.shape[0] if ends is not None and ends.shape and not stacked else batch
    # of stacked matrices, those of groups without rows are not read
    read = [first, second] if len(stacked) != 1 else [first if stacked == [second] else second]
    moved = _bytes(*read) + a[0] * b[1] * results * first.element_bytes
    return Work(Product(a[0], b[1], a[1], batch).flop, moved, None, BOUND)


# Convolutions, as products of N·P·Q × (C/groups)·R·S and (C/groups)·R·S × K. Source: Chetlur et al., cuDNN, 2014.


class _Convolution(NamedTuple):
    """Places of a convolution's inputs; gradient is that of the result, where it is backward."""

    data: int
    weight: int
    padding: int
    stride: int
    dilation: int
    groups: int | None
    gradient: int | None = None
    mask: int | None = None
    transposed: int | bool = False


_CONVOLUTIONS: Final = {
    "aten::cudnn_convolution": _Convolution(0, 1, 2, 3, 4, 5),
    "aten::cudnn_convolution_relu": _Convolution(0, 1, 4, 3, 5, 6),
    "aten::cudnn_convolution_add_relu": _Convolution(0, 1, 6, 5, 7, 8),
    "aten::cudnn_convolution_transpose": _Convolution(0, 1, 2, 4, 5, 6, transposed=True),
    "aten::miopen_convolution": _Convolution(0, 1, 3, 4, 5, 6),
    "aten::miopen_depthwise_convolution": _Convolution(0, 1, 3, 4, 5, 6),
    "aten::_conv_depthwise2d": _Convolution(0, 1, 5, 4, 6, None),
    "aten::conv_depthwise3d": _Convolution(0, 1, 5, 4, 6, None),
    "aten::_slow_conv2d_forward": _Convolution(0, 1, 5, 4, 99, None),
    "aten::slow_conv3d_forward": _Convolution(0, 1, 5, 4, 99, None),
    "aten::slow_conv_dilated2d": _Convolution(0, 1, 5, 4, 6, None),
    "aten::convolution": _Convolution(0, 1, 4, 3, 5, 8, transposed=6),
    "aten::_convolution": _Convolution(0, 1, 4, 3, 5, 8, transposed=6),
    "aten::convolution_backward": _Convolution(1, 2, 5, 4, 6, 9, gradient=0, mask=10, transposed=7),
}


def weight_place(name: str) -> int | None:
    """Where the weights of a convolution stand among its inputs; None for other operators."""
    return _CONVOLUTIONS[name].weight if name in _CONVOLUTIONS else None


def _convolution(call: Call) -> Work | None:
    places = _CONVOLUTIONS[call.name]
    data, weight = call.tensor(places.data), call.tensor(places.weight)
    if data is None or weight is None or len(data.shape) != len(weight.shape) or len(data.shape) < 3:  # noqa: PLR2004
        return None
    turned = places.transposed if isinstance(places.transposed, bool) else call.true(places.transposed)
    gradient = None if places.gradient is None else call.tensor(places.gradient)
    if gradient is not None and len(gradient.shape) != len(data.shape):
        return None
    fits = len(call.result) == len(data.shape) and call.result[:2] == (data.shape[0], weight.shape[0])
    if gradient is None and not call.values and not fits:
        return None  # by stride and padding the result could be of any size
    result = _result(call, places, data, weight, turned=turned) if gradient is None else gradient
    over = data if turned else result
    if over is None:
        return None
    spatial, filters = math.prod(over.shape[2:]), math.prod(weight.shape[2:])
    # the weights are K × C/groups × R × S; of a transposed one C × K/groups × R × S
    product = Product(over.shape[0] * spatial, weight.shape[0], weight.shape[1] * filters)
    # backward as many multiplications for each gradient that is wanted: the data's takes the weights and is as large as
    # the data, the weights' the other way round
    wanted = re.findall("True|False", call.value(places.mask or 0))[:2].count("True")
    times = 1 if gradient is None else max(wanted, 1)
    single = gradient is None and not turned and weight.shape[1] == data.shape[1]
    certainty = MODEL if call.values or call.result else BOUND
    moved = _bytes(result) + times * _bytes(data, weight)
    return Work(times * product.flop, moved, product if single else None, certainty)


def _result(call: Call, places: _Convolution, data: Tensor, weight: Tensor, *, turned: bool) -> Tensor | None:
    """The result of a forward convolution; of a transposed one without what its output padding adds."""
    if not call.values:
        return Tensor(call.result, math.prod(call.result), data.element_bytes)
    dims = len(data.shape) - 2
    padding, stride, dilation = (
        call.numbers(place) or [default] * dims
        for place, default in ((places.padding, 0), (places.stride, 1), (places.dilation, 1))
    )
    if not dims or not len(padding) == len(stride) == len(dilation) == dims or min(stride) < 1:
        return None
    spatial = [
        (length - 1) * step - 2 * pad + spread * (width - 1) + 1
        if turned
        else (length + 2 * pad - spread * (width - 1) - 1) // step + 1
        for length, width, pad, step, spread in zip(
            data.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True
        )
    ]
    shape = (data.shape[0], weight.shape[1 if turned else 0], *spatial)
    return Tensor(shape, math.prod(shape), data.element_bytes) if min(spatial) > 0 else None


#: A place that no operator has.
_NOWHERE: Final = 99

# Attention: two products forward, five backward (Dao, FlashAttention-2, 2023, section 3); of a causal mask the pairs
# that it keeps alone count.


class _Attention(NamedTuple):
    """Place of the queries (keys and values follow), whether heads come before positions, place of the causal flag.

    What of a call makes it another one, of unknown pairs: places of tensors of lengths, and of the sides of a window.
    """

    query: int
    heads_first: bool
    causal: int
    backward: bool = False
    lengths: int = _NOWHERE
    window: int = _NOWHERE
    at_end: bool = False


_ATTENTIONS: Final = {
    "aten::_flash_attention_forward": _Attention(0, heads_first=False, causal=8, lengths=3, window=11),
    "aten::_flash_attention_backward": _Attention(1, False, 11, True, lengths=6, window=15),  # noqa: FBT003
    "aten::_efficient_attention_forward": _Attention(0, heads_first=False, causal=9, lengths=4),
    "aten::_efficient_attention_backward": _Attention(1, False, 14, True, lengths=6),  # noqa: FBT003
    "aten::_cudnn_attention_forward": _Attention(0, heads_first=True, causal=10),
    "aten::_cudnn_attention_backward": _Attention(1, heads_first=True, causal=14, backward=True),
    "aten::_scaled_dot_product_flash_attention": _Attention(0, heads_first=True, causal=4),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, heads_first=True, causal=11, backward=True),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, heads_first=True, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, heads_first=True, causal=6),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, heads_first=True, causal=14, backward=True),
    "flash_attn::_flash_attn_forward": _Attention(0, heads_first=False, causal=5, window=6, at_end=True),
    "flash_attn::_flash_attn_backward": _Attention(1, False, 11, True, window=12, at_end=True),  # noqa: FBT003
    "flash_attn::_flash_attn_varlen_forward": _Attention(0, heads_first=False, causal=9, lengths=3),
    "flash_attn::_flash_attn_varlen_backward": _Attention(1, False, 15, True, lengths=9),  # noqa: FBT003
}


#: The kind of a mask that is aligned at its end, of efficient attention.
_LOWER_RIGHT: Final = "2"


def _attention(call: Call) -> Work | None:
    """Attention of sequences of one length; of packed ones and within a window at least so many pairs.

    Packed sequences have fewest pairs where all are equally long; each query has at least one key.
    """
    places = _ATTENTIONS[call.name]
    query, key, value = (call.tensor(places.query + step) or Tensor((), 0, 0) for step in range(3))
    if len({one.shape[:-3] for one in (query, key, value)}) > 1 or min(len(query.shape), len(value.shape)) < 3:  # noqa: PLR2004
        return None
    queries, heads = query.shape[-3:-1][:: -1 if places.heads_first else 1]
    keys, lengths = key.shape[-2 if places.heads_first else -3], call.tensor(places.lengths)
    unknown = lengths is not None or bool({call.value(places.window + step) for step in range(2)} - {"", "-1", "None"})
    if queries != keys if unknown else len(query.shape) != 4:  # noqa: PLR2004 - a cache, or packed in unknown lengths
        return None
    of_keys, of_values = (3, 2) if places.backward else (1, 1)
    depth = of_keys * query.shape[-1] + of_values * value.shape[-1]
    causal = call.true(places.causal) if call.values else call.causal
    at_end = places.at_end or ("efficient" in call.name and call.value(places.causal) == _LOWER_RIGHT)
    flop_of_pair = 2 * math.prod(query.shape[:-3]) * heads * depth
    pairs = Pairs(queries, keys, flop_of_pair, causal is not False, at_end)
    sequences = max(lengths.shape[0] - 1, 1) if lengths is not None and lengths.shape else queries
    kept = max(queries, queries * queries // (2 * sequences)) if unknown else pairs.kept  # half, as of a causal mask
    out = math.prod(query.shape[:-1]) * value.shape[-1] * query.element_bytes
    wrote = 0 if places.backward and call.name.startswith("flash_attn") else out  # it is given what it writes
    wrote = _bytes(query, key, value) if places.backward and wrote else wrote
    certainty = BOUND if unknown or causal is None else MODEL
    return Work(kept * flop_of_pair, _read(call) + wrote, None if certainty == BOUND else pairs, certainty)


# What reads and writes tensors of known shapes, and computes little with each element.


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


#: What reads its input and writes as much: a row of the result depends on a row, a channel or all of the input.
_WRITES_ONCE: Final = _aten("""
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    native_layer_norm _fused_rms_norm native_group_norm native_batch_norm cudnn_batch_norm miopen_batch_norm
    batch_norm_elemt _native_batch_norm_legit _batch_norm_with_update
    native_layer_norm_backward _fused_rms_norm_backward native_group_norm_backward native_batch_norm_backward
    cudnn_batch_norm_backward miopen_batch_norm_backward
    cat cumsum cumprod flip roll sort tril triu
""")

#: What reads its input and writes little.
_REDUCES: Final = _aten("""
    sum mean max min amax amin argmax argmin prod all any norm var std var_mean linalg_vector_norm logsumexp
    _foreach_norm batch_norm_stats topk bincount histc
""")


def _rows(call: Call) -> Work | None:
    first = next((one for one in call.inputs if one and one[0].shape), None)
    if first is None:
        return None
    return Work(0, _read(call) + (_bytes(*first) if call.name in _WRITES_ONCE else 0))


# Rows that an index chooses: how many different ones is not recorded, so that what they take of the table is none.


def _gather(call: Call) -> Work | None:
    """Reads an index and writes what it chooses."""
    index = call.tensor(2) if call.name != "aten::embedding" else call.tensor(1)
    table = call.tensor(0)
    if index is None or table is None:
        return None
    chosen = math.prod(index.shape)
    if call.name in {"aten::embedding", "aten::index_select"}:
        across = call.numbers(1) if call.name == "aten::index_select" else [0]
        if not table.shape or not across or not -len(table.shape) <= across[0] < len(table.shape):
            return None
        chosen *= math.prod(table.shape) // max(table.shape[across[0]], 1)
    return Work(0, _bytes(index) + chosen * table.element_bytes, None, BOUND)


#: What writes rows that an index chooses, or sums them.
_INTO_ROWS: Final = _aten("""
    index_add index_add_ index_copy_ index_fill_ scatter_add scatter_add_ scatter_ _index_put_impl_ _embedding_bag
""")


def _into_rows(call: Call) -> Work | None:
    """Reads what comes after its table, or its table and axis: an index, and as much of what is written as that has."""
    if not any(call.inputs[1:3]):
        return None
    index, values = call.tensor(2), call.tensor(3)
    read = sum(_bytes(*one) for one in call.inputs[1:3])
    if index is not None and values is not None:
        part = math.prod(index.shape) * values.element_bytes if "scatter" in call.name else LARGEST
        read += min(_bytes(values), part)
    return Work(0, read, None, BOUND)


def _embedding_backward(call: Call) -> Work | None:
    gradient, index, rows = call.tensor(0), call.tensor(1), call.numbers(2)
    if gradient is None or index is None or not rows or not gradient.shape:
        return None
    return Work(0, _bytes(gradient, index) + rows[0] * gradient.shape[-1] * gradient.element_bytes)


def _fused_optimizer(call: Call) -> Work | None:
    """Reads weights, gradients and what it keeps of them; writes weights and what it keeps."""
    lists = [one for one in call.inputs[:5] if one]
    gradients = 1  # the second list
    written = [one for place, one in enumerate(lists) if place != gradients]
    return Work(0, sum(_bytes(*one) for one in lists + written)) if len(lists) > 1 else None


def _elementwise(call: Call) -> Work | None:
    """Operators whose kernels compute each element from those at the same place."""
    inputs = call.inputs
    if "addcmul" in call.name:  # the square of one, mostly
        inputs = inputs[:2] + inputs[3:]
    if call.name == "aten::ne" and inputs[:1] == inputs[1:2]:  # one tensor with itself, mostly: isnan
        inputs = inputs[:1]
    if call.name in _WRITES_ALONE:
        return Work(0, _bytes(*inputs[0])) if inputs and inputs[0] else None
    sizes = sizes_of(call.name, inputs)
    if sizes is None:
        return None
    elements, read, written = sizes
    if call.name.endswith("_") and inputs[0] and call.name not in OVERWRITES:
        written = sum(math.prod(one.shape) * one.element_bytes for one in inputs[0])
    single = call.name.rstrip("_") in _COMPARISONS and not call.name.endswith("_")
    return Work(0, read + (elements if single else written))


#: Words of fused kernels that may leave parts of their tensors alone.
_PARTLY: Final = re.compile(r"embedding|index|gather|scatter|slice|split|select|pool|upsample|cat|pad|unfold|nll")


def _compiled(call: Call) -> Work | None:
    """A fused kernel of inductor, whose tensors are all read or written, but where it may choose parts of them."""
    if not call.name.startswith("triton_") or _PARTLY.search(call.name) or not any(call.inputs):
        return None
    return Work(0, _read(call), None, BOUND)


#: Operators that fill their first input with numbers.
_WRITES_ALONE: Final = _aten("normal_ uniform_ random_ exponential_ bernoulli_ log_normal_ geometric_")

#: Operators whose result is one byte of truth each.
_COMPARISONS: Final = _aten("""
    gt lt ge le eq ne isnan isinf isfinite isposinf isneginf logical_not logical_and logical_or logical_xor
""")

#: FLOPs, bytes of an operator's call.
_Model = Callable[[Call], Work | None]

_MODELS: Final[dict[str, _Model]] = {
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_ATTENTIONS, _attention),
    **dict.fromkeys(_WRITES_ONCE | _REDUCES, _rows),
    **dict.fromkeys(("aten::gather", "aten::index_select", "aten::embedding"), _gather),
    **dict.fromkeys(_INTO_ROWS, _into_rows),
    "aten::embedding_dense_backward": _embedding_backward,
    **dict.fromkeys((f"aten::_fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")), _fused_optimizer),
}


@lru_cache(maxsize=4096)
def work_of(name: str, inputs: tuple[str | None, ...], kernel: KernelName, element_bytes: int | None) -> Work | None:
    """The work of one call of an operator.

    Args:
        name: Such as ``aten::mm``.
        inputs: Shapes, types, strides and values of its inputs, JSON lists as recorded; what made each, as ranges of
            nsys say where one tensor is two inputs; the shape of the result. None for what was not recorded.
        kernel: The name of the longest of its kernels.
        element_bytes: Bytes of an element where types do not tell.

    Returns:
        None for an operator without a model, or without what its model needs.
    """
    model = _MODELS.get(name, _elementwise if is_elementwise(kernel) or name in _WRITES_ALONE else None)
    if model is None and kernel.library == "inductor" and kernel.kind != "template":
        model = _compiled
    shapes, types, strides, values, made_by, result = (*inputs, None, None)[:6]
    tensors = [] if model is None else inputs_of(shapes, types, strides, element_bytes)
    if model is None or not tensors:
        return None
    makers = re.findall(r"\(\d+,-?\d+\)", made_by or "")
    for at, maker in enumerate(makers[: len(tensors)]):
        if maker in makers[:at] and not maker.startswith("(0,"):  # read with the first one
            tensors[at] = [one._replace(stored=0) for one in tensors[at]]
    texts = [one if isinstance(one, str) else json.dumps(one) for one in parsed(values)]
    work = model(Call(name, tensors, texts, kernel.causal, tuple(parsed(result))))
    return work if work is None or max(work.flop, work.bytes) <= LARGEST else None


def executed_flop(tiled: Product | Pairs, kernel: KernelName) -> int | None:
    """The FLOPs of a product or of attention whose tiles are filled up; None where the kernel's name tells no tile.

    Blocks of a cluster work together, so that their number is a multiple of the cluster's.
    """
    if len(kernel.tile) < 2:  # noqa: PLR2004
        return None
    if isinstance(
        tiled, Pairs
    ):  # queries and keys that one block sees begin and end with a multiple of the larger side
        side = 2 * kernel.tile[0] if kernel.library == "cudnn" else max(kernel.tile[:2])  # two warpgroups, a tile each
        queries, keys = (_filled(one, side) for one in (tiled.queries, tiled.keys))
        blocks = queries // side
        pairs = sum(min(keys, (block + 1) * side) * side for block in range(blocks)) if tiled.causal else queries * keys
        return pairs * tiled.flop
    across, down = (*kernel.cluster, 1, 1)[:2]
    m, n = _filled(tiled.m, kernel.tile[0] * across), _filled(tiled.n, kernel.tile[1] * down)
    k = _filled(tiled.k, kernel.tile[2]) if len(kernel.tile) > 2 else tiled.k  # noqa: PLR2004
    return Product(m, n, k, tiled.batch).flop


def tiles_of(product: Product, kernel: KernelName) -> int | None:
    """How many tiles the results of a product have; None where the kernel's name tells no tile."""
    if len(kernel.tile) < 2:  # noqa: PLR2004
        return None
    tiles = (
        math.prod(-(-length // tile) for length, tile in zip(product[:2], kernel.tile, strict=False)) * product.batch
    )
    return tiles if tiles <= LARGEST else None


def _filled(length: int, tile: int) -> int:
    return -(-length // tile) * tile
