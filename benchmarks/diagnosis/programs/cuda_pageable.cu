// Filters pictures that lie in ordinary memory, which each step copies to the GPU and back.
// CAUSE: pageable-copy
// ALSO:
#include "_run_other.cuh"

const int PIXELS = 1 << 24;

__global__ void brighten(float *picture, float gamma, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) picture[i] = powf(picture[i], gamma);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  size_t bytes = sizeof(float) * PIXELS;
  float *host, *device;
  if (fixed)
    cudaMallocHost(&host, bytes);
  else
    host = (float *)malloc(bytes);  // fault
  std::fill(host, host + PIXELS, 0.5f);
  cudaMalloc(&device, bytes);
  return run(argc, argv, [&] {
    cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice);  // fault
    brighten<<<PIXELS / 256, 256>>>(device, 0.99f, PIXELS);
    cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost);  // fault
  });
}
