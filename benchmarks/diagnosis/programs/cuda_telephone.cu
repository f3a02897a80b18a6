// Hears old telephone calls: mu-law bytes become amplitudes, a band-pass filter follows, and the loudness of each frame.
// CAUSE: divergent-constants
// ALSO:
#include "_run_other.cuh"
#include <cmath>
#include <vector>

const int SAMPLES = 1 << 26, CALLS = 4, TAPS = 32, FRAME = 1024, THREADS = 256;
const int PER_THREAD = FRAME / THREADS;

__constant__ float amplitude_of[256];
__constant__ float taps[TAPS];

// each byte by the table
__global__ __launch_bounds__(THREADS) void decode(const uchar4 *bytes, float4 *sound, int count) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
    uchar4 b = bytes[i];
    sound[i] = make_float4(amplitude_of[b.x], amplitude_of[b.y], amplitude_of[b.z], amplitude_of[b.w]);  // fault
  }
}

// the same, by a copy of the table
__global__ __launch_bounds__(THREADS) void decode_shared(const uchar4 *bytes, float4 *sound, int count) {
  __shared__ float table[256];
  table[threadIdx.x] = amplitude_of[threadIdx.x];
  __syncthreads();
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
    uchar4 b = bytes[i];
    sound[i] = make_float4(table[b.x], table[b.y], table[b.z], table[b.w]);
  }
}

// a block for each frame: filtered, squared and summed
__global__ __launch_bounds__(THREADS) void loudness(const float *sound, float *loud) {
  __shared__ float tile[FRAME + TAPS];
  __shared__ float parts[THREADS / 32];
  const long first = (long)blockIdx.x * FRAME;
  for (int i = threadIdx.x; i < FRAME + TAPS; i += THREADS) {
    long at = first + i - TAPS;
    tile[i] = at < 0 ? 0.f : sound[at];
  }
  __syncthreads();
  float filtered[PER_THREAD] = {};
#pragma unroll
  for (int t = 0; t < TAPS; t++)
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) filtered[k] += taps[t] * tile[TAPS + k * THREADS + threadIdx.x - t];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < PER_THREAD; k++) sum += filtered[k] * filtered[k];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < THREADS / 32 ? parts[threadIdx.x] : 0.f;
    for (int d = 4; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x == 0) loud[blockIdx.x] = 10 * log10f(sum / FRAME + 1e-9f);
  }
}

// voices of many loudnesses: the bytes of a warp are hardly ever the same
__global__ void record(unsigned char *bytes, unsigned seed) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, h = i * 0x9e3779b9u + seed;
  h = (h ^ (h >> 16)) * 0x7feb352du;
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  bytes[i] = (h ^ (h >> 16)) & 255;
}

int main(int argc, char **argv) {
  const bool fixed = is_fixed(argc, argv);
  std::vector<float> table(256), band(TAPS);
  for (int code = 0; code < 256; code++) {
    int u = ~code & 255, magnitude = (((u & 15) << 3) + 132) << ((u >> 4) & 7);
    table[code] = (u & 128 ? 132 - magnitude : magnitude - 132) / 32768.f;
  }
  for (int t = 0; t < TAPS; t++) {
    double x = t - 0.5 * (TAPS - 1), window = 0.54 - 0.46 * std::cos(2 * M_PI * t / (TAPS - 1));
    band[t] = float(window * (std::sin(0.85 * M_PI * x) - std::sin(0.075 * M_PI * x)) / (M_PI * x));
  }
  cudaMemcpyToSymbol(amplitude_of, table.data(), sizeof(float) * 256);
  cudaMemcpyToSymbol(taps, band.data(), sizeof(float) * TAPS);

  unsigned char *calls;
  float *sound, *loud;
  cudaMalloc(&calls, (size_t)CALLS * SAMPLES);
  cudaMalloc(&sound, sizeof(float) * SAMPLES);
  cudaMalloc(&loud, sizeof(float) * CALLS * (SAMPLES / FRAME));
  for (int c = 0; c < CALLS; c++) record<<<SAMPLES / 256, 256>>>(calls + (size_t)c * SAMPLES, 77u * c);
  int multiprocessors;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);

  int code = run(argc, argv, [&] {
    for (int c = 0; c < CALLS; c++) {
      auto bytes = reinterpret_cast<const uchar4 *>(calls + (size_t)c * SAMPLES);
      auto kernel = fixed ? decode_shared : decode;
      kernel<<<multiprocessors * 8, THREADS>>>(bytes, reinterpret_cast<float4 *>(sound), SAMPLES / 4);  // fault
      loudness<<<SAMPLES / FRAME, THREADS>>>(sound, loud + c * (SAMPLES / FRAME));
    }
  });
  std::vector<float> some(1000);
  cudaMemcpy(some.data(), loud, sizeof(float) * some.size(), cudaMemcpyDeviceToHost);
  double sum = 0;
  for (float v : some) sum += v;
  fprintf(stderr, "loudness: %.5f dB\n", sum / some.size());
  return code;
}
