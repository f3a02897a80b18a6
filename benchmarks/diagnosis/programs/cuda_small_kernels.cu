// Moves a few particles with very many very short kernels, each launched by itself.
// CAUSE: graph-candidate
// ALSO:
#include "_run_other.cuh"

const int PARTICLES = 4096, TIMES = 100;

__global__ void pull(const float *x, float *force, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) force[i] = -x[i];
}

__global__ void accelerate(float *v, const float *force, float dt, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) v[i] += dt * force[i];
}

__global__ void move(float *x, const float *v, float dt, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += dt * v[i];
}

void simulate(float *x, float *v, float *force, cudaStream_t stream) {
  for (int t = 0; t < TIMES; t++) {
    pull<<<PARTICLES / 128, 128, 0, stream>>>(x, force, PARTICLES);             // fault
    accelerate<<<PARTICLES / 128, 128, 0, stream>>>(v, force, 0.01f, PARTICLES);  // fault
    move<<<PARTICLES / 128, 128, 0, stream>>>(x, v, 0.01f, PARTICLES);          // fault
  }
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  float *state;
  cudaMalloc(&state, sizeof(float) * 3 * PARTICLES);
  cudaMemset(state, 0, sizeof(float) * 3 * PARTICLES);
  float *x = state, *v = x + PARTICLES, *force = v + PARTICLES;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaGraph_t graph;
  cudaGraphExec_t recorded = nullptr;
  if (fixed) {
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    simulate(x, v, force, stream);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&recorded, graph, 0);
  }
  return run(argc, argv, [&] {
    if (fixed)
      cudaGraphLaunch(recorded, stream);
    else
      simulate(x, v, force, stream);  // fault
  });
}
