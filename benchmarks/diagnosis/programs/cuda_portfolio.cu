// Values a bank's book of basket options over paths of prices, and sums profit, its square and the tail for each desk.
// CAUSE: scatter-atomics
// ALSO:
#include "_run_other.cuh"
#include <cmath>
#include <vector>

const int PATHS = 1 << 20, DATES = 252, ASSETS = 4, DESKS = 4, THREADS = 256, PER_BLOCK = THREADS * 16;

struct Market {
  float spot[ASSETS], drift[ASSETS], volatility[ASSETS];
};

struct Tally {
  double profit, square, below;
};

__device__ unsigned mix(unsigned h) {
  h ^= h >> 16, h *= 0x7feb352du;
  h ^= h >> 15, h *= 0x846ca68bu;
  return h ^ h >> 16;
}

__device__ float2 normals(unsigned seed) {
  unsigned a = mix(seed), b = mix(a + 0x9e3779b9u);
  float r = sqrtf(-2.f * __logf(((a >> 8) + 1) * (1.f / 16777217.f)));
  float s, c;
  __sincosf((b >> 8) * (6.2831853f / 16777216.f), &s, &c);
  return make_float2(r * c, r * s);
}

// basket's mean over the dates, and its lowest value, of each path
__global__ void walk(Market market, float2 *summary, unsigned seed) {
  int path = blockIdx.x * blockDim.x + threadIdx.x;
  float logs[ASSETS] = {}, mean = 0, lowest = 1e30f;
  for (int date = 0; date < DATES; date++) {
    float basket = 0;
#pragma unroll
    for (int a = 0; a < ASSETS; a += 2) {
      float2 z = normals(seed + (unsigned)((path * DATES + date) * ASSETS + a));
      logs[a] += market.drift[a] + market.volatility[a] * z.x;
      logs[a + 1] += market.drift[a + 1] + market.volatility[a + 1] * (0.6f * z.x + 0.8f * z.y);
      basket += market.spot[a] * __expf(logs[a]) + market.spot[a + 1] * __expf(logs[a + 1]);
    }
    mean += basket * (1.f / DATES);
    lowest = fminf(lowest, basket);
  }
  summary[path] = make_float2(mean, lowest);
}

__device__ float payoff(float2 of, int desk) {
  float strike = 360.f + 8.f * desk;
  bool out = of.y < 240.f + 6.f * desk;
  return out ? -2.f : desk % 2 ? fmaxf(of.x - strike, 0.f) - 9.f : fmaxf(strike - of.x, 0.f) - 9.f;
}

__global__ void book(const float2 *summary, Tally *desks, float floor) {
  int path = blockIdx.x * blockDim.x + threadIdx.x, desk = blockIdx.y;
  float profit = payoff(summary[path], desk);
  atomicAdd(&desks[desk].profit, (double)profit);           // fault
  atomicAdd(&desks[desk].square, (double)profit * profit);  // fault
  if (profit < floor) atomicAdd(&desks[desk].below, 1.0);   // fault
}

__global__ void book_blocks(const float2 *summary, Tally *desks, float floor) {
  __shared__ Tally parts[THREADS / 32];
  int desk = blockIdx.y;
  Tally sum = {};
  for (int k = threadIdx.x; k < PER_BLOCK; k += THREADS) {
    float profit = payoff(summary[(size_t)blockIdx.x * PER_BLOCK + k], desk);
    sum.profit += profit, sum.square += (double)profit * profit, sum.below += profit < floor;
  }
  for (int lane = 16; lane; lane /= 2) {
    sum.profit += __shfl_xor_sync(~0u, sum.profit, lane);
    sum.square += __shfl_xor_sync(~0u, sum.square, lane);
    sum.below += __shfl_xor_sync(~0u, sum.below, lane);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int w = 1; w < THREADS / 32; w++)
    sum.profit += parts[w].profit, sum.square += parts[w].square, sum.below += parts[w].below;
  atomicAdd(&desks[desk].profit, sum.profit);
  atomicAdd(&desks[desk].square, sum.square);
  atomicAdd(&desks[desk].below, sum.below);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float2 *summary;
  Tally *desks, host[DESKS];
  cudaMalloc(&summary, sizeof(float2) * PATHS);
  cudaMalloc(&desks, sizeof(Tally) * DESKS);
  // a scenario of each step moves the market
  Market market;
  for (int a = 0; a < ASSETS; a++) {
    market.spot[a] = 90.f + 7.f * a;
    market.volatility[a] = (0.18f + 0.03f * a) * sqrtf(1.f / DATES);
    market.drift[a] = 0.02f / DATES - 0.5f * market.volatility[a] * market.volatility[a];
  }
  unsigned scenario = 0;

  int code = run(argc, argv, [&] {
    Market moved = market;
    for (int a = 0; a < ASSETS; a++) moved.spot[a] *= 1.f + 0.01f * (int)(scenario % 5) - 0.02f;
    cudaMemsetAsync(desks, 0, sizeof(Tally) * DESKS);
    walk<<<PATHS / THREADS, THREADS>>>(moved, summary, scenario++ * 7919u);
    if (fixed)
      book_blocks<<<dim3(PATHS / PER_BLOCK, DESKS), THREADS>>>(summary, desks, -8.f);
    else
      book<<<dim3(PATHS / THREADS, DESKS), THREADS>>>(summary, desks, -8.f);  // fault
  });
  cudaMemcpy(host, desks, sizeof(host), cudaMemcpyDeviceToHost);
  for (int d = 0; d < DESKS; d++) fprintf(stderr, "desk %d: %.6g\n", d, host[d].profit / PATHS + host[d].square / PATHS);
  return code;
}
