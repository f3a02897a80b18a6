// Multiplies matrices with cuBLAS in bfloat16, which is loaded at run time: nvcc needs no library.
// CAUSE:
// ALSO:
#include <cuda_bf16.h>
#include <dlfcn.h>
#include <library_types.h>

#include "_run_other.cuh"

const int SIZE = 8192, CUBLAS_OP_N = 0, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1;
typedef int (*Create)(void **handle);
typedef int (*Multiply)(void *, int, int, int, int, int, const float *, const void *, cudaDataType, int, const void *,
                        cudaDataType, int, const float *, void *, cudaDataType, int, int, int);

__global__ void fill(__nv_bfloat16 *values, unsigned seed) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, mixed = (i + seed) * 2654435761u;
  mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
  values[i] = __float2bfloat16((mixed >> 8) / 16777216.0f - 0.5f);
}

int main(int argc, char **argv) {
  void *library = dlopen("libcublas.so.13", RTLD_NOW);
  if (!library) library = dlopen("libcublas.so.12", RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  auto create = (Create)dlsym(library, "cublasCreate_v2");
  auto multiply = (Multiply)dlsym(library, "cublasGemmEx");
  void *handle;
  create(&handle);
  __nv_bfloat16 *a, *b, *c;
  for (auto matrix : {&a, &b, &c}) cudaMalloc(matrix, sizeof(*a) * SIZE * SIZE);
  fill<<<SIZE * SIZE / 256, 256>>>(a, 1);
  fill<<<SIZE * SIZE / 256, 256>>>(b, 2);
  float one = 1, zero = 0;
  return run(argc, argv, [&] {
    multiply(handle, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, &one, a, CUDA_R_16BF, SIZE, b, CUDA_R_16BF, SIZE,
             &zero, c, CUDA_R_16BF, SIZE, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  });
}
