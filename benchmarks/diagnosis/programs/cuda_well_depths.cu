// Trimmed means and medians of the depths of water in many wells: each block sorts the measurements of one well.
// CAUSE: low-occupancy
// ALSO:
#include "_run_other.cuh"
#include <cfloat>
#include <vector>

const int WELLS = 80000, FEWEST = 180, MOST = 480, THREADS = 64, MONTHS = 2;
const int LONGEST_SERIES = 32768;  // what the database allows

struct Depths {
  const float *values;
  const int *begins;
};

struct Summary {
  float median, trimmed_mean, range;
};

__device__ inline float sum_of_block(float value, float *parts) {
  for (int d = 16; d; d /= 2) value += __shfl_xor_sync(~0u, value, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int k = 0; k < THREADS / 32; k++) value += parts[k];
  return value;
}

// bitonic, of a power of two
__device__ inline void sort_shared(float *series, int padded) {
  for (int size = 2; size <= padded; size *= 2)
    for (int apart = size / 2; apart; apart /= 2) {
      for (int k = threadIdx.x; k < padded / 2; k += THREADS) {
        int low = 2 * k - (k & (apart - 1)), high = low + apart;
        float a = series[low], b = series[high];
        if ((a > b) == !(low & size)) series[low] = b, series[high] = a;
      }
      __syncthreads();
    }
}

__global__ __launch_bounds__(THREADS) void summarize(Depths depths, float pump, float trim, Summary *summaries) {
  extern __shared__ float series[];
  __shared__ float parts[THREADS / 32];
  const int begin = depths.begins[blockIdx.x], count = depths.begins[blockIdx.x + 1] - begin;
  int padded = 2;
  while (padded < count) padded *= 2;
  for (int k = threadIdx.x; k < padded; k += THREADS) {
    float depth = k < count ? depths.values[begin + k] : FLT_MAX;
    series[k] = depth > 0 && k < count ? depth - pump : depth;
  }
  __syncthreads();
  sort_shared(series, padded);

  const int cut = int(trim * count);
  float total = 0;
  for (int k = cut + threadIdx.x; k < count - cut; k += THREADS) total += series[k];
  total = sum_of_block(total, parts);
  if (threadIdx.x == 0) {
    float median = 0.5f * (series[(count - 1) / 2] + series[count / 2]);
    summaries[blockIdx.x] = {median, total / (count - 2 * cut), series[count - 1] - series[0]};
  }
}

// what the water of all wells did between two months
__global__ void changes(const Summary *before, const Summary *after, float *falls, int wells) {
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= wells) return;
  float means = after[k].trimmed_mean - before[k].trimmed_mean;
  falls[k] = after[k].median - before[k].median + 0.1f * means;
}

size_t bytes_of_series(const std::vector<int> &begins, bool by_data) {
  int longest = LONGEST_SERIES;  // fault
  if (by_data) {
    longest = 2;
    for (size_t k = 0; k + 1 < begins.size(); k++)
      while (longest < begins[k + 1] - begins[k]) longest *= 2;
  }
  return longest * sizeof(float);
}

int main(int argc, char **argv) {
  std::vector<int> begins(WELLS + 1, 0);
  unsigned state = 1;
  auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int k = 0; k < WELLS; k++) begins[k + 1] = begins[k] + FEWEST + random() % (MOST - FEWEST + 1);
  std::vector<float> values(begins[WELLS]);
  for (float &value : values) value = 2 + 30 * (random() & 0xffff) / 65536.f;

  float *values_at, *falls;
  int *begins_at;
  Summary *summaries;
  cudaMalloc(&values_at, sizeof(float) * values.size());
  cudaMalloc(&begins_at, sizeof(int) * begins.size());
  cudaMalloc(&summaries, sizeof(Summary) * WELLS * MONTHS);
  cudaMalloc(&falls, sizeof(float) * WELLS);
  cudaMemcpy(values_at, values.data(), sizeof(float) * values.size(), cudaMemcpyHostToDevice);
  cudaMemcpy(begins_at, begins.data(), sizeof(int) * begins.size(), cudaMemcpyHostToDevice);
  const size_t shared = bytes_of_series(begins, is_main_fixed(argc, argv));
  cudaFuncSetAttribute(summarize, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  const Depths depths{values_at, begins_at};

  int code = run(argc, argv, [&] {
    for (int month = 0; month < MONTHS; month++)
      summarize<<<WELLS, THREADS, shared>>>(depths, 0.5f * month, 0.1f, summaries + month * WELLS);  // fault
    changes<<<(WELLS + 255) / 256, 256>>>(summaries, summaries + WELLS, falls, WELLS);
  });
  std::vector<float> result(WELLS);
  cudaMemcpy(result.data(), falls, sizeof(float) * WELLS, cudaMemcpyDeviceToHost);
  double mean = 0;
  for (float fall : result) mean += fall / WELLS;
  fprintf(stderr, "water fell by %.5f\n", mean);
  return code;
}
