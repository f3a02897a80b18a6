// Forecasts floods: four members of an ensemble of shallow water, each of its own valley and on a stream of its own.
// CAUSE: default-stream
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int MEMBERS = 4, SIDE = 256, SUBSTEPS = 40, THREADS = 256, BINS = 64, DRAGS = 800;

struct Valley {
  float *ground, *depth, *u, *v, *next;
  unsigned *deepest, *bins;
  cudaStream_t stream;
};

__global__ void velocities(const float *ground, const float *depth, float *u, float *v, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % SIDE, y = i / SIDE;
  float level = ground[i] + depth[i];
  float east = x < SIDE - 1 ? ground[i + 1] + depth[i + 1] - level : 0.f;
  float north = y < SIDE - 1 ? ground[i + SIDE] + depth[i + SIDE] - level : 0.f;
  float friction = 0.03f / (depth[i] + 0.05f);
  float a = u[i], b = v[i];
  const float short_dt = dt / DRAGS;
  for (int k = 0; k < DRAGS; k++) {  // drag is stiff: small steps of its own
    a = (a - short_dt * 9.81f * east) / (1 + short_dt * friction * fabsf(a));
    b = (b - short_dt * 9.81f * north) / (1 + short_dt * friction * fabsf(b));
  }
  u[i] = a, v[i] = b;
}

__global__ void depths(const float *depth, const float *u, const float *v, float *next, float rain, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % SIDE, y = i / SIDE;
  auto carried = [&](float speed, int from, int to) { return speed * (speed > 0 ? depth[from] : depth[to]); };
  float out = 0;
  if (x < SIDE - 1) out += carried(u[i], i, i + 1);
  if (x > 0) out -= carried(u[i - 1], i - 1, i);
  if (y < SIDE - 1) out += carried(v[i], i, i + SIDE);
  if (y > 0) out -= carried(v[i - SIDE], i - SIDE, i);
  next[i] = fmaxf(depth[i] - dt * out + rain * dt, 0.f);
}

__global__ void survey(const float *depth, unsigned *deepest, unsigned *bins) {
  __shared__ unsigned mine[BINS];
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) mine[b] = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float d = depth[i];
  atomicAdd(&mine[min(BINS - 1, (int)(d * 16))], 1u);
  for (int lane = 16; lane; lane /= 2) d = fmaxf(d, __shfl_xor_sync(~0u, d, lane));
  if (threadIdx.x % 32 == 0) atomicMax(deepest, __float_as_uint(d));
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x)
    if (mine[b]) atomicAdd(&bins[b], mine[b]);
}

struct Forecast {
  Valley valleys[MEMBERS];
  bool in_order;

  void clear(unsigned *counts, size_t bytes, cudaStream_t stream) {
    if (in_order)
      cudaMemsetAsync(counts, 0, bytes, stream);
    else
      cudaMemset(counts, 0, bytes);  // fault
  }

  void substep(Valley &valley, float rain) {
    const int blocks = SIDE * SIDE / THREADS;
    velocities<<<blocks, THREADS, 0, valley.stream>>>(valley.ground, valley.depth, valley.u, valley.v, 0.01f);
    depths<<<blocks, THREADS, 0, valley.stream>>>(valley.depth, valley.u, valley.v, valley.next, rain, 0.01f);
    std::swap(valley.depth, valley.next);
    clear(valley.bins, sizeof(unsigned) * BINS, valley.stream);
    survey<<<blocks, THREADS, 0, valley.stream>>>(valley.depth, valley.deepest, valley.bins);
  }

  void hour() {
    for (int k = 0; k < SUBSTEPS; k++)
      for (int m = 0; m < MEMBERS; m++) substep(valleys[m], 0.001f * (m + 1));
  }
};

int main(int argc, char **argv) {
  Forecast forecast;
  forecast.in_order = is_fixed(argc, argv);
  const size_t bytes = sizeof(float) * SIDE * SIDE;
  std::vector<float> ground(SIDE * SIDE);
  for (int m = 0; m < MEMBERS; m++) {
    Valley &valley = forecast.valleys[m];
    cudaStreamCreate(&valley.stream);
    for (float **to : {&valley.ground, &valley.depth, &valley.u, &valley.v, &valley.next}) {
      cudaMalloc(to, bytes);
      cudaMemset(*to, 0, bytes);
    }
    cudaMalloc(&valley.deepest, sizeof(unsigned));
    cudaMalloc(&valley.bins, sizeof(unsigned) * BINS);
    cudaMemset(valley.deepest, 0, sizeof(unsigned));
    for (int i = 0; i < SIDE * SIDE; i++) {
      float x = (i % SIDE - SIDE / 2.f) / SIDE, y = (float)(i / SIDE) / SIDE;
      ground[i] = (20 + 4 * m) * x * x + 3 * y;
    }
    cudaMemcpy(valley.ground, ground.data(), bytes, cudaMemcpyHostToDevice);
  }
  int code = run(argc, argv, [&] { forecast.hour(); });
  for (Valley &valley : forecast.valleys) {
    unsigned bits;
    cudaMemcpy(&bits, valley.deepest, sizeof(bits), cudaMemcpyDeviceToHost);
    float deepest;
    memcpy(&deepest, &bits, sizeof(deepest));
    fprintf(stderr, "deepest water: %.6g m\n", deepest);
  }
  return code;
}
