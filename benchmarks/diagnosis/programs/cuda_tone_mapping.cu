// Maps the tones of frames that come from ordinary memory, with a kernel that computes in double for its literals.
// CAUSE: pageable-copy
// ALSO: float64
#include "_run_other.cuh"

const int PIXELS = 1 << 24;

__global__ void map_tones_in_double(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i];
  for (int k = 0; k < 6; k++) x = pow(x, 0.9) * exp(-0.1 * x) + 0.05 * log(1.0 + x);  // also
  out[i] = x;
}

__global__ void map_tones(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i];
  for (int k = 0; k < 6; k++) x = powf(x, 0.9f) * expf(-0.1f * x) + 0.05f * logf(1.0f + x);
  out[i] = x;
}

int main(int argc, char **argv) {
  size_t bytes = sizeof(float) * PIXELS;
  float *frame, *in, *out;
  if (is_main_fixed(argc, argv))
    cudaMallocHost(&frame, bytes);
  else
    frame = (float *)malloc(bytes);  // fault
  std::fill(frame, frame + PIXELS, 0.5f);
  cudaMalloc(&in, bytes);
  cudaMalloc(&out, bytes);
  return run(argc, argv, [&] {
    cudaMemcpy(in, frame, bytes, cudaMemcpyHostToDevice);  // fault
    if (is_fixed(argc, argv))
      map_tones<<<PIXELS / 256, 256>>>(in, out, PIXELS);
    else
      map_tones_in_double<<<PIXELS / 256, 256>>>(in, out, PIXELS);  // also
  });
}
