// Blends two exposures by Laplacian pyramids, with images as values that own memory of the GPU.
// CAUSE: allocation-in-loop
// ALSO:
#include <map>
#include <utility>
#include <vector>

#include "_run_other.cuh"

const int SIDE = 4096, LEVELS = 5;

std::multimap<size_t, float *> spare;
bool keep_spare = false;

struct Image {
  int side = 0;
  float *data = nullptr;

  explicit Image(int side) : side(side) {
    auto place = spare.find(bytes());
    if (place == spare.end()) {
      cudaMalloc(&data, bytes());  // fault
    } else {
      data = place->second;
      spare.erase(place);
    }
  }
  Image(Image &&other) noexcept : side(other.side), data(std::exchange(other.data, nullptr)) {}
  Image(const Image &) = delete;
  ~Image() {
    if (data && keep_spare)
      spare.emplace(bytes(), data);
    else if (data)
      cudaFree(data);  // fault
  }
  size_t bytes() const { return sizeof(float) * side * side; }
};

__device__ float at(const float *in, int side, int x, int y) {
  return in[min(max(y, 0), side - 1) * side + min(max(x, 0), side - 1)];
}

__global__ void shrink(const float *in, float *out, int side) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  float sum = 0;
  for (int b = -1; b <= 2; b++)
    for (int a = -1; a <= 2; a++)
      sum += at(in, 2 * side, 2 * x + a, 2 * y + b) * (a == 0 || a == 1 ? 3 : 1) * (b == 0 || b == 1 ? 3 : 1);
  out[y * side + x] = sum / 64;
}

// in + sign * (the smaller image, enlarged)
__global__ void add_enlarged(const float *in, const float *small, float *out, int side, float sign) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  int half = side / 2, a = x & 1 ? x / 2 : x / 2 - 1, b = y & 1 ? y / 2 : y / 2 - 1;
  float u = x & 1 ? 0.25f : 0.75f, v = y & 1 ? 0.25f : 0.75f;
  float above = (1 - u) * at(small, half, a, b) + u * at(small, half, a + 1, b);
  float below = (1 - u) * at(small, half, a, b + 1) + u * at(small, half, a + 1, b + 1);
  out[y * side + x] = in[y * side + x] + sign * ((1 - v) * above + v * below);
}

__global__ void stronger(const float *first, const float *second, float *out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = fabsf(first[i]) > fabsf(second[i]) ? first[i] : second[i];
}

const dim3 BLOCK(32, 8);
dim3 blocks(int side) { return dim3((side + 31) / 32, (side + 7) / 8); }

Image smaller(const Image &in) {
  Image out(in.side / 2);
  shrink<<<blocks(out.side), BLOCK>>>(in.data, out.data, out.side);
  return out;
}

Image plus_enlarged(const Image &in, const Image &small, float sign) {
  Image out(in.side);
  add_enlarged<<<blocks(in.side), BLOCK>>>(in.data, small.data, out.data, in.side, sign);
  return out;
}

Image choose(const Image &first, const Image &second) {
  Image out(first.side);
  int count = first.side * first.side;
  stronger<<<(count + 255) / 256, 256>>>(first.data, second.data, out.data, count);
  return out;
}

Image blend(const Image &first, const Image &second, int levels) {
  if (!levels) return choose(first, second);
  Image small_first = smaller(first), small_second = smaller(second);
  Image fine = choose(plus_enlarged(first, small_first, -1), plus_enlarged(second, small_second, -1));
  return plus_enlarged(fine, blend(small_first, small_second, levels - 1), 1);
}

int main(int argc, char **argv) {
  keep_spare = is_fixed(argc, argv);
  std::vector<float> noise(size_t(SIDE) * SIDE);
  for (size_t i = 0; i < noise.size(); i++) noise[i] = float(i * 2654435761u % 65536) / 65536;
  Image dark(SIDE), bright(SIDE);
  cudaMemcpy(dark.data, noise.data(), dark.bytes(), cudaMemcpyHostToDevice);
  std::reverse(noise.begin(), noise.end());
  cudaMemcpy(bright.data, noise.data(), bright.bytes(), cudaMemcpyHostToDevice);
  return run(argc, argv, [&] { blend(dark, bright, LEVELS); });
}
