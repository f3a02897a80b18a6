// Values annuities with guarantees: paths of rates, funds and lives, month by month, and their present values.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"

const int SCENARIOS = 1 << 18, MONTHS = 300, THREADS = 256;

struct Contract {
  float premium, guarantee, fee, age;
};

struct Market {
  float speed, level, spread, drift, volatility;
};

template <bool FIXED>
struct Paths {
  float *values;
  __device__ float &at(int scenario, int month) const {
    if (FIXED) return values[(size_t)month * SCENARIOS + scenario];
    return values[(size_t)scenario * MONTHS + month];  // fault
  }
};

__device__ unsigned next(unsigned &state) {
  state = state * 747796405u + 2891336453u;
  unsigned word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
  return word >> 22 ^ word;
}

__device__ float2 normals(unsigned &state) {
  float u = (next(state) + 1.f) * 2.3283064e-10f, v = next(state) * 2.3283064e-10f;
  float radius = sqrtf(-2 * __logf(fminf(u, 1.f)));
  float sine, cosine;
  __sincosf(6.2831853f * v, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

template <bool FIXED>
__global__ void simulate(Market market, Contract contract, unsigned seed, Paths<FIXED> rates, Paths<FIXED> funds) {
  int scenario = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned state = scenario * 2654435761u ^ seed;
  float rate = market.level, fund = contract.premium;
  for (int month = 0; month < MONTHS; month++) {
    float2 shock = normals(state);
    rate += market.speed * (market.level - rate) + market.spread * shock.x;
    float gain = rate / 12 + market.drift + market.volatility * (0.3f * shock.x + 0.95f * shock.y);
    fund = fmaxf(fund * (1 + gain) - contract.fee * fund, 0.f);
    rates.at(scenario, month) = rate;  // fault
    funds.at(scenario, month) = fund;  // fault
  }
}

// from the last month back: what the insurer pays beyond the fund, discounted and weighed by who is alive
template <bool FIXED>
__global__ void discount(Contract contract, Paths<FIXED> rates, Paths<FIXED> funds, float *present) {
  int scenario = blockIdx.x * blockDim.x + threadIdx.x;
  float value = 0;
  for (int month = MONTHS - 1; month >= 0; month--) {
    float dying = 2e-5f * __expf(0.09f * (contract.age + month / 12.f - 30)) / 12;
    float fund = funds.at(scenario, month);  // fault
    float claim = dying * fmaxf(contract.guarantee - fund, 0.f) - contract.fee * fund;
    value = (value * (1 - dying) + claim) / (1 + rates.at(scenario, month) / 12);  // fault
  }
  present[scenario] = value;
}

// mean fund of each month, for the report
template <bool FIXED>
__global__ void monthly_means(Paths<FIXED> funds, float *means) {
  __shared__ float partial[THREADS / 32];
  float sum = 0;
  int month = blockIdx.x;
  for (int scenario = blockIdx.y * THREADS + threadIdx.x; scenario < SCENARIOS; scenario += THREADS * gridDim.y)
    sum += funds.at(scenario, month);  // fault
  for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < THREADS / 32; warp++) sum += partial[warp];
    atomicAdd(means + month, sum / SCENARIOS);
  }
}

__global__ void tail_sum(const float *present, float level, float *sums) {
  __shared__ float partial[2][THREADS / 32];
  float all = 0, worst = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < SCENARIOS; i += gridDim.x * THREADS) {
    all += present[i];
    worst += fmaxf(present[i] - level, 0.f);
  }
  for (int lane = 16; lane; lane /= 2) {
    all += __shfl_xor_sync(~0u, all, lane);
    worst += __shfl_xor_sync(~0u, worst, lane);
  }
  if (threadIdx.x % 32 == 0) partial[0][threadIdx.x / 32] = all, partial[1][threadIdx.x / 32] = worst;
  __syncthreads();
  if (threadIdx.x < 2) {
    float sum = 0;
    for (int warp = 0; warp < THREADS / 32; warp++) sum += partial[threadIdx.x][warp];
    atomicAdd(sums + threadIdx.x, sum);
  }
}

template <bool FIXED>
int value(int argc, char **argv) {
  Paths<FIXED> rates, funds;
  float *present, *means, *sums;
  cudaMalloc(&rates.values, sizeof(float) * SCENARIOS * MONTHS);
  cudaMalloc(&funds.values, sizeof(float) * SCENARIOS * MONTHS);
  cudaMalloc(&present, sizeof(float) * SCENARIOS);
  cudaMalloc(&means, sizeof(float) * MONTHS);
  cudaMalloc(&sums, sizeof(float) * 2);
  Market market = {0.02f, 0.03f, 0.0015f, 0.002f, 0.04f};
  unsigned seed = 7;
  return run(argc, argv, [&] {
    cudaMemsetAsync(sums, 0, sizeof(float) * 2);
    for (int portfolio = 0; portfolio < 2; portfolio++) {
      Contract contract = {100.f, 110.f + 20 * portfolio, 0.0008f, 50.f + 8 * portfolio};
      cudaMemsetAsync(means, 0, sizeof(float) * MONTHS);
      simulate<FIXED><<<SCENARIOS / THREADS, THREADS>>>(market, contract, seed++, rates, funds);
      discount<FIXED><<<SCENARIOS / THREADS, THREADS>>>(contract, rates, funds, present);
      monthly_means<FIXED><<<dim3(MONTHS, 16), THREADS>>>(funds, means);
      tail_sum<<<256, THREADS>>>(present, 5.f, sums);
    }
  });
}

int main(int argc, char **argv) {
  return is_fixed(argc, argv) ? value<true>(argc, argv) : value<false>(argc, argv);
}
