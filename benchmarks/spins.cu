// Kernels that spin for a known time, for benchmarks/whatif_training.py: nvcc -O2 -shared -Xcompiler -fPIC -arch=native.
#include <cuda_runtime.h>

__device__ __forceinline__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }
extern "C" {
__global__ void gemm_spin(long long cycles) { spin(cycles); }
__global__ void gemm_backward_spin(long long cycles) { spin(cycles); }
__global__ void adam_spin(long long cycles) { spin(cycles); }

int launch(int which, long long cycles, cudaStream_t stream) {
  if (which == 0) gemm_spin<<<1, 32, 0, stream>>>(cycles);
  else if (which == 1) gemm_backward_spin<<<1, 32, 0, stream>>>(cycles);
  else adam_spin<<<1, 32, 0, stream>>>(cycles);
  return (int)cudaGetLastError();
}

double cycles_per_us() {
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  float ms = 0; const long long n = 20000000;
  for (int k = 0; k < 30; k++) gemm_spin<<<1, 32>>>(n);  // until the clock is at its highest
  for (int k = 0; k < 3; k++) { cudaEventRecord(a); gemm_spin<<<1, 32>>>(n); cudaEventRecord(b); cudaEventSynchronize(b); }
  return cudaEventElapsedTime(&ms, a, b) == cudaSuccess && ms > 0 ? n / (ms * 1000.0) : 0;
}
}
