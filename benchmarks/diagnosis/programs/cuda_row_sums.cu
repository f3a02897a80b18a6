// Sums the rows of a matrix, one thread a row, so that neighbouring threads read a whole row apart.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"

const int ROWS = 65536, COLUMNS = 1024;

__global__ void sum_rows_by_thread(const float *matrix, float *sums, int rows, int columns) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;  // fault
  if (row >= rows) return;
  float sum = 0;
  for (int column = 0; column < columns; column++) sum += matrix[(size_t)row * columns + column];  // fault
  sums[row] = sum;
}

__global__ void sum_rows_by_warp(const float *matrix, float *sums, int rows, int columns) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0;
  for (int column = lane; column < columns; column += 32) sum += matrix[(size_t)row * columns + column];
  for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (lane == 0) sums[row] = sum;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *matrix, *sums;
  cudaMalloc(&matrix, sizeof(float) * ROWS * COLUMNS);
  cudaMalloc(&sums, sizeof(float) * ROWS);
  cudaMemset(matrix, 0, sizeof(float) * ROWS * COLUMNS);
  return run(argc, argv, [&] {
    if (fixed)
      sum_rows_by_warp<<<ROWS / 8, 256>>>(matrix, sums, ROWS, COLUMNS);
    else
      sum_rows_by_thread<<<ROWS / 256, 256>>>(matrix, sums, ROWS, COLUMNS);  // fault
  });
}
