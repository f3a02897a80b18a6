// A surrogate of a reactor: layers of a network in bfloat16, whose bias is one more row of the inputs (cuBLAS).
// CAUSE: unaligned-gemm
// ALSO:
#include <cuda_bf16.h>
#include <dlfcn.h>
#include <library_types.h>

#include "_run_other.cuh"

const int WIDTH = 4096, SAMPLES = 16384, LAYERS = 6;
const int CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1;
typedef int (*Create)(void **handle);
typedef int (*Multiply)(void *, int, int, int, int, int, const float *, const void *, cudaDataType, int, const void *,
                        cudaDataType, int, const float *, void *, cudaDataType, int, int, int);

// Inputs of a sample, then 1 for the bias, then zeros if there is room.
__global__ void fill_inputs(__nv_bfloat16 *values, int stride) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= stride) return;
  unsigned mixed = (blockIdx.y * stride + row) * 2654435761u;
  mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
  float value = row < WIDTH ? (mixed >> 8) / 16777216.0f : row == WIDTH;
  values[(size_t)blockIdx.y * stride + row] = __float2bfloat16(value);
}

__global__ void fill_weights(__nv_bfloat16 *values, int stride) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= stride) return;
  unsigned mixed = (blockIdx.y * stride + row + 7) * 2654435761u;
  mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
  float value = row <= WIDTH ? ((mixed >> 8) / 16777216.0f - 0.5f) * 0.07f : 0.f;
  values[(size_t)blockIdx.y * stride + row] = __float2bfloat16(value);
}

__global__ void rectify(__nv_bfloat16 *values, int stride) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  __nv_bfloat16 &value = values[(size_t)blockIdx.y * stride + row];
  value = __hmax(value, __float2bfloat16(0.f));
}

int main(int argc, char **argv) {
  void *library = dlopen("libcublas.so.13", RTLD_NOW);
  if (!library) library = dlopen("libcublas.so.12", RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  auto create = (Create)dlsym(library, "cublasCreate_v2");
  auto multiply = (Multiply)dlsym(library, "cublasGemmEx");
  void *handle;
  create(&handle);
  const int inputs = WIDTH + 1;  // fault
  const int stride = is_fixed(argc, argv) ? (inputs + 63) / 64 * 64 : inputs;  // fault
  __nv_bfloat16 *weights[LAYERS], *activations[2];
  for (auto &matrix : weights) {
    cudaMalloc(&matrix, sizeof(*matrix) * stride * WIDTH);
    fill_weights<<<dim3(stride / 256 + 1, WIDTH), 256>>>(matrix, stride);
  }
  for (auto &matrix : activations) {
    cudaMalloc(&matrix, sizeof(*matrix) * stride * SAMPLES);
    fill_inputs<<<dim3(stride / 256 + 1, SAMPLES), 256>>>(matrix, stride);
  }
  float one = 1, zero = 0;
  return run(argc, argv, [&] {
    for (int layer = 0; layer < LAYERS; layer++) {
      const __nv_bfloat16 *from = activations[layer % 2];
      __nv_bfloat16 *to = activations[1 - layer % 2];
      multiply(handle, CUBLAS_OP_T, CUBLAS_OP_N, WIDTH, SAMPLES, stride, &one, weights[layer], CUDA_R_16BF,  // fault
               stride, from, CUDA_R_16BF, stride, &zero, to, CUDA_R_16BF, stride, CUBLAS_COMPUTE_32F,  // fault
               CUBLAS_GEMM_DEFAULT);  // fault
      rectify<<<dim3(WIDTH / 256, SAMPLES), 256>>>(to, stride);
    }
  });
}
