// Restores an old film: frames are steadied in their brightness, cleaned of grain and scratches, and sent back.
// CAUSE: serial-copy
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int WIDTH = 3840, HEIGHT = 2160, CHANNELS = 3, PIXELS = WIDTH * HEIGHT, SAMPLES = PIXELS * CHANNELS;
const int THREADS = 256, REEL = 6, FRAMES = 4, RADIUS = 4;

void check(cudaError_t error) {
  if (error != cudaSuccess) fprintf(stderr, "%s\n", cudaGetErrorString(error)), exit(1);
}

__constant__ float nearness[(2 * RADIUS + 1) * (2 * RADIUS + 1)];

__global__ void brightness(const unsigned short *frame, unsigned long long *total) {
  unsigned long long sum = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < SAMPLES / 4; i += gridDim.x * THREADS) {
    ushort4 four = ((const ushort4 *)frame)[i];
    sum += (unsigned)four.x + four.y + four.z + four.w;
  }
  for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

// Scales the frame to the brightness that is wanted, and lets it pass where the last one differs.
__global__ void steady(const unsigned short *frame, const unsigned long long *total, float *now) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  float gain = 0.5f * 65535 / fmaxf(1.f, (float)*total / SAMPLES);
  float fresh = frame[i] * gain * (1 / 65535.f), old = now[i];
  float moved = fminf(1.f, 12 * fabsf(fresh - old));
  now[i] = old + (0.4f + 0.6f * moved) * (fresh - old);
}

__global__ void clean(const float *now, unsigned short *restored) {
  int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  const float *plane = now + (size_t)blockIdx.z * PIXELS;
  float middle = plane[y * WIDTH + x], sum = 0, weights = 0;
  for (int dy = -RADIUS; dy <= RADIUS; dy++) {
    const float *row = plane + min(max(y + dy, 0), HEIGHT - 1) * WIDTH;
#pragma unroll
    for (int dx = -RADIUS; dx <= RADIUS; dx++) {
      float value = row[min(max(x + dx, 0), WIDTH - 1)], off = value - middle;
      float weight = nearness[(dy + RADIUS) * (2 * RADIUS + 1) + dx + RADIUS] * __expf(-60 * off * off);
      sum += weight * value, weights += weight;
    }
  }
  restored[(size_t)blockIdx.z * PIXELS + y * WIDTH + x] = (unsigned short)(65535 * __saturatef(sum / weights));
}

struct Slot {
  unsigned short *in, *out;
  cudaEvent_t arrived, read, restored, sent;
};

class Restorer {
  int depth, count = 0;
  std::vector<Slot> slots;
  cudaStream_t up, work, down;
  unsigned short *scanned, *result;
  unsigned long long *total;
  float *now;

 public:
  explicit Restorer(int depth) : depth(depth), slots(depth) {
    const size_t bytes = sizeof(short) * SAMPLES;
    check(cudaMallocHost(&scanned, bytes * REEL));
    check(cudaMallocHost(&result, bytes * REEL));
    check(cudaMalloc(&now, sizeof(float) * SAMPLES));
    check(cudaMalloc(&total, sizeof(*total)));
    check(cudaMemset(now, 0, sizeof(float) * SAMPLES));
    unsigned seed = 2;
    for (size_t i = 0; i < (size_t)SAMPLES * REEL; i++) seed = seed * 1664525u + 1013904223u, scanned[i] = 20000 + (seed >> 18);
    for (auto *stream : {&up, &work, &down}) check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    for (auto &slot : slots) {
      check(cudaMalloc(&slot.in, bytes));
      check(cudaMalloc(&slot.out, bytes));
      for (auto *event : {&slot.arrived, &slot.read, &slot.restored, &slot.sent})
        check(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
  }

  void frame() {
    Slot &slot = slots[count % depth];  // fault
    size_t place = (size_t)(count % REEL) * SAMPLES;
    check(cudaStreamWaitEvent(up, slot.read));
    check(cudaMemcpyAsync(slot.in, scanned + place, sizeof(short) * SAMPLES, cudaMemcpyHostToDevice, up));  // fault
    check(cudaEventRecord(slot.arrived, up));

    check(cudaStreamWaitEvent(work, slot.arrived));
    check(cudaStreamWaitEvent(work, slot.sent));
    check(cudaMemsetAsync(total, 0, sizeof(*total), work));
    brightness<<<1056, THREADS, 0, work>>>(slot.in, total);
    steady<<<SAMPLES / THREADS, THREADS, 0, work>>>(slot.in, total, now);
    clean<<<dim3(WIDTH / THREADS, HEIGHT, CHANNELS), THREADS, 0, work>>>(now, slot.out);
    check(cudaEventRecord(slot.read, work));
    check(cudaEventRecord(slot.restored, work));

    check(cudaStreamWaitEvent(down, slot.restored));
    check(cudaMemcpyAsync(result + place, slot.out, sizeof(short) * SAMPLES, cudaMemcpyDeviceToHost, down));  // fault
    check(cudaEventRecord(slot.sent, down));
    count++;
  }

  unsigned middle() const { return result[PIXELS / 2]; }
};

int main(int argc, char **argv) {
  std::vector<float> table;
  for (int dy = -RADIUS; dy <= RADIUS; dy++)
    for (int dx = -RADIUS; dx <= RADIUS; dx++) table.push_back(1 / (1 + 0.15f * (dx * dx + dy * dy)));
  check(cudaMemcpyToSymbol(nearness, table.data(), sizeof(float) * table.size()));
  Restorer restorer(is_fixed(argc, argv) ? 3 : 1);  // fault
  int code = run(argc, argv, [&] {
    for (int k = 0; k < FRAMES; k++) restorer.frame();
  });
  fprintf(stderr, "middle: %u\n", restorer.middle());
  return code;
}
