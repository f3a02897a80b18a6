"""The fields of a decoded kernel name, and the tables in tables.txt by which they are looked up."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kanalyze.decoder.spelling import snake, type_of, types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]
    Head = tuple[str | None, ...]

_FILE: Final = Path(__file__).with_name("tables.txt")

#: Family of a kernel whose name does not reveal what it does.
OTHER: Final = "other"


class KernelName(NamedTuple):
    """A decoded kernel name; fields that the name does not reveal are None or empty.

    Attributes:
        function: The function's qualified name, without parameters and template arguments.
        family: What it does, such as gemm, of those in docs/kernel-names.md; ``other`` if the name does not reveal it.
        library: The library, such as cublas, cutlass, cudnn, nccl, aten, inductor.
        operation: What it computes, such as pow, sum, allreduce, fprop.
        kind: Inductor's kind of kernel: pointwise, reduction, persistent_reduction, template, foreach, split_scan.
        direction: ``forward`` or ``backward``.
        fused: The fused operators, in the order of the name.
        ordinal: Inductor's kernel number.
        functor: The class or function applied to each element.
        arch: The target architecture, such as sm80, or ampere if the name has only that.
        input_types: Types of the inputs in order, such as f32, tf32, bf16, e4m3; of a GEMM the types of A and B.
        output_type: Type of the output.
        accumulator_type: Type in which it computes.
        scale_type: Type of the scale factors alpha and beta.
        layout: Layout of the inputs, such as tn (A transposed, B not, as in BLAS) or nhwc.
        output_layout: Layout of the output.
        tile: Output elements per block, m and n, then k if in the name.
        stages: Pipeline stages of the main loop.
        warps: Layout or number of the warps of a block.
        warpgroups: Layout or number of its warpgroups (four warps each).
        cluster: Blocks per cluster.
        instruction: Shape m, n, k of the tensor-core instruction.
        alignment: Alignment of the operands, in elements.
        vector: Elements loaded at once per thread.
        split_k: True if the sum over k is split across blocks.
        tensor_core: Whether it uses tensor cores.
        algorithm: Algorithm of a collective, such as ring or tree; of a convolution, such as winograd.
        protocol: Protocol of a collective, such as ll, ll128, simple.
        head_dim: Head dimension, of attention.
        causal: Whether attention is causal.
    """

    function: str = ""
    family: str = OTHER
    library: str | None = None
    operation: str | None = None
    kind: str | None = None
    direction: str | None = None
    fused: tuple[str, ...] = ()
    ordinal: int | None = None
    functor: str | None = None
    arch: str | None = None
    input_types: tuple[str, ...] = ()
    output_type: str | None = None
    accumulator_type: str | None = None
    scale_type: str | None = None
    layout: str | None = None
    output_layout: str | None = None
    tile: tuple[int, ...] = ()
    stages: int | None = None
    warps: tuple[int, ...] = ()
    warpgroups: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    instruction: tuple[int, ...] = ()
    alignment: int | None = None
    vector: int | None = None
    split_k: bool | None = None
    tensor_core: bool | None = None
    algorithm: str | None = None
    protocol: str | None = None
    head_dim: int | None = None
    causal: bool | None = None

    @property
    def dtype(self) -> str | None:
        """The distinct input types; the output or accumulator type if the inputs are unknown."""
        if self.input_types:
            return ",".join(dict.fromkeys(self.input_types))
        return self.output_type or self.accumulator_type


#: Fields that are sizes, such as 128x64, and fields that are one number; the others are texts.
_SIZES: Final = ("tile", "cluster", "instruction", "warps", "warpgroups")
_NUMBERS: Final = ("stages", "alignment", "vector", "ordinal", "head_dim")
_TYPES: Final = ("output_type", "accumulator_type", "scale_type")


def in_groups(found: re.Match[str] | None) -> Fields:
    """The fields that the named groups of a match hold, by the names of the groups; none of groups without text."""
    texts = found.groupdict() if found else {}
    return {name: _field(name, text) for name, text in texts.items() if text}


def _field(name: str, text: str) -> Any:  # noqa: ANN401 - each field has a type of its own
    if name in _SIZES:
        return tuple(map(int, re.findall(r"\d+", text)))
    if name in _NUMBERS:
        return int(text)
    if name == "input_types":
        return types_of([text])
    if name in _TYPES:
        return type_of(text)
    return f"sm{text}" if name == "arch" and text.isdecimal() else text


#: A word in snake case that is a direction.
WAY: Final = r"(?:^|_)(?P<direction>forward|backward)(?=_|$)"


def direction(text: str) -> str | None:
    """``backward`` or ``forward`` where one of the words of a name says so, in snake or camel case."""
    words = {*re.split(r"[^a-z0-9]+", snake(text))}
    if words & {"bwd", "backward"}:
        return "backward"
    return "forward" if words & {"fwd", "forward"} else None


class _Row(NamedTuple):
    """A row of a table: a name with one of `parts` in it, or in which `pattern` is found, has this `head`."""

    parts: tuple[str, ...]
    pattern: str
    head: Head


@cache
def _patterns(table: str) -> tuple[_Row, ...]:
    """The rows of a table of patterns: a line with named groups is one, and lines of one head are one together."""
    together: list[tuple[Head, list[str]]] = []
    for head, words in _lines(table):
        if together and together[-1][0] == head and "(?P<" not in words[0]:
            together[-1][1].extend(words)
        else:
            together.append((head, words))
    return tuple(
        _Row(tuple(filter(str.isidentifier, words)), "|".join(word for word in words if not word.isidentifier()), head)
        for head, words in together
    )


@cache
def by_name(table: str) -> dict[str, str]:
    """The one word before the colon by name, of a table of names."""
    return {name: key for (key,), names in _lines(table) for name in names if key}


@cache
def exact(table: str) -> dict[str, Head]:
    """The words before the colon by name, of a table of names."""
    return {name: head for head, names in _lines(table) for name in names}


@cache
def listed(table: str) -> frozenset[str]:
    """The words of a table that is a list of them."""
    return frozenset(" ".join(_tables()[table]).split())


def looked_up(table: str, text: str) -> Fields:
    """What the first row of a table of patterns says of which one is in `text`; empty if none is."""
    for row in _patterns(table):
        if row.parts and any(part in text for part in row.parts):
            return headed(row.head)
        if row.pattern and (found := re.search(row.pattern, text)):
            return headed(row.head) | in_groups(found)
    return {}


def by_table(table: str, part: str) -> Callable[[Spelled], Fields | None]:
    """A decoder of the names of which a table of patterns tells by `part`, an attribute of :class:`Spelled`."""
    return lambda name: looked_up(table, getattr(name, part)) or None


def headed(head: Head) -> Fields:
    """The fields in the head of a line."""
    return {
        name: word for name, word in zip(("family", "operation", "library", "direction"), head, strict=False) if word
    }


def _lines(table: str) -> Iterator[tuple[Head, list[str]]]:
    for line in _tables()[table]:
        head, _, words = line.partition(": ")
        yield tuple(None if word == "-" else word for word in head.split()), words.split()


@cache
def _tables() -> dict[str, list[str]]:
    """The lines of each table in tables.txt, beside this module, without comments."""
    _, *parts = re.split(r"^\[(.+)\]\n", _FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = ([line for line in part.splitlines() if line and not line.startswith("#")] for part in parts[1::2])
    return dict(zip(parts[::2], lines, strict=True))
