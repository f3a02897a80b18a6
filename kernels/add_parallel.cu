// The same addition by a full grid: the kernel shrinks by orders of magnitude, and set-up and copies are what is left.
//
// Look for, next to add.cu:
// - managed: the kernel now waits for page faults rather than for one thread's arithmetic, since it starts before the
//   data is there; as many bytes move as in add.cu;
// - explicit: x and y are on the device before the kernel starts, so the kernel takes microseconds; three pageable
//   copies take longer than it does;
// - both: context creation is as long as it was, and now nearly everything.
//
// Run: nvcc -lineinfo -o add_parallel add_parallel.cu && ./add_parallel --variant explicit
// Variants: managed, explicit

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

constexpr int THREADS_PER_BLOCK = 256;

// Floating-point operations of adding n elements: one addition each.
constexpr long long flops(long long n) { return n; }

// Bytes that the kernel must move: x and y are read once, y is written once, 4 bytes each; no cache keeps any.
constexpr long long bytes_moved(long long n) { return 3 * 4 * n; }

// Bytes between host and device: x and y there, y back.
constexpr long long bytes_copied(long long n) { return 3 * 4 * n; }

// A grid-stride loop: right for any grid, and neighbouring threads touch neighbouring elements.
__global__ void add(int n, float *x, float *y) {
  long long stride = static_cast<long long>(blockDim.x) * gridDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    y[i] = x[i] + y[i];
  }
}

// Ends the program with what CUDA said: a kernel that never ran is no wrong sum.
void must(cudaError_t status, const char *call) {
  if (status == cudaSuccess) return;
  std::cerr << call << ": " << cudaGetErrorString(status) << std::endl;
  std::exit(1);
}

// The largest distance from 3; NaN where there is one, which fmax alone would drop.
float max_error(int n, const float *y) {
  float error = 0.0f;
  for (int i = 0; i < n; i++) {
    if (std::isnan(y[i])) return y[i];
    error = std::fmax(error, std::fabs(y[i] - 3.0f));
  }
  return error;
}

// Adds on the device, one thread per element, and waits.
void add_on_device(int n, float *x, float *y) {
  int blocks = (n - 1) / THREADS_PER_BLOCK + 1;
  add<<<blocks, THREADS_PER_BLOCK>>>(n, x, y);
  must(cudaGetLastError(), "add<<<blocks, threads>>>");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// Memory that moves by itself, when a side touches it.
float managed(int n) {
  float *x, *y;
  must(cudaMallocManaged(&x, n * sizeof(float)), "cudaMallocManaged");
  must(cudaMallocManaged(&y, n * sizeof(float)), "cudaMallocManaged");
  for (int i = 0; i < n; i++) {
    x[i] = 1.0f;
    y[i] = 2.0f;
  }
  add_on_device(n, x, y);
  float error = max_error(n, y);
  must(cudaFree(x), "cudaFree");
  must(cudaFree(y), "cudaFree");
  return error;
}

// Memory of each side, and copies between them.
float with_copies(int n) {
  size_t size_bytes = n * sizeof(float);
  std::vector<float> host_x(n, 1.0f), host_y(n, 2.0f);
  float *x, *y;
  must(cudaMalloc(&x, size_bytes), "cudaMalloc");
  must(cudaMalloc(&y, size_bytes), "cudaMalloc");
  must(cudaMemcpy(x, host_x.data(), size_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  must(cudaMemcpy(y, host_y.data(), size_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  add_on_device(n, x, y);
  must(cudaMemcpy(host_y.data(), y, size_bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  must(cudaFree(x), "cudaFree");
  must(cudaFree(y), "cudaFree");
  return max_error(n, host_y.data());
}

// What the program was asked to do.
struct Options {
  bool explicit_copies = false;
  int size = 1 << 20;
};

// A count of elements, 1 to INT_MAX; 0 where the text is none.
int count_of(const char *text) {
  char *end = nullptr;
  errno = 0;
  long value = std::strtol(text, &end, 10);
  return end != text && *end == '\0' && errno == 0 && value >= 1 && value <= INT_MAX ? static_cast<int>(value) : 0;
}

// Reads the command line; false where it makes no sense.
bool parse(int argc, char **argv, Options &options) {
  for (int i = 1; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (std::strcmp(argv[i], "--variant") == 0) {
      options.explicit_copies = std::strcmp(value, "explicit") == 0;
      if (!options.explicit_copies && std::strcmp(value, "managed") != 0) return false;
    } else if (std::strcmp(argv[i], "--size") == 0) {
      options.size = count_of(value);
      if (options.size == 0) return false;
    } else {
      return false;
    }
  }
  return true;
}

int main(int argc, char **argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::cerr << "usage: " << argv[0] << " [--variant managed|explicit] [--size ELEMENTS]" << std::endl;
    return 2;
  }
  float error = options.explicit_copies ? with_copies(options.size) : managed(options.size);
  std::cout << "Max error: " << error << std::endl;
  return error == 0.0f ? 0 : 1;
}
