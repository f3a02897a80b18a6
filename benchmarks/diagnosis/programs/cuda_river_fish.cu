// A day in the life of four million fish of six species in a river: each species feeds and swims by rules of its own.
// CAUSE: divergence
// ALSO:
#include <vector>

#include "_run_other.cuh"

const int FISH = 1 << 22, TURNS = 192, THREADS = 256, SPECIES = 6;

struct School {
  float *position, *energy;
  unsigned char *species;
};

__device__ float trout(float x, float e, float t) {
  float drift = __sinf(x * 0.7f + t) * 0.5f + __cosf(x * 1.3f - t) * 0.25f;
  return drift * __expf(-0.1f * fabsf(e)) - 0.02f * e;
}
__device__ float pike(float x, float e, float t) {
  float hidden = 1 / (1 + __expf(-4 * (__sinf(x) - 0.3f)));
  return hidden * sqrtf(fabsf(x - t) + 0.1f) * 0.1f - 0.01f * e;
}
__device__ float eel(float x, float e, float t) {
  float night = fmaxf(__cosf(t * 0.26f), 0.f), mud = x - floorf(x);
  return night * __powf(mud + 0.5f, 1.5f) * 0.3f - 0.03f * __logf(1 + e * e);
}
__device__ float salmon(float x, float e, float t) {
  float home = 40 - x, scent = __expf(-fabsf(home) * 0.05f);
  return home * rsqrtf(1 + home * home) * (0.2f + scent) + 0.05f * __sinf(t + e);
}
__device__ float carp(float x, float e, float t) {
  float warm = __cosf(x * 0.2f) * __cosf(t * 0.26f), food = __logf(2 + x * x);
  return 0.1f * warm * food - 0.05f * e / (1 + fabsf(e));
}
__device__ float perch(float x, float e, float t) {
  float wave = __sinf(3 * x + __cosf(t)), group = __expf(-wave * wave);
  return 0.2f * group * wave + 0.02f * sqrtf(fabsf(e) + 1);
}

__global__ void live_a_day(School school, float noon) {
  int fish = blockIdx.x * THREADS + threadIdx.x;
  float x = school.position[fish], energy = school.energy[fish];
  int species = school.species[fish];
  for (int turn = 0; turn < TURNS; turn++) {
    float t = noon + turn * 0.125f, move;
    switch (species) {  // fault
      case 0: move = trout(x, energy, t); break;
      case 1: move = pike(x, energy, t); break;
      case 2: move = eel(x, energy, t); break;
      case 3: move = salmon(x, energy, t); break;
      case 4: move = carp(x, energy, t); break;
      default: move = perch(x, energy, t);
    }
    x += 0.1f * move;
    energy += 0.01f * (1 - energy) - 0.05f * move * move;
  }
  school.position[fish] = x, school.energy[fish] = energy;
}

int main(int argc, char **argv) {
  const bool by_species = is_main_fixed(argc, argv);
  std::vector<float> position(FISH), energy(FISH, 1.f);
  std::vector<unsigned char> species(FISH);
  unsigned seed = 7;
  auto draw = [&] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
  for (int f = 0; f < FISH; f++) species[f] = draw() % SPECIES;
  if (by_species) std::sort(species.begin(), species.end());
  int met[SPECIES] = {};
  for (int f = 0; f < FISH; f++) position[f] = (met[species[f]]++ % 4096) * 0x1p-6f;
  School school;
  cudaMalloc(&school.position, sizeof(float) * FISH);
  cudaMalloc(&school.energy, sizeof(float) * FISH);
  cudaMalloc(&school.species, FISH);
  cudaMemcpy(school.position, position.data(), sizeof(float) * FISH, cudaMemcpyHostToDevice);
  cudaMemcpy(school.energy, energy.data(), sizeof(float) * FISH, cudaMemcpyHostToDevice);
  cudaMemcpy(school.species, species.data(), FISH, cudaMemcpyHostToDevice);

  int day = 0;
  int code = run(argc, argv, [&] {
    live_a_day<<<FISH / THREADS, THREADS>>>(school, 24.f * (day++ % 8));  // fault
  });
  cudaMemcpy(position.data(), school.position, sizeof(float) * FISH, cudaMemcpyDeviceToHost);
  double mean = 0;
  for (float x : position) mean += x / FISH;
  fprintf(stderr, "some of it: %.6f\n", mean);
  return code;
}
