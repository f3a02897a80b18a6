// Finds the 32 nearest of eight million descriptors for each of a batch of queries.
// CAUSE: full-sort
// ALSO:
#include <cub/device/device_radix_sort.cuh>

#include "_run_other.cuh"

const int POINTS = 1 << 23, DIMENSIONS = 8, QUERIES = 12, NEAREST = 32;
const int BINS = 4096, CANDIDATES = 8192;

__global__ void fill(float *points, int *indices) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  indices[i] = i;
  for (int d = 0; d < DIMENSIONS; d++) {
    unsigned mixed = (i * DIMENSIONS + d) * 2654435761u;
    mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
    points[(size_t)d * POINTS + i] = (mixed >> 8) / 16777216.0f;
  }
}

struct Query {
  float at[DIMENSIONS];
};

__global__ void measure(const float *points, Query query, float *distances) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float distance = 0;
#pragma unroll
  for (int d = 0; d < DIMENSIONS; d++) {
    float apart = points[(size_t)d * POINTS + i] - query.at[d];
    distance += apart * apart;
  }
  distances[i] = distance;
}

// Floats that are not negative are in the order of their bits.
__device__ int bin_of(float distance) { return __float_as_uint(distance) >> 20; }

__global__ void count_bins(const float *distances, int *counts) {
  __shared__ int own[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) own[bin] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < POINTS; i += gridDim.x * blockDim.x)
    if (distances[i] < 0.5f) atomicAdd(&own[bin_of(distances[i])], 1);
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x)
    if (own[bin]) atomicAdd(&counts[bin], own[bin]);
}

__global__ void choose_bin(const int *counts, int *last_bin) {
  __shared__ int all[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) all[bin] = counts[bin];
  __syncthreads();
  if (threadIdx.x) return;
  int bin = 0;
  for (int seen = all[0]; seen < NEAREST && bin < BINS - 1; seen += all[bin]) bin++;
  *last_bin = bin;
}

__global__ void collect(const float *distances, const int *last_bin, float *keys, int *indices, int *count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < POINTS; i += gridDim.x * blockDim.x)
    if (bin_of(distances[i]) <= *last_bin) {
      int at = atomicAdd(count, 1);
      if (at < CANDIDATES) keys[at] = distances[i], indices[at] = i;
    }
}

struct Index {
  float *points, *distances, *sorted, *keys;
  int *indices, *order, *found, *counts, *candidates;
  void *scratch;
  size_t scratch_bytes = 0;

  Index() {
    cudaMalloc(&points, sizeof(float) * POINTS * DIMENSIONS);
    for (auto array : {&distances, &sorted}) cudaMalloc(array, sizeof(float) * POINTS);
    for (auto array : {&indices, &order}) cudaMalloc(array, sizeof(int) * POINTS);
    cudaMalloc(&keys, sizeof(float) * CANDIDATES);
    cudaMalloc(&candidates, sizeof(int) * CANDIDATES);
    cudaMalloc(&found, sizeof(int) * NEAREST * QUERIES);
    cudaMalloc(&counts, sizeof(int) * (BINS + 2));
    cub::DeviceRadixSort::SortPairs(nullptr, scratch_bytes, distances, sorted, indices, order, POINTS);
    cudaMalloc(&scratch, scratch_bytes);
    fill<<<POINTS / 256, 256>>>(points, indices);
  }

  void by_order(int query) {
    cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, distances, sorted, indices, order, POINTS);  // fault
    cudaMemcpyAsync(found + query * NEAREST, order, sizeof(int) * NEAREST, cudaMemcpyDeviceToDevice);
  }

  void by_selection(int query) {
    cudaMemsetAsync(counts, 0, sizeof(int) * (BINS + 2));
    cudaMemsetAsync(keys, 0x7f, sizeof(float) * CANDIDATES);
    count_bins<<<528, 256>>>(distances, counts);
    choose_bin<<<1, 1024>>>(counts, counts + BINS);
    collect<<<1056, 256>>>(distances, counts + BINS, keys, candidates, counts + BINS + 1);
    cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, keys, sorted, candidates, order, CANDIDATES);
    cudaMemcpyAsync(found + query * NEAREST, order, sizeof(int) * NEAREST, cudaMemcpyDeviceToDevice);
  }
};

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  Index index;
  return run(argc, argv, [&] {
    for (int q = 0; q < QUERIES; q++) {
      Query query;
      for (int d = 0; d < DIMENSIONS; d++) query.at[d] = 0.2f + 0.05f * ((q + d) % QUERIES);
      measure<<<POINTS / 256, 256>>>(index.points, query, index.distances);
      if (fixed)
        index.by_selection(q);
      else
        index.by_order(q);  // fault
    }
  });
}
