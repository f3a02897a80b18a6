// Computes the norm of a long vector with a single block.
// CAUSE: small-grid
// ALSO:
#include "_run_other.cuh"

const int LENGTH = 1 << 24, THREADS = 1024;

__global__ void sum_of_squares(const float *vector, float *result, int n) {
  __shared__ float part[THREADS];
  float sum = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) sum += vector[i] * vector[i];
  part[threadIdx.x] = sum;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) atomicAdd(result, part[0]);
}

__global__ void scale(float *vector, const float *squares, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) vector[i] *= rsqrtf(*squares + 1e-6f);
}

int main(int argc, char **argv) {
  int blocks = is_fixed(argc, argv) ? 264 : 1;  // fault
  float *vector, *squares;
  cudaMalloc(&vector, sizeof(float) * LENGTH);
  cudaMalloc(&squares, sizeof(float));
  cudaMemset(vector, 0, sizeof(float) * LENGTH);
  return run(argc, argv, [&] {
    cudaMemsetAsync(squares, 0, sizeof(float));
    sum_of_squares<<<blocks, THREADS>>>(vector, squares, LENGTH);  // fault
    scale<<<LENGTH / 256, 256>>>(vector, squares, LENGTH);
  });
}
