"""Decodes the functor, or the lambda's enclosing function, in ATen's elementwise and reduction kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.decoder.elements import type_of, types_of
from kanalyze.decoder.spelling import taken_apart

if TYPE_CHECKING:
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
_NAMES: Final = {
    "pow_tensor_scalar": "pow",
    "pow_tensor_tensor": "pow",
    "pow_scalar_tensor": "pow",
    "clamp_scalar": "clamp",
    "lerp_scalar": "lerp",
    "lerp_tensor": "lerp",
    "compare_scalar": "compare",
    "compare_eq": "compare",
    "div_true": "div",
    "direct_copy": "copy",
    "bfloat16_copy": "copy",
    "float16_copy": "copy",
    "float8_copy": "copy",
    "norm_two": "norm",
    "norm_one": "norm",
    "norm_zero": "norm",
    "abs_max": "abs_max",
    "max_nan": "max",
    "min_nan": "min",
    "arg_max": "argmax",
    "arg_min": "argmin",
    "nan_sum": "nansum",
    "and": "all",
    "or": "any",
    "cuda_scatter_gather_internal": "scatter_gather",
    "cuda_scatter_fill_internal": "scatter_fill",
    "cuda_take_put": "take_put",
    "bernoulli_tensor": "bernoulli",
    "negate": "neg",
    "reverse_power": "pow",
    "power": "pow",
    "lp_norm": "norm",
    "amp_foreach_non_finite_check_and_unscale_cuda": "non_finite_check_and_unscale",
}
#: Operations of elementwise kernels with a family of their own.
_FAMILIES: Final = {
    "fill": "fill",
    "arange": "fill",
    "linspace": "fill",
    "logspace": "fill",
    "range": "fill",
    "eye": "fill",
    "copy": "copy",
    "flip": "copy",
    "conj": "copy",
    "index": "index",
    "index_put": "index",
    "index_copy": "index",
    "index_fill": "index",
    "take": "index",
    "put": "index",
    "group_norm": "normalization",
    "batch_norm": "normalization",
    "batch_norm_elementwise": "normalization",
    "batch_norm_elementwise_backward_train": "normalization",
    "batch_norm_elementwise_backward_eval": "normalization",
    "batch_norm_calc_invstd": "normalization",
    "batch_norm_update_stats": "normalization",
    "dropout": "random",
    "masked_scale": "random",
    "bernoulli": "random",
}


class Functor(NamedTuple):
    """A decoded functor: its name, operation and family, and its input and output types."""

    name: str
    operation: str
    family: str
    takes: tuple[str, ...]
    gives: str | None

    @property
    def direction(self) -> str | None:
        """``backward`` if the operation's name says so."""
        return "backward" if "backward" in self.operation.split("_") else None


def snake(word: str) -> str:
    """CamelCase as snake_case: GeluBackward as gelu_backward."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()


def operation_of(word: str) -> str:
    """The operation in the name of a function or functor."""
    bare, before = word, ""
    while bare and bare != before:
        before, bare = bare, re.sub(_NOISE, "", bare)
    name = snake(bare or before or word).strip("_")
    return _NAMES.get(name, name)


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
    operation = operation_of(inner.word)
    family = _FAMILIES.get(operation.removesuffix("_backward"), "elementwise")
    *takes, gives = given or (None,)
    own = types_of(inner.args[:1])
    return Functor(inner.word, operation, family, tuple(takes) or _lambda(inner) or own, gives)


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


def named(words: tuple[str, ...]) -> Functor | None:
    """Finds the functor among the words of a mangled name, which contain no types."""
    for word in words:
        if word in _WRAPPERS or not re.search(r"Functor|_kernel|Kernel|Ops$|functor|^launch_", word):
            continue
        if word.startswith(("gpu_kernel", "TensorIterator")) or word == "Functor":
            continue
        operation = operation_of(word)
        return Functor(word, operation, _FAMILIES.get(operation.removesuffix("_backward"), "elementwise"), (), None)
    return None
