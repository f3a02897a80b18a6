// Searches vectors compressed by product quantization: each block holds a query's table of distances in shared memory.
// CAUSE: low-occupancy
// ALSO:
#include "_run_other.cuh"
#include <cstring>
#include <vector>

const int PARTS = 16, CODES = 256;            // of the index that is searched here
const int MOST_PARTS = 112;                   // of any index that the library reads
const int VECTORS = 1 << 25, QUERIES = 8, THREADS = 128, PER_THREAD = 16;

struct Best {
  unsigned long long packed;  // distance above, place below
};

__device__ unsigned long long pack(float distance, unsigned place) {
  return (unsigned long long)__float_as_uint(distance) << 32 | place;
}

__global__ void scan(const uint4 *codes, const float *tables, Best *best) {
  extern __shared__ float table[];
  const float *mine = tables + (size_t)blockIdx.y * PARTS * CODES;
  for (int i = threadIdx.x; i < PARTS * CODES; i += blockDim.x) table[i] = mine[i];
  __syncthreads();
  unsigned long long least = ~0ull;
  size_t first = (size_t)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll 1
  for (int k = 0; k < PER_THREAD; k++) {
    unsigned place = first + k * THREADS;
    uint4 packed = codes[place];
    unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
    float distance = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      unsigned code = words[part / 4] >> 8 * (part % 4) & 255;
      distance += table[part * CODES + code];
    }
    unsigned long long candidate = pack(distance, place);
    if (candidate < least) least = candidate;
  }
  for (int lane = 16; lane; lane /= 2) {
    unsigned long long other = __shfl_xor_sync(~0u, least, lane);
    if (other < least) least = other;
  }
  if (threadIdx.x % 32 == 0 && least < best[blockIdx.y].packed) atomicMin(&best[blockIdx.y].packed, least);
}

__global__ void fill(unsigned *codes, size_t count) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned h = (unsigned)i * 2654435761u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  codes[i] = h;
}

int main(int argc, char **argv) {
  bool fixed = false;
  for (int i = 1; i < argc; i++) fixed |= !strcmp(argv[i], "fixed");

  uint4 *codes;
  float *tables;
  Best *best;
  cudaMalloc(&codes, sizeof(uint4) * VECTORS);
  cudaMalloc(&tables, sizeof(float) * QUERIES * PARTS * CODES);
  cudaMalloc(&best, sizeof(Best) * QUERIES);
  size_t words = (size_t)VECTORS * 4;
  fill<<<(unsigned)((words + 255) / 256), 256>>>((unsigned *)codes, words);

  std::vector<float> table(QUERIES * PARTS * CODES);
  unsigned seed = 1;
  for (float &value : table) {
    seed = seed * 1664525u + 1013904223u;
    value = (seed >> 8) * (1.f / (1 << 24));
  }
  cudaMemcpy(tables, table.data(), sizeof(float) * table.size(), cudaMemcpyHostToDevice);

  // room for the table of the largest index, or for that of this one
  size_t bytes = sizeof(float) * CODES * (fixed ? PARTS : MOST_PARTS);  // fault
  cudaFuncSetAttribute(scan, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  dim3 blocks(VECTORS / (THREADS * PER_THREAD), QUERIES);
  return run(argc, argv, [&] {
    cudaMemsetAsync(best, 0xff, sizeof(Best) * QUERIES);
    scan<<<blocks, THREADS, bytes>>>(codes, tables, best);  // fault
  });
}
