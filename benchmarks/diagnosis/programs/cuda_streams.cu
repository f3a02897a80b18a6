// Four parts of a field on streams of their own; a scaling between goes to the default stream.
// CAUSE: default-stream
// ALSO:
#include "_run_other.cuh"

const int PARTS = 4, COUNT = 1 << 15, ROUNDS = 8;

__global__ void relax(float *values, int count, int times) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float v = values[i];
  for (int k = 0; k < times; k++) v = v * 0.999f + 0.001f * sinf(v);
  values[i] = v;
}

__global__ void scale(float *values, int count, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= factor;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *parts[PARTS];
  cudaStream_t streams[PARTS];
  for (int p = 0; p < PARTS; p++) {
    cudaMalloc(&parts[p], sizeof(float) * COUNT);
    cudaMemset(parts[p], 0, sizeof(float) * COUNT);
    cudaStreamCreate(&streams[p]);
  }
  return run(argc, argv, [&] {
    for (int round = 0; round < ROUNDS; round++)
      for (int p = 0; p < PARTS; p++) {
        relax<<<COUNT / 256, 256, 0, streams[p]>>>(parts[p], COUNT, 2000);
        scale<<<COUNT / 256, 256, 0, fixed ? streams[p] : 0>>>(parts[p], COUNT, 0.99f);  // fault
      }
  });
}
