// Solves a tridiagonal system by Jacobi's method, and copies the residual to the host after every sweep.
// CAUSE: blocking-read
// ALSO:
#include "_run_other.cuh"

const int N = 1 << 16, SWEEPS = 200, EVERY = 50;

__global__ void sweep(const float *x, const float *b, float *out, float *residual) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N) return;
  float left = i ? x[i - 1] : 0, right = i + 1 < N ? x[i + 1] : 0;
  float next = (b[i] + left + right) * 0.4f;
  out[i] = next;
  float change = fabsf(next - x[i]);
  for (int d = 16; d; d /= 2) change = fmaxf(change, __shfl_down_sync(~0u, change, d));
  if (threadIdx.x % 32 == 0) atomicMax((int *)residual, __float_as_int(change));
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *x, *y, *b, *residual;
  cudaMalloc(&x, sizeof(float) * N);
  cudaMalloc(&y, sizeof(float) * N);
  cudaMalloc(&b, sizeof(float) * N);
  cudaMalloc(&residual, sizeof(float));
  cudaMemset(b, 1, sizeof(float) * N);
  return run(argc, argv, [&] {
    cudaMemsetAsync(x, 0, sizeof(float) * N);
    for (int k = 1; k <= SWEEPS; k++) {
      cudaMemsetAsync(residual, 0, sizeof(float));
      sweep<<<N / 256, 256>>>(x, b, y, residual);
      std::swap(x, y);
      if (!fixed || k % EVERY == 0) {
        float change;
        cudaMemcpy(&change, residual, sizeof(float), cudaMemcpyDeviceToHost);  // fault
        if (change < 0) break;
      }
    }
  });
}
