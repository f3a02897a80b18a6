// Simulates two fluids in an oil field's rock: pressure by sweeps of red and black cells, then flow of the water.
// CAUSE: host-grid-loop
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int NX = 256, NY = 192, LAYERS = 96, SWEEPS = 6;
const size_t CELLS = (size_t)NX * NY * LAYERS;

struct Rock {
  float *permeability, *porosity;
};

struct Fluid {
  float *pressure, *water, *mobility, *next;
};

__device__ size_t cell(int x, int y, int z) { return ((size_t)z * NY + y) * NX + x; }

__device__ float between(float a, float b) { return 2 * a * b / (a + b + 1e-12f); }

__global__ void mobilities(Rock rock, Fluid fluid) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  float s = fluid.water[i];
  fluid.mobility[i] = rock.permeability[i] * (s * s + 0.4f * (1 - s) * (1 - s));
}

// cells of one color, of the layers from `layer` on
__global__ void relax(Fluid fluid, int layer, int color) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = layer + blockIdx.z;
  if (x >= NX || y >= NY || ((x + y + z) & 1) != color) return;
  size_t i = cell(x, y, z);
  float here = fluid.mobility[i], sum = 0, weight = 1e-6f;
  auto add = [&](size_t j) {
    float t = between(here, fluid.mobility[j]);
    sum += t * fluid.pressure[j], weight += t;
  };
  if (x > 0) add(i - 1);
  if (x < NX - 1) add(i + 1);
  if (y > 0) add(i - NX);
  if (y < NY - 1) add(i + NX);
  if (z > 0) add(i - (size_t)NX * NY);
  if (z < LAYERS - 1) add(i + (size_t)NX * NY);
  float well = x == 8 && y == 8 ? 0.05f : x == NX - 9 && y == NY - 9 ? -0.05f : 0.f;
  fluid.pressure[i] = (sum + well) / weight;
}

__global__ void transport(Rock rock, Fluid fluid, float dt) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  int x = i % NX, y = i / NX % NY, z = i / ((size_t)NX * NY);
  float p = fluid.pressure[i], s = fluid.water[i], in = 0;
  auto flow = [&](size_t j) {
    float q = between(fluid.mobility[i], fluid.mobility[j]) * (fluid.pressure[j] - p);
    in += q * (q > 0 ? fluid.water[j] : s);
  };
  if (x > 0) flow(i - 1);
  if (x < NX - 1) flow(i + 1);
  if (y > 0) flow(i - NX);
  if (y < NY - 1) flow(i + NX);
  if (z > 0) flow(i - (size_t)NX * NY);
  if (z < LAYERS - 1) flow(i + (size_t)NX * NY);
  float well = x == 8 && y == 8 ? 0.05f : 0.f;
  fluid.next[i] = fminf(fmaxf(s + dt * (in + well) / rock.porosity[i], 0.f), 1.f);
}

struct Field {
  Rock rock;
  Fluid fluid;
  bool by_layer;

  void pressures() {
    dim3 threads(64, 4), blocks(NX / 64, NY / 4);
    for (int sweep = 0; sweep < SWEEPS; sweep++)
      for (int color = 0; color < 2; color++)
        if (by_layer) {
          // rock comes in layers, and so do the sweeps
          for (int layer = 0; layer < LAYERS; layer++)            // fault
            relax<<<blocks, threads>>>(fluid, layer, color);      // fault
        } else {
          relax<<<dim3(blocks.x, blocks.y, LAYERS), threads>>>(fluid, 0, color);
        }
  }

  void advance(float dt) {
    mobilities<<<(unsigned)(CELLS / 256), 256>>>(rock, fluid);
    pressures();
    transport<<<(unsigned)(CELLS / 256), 256>>>(rock, fluid, dt);
    std::swap(fluid.water, fluid.next);
  }
};

int main(int argc, char **argv) {
  Field field{};
  field.by_layer = !is_fixed(argc, argv);
  for (float **to : {&field.rock.permeability, &field.rock.porosity, &field.fluid.pressure, &field.fluid.water,
                     &field.fluid.mobility, &field.fluid.next}) {
    cudaMalloc(to, sizeof(float) * CELLS);
    cudaMemset(*to, 0, sizeof(float) * CELLS);
  }
  std::vector<float> permeability(CELLS), porosity(CELLS);
  unsigned seed = 5;
  for (size_t i = 0; i < CELLS; i++) {
    seed = seed * 1664525u + 1013904223u;
    float u = (seed >> 8) * (1.f / (1 << 24)), facies = (i / ((size_t)NX * NY)) % 7 < 3 ? 0.1f : 1.f;
    permeability[i] = facies * (0.5f + u), porosity[i] = 0.15f + 0.1f * u;
  }
  cudaMemcpy(field.rock.permeability, permeability.data(), sizeof(float) * CELLS, cudaMemcpyHostToDevice);
  cudaMemcpy(field.rock.porosity, porosity.data(), sizeof(float) * CELLS, cudaMemcpyHostToDevice);

  int code = run(argc, argv, [&] { field.advance(0.02f); });
  cudaMemcpy(porosity.data(), field.fluid.water, sizeof(float) * CELLS, cudaMemcpyDeviceToHost);
  double water = 0;
  for (float s : porosity) water += s;
  fprintf(stderr, "water in place: %.6g\n", water);
  return code;
}
