"""Kernels that array libraries generate and call after their operations: XLA's (JAX, TensorFlow) and CuPy's.

XLA wraps an operation or fuses several: ``wrapped_tanh``, ``loop_add_fusion_3``, ``input_reduce_fusion``; matrix
products are ``gemm_fusion_dot_general_1``. CuPy adds the types: ``cupy_add__float64_float64``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import OTHER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

#: XLA: what a loop computes, or what a reduction, a scatter or the like reads; or the one operation that is wrapped.
_FUSION: Final = r"(?:loop|input)(?:_(\w+?))?_fusion(?:_\d{1,9})*"
_WRAPPED: Final = r"wrapped_(\w+?)(?:_\d{1,9})*"
_PRODUCT: Final = r"(?:triton_)?gemm_fusion(?:_\w+)?"

#: XLA: kernels with which it chooses among others.
_TUNING: Final = r"RedzoneAllocatorKernelImpl|RepeatBufferKernelImpl|DelayKernel|xla_fp_comparison"

#: CuPy: an operation, and types of its arguments where it is one for each element.
_CUPY: Final = r"cupy_([a-z0-9_]+?)(__\w+)?"

#: Families of XLA's operations (https://openxla.org/xla/operation_semantics) by name.
_OF_XLA: Final = {
    "reduce": "reduce reduce_window argmax argmin",
    "copy": "copy transpose concatenate slice pad reverse broadcast bitcast dynamic_slice dynamic_update_slice",
    "index": "gather scatter",
    "fill": "iota constant",
    "random": "rng rng_bit_generator threefry2x32",
    "sort": "sort",
    "scan": "cumsum",
    "elementwise": "abs add and atan2 cbrt ceil clamp compare complex convert cosine divide erf exponential "
    "exponential_minus_one expm1 floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or "
    "popcnt power real remainder round_nearest_afz round_nearest_even rsqrt select shift_left shift_right_arithmetic "
    "shift_right_logical sign sine sqrt subtract tan tanh xor",
}

#: Families of CuPy's operations by name.
_OF_CUPY: Final = {
    "reduce": "sum prod mean amax amin max min argmax argmin any all var std nansum nanprod nanmean nanmax nanmin "
    "nanargmax nanargmin nanvar nanstd count_nonzero",
    "copy": "copy",
    "index": "take scatter_update scatter_add scatter_max scatter_min getitem_mask putmask choose "
    "boolean_array_indexing_nth",
    "random": "random_x_mod_1 random_interval",
    "fill": "fill arange linspace eye tri",
}


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: family for family, names in table.items() for name in names.split()}


_XLA_FAMILIES: Final = _by_name(_OF_XLA)
_CUPY_FAMILIES: Final = _by_name(_OF_CUPY)


def xla(name: Spelled) -> Fields | None:
    """Decodes XLA's kernels."""
    word = name.word
    if re.fullmatch(_PRODUCT, word):
        return {"library": "xla", "family": "gemm", "operation": "gemm"}
    if re.fullmatch(_TUNING, word):
        return {"library": "xla", "family": OTHER, "operation": "autotuning"}
    if (fusion := re.fullmatch(_FUSION, word)) is not None:
        return {"library": "xla", "family": _XLA_FAMILIES.get(fusion[1], "elementwise"), "operation": fusion[1]}
    wrapped = re.fullmatch(_WRAPPED, word)
    if wrapped is None or wrapped[1] not in _XLA_FAMILIES:
        return None
    return {"library": "xla", "family": _XLA_FAMILIES[wrapped[1]], "operation": wrapped[1]}


def cupy(name: Spelled) -> Fields | None:
    """Decodes CuPy's own kernels."""
    found = re.fullmatch(_CUPY, name.word)
    if found is None:
        return None
    usual = "elementwise" if found[2] else OTHER
    return {"library": "cupy", "family": _CUPY_FAMILIES.get(found[1], usual), "operation": found[1]}


DECODERS: Final = (xla, cupy)
