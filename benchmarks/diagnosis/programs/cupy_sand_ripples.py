"""Lets ripples grow in wind-blown sand: grains hop downwind from where the slope is bare, and creep downhill (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = "uncoalesced"
ALSO = ()

WIDTH, LENGTH, SUBSTEPS = 8192, 6144, 8

hop = cp.RawKernel(
    r"""
extern "C" __global__ void hop(const float *sand, const float *roughness, float *after,
                               int width, int length, float wind) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= length) return;
    int west = x ? x - 1 : width - 1, east = x < width - 1 ? x + 1 : 0;
    int north = y ? y - 1 : length - 1, south = y < length - 1 ? y + 1 : 0;
    int row = y * width;
    float here = sand[row + x], behind = sand[row + west], ahead = sand[row + east];
    float creep = behind + ahead + sand[north * width + x] + sand[south * width + x] - 4.f * here;
    float lost = wind * roughness[row + x] * fmaxf(0.f, 1.f + here - behind);
    float won = wind * roughness[row + west] * fmaxf(0.f, 1.f + behind - here);
    after[row + x] = here + 0.08f * creep + won - lost;
}
""",
    "hop",
)


class Dune:
    def __init__(self, block):
        random = cp.random.default_rng(17)
        self.sand = 0.1 * random.random((LENGTH, WIDTH), dtype=cp.float32)
        self.roughness = 0.5 + random.random((LENGTH, WIDTH), dtype=cp.float32)
        self.after = cp.empty_like(self.sand)
        self.block = block
        self.grid = -(-WIDTH // block[0]), -(-LENGTH // block[1])

    def blow(self, wind):
        sizes = cp.int32(WIDTH), cp.int32(LENGTH), cp.float32(wind)
        hop(self.grid, self.block, (self.sand, self.roughness, self.after, *sizes))  # fault
        self.sand, self.after = self.after, self.sand


def build(fixed):
    dune = Dune((64, 4) if fixed else (1, 256))  # fault
    heights = cp.zeros(WIDTH, cp.float32)

    def step(i):
        for k in range(SUBSTEPS):
            dune.blow(0.02 + 0.01 * ((i * SUBSTEPS + k) % 5))
        dune.sand.mean(axis=0, out=heights)
        return heights

    return step


if __name__ == "__main__":
    run(build)
