// Adds a multiple of a vector to another, at the bandwidth of the memory.
// CAUSE:
// ALSO:
#include "_run_other.cuh"

const int LENGTH = 1 << 27;

__global__ void saxpy(float a, const float4 *x, float4 *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 add = x[i], sum = y[i];
  sum.x += a * add.x, sum.y += a * add.y, sum.z += a * add.z, sum.w += a * add.w;
  y[i] = sum;
}

int main(int argc, char **argv) {
  float4 *x, *y;
  cudaMalloc(&x, sizeof(float) * LENGTH);
  cudaMalloc(&y, sizeof(float) * LENGTH);
  cudaMemset(x, 0, sizeof(float) * LENGTH);
  cudaMemset(y, 0, sizeof(float) * LENGTH);
  return run(argc, argv, [&] { saxpy<<<LENGTH / 4 / 256, 256>>>(2, x, y, LENGTH / 4); });
}
