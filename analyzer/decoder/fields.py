"""The fields of a decoded kernel name."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Family of a kernel whose name does not reveal what it does.
OTHER: Final = "other"

#: Families of kernels; docs/definitions.md defines each.
FAMILIES: Final = (
    "gemm",
    "conv",
    "attention",
    "elementwise",
    "reduce",
    "scan",
    "sort",
    "softmax",
    "normalization",
    "copy",
    "index",
    "embedding",
    "random",
    "optimizer",
    "loss",
    "pooling",
    "resample",
    "fft",
    "linalg",
    "rnn",
    "communication",
    "fill",
    OTHER,
)


class KernelName(NamedTuple):
    """A decoded kernel name; fields that the name does not reveal are None or empty.

    Attributes:
        function: The function's qualified name, without parameters and template arguments.
        family: What it does, one of :data:`FAMILIES`; ``other`` where the name does not say.
        library: Whose kernel it is, such as cublas, cutlass, cudnn, nccl, aten, inductor.
        operation: What it computes, such as pow, sum, allreduce, fprop.
        kind: How inductor wrote it: pointwise, reduction, persistent_reduction, template, foreach, split_scan.
        direction: ``forward`` or ``backward``.
        fused: The operators that are fused into it, in the order of the name.
        ordinal: The number that inductor gave it.
        functor: The class or function that is applied to each element.
        arch: What it was written for, such as sm80, or ampere where the name has only that.
        input_types: Types of the inputs in order, such as f32, tf32, bf16, e4m3; of a GEMM the types of A and B.
        output_type: Type of the output.
        accumulator_type: Type in which it computes.
        scale_type: Type of the factors alpha and beta.
        layout: Layout of the inputs: tn for a transposed A and a plain B as BLAS has it, or nhwc.
        output_layout: Layout of the output.
        tile: Elements of the output that a block makes, m and n, then k where the name has it.
        stages: Stages in which its loop is pipelined.
        warps: How the warps of a block are laid out, or only how many they are.
        warpgroups: The same for groups of four warps.
        cluster: Blocks of a cluster.
        instruction: Elements m, n, k of one tensor-core instruction.
        alignment: Elements to which the operands are aligned.
        vector: Elements that a thread loads at once.
        split_k: True where the sum over k is cut into parts that other blocks compute.
        tensor_core: Whether it computes on tensor cores.
        algorithm: Algorithm of a collective, such as ring or tree; of a convolution, such as winograd.
        protocol: Protocol of a collective, such as ll, ll128, simple.
        head_dim: Elements of a head, of attention.
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
