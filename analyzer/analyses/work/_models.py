"""FLOPs and least bytes of operators, by the shapes, types and values of their inputs.

A product of A (m × k) and B (k × n) takes 2·m·n·k FLOPs, a fused multiply-add being two. Least bytes are those of each
tensor that must be read or written, once; what stays in registers or shared memory is none.
"""

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
    """What one call of an operator has to do."""

    flop: int  # of products, convolutions and attention; 0 for operators that their bytes bound
    bytes: int  # the least that it reads and writes
    tiled: Product | Pairs | None = None  # what one kernel computes in tiles, by which more is executed
    known: str = MODEL  # or :data:`BOUND`
    token_bytes: int = 0  # more, of each token in a cache whose pages attention reads


class Call(NamedTuple):
    """A call of an operator."""

    name: str
    inputs: list[list[Tensor]]  # the tensors of each
    values: list[str]  # of each input that is no tensor, as text; empty where they were not recorded, as in nsys
    causal: bool | None = None  # whether the kernel's name says that the mask is causal; None: it does not tell
    result: tuple[int, ...] = ()  # its shape, where that is known by what takes it

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


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


#: A place that no operator has.
_NOWHERE: Final = 99

# Products of matrices. Sources: the definitions of aten's native_functions.yaml.

#: Where the two factors stand among the inputs, by operator.
PRODUCTS: Final = {
    **dict.fromkeys(_aten("mm bmm matmul linear mv dot vdot _int_mm _scaled_mm _scaled_mm_v2"), (0, 1)),
    **dict.fromkeys(_aten("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"), (0, 1)),
    **dict.fromkeys(_aten("addmm addmm_ baddbmm baddbmm_ addbmm addmv addmv_ _addmm_activation"), (1, 2)),
}


def _product(call: Call) -> Work | None:
    first, second = (call.tensor(place) for place in PRODUCTS[call.name])
    if first is None or second is None or not first.shape:
        return None
    if "grouped_mm" in call.name:
        return _grouped(call, first, second)
    if not second.shape:
        return None
    b = second.shape[::-1] if call.name == "aten::linear" else second.shape
    m, k = (1, *first.shape)[-2:]
    rows, n = b[-2:] if len(b) > 1 else (*b, 1)
    batch = math.prod(first.shape[:-2])
    if len(b) == 2 and batch > 1:  # noqa: PLR2004 - a matrix, which all products share
        m, batch = m * batch, 1
    if rows != k:
        return None
    added = _bytes(call.tensor(0)) if PRODUCTS[call.name] == (1, 2) and call.value(3) in {"0", "0."} else 0
    product = Product(n, m, k, batch) if len(b) > 1 else Product(m, n, k, batch)
    # bytes of each element of the result where it has another type than the factors: aten's out_dtype, by its number
    out = m * n * max(first.element_bytes, {"5": 2, "6": 4, "15": 2}.get(call.value(6), 0))
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


#: Where padding, stride and dilation stand among the inputs, and whether it is transposed, by operator. Data and
#: weights stand first; backward after the gradient of the result.
_CONVOLUTIONS: Final = {
    "aten::cudnn_convolution": (2, 3, 4, _NOWHERE),
    "aten::cudnn_convolution_relu": (4, 3, 5, _NOWHERE),
    "aten::cudnn_convolution_add_relu": (6, 5, 7, _NOWHERE),
    "aten::cudnn_convolution_transpose": (2, 4, 5, _NOWHERE),
    **dict.fromkeys(_aten("miopen_convolution miopen_depthwise_convolution"), (3, 4, 5, _NOWHERE)),
    **dict.fromkeys(_aten("_conv_depthwise2d conv_depthwise3d slow_conv_dilated2d"), (5, 4, 6, _NOWHERE)),
    **dict.fromkeys(_aten("_slow_conv2d_forward slow_conv3d_forward"), (5, 4, _NOWHERE, _NOWHERE)),
    **dict.fromkeys(_aten("convolution _convolution"), (4, 3, 5, 6)),
    "aten::convolution_backward": (5, 4, 6, 7),
}


def weight_place(name: str) -> int | None:
    """Where the weights of a convolution stand among its inputs; None for other operators."""
    return 1 + _is_backward(name) if name in _CONVOLUTIONS else None


def _is_backward(name: str) -> bool:
    return "_backward" in name


def _convolution(call: Call) -> Work | None:
    *places, transposed = _CONVOLUTIONS[call.name]
    backward = _is_backward(call.name)
    data, weight = (call.tensor(backward + place) for place in range(2))
    if data is None or weight is None or len(data.shape) != len(weight.shape) or len(data.shape) < 3:  # noqa: PLR2004
        return None
    turned = call.name.endswith("_transpose") or call.true(transposed)
    gradient = call.tensor(0) if backward else None
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
    # where it is told which gradients are wanted
    wanted = re.findall("True|False", call.value(10))[:2].count("True")
    times = 1 if gradient is None else max(wanted, 1)
    single = gradient is None and not turned and weight.shape[1] == data.shape[1]
    certainty = MODEL if call.values or call.result else BOUND
    moved = _bytes(result) + times * _bytes(data, weight)
    return Work(times * product.flop, moved, product if single else None, certainty)


def _result(call: Call, places: list[int], data: Tensor, weight: Tensor, *, turned: bool) -> Tensor | None:
    """The result of a forward convolution; of a transposed one without what its output padding adds."""
    if not call.values:
        return Tensor(call.result, math.prod(call.result), data.element_bytes)
    dims = len(data.shape) - 2
    padding, stride, dilation = (
        call.numbers(place) or [default] * dims for place, default in zip(places, (0, 1, 1), strict=True)
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


# Attention: two products forward, five backward (Dao, FlashAttention-2, 2023, section 3); of a causal mask the pairs
# that it keeps alone count.

#: Where the causal flag stands among the inputs, by operator, and what makes it another one, of unknown pairs: tensors
#: of lengths, and the sides of a window. Queries, keys and values stand first; backward after the result's gradient.
_ATTENTIONS: Final = {
    "aten::_flash_attention_forward": (8, 3, 11),
    "aten::_flash_attention_backward": (11, 6, 15),
    "aten::_efficient_attention_forward": (9, 4, _NOWHERE),
    "aten::_efficient_attention_backward": (14, 6, _NOWHERE),
    "aten::_cudnn_attention_forward": (10, _NOWHERE, _NOWHERE),
    "aten::_cudnn_attention_backward": (14, _NOWHERE, _NOWHERE),
    "aten::_scaled_dot_product_flash_attention": (4, _NOWHERE, _NOWHERE),
    "aten::_scaled_dot_product_flash_attention_backward": (11, _NOWHERE, _NOWHERE),
    "aten::_scaled_dot_product_efficient_attention": (6, _NOWHERE, _NOWHERE),
    "aten::_scaled_dot_product_cudnn_attention": (6, _NOWHERE, _NOWHERE),
    "aten::_scaled_dot_product_cudnn_attention_backward": (14, _NOWHERE, _NOWHERE),
    "flash_attn::_flash_attn_forward": (5, _NOWHERE, 6),
    "flash_attn::_flash_attn_backward": (11, _NOWHERE, 12),
    "flash_attn::_flash_attn_varlen_forward": (9, 3, _NOWHERE),
    "flash_attn::_flash_attn_varlen_backward": (15, 9, _NOWHERE),
}


def _attention(call: Call) -> Work | None:
    """Attention of sequences of one length; of packed ones and within a window at least so many pairs.

    Packed sequences have fewest pairs where all are equally long; each query has at least one key.
    """
    causal_at, lengths_at, window_at = _ATTENTIONS[call.name]
    backward, by_position = _is_backward(call.name), "scaled_dot" not in call.name and "cudnn" not in call.name
    tensors = [call.tensor(backward + step) or Tensor((), 0, 0) for step in range(3)]
    query, key, value = tensors
    if len({one.shape[:-3] for one in tensors}) > 1 or min(len(one.shape) for one in tensors) < 3:  # noqa: PLR2004
        return None
    queries, heads = query.shape[-3:-1] if by_position else query.shape[-2:-4:-1]
    keys, lengths = key.shape[-3 if by_position else -2], call.tensor(lengths_at)
    unknown = lengths is not None or bool({call.value(window_at + step) for step in range(2)} - {"", "-1", "None"})
    if queries != keys if unknown else len(query.shape) != 4:  # noqa: PLR2004 - a cache, or packed in unknown lengths
        return None
    of_keys, of_values = (3, 2) if backward else (1, 1)
    depth = of_keys * query.shape[-1] + of_values * value.shape[-1]
    causal = call.true(causal_at) if call.values else call.causal
    of_library = call.name.startswith("flash_attn")
    # a mask of kind 2 of efficient attention is aligned at its end
    at_end = of_library or ("efficient" in call.name and call.value(causal_at) == "2")
    flop_of_pair = 2 * math.prod(query.shape[:-3]) * heads * depth
    pairs = Pairs(queries, keys, flop_of_pair, causal is not False, at_end)
    sequences = max(lengths.shape[0] - 1, 1) if lengths is not None and lengths.shape else queries
    kept = max(queries, queries * queries // (2 * sequences)) if unknown else pairs.kept  # half, as of a causal mask
    out = math.prod(query.shape[:-1]) * value.shape[-1] * query.element_bytes
    gradients = 0 if of_library else _bytes(*tensors)  # which it is given
    certainty = BOUND if unknown or causal is None else MODEL
    moved = _read(call) + (gradients if backward else out)
    return Work(kept * flop_of_pair, moved, None if certainty == BOUND else pairs, certainty)


#: Attention over pages of a cache, as vLLM and SGLang call it, and where the left side of a window stands.
_PAGED: Final = {"_vllm_fa2_C::varlen_fwd": 16, "_vllm_fa3_C::fwd": 25, "sgl_kernel::fwd": 25}


def _paged(call: Call) -> Work | None:
    """Queries and results, with a key for each at least: no shape tells how many tokens are in the cache."""
    query, keys, values = (call.tensor(place) for place in range(3))
    if not query or not keys or not values:
        return None
    whole = len(keys.shape) == 4 and call.value(_PAGED[call.name]) == "-1"  # noqa: PLR2004 - pages, tokens, heads, depth
    token = sum(math.prod(one.shape[2:]) * one.element_bytes for one in (keys, values)) if whole else 0
    return Work(4 * math.prod(query.shape), 2 * _bytes(query), None, BOUND, min(token, LARGEST))


# What reads and writes tensors of known shapes, and computes little with each element.

#: Operators of engines, as vLLM's torch_bindings.cpp declares them: places of tensors, as often as they are read or
#: written. Rotated queries and keys stand after their positions, the result of others first.
_OF_ENGINES: Final = {
    "_C::rms_norm": (0, 1, 2),
    "_C::fused_add_rms_norm": (0, 1, 2, 0, 1),
    "_C::rotary_embedding": (0, 1, 2, 1, 2),
    **{f"_C::{name}_and_mul": (0, 1) for name in ("silu", "gelu", "gelu_tanh", "fatrelu", "swigluoai")},
    **dict.fromkeys(("_C::mul_and_silu", "_C::gelu_new", "_C::gelu_fast", "_C::gelu_quick"), (0, 1)),
}


def _of_engine(call: Call) -> Work | None:
    """Of rotations the tables are not counted, and nothing is known where a part of each head alone is rotated."""
    tables, places = call.tensor(4), _OF_ENGINES[call.name]
    if call.name == "_C::rotary_embedding" and (tables is None or call.numbers(3) != [*tables.shape[-1:]]):
        return None
    return Work(0, sum(_bytes(*call.inputs[place]) for place in places if place < len(call.inputs)))


def _into_cache(call: Call) -> Work | None:
    """Keys of tokens that have a slot, and values: read, and written in the type of the cache."""
    keys, cache, slots = (call.tensor(place) for place in (0, 2, 4))
    if not keys or not cache or not slots or not slots.shape:
        return None
    elements = 2 * min(keys.shape[0], slots.shape[0]) * math.prod(keys.shape[1:]) if keys.shape else 0
    return Work(0, _bytes(slots) + elements * (keys.element_bytes + cache.element_bytes), None, BOUND)


#: What reads its input and writes as much: a row of the result depends on a row, a channel or all of the input.
_WRITES_ONCE: Final = _aten("""
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    native_layer_norm _fused_rms_norm native_group_norm native_batch_norm cudnn_batch_norm miopen_batch_norm
    batch_norm_elemt _native_batch_norm_legit _batch_norm_with_update
    native_layer_norm_backward _fused_rms_norm_backward native_group_norm_backward native_batch_norm_backward
    cudnn_batch_norm_backward miopen_batch_norm_backward
    cat cumsum cumprod flip roll sort tril triu
""")

#: What reads its input and writes little, or fills it with random numbers and reads nothing.
_PASSES_ONCE: Final = _aten("""
    sum mean max min amax amin argmax argmin prod all any norm var std var_mean linalg_vector_norm logsumexp
    _foreach_norm batch_norm_stats topk bincount histc
    normal_ uniform_ random_ exponential_ bernoulli_ log_normal_ geometric_
""")


def _rows(call: Call) -> Work | None:
    first = next((one for one in call.inputs if one and one[0].shape), None)
    if first is None:
        return None
    return Work(0, _read(call) + (_bytes(*first) if call.name in _WRITES_ONCE else 0))


# Rows that an index chooses: how many different ones is not recorded, so that what they take of the table is none.


def _gather(call: Call) -> Work | None:
    """Reads an index and writes what it chooses."""
    embedding = call.name == "aten::embedding"
    table, index = call.tensor(0), call.tensor(1 if embedding else 2)
    if index is None or table is None:
        return None
    chosen = math.prod(index.shape)
    if call.name != "aten::gather":
        across = [0] if embedding else call.numbers(1)
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
    """Reads and writes weights, and what it keeps of gradients; reads these, the second list."""
    lists = [_bytes(*one) for one in call.inputs[:5] if one]
    return Work(0, 2 * sum(lists) - lists[1]) if len(lists) > 1 else None


def _elementwise(call: Call) -> Work | None:
    """Operators whose kernels compute each element from those at the same place."""
    inputs = call.inputs
    if "addcmul" in call.name:  # the square of one, mostly
        inputs = inputs[:2] + inputs[3:]
    if call.name == "aten::ne" and inputs[:1] == inputs[1:2]:  # one tensor with itself, mostly: isnan
        inputs = inputs[:1]
    inputs = inputs[: {"aten::mul": 2, "aten::abs": 1}.get(call.name)]  # and not what is given for their result
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
    **dict.fromkeys(_WRITES_ONCE | _PASSES_ONCE, _rows),
    **dict.fromkeys(("aten::gather", "aten::index_select", "aten::embedding"), _gather),
    **dict.fromkeys(_INTO_ROWS, _into_rows),
    **dict.fromkeys(_PAGED, _paged),
    **dict.fromkeys(_OF_ENGINES, _of_engine),
    **dict.fromkeys((f"_C_cache_ops::reshape_and_cache{kind}" for kind in ("", "_flash")), _into_cache),
    "aten::embedding_dense_backward": _embedding_backward,
    **dict.fromkeys((f"aten::_fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")), _fused_optimizer),
}


@lru_cache(maxsize=4096)
def work_of(name: str, inputs: tuple[str | None, ...], kernel: KernelName, element_bytes: int | None) -> Work | None:
    """The work of one call of an operator; None without a model, or without what its model needs.

    Its `inputs` are their shapes, types, strides and values, JSON lists as recorded; what made each, as ranges of nsys
    say where one tensor is two inputs; and the shape of the result: None for what was not recorded. The `kernel` is the
    longest of its kernels, and an element has so many bytes where types do not tell.
    """
    model = _MODELS.get(name, _elementwise if is_elementwise(kernel) else None)
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
    return work if work is None or max(work.flop, work.bytes, *(work.tiled or ())) <= LARGEST else None


def executed_flop(tiled: Product | Pairs, kernel: KernelName) -> int | None:
    """The FLOPs of a product or of attention whose tiles are filled up; None where the kernel's name tells no tile.

    Blocks of a cluster work together, so that their number is a multiple of the cluster's.
    """
    if len(kernel.tile) < 2:  # noqa: PLR2004
        return None
    if isinstance(tiled, Pairs):
        # queries and keys that one block sees begin and end with a multiple of the larger side
        side = 2 * kernel.tile[0] if kernel.library == "cudnn" else max(kernel.tile[:2])  # two warpgroups, a tile each
        blocks = tiled._replace(queries=-(-tiled.queries // side), keys=-(-tiled.keys // side))
        flop = blocks.kept * side**2 * tiled.flop
    else:
        units = map(math.prod, zip((*kernel.tile, 1)[:3], (*kernel.cluster[:2], 1, 1, 1), strict=False))
        sides = (-(-side // unit) * unit for side, unit in zip(tiled, units, strict=False))
        flop = 2 * math.prod(sides) * tiled.batch
    return flop if flop <= LARGEST else None


def tiles_of(product: Product, kernel: KernelName) -> int | None:
    """How many tiles the results of a product have; None where the kernel's name tells no tile."""
    tiles = [-(-side // tile) for side, tile in zip(product[:2], kernel.tile, strict=False)]
    return math.prod(tiles) * product.batch if len(tiles) == len(product[:2]) else None
