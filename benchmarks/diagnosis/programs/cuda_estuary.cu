// Tides in an estuary: the shallow-water equations, each step from tiles with a halo in shared memory.
// CAUSE:
// ALSO:
#include "_run_other.cuh"

const int W = 6144, H = 4096, BX = 32, BY = 16, PER_STEP = 8;
const float G = 9.81f, CELL = 20.f, DT = .25f, DRAG = .002f;

struct State {
  float *depth, *east, *north;  // momenta per unit of width
};

struct Cell {
  float h, u, v;
};

__device__ inline Cell flux_x(Cell c) {
  float speed = c.u / c.h;
  return {c.u, c.u * speed + .5f * G * c.h * c.h, c.v * speed};
}

__device__ inline Cell flux_y(Cell c) {
  float speed = c.v / c.h;
  return {c.v, c.u * speed, c.v * speed + .5f * G * c.h * c.h};
}

// Rusanov's flux between two cells
__device__ inline Cell between(Cell a, Cell b, Cell fa, Cell fb, float speed_a, float speed_b) {
  float s = fmaxf(fabsf(speed_a) + sqrtf(G * a.h), fabsf(speed_b) + sqrtf(G * b.h));
  return {.5f * (fa.h + fb.h - s * (b.h - a.h)), .5f * (fa.u + fb.u - s * (b.u - a.u)), .5f * (fa.v + fb.v - s * (b.v - a.v))};
}

__global__ __launch_bounds__(BX *BY) void advance(State from, State to, float tide) {
  __shared__ float h[BY + 2][BX + 2], u[BY + 2][BX + 2], v[BY + 2][BX + 2];
  int x0 = blockIdx.x * BX - 1, y0 = blockIdx.y * BY - 1;
  for (int k = threadIdx.y * BX + threadIdx.x; k < (BX + 2) * (BY + 2); k += BX * BY) {
    int i = k % (BX + 2), j = k / (BX + 2);
    int x = min(max(x0 + i, 0), W - 1), y = min(max(y0 + j, 0), H - 1);
    size_t at = (size_t)y * W + x;
    h[j][i] = x0 + i < 0 ? tide : from.depth[at];
    u[j][i] = x0 + i >= W ? -from.east[at] : from.east[at];
    v[j][i] = y0 + j < 0 || y0 + j >= H ? -from.north[at] : from.north[at];
  }
  __syncthreads();
  int i = threadIdx.x + 1, j = threadIdx.y + 1;
  auto cell = [&](int a, int b) { return Cell{h[b][a], u[b][a], v[b][a]}; };
  Cell c = cell(i, j), w = cell(i - 1, j), e = cell(i + 1, j), s = cell(i, j - 1), n = cell(i, j + 1);
  Cell fx = flux_x(c), fy = flux_y(c);
  Cell west = between(w, c, flux_x(w), fx, w.u / w.h, c.u / c.h), east = between(c, e, fx, flux_x(e), c.u / c.h, e.u / e.h);
  Cell south = between(s, c, flux_y(s), fy, s.v / s.h, c.v / c.h), north = between(c, n, fy, flux_y(n), c.v / c.h, n.v / n.h);
  float r = DT / CELL, slow = 1 / (1 + DT * DRAG * sqrtf(c.u * c.u + c.v * c.v) / (c.h * c.h));
  size_t at = (size_t)(y0 + j) * W + x0 + i;
  to.depth[at] = fmaxf(c.h - r * (east.h - west.h + north.h - south.h), .05f);
  to.east[at] = slow * (c.u - r * (east.u - west.u + north.u - south.u));
  to.north[at] = slow * (c.v - r * (east.v - west.v + north.v - south.v));
}

__global__ void at_rest(State s) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= W || y >= H) return;
  size_t at = (size_t)y * W + x;
  s.depth[at] = 10.f + .5f * expf(-1e-5f * ((x - W / 2) * (float)(x - W / 2) + (y - H / 2) * (float)(y - H / 2)));
  s.east[at] = s.north[at] = 0;
}

int main(int argc, char **argv) {
  State now, next;
  size_t bytes = sizeof(float) * W * H;
  for (State *s : {&now, &next}) cudaMalloc(&s->depth, bytes), cudaMalloc(&s->east, bytes), cudaMalloc(&s->north, bytes);
  dim3 threads(BX, BY), blocks(W / BX, H / BY);
  at_rest<<<blocks, threads>>>(now);
  long done = 0;
  return run(argc, argv, [&] {
    for (int k = 0; k < PER_STEP; k++) {
      advance<<<blocks, threads>>>(now, next, 10.f + .3f * sinf(1.4e-4f * DT * done++));
      std::swap(now, next);
    }
  });
}
