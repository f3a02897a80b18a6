// Finds the ground and obstacles in sweeps of a survey's laser scanner.
// CAUSE: allocation-in-loop
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int POINTS = 1 << 23, GRID = 2048, THREADS = 256, SMOOTH = 6;
const float EXTENT = 200.f;

// An array of the GPU that lives as long as its scope does.
template <class T>
struct Scratch {
  T *data = nullptr;
  cudaStream_t stream;

  Scratch(size_t count, cudaStream_t stream) : stream(stream) { cudaMallocAsync(&data, sizeof(T) * count, stream); }  // fault
  ~Scratch() { cudaFreeAsync(data, stream); }  // fault
  Scratch(const Scratch &) = delete;
};

struct Pose {
  float cosine, sine, x, y, z;
};

__global__ void place(const float4 *raw, float4 *placed, int *cell, Pose pose) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= POINTS) return;
  float4 p = raw[i];
  float x = pose.cosine * p.x - pose.sine * p.y + pose.x, y = pose.sine * p.x + pose.cosine * p.y + pose.y;
  placed[i] = make_float4(x, y, p.z + pose.z, p.w);
  int column = (int)((x / EXTENT + .5f) * GRID), row = (int)((y / EXTENT + .5f) * GRID);
  cell[i] = column < 0 || row < 0 || column >= GRID || row >= GRID ? -1 : row * GRID + column;
}

__global__ void clear(int *lowest, float value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < GRID * GRID) lowest[i] = __float_as_int(value);
}

__global__ void lowest_of(const float4 *placed, const int *cell, int *lowest) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < POINTS && cell[i] >= 0) atomicMin(&lowest[cell[i]], __float_as_int(placed[i].z + 100.f));
}

__global__ void smooth(const float *from, float *to) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= GRID || y >= GRID) return;
  float least = 1e9f, sum = 0, weight = 0;
  for (int v = -1; v <= 1; v++)
    for (int u = -1; u <= 1; u++) {
      int column = min(max(x + u, 0), GRID - 1), row = min(max(y + v, 0), GRID - 1);
      float height = from[row * GRID + column], w = height > 500.f ? 1e-6f : 1.f;
      least = fminf(least, height), sum += w * height, weight += w;
    }
  to[y * GRID + x] = fminf(sum / weight, least + .3f);
}

__global__ void above_ground(const float4 *placed, const int *cell, const float *ground, float *height, int *label) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= POINTS) return;
  float h = cell[i] < 0 ? 0.f : placed[i].z + 100.f - ground[cell[i]];
  height[i] = h;
  label[i] = h < .2f ? 0 : h < 2.5f ? 1 : h < 8.f ? 2 : 3;
}

__global__ void count(const float *height, const int *label, const float4 *placed, float *totals) {
  __shared__ float sums[8];
  if (threadIdx.x < 8) sums[threadIdx.x] = 0;
  __syncthreads();
  float tall[4] = {}, bright[4] = {};
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < POINTS; i += gridDim.x * blockDim.x)
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (label[i] == k) tall[k] += height[i], bright[k] += placed[i].w;
#pragma unroll
  for (int k = 0; k < 4; k++) atomicAdd(&sums[k], tall[k]), atomicAdd(&sums[4 + k], bright[k]);
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(&totals[threadIdx.x], sums[threadIdx.x]);
}

__global__ void scan(float4 *raw) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= POINTS) return;
  unsigned h = i * 2654435761u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  float angle = (i % 4096) * (6.2831853f / 4096), reach = 5.f + 90.f * (h & 0xffff) / 65536.f;
  raw[i] = make_float4(reach * cosf(angle), reach * sinf(angle), (h >> 16 & 255) * .03f, (h >> 24) / 255.f);
}

struct Buffers {
  float4 *placed;
  int *cell, *label;
  float *height, *lowest, *other;
};

void process(const float4 *raw, const Buffers &b, Pose pose, float *totals, cudaStream_t stream) {
  int blocks = (POINTS + THREADS - 1) / THREADS, cells = (GRID * GRID + THREADS - 1) / THREADS;
  dim3 tile(32, 8), tiles(GRID / 32, GRID / 8);
  place<<<blocks, THREADS, 0, stream>>>(raw, b.placed, b.cell, pose);
  clear<<<cells, THREADS, 0, stream>>>((int *)b.lowest, 1000.f);
  lowest_of<<<blocks, THREADS, 0, stream>>>(b.placed, b.cell, (int *)b.lowest);
  for (int k = 0; k < SMOOTH; k += 2) {
    smooth<<<tiles, tile, 0, stream>>>(b.lowest, b.other);
    smooth<<<tiles, tile, 0, stream>>>(b.other, b.lowest);
  }
  above_ground<<<blocks, THREADS, 0, stream>>>(b.placed, b.cell, b.lowest, b.height, b.label);
  cudaMemsetAsync(totals, 0, 8 * sizeof(float), stream);
  count<<<528, THREADS, 0, stream>>>(b.height, b.label, b.placed, totals);
}

int main(int argc, char **argv) {
  bool fixed = is_main_fixed(argc, argv);
  float4 *raw;
  float *totals, *report;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaMalloc(&raw, sizeof(float4) * POINTS);
  cudaMalloc(&totals, 8 * sizeof(float));
  cudaMallocHost(&report, 8 * sizeof(float));
  scan<<<(POINTS + THREADS - 1) / THREADS, THREADS>>>(raw);
  cudaDeviceSynchronize();

  Buffers kept{};
  if (fixed) {
    cudaMalloc(&kept.placed, sizeof(float4) * POINTS);
    cudaMalloc(&kept.cell, sizeof(int) * POINTS), cudaMalloc(&kept.label, sizeof(int) * POINTS);
    cudaMalloc(&kept.height, sizeof(float) * POINTS);
    cudaMalloc(&kept.lowest, sizeof(float) * GRID * GRID), cudaMalloc(&kept.other, sizeof(float) * GRID * GRID);
  }
  int frame = 0;
  return run(argc, argv, [&] {
    float turn = .01f * frame++;
    Pose pose{cosf(turn), sinf(turn), .1f * turn, .2f * turn, 1.8f};
    if (fixed) {
      process(raw, kept, pose, totals, stream);
    } else {
      Scratch<float4> placed(POINTS, stream);                                                // fault
      Scratch<int> cell(POINTS, stream), label(POINTS, stream);                              // fault
      Scratch<float> height(POINTS, stream);                                                 // fault
      Scratch<float> lowest(GRID * GRID, stream), other(GRID * GRID, stream);                // fault
      process(raw, {placed.data, cell.data, label.data, height.data, lowest.data, other.data}, pose, totals, stream);
    }
    cudaMemcpyAsync(report, totals, 8 * sizeof(float), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);  // the planner needs this sweep's report
  });
}
