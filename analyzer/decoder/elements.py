"""Element types in kernel names, each mapped to one short name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SPELLINGS: Final = {
    "f64": "double fp64 float64 f64",
    "f32": "float fp32 float32 f32",
    "tf32": "tf32 tfloat32_t",
    "f16": "half __half half_t fp16 float16 f16",
    "bf16": "bfloat16 bfloat16_t __nv_bfloat16 nv_bfloat16 bf16",
    "e4m3": "float8_e4m3fn float8_e4m3fnuz float_e4m3_t __nv_fp8_e4m3 e4m3 f8e4m3 fp8e4m3",
    "e5m2": "float8_e5m2 float8_e5m2fnuz float_e5m2_t __nv_fp8_e5m2 e5m2 f8e5m2 fp8e5m2",
    "e2m1": "float_e2m1_t float4_e2m1fn_x2 __nv_fp4_e2m1 e2m1",
    "i8": "int8 int8_t signed_char i8 s8",
    "u8": "uint8 uint8_t unsigned_char u8",
    "i16": "short int16 int16_t i16",
    "u16": "unsigned_short uint16 uint16_t u16",
    "i32": "int int32 int32_t i32 s32",
    "u32": "unsigned_int unsigned uint32 uint32_t u32",
    "i64": "long long_long int64 int64_t i64",
    "u64": "unsigned_long unsigned_long_long uint64 uint64_t u64",
    "bool": "bool",
    "c32": "complex<half>",
    "c64": "complex<float> float2 cucomplex cf32",
    "c128": "complex<double> double2 cudoublecomplex cf64",
}
_TYPES: Final = {spelling: short for short, spellings in _SPELLINGS.items() for spelling in spellings.split()}

#: Longest spelling of a type, in characters.
_LONGEST: Final = 80

#: Input types of tensor cores, which have no instruction for plain f32.
TENSOR_TYPES: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m1", "i8", "u8")


def type_of(text: str) -> str | None:
    """The short name of a C++ or library type; None if it is not an element type."""
    lowered = text.lower()
    known = _TYPES.get(lowered)
    if known or not text or len(text) > _LONGEST:
        return known
    bare = re.sub(r"\b(?:const|volatile)\b|[*&]|__restrict__|\w+::", "", lowered)
    return _TYPES.get("_".join(bare.split()).replace("_>", ">"))


def types_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The short names of several types; empty if any is unknown."""
    found = [type_of(text) for text in texts]
    return tuple(short for short in found if short) if all(found) else ()
