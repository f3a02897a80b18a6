// Searches a radio telescope's channels for short pulses: flattens the band, removes the dispersion, matches widths.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int CHANNELS = 512, SAMPLES = 1 << 17, TRIALS = 24, WIDTHS = 8, CHUNK = 128, THREADS = 256;

__device__ float reduce(float value) {
  __shared__ float parts[32];
  for (int lane = 16; lane; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.f;
  if (threadIdx.x < 32)
    for (int lane = 16; lane; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  return value;
}

// mean and mean square of a channel: 16 blocks to each
__global__ void moments(const float *power, float2 *sums) {
  const float *channel = power + (size_t)blockIdx.y * SAMPLES;
  float one = 0, two = 0;
  for (int t = blockIdx.x * blockDim.x + threadIdx.x; t < SAMPLES; t += gridDim.x * blockDim.x) {
    float p = channel[t];
    one += p, two += p * p;
  }
  one = reduce(one);
  __syncthreads();
  two = reduce(two);
  if (threadIdx.x == 0) atomicAdd(&sums[blockIdx.y].x, one), atomicAdd(&sums[blockIdx.y].y, two);
}

struct Clip {
  float low, high;
  __device__ float operator()(float p, float mean, float scale) const {
    return fminf(fmaxf((p - mean) * scale, low), high);
  }
};

// every thread flattens its own stretch of CHUNK samples
__global__ void flatten(const float *power, const float2 *sums, float *flat, Clip clip) {
  int stretch = blockIdx.x * blockDim.x + threadIdx.x;
  float2 sum = sums[blockIdx.y];
  float mean = sum.x / SAMPLES, scale = rsqrtf(sum.y / SAMPLES - mean * mean + 1e-6f);
  size_t begin = (size_t)blockIdx.y * SAMPLES + (size_t)stretch * CHUNK;
  for (int k = 0; k < CHUNK; k++) flat[begin + k] = clip(power[begin + k], mean, scale);  // fault
}

// the threads of a block go through the block's stretch side by side
__global__ void flatten_together(const float *power, const float2 *sums, float *flat, Clip clip) {
  float2 sum = sums[blockIdx.y];
  float mean = sum.x / SAMPLES, scale = rsqrtf(sum.y / SAMPLES - mean * mean + 1e-6f);
  size_t begin = (size_t)blockIdx.y * SAMPLES + (size_t)blockIdx.x * blockDim.x * CHUNK + threadIdx.x;
  for (int k = 0; k < CHUNK; k++) {
    size_t at = begin + (size_t)k * blockDim.x;
    flat[at] = clip(power[at], mean, scale);
  }
}

__global__ void disperse(const float *flat, const int *delays, float *series) {
  int t = blockIdx.x * blockDim.x + threadIdx.x, trial = blockIdx.y;
  float sum = 0;
#pragma unroll 8
  for (int c = 0; c < CHANNELS; c++) {
    int from = t + delays[trial * CHANNELS + c];
    sum += flat[(size_t)c * SAMPLES + (from & SAMPLES - 1)];
  }
  series[(size_t)trial * SAMPLES + t] = sum * rsqrtf((float)CHANNELS);
}

// the best ratio of signal to noise of boxcars of 1, 2, 4, … samples, of a block's piece of a series
__global__ void match(const float *series, float *best) {
  __shared__ float piece[THREADS + (1 << WIDTHS)];
  const float *mine = series + (size_t)blockIdx.y * SAMPLES;
  int begin = blockIdx.x * THREADS;
  for (int k = threadIdx.x; k < THREADS + (1 << WIDTHS); k += THREADS) piece[k] = mine[(begin + k) & SAMPLES - 1];
  __syncthreads();
  float sum = 0, top = 0;
  int done = 0;
  for (int w = 0; w < WIDTHS; w++) {
    for (; done < 1 << w; done++) sum += piece[threadIdx.x + done];
    top = fmaxf(top, sum * rsqrtf((float)(1 << w)));
  }
  for (int lane = 16; lane; lane /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lane));
  if (threadIdx.x % 32 == 0) atomicMax((int *)&best[blockIdx.y], __float_as_int(top));
}

__global__ void receive(float *power) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned h = (unsigned)i * 2654435761u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  power[i] = -logf(((h >> 8) + 1) * (1.f / (1 << 24))) * (1.f + (i / SAMPLES) * 0.01f);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  size_t count = (size_t)CHANNELS * SAMPLES;
  float *power, *flat, *series, *best;
  float2 *sums;
  int *delays;
  cudaMalloc(&power, sizeof(float) * count);
  cudaMalloc(&flat, sizeof(float) * count);
  cudaMalloc(&series, sizeof(float) * TRIALS * SAMPLES);
  cudaMalloc(&best, sizeof(float) * TRIALS);
  cudaMalloc(&sums, sizeof(float2) * CHANNELS);
  cudaMalloc(&delays, sizeof(int) * TRIALS * CHANNELS);
  receive<<<(unsigned)(count / 256), 256>>>(power);
  std::vector<int> late(TRIALS * CHANNELS);
  for (int d = 0; d < TRIALS; d++)
    for (int c = 0; c < CHANNELS; c++) {
      double f = 1.2 + 0.3 * c / CHANNELS;
      late[d * CHANNELS + c] = (int)(4.15 * d * 40 * (1 / (f * f) - 1 / (1.5 * 1.5)));
    }
  cudaMemcpy(delays, late.data(), sizeof(int) * late.size(), cudaMemcpyHostToDevice);
  Clip clip{-4.f, 12.f};

  int code = run(argc, argv, [&] {
    cudaMemsetAsync(sums, 0, sizeof(float2) * CHANNELS);
    cudaMemsetAsync(best, 0, sizeof(float) * TRIALS);
    moments<<<dim3(16, CHANNELS), THREADS>>>(power, sums);
    dim3 stretches(SAMPLES / CHUNK / THREADS, CHANNELS);
    if (fixed)
      flatten_together<<<stretches, THREADS>>>(power, sums, flat, clip);
    else
      flatten<<<stretches, THREADS>>>(power, sums, flat, clip);  // fault
    disperse<<<dim3(SAMPLES / THREADS, TRIALS), THREADS>>>(flat, delays, series);
    match<<<dim3(SAMPLES / THREADS, TRIALS), THREADS>>>(series, best);
  });
  float found[TRIALS], total = 0;
  cudaMemcpy(found, best, sizeof(found), cudaMemcpyDeviceToHost);
  for (float f : found) total += f;
  fprintf(stderr, "ratios of signal to noise: %.6g in all\n", total);
  return code;
}
