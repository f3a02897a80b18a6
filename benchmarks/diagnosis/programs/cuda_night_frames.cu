// Takes the noise off frames of a camera with a bilateral filter, while the next are copied in and the last ones out.
// CAUSE:
// ALSO:
#include "_run_other.cuh"

const int WIDTH = 4096, HEIGHT = 2048, FRAMES = 8, LANES = 4;
const int RADIUS = 6, ACROSS = 32, DOWN = 8, TURNS = 4;
const int TILE_WIDTH = ACROSS + 2 * RADIUS, TILE_HEIGHT = DOWN * TURNS + 2 * RADIUS;

__global__ void __launch_bounds__(ACROSS * DOWN) bilateral(const unsigned char *in, unsigned char *out) {
  __shared__ float tile[TILE_HEIGHT][TILE_WIDTH];
  int left = blockIdx.x * ACROSS - RADIUS, top = blockIdx.y * DOWN * TURNS - RADIUS;
  for (int y = threadIdx.y; y < TILE_HEIGHT; y += DOWN)
    for (int x = threadIdx.x; x < TILE_WIDTH; x += ACROSS) {
      int column = min(max(left + x, 0), WIDTH - 1), row = min(max(top + y, 0), HEIGHT - 1);
      tile[y][x] = in[row * WIDTH + column];
    }
  __syncthreads();
  for (int turn = 0; turn < TURNS; turn++) {
    int ty = threadIdx.y + turn * DOWN + RADIUS, tx = threadIdx.x + RADIUS;
    float middle = tile[ty][tx], total = 0, weights = 0;
    for (int dy = -RADIUS; dy <= RADIUS; dy++)
#pragma unroll
      for (int dx = -RADIUS; dx <= RADIUS; dx++) {
        float value = tile[ty + dy][tx + dx], apart = value - middle;
        float weight = __expf(-0.02f * (dx * dx + dy * dy) - 0.002f * apart * apart);
        total += weight * value;
        weights += weight;
      }
    int column = left + tx, row = top + ty;
    out[row * WIDTH + column] = (unsigned char)(total / weights + 0.5f);
  }
}

int main(int argc, char **argv) {
  const size_t pixels = (size_t)WIDTH * HEIGHT;
  unsigned char *taken, *cleaned, *in[LANES], *out[LANES];
  cudaStream_t streams[LANES];
  cudaMallocHost(&taken, pixels * FRAMES);
  cudaMallocHost(&cleaned, pixels * FRAMES);
  for (size_t i = 0; i < pixels * FRAMES; i++) taken[i] = (i * 2654435761u) >> 24;
  for (int lane = 0; lane < LANES; lane++) {
    cudaMalloc(&in[lane], pixels);
    cudaMalloc(&out[lane], pixels);
    cudaStreamCreateWithFlags(&streams[lane], cudaStreamNonBlocking);
  }
  const dim3 blocks(WIDTH / ACROSS, HEIGHT / (DOWN * TURNS)), threads(ACROSS, DOWN);
  return run(argc, argv, [&] {
    for (int frame = 0; frame < FRAMES; frame++) {
      int lane = frame % LANES;
      cudaMemcpyAsync(in[lane], taken + frame * pixels, pixels, cudaMemcpyHostToDevice, streams[lane]);
      bilateral<<<blocks, threads, 0, streams[lane]>>>(in[lane], out[lane]);
      cudaMemcpyAsync(cleaned + frame * pixels, out[lane], pixels, cudaMemcpyDeviceToHost, streams[lane]);
    }
  });
}
