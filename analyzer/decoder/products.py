"""Decodes matrix products and convolutions: CUTLASS, cuBLAS (xmma, nvjet, older ones), cuDNN, rocBLAS, quantised ones.

Sources: the naming in CUTLASS' library generator for ``cutlass_…`` and ``cutlass3x_…``; for xmma, nvjet and the names
that begin with an architecture, names in profiles beside the types and layouts of the calls that launched them.
"""

import re
from typing import Final

from kanalyze.decoder import fields as tables
from kanalyze.decoder.fields import Fields, Spelled, first, in_groups, looked_up, type_of, types_of

_ARCHS: Final = ("maxwell_", "pascal_", "volta_", "turing_", "ampere_", "ada_", "hopper_", "blackwell_")
_SPELLED: Final = "fp16|bf16|fp32|tf32|fp64|int8|int32|f16|f32|f64|s8|u8|s32|i8"

_OPERATION: Final = (
    rf"(?:(?P<first>{_SPELLED})_)?"
    r"(?P<letter>[a-z]{1,2})(?P<shape>\d{3,6}|\d{1,6}x\d{1,6}x\d{1,6})?(?P<math>tf32|bf16|f16)?"
    r"(?P<operation>gemm|fprop|dgrad|wgrad|cudnn)(?=_|$)(?P<rest>\w*)"
)
_CUTLASS: Final = rf"cutlass_(?:(?P<arch>\d{{2,3}})_)?(?P<unit>simt|(?:wmma_|sp)?tensorop)_{_OPERATION}"
_NAMED: Final = rf"(?:^|_)(?P<arch>maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_{_OPERATION}"
_NVJET: Final = r"nvjet_(?:(?P<arch>sm\d{2,3}[a-z]?)_)?(?P<letters>[a-z]{3}|[a-z]{5})(?P<rest>_.*)"


def dims(text: str) -> tuple[int, ...]:
    """Parses sizes: ``128x64x32`` as (128, 64, 32)."""
    return tuple(int(size) for size in text.split("x"))


def _of_blas(name: Spelled, match: re.Match[str]) -> Fields:
    """What names of CUTLASS 2 and of cuBLAS before xmma tell alike.

    Types are those of BLAS' letter (accumulator), of the type before it (output) and after it (A).
    """
    letter, shape, math = match["letter"], match["shape"], match["math"]
    words = match["rest"].split("_")
    sizes = [dims(word) for word in words if re.fullmatch(r"\d{1,6}x\d{1,6}", word)]
    tile, loop = (*sizes, (0, 0), (0, 0))[:2]
    accumulator = tables.by_name("letters of blas").get(letter)
    behind = next((short for word in words if word != "8x8" and (short := type_of(word))), None)
    a = math or behind or ("tf32" if shape and letter == "s" else accumulator)
    return {
        **looked_up("parts of products", name, match["operation"]),
        **looked_up("options of products", name, match["rest"]),
        "arch": in_groups(match).get("arch"),
        "instruction": _shape(shape),
        "accumulator_type": accumulator,
        "output_type": type_of(match["first"] or "") or accumulator,
        "input_types": (a, a) if a and (math or behind or letter != "i") else (),
        "tile": (*tile, *loop[:1])[: 2 + bool(loop[0])] if sizes else (),
        "stages": loop[1] or None,
    }


def _shape(text: str | None) -> tuple[int, ...]:
    """The shape of an instruction: 16x8x16, also written as 16816."""
    match = re.fullmatch(r"(16|8)(16|8)(4|8|16|32|64|128|256)", text or "")
    return tuple(map(int, match.groups())) if match else dims(text) if text and "x" in text else ()


def cutlass2(name: Spelled) -> Fields | None:
    """Decodes CUTLASS 2 profiler names, also inside Kernel2<…>: ``cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_…``."""
    match = re.search(_CUTLASS, name.text) if "cutlass_" in name.text else None
    if not match:
        return None
    fields = {**_of_blas(name, match), "tensor_core": match["unit"] != "simt", "library": "cutlass"}
    return fields | looked_up("copies of cutlass", name)


def named(name: Spelled) -> Fields | None:
    """Decodes names that begin with an architecture: ``ampere_sgemm_128x64_tn``, ``maxwell_scudnn_winograd_…``."""
    match = re.search(_NAMED, name.text) if any(arch in name.text for arch in _ARCHS) else None
    if not match:
        return None
    fields = {"library": "cublas", **_of_blas(name, match), "tensor_core": bool(match["shape"])}
    return fields | ({"library": "tensorrt"} if name.text.startswith("trt_") else {})


def nvjet(name: Spelled) -> Fields | None:
    """Decodes nvjet names: ``nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN`` (types, tile, k × stages, cluster, layout).

    Three letters are the types of A and B, of the accumulator, and of the output; five those of A, B, C, accumulator
    and output.
    """
    match = re.search(_NVJET, name.text) if "nvjet_" in name.text else None
    if not match:
        return None
    types = [tables.by_name("letters of nvjet").get(letter) for letter in match["letters"]]
    a, b = types[0], types[0] if len(types) == len("ABC") else types[1]
    inputs = ("tf32", "tf32") if "_tf32" in match["rest"] else (a, b) if a and b else ()
    return {
        "family": "gemm",
        "operation": "gemm",
        "library": "cublas",
        "arch": match["arch"],
        "input_types": inputs,
        "accumulator_type": types[-2],
        "output_type": types[-1],
        "tensor_core": True if {*inputs} & {*tables.TENSOR_TYPES} else None,
        **looked_up("options of products", name, match["rest"]),
        **looked_up("nvjet", name, match["rest"]),
    }


def cublas(name: Spelled) -> Fields | None:
    """Decodes cuBLAS kernels that are C++ templates, and the few others without an architecture in the name."""
    word = name.word
    # prefix of the name, operation, and index of the types of A, B, C and the accumulator
    for start, product, at in (
        *(("gemv2T_kernel", "gemv", 2), ("gemv2N_kernel", "gemv", 2), ("gemvNSP_kernel", "gemv", 0)),
        *(("gemmSN_", "gemm", 0), ("gemmk1_kernel", "gemm", 1), ("gemvx::kernel", "gemv", 2)),
    ):
        if word.startswith(start) or (start == "gemvx::kernel" and name.function.endswith(start)):
            return _cublas_gemm(name, product, at)
    if "cublas" in name.text and (of_blas := looked_up("cublas", name)):
        return {**of_blas, "input_types": types_of([name.arg(0)])}
    return first(("other kernels of cublas", "cublaslt"), name)


def _cublas_gemm(name: Spelled, operation: str, at: int) -> Fields:
    """Decodes the types A, B, C and accumulator; in small GEMMs one type stands for A, B and C."""
    fields: Fields = {
        "family": "gemm",
        "operation": operation,
        "library": "cublas",
        **in_groups(re.search(r"_(?P<layout>[NT]{2})_kernel", name.word)),
    }
    types = types_of(name.args[at : at + 4]) if not name.mangled else ()
    if len(types) == len(("A", "B", "C", "sum")):
        a, b, c, accumulator = types
        fields |= {"input_types": (a, b), "output_type": c, "accumulator_type": accumulator}
    elif only := type_of(name.arg(at)):
        fields |= {"input_types": (only, only)}
    return fields


def cutlass(name: Spelled) -> Fields | None:
    """Decodes CUTLASS kernels: ``cutlass::device_kernel<…GemmUniversal…>``, ``cutlass::Kernel<…>`` and similar."""
    if not name.function.startswith("cutlass") or "flash::" in name.text or "Attention" in name.text:
        return None
    return {"library": "cutlass", **looked_up("cutlass", name), **looked_up("copies of cutlass", name)}
