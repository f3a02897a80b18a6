"""The fields of a decoded kernel name, and the tables in text by which they are looked up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    Fields = dict[str, Any]
    Head = tuple[str | None, ...]

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


class Row(NamedTuple):
    """A row of a table in text: a name with one of `parts` in it, or in which `pattern` is found, has this `head`."""

    parts: tuple[str, ...]
    pattern: str
    head: Head


def patterns(table: str) -> tuple[Row, ...]:
    """The rows of a table in text; lines of one head are one row.

    A line is ``family operation …: pattern pattern …``, where any of the patterns will do, and ``-`` stands for None.
    """
    together: list[tuple[Head, list[str]]] = []
    for head, words in _lines(table):
        if together and together[-1][0] == head:
            together[-1][1].extend(words)
        else:
            together.append((head, words))
    return tuple(
        Row(tuple(filter(_is_part, words)), "|".join(word for word in words if not _is_part(word)), head)
        for head, words in together
    )


def _is_part(pattern: str) -> bool:
    """Whether a pattern is found where it stands, letter by letter: to compile it would take longer than to look."""
    return pattern.isidentifier()


def by_name(table: str) -> dict[str, str]:
    """The one word before the colon by name, of a table as in :func:`exact`."""
    return {name: key for (key,), names in _lines(table) for name in names if key}


def exact(table: str) -> dict[str, Head]:
    """The words of the head by name, of a table as in :func:`patterns` with whole names in place of patterns."""
    return {name: head for head, names in _lines(table) for name in names}


def looked_up(rows: tuple[Row, ...], text: str, third: str = "") -> Fields:
    """Family, operation and the field `third` by the first pattern that is in `text`; empty if none is."""
    found = next((row.head for row in rows if _applies(row, text)), None)
    return {} if found is None else dict(zip(("family", "operation", third), found, strict=False))


def _applies(row: Row, text: str) -> bool:
    return any(part in text for part in row.parts) or bool(row.pattern and re.search(row.pattern, text))


def _lines(table: str) -> Iterator[tuple[Head, list[str]]]:
    for line in table.strip().splitlines():
        head, _, words = line.partition(": ")
        yield tuple(None if word == "-" else word for word in head.split()), words.split()
