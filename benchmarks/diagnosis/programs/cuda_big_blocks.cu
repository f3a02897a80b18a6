// Adds up rows that are staged in shared memory, of which each block of two warps takes 100 KB.
// CAUSE: low-occupancy
// ALSO:
#include "_run_other.cuh"

const int ROWS = 1 << 14, COLUMNS = 4096;

__global__ void row_norms(const float *values, float *norms, int stage) {
  extern __shared__ float room[];
  const float *row = values + size_t(blockIdx.x) * COLUMNS;
  float sum = 0;
  for (int c = threadIdx.x; c < COLUMNS; c += blockDim.x) {
    room[c % stage] = row[c];
    sum += room[c % stage] * room[c % stage];
  }
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) atomicAdd(norms + blockIdx.x, sum);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *values, *norms;
  cudaMalloc(&values, sizeof(float) * ROWS * COLUMNS);
  cudaMalloc(&norms, sizeof(float) * ROWS);
  cudaMemset(values, 0, sizeof(float) * ROWS * COLUMNS);
  int bytes = fixed ? 256 : 100 * 1024;
  cudaFuncSetAttribute(row_norms, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024);
  return run(argc, argv, [&] { row_norms<<<ROWS, 64, bytes>>>(values, norms, fixed ? 64 : bytes / 4); });  // fault
}
