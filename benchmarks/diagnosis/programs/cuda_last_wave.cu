// Simulates options, one block for each; four more than fit at once on a GPU of 132 multiprocessors.
// CAUSE: tail
// ALSO:
#include "_run_other.cuh"

__global__ void __launch_bounds__(1024, 1) simulate(float *prices, int paths) {
  extern __shared__ float room[];
  float total = 0, state = threadIdx.x * 1e-3f;
  for (int k = 0; k < paths; k++) {
    state = state * 1.0001f + 0.01f * sinf(state);
    total += fmaxf(state - 1, 0);
  }
  room[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x == 0) prices[blockIdx.x] = room[0];
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *prices;
  cudaMalloc(&prices, sizeof(float) * 4096);
  cudaFuncSetAttribute(simulate, cudaFuncAttributeMaxDynamicSharedMemorySize, 150 * 1024);
  return run(argc, argv, [&] {
    if (fixed)
      simulate<<<132, 1024, 150 * 1024>>>(prices, 4000 * 136 / 132);
    else
      simulate<<<136, 1024, 150 * 1024>>>(prices, 4000);  // fault
  });
}
