// Embeds passages of text by three dense layers (bfloat16, tensor cores), while the next passages come and the last go.
// CAUSE:
// ALSO:
#include "_run_other.cuh"
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>
#include <vector>

using namespace nvcuda;
using bf16 = __nv_bfloat16;

const int ROWS = 8192, IN = 1024, HIDDEN = 4096, OUT = 1024, BATCHES = 4, ROOMS = 2;
const int BM = 128, BN = 128, BK = 32, STAGES = 3, PAD = 8, THREADS = 256;
const int A_STRIDE = BK + PAD, B_STRIDE = BN + PAD, C_STRIDE = BN + 4;
const int A_SIZE = BM * A_STRIDE, B_SIZE = BK * B_STRIDE;
const int SHARED = STAGES * (A_SIZE + B_SIZE) * sizeof(bf16) > BM * C_STRIDE * sizeof(float)
                       ? STAGES * (A_SIZE + B_SIZE) * sizeof(bf16)
                       : BM * C_STRIDE * sizeof(float);

// c = gelu(a b) or a b: a is m by k, b is k by n, by rows; 8 warps hold 64 by 32 each
__global__ void __launch_bounds__(THREADS) dense(const bf16 *__restrict__ a, const bf16 *__restrict__ b,
                                                 bf16 *__restrict__ c, int m, int n, int k, bool gelu) {
  extern __shared__ __align__(128) unsigned char room[];
  bf16 *as = (bf16 *)room, *bs = as + STAGES * A_SIZE;
  const int row = blockIdx.y * BM, column = blockIdx.x * BN, warp = threadIdx.x / 32, wm = warp / 4 * 64, wn = warp % 4 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4][2];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 2; j++) wmma::fill_fragment(sums[i][j], 0.f);

  auto load = [&](int tile) {
    if (tile * BK < k) {
      bf16 *to_a = as + tile % STAGES * A_SIZE, *to_b = bs + tile % STAGES * B_SIZE;
#pragma unroll
      for (int t = threadIdx.x; t < BM * BK / 8; t += THREADS) {
        int r = t / (BK / 8), s = t % (BK / 8) * 8;
        __pipeline_memcpy_async(to_a + r * A_STRIDE + s, a + (size_t)(row + r) * k + tile * BK + s, 16);
      }
#pragma unroll
      for (int t = threadIdx.x; t < BK * BN / 8; t += THREADS) {
        int r = t / (BN / 8), s = t % (BN / 8) * 8;
        __pipeline_memcpy_async(to_b + r * B_STRIDE + s, b + (size_t)(tile * BK + r) * n + column + s, 16);
      }
    }
    __pipeline_commit();
  };
  for (int tile = 0; tile < STAGES - 1; tile++) load(tile);
  for (int tile = 0; tile * BK < k; tile++) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    load(tile + STAGES - 1);
    const bf16 *from_a = as + tile % STAGES * A_SIZE, *from_b = bs + tile % STAGES * B_SIZE;
#pragma unroll
    for (int step = 0; step < BK; step += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> left[4];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> right[2];
#pragma unroll
      for (int i = 0; i < 4; i++) wmma::load_matrix_sync(left[i], from_a + (wm + i * 16) * A_STRIDE + step, A_STRIDE);
#pragma unroll
      for (int j = 0; j < 2; j++) wmma::load_matrix_sync(right[j], from_b + step * B_STRIDE + wn + j * 16, B_STRIDE);
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  float *out = (float *)room;
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 2; j++)
      wmma::store_matrix_sync(out + (wm + i * 16) * C_STRIDE + wn + j * 16, sums[i][j], C_STRIDE, wmma::mem_row_major);
  __syncthreads();
  for (int t = threadIdx.x; t < BM * BN / 2; t += THREADS) {
    int r = t / (BN / 2), s = t % (BN / 2) * 2;
    float2 v = *(float2 *)(out + r * C_STRIDE + s);
    if (gelu) {
      v.x = v.x / (1.f + __expf(-1.702f * v.x));
      v.y = v.y / (1.f + __expf(-1.702f * v.y));
    }
    *(__nv_bfloat162 *)(c + (size_t)(row + r) * n + column + s) = __float22bfloat162_rn(v);
  }
}

__global__ void draw(bf16 *to, size_t count, float scale, unsigned seed) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned h = ((unsigned)i + seed) * 2654435761u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  if (i < count) to[i] = __float2bfloat16(((h >> 8) * (2.f / (1 << 24)) - 1.f) * scale);
}

int main(int argc, char **argv) {
  bf16 *w1, *w2, *w3, *h1, *h2, *in[ROOMS], *out[ROOMS], *passages, *embedded;
  cudaMalloc(&w1, sizeof(bf16) * IN * HIDDEN);
  cudaMalloc(&w2, sizeof(bf16) * HIDDEN * HIDDEN);
  cudaMalloc(&w3, sizeof(bf16) * HIDDEN * OUT);
  cudaMalloc(&h1, sizeof(bf16) * ROWS * HIDDEN);
  cudaMalloc(&h2, sizeof(bf16) * ROWS * HIDDEN);
  cudaMallocHost(&passages, sizeof(bf16) * BATCHES * ROWS * IN);
  cudaMallocHost(&embedded, sizeof(bf16) * BATCHES * ROWS * OUT);
  cudaStream_t reading, computing, writing;
  for (cudaStream_t *s : {&reading, &computing, &writing}) cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
  cudaEvent_t came[ROOMS], read[ROOMS], done[ROOMS], went[ROOMS];
  for (int r = 0; r < ROOMS; r++) {
    cudaMalloc(&in[r], sizeof(bf16) * ROWS * IN);
    cudaMalloc(&out[r], sizeof(bf16) * ROWS * OUT);
    for (cudaEvent_t *e : {&came[r], &read[r], &done[r], &went[r]}) cudaEventCreateWithFlags(e, cudaEventDisableTiming);
  }
  auto fill = [](bf16 *to, size_t count, float scale, unsigned seed) {
    draw<<<(unsigned)((count + 255) / 256), 256>>>(to, count, scale, seed);
  };
  fill(w1, (size_t)IN * HIDDEN, 0.05f, 1), fill(w2, (size_t)HIDDEN * HIDDEN, 0.027f, 2), fill(w3, (size_t)HIDDEN * OUT, 0.027f, 3);
  for (int b = 0; b < BATCHES; b++) {
    fill(in[0], (size_t)ROWS * IN, 1.f, 10 + b);
    cudaMemcpy(passages + (size_t)b * ROWS * IN, in[0], sizeof(bf16) * ROWS * IN, cudaMemcpyDeviceToHost);
  }
  cudaFuncSetAttribute(dense, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  auto layer = [&](const bf16 *a, const bf16 *w, bf16 *c, int n, int k, bool gelu) {
    dense<<<dim3(n / BN, ROWS / BM), THREADS, SHARED, computing>>>(a, w, c, ROWS, n, k, gelu);
  };

  int code = run(argc, argv, [&] {
    for (int b = 0; b < BATCHES; b++) {
      int r = b % ROOMS;
      cudaStreamWaitEvent(reading, read[r]);
      cudaMemcpyAsync(in[r], passages + (size_t)b * ROWS * IN, sizeof(bf16) * ROWS * IN, cudaMemcpyHostToDevice, reading);
      cudaEventRecord(came[r], reading);
      cudaStreamWaitEvent(computing, came[r]);
      layer(in[r], w1, h1, HIDDEN, IN, true);
      cudaEventRecord(read[r], computing);
      layer(h1, w2, h2, HIDDEN, HIDDEN, true);
      cudaStreamWaitEvent(computing, went[r]);
      layer(h2, w3, out[r], OUT, HIDDEN, false);
      cudaEventRecord(done[r], computing);
      cudaStreamWaitEvent(writing, done[r]);
      cudaMemcpyAsync(embedded + (size_t)b * ROWS * OUT, out[r], sizeof(bf16) * ROWS * OUT, cudaMemcpyDeviceToHost, writing);
      cudaEventRecord(went[r], writing);
    }
  });
  double sum = 0;
  for (size_t i = 0; i < (size_t)BATCHES * ROWS * OUT; i += 997) sum += std::abs(__bfloat162float(embedded[i]));
  fprintf(stderr, "embeddings: %.6g\n", sum);
  return code;
}
