"""Kernels of ATen, PyTorch's own library: elementwise, reducing, and all that have a name of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.aten_functions import FUNCTIONS
from kanalyze.decoder.elements import type_of, types_of
from kanalyze.decoder.functors import functor, named, operation_of

if TYPE_CHECKING:
    from kanalyze.decoder.functors import Functor
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

#: Kernels that apply a functor to each element: where the functor stands, and where the vector width does.
_ELEMENTWISE: Final = {
    "vectorized_elementwise_kernel": (1, 0),
    "vectorized_templated_elementwise_kernel": (1, 0),
    "unrolled_elementwise_kernel": (0, None),
    "unrolled_elementwise_kernel_for_multi_outputs": (1, None),
    "elementwise_kernel": (2, None),
    "_elementwise_kernel": (2, None),
    "kernelPointwiseApply1": (0, None),
    "kernelPointwiseApply2": (0, None),
    "kernelPointwiseApply3": (0, None),
    "legacy_elementwise_kernel": (2, None),
    "elementwise_kernel_manual_unroll": (2, None),
    "elementwise_kernel_with_index": (1, None),
    "index_elementwise_kernel": (2, None),
    "_scatter_gather_elementwise_kernel": (2, None),
}
_TYPED: Final = (
    "vectorized_elementwise_kernel",
    "vectorized_templated_elementwise_kernel",
    "unrolled_elementwise_kernel",
    "unrolled_elementwise_kernel_for_multi_outputs",
)
_OPTIMIZERS: Final = r"Fused(Adam|Sgd|Adagrad)|(LAMB|Lamb|Novograd|Adagrad|Adam|SGD)\w*Functor"
_ATEN_FUNCTORS: Final = r"Fused\w+MathFunctor|(?:Binary|Unary|Pointwise|Ternary)Op|LpNorm|ZeroFunctor|CopyFunctor"
_TOPK: Final = ("sort", "topk", None)
_FOREACH: Final = {"multiplies": "mul", "divides": "div", "plus": "add", "minus": "sub", "norm_two": "norm"}
#: Kernels of layer norms that are those of RMS norms, too: where the argument stands that tells.
_RMS_NORM: Final = {
    "vectorized_layer_norm_kernel": 2,
    "layer_norm_grad_input_kernel": 2,
    "layer_norm_grad_input_kernel_vectorized": 2,
    "GammaBetaBackwardCUDAKernelTemplate": 7,
}
_RANDOM: Final = (
    r"\b(normal|uniform|exponential|bernoulli|bernoulli_tensor|random_from_to|random_full_64_bits_range|random"
    r"|cauchy|geometric|log_normal|poisson|dropout)_(?:cuda_)?(?:tensor_)?kernel"
)


def aten(name: Spelled) -> Fields | None:
    """The kernels of ATen by what their functions are called, with or without the namespace."""
    word, inside = name.word, name.function.startswith("at::")
    if word in _ELEMENTWISE:
        return _elementwise(name)
    if word == "reduce_kernel" and (inside or name.arg(2).partition("<")[0].endswith("ReduceOp")):
        return _reduce(name)
    if word == "multi_tensor_apply_kernel":
        return _multi_tensor(name)
    if word.startswith("distribution_"):
        found = re.search(_RANDOM, name.text) or next(
            (hit for part in name.args if name.mangled and (hit := re.match(_RANDOM, part))), None
        )
        short = type_of(name.arg(0))
        return {
            "family": "random",
            "operation": found[1] if found else None,
            "library": "aten",
            "vector": name.number(1),
            "accumulator_type": short,
        }
    return _own(name, inside=inside)


def _elementwise(name: Spelled) -> Fields:
    at, width = _ELEMENTWISE[name.word]
    text = name.arg(at)
    what = named(name.args) if name.mangled else functor(text) if text else None
    indexed = name.word in {"index_elementwise_kernel", "_scatter_gather_elementwise_kernel"}
    fields: Fields = {"library": "aten", "family": "index" if indexed else "elementwise"}
    if width is not None:
        fields["vector"] = name.number(width)
    if what is None:
        return fields
    fields |= {"functor": what.name, "operation": what.operation, "direction": what.direction}
    fields["family"] = "index" if indexed and what.family != "copy" else what.family
    if name.word not in _TYPED and "gpu_kernel_impl" not in text:  # the functor takes the number of an element
        return fields
    if what.operation == "copy":
        return fields | _copied(name, what)
    if re.search(r"WithCast\b|gpu_kernel_impl<", name.text):  # operands are converted from whatever they are
        return fields | {"accumulator_type": what.takes[0] if what.takes else None}
    inputs = _operands(name.text)
    takes = what.takes
    if inputs is not None and len(takes) == 1:
        takes = takes * inputs
    if what.family == "fill":
        return fields | {"output_type": takes[0] if takes else what.takes[0] if what.takes else None}
    same = what.name.startswith("CUDAFunctor") and takes
    return fields | {"input_types": takes, "output_type": what.gives or (takes[0] if same else None)}


def _operands(text: str) -> int | None:
    """The inputs of an elementwise kernel with one output: it gets an array of so many pointers, less the output's."""
    found = re.search(r"rray<char ?\*, (\d{1,6})(?:ul)?>", text)
    return int(found[1]) - 1 if found else None


def _copied(name: Spelled, what: Functor) -> Fields:
    """Types of a copy: the lambda's, and for copies to a small type that one."""
    takes = what.takes[0] if what.takes else None
    if to := re.match(r"(bfloat16|float16|float8)_copy", what.name):  # float8 is one of several types
        return {"input_types": (takes,) if takes else (), "output_type": type_of(to[1])}
    if re.search(r"WithCast\b|gpu_kernel_impl<", name.text):
        return {"output_type": takes}
    return {"input_types": (takes,) if takes else (), "output_type": takes}


def _reduce(name: Spelled) -> Fields:
    fields: Fields = {"library": "aten", "family": "reduce"}
    if name.mangled:
        word = next((word for word in name.args if re.search(r"Ops$|_functor$|Functor$|_kernel_cuda$", word)), None)
        return fields | ({"functor": word, "operation": operation_of(word)} if word else {})
    text = name.arg(2)
    if what := functor(text) if text else None:
        fields |= {"functor": what.name, "operation": what.operation}
    if found := re.match(r"(?:\w+::)*ReduceOp<([\w:]+(?:<[\w:]+>)?),", text):
        short = type_of(found[1])
        fields["input_types"] = (short,) if short else ()
    return fields


def _multi_tensor(name: Spelled) -> Fields:
    """Work on lists of tensors: optimizers and torch._foreach, and Apex."""
    fields: Fields = {"family": "optimizer"}
    applied = next((part for part in name.args[1:] if "Functor" in part), "")
    if name.mangled:
        applied = next((part for part in name.args if part.endswith("Functor")), "")
    inner = re.match(r"[\w:]*", applied)[0].rpartition("::")[2]  # type: ignore[index]
    if name.function.startswith("at::") or re.match(_ATEN_FUNCTORS, inner):
        fields["library"] = "aten"
    elif inner:
        fields["library"] = "apex"
    fields["functor"] = inner or None
    if fused := re.search(_OPTIMIZERS, inner):
        fields["operation"] = (fused[1] or fused[2]).lower()
    elif inner:
        behind = name.args[name.args.index(applied) + 1 :]
        operator = operation_of(re.match(r"[\w:]*", behind[0])[0].rpartition("::")[2]) if behind else ""  # type: ignore[index]
        plain = operator and not type_of(operator)
        fields["operation"] = _FOREACH.get(operator, operator) if plain else operation_of(inner)
    types = types_of(re.findall(r"<([\w:]+)", applied)[:1])
    return fields | {"input_types": types}


def _own(name: Spelled, *, inside: bool) -> Fields | None:
    """A kernel with a name of its own; one that is not known keeps its library and the operation of its name."""
    known = _TOPK if "::mbtopk::" in name.function else FUNCTIONS.get(name.word)
    if known is None:
        if not inside and not re.match(r"(?:c10d?|at_cuda_detail)::(?!cub|thrust)", name.function):
            return None
        told = operation_of(name.word)
        way = next((way for way in ("forward", "backward") if way in told.split("_")), None)
        return {"library": "aten", "operation": told or None, "direction": way}
    family, operation, direction = known
    fields: Fields = {"library": "aten", "family": family, "operation": operation, "direction": direction}
    if family in {"softmax", "normalization", "loss", "pooling", "resample", "conv", "scan"}:
        fields["input_types"] = types_of(name.args[:1]) if not name.mangled else ()
    if operation == "layer_norm" and name.flag(_RMS_NORM.get(name.word, len(name.args))):
        fields["operation"] = "rms_norm"
    elif name.word.startswith("softmax_warp_"):
        fields["operation"] = "log_softmax" if name.flag(4) else "softmax"
        fields["output_type"] = type_of(name.arg(1))
        fields["accumulator_type"] = type_of(name.arg(2))
    elif "SoftMax" in name.word:
        softmax = "log_softmax" if "LogSoftMax" in name.text else "softmax"
        first = 1 if name.number(0) is not None else 0
        types = types_of(name.args[first : first + 3]) if not name.mangled else ()
        fields |= {"operation": softmax, "input_types": types[:1]}
        if len(types) == len(("input", "accumulator", "output")):
            fields |= {"accumulator_type": types[1], "output_type": types[2]}
    return fields


DECODERS: Final = (aten,)
