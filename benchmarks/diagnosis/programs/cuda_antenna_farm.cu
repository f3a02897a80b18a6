// Shapes the beam of an array of antennas: its pattern over the sky, side lobes, and a step of the weights down the slope.
// CAUSE: float64
// ALSO:
#include "_run_other.cuh"
#include <cmath>
#include <vector>

const int ANTENNAS = 384, DIRECTIONS = 1 << 18, THREADS = 128;

const double SPEED_OF_LIGHT = 2.99792458e8, FREQUENCY = 1.42e9;

struct Direction {
  float x, y, wanted;
};

// unit phasor of a delay given in metres
template <bool FIXED>
__device__ float2 phasor(float metres) {
  float2 z;
  if (FIXED) {
    float turns = metres * (float)(FREQUENCY / SPEED_OF_LIGHT);
    turns -= rintf(turns);
    sincosf(6.28318531f * turns, &z.y, &z.x);
  } else {
    auto turns = metres * (FREQUENCY / SPEED_OF_LIGHT);  // fault
    turns -= rint(turns);                                // fault
    auto angle = 2 * M_PI * turns;                       // fault
    z.x = cos(angle), z.y = sin(angle);                  // fault
  }
  return z;
}

template <bool FIXED>
__global__ void pattern(const float2 *places, const float2 *weights, const Direction *sky, float2 *field) {
  __shared__ float4 part[THREADS];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Direction to = sky[i];
  float2 sum = {0, 0};
  for (int first = 0; first < ANTENNAS; first += THREADS) {
    float2 p = places[first + threadIdx.x], w = weights[first + threadIdx.x];
    __syncthreads();
    part[threadIdx.x] = make_float4(p.x, p.y, w.x, w.y);
    __syncthreads();
    for (int k = 0; k < THREADS; k++) {
      float4 a = part[k];
      float2 z = phasor<FIXED>(a.x * to.x + a.y * to.y);
      sum.x += a.z * z.x - a.w * z.y;
      sum.y += a.z * z.y + a.w * z.x;
    }
  }
  field[i] = sum;
}

// error of each direction's power, folded into the field
__global__ void errors(const Direction *sky, float2 *field, float *loss) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float2 e = field[i];
  float wrong = (e.x * e.x + e.y * e.y) * (1.f / ANTENNAS) - sky[i].wanted;
  field[i] = make_float2(e.x * wrong, e.y * wrong);
  float square = wrong * wrong * (1.f / DIRECTIONS);
  for (int lane = 16; lane; lane /= 2) square += __shfl_xor_sync(~0u, square, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(loss, square);
}

// a block of each antenna and share of the sky
__global__ void slopes(const float2 *places, const Direction *sky, const float2 *field, float2 *slope) {
  float2 p = places[blockIdx.y], sum = {0, 0};
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < DIRECTIONS; i += gridDim.x * blockDim.x) {
    float2 z = phasor<true>(p.x * sky[i].x + p.y * sky[i].y), e = field[i];
    sum.x += e.x * z.x + e.y * z.y;
    sum.y += e.y * z.x - e.x * z.y;
  }
  for (int lane = 16; lane; lane /= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, lane);
    sum.y += __shfl_xor_sync(~0u, sum.y, lane);
  }
  if (threadIdx.x % 32 == 0) atomicAdd(&slope[blockIdx.y].x, sum.x), atomicAdd(&slope[blockIdx.y].y, sum.y);
}

__global__ void descend(float2 *weights, float2 *slope, float rate) {
  int a = blockIdx.x * blockDim.x + threadIdx.x;
  weights[a].x -= rate * slope[a].x / DIRECTIONS, weights[a].y -= rate * slope[a].y / DIRECTIONS;
  slope[a] = make_float2(0, 0);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float2 *places, *weights, *field, *slope;
  Direction *sky;
  float *loss;
  cudaMalloc(&places, sizeof(float2) * ANTENNAS);
  cudaMalloc(&weights, sizeof(float2) * ANTENNAS);
  cudaMalloc(&slope, sizeof(float2) * ANTENNAS);
  cudaMalloc(&field, sizeof(float2) * DIRECTIONS);
  cudaMalloc(&sky, sizeof(Direction) * DIRECTIONS);
  cudaMalloc(&loss, sizeof(float));
  cudaMemset(slope, 0, sizeof(float2) * ANTENNAS);
  std::vector<float2> at(ANTENNAS), one(ANTENNAS, make_float2(1, 0));
  for (int a = 0; a < ANTENNAS; a++) {
    float r = 0.3f * std::sqrt((float)a), angle = 2.3999632f * a;
    at[a] = make_float2(r * std::cos(angle), r * std::sin(angle));
  }
  std::vector<Direction> to(DIRECTIONS);
  for (int i = 0; i < DIRECTIONS; i++) {
    float x = (i % 512 - 256) / 256.f, y = (i / 512 - 256) / 256.f;
    to[i] = {x * 0.7f, y * 0.7f, x * x + y * y < 0.01f ? 1.f : 0.f};
  }
  cudaMemcpy(places, at.data(), sizeof(float2) * ANTENNAS, cudaMemcpyHostToDevice);
  cudaMemcpy(weights, one.data(), sizeof(float2) * ANTENNAS, cudaMemcpyHostToDevice);
  cudaMemcpy(sky, to.data(), sizeof(Direction) * DIRECTIONS, cudaMemcpyHostToDevice);

  int code = run(argc, argv, [&] {
    cudaMemsetAsync(loss, 0, sizeof(float));
    if (fixed)
      pattern<true><<<DIRECTIONS / THREADS, THREADS>>>(places, weights, sky, field);
    else
      pattern<false><<<DIRECTIONS / THREADS, THREADS>>>(places, weights, sky, field);  // fault
    errors<<<DIRECTIONS / 256, 256>>>(sky, field, loss);
    slopes<<<dim3(16, ANTENNAS), 256>>>(places, sky, field, slope);
    descend<<<ANTENNAS / THREADS, THREADS>>>(weights, slope, 0.05f);
  });
  float left;
  cudaMemcpy(&left, loss, sizeof(left), cudaMemcpyDeviceToHost);
  fprintf(stderr, "loss: %.6g\n", left);
  return code;
}
