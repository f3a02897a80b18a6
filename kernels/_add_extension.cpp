// The Python function of add_extension.py: checks its tensors, then starts the kernel, or a loop where built without CUDA.

// Not torch/extension.h, which holds all of PyTorch and takes the compiler four times as long.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

#ifdef WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

cudaError_t add_on_gpu(const float *x, const float *y, float *out, long long n, cudaStream_t stream);
#endif

at::Tensor add(const at::Tensor &x, const at::Tensor &y) {
  TORCH_CHECK(x.sizes() == y.sizes(), "add: sizes differ: ", x.sizes(), " and ", y.sizes());
  TORCH_CHECK(x.device() == y.device(), "add: devices differ: ", x.device(), " and ", y.device());
  TORCH_CHECK(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat, "add: wants float32");
  const at::Tensor a = x.contiguous(), b = y.contiguous();
  at::Tensor out = at::empty_like(a);
  if (out.numel() == 0) return out;  // no grid has 0 blocks
  const float *from_a = a.const_data_ptr<float>(), *from_b = b.const_data_ptr<float>();
  float *to = out.mutable_data_ptr<float>();
#ifdef WITH_CUDA
  TORCH_CHECK(x.is_cuda(), "add: wants tensors on a GPU");
  const c10::cuda::CUDAGuard guard(a.device());
  C10_CUDA_CHECK(add_on_gpu(from_a, from_b, to, out.numel(), c10::cuda::getCurrentCUDAStream()));
#else
  for (int64_t i = 0; i < out.numel(); i++) to[i] = from_a[i] + from_b[i];
#endif
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "Adds two float32 tensors.";
  module.def("add", &add, "x + y, element by element");
}
