// Runs a program of CUDA C++ as _run_other.py does: NAME [fixed|main] [--steps N] [--time].
#pragma once
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

inline int place(int argc, char **argv, const char *word) {
  for (int k = 1; k < argc; k++)
    if (!strcmp(argv[k], word)) return k;
  return 0;
}

inline bool is_fixed(int argc, char **argv) { return place(argc, argv, "fixed"); }
inline bool is_main_fixed(int argc, char **argv) { return is_fixed(argc, argv) || place(argc, argv, "main"); }

inline void wait_for_gpu() {
  cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error != cudaSuccess) fprintf(stderr, "%s\n", cudaGetErrorString(error)), exit(1);
}

template <class Step>
double steps_ms(Step step, int count) {
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; i++) step();
  wait_for_gpu();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / count;
}

template <class Step>
int run(int argc, char **argv, Step step) {
  steps_ms(step, 5);
  if (const char *path = getenv("DIAGNOSIS_LOCK")) flock(open(path, O_RDWR | O_CREAT, 0644), LOCK_EX);  // until exit
  if (!place(argc, argv, "--time")) {
    int at = place(argc, argv, "--steps");
    steps_ms(step, at ? atoi(argv[at + 1]) : 20);
    return 0;
  }
  double estimate = std::min(steps_ms(step, 5), steps_ms(step, 5)), total = 0, low = 1e30, high = 0;
  for (int repeat = 0; repeat < 3; repeat++) {
    double mean = steps_ms(step, std::max(5, int(500 / estimate)));
    total += mean, low = std::min(low, mean), high = std::max(high, mean);
  }
  const char *variant = is_fixed(argc, argv) ? "fixed" : is_main_fixed(argc, argv) ? "main" : "fault";
  const char *slash = strrchr(argv[0], '/');
  printf("{\"name\": \"%s\", \"variant\": \"%s\", \"ms\": %.6f, \"low\": %.6f, \"high\": %.6f}\n",
         slash ? slash + 1 : argv[0], variant, total / 3, low, high);
  return 0;
}
