// Lets a grid of temperatures settle, and waits for the GPU after each of the sweeps.
// CAUSE: unneeded-sync
// ALSO:
#include <utility>

#include "_run_other.cuh"

const int SIZE = 1024, SWEEPS = 200;

__global__ void sweep(const float *in, float *out, int n) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column == 0 || row == 0 || column >= n - 1 || row >= n - 1) return;
  int i = row * n + column;
  out[i] = 0.25f * (in[i - 1] + in[i + 1] + in[i - n] + in[i + n]);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *now, *next;
  cudaMalloc(&now, sizeof(float) * SIZE * SIZE);
  cudaMalloc(&next, sizeof(float) * SIZE * SIZE);
  cudaMemset(now, 0, sizeof(float) * SIZE * SIZE);
  cudaMemset(next, 0, sizeof(float) * SIZE * SIZE);
  dim3 threads(32, 8), blocks(SIZE / 32, SIZE / 8);
  return run(argc, argv, [&] {
    for (int k = 0; k < SWEEPS; k++) {
      sweep<<<blocks, threads>>>(now, next, SIZE);
      if (!fixed) cudaDeviceSynchronize();  // fault
      std::swap(now, next);
    }
  });
}
