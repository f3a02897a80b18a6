// Sends photons through a shield of lead and tallies the energy that gets through, and what the wall takes up.
// CAUSE: scatter-atomics
// ALSO:
#include "_run_other.cuh"

const int PHOTONS = 1 << 22, THREADS = 256, FLIGHTS = 12;

struct Tally {
  double through, absorbed;
};

__device__ unsigned scramble(unsigned v) {
  v ^= v >> 16, v *= 0x7feb352du;
  v ^= v >> 15, v *= 0x846ca68bu;
  return v ^ v >> 16;
}

__device__ float uniform(unsigned &state) {
  state = scramble(state + 0x9e3779b9u);
  return ((state >> 8) + 0.5f) * 0x1p-24f;
}

// Follows one photon: what it leaves in the wall, and what it still has behind it.
__device__ float2 follow(unsigned state, float thickness) {
  float depth = 0, along = 1, energy = 1.25f, left = 0;
  for (int k = 0; k < FLIGHTS; k++) {
    depth -= along * 1.4f * __logf(uniform(state));
    if (depth >= thickness) return make_float2(left, energy);
    if (depth < 0) return make_float2(left, 0);
    float lost = energy * (0.2f + 0.5f * uniform(state));
    left += lost, energy -= lost;
    along = 2 * uniform(state) - 1;
  }
  return make_float2(left + energy, 0);
}

__global__ void transport(Tally *tally, unsigned seed, float thickness) {
  unsigned photon = blockIdx.x * THREADS + threadIdx.x;
  float2 energy = follow(scramble(photon ^ seed), thickness);
  atomicAdd(&tally->absorbed, (double)energy.x);  // fault
  atomicAdd(&tally->through, (double)energy.y);  // fault
}

__global__ void transport_summed(Tally *tally, unsigned seed, float thickness) {
  unsigned photon = blockIdx.x * THREADS + threadIdx.x;
  float2 energy = follow(scramble(photon ^ seed), thickness);
  __shared__ float2 parts[THREADS / 32];
  for (int half = 16; half; half /= 2) {
    energy.x += __shfl_down_sync(~0u, energy.x, half);
    energy.y += __shfl_down_sync(~0u, energy.y, half);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = energy;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; w++) energy.x += parts[w].x, energy.y += parts[w].y;
    atomicAdd(&tally->absorbed, (double)energy.x);
    atomicAdd(&tally->through, (double)energy.y);
  }
}

int main(int argc, char **argv) {
  const bool fixed = is_main_fixed(argc, argv);
  Tally *tally, found;
  cudaMalloc(&tally, sizeof(Tally));
  unsigned batch = 0;
  int code = run(argc, argv, [&] {
    cudaMemsetAsync(tally, 0, sizeof(Tally));
    batch++;
    if (fixed)
      transport_summed<<<PHOTONS / THREADS, THREADS>>>(tally, batch * 7919u, 5.f);
    else
      transport<<<PHOTONS / THREADS, THREADS>>>(tally, batch * 7919u, 5.f);  // fault
  });
  cudaMemcpy(&found, tally, sizeof found, cudaMemcpyDeviceToHost);
  fprintf(stderr, "a photon: %.5f through, %.5f absorbed\n", found.through / PHOTONS, found.absorbed / PHOTONS);
  return code;
}
