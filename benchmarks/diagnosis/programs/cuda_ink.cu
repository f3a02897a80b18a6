// Ink in water: a stable-fluids solver whose pictures go to the film's encoder on the host.
// CAUSE: pageable-copy
// ALSO:
#include "_run_other.cuh"
#include <vector>

const int W = 2048, H = 1152, PRESSURE_STEPS = 40, SHOWN_W = 3840, SHOWN_H = 2160, QUEUE = 4;
const float DT = .6f;

__device__ inline float sample(const float *f, float x, float y) {
  x = fminf(fmaxf(x, 0.f), W - 1.001f), y = fminf(fmaxf(y, 0.f), H - 1.001f);
  int i = (int)x, j = (int)y;
  float u = x - i, v = y - j;
  const float *p = f + j * W + i;
  return (1 - v) * ((1 - u) * p[0] + u * p[1]) + v * ((1 - u) * p[W] + u * p[W + 1]);
}

__global__ void advect(const float *u, const float *v, const float *from, float *to, float keep) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= W || y >= H) return;
  int i = y * W + x;
  to[i] = keep * sample(from, x - DT * u[i], y - DT * v[i]);
}

__global__ void stir(float *u, float *v, float *ink, int frame) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= W || y >= H) return;
  float angle = .02f * frame, cx = W * (.5f + .3f * cosf(angle)), cy = H * (.5f + .3f * sinf(1.7f * angle));
  float near = expf(-((x - cx) * (x - cx) + (y - cy) * (y - cy)) * 2e-4f);
  u[y * W + x] += -2.f * near * sinf(angle), v[y * W + x] += 2.f * near * cosf(angle), ink[y * W + x] += .2f * near;
}

__global__ void divergence(const float *u, const float *v, float *d) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= W - 1 || y >= H - 1) return;
  int i = y * W + x;
  d[i] = .5f * (u[i + 1] - u[i - 1] + v[i + W] - v[i - W]);
}

__global__ void jacobi(const float *from, float *to, const float *d) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= W - 1 || y >= H - 1) return;
  int i = y * W + x;
  to[i] = .25f * (from[i - 1] + from[i + 1] + from[i - W] + from[i + W] - d[i]);
}

__global__ void project(float *u, float *v, const float *p) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= W - 1 || y >= H - 1) return;
  int i = y * W + x;
  u[i] -= .5f * (p[i + 1] - p[i - 1]), v[i] -= .5f * (p[i + W] - p[i - W]);
}

__global__ void picture(const float *ink, const float *u, const float *v, uchar4 *shown) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= SHOWN_W || y >= SHOWN_H) return;
  float fx = x * (float)W / SHOWN_W, fy = y * (float)H / SHOWN_H;
  float dark = expf(-sample(ink, fx, fy)), speed = hypotf(sample(u, fx, fy), sample(v, fx, fy));
  shown[y * SHOWN_W + x] =
      make_uchar4(255 * dark, 255 * dark * dark, 255 * fminf(1.f, dark + .1f * speed), 255);
}

// Pictures on the host that wait for the encoder.
struct Queue {
  std::vector<std::vector<uchar4>> plain;
  std::vector<uchar4 *> slots;

  explicit Queue(bool pinned) {
    for (int k = 0; k < QUEUE; k++) {
      uchar4 *slot;
      if (pinned) {
        cudaMallocHost(&slot, sizeof(uchar4) * SHOWN_W * SHOWN_H);
      } else {
        plain.emplace_back((size_t)SHOWN_W * SHOWN_H);  // fault
        slot = plain.back().data();                     // fault
      }
      slots.push_back(slot);
    }
  }
};

int main(int argc, char **argv) {
  bool fixed = is_main_fixed(argc, argv);
  float *fields[8];
  for (float *&field : fields) cudaMalloc(&field, sizeof(float) * W * H), cudaMemset(field, 0, sizeof(float) * W * H);
  float *&u = fields[0], *&v = fields[1], *&ink = fields[2], *&nu = fields[3], *&nv = fields[4], *&ni = fields[5];
  float *&p = fields[6], *&q = fields[7], *d;
  uchar4 *shown;
  cudaMalloc(&d, sizeof(float) * W * H), cudaMemset(d, 0, sizeof(float) * W * H);
  cudaMalloc(&shown, sizeof(uchar4) * SHOWN_W * SHOWN_H);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  Queue queue(fixed);
  dim3 t(32, 8), b(W / 32, H / 8), shown_b(SHOWN_W / 32, SHOWN_H / 8);
  cudaDeviceSynchronize();
  int frame = 0;
  return run(argc, argv, [&] {
    stir<<<b, t, 0, stream>>>(u, v, ink, frame);
    advect<<<b, t, 0, stream>>>(u, v, u, nu, .999f);
    advect<<<b, t, 0, stream>>>(u, v, v, nv, .999f);
    advect<<<b, t, 0, stream>>>(u, v, ink, ni, .998f);
    std::swap(u, nu), std::swap(v, nv), std::swap(ink, ni);
    divergence<<<b, t, 0, stream>>>(u, v, d);
    for (int k = 0; k < PRESSURE_STEPS; k++) {
      jacobi<<<b, t, 0, stream>>>(p, q, d);
      std::swap(p, q);
    }
    project<<<b, t, 0, stream>>>(u, v, p);
    picture<<<shown_b, t, 0, stream>>>(ink, u, v, shown);
    uchar4 *slot = queue.slots[frame++ % QUEUE];
    cudaMemcpyAsync(slot, shown, sizeof(uchar4) * SHOWN_W * SHOWN_H, cudaMemcpyDeviceToHost, stream);  // fault
  });
}
