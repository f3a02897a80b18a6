"""Decodes kernels of PyTorch: ATen's (elementwise ones, reductions, functions with names), and those of inductor."""

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from kanalyze.decoder import fields as tables
from kanalyze.decoder.fields import Fields, Spelled

#: Wrappers, with the index of the template argument that is the functor; the arguments before it are types.
_WRAPPERS: Final = {
    **dict.fromkeys(("gpu_kernel_impl", "gpu_kernel_impl_nocast", "gpu_kernel", "gpu_index_kernel"), 0),
    **dict.fromkeys(("jitted_gpu_kernel_impl", "multi_outputs_kernel"), 0),
    **dict.fromkeys(("func_wrapper_t", "ReduceOp"), 1),
    **dict.fromkeys(("BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor"), 3),
}

_NOISE: Final = (
    r"^(?:CUDAFunctor(?:OnSelf)?_|launch_|opmath_)|(?:_kernel(?:_impl)?(?:_cuda)?(?:_impl)?|_cuda(?:_(?:out|kernel))?"
    r"(?:_impl)?|_functor|_out_kernel|_kernel_out|(?:CUDA)?Kernel(?:Impl(?:Internal)?)?|CUDAKernelImpl|Functor|Ops?)$"
)


class Functor(NamedTuple):
    """A decoded functor: its name, and its input and output types."""

    name: str
    takes: tuple[str, ...] = ()
    gives: str | None = None

    @property
    def fields(self) -> Fields:
        """Its name and operation, and ``backward`` if that says so."""
        operation = operation_of(self.name)
        way = "backward" if "backward" in operation.split("_") else None
        return {"functor": self.name, "operation": operation, "direction": way}


def operation_of(word: str) -> str:
    """The operation in the name of a function or functor."""
    bare, before = word, ""
    while bare and bare != before:
        before, bare = bare, re.sub(_NOISE, "", bare)
    name = tables.snake(bare or before or word).strip("_")
    return tables.by_name("aten operations").get(name, name)


def functor(text: str) -> Functor | None:
    """Decodes the functor in a template argument; None if it is not one."""
    types: tuple[str, ...] = ()
    inner = tables.taken_apart(text)
    for _ in range(6):
        at = _WRAPPERS.get(inner.word)
        if at is None or at >= len(inner.args):
            break
        if not types:  # the types in the wrapper's arguments, result last, without that of a scalar operand
            types = tables.types_of(inner.args[:at]) if at > 1 else ()
            types = {"AUnaryFunctor": types[1:], "BUnaryFunctor": (*types[:1], *types[2:])}.get(inner.word, types)
        inner = tables.taken_apart(inner.args[at])
    if tables.type_of(inner.word) or not re.match(r"[A-Za-z_]", inner.word):
        return None
    *takes, gives = types or (None,)
    return Functor(inner.word, tuple(takes) or _lambda(inner) or tables.types_of(inner.args[:1]), gives)


def _lambda(inner: Spelled) -> tuple[str, ...]:
    """The parameter types of the innermost lambda: ``{lambda(float)#1}`` or ``[lambda(float) (instance 1)]``."""
    _, opener, behind = inner.text.rpartition("lambda(")
    takes = behind.partition(")")[0] if opener else ""
    return tables.types_of(part.strip() for part in takes.split(",")) if takes else ()


def named_functor(words: tuple[str, ...]) -> Functor | None:
    """Finds the functor among the words of a mangled name, which contain no types."""
    plain = (word for word in words if word not in _WRAPPERS and word != "Functor")
    named = (word for word in plain if re.search(r"Functor|_kernel|Kernel|Ops$|functor|^launch_", word))
    functor_word = next((word for word in named if not word.startswith(("gpu_kernel", "TensorIterator"))), None)
    return Functor(functor_word) if functor_word else None


#: Kernels whose functor takes the elements, and not an index of one.
_TYPED: Final = r"(?:vectorized(?:_templated)?|unrolled)_elementwise_kernel(?:_for_multi_outputs)?"
#: Layer norm kernels shared with RMS norm: index of the template argument that distinguishes them.
_RMS_NORM: Final = {
    **dict.fromkeys(("vectorized_layer_norm_kernel", "layer_norm_grad_input_kernel"), 2),
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
    if word in tables.exact("aten elementwise"):
        return _elementwise(name)
    if word == "reduce_kernel" and (inside or name.arg(2).partition("<")[0].endswith("ReduceOp")):
        return _reduce(name)
    if word == "multi_tensor_apply_kernel":
        return _multi_tensor(name)
    if word.startswith("distribution_"):
        match = re.search(_RANDOM, name.text)
        fields = {"family": "random", "operation": match[1] if match else None, "library": "aten"}
        return {**fields, "vector": name.number(1), "accumulator_type": tables.type_of(name.arg(0))}
    return _own(name, inside=inside)


def _elementwise(name: Spelled) -> Fields:
    at, width = tables.exact("aten elementwise")[name.word]
    text = name.arg(int(at or 0))
    what = named_functor(name.args) if name.mangled else functor(text) if text else None
    indexed = name.word in {"index_elementwise_kernel", "_scatter_gather_elementwise_kernel"}
    fields: Fields = {"library": "aten", "family": "index" if indexed else "elementwise"}
    if width is not None:
        fields["vector"] = name.number(int(width))
    if what is None:
        return fields
    fields |= what.fields
    family = tables.by_name("aten families").get(fields["operation"].removesuffix("_backward"), "elementwise")
    fields["family"] = "index" if indexed and family != "copy" else family
    typed = re.fullmatch(_TYPED, name.word) or "gpu_kernel_impl" in text
    return fields | _typed(name, what, fields["operation"], family) if typed else fields


def _typed(name: Spelled, what: Functor, operation: str, family: str) -> Fields:
    """The types of the operands of an elementwise kernel."""
    takes = what.takes
    first = takes[0] if takes else None
    cast = re.search(r"WithCast\b|gpu_kernel_impl<", name.text)  # at run time, from any type
    if operation == "copy":  # the types of the lambda; float8 is one of several types
        to = re.match(r"(bfloat16|float16|float8)_copy", what.name)
        output = tables.type_of(to[1]) if to else first
        return {"output_type": output} if cast and not to else {"input_types": takes[:1], "output_type": output}
    if cast:
        return {"accumulator_type": first}
    if family == "fill":
        return {"output_type": first}
    # of a kernel with one output the length of its pointer array tells the number of inputs
    pointers = re.search(r"rray<char ?\*, (\d{1,6})(?:ul)?>", name.text)
    if pointers and len(takes) == 1:
        takes = takes * (int(pointers[1]) - 1)
    same = what.name.startswith("CUDAFunctor") and takes
    return {"input_types": takes, "output_type": what.gives or (takes[0] if same else None)}


def _reduce(name: Spelled) -> Fields:
    fields: Fields = {"library": "aten", "family": "reduce"}
    if name.mangled:
        word = next((word for word in name.args if re.search(r"Ops$|_functor$|Functor$|_kernel_cuda$", word)), None)
        return fields | ({"functor": word, "operation": operation_of(word)} if word else {})
    text = name.arg(2)
    if what := functor(text) if text else None:
        fields |= {"functor": what.name, "operation": operation_of(what.name)}
    return fields | tables.in_groups(re.match(r"(?:\w+::)*ReduceOp<(?P<input_types>[\w:]+(?:<[\w:]+>)?),", text))


def _multi_tensor(name: Spelled) -> Fields:
    """Decodes multi-tensor kernels: optimizers, torch._foreach, Apex."""
    applied = next((part for part in name.args[1:] if "Functor" in part), "")
    if name.mangled:
        applied = next((part for part in name.args if part.endswith("Functor")), "")
    inner = _last_scope(applied)
    of_functor = tables.looked_up("multi-tensor functors", name, inner)
    fields: Fields = {"family": "optimizer", "functor": inner or None, **of_functor}
    if name.function.startswith("at::"):
        fields["library"] = "aten"
    if inner and "operation" not in fields:
        behind = name.args[name.args.index(applied) + 1 :]
        operator = operation_of(_last_scope(behind[0])) if behind else ""
        plain = operator and not tables.type_of(operator)
        fields["operation"] = tables.by_name("foreach").get(operator, operator) if plain else operation_of(inner)
    return fields | {"input_types": tables.types_of(re.findall(r"<([\w:]+)", applied)[:1])}


def _last_scope(text: str) -> str:
    """The last component of the qualified name that a text begins with."""
    return re.split(r"[^\w:]", text, maxsplit=1)[0].rpartition("::")[2]


def _own(name: Spelled, *, inside: bool) -> Fields | None:
    """Decodes a kernel with a name of its own; an unknown one gets library and operation only."""
    head = ("sort", "topk", "aten") if "::mbtopk::" in name.function else tables.exact("aten functions").get(name.word)
    if head is None:
        if not inside and not re.match(r"(?:c10d?|at_cuda_detail)::(?!cub|thrust)", name.function):
            return None
        operation = operation_of(name.word)
        return {"library": "aten", "operation": operation or None, **tables.in_groups(re.search(tables.WAY, operation))}
    fields = tables.headed(head, name, name.word)
    if fields["family"] in {"softmax", "normalization", "loss", "pooling", "resample", "conv", "scan"}:
        fields["input_types"] = tables.types_of(name.args[:1]) if not name.mangled else ()
    if fields.get("operation") == "layer_norm" and name.flag(_RMS_NORM.get(name.word, len(name.args))):
        fields["operation"] = "rms_norm"
    elif name.word.startswith("softmax_warp_"):
        fields["operation"] = "log_softmax" if name.flag(4) else "softmax"
    elif "SoftMax" in name.word:
        first = 1 if name.number(0) is not None else 0
        types = tables.types_of(name.args[first : first + 3]) if not name.mangled else ()
        fields |= {"operation": "log_softmax" if "LogSoftMax" in name.text else "softmax", "input_types": types[:1]}
        if len(types) == len(("input", "accumulator", "output")):
            fields |= {"accumulator_type": types[1], "output_type": types[2]}
    return fields


# Kernels generated by inductor (torch.compile): ``triton_poi_fused_add_mul_tanh_0``.
#
# The operators between ``fused`` and the number are ATen names in alphabetical order, joined by underscores, which the
# names contain, too. So they are matched against the list of ATen operators, longest first.

_NAME: Final = r"(?:\w+?_)?triton_(poi|red|per|tem|for|spl|unk)_fused(?:_(\w*?))??(?:_(\d{1,9}))?(?:_0[0-9cde]+)?$"
#: Families of reductions; operators of other families are fused into them.
_REDUCING: Final = ("softmax", "normalization", "reduce", "scan", "sort", "loss")
#: Families that tell what a kind of kernel does, and the family where no operator or several tell.
_TELLING: Final = {
    "tem": (("gemm", "conv", "attention"), tables.OTHER),
    "red": (_REDUCING, "reduce"),
    "per": (_REDUCING, "reduce"),
    "spl": (("scan",), "scan"),
}


def operators(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Splits underscore-joined operator names, longest `known` name first; unknown words stay joined."""
    parts, names, at, begin = text.split("_"), list[str](), 0, 0
    while at < len(parts):
        ends = range(min(at + 9, len(parts)), at, -1)  # no name has more than seven underscores
        end = next((end for end in ends if "_".join(parts[at:end]) in known), None)
        if end is not None:
            names += ["_".join(parts[begin:at]), "_".join(parts[at:end])]
            begin = end
        at = end or at + 1
    return tuple(name for name in (*names, "_".join(parts[begin:])) if name.strip("_"))


def inductor(name: Spelled) -> Fields | None:
    """Decodes Triton kernels generated by inductor."""
    if "triton_" not in name.text or not re.fullmatch(r"\w+", name.text):
        return None
    match = re.match(_NAME, name.text)
    if not match:
        return tables.looked_up("inductor templates", name) or None
    kind, text, ordinal = match.groups()
    fused = operators(text, tables.by_name("inductor families")) if text else ()
    family, operation = _family(kind, fused)
    return {
        "library": "inductor",
        "kind": tables.by_name("inductor kinds").get(kind),
        "fused": fused,
        "ordinal": int(ordinal) if ordinal else None,
        "family": family,
        "operation": operation,
        "direction": "backward" if "backward" in (operation or "") else None,
    }


def _family(kind: str, fused: Sequence[str]) -> tuple[str, str | None]:
    """The family of a fused kernel, and the one operator that determines it, if there is one.

    A pointwise one is elementwise, unless all operators except for views share another family: copy, gather, fill.
    """
    families = {operator: tables.by_name("inductor families").get(operator, "elementwise") for operator in fused}
    if kind == "poi":
        views = tables.by_name("views")
        telling = {operator: family for operator, family in families.items() if operator not in views} or families
        deciding: Collection[str] = ("copy", "index", "embedding", "fill", "random", "pooling", "resample")
        default = "elementwise"
    elif kind in _TELLING:
        deciding, default = _TELLING[kind]
        telling = {operator: family for operator, family in families.items() if family in deciding}
    else:
        return tables.OTHER, None
    kinds = {*telling.values()}
    family = next(iter(kinds)) if len(kinds) == 1 else default
    return family if family in deciding else default, next(iter(telling)) if len(telling) == 1 else None
