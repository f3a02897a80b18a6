// Flow past a cylinder by the lattice Boltzmann method (D2Q9, single relaxation time), with drag measured at each output.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"
#include <utility>

#ifdef TINY
const int NX = 128, NY = 64, SUBSTEPS = 2;
#else
const int NX = 4096, NY = 2048, SUBSTEPS = 4;
#endif
const int Q = 9;
const float TAU = 0.56f, INFLOW = 0.08f;

__constant__ int cx[Q] = {0, 1, 0, -1, 0, 1, -1, -1, 1};
__constant__ int cy[Q] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
__constant__ float weight[Q] = {4.f / 9, 1.f / 9, 1.f / 9, 1.f / 9, 1.f / 9, 1.f / 36, 1.f / 36, 1.f / 36, 1.f / 36};

__device__ constexpr int opposite(int q) { return q == 0 ? 0 : q < 5 ? (q + 1) % 4 + 1 : (q - 3) % 4 + 5; }

// Populations of the lattice as they lie in memory.
struct NodeMajor {
  float *f;
  __device__ float &at(int x, int y, int q) const { return f[(size_t)(y * NX + x) * Q + q]; }  // fault
};

struct DirectionMajor {
  float *f;
  __device__ float &at(int x, int y, int q) const { return f[(size_t)q * NX * NY + y * NX + x]; }
};

__device__ float equilibrium(int q, float rho, float u, float v) {
  float cu = 3.f * (cx[q] * u + cy[q] * v);
  return weight[q] * rho * (1.f + cu + 0.5f * cu * cu - 1.5f * (u * u + v * v));
}

template <class Field>
__global__ void initialise(Field field, unsigned char *solid) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= NX) return;
  float dx = x - NX / 5.f, dy = y - NY / 2.f + 0.5f, r = NY / 12.f;
  solid[y * NX + x] = dx * dx + dy * dy < r * r;
  for (int q = 0; q < Q; q++) field.at(x, y, q) = equilibrium(q, 1.f, INFLOW, 0.f);
}

template <class Field>
__global__ void collide_and_stream(Field from, Field to, const unsigned char *solid) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= NX) return;
  float f[Q], rho = 0, u = 0, v = 0;
#pragma unroll
  for (int q = 0; q < Q; q++) {
    int sx = (x - cx[q] + NX) % NX, sy = (y - cy[q] + NY) % NY;
    f[q] = from.at(sx, sy, q);  // fault
    rho += f[q], u += cx[q] * f[q], v += cy[q] * f[q];
  }
  if (solid[y * NX + x]) {
#pragma unroll
    for (int q = 0; q < Q; q++) to.at(x, y, q) = f[opposite(q)];
    return;
  }
  u /= rho, v /= rho;
  if (x == 0) u = INFLOW, v = 0, rho = 1;
#pragma unroll
  for (int q = 0; q < Q; q++) {
    float e = equilibrium(q, rho, u, v);
    to.at(x, y, q) = x == 0 ? e : f[q] - (f[q] - e) / TAU;  // fault
  }
}

template <class Field>
__global__ void moments(Field field, float *speed, float *density) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= NX) return;
  float rho = 0, u = 0, v = 0;
#pragma unroll
  for (int q = 0; q < Q; q++) {
    float f = field.at(x, y, q);
    rho += f, u += cx[q] * f, v += cy[q] * f;
  }
  speed[y * NX + x] = sqrtf(u * u + v * v) / rho;
  density[y * NX + x] = rho;
}

__global__ void vorticity(const float *speed, const float *density, float *picture) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= NX) return;
  int right = min(x + 1, NX - 1), below = min(y + 1, NY - 1);
  float here = speed[y * NX + x];
  float slope = fabsf(speed[y * NX + right] - here) + fabsf(speed[below * NX + x] - here);
  picture[y * NX + x] = 0.9f * picture[y * NX + x] + 0.1f * slope * density[y * NX + x];
}

template <class Field>
int simulate(int argc, char **argv) {
  Field now, next;
  unsigned char *solid;
  float *speed, *density, *picture;
  size_t nodes = (size_t)NX * NY;
  cudaMalloc(&now.f, nodes * Q * sizeof(float));
  cudaMalloc(&next.f, nodes * Q * sizeof(float));
  cudaMalloc(&solid, nodes);
  cudaMalloc(&speed, nodes * sizeof(float));
  cudaMalloc(&density, nodes * sizeof(float));
  cudaMalloc(&picture, nodes * sizeof(float));
  cudaMemset(picture, 0, nodes * sizeof(float));
  dim3 block(128), grid((NX + 127) / 128, NY);
  initialise<<<grid, block>>>(now, solid);
  return run(argc, argv, [&] {
    for (int k = 0; k < SUBSTEPS; k++) {
      collide_and_stream<<<grid, block>>>(now, next, solid);
      std::swap(now, next);
    }
    moments<<<grid, block>>>(now, speed, density);
    vorticity<<<grid, block>>>(speed, density, picture);
  });
}

int main(int argc, char **argv) {
  return is_fixed(argc, argv) ? simulate<DirectionMajor>(argc, argv) : simulate<NodeMajor>(argc, argv);  // fault
}
