// Moves particles that are an array of structures: neighbouring threads read 64 bytes apart.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"

const int COUNT = 1 << 22;

struct Particle {
  float x, y, z, vx, vy, vz, mass, charge;
  float old_x, old_y, old_z, age, kind, cell, spare, more;
};

__global__ void move(Particle *particles, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= COUNT) return;
  particles[i].x += particles[i].vx * dt;  // fault
  particles[i].y += particles[i].vy * dt;  // fault
  particles[i].z += particles[i].vz * dt;  // fault
}

__global__ void move_arrays(float *x, float *y, float *z, const float *vx, const float *vy, const float *vz, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= COUNT) return;
  x[i] += vx[i] * dt;
  y[i] += vy[i] * dt;
  z[i] += vz[i] * dt;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  Particle *particles;
  cudaMalloc(&particles, sizeof(Particle) * COUNT);
  cudaMemset(particles, 0, sizeof(Particle) * COUNT);
  float *a = (float *)particles;
  return run(argc, argv, [&] {
    for (int k = 0; k < 4; k++)
      if (fixed)
        move_arrays<<<COUNT / 256, 256>>>(a, a + COUNT, a + 2 * COUNT, a + 3 * COUNT, a + 4 * COUNT, a + 5 * COUNT, 1e-3f);
      else
        move<<<COUNT / 256, 256>>>(particles, 1e-3f);  // fault
  });
}
