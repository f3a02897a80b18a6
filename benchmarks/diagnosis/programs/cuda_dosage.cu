// Simulates the concentrations of a drug in many patients, each with clearance and volumes of their own (Runge-Kutta).
// CAUSE: thin-blocks
// ALSO:
#include "_run_other.cuh"

const int PATIENTS = 1 << 15, MINUTES = 512, DOSE_EVERY = 128;

struct Patient {
  float absorption, clearance, central, outer, exchange;
};

struct Amounts {
  float gut, blood, tissue;
};

__device__ Amounts rates(const Patient &p, const Amounts &a) {
  float flow = p.exchange * (a.blood / p.central - a.tissue / p.outer);
  float taken = p.absorption * a.gut;
  return {-taken, taken - p.clearance * a.blood / (p.central + a.blood) - flow, flow};
}

__device__ Amounts moved(const Amounts &a, const Amounts &rate, float time) {
  return {a.gut + time * rate.gut, a.blood + time * rate.blood, a.tissue + time * rate.tissue};
}

// One patient for each thread: the highest concentration, and the area under the curve.
__global__ void simulate(const Patient *patients, float dose, float *highest, float *area) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= PATIENTS) return;
  Patient p = patients[i];
  Amounts a = {};
  const float h = 1.f;
  float most = 0, sum = 0;
  for (int minute = 0; minute < MINUTES; minute++) {
    if (minute % DOSE_EVERY == 0) a.gut += dose;
    Amounts k1 = rates(p, a), k2 = rates(p, moved(a, k1, h / 2));
    Amounts k3 = rates(p, moved(a, k2, h / 2)), k4 = rates(p, moved(a, k3, h));
    a.gut += h / 6 * (k1.gut + 2 * (k2.gut + k3.gut) + k4.gut);
    a.blood += h / 6 * (k1.blood + 2 * (k2.blood + k3.blood) + k4.blood);
    a.tissue += h / 6 * (k1.tissue + 2 * (k2.tissue + k3.tissue) + k4.tissue);
    float level = a.blood / p.central;
    most = fmaxf(most, level);
    sum += h * level;
  }
  highest[i] = most;
  area[i] = sum;
}

int main(int argc, char **argv) {
  const int threads = is_main_fixed(argc, argv) ? 128 : 1;  // fault
  const int blocks = (PATIENTS + threads - 1) / threads;
  Patient *patients = new Patient[PATIENTS], *patients_there;
  unsigned seed = 1;
  auto between = [&](float low, float high) {
    seed = seed * 1664525u + 1013904223u;
    return low + (high - low) * ((seed >> 8) * 0x1p-24f);
  };
  for (int i = 0; i < PATIENTS; i++)
    patients[i] = {between(0.01f, 0.05f), between(0.05f, 0.3f), between(10, 30), between(20, 60), between(0.1f, 0.6f)};
  float *highest, *area, sample[2];
  cudaMalloc(&patients_there, sizeof(Patient) * PATIENTS);
  cudaMalloc(&highest, sizeof(float) * PATIENTS);
  cudaMalloc(&area, sizeof(float) * PATIENTS);
  cudaMemcpy(patients_there, patients, sizeof(Patient) * PATIENTS, cudaMemcpyHostToDevice);

  int code = run(argc, argv, [&] {
    for (float dose = 50; dose <= 200; dose += 50)
      simulate<<<blocks, threads>>>(patients_there, dose, highest, area);  // fault
  });
  cudaMemcpy(sample, highest, sizeof(float), cudaMemcpyDeviceToHost);
  cudaMemcpy(sample + 1, area + PATIENTS - 1, sizeof(float), cudaMemcpyDeviceToHost);
  fprintf(stderr, "some of it: %.6f %.6f\n", sample[0], sample[1]);
  return code;
}
