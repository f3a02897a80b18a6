// Looks for faint comets: frames of a night are shifted along each thinkable motion and added up.
// CAUSE:
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int SIDE = 1024, PIXELS = SIDE * SIDE, FRAMES = 24, MOTIONS = 192, THREADS = 256, MARGIN = 64;
const int WIDE = SIDE + 2 * MARGIN, ROOM = WIDE * WIDE;

void check(cudaError_t error) {
  if (error != cudaSuccess) fprintf(stderr, "%s\n", cudaGetErrorString(error)), exit(1);
}

__constant__ int shifts[MOTIONS][FRAMES];  // by a frame's age

struct Found {
  int score;
  int motion;
};

// Takes off the sky and puts the frame into its place in the ring, with a margin of zeros.
__global__ void prepare(const unsigned short *raw, float sky, float scale, signed char *frame) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= PIXELS) return;
  frame[(i / SIDE + MARGIN) * WIDE + i % SIDE + MARGIN] = (signed char)__float2int_rn(fminf(127.f, fmaxf(-127.f, (raw[i] - sky) * scale)));
}

// Four pixels of a column are a thread's.
__global__ void __launch_bounds__(THREADS) stack(const signed char *ring, int newest, Found *best) {
  int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y * 4;
  const signed char *here = ring + (size_t)(y + MARGIN) * WIDE + x + MARGIN;
  Found found[4];
#pragma unroll
  for (int k = 0; k < 4; k++) found[k] = {-(1 << 30), 0};
  for (int motion = 0; motion < MOTIONS; motion++) {
    int sum[4] = {};
#pragma unroll 4
    for (int age = 0; age < FRAMES; age++) {
      int slot = newest - age < 0 ? newest - age + FRAMES : newest - age;
      const signed char *from = here + (size_t)slot * ROOM + shifts[motion][age];
#pragma unroll
      for (int k = 0; k < 4; k++) sum[k] += __ldg(from + k * WIDE);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (sum[k] > found[k].score) found[k] = {sum[k], motion};
  }
#pragma unroll
  for (int k = 0; k < 4; k++) best[(y + k) * SIDE + x] = found[k];
}

// Leaves the strongest of each 32 by 8 pixels.
__global__ void strongest(const Found *best, unsigned long long *peaks) {
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  Found mine = best[y * SIDE + x];
  unsigned key = max(0, mine.score);
  unsigned long long packed = (unsigned long long)key << 32 | (unsigned)(mine.motion << 8 | threadIdx.y << 5 | threadIdx.x);
  for (int lane = 16; lane; lane /= 2) packed = max(packed, __shfl_xor_sync(~0u, packed, lane));
  __shared__ unsigned long long rows[8];
  if (threadIdx.x == 0) rows[threadIdx.y] = packed;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    for (int k = 1; k < 8; k++) packed = max(packed, rows[k]);
    peaks[blockIdx.y * gridDim.x + blockIdx.x] = packed;
  }
}

int main(int argc, char **argv) {
  const int night = 8, peak_count = SIDE / 32 * (SIDE / 8);
  std::vector<int> table(MOTIONS * FRAMES);
  for (int motion = 0; motion < MOTIONS; motion++)
    for (int frame = 0; frame < FRAMES; frame++) {
      float angle = 6.2831853f * (motion % 24) / 24, speed = 0.3f + 0.25f * (motion / 24);
      int dx = (int)lrintf(frame * speed * cosf(angle)), dy = (int)lrintf(frame * speed * sinf(angle));
      table[motion * FRAMES + frame] = dy * WIDE + dx;
    }
  check(cudaMemcpyToSymbol(shifts, table.data(), sizeof(int) * table.size()));

  unsigned short *camera, *raw[2];
  unsigned long long *peaks, *reported;
  signed char *ring;
  Found *best;
  check(cudaMallocHost(&camera, sizeof(unsigned short) * PIXELS * night));
  check(cudaMallocHost(&reported, sizeof(unsigned long long) * peak_count));
  for (auto &buffer : raw) check(cudaMalloc(&buffer, sizeof(unsigned short) * PIXELS));
  check(cudaMalloc(&ring, (size_t)ROOM * FRAMES));
  check(cudaMemset(ring, 0, (size_t)ROOM * FRAMES));
  check(cudaMalloc(&best, sizeof(Found) * PIXELS));
  check(cudaMalloc(&peaks, sizeof(unsigned long long) * peak_count));
  unsigned seed = 1;
  for (int i = 0; i < PIXELS * night; i++) seed = seed * 1664525u + 1013904223u, camera[i] = 500 + (seed >> 25);

  cudaStream_t work, copies;
  cudaEvent_t arrived[2], used[2];
  check(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
  check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
  for (int k = 0; k < 2; k++) {
    check(cudaEventCreateWithFlags(&arrived[k], cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&used[k], cudaEventDisableTiming));
  }
  int frame = 0;
  auto fetch = [&](int which) {  // the next frame comes while the last one is searched
    int slot = which % 2;
    check(cudaStreamWaitEvent(copies, used[slot]));
    const unsigned short *from = camera + (size_t)(which % night) * PIXELS;
    check(cudaMemcpyAsync(raw[slot], from, sizeof(unsigned short) * PIXELS, cudaMemcpyHostToDevice, copies));
    check(cudaEventRecord(arrived[slot], copies));
  };
  fetch(0);
  return run(argc, argv, [&] {
    int slot = frame % 2, newest = frame % FRAMES;
    fetch(frame + 1);
    check(cudaStreamWaitEvent(work, arrived[slot]));
    prepare<<<PIXELS / THREADS, THREADS, 0, work>>>(raw[slot], 563.f, 1.5f, ring + (size_t)newest * ROOM);
    check(cudaEventRecord(used[slot], work));
    stack<<<dim3(SIDE / THREADS, SIDE / 4), THREADS, 0, work>>>(ring, newest, best);
    strongest<<<dim3(SIDE / 32, SIDE / 8), dim3(32, 8), 0, work>>>(best, peaks);
    check(cudaMemcpyAsync(reported, peaks, sizeof(*peaks) * peak_count, cudaMemcpyDeviceToHost, work));
    frame++;
  });
}
