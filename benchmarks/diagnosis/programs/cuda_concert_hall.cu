// Sound in a hall: waves on a grid of three dimensions, whose planes pass through tiles of shared memory.
// CAUSE:
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int NX = 512, NY = 384, NZ = 320, TX = 32, TY = 8, DEPTH = 40, STEPS = 6;
const size_t CELLS = (size_t)NX * NY * NZ;

// a block goes through DEPTH planes; neighbours along z stay in registers, those of the plane in shared memory
__global__ void __launch_bounds__(TX *TY) wave(const float *__restrict__ now, float *__restrict__ before, float c2,
                                               float loss, float source) {
  __shared__ float tile[TY + 2][TX + 2];
  const int x = blockIdx.x * TX + threadIdx.x, y = blockIdx.y * TY + threadIdx.y, z0 = blockIdx.z * DEPTH;
  const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
  const size_t plane = (size_t)NX * NY;
  size_t i = (size_t)z0 * plane + (size_t)y * NX + x;
  float below = z0 > 0 ? now[i - plane] : 0.f, here = now[i];
  for (int z = z0; z < z0 + DEPTH; z++, i += plane) {
    float above = z < NZ - 1 ? now[i + plane] : 0.f;
    tile[ty][tx] = here;
    if (threadIdx.x == 0) tile[ty][0] = x > 0 ? now[i - 1] : 0.f;
    if (threadIdx.x == TX - 1) tile[ty][TX + 1] = x < NX - 1 ? now[i + 1] : 0.f;
    if (threadIdx.y == 0) tile[0][tx] = y > 0 ? now[i - NX] : 0.f;
    if (threadIdx.y == TY - 1) tile[TY + 1][tx] = y < NY - 1 ? now[i + NX] : 0.f;
    __syncthreads();
    float around = tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx] + below + above;
    float next = (2.f * here - before[i] + c2 * (around - 6.f * here)) * loss;
    if (x == NX / 3 && y == NY / 2 && z == NZ / 4) next += source;
    before[i] = next;
    below = here, here = above;
    __syncthreads();
  }
}

__global__ void listen(const float *now, const int3 *seats, float *heard, int count, int row) {
  int s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s < count) heard[(size_t)row * count + s] = now[((size_t)seats[s].z * NY + seats[s].y) * NX + seats[s].x];
}

int main(int argc, char **argv) {
  const int seats = 1024, rows = 64;
  float *now, *before, *heard;
  int3 *places;
  cudaMalloc(&now, sizeof(float) * CELLS);
  cudaMalloc(&before, sizeof(float) * CELLS);
  cudaMalloc(&heard, sizeof(float) * seats * rows);
  cudaMalloc(&places, sizeof(int3) * seats);
  cudaMemset(now, 0, sizeof(float) * CELLS);
  cudaMemset(before, 0, sizeof(float) * CELLS);
  std::vector<int3> at(seats);
  for (int s = 0; s < seats; s++) at[s] = make_int3(NX / 2 + s % 32 * 4, NY / 4 + s / 32 * 4, 12 + s / 64);
  cudaMemcpy(places, at.data(), sizeof(int3) * seats, cudaMemcpyHostToDevice);
  int tick = 0;

  int code = run(argc, argv, [&] {
    for (int k = 0; k < STEPS; k++, tick++) {
      float source = tick < 40 ? 0.1f * (tick % 8 - 3.5f) : 0.f;
      wave<<<dim3(NX / TX, NY / TY, NZ / DEPTH), dim3(TX, TY)>>>(now, before, 0.3f, 0.9999f, source);
      std::swap(now, before);
    }
    listen<<<seats / 256, 256>>>(now, places, heard, seats, tick / STEPS % rows);
  });
  std::vector<float> sound(seats * rows);
  cudaMemcpy(sound.data(), heard, sizeof(float) * sound.size(), cudaMemcpyDeviceToHost);
  double sum = 0;
  for (float v : sound) sum += v * v;
  fprintf(stderr, "energy at the seats: %.6g\n", sum);
  return code;
}
