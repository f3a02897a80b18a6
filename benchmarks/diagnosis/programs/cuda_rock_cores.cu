// Turns scans of drill cores from spectra of places into pictures of bands, corrected by each band's gain and dark level.
// CAUSE: bank-conflicts
// ALSO:
#include "_run_other.cuh"

const int BANDS = 2048, PLACES = 16384, SCANS = 12, TILE = 32, ROWS = 8;

// scan[place][band] becomes picture[band][place]; WIDTH is the length of a row of the tile.
template <int WIDTH>
__global__ void pictures(const float *scan, const float *gain, const float *dark, float *picture) {
  __shared__ float tile[TILE][WIDTH];  // fault
  int band = blockIdx.x * TILE + threadIdx.x, place = blockIdx.y * TILE + threadIdx.y;
  float by = gain[band], less = dark[band];
#pragma unroll
  for (int k = 0; k < TILE; k += ROWS)
    tile[threadIdx.y + k][threadIdx.x] = by * (scan[(size_t)(place + k) * BANDS + band] - less);
  __syncthreads();
  band = blockIdx.x * TILE + threadIdx.y, place = blockIdx.y * TILE + threadIdx.x;
#pragma unroll
  for (int k = 0; k < TILE; k += ROWS)
    picture[(size_t)(band + k) * PLACES + place] = tile[threadIdx.x][threadIdx.y + k];  // fault
}

int main(int argc, char **argv) {
  const bool fixed = is_main_fixed(argc, argv);
  const size_t bytes = sizeof(float) * BANDS * PLACES;
  float *scans[SCANS], *picture, *gain, *dark, sample[2];
  float *values = (float *)malloc(bytes);
  unsigned seed = 1;
  for (size_t i = 0; i < (size_t)BANDS * PLACES; i++) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (seed >> 8) * 0x1p-24f;
  }
  for (int s = 0; s < SCANS; s++) {
    cudaMalloc(&scans[s], bytes);
    cudaMemcpy(scans[s], values, bytes, cudaMemcpyHostToDevice);
  }
  cudaMalloc(&picture, bytes);
  cudaMalloc(&gain, sizeof(float) * BANDS);
  cudaMalloc(&dark, sizeof(float) * BANDS);
  cudaMemcpy(gain, values, sizeof(float) * BANDS, cudaMemcpyHostToDevice);
  cudaMemcpy(dark, values + BANDS, sizeof(float) * BANDS, cudaMemcpyHostToDevice);
  free(values);
  dim3 blocks(BANDS / TILE, PLACES / TILE), threads(TILE, ROWS);

  int code = run(argc, argv, [&] {
    for (int s = 0; s < SCANS; s++)
      if (fixed)
        pictures<TILE + 1><<<blocks, threads>>>(scans[s], gain, dark, picture);
      else
        pictures<TILE><<<blocks, threads>>>(scans[s], gain, dark, picture);  // fault
  });
  cudaMemcpy(sample, picture + 1, sizeof(float), cudaMemcpyDeviceToHost);
  cudaMemcpy(sample + 1, picture + (size_t)BANDS * PLACES - 1, sizeof(float), cudaMemcpyDeviceToHost);
  fprintf(stderr, "some of it: %.7f %.7f\n", sample[0], sample[1]);
  return code;
}
