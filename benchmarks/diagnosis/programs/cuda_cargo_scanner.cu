// Cleans and reconstructs views of a scanner of cargo, which come part by part from the (pinned) memory of its reader.
// CAUSE: serial-copy
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int PARTS = 12, VIEWS = 64, DETECTORS = 2048, ROWS = 128, TAPS = 257, THREADS = 256;
const size_t PART = (size_t)VIEWS * DETECTORS * ROWS;  // in 16-bit counts

__constant__ float taps[TAPS];

__global__ void attenuation(const unsigned short *counts, const float *gains, float *logs) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  logs[i] = -__logf(fmaxf(counts[i] * gains[i % DETECTORS], 1.f) * (1.f / 65536.f));
}

__global__ void ramp(const float *logs, float *filtered) {
  __shared__ float line[THREADS + TAPS - 1];
  const float *mine = logs + (size_t)blockIdx.y * DETECTORS;
  int begin = blockIdx.x * THREADS - TAPS / 2;
  for (int k = threadIdx.x; k < THREADS + TAPS - 1; k += THREADS) {
    int d = begin + k;
    line[k] = d < 0 || d >= DETECTORS ? 0.f : mine[d];
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int t = 0; t < TAPS; t++) sum += taps[t] * line[threadIdx.x + t];
  filtered[(size_t)blockIdx.y * DETECTORS + blockIdx.x * THREADS + threadIdx.x] = sum;
}

// adds the part's views to the plan of each row
__global__ void project(const float *filtered, float *volume, int part) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  float sum = 0;
#pragma unroll 8
  for (int v = 0; v < VIEWS; v++) {
    int d = (x + (part * VIEWS + v) * 3) & DETECTORS - 1;
    sum += filtered[((size_t)v * ROWS + row) * DETECTORS + d];
  }
  volume[(size_t)row * DETECTORS + x] += sum;
}

class Scan {
 public:
  Scan(int rooms) : rooms(rooms), counts(rooms), arrived(rooms), used(rooms) {
    cudaStreamCreateWithFlags(&reading, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&computing, cudaStreamNonBlocking);
    for (int r = 0; r < rooms; r++) {
      cudaMalloc(&counts[r], sizeof(unsigned short) * PART);
      cudaEventCreateWithFlags(&arrived[r], cudaEventDisableTiming);
      cudaEventCreateWithFlags(&used[r], cudaEventDisableTiming);
    }
    cudaMalloc(&logs, sizeof(float) * PART);
    cudaMalloc(&filtered, sizeof(float) * PART);
    cudaMalloc(&volume, sizeof(float) * ROWS * DETECTORS);
    cudaMalloc(&gains, sizeof(float) * DETECTORS);
    cudaMemset(volume, 0, sizeof(float) * ROWS * DETECTORS);
  }

  // the counts of a part go to a room of the device once its last user is through
  void part(const unsigned short *from, int number) {
    int room = number % rooms;  // fault
    cudaStreamWaitEvent(reading, used[room]);  // fault
    cudaMemcpyAsync(counts[room], from, sizeof(unsigned short) * PART, cudaMemcpyHostToDevice, reading);  // fault
    cudaEventRecord(arrived[room], reading);
    cudaStreamWaitEvent(computing, arrived[room]);
    attenuation<<<(unsigned)(PART / THREADS), THREADS, 0, computing>>>(counts[room], gains, logs);
    ramp<<<dim3(DETECTORS / THREADS, VIEWS * ROWS), THREADS, 0, computing>>>(logs, filtered);
    project<<<dim3(DETECTORS / THREADS, ROWS), THREADS, 0, computing>>>(filtered, volume, number);
    cudaEventRecord(used[room], computing);
  }

  float *volume, *gains;

 private:
  int rooms;
  std::vector<unsigned short *> counts;
  std::vector<cudaEvent_t> arrived, used;
  cudaStream_t reading, computing;
  float *logs, *filtered;
};

int main(int argc, char **argv) {
  Scan scan(is_fixed(argc, argv) ? 3 : 1);  // fault
  unsigned short *views;
  cudaMallocHost(&views, sizeof(unsigned short) * PART * 2);
  for (size_t i = 0; i < PART * 2; i++) views[i] = 20000 + (unsigned)(i * 2654435761u >> 17) % 40000;
  std::vector<float> gains(DETECTORS), filter(TAPS);
  for (int d = 0; d < DETECTORS; d++) gains[d] = 0.9f + 0.2f * (d % 17) / 17;
  for (int t = 0; t < TAPS; t++) {
    int n = t - TAPS / 2;
    filter[t] = n == 0 ? 0.25f : n % 2 ? -0.101321f / (n * n) : 0.f;
  }
  cudaMemcpy(scan.gains, gains.data(), sizeof(float) * DETECTORS, cudaMemcpyHostToDevice);
  cudaMemcpyToSymbol(taps, filter.data(), sizeof(float) * TAPS);

  int code = run(argc, argv, [&] {
    for (int number = 0; number < PARTS; number++) scan.part(views + number % 2 * PART, number);
  });
  std::vector<float> volume(ROWS * DETECTORS);
  cudaMemcpy(volume.data(), scan.volume, sizeof(float) * volume.size(), cudaMemcpyDeviceToHost);
  double sum = 0;
  for (float v : volume) sum += v;
  fprintf(stderr, "attenuation in all: %.6g\n", sum);
  return code;
}
