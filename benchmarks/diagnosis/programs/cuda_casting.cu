// Cools a casting: heat in three dimensions by alternating directions, with latent heat where metal sets.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"

const int N = 384, TILE = 32;
const size_t ALL = (size_t)N * N * N;
const float R = .8f, LATENT = 180.f, SOLID = 540.f, LIQUID = 620.f, MOULD = 90.f;

__constant__ float ahead[N], pivot[N];  // of the tridiagonal matrix, which is the same for all lines

// Solves along one direction; a line's cells are `along` apart, and neighbouring lines `first` and `second`.
__global__ void sweep(float *heat, size_t along, size_t first, size_t second) {
  int a = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y * blockDim.y + threadIdx.y;
  if (a >= N || b >= N) return;
  float *line = heat + a * first + b * second, last = 0;
  for (int k = 0; k < N; k++) {
    last = (line[k * along] + R * last) * pivot[k];  // fault
    line[k * along] = last;                          // fault
  }
  for (int k = N - 2; k >= 0; k--) {
    last = line[k * along] + ahead[k] * last;  // fault
    line[k * along] = last;                    // fault
  }
}

__global__ void turn(const float *from, float *to) {
  __shared__ float tile[TILE][TILE + 1];
  size_t plane = (size_t)blockIdx.z * N * N;
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  for (int k = 0; k < TILE; k += 8) tile[threadIdx.y + k][threadIdx.x] = from[plane + (size_t)(y + k) * N + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
  for (int k = 0; k < TILE; k += 8) to[plane + (size_t)(y + k) * N + x] = tile[threadIdx.x][threadIdx.y + k];
}

__global__ void set_metal(float *heat, float *solid) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= ALL) return;
  float t = heat[i], now = fminf(fmaxf((LIQUID - t) / (LIQUID - SOLID), 0.f), 1.f);
  heat[i] = t + LATENT * .05f * (now - solid[i]);
  solid[i] = now;
}

__global__ void cool_faces(float *heat) {
  int a = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y * blockDim.y + threadIdx.y;
  if (a >= N || b >= N) return;
  size_t low = (size_t)b * N + a, high = low + (size_t)(N - 1) * N * N;
  heat[low] += .3f * (MOULD - heat[low]), heat[high] += .3f * (MOULD - heat[high]);
}

__global__ void pour(float *heat, float *solid) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= ALL) return;
  int x = i % N, y = i / N % N, z = i / N / N;
  heat[i] = 700.f + 20.f * sinf(.05f * x) * cosf(.03f * y) * cosf(.04f * z);
  solid[i] = 0;
}

int main(int argc, char **argv) {
  bool fixed = is_main_fixed(argc, argv);
  float *heat, *other, *solid, up[N], down[N];
  cudaMalloc(&heat, sizeof(float) * ALL), cudaMalloc(&other, sizeof(float) * ALL), cudaMalloc(&solid, sizeof(float) * ALL);
  for (int k = 0; k < N; k++) {
    float middle = 1 + (k && k < N - 1 ? 2 : 1) * R;
    down[k] = 1 / (middle - (k ? R * up[k - 1] : 0));
    up[k] = R * down[k];
  }
  cudaMemcpyToSymbol(ahead, up, sizeof up), cudaMemcpyToSymbol(pivot, down, sizeof down);
  int blocks = (int)((ALL + 255) / 256);
  pour<<<blocks, 256>>>(heat, solid);

  dim3 threads(64, 2), lines(N / 64, N / 2), tile(TILE, 8), tiles(N / TILE, N / TILE, N);
  return run(argc, argv, [&] {
    if (fixed) {
      turn<<<tiles, tile>>>(heat, other);
      sweep<<<lines, threads>>>(other, N, 1, (size_t)N * N);
      turn<<<tiles, tile>>>(other, heat);
    } else {
      sweep<<<lines, threads>>>(heat, 1, N, (size_t)N * N);  // fault
    }
    sweep<<<lines, threads>>>(heat, N, 1, (size_t)N * N);
    sweep<<<lines, threads>>>(heat, (size_t)N * N, 1, N);
    set_metal<<<blocks, 256>>>(heat, solid);
    cool_faces<<<lines, threads>>>(heat);
  });
}
