// Shades a map of heights as the sun of several hours of a day would light it.
// CAUSE: uncoalesced
// ALSO:
#include "_run_other.cuh"

const int WIDTH = 16384, HEIGHT = 12288, HOURS = 5;

struct Sun {
  float east, north, up;
};

__device__ float slope_light(const float *heights, int x, int y, Sun sun) {
  const float *h = heights + (size_t)y * WIDTH + x;
  float a = h[-WIDTH - 1], b = h[-WIDTH], c = h[-WIDTH + 1], d = h[-1], f = h[1];
  float g = h[WIDTH - 1], k = h[WIDTH], l = h[WIDTH + 1];
  float east = ((c + 2 * f + l) - (a + 2 * d + g)) * 0.125f;
  float north = ((a + 2 * b + c) - (g + 2 * k + l)) * 0.125f;
  float light = (sun.up - east * sun.east - north * sun.north) * rsqrtf(1 + east * east + north * north);
  return fmaxf(light, 0.f);
}

__global__ void shade(const float *heights, float *shades, Sun sun) {
  int y = blockIdx.x * blockDim.x + threadIdx.x;  // fault
  int x = blockIdx.y * blockDim.y + threadIdx.y;  // fault
  if (x < 1 || y < 1 || x >= WIDTH - 1 || y >= HEIGHT - 1) return;
  shades[(size_t)y * WIDTH + x] = slope_light(heights, x, y, sun);  // fault
}

__global__ void shade_rows(const float *heights, float *shades, Sun sun) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= WIDTH - 1 || y >= HEIGHT - 1) return;
  shades[(size_t)y * WIDTH + x] = slope_light(heights, x, y, sun);
}

__global__ void raise_hills(float *heights) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < WIDTH && y < HEIGHT)
    heights[(size_t)y * WIDTH + x] = 40 * sinf(0.011f * x) * cosf(0.017f * y) + 6 * sinf(0.07f * x + 0.05f * y);
}

int main(int argc, char **argv) {
  const bool fixed = is_main_fixed(argc, argv);
  const size_t bytes = sizeof(float) * WIDTH * HEIGHT;
  float *heights, *shades, sample[2];
  cudaMalloc(&heights, bytes);
  cudaMalloc(&shades, bytes * HOURS);
  cudaMemset(shades, 0, bytes * HOURS);
  const dim3 block(32, 8), by_row(WIDTH / 32, HEIGHT / 8), grid(HEIGHT / 32, WIDTH / 8);
  raise_hills<<<by_row, block>>>(heights);
  Sun suns[HOURS];
  for (int k = 0; k < HOURS; k++) {
    float turn = 0.5f + 0.5f * k;
    suns[k] = {0.8f * cosf(turn), -0.5f * sinf(turn), 0.6f * sinf(turn)};
  }

  int code = run(argc, argv, [&] {
    for (int k = 0; k < HOURS; k++) {
      float *shaded = shades + (size_t)k * WIDTH * HEIGHT;
      if (fixed)
        shade_rows<<<by_row, block>>>(heights, shaded, suns[k]);
      else
        shade<<<grid, block>>>(heights, shaded, suns[k]);  // fault
    }
  });
  cudaMemcpy(sample, shades + 5 * (size_t)WIDTH + 77, sizeof sample, cudaMemcpyDeviceToHost);
  fprintf(stderr, "some of it: %.6f %.6f\n", sample[0], sample[1]);
  return code;
}
