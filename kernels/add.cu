// One GPU thread adds a million numbers: most of the run is neither kernel nor copy.
//
// The program of NVIDIA's course "An Even Easier Introduction to CUDA", as its first step leaves it: managed memory and
// a single thread. Only the checks are added: of what CUDA returns, and that a NaN counts as an error.
//
// Look for:
// - context creation, in the first cudaMallocManaged, takes most of the wall time;
// - add<<<1, 1>>> takes nearly all of the GPU's time, on 1 of its many multiprocessors;
// - unified memory moves on demand: x and y to the device (48 copies, 8.389 MB in all), y back (24 copies, 4.194 MB).
//
// Run: nvcc -lineinfo -o add add.cu && ./add

#include <cmath>
#include <cstdlib>
#include <iostream>

// Floating-point operations of adding n elements: one addition each.
constexpr long long flops(long long n) { return n; }

// Bytes that the kernel must move: x and y are read once, y is written once, 4 bytes each; no cache keeps any.
constexpr long long bytes_moved(long long n) { return 3 * 4 * n; }

// Kernel function to add the elements of two arrays
__global__ void add(int n, float *x, float *y) {
  for (int i = 0; i < n; i++) y[i] = x[i] + y[i];
}

// Ends the program with what CUDA said: a kernel that never ran is no wrong sum.
void must(cudaError_t status, const char *call) {
  if (status == cudaSuccess) return;
  std::cerr << call << ": " << cudaGetErrorString(status) << std::endl;
  std::exit(1);
}

// The largest distance from 3; NaN where there is one, which fmax alone would drop.
float max_error(int n, const float *y) {
  float error = 0.0f;
  for (int i = 0; i < n; i++) {
    if (std::isnan(y[i])) return y[i];
    error = std::fmax(error, std::fabs(y[i] - 3.0f));
  }
  return error;
}

int main() {
  int N = 1 << 20;
  float *x, *y;

  // Allocate Unified Memory, accessible from CPU or GPU
  must(cudaMallocManaged(&x, N * sizeof(float)), "cudaMallocManaged");
  must(cudaMallocManaged(&y, N * sizeof(float)), "cudaMallocManaged");

  // Initialize x and y arrays on the host
  for (int i = 0; i < N; i++) {
    x[i] = 1.0f;
    y[i] = 2.0f;
  }

  // Run kernel on 1M elements on the GPU
  add<<<1, 1>>>(N, x, y);
  must(cudaGetLastError(), "add<<<1, 1>>>");

  // Wait for GPU to finish before accessing on host
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

  // Check for errors (all values should be 3.0f)
  float error = max_error(N, y);
  std::cout << "Max error: " << error << std::endl;

  // Free memory
  must(cudaFree(x), "cudaFree");
  must(cudaFree(y), "cudaFree");

  return error == 0.0f ? 0 : 1;
}
