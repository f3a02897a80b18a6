// Prepares scans of old letters for reading: levels of grey, a threshold for each strip (Otsu), ink thickened.
// CAUSE: low-occupancy
// ALSO:
#include "_run_other.cuh"

const int PAGES = 48, W = 2048, H = 2816, STRIPS = 64, STRIP = H / STRIPS, LEVELS = 256, THREADS = 128;
const size_t PIXELS = (size_t)W * H;

// Counts the grey levels of a strip; each thread has counters of its own, so that none collide.
__global__ void levels_apart(const uint4 *pages, unsigned *counts) {
  extern __shared__ unsigned counter[];  // fault
  for (int k = threadIdx.x; k < LEVELS * THREADS; k += THREADS) counter[k] = 0;
  __syncthreads();
  const uint4 *strip = pages + ((size_t)blockIdx.y * PIXELS + (size_t)blockIdx.x * STRIP * W) / 16;
#pragma unroll 1
  for (int k = threadIdx.x; k < STRIP * W / 16; k += THREADS) {
    uint4 v = strip[k];
    unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 16; j++) counter[(words[j / 4] >> 8 * (j % 4) & 255) * THREADS + threadIdx.x]++;  // fault
  }
  __syncthreads();
  for (int level = threadIdx.x; level < LEVELS; level += THREADS) {
    unsigned sum = 0;
    for (int k = 0; k < THREADS; k++) sum += counter[level * THREADS + (k + threadIdx.x) % THREADS];
    counts[((size_t)blockIdx.y * STRIPS + blockIdx.x) * LEVELS + level] = sum;
  }
}

// The same with counters for each warp.
__global__ void levels_shared(const uint4 *pages, unsigned *counts) {
  __shared__ unsigned counter[THREADS / 32][LEVELS];
  for (int k = threadIdx.x; k < LEVELS * THREADS / 32; k += THREADS) counter[0][k] = 0;
  __syncthreads();
  const uint4 *strip = pages + ((size_t)blockIdx.y * PIXELS + (size_t)blockIdx.x * STRIP * W) / 16;
#pragma unroll 1
  for (int k = threadIdx.x; k < STRIP * W / 16; k += THREADS) {
    uint4 v = strip[k];
    unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 16; j++) atomicAdd(&counter[threadIdx.x / 32][words[j / 4] >> 8 * (j % 4) & 255], 1u);
  }
  __syncthreads();
  for (int level = threadIdx.x; level < LEVELS; level += THREADS) {
    unsigned sum = 0;
    for (int k = 0; k < THREADS / 32; k++) sum += counter[k][level];
    counts[((size_t)blockIdx.y * STRIPS + blockIdx.x) * LEVELS + level] = sum;
  }
}

__global__ void otsu(const unsigned *counts, int *threshold) {
  int strip = blockIdx.x * blockDim.x + threadIdx.x;
  if (strip >= PAGES * STRIPS) return;
  const unsigned *mine = counts + (size_t)strip * LEVELS;
  float total = (float)STRIP * W, sum = 0, below = 0, weight = 0, most = -1;
  for (int k = 0; k < LEVELS; k++) sum += (float)k * mine[k];
  int best = 0;
  for (int k = 0; k < LEVELS; k++) {
    weight += mine[k], below += (float)k * mine[k];
    float rest = total - weight;
    if (weight == 0 || rest == 0) continue;
    float apart = below / weight - (sum - below) / rest, between = weight * rest * apart * apart;
    if (between > most) most = between, best = k;
  }
  threshold[strip] = best;
}

__global__ void ink_of(const uchar4 *pages, const int *threshold, uchar4 *ink) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= PAGES * PIXELS / 4) return;
  int page = i / (PIXELS / 4), row = (i - page * (PIXELS / 4)) / (W / 4), limit = threshold[page * STRIPS + row / STRIP];
  uchar4 v = pages[i];
  ink[i] = make_uchar4(v.x <= limit, v.y <= limit, v.z <= limit, v.w <= limit);
}

__global__ void thicken(const unsigned char *ink, unsigned char *bold) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  const unsigned char *page = ink + (size_t)blockIdx.z * PIXELS;
  unsigned char any = page[(size_t)y * W + x];
  if (x) any |= page[(size_t)y * W + x - 1];
  if (x < W - 1) any |= page[(size_t)y * W + x + 1];
  if (y) any |= page[(size_t)(y - 1) * W + x];
  if (y < H - 1) any |= page[(size_t)(y + 1) * W + x];
  bold[(size_t)blockIdx.z * PIXELS + (size_t)y * W + x] = any;
}

__global__ void scan(unsigned char *pages) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= PAGES * PIXELS) return;
  unsigned h = (unsigned)i * 2654435761u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  bool written = (i / 9 % 7 == 0) && (i / W / 11 % 3 == 0);
  pages[i] = (written ? 40 : 190) + (h & 63);
}

int main(int argc, char **argv) {
  bool fixed = is_main_fixed(argc, argv);
  unsigned char *pages, *ink, *bold;
  unsigned *counts;
  int *threshold;
  cudaMalloc(&pages, PAGES * PIXELS), cudaMalloc(&ink, PAGES * PIXELS), cudaMalloc(&bold, PAGES * PIXELS);
  cudaMalloc(&counts, sizeof(unsigned) * PAGES * STRIPS * LEVELS), cudaMalloc(&threshold, sizeof(int) * PAGES * STRIPS);
  scan<<<(unsigned)((PAGES * PIXELS + 255) / 256), 256>>>(pages);
  size_t bytes = sizeof(unsigned) * LEVELS * THREADS;
  cudaFuncSetAttribute(levels_apart, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  dim3 strips(STRIPS, PAGES);
  return run(argc, argv, [&] {
    if (fixed)
      levels_shared<<<strips, THREADS>>>((const uint4 *)pages, counts);
    else
      levels_apart<<<strips, THREADS, bytes>>>((const uint4 *)pages, counts);  // fault
    otsu<<<PAGES * STRIPS / 64, 64>>>(counts, threshold);
    ink_of<<<(unsigned)(PAGES * PIXELS / 4 / 256), 256>>>((const uchar4 *)pages, threshold, (uchar4 *)ink);
    thicken<<<dim3(W / 256, H, PAGES), 256>>>(ink, bold);
  });
}
