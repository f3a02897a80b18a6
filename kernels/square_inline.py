"""A CUDA kernel and its PyTorch operator from two strings: what compiling costs against what running costs.

`load_inline` compiles a kernel of 16 × 16 blocks and registers it as the operator `kanalyze::square_matrix`. Later runs
load what the first one built; `--rebuild` builds anew. With no GPU the operator is compiled all the same, from the
same C++ with a loop in place of the kernel.

Look for:
- the range `build`: tens of seconds in nvcc and the host compiler, against milliseconds in `run`;
- `square_matrix_kernel` under the operator `kanalyze::square_matrix`, as torch's own kernels are under `aten::`;
- the same bytes per second as torch's kernel, `vectorized_elementwise_kernel`: each thread has little to do, but
  neighbouring threads read neighbouring floats.

Run: python kernels/square_inline.py --rebuild
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.cpp_extension import load_inline

from _common import Check, arguments, find_device, median_ms, phase, positive, report, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

# No header of torch: so nvcc takes seconds, not a minute.
CUDA_SOURCE = r"""
#include <cuda_runtime.h>

__global__ void square_matrix_kernel(const float* matrix, float* result, long long height, long long width) {
  long long row = static_cast<long long>(blockIdx.y) * blockDim.y + threadIdx.y;
  long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < height && column < width) {
    long long index = row * width + column;
    result[index] = matrix[index] * matrix[index];
  }
}

cudaError_t square_on_gpu(const float* matrix, float* result, long long height, long long width, cudaStream_t stream) {
  const dim3 threads(16, 16);
  const dim3 blocks((width + threads.x - 1) / threads.x, (height + threads.y - 1) / threads.y);
  square_matrix_kernel<<<blocks, threads, 0, stream>>>(matrix, result, height, width);
  return cudaGetLastError();
}
"""

CPP_SOURCE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#ifdef WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

cudaError_t square_on_gpu(const float* matrix, float* result, long long height, long long width, cudaStream_t stream);
#endif

at::Tensor square_matrix(const at::Tensor& matrix) {
  TORCH_CHECK(matrix.dim() == 2 && matrix.scalar_type() == at::kFloat, "square_matrix: wants a float32 matrix");
  const at::Tensor input = matrix.contiguous();
  at::Tensor result = at::empty_like(input);
  const float* from = input.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  if (input.numel() == 0) return result;  // no grid has 0 blocks
#ifdef WITH_CUDA
  const c10::cuda::CUDAGuard guard(input.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(square_on_gpu(from, to, input.size(0), input.size(1), stream));
#else
  for (int64_t i = 0; i < input.numel(); i++) to[i] = from[i] * from[i];
#endif
  return result;
}

TORCH_LIBRARY_FRAGMENT(kanalyze, library) { library.def("square_matrix(Tensor matrix) -> Tensor"); }
#ifdef WITH_CUDA
TORCH_LIBRARY_IMPL(kanalyze, CUDA, library) { library.impl("square_matrix", &square_matrix); }
#else
TORCH_LIBRARY_IMPL(kanalyze, CPU, library) { library.impl("square_matrix", &square_matrix); }
#endif
"""


def flops(height: int, width: int) -> int:
    """One multiplication for each element."""
    return height * width


def bytes_moved(height: int, width: int) -> int:
    """Each float32 is read once and its square is written once; blocks share nothing that a cache would save."""
    return 2 * 4 * height * width


def reference(matrix: torch.Tensor) -> torch.Tensor:
    """The square in float64, rounded once: a float32 product has to be exactly that."""
    return (matrix.double() * matrix.double()).float()


def build(device: torch.device, folder: str | None) -> None:
    """Compiles and registers the operator, or loads what an earlier run left in torch's folder of extensions."""
    on_gpu = device.type == "cuda"
    load_inline(
        name=f"kanalyze_square_{device.type}",
        cpp_sources=CPP_SOURCE,
        cuda_sources=CUDA_SOURCE if on_gpu else None,
        extra_cflags=["-O2", *(["-DWITH_CUDA"] if on_gpu else [])],
        extra_cuda_cflags=["-O2", "-lineinfo"],
        build_directory=folder,
        is_python_module=False,
        no_implicit_headers=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__)
    parser.add_argument("--size", type=positive, help="rows and columns (10000; 1000 on the CPU)")
    parser.add_argument("--steps", type=positive, default=10, help="timed calls (%(default)s)")
    parser.add_argument("--rebuild", action="store_true", help="compile also what an earlier run has built")
    args = parser.parse_args(argv)
    device = find_device()
    if device.type == "cpu":
        print("extension: a C++ loop in place of the CUDA kernel", flush=True)
    size = args.size or (10_000 if device.type == "cuda" else 1000)

    with tempfile.TemporaryDirectory() if args.rebuild else contextlib.nullcontext() as folder:
        start = time.perf_counter()
        with phase("build"):
            build(device, folder)
        report("build (or load)", (time.perf_counter() - start) * 1e3)

    torch.manual_seed(0)
    matrix = torch.randn(size, size, device=device)
    with phase("run"):
        ms = median_ms(lambda: torch.ops.kanalyze.square_matrix(matrix), device, steps=args.steps)
    report("square_matrix", ms, size_bytes=bytes_moved(size, size), operations=flops(size, size))
    check = Check()
    with phase("check"):
        check.compare("square_matrix", sampled(torch.ops.kanalyze.square_matrix(matrix)), reference(sampled(matrix)))
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
