"""Names that inductor (torch.compile) writes: ``triton_poi_fused_add_mul_tanh_0``.

The operators between ``fused`` and the number are aten's names in alphabetical order, joined by underscores, which
their own names hold, too. So they are looked for in the list of aten's names, the longest first.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

#: torch/_inductor/wrapper_benchmark.py: the first three letters of how a kernel was written.
_KINDS: Final = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent_reduction",
    "tem": "template",
    "for": "foreach",
    "spl": "split_scan",
    "unk": None,
}
_NAME: Final = r"(?:\w+?_)?triton_(poi|red|per|tem|for|spl|unk)_fused(?:_(\w*?))??(?:_(\d{1,9}))?(?:_0[0-9cde]+)?$"
#: Without `unique_kernel_names` all kernels have this name, to which Triton once added which arguments are special.
_NAMELESS: Final = r"triton_(?:_0[0-9cde]+)?"

#: The most underscores in the name of an operator, and two more.
_MOST_PARTS: Final = 9

#: Families of operators by their names; what is not here is elementwise.
_FAMILIES: Final = {
    "gemm": "mm addmm bmm baddbmm matmul linear dot vdot mv addmv addbmm _int_mm _scaled_mm _grouped_mm _mm_plus_mm "
    "_scaled_grouped_mm _weight_int8pack_mm _weight_int4pack_mm tuned_mm",
    "conv": "convolution convolution_backward _convolution cudnn_convolution",
    "attention": "flex_attention flex_attention_backward scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward",
    "softmax": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data softmax log_softmax "
    "_safe_softmax prepare_softmax_online logsumexp",
    "normalization": "native_layer_norm native_layer_norm_backward layer_norm native_group_norm "
    "native_group_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training native_batch_norm native_batch_norm_backward _fused_rms_norm "
    "_fused_rms_norm_backward rms_norm batch_norm_backward _batch_norm_with_update_functional",
    "reduce": "sum mean var std var_mean std_mean amax amin max min argmax argmin prod all any norm linalg_vector_norm "
    "count_nonzero xor_sum aminmax",
    "scan": "cumsum cumprod logcumsumexp cummax cummin associative_scan",
    "sort": "sort topk argsort",
    "index": "index index_select gather scatter scatter_add scatter_reduce index_put _unsafe_index _unsafe_index_put "
    "index_add index_copy select_scatter slice_scatter take_along_dim masked_scatter _unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate diagonal_scatter",
    "embedding": "embedding embedding_dense_backward _embedding_bag embedding_backward",
    "copy": "clone _to_copy copy cat contiguous constant_pad_nd flip roll repeat convert_element_type stack "
    "transpose permute view _unsafe_view reshape expand slice select unsqueeze squeeze t split split_with_sizes "
    "as_strided alias detach lift_fresh_copy select_backward slice_backward device_put unbind chunk unfold "
    "reflection_pad2d replication_pad2d pixel_shuffle cat copy_",
    "fill": "full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full arange iota fill scalar_tensor "
    "new_empty empty empty_like eye",
    "random": "rand randn randint rand_like randn_like randint_like bernoulli native_dropout inductor_random "
    "inductor_randint inductor_seeds inductor_lookup_seed uniform normal normal_functional _fused_dropout",
    "loss": "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward",
    "pooling": "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool3d_with_indices adaptive_max_pool2d "
    "_low_memory_max_pool_with_offsets _low_memory_max_pool_offsets_to_indices",
    "resample": "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_nearest1d upsample_linear1d "
    "grid_sampler_2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa upsample_nearest2d_backward",
    "communication": "all_reduce all_gather_into_tensor reduce_scatter_tensor wait_tensor",
}
#: Operators that only look at memory in another way say nothing of what a kernel does beside others.
_VIEWS: Final = frozenset(
    [
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "empty",
        "empty_like",
        "expand",
        "full",
        "lift_fresh_copy",
        "permute",
        "reshape",
        "scalar_tensor",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)
#: Families of kernels that reduce: an operator of another family is fused into them.
_REDUCING: Final = ("softmax", "normalization", "reduce", "scan", "sort", "loss")
_PRODUCTS: Final = ("gemm", "conv", "attention")


def family_of(operator: str) -> str:
    """The family of an operator by its name in aten; what is not known is elementwise, as most operators are."""
    return next((family for family, names in _FAMILIES.items() if operator in names.split()), "elementwise")


def operators(text: str, known: Collection[str]) -> tuple[str, ...]:
    """The operators in names that are joined by underscores, of those that are `known`; other words stay together."""
    parts, found, unknown, at = text.split("_"), [], [], 0
    while at < len(parts):
        ends = range(min(at + _MOST_PARTS, len(parts)), at, -1)
        end = next((end for end in ends if "_".join(parts[at:end]) in known), None)
        if end is None:
            unknown.append(parts[at])
            at += 1
            continue
        found.extend(_joined(unknown))
        found.append("_".join(parts[at:end]))
        unknown, at = [], end
    return (*found, *_joined(unknown))


def _joined(parts: Sequence[str]) -> list[str]:
    text = "_".join(parts)
    return [text] if text.strip("_") else []


@cache
def _known() -> frozenset[str]:
    return frozenset(OPERATORS.split())


def inductor(name: Spelled) -> Fields | None:
    """The kernels that inductor writes in Triton."""
    if "triton_" not in name.text or not re.fullmatch(r"\w+", name.text):
        return None
    found = re.match(_NAME, name.text)
    if not found:
        return {"library": "inductor"} if re.fullmatch(_NAMELESS, name.text) else _template(name)
    kind, text, ordinal = found.groups()
    fused = operators(text, _known()) if text else ()
    family, operation = _family(kind, fused)
    return {
        "library": "inductor",
        "kind": _KINDS[kind],
        "fused": fused,
        "ordinal": int(ordinal) if ordinal else None,
        "family": family,
        "operation": operation,
        "direction": "backward" if "backward" in (operation or "") else None,
    }


def _template(name: Spelled) -> Fields | None:
    """``triton_mm_3``, ``triton_flex_attention_backward_7``: templates while they are tuned, or by their old names."""
    found = re.match(r"triton_(mm|bmm|addmm|convolution2?d?|flex_attention|flex_attention_backward|flex_decoding)"
                     r"(?:_(\d{1,9}))?$", name.text)  # fmt: skip
    if not found:
        return None
    operation = found[1]
    family = "attention" if "flex" in operation else "conv" if "conv" in operation else "gemm"
    return {
        "library": "inductor",
        "kind": "template",
        "family": family,
        "operation": operation,
        "ordinal": int(found[2]) if found[2] else None,
        "direction": "backward" if "backward" in operation else None,
    }


def _family(kind: str, fused: Sequence[str]) -> tuple[str, str | None]:
    """What a kernel does on the whole, and the one operator that says so, where there is one."""
    families = {operator: family_of(operator) for operator in fused}
    if kind == "tem":
        wanted: Sequence[str] = _PRODUCTS
    elif kind in {"red", "per"}:
        wanted = _REDUCING
    elif kind == "spl":
        wanted = ("scan",)
    elif kind == "poi":
        return _pointwise(families) if families else ("elementwise", None)
    else:
        return "other", None
    telling = {operator: family for operator, family in families.items() if family in wanted}
    operation = next(iter(telling)) if len(telling) == 1 else None
    default = {"tem": "other", "spl": "scan"}.get(kind, "reduce")
    return (next(iter(telling.values())) if len(set(telling.values())) == 1 else default), operation


def _pointwise(families: dict[str, str]) -> tuple[str, str | None]:
    """Elementwise, but where all operators that do something are of one other kind: copies, gathers, fills."""
    doing = {operator: family for operator, family in families.items() if operator not in _VIEWS} or families
    kinds = set(doing.values())
    operation = next(iter(doing)) if len(doing) == 1 else None
    other = next(iter(kinds)) if len(kinds) == 1 else "elementwise"
    plain = ("copy", "index", "embedding", "fill", "random", "pooling", "resample")
    return (other if other in plain else "elementwise"), operation
