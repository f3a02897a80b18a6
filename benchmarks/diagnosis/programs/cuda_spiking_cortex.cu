// Simulates layers of spiking neurons tick by tick: currents, membranes, spikes, synapses' traces and plasticity.
// CAUSE: unneeded-sync
// ALSO:
#include "_run_other.cuh"
#include <map>
#include <string>
#include <vector>

const int LAYERS = 6, NEURONS = 16384, FAN_IN = 64, TICKS = 10, THREADS = 256;

struct Layer {
  float *potential, *current, *trace, *weights, *rate;
  int *sources;
  unsigned char *spikes;
};

// time that each stage of a tick takes on the GPU
class Stages {
 public:
  explicit Stages(bool on) : on(on) {
    cudaEventCreate(&begun);
    cudaEventCreate(&ended);
  }
  void begin() {
    if (on) cudaEventRecord(begun);
  }
  void end(const char *stage) {
    if (!on) return;
    cudaEventRecord(ended);
    cudaEventSynchronize(ended);  // fault
    float ms;
    cudaEventElapsedTime(&ms, begun, ended);
    total[stage] += ms;
  }

 private:
  bool on;
  cudaEvent_t begun, ended;
  std::map<std::string, float> total;
};

__global__ void gather(const unsigned char *before, const int *sources, const float *weights, float *current) {
  int n = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < FAN_IN; k++) sum += weights[k * NEURONS + n] * before[sources[k * NEURONS + n]];
  current[n] = 0.9f * current[n] + sum;
}

__global__ void integrate(float *potential, const float *current, unsigned char *spikes, int tick) {
  int n = blockIdx.x * blockDim.x + threadIdx.x;
  float v = potential[n] + 0.1f * (-potential[n] + current[n]);
  unsigned h = (unsigned)(n * 9781 + tick) * 2654435761u;
  v += (h >> 8) * (0.3f / (1 << 24));
  bool fired = v > 1.f;
  potential[n] = fired ? 0.f : v;
  spikes[n] = fired;
}

__global__ void leave_trace(float *trace, float *rate, const unsigned char *spikes) {
  int n = blockIdx.x * blockDim.x + threadIdx.x;
  trace[n] = 0.95f * trace[n] + spikes[n];
  rate[n] = 0.999f * rate[n] + 0.001f * spikes[n];
}

__global__ void learn(float *weights, const int *sources, const float *before, const float *trace,
                      const unsigned char *spikes) {
  int n = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y;
  size_t i = (size_t)k * NEURONS + n;
  float change = spikes[n] ? 1e-3f * before[sources[i]] : -1e-5f * trace[n];
  weights[i] = fminf(fmaxf(weights[i] + change, 0.f), 0.2f);
}

class Cortex {
 public:
  explicit Cortex(bool verbose) : stages(verbose), layers(LAYERS) {
    unsigned seed = 3;
    std::vector<float> weights(NEURONS * FAN_IN);
    std::vector<int> sources(NEURONS * FAN_IN);
    for (Layer &layer : layers) {
      for (float **to : {&layer.potential, &layer.current, &layer.trace, &layer.rate}) {
        cudaMalloc(to, sizeof(float) * NEURONS);
        cudaMemset(*to, 0, sizeof(float) * NEURONS);
      }
      cudaMalloc(&layer.spikes, NEURONS);
      cudaMemset(layer.spikes, 0, NEURONS);
      for (int i = 0; i < NEURONS * FAN_IN; i++) {
        seed = seed * 1664525u + 1013904223u;
        weights[i] = (seed >> 8) * (0.1f / (1 << 24)), sources[i] = (seed >> 9) % NEURONS;
      }
      cudaMalloc(&layer.weights, sizeof(float) * NEURONS * FAN_IN);
      cudaMalloc(&layer.sources, sizeof(int) * NEURONS * FAN_IN);
      cudaMemcpy(layer.weights, weights.data(), sizeof(float) * NEURONS * FAN_IN, cudaMemcpyHostToDevice);
      cudaMemcpy(layer.sources, sources.data(), sizeof(int) * NEURONS * FAN_IN, cudaMemcpyHostToDevice);
    }
  }

  void tick() {
    const int blocks = NEURONS / THREADS;
    for (int l = 0; l < LAYERS; l++) {
      Layer &layer = layers[l], &before = layers[(l + LAYERS - 1) % LAYERS];
      stages.begin();
      gather<<<blocks, THREADS>>>(before.spikes, layer.sources, layer.weights, layer.current);
      stages.end("gather");  // fault
      stages.begin();
      integrate<<<blocks, THREADS>>>(layer.potential, layer.current, layer.spikes, ticks);
      stages.end("integrate");  // fault
      stages.begin();
      leave_trace<<<blocks, THREADS>>>(layer.trace, layer.rate, layer.spikes);
      stages.end("trace");  // fault
      stages.begin();
      learn<<<dim3(blocks, FAN_IN), THREADS>>>(layer.weights, layer.sources, before.trace, layer.trace, layer.spikes);
      stages.end("learn");  // fault
    }
    ticks++;
  }

  double rate() const {
    std::vector<float> rates(NEURONS);
    cudaMemcpy(rates.data(), layers.back().rate, sizeof(float) * NEURONS, cudaMemcpyDeviceToHost);
    double sum = 0;
    for (float r : rates) sum += r;
    return sum / NEURONS;
  }

 private:
  Stages stages;
  std::vector<Layer> layers;
  int ticks = 0;
};

int main(int argc, char **argv) {
  bool verbose = !is_fixed(argc, argv);
  Cortex cortex(verbose);
  int code = run(argc, argv, [&] {
    for (int t = 0; t < TICKS; t++) cortex.tick();
  });
  fprintf(stderr, "rate of the last layer: %.6g\n", cortex.rate());
  return code;
}
