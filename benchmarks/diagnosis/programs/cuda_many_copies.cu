// Sends the state of many small objects to the GPU, one copy for each of their fields.
// CAUSE: small-copies
// ALSO:
#include "_run_other.cuh"

const int OBJECTS = 400, FLOATS = 64;

__global__ void advance(float *state, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) state[i] = state[i] * 0.99f + 0.01f;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *host, *device;
  cudaMallocHost(&host, sizeof(float) * OBJECTS * FLOATS);
  memset(host, 0, sizeof(float) * OBJECTS * FLOATS);
  cudaMalloc(&device, sizeof(float) * OBJECTS * FLOATS);
  return run(argc, argv, [&] {
    if (fixed)
      cudaMemcpyAsync(device, host, sizeof(float) * OBJECTS * FLOATS, cudaMemcpyHostToDevice);
    else
      for (int k = 0; k < OBJECTS; k++)
        cudaMemcpyAsync(device + k * FLOATS, host + k * FLOATS, sizeof(float) * FLOATS, cudaMemcpyHostToDevice);  // fault
    advance<<<(OBJECTS * FLOATS + 255) / 256, 256>>>(device, OBJECTS * FLOATS);
  });
}
