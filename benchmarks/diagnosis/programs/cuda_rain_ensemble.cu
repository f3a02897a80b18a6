// Medians, tenths and mean of the rain that 64 runs of a weather model forecast, for each place and hour.
// CAUSE:
// ALSO:
#include "_run_other.cuh"

const int PLACES = 1 << 21, RUNS = 64, HOURS = 12, THREADS = 256;

struct alignas(16) Summary {
  float mean, low, median, high;
};

// Sorts what the runs forecast, in registers.
__device__ void sort_runs(float (&v)[RUNS]) {
#pragma unroll
  for (int size = 2; size <= RUNS; size *= 2)
#pragma unroll
    for (int gap = size / 2; gap > 0; gap /= 2)
#pragma unroll
      for (int k = 0; k < RUNS; k++)
        if ((k ^ gap) > k) {
          float least = fminf(v[k], v[k ^ gap]), most = fmaxf(v[k], v[k ^ gap]);
          v[k] = k & size ? most : least;
          v[k ^ gap] = k & size ? least : most;
        }
}

__global__ void __launch_bounds__(THREADS) summarise(const float *__restrict__ rain, Summary *__restrict__ summaries) {
  int place = blockIdx.x * THREADS + threadIdx.x;
  float v[RUNS], total = 0;
#pragma unroll
  for (int r = 0; r < RUNS; r++) v[r] = __ldcs(rain + r * PLACES + place);
#pragma unroll
  for (int r = 0; r < RUNS; r++) total += v[r];
  sort_runs(v);
  summaries[place] = {total / RUNS, v[RUNS / 10], 0.5f * (v[RUNS / 2 - 1] + v[RUNS / 2]), v[RUNS - 1 - RUNS / 10]};
}

__global__ void make_up(float *rain, size_t count) {
  for (size_t i = blockIdx.x * size_t(THREADS) + threadIdx.x; i < count; i += size_t(gridDim.x) * THREADS) {
    unsigned h = unsigned(i) * 2654435761u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    rain[i] = fmaxf(h * 0x1p-32f * 12 - 4, 0.f);
  }
}

int main(int argc, char **argv) {
  const size_t an_hour = size_t(PLACES) * RUNS;
  float *rain;
  Summary *summaries, sample[2];
  cudaMalloc(&rain, sizeof(float) * an_hour * HOURS);
  cudaMalloc(&summaries, sizeof(Summary) * PLACES * HOURS);
  make_up<<<132 * 8, THREADS>>>(rain, an_hour * HOURS);

  int code = run(argc, argv, [&] {
    for (int hour = 0; hour < HOURS; hour++)
      summarise<<<PLACES / THREADS, THREADS>>>(rain + hour * an_hour, summaries + size_t(hour) * PLACES);
  });
  cudaMemcpy(sample, summaries, sizeof sample, cudaMemcpyDeviceToHost);
  fprintf(stderr, "some of it: %.6f %.6f %.6f %.6f\n", sample[0].mean, sample[0].low, sample[1].median, sample[1].high);
  return code;
}
