"""Parses kernel names as spelled by nsys, torch and ncu, mangled names, and the element types in them."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Names are truncated to this length, which no library's name reaches, to bound the time.
_LONGEST: Final = 1 << 14

# Patterns are compiled on first use, not on import; none of them backtracks.
_UNNAMED: Final = r"(\w)<unnamed>::|(?:<|\b)unnamed>::|\(anonymous namespace\)::|\{anonymous\}::|_GLOBAL__N__\w*::"
#: Suffix that ROCm appends to a kernel's name for its descriptor.
_DESCRIPTOR: Final = r"(?: \[clone \.kd\]|\.kd)$"
_CAST: Final = r"\((?:unsigned |signed |long |short )*[A-Za-z_][\w:]*\)(?=-?\d)"
_PIECE: Final = r"->|[<>()\[\]{},\s]|[^<>()\[\]{},\s-]+|-"
_BRACKETS: Final = ("<", "(", "[", "{")
_CLOSERS: Final = (">", ")", "]", "}")
_BREAKS: Final = (",", "->", "-", *_CLOSERS)

_MANGLED: Final = r"L[a-z]n?(\d{1,9})E|D[FB]\d{1,4}[_bx]|S\d*_|T\d*_|(\d{1,4})(?=[A-Za-z_])|I|Z|."


class Spelled(NamedTuple):
    """A parsed kernel name.

    Attributes:
        text: The whole name, normalised: without casts, anonymous namespaces and surrounding space. For a mangled name
            its words, separated by spaces.
        function: The qualified name of the function, such as at::native::reduce_kernel.
        word: The last component of that.
        args: The template arguments, as text.
        mangled: Whether the name was mangled; then the arguments are only the words in it, in order.
    """

    text: str
    function: str
    word: str
    args: tuple[str, ...]
    mangled: bool = False

    def arg(self, number: int) -> str:
        """Template argument by index, as text; empty if absent. Of a mangled name only the first one, if numeric."""
        if number >= len(self.args) or (self.mangled and (number or not self.args[0].isdecimal())):
            return ""
        return self.args[number]

    def number(self, at: int) -> int | None:
        """Template argument as an integer."""
        return integer(self.arg(at))

    def flag(self, at: int) -> bool | None:
        """Template argument as a boolean."""
        return {"true": True, "false": False, "1": True, "0": False}.get(self.arg(at))


def spelled(name: str) -> Spelled:
    """Parses a kernel name."""
    text = re.sub(_DESCRIPTOR, "", name[:_LONGEST].strip())
    if text.startswith("_Z"):
        return _demangled(text)
    if "unnamed>" in text or "anonymous" in text or "_GLOBAL__N__" in text:
        text = re.sub(_UNNAMED, lambda found: f"{found[1]}<" if found[1] else "", text)
    if "(bool)" in text:
        text = text.replace("(bool)1", "true").replace("(bool)0", "false")
    return taken_apart(re.sub(_CAST, "", text))


def taken_apart(text: str) -> Spelled:
    """Parses a name or template argument of normalised spelling."""
    function, start = "", True
    args: tuple[str, ...] = ()
    for piece, parts in _pieces(text):
        if piece == "(" and function:
            break
        if piece == "<":
            args = parts
        elif piece.isspace() or piece in _BREAKS:
            start = True
        elif piece not in _BRACKETS:
            if start and not (piece.startswith("::") and function):
                function, args = "", ()
            function, start = function + piece, False
    function = function.strip("*&:").removesuffix("::operator")
    return Spelled(text, function, function.rpartition("::")[2], args)


def _pieces(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Splits a name into text outside of brackets and bracketed parts, each with its opening bracket.

    One that opens parameters comes before they are read, too.
    """
    opener, depth, at = "", 0, 0
    commas: list[int] = []
    for found in re.finditer(_PIECE, text):
        piece = found[0]
        if piece in _BRACKETS:
            if not depth:
                opener, at, commas = piece, found.end(), []
                if piece == "(":
                    yield piece, ()
            depth += 1
        elif not depth:
            yield piece, ()
        elif piece in _CLOSERS:
            depth -= 1
            if not depth:
                yield opener, _between(text, [at - 1, *commas, found.start()])
        elif piece == "," and depth == 1:
            commas.append(found.start())


def _between(text: str, edges: list[int]) -> tuple[str, ...]:
    parts = (text[left + 1 : right].strip() for left, right in pairwise(edges))
    return tuple(part for part in parts if part)


def snake(word: str) -> str:
    """CamelCase as snake_case: GeluBackward as gelu_backward."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()


def integer(text: str) -> int | None:
    """Parses a C++ integer literal: 4, 4u, 4ul, -1."""
    found = re.fullmatch(r"(-?[0-9]{1,18})[uUlL]{0,3}", text)
    return int(found[1]) if found else None


def unmangled(name: str) -> str:
    """Demangles a name as far as supported: function and words of its arguments; other names stay."""
    found = _demangled(name[:_LONGEST]) if name.startswith("_Z") else None
    if found is None or not found.function:
        return name
    args = ", ".join(filter(None, found.args))
    return f"{found.function}<{args}>" if args else found.function


def _demangled(text: str) -> Spelled:
    """Parses a mangled name into the function's qualified name and the other names in it."""
    words: list[str] = []
    path, at, nested = 0, 2, text[2:3] == "N"
    pattern = re.compile(_MANGLED, re.ASCII | re.DOTALL)
    while found := pattern.match(text, at):
        at = found.end()
        if found[1]:
            words.append(found[1])
        elif found[2]:
            size = int(found[2])
            word, at = text[at : at + size], at + size
            if not word.startswith("_GLOBAL__N_"):
                words.append(word)
            if not nested:
                path = path or len(words)
        elif nested and words and found[0] in {"I", "E"}:
            path = path or len(words)
    path = path or len(words)
    function = "::".join(words[:path])
    word = words[path - 1] if path else ""
    return Spelled(" ".join([function, *words[path:]]), function, word, tuple(words[path:]), mangled=True)


# Element types, each mapped to one short name.

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
_LONGEST_TYPE: Final = 80

#: Input types of tensor cores, which have no instruction for plain f32.
TENSOR_TYPES: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m1", "i8", "u8")


def type_of(text: str) -> str | None:
    """The short name of a C++ or library type; None if it is not an element type."""
    lowered = text.lower()
    known = _TYPES.get(lowered)
    if known or not text or len(text) > _LONGEST_TYPE:
        return known
    bare = re.sub(r"\b(?:const|volatile)\b|[*&]|__restrict__|\w+::", "", lowered)
    return _TYPES.get("_".join(bare.split()).replace("_>", ">"))


def types_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The short names of several types; empty if any is unknown."""
    found = [type_of(text) for text in texts]
    return tuple(short for short in found if short) if all(found) else ()
