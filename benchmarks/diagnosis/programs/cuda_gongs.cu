// Strikes a gong in air: the wave equation in three dimensions, fourth order in space, with a damped rim and microphones.
// CAUSE:
// ALSO:
#include "_run_other.cuh"
#include <utility>

#ifdef TINY
const int N = 32, SUBSTEPS = 2;
#else
const int N = 512, SUBSTEPS = 8;
#endif
const int TILE_X = 32, TILE_Y = 8, DEPTH = N < 64 ? N : 64, MICROPHONES = 256;

__global__ void cast(float *speed) {
  int x = blockIdx.x * TILE_X + threadIdx.x, y = blockIdx.y * TILE_Y + threadIdx.y, z = blockIdx.z;
  float dx = x - N / 2.f, dy = y - N / 2.f, r = sqrtf(dx * dx + dy * dy), wall = N * (0.12f + 0.08f * z / N);
  speed[((size_t)z * N + y) * N + x] = fabsf(r - wall) < 3 ? 0.3f : 0.08f;
}

// A block goes through the depth with a tile of each layer in shared memory, and a column's neighbours in registers.
__global__ void __launch_bounds__(TILE_X * TILE_Y) advance(const float *__restrict__ now, float *__restrict__ next, const float *__restrict__ speed) {
  __shared__ float tile[TILE_Y + 4][TILE_X + 4];
  int x = blockIdx.x * TILE_X + threadIdx.x, y = blockIdx.y * TILE_Y + threadIdx.y, first = blockIdx.z * DEPTH;
  const size_t layer = (size_t)N * N;
  size_t at = first * layer + (size_t)y * N + x;
  auto read = [&](int z) { return z < 0 || z >= N ? 0.f : now[(size_t)z * layer + (size_t)y * N + x]; };
  float back2 = read(first - 2), back1 = read(first - 1), here = read(first), front1 = read(first + 1);
  for (int z = first; z < first + DEPTH; z++, at += layer) {
    float front2 = read(z + 2);
    __syncthreads();
    for (int k = threadIdx.y * TILE_X + threadIdx.x; k < (TILE_Y + 4) * (TILE_X + 4); k += TILE_X * TILE_Y) {
      int tx = k % (TILE_X + 4), ty = k / (TILE_X + 4);
      int gx = blockIdx.x * TILE_X + tx - 2, gy = blockIdx.y * TILE_Y + ty - 2;
      tile[ty][tx] = gx < 0 || gy < 0 || gx >= N || gy >= N ? 0.f : now[(size_t)z * layer + (size_t)gy * N + gx];
    }
    __syncthreads();
    int tx = threadIdx.x + 2, ty = threadIdx.y + 2;
    float near = tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx] + back1 + front1;
    float far = tile[ty][tx - 2] + tile[ty][tx + 2] + tile[ty - 2][tx] + tile[ty + 2][tx] + back2 + front2;
    float curve = -7.5f * here + (4.f / 3) * near - (1.f / 12) * far;
    int rim = min(min(min(x, N - 1 - x), min(y, N - 1 - y)), min(z, N - 1 - z));
    float keep = rim < 16 ? 1 - 0.002f * (16 - rim) : 1.f;
    next[at] = keep * (2 * here - keep * next[at] + speed[at] * curve);
    back2 = back1, back1 = here, here = front1, front1 = front2;
  }
}

__global__ void strike(float *now, float force) {
  int x = threadIdx.x % 8, y = threadIdx.x / 8;
  now[((size_t)(N / 3) * N + N / 2 + y - 4) * N + N / 2 + x - 4 + N / 8] += force;
}

__global__ void listen(const float *now, float *heard, int moment) {
  int k = threadIdx.x;
  heard[(size_t)(moment % 4096) * MICROPHONES + k] = now[((size_t)(N / 2) * N + 20 % N) * N + (size_t)k * N / MICROPHONES];
}

int main(int argc, char **argv) {
  float *now, *next, *speed, *heard;
  size_t bytes = sizeof(float) * N * N * N;
  cudaMalloc(&now, bytes);
  cudaMalloc(&next, bytes);
  cudaMalloc(&speed, bytes);
  cudaMalloc(&heard, sizeof(float) * 4096 * MICROPHONES);
  cudaMemset(now, 0, bytes);
  cudaMemset(next, 0, bytes);
  dim3 block(TILE_X, TILE_Y);
  cast<<<dim3(N / TILE_X, N / TILE_Y, N), block>>>(speed);
  int moment = 0;
  return run(argc, argv, [&] {
    for (int k = 0; k < SUBSTEPS; k++) {
      if (moment < 100) strike<<<1, 64>>>(now, sinf(0.06f * moment));
      advance<<<dim3(N / TILE_X, N / TILE_Y, N / DEPTH), block>>>(now, next, speed);
      std::swap(now, next);
      listen<<<1, MICROPHONES>>>(now, heard, moment++);
    }
  });
}
