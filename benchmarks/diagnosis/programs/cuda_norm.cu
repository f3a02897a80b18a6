// Squares of a large array, added up: each thread adds its own to one total.
// CAUSE: scatter-atomics
// ALSO:
#include "_run_other.cuh"

const int COUNT = 1 << 24;

__global__ void add_up(const float *values, int count, float *total) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(total, values[i] * values[i]);  // fault
}

__global__ void add_up_blocks(const float *values, int count, float *total) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += values[i] * values[i];
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  __shared__ float parts[32];
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *values, *total;
  cudaMalloc(&values, sizeof(float) * COUNT);
  cudaMalloc(&total, sizeof(float));
  cudaMemset(values, 0, sizeof(float) * COUNT);
  return run(argc, argv, [&] {
    cudaMemsetAsync(total, 0, sizeof(float));
    if (fixed)
      add_up_blocks<<<1056, 256>>>(values, COUNT, total);
    else
      add_up<<<COUNT / 256, 256>>>(values, COUNT, total);  // fault
  });
}
