"""Propagates the pings of a sonar through water of varying speed of sound, and records them (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = ""
ALSO = ()

WIDTH, DEPTH, SUBSTEPS, MOMENTS = 8192, 6144, 8, 4096
SPACING_M, INTERVAL_S = 0.05, 1.5e-5

advance = cp.RawKernel(
    r"""
extern "C" __global__ void advance(const float *now, float *before, const float *speed, float *record,
                                   int width, int depth, float ping) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.y;
    if (x >= width) return;
    long long at = (long long)z * width + x;
    float middle = now[at], next = 0.f;
    if (x > 0 && x < width - 1 && z > 0 && z < depth - 1) {
        float around = now[at - 1] + now[at + 1] + now[at - width] + now[at + width] - 4.f * middle;
        next = 2.f * middle - before[at] + speed[at] * around;
        if (z == 8 && x == width / 2) next += ping;
    }
    before[at] = next;
    if (z == 16) record[x] = next;
}
""",
    "advance",
)


class Water:
    def __init__(self):
        depth = cp.linspace(0, 1, DEPTH, dtype=cp.float32)[:, None]
        across = cp.linspace(0, 40, WIDTH, dtype=cp.float32)[None, :]
        speed = cp.float32(1500) + cp.float32(30) * cp.cos(cp.float32(9) * depth) + cp.sin(across)
        self.speed = cp.ascontiguousarray((speed * cp.float32(INTERVAL_S / SPACING_M)) ** 2)
        self.now = cp.zeros((DEPTH, WIDTH), cp.float32)
        self.before = cp.zeros((DEPTH, WIDTH), cp.float32)
        self.records = cp.zeros((MOMENTS, WIDTH), cp.float32)
        times = (cp.arange(MOMENTS) - 100) * 0.12
        self.pings = ((1 - times**2) * cp.exp(-(times**2) / 2)).get().astype("float32")
        self.moment = 0

    def advance(self):
        moment = self.moment % MOMENTS
        grid, block = (WIDTH // 256, DEPTH), (256,)
        fields = self.now, self.before, self.speed, self.records[moment]
        advance(grid, block, (*fields, cp.int32(WIDTH), cp.int32(DEPTH), self.pings[moment]))
        self.now, self.before = self.before, self.now
        self.moment += 1


def build(fixed):
    water = Water()

    def step(i):
        for _ in range(SUBSTEPS):
            water.advance()
        return water.records

    return step


if __name__ == "__main__":
    run(build)
