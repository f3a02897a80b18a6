// Solves the bending of a loudspeaker's membrane under changing loads, by V-cycles over grids of halved size.
// CAUSE: allocation-in-loop
// ALSO:
#include "_run_other.cuh"
#include <cmath>
#include <memory>
#include <vector>

const int SIDE = 4096, LEVELS = 8, CYCLES = 2, SMOOTH = 2;

// a square grid of the device's memory, which goes with it
struct Grid {
  int side;
  float *data = nullptr;
  explicit Grid(int side) : side(side) { cudaMalloc(&data, bytes()); }  // fault
  ~Grid() { cudaFree(data); }                                          // fault
  Grid(const Grid &) = delete;
  size_t bytes() const { return sizeof(float) * side * side; }
  void clear() { cudaMemsetAsync(data, 0, bytes()); }
};

__device__ float at(const float *u, int x, int y, int n) {
  return x < 0 || y < 0 || x >= n || y >= n ? 0.f : u[(size_t)y * n + x];
}

__device__ float around(const float *u, int x, int y, int n) {
  return at(u, x - 1, y, n) + at(u, x + 1, y, n) + at(u, x, y - 1, n) + at(u, x, y + 1, n);
}

__global__ void jacobi(const float *u, const float *load, float *next, int n, float h2) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  size_t i = (size_t)y * n + x;
  next[i] = 0.2f * u[i] + 0.8f * 0.25f * (around(u, x, y, n) + h2 * load[i]);
}

__global__ void residual(const float *u, const float *load, float *rest, int n, float h2) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  size_t i = (size_t)y * n + x;
  rest[i] = load[i] - (4 * u[i] - around(u, x, y, n)) / h2;
}

__global__ void coarsen(const float *fine, float *coarse, int n) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  const float *from = fine + (size_t)(2 * y) * 2 * n + 2 * x;
  coarse[(size_t)y * n + x] = 0.25f * (from[0] + from[1] + from[2 * n] + from[2 * n + 1]);
}

__global__ void correct(float *u, const float *coarse, int n) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < n && y < n) u[(size_t)y * n + x] += coarse[(size_t)(y / 2) * (n / 2) + x / 2];
}

struct Level {
  Grid rest, other, load, error;
  explicit Level(int side) : rest(side), other(side), load(side / 2), error(side / 2) {}
};

class Solver {
 public:
  explicit Solver(bool keep) {
    for (int level = 0; keep && level < LEVELS - 1; level++) kept.push_back(std::make_unique<Level>(SIDE >> level));
    if (keep) last = std::make_unique<Grid>(SIDE >> (LEVELS - 1));
  }

  void cycle(float *u, const float *load, int level = 0) {
    int n = SIDE >> level;
    float h2 = (float)(1 << level) * (1 << level);
    if (level == LEVELS - 1) {
      std::unique_ptr<Grid> own(last ? nullptr : new Grid(n));
      smooth(u, load, last ? *last : *own, h2, 16);
      return;
    }
    std::unique_ptr<Level> own(kept.empty() ? new Level(n) : nullptr);  // fault
    Level &work = own ? *own : *kept[level];
    smooth(u, load, work.other, h2, SMOOTH);
    residual<<<blocks(n), threads>>>(u, load, work.rest.data, n, h2);
    coarsen<<<blocks(n / 2), threads>>>(work.rest.data, work.load.data, n / 2);
    work.error.clear();
    cycle(work.error.data, work.load.data, level + 1);
    correct<<<blocks(n), threads>>>(u, work.error.data, n);
    smooth(u, load, work.other, h2, SMOOTH);
  }

 private:
  dim3 threads{32, 8};
  std::vector<std::unique_ptr<Level>> kept;
  std::unique_ptr<Grid> last;

  dim3 blocks(int n) const { return dim3((n + 31) / 32, (n + 7) / 8); }

  void smooth(float *u, const float *load, Grid &other, float h2, int sweeps) {
    for (int sweep = 0; sweep < sweeps; sweep += 2) {
      jacobi<<<blocks(other.side), threads>>>(u, load, other.data, other.side, h2);
      jacobi<<<blocks(other.side), threads>>>(other.data, load, u, other.side, h2);
    }
  }
};

__global__ void push(float *load, float x0, float y0, float strength) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  float dx = (x - x0) / SIDE, dy = (y - y0) / SIDE;
  load[(size_t)y * SIDE + x] = strength * __expf(-200.f * (dx * dx + dy * dy));
}

int main(int argc, char **argv) {
  Solver solver(is_fixed(argc, argv));
  Grid bent(SIDE), load(SIDE);
  bent.clear();
  int tick = 0;
  int code = run(argc, argv, [&] {
    float turn = 0.1f * tick++;
    push<<<dim3(SIDE / 32, SIDE / 8), dim3(32, 8)>>>(load.data, SIDE * (0.5f + 0.3f * std::cos(turn)),
                                                     SIDE * (0.5f + 0.3f * std::sin(turn)), 1e-3f);
    for (int c = 0; c < CYCLES; c++) solver.cycle(bent.data, load.data);
  });
  std::vector<float> u((size_t)SIDE * SIDE);
  cudaMemcpy(u.data(), bent.data, bent.bytes(), cudaMemcpyDeviceToHost);
  double sum = 0;
  for (float v : u) sum += v;
  fprintf(stderr, "mean bend: %.6g\n", sum / u.size());
  return code;
}
