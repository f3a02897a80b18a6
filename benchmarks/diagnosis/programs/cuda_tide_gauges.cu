// Fits tides to readings of a gauge: each group of constituents is projected on the readings, which arrive anew.
// CAUSE: zero-copy-reads
// ALSO:
#include "_run_other.cuh"

const int READINGS = 1 << 24, GROUPS = 6, TIDES = 8, BLOCKS = 528, THREADS = 256;

struct Frequencies {
  float cycles[TIDES];  // an hour
};

// Sums of the readings times the cosine and sine of each tide of a group.
__global__ void project(const float *readings, Frequencies tides, float2 *sums) {
  float2 own[TIDES] = {};
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < READINGS; i += BLOCKS * THREADS) {
    float height = readings[i];  // fault
    float hours = i * 0.015625f;
#pragma unroll
    for (int k = 0; k < TIDES; k++) {
      float sine, cosine, turns = tides.cycles[k] * hours;
      sincospif(2 * (turns - rintf(turns)), &sine, &cosine);
      own[k].x += height * cosine;
      own[k].y += height * sine;
    }
  }
  __shared__ float2 parts[THREADS / 32];
  for (int k = 0; k < TIDES; k++) {
    float2 v = own[k];
    for (int half = 16; half; half /= 2) {
      v.x += __shfl_down_sync(~0u, v.x, half);
      v.y += __shfl_down_sync(~0u, v.y, half);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < THREADS / 32; w++) v.x += parts[w].x, v.y += parts[w].y;
      sums[k * BLOCKS + blockIdx.x] = v;
    }
    __syncthreads();
  }
}

// Adds up what the blocks have found: one block for each tide.
__global__ void amplitudes(const float2 *sums, float *found) {
  float2 v = {};
  for (int b = threadIdx.x; b < BLOCKS; b += 32) {
    float2 part = sums[blockIdx.x * BLOCKS + b];
    v.x += part.x, v.y += part.y;
  }
  for (int half = 16; half; half /= 2) {
    v.x += __shfl_down_sync(~0u, v.x, half);
    v.y += __shfl_down_sync(~0u, v.y, half);
  }
  if (threadIdx.x == 0) found[blockIdx.x] = 2 * sqrtf(v.x * v.x + v.y * v.y) / READINGS;
}

int main(int argc, char **argv) {
  const bool copied = is_main_fixed(argc, argv);
  float *readings, *readings_there;
  cudaHostAlloc(&readings, sizeof(float) * READINGS, cudaHostAllocMapped);  // fault
  if (copied)
    cudaMalloc(&readings_there, sizeof(float) * READINGS);
  else
    cudaHostGetDevicePointer(&readings_there, readings, 0);  // fault
  unsigned seed = 1;
  for (int i = 0; i < READINGS; i++) {
    seed = seed * 1664525u + 1013904223u;
    readings[i] = (seed >> 8) * 0x1p-24f - 0.5f;
  }
  float2 *sums;
  float *found, sample[GROUPS * TIDES];
  cudaMalloc(&sums, sizeof(float2) * GROUPS * TIDES * BLOCKS);
  cudaMalloc(&found, sizeof(float) * GROUPS * TIDES);
  Frequencies tides[GROUPS];
  for (int k = 0; k < GROUPS * TIDES; k++) tides[k / TIDES].cycles[k % TIDES] = 0.03f + 0.0037f * k;

  int code = run(argc, argv, [&] {
    if (copied) cudaMemcpyAsync(readings_there, readings, sizeof(float) * READINGS, cudaMemcpyHostToDevice);
    for (int g = 0; g < GROUPS; g++) project<<<BLOCKS, THREADS>>>(readings_there, tides[g], sums + g * TIDES * BLOCKS);
    amplitudes<<<GROUPS * TIDES, 32>>>(sums, found);
  });
  cudaMemcpy(sample, found, sizeof sample, cudaMemcpyDeviceToHost);
  fprintf(stderr, "some of it: %.7f %.7f\n", sample[0], sample[GROUPS * TIDES - 1]);
  return code;
}
