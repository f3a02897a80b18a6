"""GELU five ways: many small kernels against one, and what fusing them saves.

`manual` is the tanh formula as eight torch operations, each of which reads and writes whole matrices; `torch` is
`torch.nn.functional.gelu`; `cuda`, `triton` and `compile` do all of it in one kernel each. With no GPU, Triton's kernel
is interpreted and the CUDA kernel's place is taken by a C++ loop.

Look for:
- launches: 8 kernels a call against 1, and the time between them;
- bytes moved: 18 matrices' worth against 2 (see `matrices_moved`), which is the ratio of the times as well, since all
  of them are bound by memory (`cuda`, which loads one number at a time, by the wait for it);
- `compile` fuses `manual` into one Triton kernel by itself; its name tells the operations that went into it.

Run: python kernels/gelu.py --variant manual
Variants: manual, torch, cuda, triton, compile
"""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.utils.cpp_extension import load_inline

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import triton
import triton.language as tl

from _common import Check, arguments, can_compile, chosen, find_device, median_ms, phase, positive, report, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Gelu = Callable[[torch.Tensor], torch.Tensor]

VARIANTS = ("manual", "torch", "cuda", "triton", "compile")
BLOCK_SIZE = 1024
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
EPSILON = 2.0**-24  # half a unit in the last place of a float32

# No header of torch: so nvcc takes seconds, not a minute.
CUDA_SOURCE = r"""
#include <cuda_runtime.h>

__global__ void gelu_kernel(const float* x, float* out, long long n) {
  long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 0.5f * x[i] * (1.0f + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

cudaError_t gelu_on_gpu(const float* x, float* out, long long n, cudaStream_t stream) {
  constexpr int threads = 256;
  gelu_kernel<<<static_cast<unsigned int>((n + threads - 1) / threads), threads, 0, stream>>>(x, out, n);
  return cudaGetLastError();
}
"""

CPP_SOURCE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>
#include <cmath>

#ifdef WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

cudaError_t gelu_on_gpu(const float* x, float* out, long long n, cudaStream_t stream);
#endif

at::Tensor gelu(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat, "gelu: wants float32");
  const at::Tensor input = tensor.contiguous();
  at::Tensor out = at::empty_like(input);
  const float* x = input.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  if (input.numel() == 0) return out;  // no grid has 0 blocks
#ifdef WITH_CUDA
  const c10::cuda::CUDAGuard guard(input.device());
  C10_CUDA_CHECK(gelu_on_gpu(x, to, input.numel(), c10::cuda::getCurrentCUDAStream()));
#else
  for (int64_t i = 0; i < input.numel(); i++) {
    to[i] = 0.5f * x[i] * (1.0f + std::tanh(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
  }
#endif
  return out;
}

TORCH_LIBRARY_FRAGMENT(kanalyze, library) { library.def("gelu(Tensor x) -> Tensor"); }
#ifdef WITH_CUDA
TORCH_LIBRARY_IMPL(kanalyze, CUDA, library) { library.impl("gelu", &gelu); }
#else
TORCH_LIBRARY_IMPL(kanalyze, CPU, library) { library.impl("gelu", &gelu); }
#endif
"""


def manual(x: torch.Tensor) -> torch.Tensor:
    """The tanh formula, one torch operation after the other."""
    return 0.5 * x * (1 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x**3)))


def reference(x: torch.Tensor) -> torch.Tensor:
    """The same formula in float64."""
    return manual(x.double())


def budget(x: torch.Tensor) -> float:
    """How far from the reference float32 may be.

    Each of its eight roundings is at most half a unit in the last place of a number no larger than |x|, or than 1
    where |x| is smaller, and none grows on its way to the result: a relative error of tanh's argument u is multiplied
    by x / 2 · u / cosh²(u), which is below 0.23 |x|. Twice the sum is granted, since tanh itself is some units off.
    """
    return 2 * 8 * EPSILON * max(1.0, float(x.abs().max()))


@triton.jit
def gelu_kernel(out, x, n, BLOCK_SIZE: tl.constexpr):
    """The formula for one block of elements."""
    i = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = tl.load(x + i, mask=i < n)
    inner = 0.7978845608 * (value + 0.044715 * value * value * value)
    small = tl.exp(-2 * tl.abs(inner))  # Triton's language has no tanh; this way nothing overflows
    tanh = tl.where(inner < 0, small - 1, 1 - small) / (1 + small)
    tl.store(out + i, 0.5 * value * (1 + tanh), mask=i < n)


def gelu_triton(x: torch.Tensor) -> torch.Tensor:
    """The formula as one Triton kernel."""
    out = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](out, x, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out


def build_cuda(device: torch.device) -> Gelu:
    """The formula as one CUDA kernel, or as a C++ loop for the CPU."""
    on_gpu = device.type == "cuda"
    load_inline(
        name=f"kanalyze_gelu_{device.type}",
        cpp_sources=CPP_SOURCE,
        cuda_sources=CUDA_SOURCE if on_gpu else None,
        extra_cflags=["-O2", *(["-DWITH_CUDA"] if on_gpu else [])],
        extra_cuda_cflags=["-O2", "-lineinfo"],
        is_python_module=False,
        no_implicit_headers=True,
    )
    gelu: Gelu = torch.ops.kanalyze.gelu
    return gelu


def function_of(variant: str, device: torch.device) -> Gelu:
    """What a variant calls; `cuda` is built and `compile` prepared here."""
    if variant == "cuda":
        return build_cuda(device)
    if variant == "compile":
        return torch.compile(manual, dynamic=False)
    return {
        "manual": manual,
        "torch": lambda x: functional.gelu(x, approximate="tanh"),
        "triton": gelu_triton,
    }[variant]


def launches(variant: str) -> int:
    """Kernels that a call launches: power, 0.044715 ×, +, √(2/π) ×, tanh, 1 +, 0.5 × and the last product."""
    return 8 if variant == "manual" else 1


def matrices_moved(variant: str) -> int:
    """Matrices read and written: two for each operation with a number, three for each of the two with a matrix."""
    return 6 * 2 + 2 * 3 if variant == "manual" else 2


def flops(n: int) -> int:
    """Operations on n elements: the power is two products, the other seven, tanh among them, count one each."""
    return 9 * n


def bytes_moved(n: int, variant: str = "torch") -> int:
    """Bytes to and from memory for n float32 elements; no cache keeps what one kernel wrote for the next."""
    return 4 * n * matrices_moved(variant)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, VARIANTS)
    parser.add_argument("--size", type=positive, help="rows and columns (8192; 64 on the CPU)")
    parser.add_argument("--steps", type=positive, default=10, help="timed calls of each (%(default)s)")
    args = parser.parse_args(argv)
    device = find_device()
    variants = chosen(args.variant, VARIANTS)
    if device.type == "cpu":
        print("triton: interpreted, so its times mean nothing; cuda: a C++ loop in its place", flush=True)
    if not can_compile(device):
        print("compile: left out, since torch.compile found no C++ compiler", flush=True)
        variants = tuple(variant for variant in variants if variant != "compile")
    size = args.size or (8192 if device.type == "cuda" else 64)

    torch.manual_seed(0)
    x = torch.randn(size, size, device=device)
    check = Check()
    for variant in variants:
        with phase(f"build {variant}"):
            function = function_of(variant, device)
        with phase(variant):
            ms = median_ms(partial(function, x), device, steps=args.steps)
        report(variant, ms, size_bytes=bytes_moved(size**2, variant), operations=flops(size**2))
        with phase("check"):
            check.compare(variant, sampled(function(x)), reference(sampled(x)), budget(sampled(x)))
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
