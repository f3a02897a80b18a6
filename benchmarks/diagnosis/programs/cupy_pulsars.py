"""Searches a telescope's recording for pulsars: channels are aligned, summed, and folded at many periods (CuPy)."""

import os

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "scatter-atomics"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
CHANNELS, SAMPLES = (8, 4096) if TINY else (512, 1 << 21)
PHASES, PERIODS, SAMPLE_S = 32, 6, 64e-6

dedisperse = cp.RawKernel(
    r"""
extern "C" __global__ void dedisperse(const unsigned char *raw, const int *delays, float *series, int channels,
                                      int samples) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= samples) return;
    int sum = 0;
    for (int c = 0; c < channels; c++) sum += raw[(long long)c * samples + (i + delays[c]) % samples];
    series[i] = sum;
}
""",
    "dedisperse",
)

fold_kernel = cp.RawKernel(
    r"""
extern "C" __global__ void fold(const float *series, double *profile, int *hits, double frequency, int samples) {
    __shared__ float sums[32][33];
    __shared__ int counts[32][33];
    int lane = threadIdx.x % 32;
    for (int k = threadIdx.x; k < 32 * 33; k += blockDim.x) sums[k / 33][k % 33] = 0, counts[k / 33][k % 33] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < samples; i += gridDim.x * blockDim.x) {
        double turns = i * frequency;
        int phase = (int)((turns - floor(turns)) * 32);
        atomicAdd(&sums[phase][lane], series[i]);
        atomicAdd(&counts[phase][lane], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        double sum = 0;
        int count = 0;
        for (int k = 0; k < 32; k++) sum += sums[threadIdx.x][k], count += counts[threadIdx.x][k];
        atomicAdd(&profile[threadIdx.x], sum);
        atomicAdd(&hits[threadIdx.x], count);
    }
}
""",
    "fold",
)

phase_of = cp.ElementwiseKernel(
    "float64 frequency",
    "int32 phase",
    "double turns = i * frequency; phase = (int)((turns - floor(turns)) * 32);",
    "phase_of",
)


class Search:
    """The recording of a beam, and the periods at which it is looked at next."""

    def __init__(self, fixed):
        self.fold = self.fold_in_parts if fixed else self.fold_by_phase
        rng = cp.random.RandomState(0)
        self.raw = cp.empty((CHANNELS, SAMPLES), cp.uint8)
        for channel in self.raw:
            channel[...] = rng.randint(0, 200, SAMPLES, dtype=cp.int32)
        mhz = np.linspace(1500, 1200, CHANNELS)
        self.sweep = 4.15e3 * (mhz**-2.0 - mhz[0] ** -2.0) / SAMPLE_S
        self.series = cp.empty(SAMPLES, cp.float32)
        self.phase = cp.empty(SAMPLES, cp.int32)
        self.best = cp.zeros((), cp.float64)

    def align(self, dispersion):
        delays = cp.asarray((self.sweep * dispersion).astype(np.int32))
        grid = ((SAMPLES + 255) // 256,)
        dedisperse(grid, (256,), (self.raw, delays, self.series, cp.int32(CHANNELS), cp.int32(SAMPLES)))
        self.series -= self.series.mean()
        self.series /= self.series.std()

    def fold_by_phase(self, frequency):
        phase_of(frequency, self.phase)
        profile = cp.bincount(self.phase, weights=self.series, minlength=PHASES)  # fault
        return profile, cp.bincount(self.phase, minlength=PHASES)  # fault

    def fold_in_parts(self, frequency):
        profile, hits = cp.zeros(PHASES), cp.zeros(PHASES, cp.int32)
        fold_kernel((528,), (256,), (self.series, profile, hits, np.float64(frequency), cp.int32(SAMPLES)))
        return profile, hits

    def look(self, dispersion, periods):
        self.align(dispersion)
        found = cp.empty(len(periods))
        for k, period in enumerate(periods):
            profile, hits = self.fold(SAMPLE_S / period)
            found[k] = (profile**2 / cp.maximum(hits, 1)).sum() / PHASES
        self.best = cp.maximum(self.best, found.max())
        return found


def build(fixed):
    search = Search(fixed)

    def step(i):
        periods = [0.25 * (1 + 1e-4 * (PERIODS * (i % 50) + k)) for k in range(PERIODS)]
        return search.look(20.0 + i % 100, periods)

    return step


if __name__ == "__main__":
    run(build)
