// Ages a population in managed memory, which the host and the GPU touch in turns.
// CAUSE: unified-memory-thrash
// ALSO:
#include "_run_other.cuh"

const int PEOPLE = 1 << 21;

__global__ void age(float *years, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) years[i] += 1;
}

__global__ void renew(float *years, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && years[i] > 90) years[i] = 0;
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *years;
  cudaMallocManaged(&years, sizeof(float) * PEOPLE);  // fault
  for (int i = 0; i < PEOPLE; i++) years[i] = i % 90;
  return run(argc, argv, [&] {
    age<<<PEOPLE / 256, 256>>>(years, PEOPLE);
    if (fixed) {
      renew<<<PEOPLE / 256, 256>>>(years, PEOPLE);
    } else {
      cudaDeviceSynchronize();             // fault
      for (int i = 0; i < PEOPLE; i++)     // fault
        if (years[i] > 90) years[i] = 0;   // fault
    }
  });
}
