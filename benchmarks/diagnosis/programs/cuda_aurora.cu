// Paints an aurora: electrons fall along the field, lose energy to the air as a table says, and light up what they pass.
// CAUSE: low-occupancy
// ALSO:
#include "_run_other.cuh"
#include <cmath>
#include <vector>

const int ELECTRONS = 1 << 21, HEIGHTS = 200, ENERGIES = 200, STEPS = 240, SIDE = 1024, TABLE = HEIGHTS * ENERGIES;
const float TOP_KM = 300, BOTTOM_KM = 80;

struct Glow {
  float green, red, peak_km, left;
};

__device__ float look_up(const float *table, float height, float energy) {
  float y = fminf(fmaxf(height, 0.f), HEIGHTS - 1.001f), x = fminf(fmaxf(energy, 0.f), ENERGIES - 1.001f);
  int i = (int)y, j = (int)x;
  const float *corner = table + i * ENERGIES + j;
  float below = corner[0] + (x - j) * (corner[1] - corner[0]);
  float above = corner[ENERGIES] + (x - j) * (corner[ENERGIES + 1] - corner[ENERGIES]);
  return below + (y - i) * (above - below);
}

// The table of losses is kept in shared memory, as each electron looks into it hundreds of times.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) fall(const float2 *electrons, const float *losses, float gust, Glow *glows) {
  extern __shared__ float table[];
  for (int k = threadIdx.x; k < TABLE; k += THREADS) table[k] = losses[k];
  __syncthreads();
  for (int e = blockIdx.x * THREADS + threadIdx.x; e < ELECTRONS; e += gridDim.x * THREADS) {
    float log_energy = electrons[e].x + gust * electrons[e].y, pitch = electrons[e].y;
    float height = TOP_KM, brightest = 0;
    Glow glow = {0, 0, TOP_KM, 0};
    for (int k = 0; k < STEPS; k++) {
      float level = (height - BOTTOM_KM) * ((HEIGHTS - 1) / (TOP_KM - BOTTOM_KM));
      float loss = look_up(table, level, log_energy * (ENERGIES / 12.f));
      float lit = loss * pitch;
      log_energy = fmaxf(log_energy - lit, 0.f);
      glow.green += height < 180 ? lit : 0.2f * lit;
      glow.red += height < 180 ? 0.1f * lit : lit;
      if (lit > brightest) brightest = lit, glow.peak_km = height;
      height -= (TOP_KM - BOTTOM_KM) / STEPS * (1 - 0.3f * lit);
    }
    glow.left = log_energy;
    glows[e] = glow;
  }
}

// Two electrons stand for a pixel of the sky.
__global__ void gather(const Glow *glows, float2 *sky) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Glow a = glows[i], b = glows[i + SIDE * SIDE];
  sky[i] = make_float2(a.green + b.green, a.red + b.red + 1e-4f * (a.peak_km + b.peak_km) * (a.left + b.left));
}

__global__ void blur(const float2 *from, float2 *to, int dx, int dy) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  float2 sum = {0, 0};
  float all = 0;
  for (int k = -24; k <= 24; k++) {
    int u = min(max(x + k * dx, 0), SIDE - 1), v = min(max(y + k * dy, 0), SIDE - 1);
    float weight = __expf(-k * k * 0.008f);
    float2 pixel = from[v * SIDE + u];
    sum.x += weight * pixel.x, sum.y += weight * pixel.y, all += weight;
  }
  to[y * SIDE + x] = make_float2(sum.x / all, sum.y / all);
}

__global__ void expose(const float2 *sky, uchar4 *picture) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float2 s = sky[i];
  auto tone = [](float light) { return (unsigned char)(255 * (1 - __expf(-light))); };
  picture[i] = make_uchar4(tone(0.4f * s.y), tone(0.5f * s.x), tone(0.1f * s.x + 0.1f * s.y), 255);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  std::vector<float> cost(TABLE);
  for (int h = 0; h < HEIGHTS; h++)
    for (int e = 0; e < ENERGIES; e++) {
      float km = BOTTOM_KM + h * (TOP_KM - BOTTOM_KM) / HEIGHTS;
      cost[h * ENERGIES + e] = 0.4f * std::exp(-(km - BOTTOM_KM) / 45) / (1 + 0.02f * e);
    }
  std::vector<float2> rain(ELECTRONS);
  unsigned seed = 5;
  auto next = [&] { return seed = seed * 1664525u + 1013904223u, (seed >> 8) * (1.f / (1 << 24)); };
  for (int k = 0; k < ELECTRONS; k++) {
    float along = (k % SIDE) * (1.f / SIDE);
    rain[k] = make_float2(4 + 5 * next() + std::sin(9 * along), 0.3f + 0.7f * next());
  }
  float2 *electrons, *sky, *smooth;
  float *losses;
  Glow *glows;
  uchar4 *picture;
  cudaMalloc(&electrons, sizeof(float2) * ELECTRONS);
  cudaMalloc(&glows, sizeof(Glow) * ELECTRONS);
  cudaMalloc(&losses, sizeof(float) * TABLE);
  cudaMalloc(&sky, sizeof(float2) * SIDE * SIDE);
  cudaMalloc(&smooth, sizeof(float2) * SIDE * SIDE);
  cudaMalloc(&picture, sizeof(uchar4) * SIDE * SIDE);
  cudaMemcpy(electrons, rain.data(), sizeof(float2) * ELECTRONS, cudaMemcpyHostToDevice);
  cudaMemcpy(losses, cost.data(), sizeof(float) * TABLE, cudaMemcpyHostToDevice);
  int processors, frame = 0;
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
  const int bytes = sizeof(float) * TABLE;
  cudaFuncSetAttribute(fall<128>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaFuncSetAttribute(fall<1024>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

  return run(argc, argv, [&] {
    float gust = 0.5f * std::sin(0.3f * frame++);
    if (fixed)
      fall<1024><<<processors, 1024, bytes>>>(electrons, losses, gust, glows);
    else
      fall<128><<<processors, 128, bytes>>>(electrons, losses, gust, glows);  // fault
    gather<<<SIDE * SIDE / 256, 256>>>(glows, sky);
    for (int pass = 0; pass < 3; pass++) {
      blur<<<dim3(SIDE / 256, SIDE), 256>>>(sky, smooth, 1, 0);
      blur<<<dim3(SIDE / 256, SIDE), 256>>>(smooth, sky, 0, 1);
    }
    expose<<<SIDE * SIDE / 256, 256>>>(sky, picture);
  });
}
