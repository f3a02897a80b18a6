// Assigns sequenced tags of a seed bank to plants: the edit distance of each read to each of the plants' tags.
// CAUSE: allocation-in-loop
// ALSO:
#include <vector>

#include "_run_other.cuh"

const int READS = 16384, PLANTS = 16, LENGTH = 64, THREADS = 128;

__device__ int edit_distance(const char *read, const char *tag, int *row) {
  for (int j = 0; j <= LENGTH; j++) row[j] = j;
  for (int i = 1; i <= LENGTH; i++) {
    int diagonal = row[0], left = i;
    char base = read[(i - 1) * READS];
    row[0] = i;
    for (int j = 1; j <= LENGTH; j++) {
      int above = row[j], replaced = diagonal + (base != tag[j - 1]);
      left = min(replaced, min(above, left) + 1);
      row[j] = left;
      diagonal = above;
    }
  }
  return row[LENGTH];
}

// Each block compares THREADS reads with one plant's tag.
template <bool LOCAL>
__global__ void compare(const char *reads, const char *tags, int *distances) {
  __shared__ char tag[LENGTH];
  for (int j = threadIdx.x; j < LENGTH; j += THREADS) tag[j] = tags[blockIdx.y * LENGTH + j];
  __syncthreads();
  int read = blockIdx.x * THREADS + threadIdx.x, distance;
  if constexpr (LOCAL) {
    int row[LENGTH + 1];
    distance = edit_distance(reads + read, tag, row);
  } else {
    int *row = new int[LENGTH + 1];  // fault
    distance = edit_distance(reads + read, tag, row);
    delete[] row;  // fault
  }
  distances[blockIdx.y * READS + read] = distance;
}

__global__ void assign(const int *distances, int *plant_of) {
  int read = blockIdx.x * THREADS + threadIdx.x, best = 0;
  for (int plant = 1; plant < PLANTS; plant++)
    if (distances[plant * READS + read] < distances[best * READS + read]) best = plant;
  plant_of[read] = best;
}

int main(int argc, char **argv) {
  const bool local = is_main_fixed(argc, argv);
  std::vector<char> tags(PLANTS * LENGTH), reads(READS * LENGTH);
  unsigned seed = 3;
  auto draw = [&](unsigned n) { return ((seed = seed * 1664525u + 1013904223u) >> 16) % n; };
  for (char &base : tags) base = "ACGT"[draw(4)];
  for (int r = 0; r < READS; r++) {
    int plant = draw(PLANTS);
    for (int j = 0; j < LENGTH; j++) reads[j * READS + r] = draw(10) ? tags[plant * LENGTH + j] : "ACGT"[draw(4)];
  }
  char *reads_there, *tags_there;
  int *distances, *plant_of, sample[READS];
  cudaDeviceSetLimit(cudaLimitMallocHeapSize, 512 << 20);
  cudaMalloc(&reads_there, reads.size());
  cudaMalloc(&tags_there, tags.size());
  cudaMalloc(&distances, sizeof(int) * READS * PLANTS);
  cudaMalloc(&plant_of, sizeof(int) * READS);
  cudaMemcpy(reads_there, reads.data(), reads.size(), cudaMemcpyHostToDevice);
  cudaMemcpy(tags_there, tags.data(), tags.size(), cudaMemcpyHostToDevice);

  int code = run(argc, argv, [&] {
    dim3 grid(READS / THREADS, PLANTS);
    if (local)
      compare<true><<<grid, THREADS>>>(reads_there, tags_there, distances);
    else
      compare<false><<<grid, THREADS>>>(reads_there, tags_there, distances);
    assign<<<READS / THREADS, THREADS>>>(distances, plant_of);
  });
  cudaMemcpy(sample, plant_of, sizeof sample, cudaMemcpyDeviceToHost);
  long sum = 0;
  for (int r = 0; r < READS; r++) sum += (r % 97) * sample[r];
  fprintf(stderr, "some of it: %ld\n", sum);
  return code;
}
