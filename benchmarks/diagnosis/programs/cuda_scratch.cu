// Smooths signals with scratch memory that each step allocates and frees.
// CAUSE: allocation-in-loop
// ALSO:
#include "_run_other.cuh"

const int SAMPLES = 1 << 23, PASSES = 4;

__global__ void smooth(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float left = in[i ? i - 1 : 0], right = in[i < n - 1 ? i + 1 : i];
  out[i] = 0.25f * left + 0.5f * in[i] + 0.25f * right;
}

void smooth_signal(float *signal, float *kept) {
  size_t bytes = sizeof(float) * SAMPLES;
  for (int pass = 0; pass < PASSES; pass++) {
    float *scratch = kept;
    if (!kept) cudaMalloc(&scratch, bytes);  // fault
    smooth<<<SAMPLES / 256, 256>>>(signal, scratch, SAMPLES);
    smooth<<<SAMPLES / 256, 256>>>(scratch, signal, SAMPLES);
    if (!kept) cudaFree(scratch);  // fault
  }
}

int main(int argc, char **argv) {
  float *signal, *kept = nullptr;
  cudaMalloc(&signal, sizeof(float) * SAMPLES);
  cudaMemset(signal, 0, sizeof(float) * SAMPLES);
  if (is_fixed(argc, argv)) cudaMalloc(&kept, sizeof(float) * SAMPLES);
  return run(argc, argv, [&] { smooth_signal(signal, kept); });
}
