// Finds the peptide behind each mass spectrum: candidates of about its mass are compared; spectra without a mass, with all.
// CAUSE: tail
// ALSO:
#include "_run_other.cuh"
#include <algorithm>
#include <random>
#include <vector>

const int PEPTIDES = 1 << 20, SPECTRA = 8192, OPEN = 24, WINDOW = 40000, BINS = 2048, PEAKS = 256, IONS = 16, THREADS = 128;
const int PORTION = 16384;

struct alignas(32) Peptide {
  unsigned short bins[IONS];  // where its fragments are expected
};

struct Peak {
  unsigned short bin, height;
};

struct Search {
  int spectrum, first, count;
};

// Roots of heights, scaled to the strongest peak.
__global__ void prepare(const Peak *peaks, float *spectra) {
  __shared__ float bins[BINS];
  __shared__ unsigned top;
  if (threadIdx.x == 0) top = 1;
  for (int k = threadIdx.x; k < BINS; k += blockDim.x) bins[k] = 0;
  __syncthreads();
  for (int k = threadIdx.x; k < PEAKS; k += blockDim.x) {
    Peak peak = peaks[(size_t)blockIdx.x * PEAKS + k];
    atomicMax(&top, (unsigned)peak.height);
    atomicMax((int *)&bins[peak.bin], __float_as_int(sqrtf(peak.height)));
  }
  __syncthreads();
  float scale = rsqrtf(top);
  for (int k = threadIdx.x; k < BINS; k += blockDim.x) {
    float near = 0.5f * fmaxf(k ? bins[k - 1] : 0.f, k + 1 < BINS ? bins[k + 1] : 0.f);
    spectra[(size_t)blockIdx.x * BINS + k] = fmaxf(bins[k], near) * scale;
  }
}

__global__ void __launch_bounds__(THREADS) search(const Search *searches, const float *spectra, const Peptide *peptides,
                                                  unsigned long long *best) {
  __shared__ float bins[BINS];
  Search mine = searches[blockIdx.x];
  for (int k = threadIdx.x; k < BINS; k += THREADS) bins[k] = spectra[(size_t)mine.spectrum * BINS + k];
  __syncthreads();
  unsigned long long found = 0;
  for (int k = threadIdx.x; k < mine.count; k += THREADS) {  // fault
    int candidate = mine.first + k;
    const uint4 *packed = (const uint4 *)&peptides[candidate];
    uint4 halves[2] = {__ldg(packed), __ldg(packed + 1)};
    const unsigned words[8] = {halves[0].x, halves[0].y, halves[0].z, halves[0].w,
                               halves[1].x, halves[1].y, halves[1].z, halves[1].w};
    float score = 0;
    int matched = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) {
      float low = bins[words[w] & 0xffff], high = bins[words[w] >> 16];
      score += low + high, matched += (low > 0) + (high > 0);
    }
    unsigned long long key = (unsigned long long)__float_as_uint(score * matched) << 32 | (unsigned)candidate;
    found = max(found, key);
  }
  for (int lane = 16; lane; lane /= 2) found = max(found, __shfl_xor_sync(~0u, found, lane));
  if (threadIdx.x % 32 == 0) atomicMax(&best[mine.spectrum], found);
}

// How many spectra reach each score.
__global__ void tally(const unsigned long long *best, int *counts) {
  int s = blockIdx.x * blockDim.x + threadIdx.x;
  float score = __uint_as_float((unsigned)(best[s] >> 32));
  atomicAdd(&counts[min(255, (int)score)], 1);
}

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  std::mt19937 rng(3);
  std::vector<Peptide> known(PEPTIDES);
  for (auto &peptide : known)
    for (auto &bin : peptide.bins) bin = rng() % BINS;
  std::vector<Peak> measured((size_t)SPECTRA * PEAKS);
  for (auto &peak : measured) peak = {(unsigned short)(rng() % BINS), (unsigned short)(1 + rng() % 60000)};
  std::vector<int> places(SPECTRA - OPEN);
  for (auto &place : places) place = rng() % (PEPTIDES - WINDOW);
  std::sort(places.begin(), places.end());

  std::vector<Search> searches;
  auto plan = [&](int spectrum, int first, int count) {
    int portion = fixed ? PORTION : count;
    for (int from = 0; from < count; from += portion)
      searches.push_back({spectrum, first + from, std::min(portion, count - from)});
  };
  for (int s = 0; s < SPECTRA - OPEN; s++) plan(s, places[s], WINDOW / 2 + places[s] % (WINDOW / 2));
  for (int s = SPECTRA - OPEN; s < SPECTRA; s++) plan(s, 0, PEPTIDES);  // fault

  Peptide *peptides;
  Peak *peaks;
  Search *planned;
  float *spectra;
  unsigned long long *best;
  int *counts;
  cudaMalloc(&peptides, sizeof(Peptide) * PEPTIDES);
  cudaMalloc(&peaks, sizeof(Peak) * measured.size());
  cudaMalloc(&planned, sizeof(Search) * searches.size());
  cudaMalloc(&spectra, sizeof(float) * SPECTRA * BINS);
  cudaMalloc(&best, sizeof(*best) * SPECTRA);
  cudaMalloc(&counts, sizeof(int) * 256);
  cudaMemcpy(peptides, known.data(), sizeof(Peptide) * PEPTIDES, cudaMemcpyHostToDevice);
  cudaMemcpy(peaks, measured.data(), sizeof(Peak) * measured.size(), cudaMemcpyHostToDevice);
  cudaMemcpy(planned, searches.data(), sizeof(Search) * searches.size(), cudaMemcpyHostToDevice);

  int code = run(argc, argv, [&] {
    cudaMemsetAsync(best, 0, sizeof(*best) * SPECTRA);
    cudaMemsetAsync(counts, 0, sizeof(int) * 256);
    prepare<<<SPECTRA, 256>>>(peaks, spectra);
    search<<<(int)searches.size(), THREADS>>>(planned, spectra, peptides, best);
    tally<<<SPECTRA / 256, 256>>>(best, counts);
  });
  std::vector<int> reached(256);
  cudaMemcpy(reached.data(), counts, sizeof(int) * 256, cudaMemcpyDeviceToHost);
  int half = 0;
  for (int sum = 0; half < 256 && sum < SPECTRA / 2; half++) sum += reached[half];
  fprintf(stderr, "median score: %d\n", half);
  return code;
}
