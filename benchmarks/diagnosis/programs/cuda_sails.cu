// Wind behind sails: vortices shed by their edges carry tracers of smoke.
// CAUSE:
// ALSO:
#include "_run_other.cuh"
#include <cmath>
#include <utility>
#include <vector>

const int VORTICES = 8192, TRACERS = 132 * 8 * 256, THREADS = 256, UNROLL = 8;
const float DT = 0.01f, CORE = 0.02f, WIND = 1.f;

__global__ void __launch_bounds__(THREADS, 8) induce(const float4 *at, const float4 *places, const float4 *strengths,
                                                     float4 *moved, int count) {
  __shared__ float4 place[THREADS], strength[THREADS];
  int i = blockIdx.x * THREADS + threadIdx.x;
  float4 p = at[i];
  float u = 0, v = 0, w = 0;
  for (int first = 0; first < count; first += THREADS) {
    place[threadIdx.x] = places[first + threadIdx.x];
    strength[threadIdx.x] = strengths[first + threadIdx.x];
    __syncthreads();
#pragma unroll UNROLL
    for (int k = 0; k < THREADS; k++) {
      float4 q = place[k], a = strength[k];
      float dx = p.x - q.x, dy = p.y - q.y, dz = p.z - q.z;
      float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + q.w);
      float weight = inverse * inverse * inverse;
      u += weight * (a.y * dz - a.z * dy);
      v += weight * (a.z * dx - a.x * dz);
      w += weight * (a.x * dy - a.y * dx);
    }
    __syncthreads();
  }
  const float scale = 0.0795775f;
  moved[i] = {p.x + DT * (WIND + scale * u), p.y + DT * scale * v, p.z + DT * scale * w, p.w};
}

// smoke that has left the room comes in again
__global__ void __launch_bounds__(THREADS) renew(float4 *tracers, unsigned seed) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  float4 p = tracers[i];
  if (p.x > 8) {
    unsigned h = (i ^ seed) * 2654435761u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    p.x -= 9, p.y = (h & 0xffff) / 32768.f - 1, p.z = (h >> 16) / 32768.f - 1;
    tracers[i] = p;
  }
}

int main(int argc, char **argv) {
  std::vector<float4> places(VORTICES), strengths(VORTICES), smoke(TRACERS);
  unsigned seed = 1;
  auto uniform = [&] { return ((seed = seed * 1664525u + 1013904223u) >> 8) * (1.f / (1 << 24)); };
  for (int i = 0; i < VORTICES; i++) {
    float angle = 6.2831853f * uniform();
    places[i] = {4 * uniform(), cosf(angle), sinf(angle), CORE * CORE};  // w: the core's square
    strengths[i] = {0.f, -sinf(angle) / VORTICES, cosf(angle) / VORTICES, 0.f};
  }
  for (float4 &p : smoke) p = {9 * uniform() - 1, 2 * uniform() - 1, 2 * uniform() - 1, 0};

  float4 *place, *strength, *tracers, *next_tracers;
  for (float4 **array : {&place, &strength}) cudaMalloc(array, sizeof(float4) * VORTICES);
  for (float4 **array : {&tracers, &next_tracers}) cudaMalloc(array, sizeof(float4) * TRACERS);
  cudaMemcpy(place, places.data(), sizeof(float4) * VORTICES, cudaMemcpyHostToDevice);
  cudaMemcpy(strength, strengths.data(), sizeof(float4) * VORTICES, cudaMemcpyHostToDevice);
  cudaMemcpy(tracers, smoke.data(), sizeof(float4) * TRACERS, cudaMemcpyHostToDevice);
  unsigned count = 0;
  return run(argc, argv, [&] {
    induce<<<TRACERS / THREADS, THREADS>>>(tracers, place, strength, next_tracers, VORTICES);
    std::swap(tracers, next_tracers);
    renew<<<TRACERS / THREADS, THREADS>>>(tracers, count++);
  });
}
