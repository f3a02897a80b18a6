// Normalises each row of a matrix with a kernel of its own, launched in a loop of the host.
// CAUSE: host-grid-loop
// ALSO:
#include "_run_other.cuh"

const int ROWS = 1024, COLUMNS = 4096, THREADS = 256;

__global__ void normalise(const float *in, float *out, int columns) {
  const float *row = in + (size_t)blockIdx.x * columns;
  float *result = out + (size_t)blockIdx.x * columns;
  __shared__ float part[THREADS];
  float sum = 0;
  for (int column = threadIdx.x; column < columns; column += THREADS) sum += row[column] * row[column];
  part[threadIdx.x] = sum;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  __syncthreads();
  float scale = rsqrtf(part[0] / columns + 1e-6f);
  for (int column = threadIdx.x; column < columns; column += THREADS) result[column] = row[column] * scale;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *in, *out;
  cudaMalloc(&in, sizeof(float) * ROWS * COLUMNS);
  cudaMalloc(&out, sizeof(float) * ROWS * COLUMNS);
  cudaMemset(in, 0, sizeof(float) * ROWS * COLUMNS);
  return run(argc, argv, [&] {
    if (fixed) {
      normalise<<<ROWS, THREADS>>>(in, out, COLUMNS);
    } else {
      for (int row = 0; row < ROWS; row++)  // fault
        normalise<<<1, THREADS>>>(in + (size_t)row * COLUMNS, out + (size_t)row * COLUMNS, COLUMNS);  // fault
    }
  });
}
