// Layers of experts on several GPUs of one process: dispatch and combine write to peers' memory and wait for theirs,
// under DeepEP's names. Some ranks are held up by a set time before some layers; what waited for whom is known.
//   nvcc -O3 -arch=sm_90 -std=c++17 -o experts experts.cu && nsys profile --sample=none --cpuctxsw=none ./experts 2
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include <nvtx3/nvToolsExt.h>

constexpr int MOST = 4, TOKENS = 4096, HIDDEN = 2048, LAYERS = 6, STEPS = 8, BLOCKS = 24;

#define CHECK(call) do { cudaError_t e = (call); if (e) fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)), exit(1); } while (0)

struct Peers {
  float4 *rows[MOST];   // of each rank: a part per sender
  unsigned *flags[MOST];  // of each rank: a counter per sender
};

struct Logged {
  unsigned long long began_ns, arrived_ns, ended_ns;
};

__device__ unsigned long long now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__device__ void send(const float4 *from, Peers peers, int rank, int ranks, int each, unsigned epoch, Logged *log) {
  if (blockIdx.x == 0 && threadIdx.x == 0) log->began_ns = now();
  for (int other = 0; other < ranks; other++) {
    float4 *to = peers.rows[other] + size_t(rank) * each;
    const float4 *part = from + size_t(other) * each;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < each; i += gridDim.x * blockDim.x) to[i] = part[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    for (int other = 0; other < ranks; other++) atomicAdd_system(peers.flags[other] + rank, 1u);
    for (int other = 0; other < ranks; other++)
      while (atomicAdd_system(peers.flags[rank] + other, 0u) < epoch * gridDim.x) __nanosleep(200);
    if (blockIdx.x == 0) log->arrived_ns = now();
  }
  __syncthreads();
}

namespace deep_ep {
namespace intranode {
template <int kNumRanks, int kNumThreads>
__global__ void dispatch(const float4 *from, Peers peers, int rank, int each, unsigned epoch, Logged *log) {
  send(from, peers, rank, kNumRanks, each, epoch, log);
  if (blockIdx.x == 0 && threadIdx.x == 0) log->ended_ns = now();
}
template <typename dtype_t, int kNumRanks, int kNumThreads>
__global__ void combine(const dtype_t *from, Peers peers, int rank, int each, unsigned epoch, Logged *log) {
  send(reinterpret_cast<const float4 *>(from), peers, rank, kNumRanks, each, epoch, log);
  if (blockIdx.x == 0 && threadIdx.x == 0) log->ended_ns = now();
}
}  // namespace intranode
}  // namespace deep_ep

__global__ void expert_mlp(float4 *rows, int count, int rounds) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float4 value = rows[i];
    for (int k = 0; k < rounds; k++) value.x = fmaf(value.x, 0.999f, value.y), value.z = fmaf(value.z, 0.998f, value.w);
    rows[i] = value;
  }
}

__global__ void router(float *gates, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) gates[i] = __expf(gates[i] * 0.001f);
}

__global__ void held_up(unsigned long long ns) {
  unsigned long long since = now();
  while (now() - since < ns) __nanosleep(500);
}

// which rank comes late to which call, in microseconds: by the GPU's own kernel, or asleep on the host
int late_us(int rank, int ranks, int step, int layer) {
  if (layer == 1 && rank == ranks - 1) return 400;
  if (layer == 4 && step % 2 && rank == 0) return 900;
  return 0;
}

template <int R>
void serve(int rank, Peers peers, std::vector<float4 *> sent, Logged *log, volatile int *ready) {
  CHECK(cudaSetDevice(rank));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int all = TOKENS * HIDDEN / 4, each = all / R;
  float *gates;
  CHECK(cudaMalloc(&gates, TOKENS * 256 * sizeof(float)));
  CHECK(cudaMemset(gates, 0, TOKENS * 256 * sizeof(float)));
  unsigned epoch = 0;
  for (int step = 0; step < STEPS; step++) {
    char name[64];
    snprintf(name, sizeof name, "decode step %d", step);
    nvtxRangePushA(name);
    for (int layer = 0; layer < LAYERS; layer++) {
      Logged *logged = log + ((rank * STEPS + step) * LAYERS + layer) * 2;
      router<<<TOKENS, 256, 0, stream>>>(gates, TOKENS * 256);
      if (int us = late_us(rank, R, step, layer)) held_up<<<1, 1, 0, stream>>>(us * 1000ull);
      deep_ep::intranode::dispatch<R, 768><<<BLOCKS, 768, 0, stream>>>(sent[rank], peers, rank, each, ++epoch, logged);
      expert_mlp<<<1056, 256, 0, stream>>>(peers.rows[rank], all, 400);
      deep_ep::intranode::combine<float4, R, 768><<<BLOCKS, 768, 0, stream>>>(sent[rank], peers, rank, each, ++epoch, logged + 1);
    }
    CHECK(cudaStreamSynchronize(stream));
    nvtxRangePop();
  }
}

template <int R>
void run(Logged *log) {
  Peers peers;
  std::vector<float4 *> sent(R);
  for (int r = 0; r < R; r++) {
    CHECK(cudaSetDevice(r));
    for (int other = 0; other < R; other++)
      if (other != r) CHECK(cudaDeviceEnablePeerAccess(other, 0));
    CHECK(cudaMalloc(&peers.rows[r], size_t(TOKENS) * HIDDEN * 4));
    CHECK(cudaMalloc(&sent[r], size_t(TOKENS) * HIDDEN * 4));
    CHECK(cudaMalloc(&peers.flags[r], MOST * sizeof(unsigned)));
    CHECK(cudaMemset(peers.rows[r], 0, size_t(TOKENS) * HIDDEN * 4));
    CHECK(cudaMemset(sent[r], 0, size_t(TOKENS) * HIDDEN * 4));
    CHECK(cudaMemset(peers.flags[r], 0, MOST * sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < R; r++) threads.emplace_back(serve<R>, r, peers, sent, log, nullptr);
  for (auto &thread : threads) thread.join();
}

int main(int count, char **words) {
  int ranks = count > 1 ? atoi(words[1]) : 2;
  Logged *log;
  CHECK(cudaHostAlloc(&log, sizeof(Logged) * MOST * STEPS * LAYERS * 2, cudaHostAllocPortable | cudaHostAllocMapped));
  ranks == 4 ? run<4>(log) : run<2>(log);
  printf("rank,step,layer,call,began_ns,arrived_ns,ended_ns,late_us\n");
  for (int r = 0; r < ranks; r++)
    for (int step = 0; step < STEPS; step++)
      for (int layer = 0; layer < LAYERS; layer++)
        for (int call = 0; call < 2; call++) {
          Logged one = log[((r * STEPS + step) * LAYERS + layer) * 2 + call];
          printf("%d,%d,%d,%s,%llu,%llu,%llu,%d\n", r, step, layer, call ? "combine" : "dispatch", one.began_ns, one.arrived_ns,
                 one.ended_ns, call ? 0 : late_us(r, ranks, step, layer));
        }
}
