// Integrates neurons in float, but for literals and functions of double.
// CAUSE: float64
// ALSO:
#include "_run_other.cuh"

const int NEURONS = 1 << 22, STEPS = 16;

__global__ void integrate_in_double(float *voltage, float *recovery, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = voltage[i], w = recovery[i];
  for (int k = 0; k < STEPS; k++) {
    float gate = 1.0 / (1.0 + exp(-(v + 0.5) * 4.0));       // fault
    v += 0.01 * (v - v * v * v / 3.0 - w + 0.5 * gate);     // fault
    w += 0.01 * 0.08 * (v + 0.7 - 0.8 * w);                 // fault
  }
  voltage[i] = v, recovery[i] = w;
}

__global__ void integrate(float *voltage, float *recovery, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = voltage[i], w = recovery[i];
  for (int k = 0; k < STEPS; k++) {
    float gate = 1 / (1 + expf(-(v + 0.5f) * 4));
    v += 0.01f * (v - v * v * v / 3 - w + 0.5f * gate);
    w += 0.01f * 0.08f * (v + 0.7f - 0.8f * w);
  }
  voltage[i] = v, recovery[i] = w;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *voltage, *recovery;
  cudaMalloc(&voltage, sizeof(float) * NEURONS);
  cudaMalloc(&recovery, sizeof(float) * NEURONS);
  cudaMemset(voltage, 0, sizeof(float) * NEURONS);
  cudaMemset(recovery, 0, sizeof(float) * NEURONS);
  return run(argc, argv, [&] {
    if (fixed)
      integrate<<<NEURONS / 256, 256>>>(voltage, recovery, NEURONS);
    else
      integrate_in_double<<<NEURONS / 256, 256>>>(voltage, recovery, NEURONS);  // fault
  });
}
