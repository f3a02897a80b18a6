// Counts values in a few bins, each thread with an atomic addition to the bin in global memory.
// CAUSE: scatter-atomics
// ALSO:
#include <vector>

#include "_run_other.cuh"

const int VALUES = 1 << 24, BINS = 16;

__global__ void count_in_global(const unsigned char *values, unsigned *bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[values[i]], 1);  // fault
}

__global__ void count_in_shared(const unsigned char *values, unsigned *bins, int n) {
  __shared__ unsigned mine[32][BINS + 1];
  for (int k = threadIdx.x; k < 32 * (BINS + 1); k += blockDim.x) (&mine[0][0])[k] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[threadIdx.x % 32][values[i]], 1);
  __syncthreads();
  if (threadIdx.x >= BINS) return;
  unsigned sum = 0;
  for (int copy = 0; copy < 32; copy++) sum += mine[copy][threadIdx.x];
  atomicAdd(&bins[threadIdx.x], sum);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  std::vector<unsigned char> made(VALUES);
  for (auto &value : made) value = rand() % BINS;
  unsigned char *values;
  unsigned *bins;
  cudaMalloc(&values, VALUES);
  cudaMalloc(&bins, sizeof(unsigned) * BINS);
  cudaMemcpy(values, made.data(), VALUES, cudaMemcpyHostToDevice);
  return run(argc, argv, [&] {
    cudaMemsetAsync(bins, 0, sizeof(unsigned) * BINS);
    if (fixed)
      count_in_shared<<<1056, 256>>>(values, bins, VALUES);
    else
      count_in_global<<<VALUES / 256, 256>>>(values, bins, VALUES);  // fault
  });
}
