// Flow in a periodic box by the lattice Boltzmann method, D3Q19: streaming and collision in one kernel.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"
#include <cstring>
#include <vector>

const int SIDE = 224, CELLS = SIDE * SIDE * SIDE, DIRECTIONS = 19;
const float OMEGA = 1.2f, FORCE = 1e-5f;

__constant__ int DX[DIRECTIONS] = {0, 1, -1, 0, 0, 0, 0, 1, -1, 1, -1, 1, -1, 1, -1, 0, 0, 0, 0};
__constant__ int DY[DIRECTIONS] = {0, 0, 0, 1, -1, 0, 0, 1, -1, -1, 1, 0, 0, 0, 0, 1, -1, 1, -1};
__constant__ int DZ[DIRECTIONS] = {0, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, 1, -1, -1, 1, 1, -1, -1, 1};

// A cell with all of its populations together, as the CPU version has it.
struct Cells {
  float *f;
  __device__ float &at(int cell, int q) const { return f[(size_t)cell * DIRECTIONS + q]; }  // fault
};

struct Planes {
  float *f;
  __device__ float &at(int cell, int q) const { return f[(size_t)q * CELLS + cell]; }
};

__device__ float weight(int q) { return q == 0 ? 1.f / 3 : q < 7 ? 1.f / 18 : 1.f / 36; }

__device__ int wrap(int x) { return x < 0 ? x + SIDE : x >= SIDE ? x - SIDE : x; }

template <typename Layout>
__global__ void start(Layout f) {
  int cell = blockIdx.x * blockDim.x + threadIdx.x;
  if (cell >= CELLS) return;
  float density = 1.f + 0.01f * __sinf(6.2831853f * (cell % SIDE) / SIDE);
  for (int q = 0; q < DIRECTIONS; q++) f.at(cell, q) = weight(q) * density;
}

template <typename Layout>
__global__ void stream_and_collide(Layout from, Layout to) {
  int cell = blockIdx.x * blockDim.x + threadIdx.x;
  if (cell >= CELLS) return;
  int x = cell % SIDE, y = cell / SIDE % SIDE, z = cell / (SIDE * SIDE);
  float f[DIRECTIONS], density = 0, ux = 0, uy = 0, uz = 0;
#pragma unroll
  for (int q = 0; q < DIRECTIONS; q++) {
    int source = (wrap(z - DZ[q]) * SIDE + wrap(y - DY[q])) * SIDE + wrap(x - DX[q]);
    f[q] = from.at(source, q);  // fault
    density += f[q];
    ux += f[q] * DX[q], uy += f[q] * DY[q], uz += f[q] * DZ[q];
  }
  ux = ux / density + FORCE, uy /= density, uz /= density;
  float square = 1.5f * (ux * ux + uy * uy + uz * uz);
#pragma unroll
  for (int q = 0; q < DIRECTIONS; q++) {
    float along = 3 * (DX[q] * ux + DY[q] * uy + DZ[q] * uz);
    float equilibrium = weight(q) * density * (1 + along + 0.5f * along * along - square);
    to.at(cell, q) = f[q] + OMEGA * (equilibrium - f[q]);  // fault
  }
}

template <typename Layout>
int simulate(int argc, char **argv) {
  Layout one, other;
  cudaMalloc(&one.f, sizeof(float) * CELLS * DIRECTIONS);
  cudaMalloc(&other.f, sizeof(float) * CELLS * DIRECTIONS);
  const int threads = 256, blocks = (CELLS + threads - 1) / threads;
  start<<<blocks, threads>>>(one);
  return run(argc, argv, [&] {
    for (int turn = 0; turn < 4; turn++) {
      stream_and_collide<<<blocks, threads>>>(one, other);
      Layout kept = one;
      one = other;
      other = kept;
    }
  });
}

int main(int argc, char **argv) {
  bool fixed = false;
  for (int i = 1; i < argc; i++) fixed |= !strcmp(argv[i], "fixed");
  return fixed ? simulate<Planes>(argc, argv) : simulate<Cells>(argc, argv);
}
