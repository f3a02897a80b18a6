"""Kernels of PyTorch: of ATen, its own library (elementwise, reductions, functions with names), and of inductor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.decoder.fields import OTHER, WAY, by_name, exact, headed, in_groups, listed, looked_up
from kanalyze.decoder.spelling import snake, taken_apart, type_of, types_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

#: Wrappers, with the index of the template argument that is the functor; the arguments before it are types.
_WRAPPERS: Final = {
    "gpu_kernel_impl": 0,
    "gpu_kernel_impl_nocast": 0,
    "gpu_kernel": 0,
    "gpu_index_kernel": 0,
    "jitted_gpu_kernel_impl": 0,
    "func_wrapper_t": 1,
    "ReduceOp": 1,
    "BinaryFunctor": 3,
    "AUnaryFunctor": 3,
    "BUnaryFunctor": 3,
    "multi_outputs_kernel": 0,
}
_DEEPEST: Final = 6

_NOISE: Final = (
    r"^(?:CUDAFunctor(?:OnSelf)?_|launch_|opmath_)|(?:_kernel(?:_impl)?(?:_cuda)?(?:_impl)?|_cuda(?:_(?:out|kernel))?"
    r"(?:_impl)?|_functor|_out_kernel|_kernel_out|(?:CUDA)?Kernel(?:Impl(?:Internal)?)?|CUDAKernelImpl|Functor|Ops?)$"
)


class Functor(NamedTuple):
    """A decoded functor: its name, operation and family, and its input and output types."""

    name: str
    operation: str
    takes: tuple[str, ...] = ()
    gives: str | None = None

    @property
    def family(self) -> str:
        """What the operation is."""
        return by_name("aten families").get(self.operation.removesuffix("_backward"), "elementwise")

    @property
    def direction(self) -> str | None:
        """``backward`` if the operation's name says so."""
        return "backward" if "backward" in self.operation.split("_") else None


def operation_of(word: str) -> str:
    """The operation in the name of a function or functor."""
    bare, before = word, ""
    while bare and bare != before:
        before, bare = bare, re.sub(_NOISE, "", bare)
    name = snake(bare or before or word).strip("_")
    return by_name("aten operations").get(name, name)


def functor(text: str) -> Functor | None:
    """Decodes the functor in a template argument; None if it is not one."""
    given: tuple[str, ...] = ()
    inner = taken_apart(text)
    for _ in range(_DEEPEST):
        at = _WRAPPERS.get(inner.word)
        if at is None or at >= len(inner.args):
            break
        given = given or _given(inner, at)
        inner = taken_apart(inner.args[at])
    if not inner.word or type_of(inner.word) or not re.match(r"[A-Za-z_]", inner.word):
        return None
    *takes, gives = given or (None,)
    own = types_of(inner.args[:1])
    return Functor(inner.word, operation_of(inner.word), tuple(takes) or _lambda(inner) or own, gives)


def _given(wrapper: Spelled, at: int) -> tuple[str, ...]:
    """The types in a wrapper's arguments, result last, without that of a scalar operand."""
    types = types_of(wrapper.args[:at]) if at > 1 else ()
    memory = {"AUnaryFunctor": types[1:], "BUnaryFunctor": (*types[:1], *types[2:])}
    return memory.get(wrapper.word, types)


def _lambda(inner: Spelled) -> tuple[str, ...]:
    """The parameter types of the innermost lambda: ``{lambda(float)#1}`` or ``[lambda(float) (instance 1)]``."""
    at = inner.text.rfind("lambda(")
    if at < 0:
        return ()
    takes = inner.text[at + len("lambda(") :].partition(")")[0]
    return types_of(part.strip() for part in takes.split(",")) if takes else ()


def named_functor(words: tuple[str, ...]) -> Functor | None:
    """Finds the functor among the words of a mangled name, which contain no types."""
    for word in words:
        if word in _WRAPPERS or not re.search(r"Functor|_kernel|Kernel|Ops$|functor|^launch_", word):
            continue
        if word.startswith(("gpu_kernel", "TensorIterator")) or word == "Functor":
            continue
        return Functor(word, operation_of(word))
    return None


_TYPED: Final = (
    "vectorized_elementwise_kernel",
    "vectorized_templated_elementwise_kernel",
    "unrolled_elementwise_kernel",
    "unrolled_elementwise_kernel_for_multi_outputs",
)
_OPTIMIZERS: Final = r"Fused(Adam|Sgd|Adagrad)|(LAMB|Lamb|Novograd|Adagrad|Adam|SGD)\w*Functor"
_ATEN_FUNCTORS: Final = r"Fused\w+MathFunctor|(?:Binary|Unary|Pointwise|Ternary)Op|LpNorm|ZeroFunctor|CopyFunctor"
_TOPK: Final = ("sort", "topk", "aten")
_FOREACH: Final = {"multiplies": "mul", "divides": "div", "plus": "add", "minus": "sub", "norm_two": "norm"}
#: Layer norm kernels shared with RMS norm: index of the template argument that distinguishes them.
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
    """Decodes kernels of ATen by function name, with or without namespace."""
    word, inside = name.word, name.function.startswith("at::")
    if word in exact("aten elementwise"):
        return _elementwise(name)
    if word == "reduce_kernel" and (inside or name.arg(2).partition("<")[0].endswith("ReduceOp")):
        return _reduce(name)
    if word == "multi_tensor_apply_kernel":
        return _multi_tensor(name)
    if word.startswith("distribution_"):
        found = re.search(_RANDOM, name.text)
        operation, kind = found[1] if found else None, type_of(name.arg(0))
        fields = {"family": "random", "operation": operation, "library": "aten"}
        return {**fields, "vector": name.number(1), "accumulator_type": kind}
    return _own(name, inside=inside)


def _elementwise(name: Spelled) -> Fields:
    at, width = exact("aten elementwise")[name.word]
    text = name.arg(int(at or 0))
    what = named_functor(name.args) if name.mangled else functor(text) if text else None
    indexed = name.word in {"index_elementwise_kernel", "_scatter_gather_elementwise_kernel"}
    fields: Fields = {"library": "aten", "family": "index" if indexed else "elementwise"}
    if width is not None:
        fields["vector"] = name.number(int(width))
    if what is None:
        return fields
    fields |= {"functor": what.name, "operation": what.operation, "direction": what.direction}
    fields["family"] = "index" if indexed and what.family != "copy" else what.family
    if name.word not in _TYPED and "gpu_kernel_impl" not in text:  # the functor takes an element index
        return fields
    if what.operation == "copy":
        return fields | _copied(name, what)
    if re.search(r"WithCast\b|gpu_kernel_impl<", name.text):  # operands are cast at run time, from any type
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
    """The number of inputs of an elementwise kernel with one output, from the length of its pointer array."""
    found = re.search(r"rray<char ?\*, (\d{1,6})(?:ul)?>", text)
    return int(found[1]) - 1 if found else None


def _copied(name: Spelled, what: Functor) -> Fields:
    """The types of a copy: those of the lambda; for copies to float8, the output type."""
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
        fields["input_types"] = types_of([found[1]])
    return fields


def _multi_tensor(name: Spelled) -> Fields:
    """Decodes multi-tensor kernels: optimizers, torch._foreach, Apex."""
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
    """Decodes a kernel with a name of its own; an unknown one gets library and operation only."""
    known = _TOPK if "::mbtopk::" in name.function else exact("aten functions").get(name.word)
    if known is None:
        if not inside and not re.match(r"(?:c10d?|at_cuda_detail)::(?!cub|thrust)", name.function):
            return None
        told = operation_of(name.word)
        return {"library": "aten", "operation": told or None, **in_groups(re.search(WAY, told))}
    fields = headed(known)
    if fields["family"] in {"softmax", "normalization", "loss", "pooling", "resample", "conv", "scan"}:
        fields["input_types"] = types_of(name.args[:1]) if not name.mangled else ()
    if fields.get("operation") == "layer_norm" and name.flag(_RMS_NORM.get(name.word, len(name.args))):
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


# Kernels generated by inductor (torch.compile): ``triton_poi_fused_add_mul_tanh_0``.
#
# The operators between ``fused`` and the number are ATen names in alphabetical order, joined by underscores, which the
# names contain, too. So they are matched against the list of ATen operators, longest first.

_NAME: Final = r"(?:\w+?_)?triton_(poi|red|per|tem|for|spl|unk)_fused(?:_(\w*?))??(?:_(\d{1,9}))?(?:_0[0-9cde]+)?$"

#: Most underscores in an operator name, plus two.
_MOST_PARTS: Final = 9

#: Families of reductions; operators of other families are fused into them.
_REDUCING: Final = ("softmax", "normalization", "reduce", "scan", "sort", "loss")
#: Families that tell what a kind of kernel does, and the family where no operator or several tell.
_TELLING: Final = {
    "tem": (("gemm", "conv", "attention"), OTHER),
    "red": (_REDUCING, "reduce"),
    "per": (_REDUCING, "reduce"),
    "spl": (("scan",), "scan"),
}


def operators(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Splits underscore-joined operator names, longest `known` name first; unknown words stay joined."""
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


def inductor(name: Spelled) -> Fields | None:
    """Decodes Triton kernels generated by inductor."""
    if "triton_" not in name.text or not re.fullmatch(r"\w+", name.text):
        return None
    found = re.match(_NAME, name.text)
    if not found:
        template = looked_up("inductor templates", name.text)
        return {**template, "kind": "template"} if "family" in template else template or None
    kind, text, ordinal = found.groups()
    fused = operators(text, listed("aten operators")) if text else ()
    family, operation = _family(kind, fused)
    return {
        "library": "inductor",
        "kind": by_name("inductor kinds").get(kind),
        "fused": fused,
        "ordinal": int(ordinal) if ordinal else None,
        "family": family,
        "operation": operation,
        "direction": "backward" if "backward" in (operation or "") else None,
    }


def _family(kind: str, fused: Sequence[str]) -> tuple[str, str | None]:
    """The family of a fused kernel, and the one operator that determines it, if there is one."""
    families = {operator: by_name("inductor families").get(operator, "elementwise") for operator in fused}
    if kind == "poi":
        return _pointwise(families) if families else ("elementwise", None)
    if kind not in _TELLING:
        return OTHER, None
    wanted, default = _TELLING[kind]
    telling = {operator: family for operator, family in families.items() if family in wanted}
    operation = next(iter(telling)) if len(telling) == 1 else None
    return (next(iter(telling.values())) if len({*telling.values()}) == 1 else default), operation


def _pointwise(families: dict[str, str]) -> tuple[str, str | None]:
    """Elementwise, unless all operators except for views share another family: copy, gather, fill."""
    doing = {operator: family for operator, family in families.items() if operator not in by_name("views")} or families
    kinds = set(doing.values())
    operation = next(iter(doing)) if len(doing) == 1 else None
    other = next(iter(kinds)) if len(kinds) == 1 else "elementwise"
    plain = ("copy", "index", "embedding", "fill", "random", "pooling", "resample")
    return (other if other in plain else "elementwise"), operation
