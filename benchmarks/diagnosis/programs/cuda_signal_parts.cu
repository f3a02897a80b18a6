// A filter over parts of a signal on the host: each is copied, filtered and copied back, one after the other.
// CAUSE: serial-copy
// ALSO:
#include "_run_other.cuh"

const int PARTS = 8, COUNT = 1 << 21;

__global__ void filtered(const float *in, float *out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float x = in[i];
  for (int k = 0; k < 300; ++k) x = x * 0.999f + sinf(x) * 0.001f;
  out[i] = x;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *host, *back, *in, *out;
  cudaMallocHost(&host, sizeof(float) * PARTS * COUNT);
  cudaMallocHost(&back, sizeof(float) * PARTS * COUNT);
  cudaMalloc(&in, sizeof(float) * PARTS * COUNT);
  cudaMalloc(&out, sizeof(float) * PARTS * COUNT);
  memset(host, 0, sizeof(float) * PARTS * COUNT);
  cudaStream_t streams[4];
  for (auto &stream : streams) cudaStreamCreate(&stream);
  return run(argc, argv, [&] {
    for (int part = 0; part < PARTS; part++) {
      cudaStream_t stream = streams[fixed ? part % 4 : 0];  // fault
      size_t at = (size_t)part * COUNT;
      cudaMemcpyAsync(in + at, host + at, sizeof(float) * COUNT, cudaMemcpyHostToDevice, stream);  // fault
      filtered<<<COUNT / 256, 256, 0, stream>>>(in + at, out + at, COUNT);
      cudaMemcpyAsync(back + at, out + at, sizeof(float) * COUNT, cudaMemcpyDeviceToHost, stream);  // fault
    }
    wait_for_gpu();
  });
}
