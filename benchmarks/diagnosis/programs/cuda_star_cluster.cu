// Moves the stars of a cluster under the gravity of all others, a tile of them at a time in shared memory.
// CAUSE:
// ALSO:
#include <vector>

#include "_run_other.cuh"

const int TILE = 256, STARS = 132 * 4 * TILE;
const float SOFTENING = 1e-3f, DT = 1e-3f;

__global__ void attract(const float4 *stars, float4 *pulls) {
  __shared__ float4 tile[TILE];
  int i = blockIdx.x * TILE + threadIdx.x;
  float4 self = stars[i];
  float x = 0, y = 0, z = 0;
  for (int first = 0; first < STARS; first += TILE) {
    tile[threadIdx.x] = stars[first + threadIdx.x];
    __syncthreads();
#pragma unroll 16
    for (int k = 0; k < TILE; k++) {
      float4 other = tile[k];
      float dx = other.x - self.x, dy = other.y - self.y, dz = other.z - self.z;
      float near = rsqrtf(dx * dx + dy * dy + dz * dz + SOFTENING);
      float pull = other.w * near * near * near;
      x += pull * dx, y += pull * dy, z += pull * dz;
    }
    __syncthreads();
  }
  pulls[i] = make_float4(x, y, z, 0);
}

__global__ void advance(float4 *stars, float4 *speeds, const float4 *pulls) {
  int i = blockIdx.x * TILE + threadIdx.x;
  float4 star = stars[i], speed = speeds[i], pull = pulls[i];
  speed.x += DT * pull.x, speed.y += DT * pull.y, speed.z += DT * pull.z;
  star.x += DT * speed.x, star.y += DT * speed.y, star.z += DT * speed.z;
  stars[i] = star, speeds[i] = speed;
}

int main(int argc, char **argv) {
  std::vector<float4> places(STARS);
  for (auto &star : places) {
    auto number = [] { return 2 * float(rand()) / RAND_MAX - 1; };
    star = make_float4(number(), number(), number(), 1.0f / STARS);
  }
  float4 *stars, *speeds, *pulls;
  cudaMalloc(&stars, sizeof(float4) * STARS);
  cudaMalloc(&speeds, sizeof(float4) * STARS);
  cudaMalloc(&pulls, sizeof(float4) * STARS);
  cudaMemcpy(stars, places.data(), sizeof(float4) * STARS, cudaMemcpyHostToDevice);
  cudaMemset(speeds, 0, sizeof(float4) * STARS);
  return run(argc, argv, [&] {
    attract<<<STARS / TILE, TILE>>>(stars, pulls);
    advance<<<STARS / TILE, TILE>>>(stars, speeds, pulls);
  });
}
