// Energies between particles, in float, but for constants and functions that C takes for double.
// CAUSE: float64
// ALSO:
#include "_run_other.cuh"

const int COUNT = 1 << 22;

__global__ void energies(const float *r, float *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= COUNT) return;
  float sum = 0;
  for (int k = 1; k < 16; k++) {
    double s = 1.0 / (r[i] + 0.1 * k);  // fault
    sum += 4.0 * (pow(s, 12.0) - pow(s, 6.0));  // fault
  }
  out[i] = sum;
}

__global__ void energies_float(const float *r, float *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= COUNT) return;
  float sum = 0;
  for (int k = 1; k < 16; k++) {
    float s = 1.0f / (r[i] + 0.1f * k);
    sum += 4.0f * (powf(s, 12.0f) - powf(s, 6.0f));
  }
  out[i] = sum;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *r, *out;
  cudaMalloc(&r, sizeof(float) * COUNT);
  cudaMalloc(&out, sizeof(float) * COUNT);
  cudaMemset(r, 0x3f, sizeof(float) * COUNT);
  return run(argc, argv, [&] {
    if (fixed)
      energies_float<<<COUNT / 256, 256>>>(r, out);
    else
      energies<<<COUNT / 256, 256>>>(r, out);  // fault
  });
}
