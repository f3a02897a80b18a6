"""Remedies in the language of programs that are neither of PyTorch nor of CUDA's own calls.

Rules speak to users of PyTorch and of CUDA C++. What stands here takes the place of a rule's action and remedy in other
worlds (:mod:`kanalyze.analyses.host._worlds`); a rule without a row says what holds in any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.analyses.host._worlds import CUPY, JAX, NUMBA, OPENACC, OPENMP, PYTHON, spoken

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.report import Report

_DATA: Final = {
    OPENMP: "target data around the loop, or target enter data before it",
    OPENACC: "a data region around the loop, or enter data before it",
}
_REGION: Final = (
    "Map the arrays once around the loop and let its kernels find them there; update only what changes, and the host's "
    "copy once at the end."
)

#: By rule and world: action, in a line, and remedy, in a sentence.
_WORDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "serial-copy": {
        JAX: (
            "jax.device_put of the next batch before the step runs",
            "device_put does not block: call it for the next batch first, so that it copies while the step computes.",
        ),
        CUPY: (
            "cp.cuda.Stream(non_blocking=True) and a second buffer: copy ahead",
            "Copy in a stream of its own, into a second buffer, while kernels work on the first.",
        ),
        NUMBA: (
            "cuda.stream() and a second buffer: copy ahead of the kernels",
            "Copy in a stream of its own, into a second buffer, while kernels work on the first.",
        ),
        OPENMP: (
            "target update … nowait depend(…): copy a part while another computes",
            "Divide the work into parts, and copy each one with nowait and depend while another one computes.",
        ),
        OPENACC: (
            "async(1) and async(2): copy a part while another computes",
            "Divide the work into parts, and give each one its queue with async(n); wait at the end.",
        ),
    },
    "default-stream": {
        PYTHON: (
            "cp.cuda.Stream(non_blocking=True), or CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=1",
            "Create streams that do not wait for the default stream, or use a default stream per thread.",
        ),
        OPENMP: (
            "async(n) or nowait on all kernels: none on the default queue",
            "What is on no queue waits for all queues.",
        ),
    },
    "unneeded-sync": {
        JAX: (
            "block_until_ready() once at the end, not after each call",
            "JAX orders its work by itself: wait where a result is read, and nowhere else.",
        ),
        CUPY: (
            "no synchronize() in the loop: wait where a result is read",
            "CuPy's work on one stream runs in order: wait where a result is read, and nowhere else.",
        ),
        NUMBA: (
            "no cuda.synchronize() in the loop: wait where a result is read",
            "Kernels on one stream run in order: wait where a result is read, and nowhere else.",
        ),
        OPENMP: (
            "target … nowait depend(…), and one taskwait at the end",
            "A target region without nowait waits for its kernel: let depend order them, and wait once at the end.",
        ),
        OPENACC: (
            "async on kernels, and one wait at the end",
            "A region without async waits for its kernel: queue them with async, and wait once at the end.",
        ),
    },
    "blocking-read": {
        JAX: (
            "float(x), x.item(), np.asarray(x) only every N steps",
            "Keep results on the GPU and read them every so many steps; jnp.where and jax.lax.cond in place of if.",
        ),
        CUPY: (
            "x.get(), float(x), if x > 0 only every N steps",
            "Keep results on the GPU and read them every so many steps; cp.where in place of if.",
        ),
        NUMBA: (
            "copy_to_host() only every N steps",
            "Keep results on the GPU and read them every so many steps, or into pinned memory on a stream.",
        ),
        OPENMP: (
            "target data around the loop; target update from(…) rarely",
            "Keep arrays on the GPU, and update the host's copy only where the host reads it.",
        ),
        OPENACC: (
            "a data region around the loop; update host(…) rarely",
            "Keep arrays on the GPU, and update the host's copy only where the host reads it.",
        ),
    },
    "cpu-operators": {
        JAX: (
            "in the jitted step: jax.random.categorical, jax.lax.top_k, jnp.sort",
            "jax.numpy, jax.lax and jax.random have what NumPy has: keep the arrays on the GPU, and read what is left.",
        ),
        PYTHON: (
            "the same function of CuPy on the array that is there, in place of NumPy's",
            "CuPy has what NumPy has: keep the arrays on the GPU, and read what is left.",
        ),
        OPENMP: (_DATA[OPENMP], _REGION),
        OPENACC: (_DATA[OPENACC], _REGION),
    },
    "downloads": {
        JAX: (
            "reduce on the GPU in the jitted step; np.asarray(x) every N steps",
            "Compute on the GPU what is looked at (sums, norms, histograms) and read that, or all of it every N steps.",
        ),
        PYTHON: (
            "reduce on the GPU (x.max(axis=1)); x.get() every N steps",
            "Compute on the GPU what is looked at (sums, norms, histograms) and read that, or all of it every N steps.",
        ),
        OPENMP: (_DATA[OPENMP], _REGION),
        OPENACC: (_DATA[OPENACC], _REGION),
    },
    "small-copies": {
        JAX: (
            "jax.device_put of one array; jnp.split on the GPU",
            "Put the pieces into one NumPy array, copy that once, and divide it on the GPU.",
        ),
        CUPY: (
            "cp.asarray(np.concatenate(pieces)), and views of that",
            "Put the pieces into one NumPy array, copy that once, and take views of it.",
        ),
        NUMBA: (
            "cuda.to_device(np.concatenate(pieces)), and slices of that",
            "Put the pieces into one NumPy array, copy that once, and take slices of it.",
        ),
        OPENMP: (_DATA[OPENMP], _REGION),
        OPENACC: (_DATA[OPENACC], _REGION),
    },
    "pageable-copy": {
        JAX: (
            "keep data on the GPU: jax.device_put once, before the loop",
            "What the steps use again belongs on the GPU once; of new batches device_put the next while one computes.",
        ),
        CUPY: (
            "cupyx.empty_pinned(…), then x.set(…, stream=…) or x.get(out=…)",
            "Copy from and to pinned memory on a stream: cupyx.empty_pinned or cupyx.zeros_pinned, made once.",
        ),
        NUMBA: (
            "cuda.pinned_array(…) once, then copy on a cuda.stream()",
            "Copy from and to pinned memory on a stream: cuda.pinned_array or cuda.pinned(array).",
        ),
        PYTHON: (
            "pinned memory, made once, and copies on a stream",
            "Copy from and to pinned memory on a stream.",
        ),
        OPENMP: (_DATA[OPENMP], _REGION),
        OPENACC: (_DATA[OPENACC], _REGION),
    },
    "pinned-allocation": {
        PYTHON: ("pin once, and reuse the buffers", "A cost of starting up: pin less, once, or while the GPU works."),
    },
    "allocation-in-loop": {
        JAX: (
            "no XLA_PYTHON_CLIENT_ALLOCATOR=platform: JAX keeps memory by itself",
            "Leave JAX its pool: with the allocator `platform` each array is allocated and freed.",
        ),
        CUPY: (
            "no free_all_blocks() in the loop, no cp.cuda.set_allocator(None)",
            "Leave CuPy its memory pool, which keeps what is freed; write into arrays that exist: out=….",
        ),
        NUMBA: (
            "cuda.device_array before the loop, and reuse it",
            "Allocate before the loop and give kernels device arrays: NumPy arrays are copied to and fro by each call.",
        ),
        OPENMP: (_DATA[OPENMP], _REGION),
        OPENACC: (_DATA[OPENACC], _REGION),
    },
    "unified-memory-prefetch": {
        OPENMP: ("target data around the loop; no managed memory", _REGION),
        OPENACC: ("a data region around the loop; no managed memory", _REGION),
    },
    "unified-memory-thrash": {
        OPENMP: ("target data around the loop; no managed memory", _REGION),
        OPENACC: ("a data region around the loop; no managed memory", _REGION),
    },
    "dram-bound": {
        JAX: (
            "one jax.jit around more of the step; bfloat16: fewer bytes to move",
            "They gain by moving fewer bytes only: let XLA fuse more of the step, or use smaller types.",
        ),
        CUPY: (
            "cupy.fuse or one ElementwiseKernel, smaller types: fewer bytes to move",
            "They gain by moving fewer bytes only: fuse them with their neighbours, or use smaller types.",
        ),
    },
    "uncoalesced": {
        NUMBA: (
            "neighbouring threads on neighbouring elements: x[i, cuda.grid(1)]",
            "Let the thread's index be the last one of the array, x[i, cuda.grid(1)], or transpose the array.",
        ),
        OPENMP: (
            "threads over the contiguous index: swap the loops, or collapse(2)",
            "Give threads the loop whose index is contiguous in memory: of C the inner one, of Fortran the outer one.",
        ),
        OPENACC: (
            "vector over the contiguous index: swap the loops, loop gang outside",
            "Give the loop whose index is contiguous in memory to vector, and the other one to gang.",
        ),
    },
    "unfused-attention": {
        JAX: (
            'jax.nn.dot_product_attention(q, k, v, implementation="cudnn")',
            "Let one kernel do it, in bfloat16 or float16, with is_causal=True in place of a mask where that is meant.",
        ),
    },
    "layout-conversions": {
        JAX: (
            'images in NHWC: dimension_numbers=("NHWC", "HWIO", "NHWC")',
            "Keep images and convolutions in NHWC, the layout of cuDNN's fastest kernels.",
        ),
    },
    "no-tf32": {
        JAX: (
            'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
            "Allow TF32 where its precision suffices, or compute in bfloat16.",
        ),
        CUPY: ("CUPY_TF32=1 in the environment", "Allow TF32 where its precision suffices, or compute in float16."),
    },
    "old-architecture-gemm": {
        JAX: ("a newer jaxlib; dimensions in multiples of 64", "Use a jaxlib with newer cuBLAS and cuDNN."),
        CUPY: ("CuPy for a newer CUDA; dimensions in multiples of 64", "Use CuPy for a newer CUDA."),
    },
}


def in_words_of(report: Report, one: Finding) -> Finding:
    """The finding with action and remedy in the language of the program's world."""
    known = spoken(report, _WORDS.get(one.rule, {}), ("", ""))
    return one._replace(action=known[0], remedy=known[1]) if known[0] else one
