// Moves the ions of a molten salt under the forces between all pairs of them.
// CAUSE:
// ALSO:
#include "_run_other.cuh"

const int THREADS = 256, BLOCKS = 528, IONS = THREADS * BLOCKS;

// Force of all the others on each ion: a tile of ions at a time is kept in shared memory.
__global__ void __launch_bounds__(THREADS) attract(const float4 *__restrict__ ions, float4 *__restrict__ forces) {
  __shared__ float4 tile[THREADS];
  int own = blockIdx.x * THREADS + threadIdx.x;
  float4 me = ions[own];
  float fx = 0, fy = 0, fz = 0;
  for (int start = 0; start < IONS; start += THREADS) {
    tile[threadIdx.x] = ions[start + threadIdx.x];
    __syncthreads();
#pragma unroll 16
    for (int k = 0; k < THREADS; k++) {
      float4 other = tile[k];
      float dx = me.x - other.x, dy = me.y - other.y, dz = me.z - other.z;
      float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
      float pull = other.w * inverse * inverse * inverse;
      fx += pull * dx, fy += pull * dy, fz += pull * dz;
    }
    __syncthreads();
  }
  forces[own] = make_float4(me.w * fx, me.w * fy, me.w * fz, 0);
}

__global__ void move(float4 *__restrict__ ions, float4 *__restrict__ speeds, const float4 *__restrict__ forces,
                     float interval) {
  int own = blockIdx.x * THREADS + threadIdx.x;
  float4 ion = ions[own], speed = speeds[own], force = forces[own];
  speed.x += interval * force.x, speed.y += interval * force.y, speed.z += interval * force.z;
  ion.x += interval * speed.x, ion.y += interval * speed.y, ion.z += interval * speed.z;
  ions[own] = ion, speeds[own] = speed;
}

int main(int argc, char **argv) {
  const size_t bytes = sizeof(float4) * IONS;
  float4 *ions, *speeds, *forces, *begin, sample;
  cudaMallocHost(&begin, bytes);
  unsigned seed = 3;
  auto uniform = [&] { return seed = seed * 1664525u + 1013904223u, (seed >> 8) * 0x1p-24f; };
  for (int k = 0; k < IONS; k++) begin[k] = {50 * uniform(), 50 * uniform(), 50 * uniform(), k % 2 ? 1.f : -1.f};
  cudaMalloc(&ions, bytes);
  cudaMalloc(&speeds, bytes);
  cudaMalloc(&forces, bytes);
  cudaMemcpy(ions, begin, bytes, cudaMemcpyHostToDevice);
  cudaMemset(speeds, 0, bytes);

  int code = run(argc, argv, [&] {
    attract<<<BLOCKS, THREADS>>>(ions, forces);
    move<<<BLOCKS, THREADS>>>(ions, speeds, forces, 1e-4f);
  });
  cudaMemcpy(&sample, ions, sizeof sample, cudaMemcpyDeviceToHost);
  fprintf(stderr, "some of it: %.5f %.5f %.5f\n", sample.x, sample.y, sample.z);
  return code;
}
