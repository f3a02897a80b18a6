"""GEMM and convolution kernels: CUTLASS, cuBLAS (xmma, nvjet and older ones), cuDNN, rocBLAS.

Sources: the naming in CUTLASS' library generator for ``cutlass_…`` and ``cutlass3x_…``; for xmma, nvjet and the names
that begin with an architecture, names in profiles beside the types and layouts of the calls that launched them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import TENSOR_TYPES, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

_ARCHS: Final = ("maxwell_", "pascal_", "volta_", "turing_", "ampere_", "ada_", "hopper_", "blackwell_")
_TYPE: Final = "tf32|bf16|f64|f32|f16|e4m3|e5m2|e2m1|i32|i8|u8|cf32|cf64"
_SPELLED: Final = "fp16|bf16|fp32|tf32|fp64|int8|int32|f16|f32|f64|s8|u8|s32|i8"

#: xmma: types of A and output, of B and accumulator, of alpha and beta.
_XMMA: Final = r"(?:^|_)(sm\d{2,3}[a-z]?)_xmma_(sparse_)?(gemm|fprop|dgrad|wgrad)(?=_)(.*)"
_XMMA_TYPES: Final = rf"_({_TYPE})({_TYPE})_({_TYPE})({_TYPE})_({_TYPE})(?=_|$)"
_XMMA_LAYOUT: Final = r"_([nt]{2})_([nt])(?=_|$)"
_XMMA_IMAGE: Final = r"_(n[cdhw]{3,4})k\w{2,4}_(n[cdhw]{3,4})(?=_|$)"

_OPERATION: Final = (
    r"([a-z]{1,2})(\d{3,6}|\d{1,6}x\d{1,6}x\d{1,6})?(tf32|bf16|f16)?(gemm|fprop|dgrad|wgrad|cudnn)(?=_|$)(.*)"
)
_CUTLASS: Final = rf"cutlass_(?:(\d{{2,3}})_)?(simt|(?:wmma_|sp)?tensorop)_(?:({_SPELLED})_)?{_OPERATION}"
_NAMED: Final = rf"(?:^|_)(maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_(?:({_SPELLED})_)?{_OPERATION}"
_CUTLASS3: Final = (
    r"cutlass3x_(sm\d{2,3}[a-z]?)_(simt|\w{0,4}tensorop)_"
    r"(?:[a-z](\d{1,6}x\d{1,6}x\d{1,6}))?(gemm|fprop|dgrad|wgrad)_(.*)"
)
_NVJET: Final = r"nvjet_(?:(sm\d{2,3}[a-z]?)_)?([a-z]{3}|[a-z]{5})_(.*)"

_LETTERS: Final = {"s": "f32", "d": "f64", "h": "f16", "i": "i32", "c": "c64", "z": "c128", "gc": "c64", "gz": "c128"}
_JET_LETTERS: Final = {"h": "f16", "t": "bf16", "s": "f32", "d": "f64", "q": "e4m3", "r": "e5m2", "o": "e2m1"}
_SHAPES: Final = {
    "884": (8, 8, 4),
    "1684": (16, 8, 4),
    "1688": (16, 8, 8),
    "16816": (16, 8, 16),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
    "8816": (8, 8, 16),
    "8832": (8, 8, 32),
    "161616": (16, 16, 16),
    "168128": (16, 8, 128),
    "168256": (16, 8, 256),
}
_EPILOGUES: Final = ("relu", "gelu", "bias", "drelu", "dgelu", "bgrad", "bgrada", "bgradb", "silu", "add", "badd")
_JOINED: Final = {"gelubias": ("gelu", "bias"), "relubias": ("relu", "bias")}
_DIRECTIONS: Final = {"fprop": "forward", "dgrad": "backward", "wgrad": "backward"}


def dims(text: str) -> tuple[int, ...]:
    """Parses sizes: ``128x64x32`` as (128, 64, 32)."""
    return tuple(int(size) for size in text.split("x"))


def _sized(text: str) -> dict[str, tuple[int, ...]]:
    """Parses sizes by the word before them, first of each: tilesize32x32x16, stage3, align8."""
    found: dict[str, tuple[int, ...]] = {}
    for word, size in re.findall(r"(?:^|_)([A-Za-z]+)(\d{1,6}(?:x\d{1,6})*)(?=_|$)", text):
        found.setdefault(word, dims(size))
    return found


def _first(*sizes: tuple[int, ...]) -> int | None:
    return next((size[0] for size in sizes if size), None)


def _fused(words: Sequence[str]) -> tuple[str, ...]:
    parts = (part for word in words for part in _JOINED.get(word, (word,)))
    return tuple(dict.fromkeys(part for part in parts if part in _EPILOGUES))


def _work(operation: str) -> Fields:
    """Family, operation and direction of a GEMM or a part of a convolution."""
    if operation == "gemm":
        return {"family": "gemm", "operation": "gemm"}
    return {"family": "conv", "operation": operation, "direction": _DIRECTIONS.get(operation)}


def _split(text: str) -> bool | None:
    return True if re.search(r"(?i)split_?k(?=_|$)", text) else None


def xmma(name: Spelled) -> Fields | None:
    """Decodes xmma names: ``sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x16_stage3_warpsize2x2x1_…``."""
    found = re.search(_XMMA, name.text) if "_xmma_" in name.text else None
    if not found:
        return None
    arch, _, operation, rest = found.groups()
    fields: Fields = {**_work(operation), "arch": arch, "split_k": _split(rest), "fused": _fused(rest.split("_"))}
    fields["library"] = "cudnn" if rest.endswith("_cudnn") or operation != "gemm" else "cublas"
    if rest.endswith(("_trt", "_fusion_tactic")) or name.text.startswith("trt_"):
        fields["library"] = "tensorrt"
    if types := re.search(_XMMA_TYPES, rest):
        a, output, b, accumulator, scale = types.groups()
        short = {text: type_of(text) or text for text in types.groups()}
        fields["input_types"] = _multiplied(short[a], short[b])
        fields |= {"output_type": short[output], "accumulator_type": short[accumulator], "scale_type": short[scale]}
    if layout := re.search(_XMMA_LAYOUT, rest) or re.search(_XMMA_IMAGE, rest):
        fields["layout"], fields["output_layout"] = layout.groups()
    sizes = _sized(rest)
    fields |= {
        "tile": sizes.get("tilesize", ()),
        "stages": _first(sizes.get("stage", ())),
        "warps": sizes.get("warpsize", ()),
        "warpgroups": sizes.get("warpgroupsize", ()),
        "cluster": sizes.get("cgasize", ()),
        "instruction": sizes.get("tensor") or sizes.get("sptensor", ()),
        "alignment": _first(sizes.get("align", ()), sizes.get("aligna", ())),
    }
    if fields["instruction"] or fields["warpgroups"]:
        fields["tensor_core"] = True
    elif re.search(r"_[fdh]fma_", rest) or fields.get("input_types") == ("f32", "f32"):
        fields["tensor_core"] = False
    return fields


def _multiplied(a: str, b: str) -> tuple[str, str]:
    """The types of A and B: in xmma names, B's is the multiplied type (tf32 for f32, f32 for complex)."""
    if {a, b} == {"f32", "tf32"}:
        return "tf32", "tf32"
    return (a, a) if a.startswith("c") else (a, b)


def _rest(rest: str) -> Fields:
    """Decodes what follows the operation in names of CUTLASS 2 and of cuBLAS before xmma."""
    words = [word for word in rest.split("_") if word]
    shapes = [word for word in words if re.fullmatch(r"\d{1,6}x\d{1,6}", word)]
    tile, loop = (dims(word) for word in (*shapes, "0x0", "0x0")[:2])
    layouts = [word for word in words if re.fullmatch(r"[nt]{2}|n[cdhw]{3,4}", word)]
    algorithm = next((word for word in ("winograd", "fft") if word in words), None)
    return {
        "tile": (*tile, *loop[:1])[: 2 + bool(loop[0])] if shapes else (),
        "stages": loop[1] or None,
        "layout": max(layouts, key=len) if layouts else None,  # nhwc says more than tn
        "alignment": _first(_sized(rest).get("align", ())),
        "split_k": _split(rest),
        "fused": _fused(words),
        "algorithm": algorithm,
    }


def _types(letter: str, shape: str, first: str | None, words: Sequence[str], math: str | None) -> Fields:
    """Types from BLAS' letter (accumulator), the type before it (output) and after it (A)."""
    accumulator = _LETTERS.get(letter)
    behind = next((short for word in words if word != "8x8" and (short := type_of(word))), None)
    a = math or behind or ("tf32" if shape and letter == "s" else accumulator)
    return {
        "accumulator_type": accumulator,
        "output_type": (type_of(first) if first else None) or accumulator,
        "input_types": (a, a) if a and (math or behind or letter != "i") else (),
    }


def _shape(text: str | None) -> tuple[int, ...]:
    return () if not text else dims(text) if "x" in text else _SHAPES.get(text, ())


def cutlass2(name: Spelled) -> Fields | None:
    """Decodes CUTLASS 2 profiler names, also inside Kernel2<…>: ``cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_…``."""
    found = re.search(_CUTLASS, name.text) if "cutlass_" in name.text else None
    if not found:
        return None
    arch, unit, first, letter, shape, math, operation, rest = found.groups()
    rest = re.match(r"\w*", rest)[0]  # type: ignore[index]
    fields = _work(operation) | _rest(rest) | _types(letter, shape or "", first, rest.split("_"), math)
    fields["instruction"] = _shape(shape)
    fields["tensor_core"] = unit != "simt"
    in_cudnn = "cudnn" in name.function
    return fields | {"library": "cudnn" if in_cudnn else "cutlass", "arch": f"sm{arch}" if arch else None}


def named(name: Spelled) -> Fields | None:
    """Decodes names that begin with an architecture: ``ampere_sgemm_128x64_tn``, ``maxwell_scudnn_winograd_…``."""
    found = re.search(_NAMED, name.text) if any(arch in name.text for arch in _ARCHS) else None
    if not found:
        return None
    arch, first, letter, shape, math, operation, rest = found.groups()
    rest = re.match(r"\w*", rest)[0]  # type: ignore[index]
    fields = _rest(rest) | _types(letter, shape or "", first, rest.split("_"), math)
    if operation == "cudnn":
        library, work = "cudnn", {"family": "conv", "operation": "conv"}
    else:
        library, work = "cublas", _work(operation)
    fields["tensor_core"] = bool(shape)
    fields["instruction"] = _shape(shape)
    return fields | work | {"library": "tensorrt" if name.text.startswith("trt_") else library, "arch": arch}


def cutlass3(name: Spelled) -> Fields | None:
    """Decodes CUTLASS 3 profiler names: ``cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16_…``."""
    found = re.search(_CUTLASS3, name.text) if "cutlass3x_" in name.text else None
    if not found:
        return None
    arch, unit, shape, operation, rest = found.groups()
    words = re.match(r"\w*", rest)[0].split("_")  # type: ignore[index]
    fields: Fields = {**_work(operation), "library": "cutlass", "arch": arch}
    fields |= {"instruction": _shape(shape), "tensor_core": unit != "simt", "fused": _fused(words)}
    types = []
    for word in words:
        if word != "void" and not type_of(word):
            break
        types.append(type_of(word))
    if len(types) == len(("A", "B", "accumulator", "C", "D")):
        a, b, accumulator, _, output = types
        fields["input_types"] = (a, b) if a and b else ()
        fields |= {"accumulator_type": accumulator, "output_type": output}
    shapes = [dims(word) for word in words if re.fullmatch(r"\d{1,6}x\d{1,6}x\d{1,6}", word)]
    fields["tile"], fields["cluster"] = (*shapes, (), ())[:2]
    counts = [int(word) for word in words if re.fullmatch(r"\d{1,3}", word)]
    fields["stages"] = (counts[0] or None) if counts else None  # 0 means that CUTLASS chooses
    fields["layout"] = next((word[:2] for word in words if re.fullmatch(r"[nt]{3}", word)), None)
    fields["output_layout"] = next((word[2] for word in words if re.fullmatch(r"[nt]{3}", word)), None)
    return fields | {"alignment": _first(_sized("_".join(words)).get("align", ()))}


def nvjet(name: Spelled) -> Fields | None:
    """Decodes nvjet names: ``nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN`` (types, tile, k × stages, cluster, layout).

    Three letters are the types of A and B, of the accumulator, and of the output; five those of A, B, C, accumulator
    and output. The third letter of the layout is not taken for that of the output: no source says so.
    """
    found = re.search(_NVJET, name.text) if "nvjet_" in name.text else None
    if not found:
        return None
    arch, letters, rest = found.groups()
    words = rest.split("_")
    types = [_JET_LETTERS.get(letter) for letter in letters]
    a, b = types[0], types[0] if len(types) == len("ABC") else types[1]
    fields: Fields = {"family": "gemm", "operation": "gemm", "library": "cublas", "arch": arch}
    fields["input_types"] = (a, b) if a and b else ()
    if "tf32" in words:
        fields["input_types"] = ("tf32", "tf32")
    fields |= {"accumulator_type": types[-2], "output_type": types[-1], "split_k": _split(rest), "fused": _fused(words)}
    fields["tensor_core"] = True if set(fields["input_types"]) & set(TENSOR_TYPES) else None
    layout = re.fullmatch(r"[ntNT]{3,4}", words[-1])
    fields["layout"] = words[-1][:2].lower() if layout else None
    shapes = [dims(word) for word in words if re.fullmatch(r"\d{1,6}x\d{1,6}(?:x\d{1,6})?", word)]
    if "mma" in words:
        fields["tile"] = shapes[0] if shapes else ()
        return fields
    tile, loop, cluster = (*shapes, (), (), ())[:3]
    return fields | {"tile": (*tile, *loop[:1]), "stages": loop[1] if loop else None, "cluster": cluster}


def tensile(name: Spelled) -> Fields | None:
    """Decodes Tensile names of rocBLAS and hipBLASLt: ``Cijk_Ailk_Bljk_BBS_BH_…_MT256x192x64_MI16x16x1_…``."""
    if not name.text.startswith("Cijk_"):
        return None
    layout = re.match(r"Cijk_(Ailk|Alik)_(Bljk|Bjlk)", name.text)
    return {
        "family": "gemm",
        "operation": "gemm",
        "library": "tensile",
        "tile": _sized(name.text).get("MT", ()),
        "layout": ("n" if layout[1] == "Ailk" else "t") + ("n" if layout[2] == "Bljk" else "t") if layout else None,
    }


DECODERS: Final = (xmma, cutlass2, cutlass3, nvjet, named, tensile)
