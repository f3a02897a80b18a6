// Heat in a box: a thread takes a line of the grid, and walks along it.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"

const int N = 512;

__global__ void heat(const float *in, float *out, int n) {
  int y = blockIdx.x * blockDim.x + threadIdx.x;
  if (y < 1 || y >= n - 1) return;
  int z = blockIdx.y + 1;
  for (int x = 1; x < n - 1; ++x) {
    long i = ((long)z * n + y) * n + x;  // fault
    out[i] = 0.25f * (in[i - 1] + in[i + 1] + in[i - n] + in[i + n]);  // fault
  }
}

__global__ void heat_rows(const float *in, float *out, int n) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y + 1, z = blockIdx.z + 1;
  if (x < 1 || x >= n - 1 || y >= n - 1) return;
  long i = ((long)z * n + y) * n + x;
  out[i] = 0.25f * (in[i - 1] + in[i + 1] + in[i - n] + in[i + n]);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *now, *then;
  cudaMalloc(&now, sizeof(float) * N * N * N);
  cudaMalloc(&then, sizeof(float) * N * N * N);
  cudaMemset(now, 0, sizeof(float) * N * N * N);
  return run(argc, argv, [&] {
    if (fixed)
      heat_rows<<<dim3(N / 256, N - 2, N - 2), 256>>>(now, then, N);
    else
      heat<<<dim3(N / 128, N - 2), 128>>>(now, then, N);  // fault
    std::swap(now, then);
  });
}
