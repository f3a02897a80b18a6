"""Models what a forest's leaves take in and breathe out, hour by hour, over a map of a region (CuPy)."""

import os

import cupy as cp
from _run_other import run

CAUSE = "fusion"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
ROWS, COLUMNS = (12, 16) if TINY else (3000, 4096)
LAYERS = 2 if TINY else 4

leaf_kernel = cp.ElementwiseKernel(
    "float32 light, float32 air, float32 damp, float32 water, float32 leaves, float32 depth",
    "float32 taken, float32 lost",
    """
    float seen = light * expf(-0.5f * leaves * depth);
    float warm = air + 0.004f * seen;
    float rate = 60.0f * expf(0.07f * (warm - 25.0f)) / (1.0f + expf(0.3f * (warm - 38.0f)));
    float moved = 1.7f * rate;
    float sum = 0.3f * seen + moved;
    float carried = (sum - sqrtf(fmaxf(sum * sum - 2.8f * 0.3f * seen * moved, 0.0f))) / 1.4f;
    float compensation = 42.0f * expf(0.05f * (warm - 25.0f));
    float dry = fmaxf(0.61f * expf(17.5f * warm / (warm + 241.0f)) * (1.0f - damp), 0.05f);
    float stress = 1.0f / (1.0f + expf(-12.0f * (water - 0.3f)));
    float inside = 400.0f * (0.4f + 0.5f * stress / (1.0f + 0.4f * dry));
    float by_enzyme = rate * (inside - compensation) / (inside + 710.0f);
    float by_light = 0.25f * carried * (inside - compensation) / (inside + 2.0f * compensation);
    float breathed = 0.015f * rate;
    taken = fminf(by_enzyme, by_light) - breathed;
    float opening = 0.01f + 9.0f * fmaxf(taken, 0.0f) / ((400.0f - compensation) * (1.0f + dry));
    lost = opening * dry * leaves;
    """,
    "leaf_layer",
)


def leaf_layer(light, air, damp, water, leaves, depth):
    """What a layer of leaves takes in of carbon, and loses of water."""
    seen = light * cp.exp(-0.5 * leaves * depth)  # fault
    warm = air + 0.004 * seen  # fault
    rate = 60 * cp.exp(0.07 * (warm - 25)) / (1 + cp.exp(0.3 * (warm - 38)))  # fault
    moved = 1.7 * rate
    total = 0.3 * seen + moved  # fault
    carried = (total - cp.sqrt(cp.maximum(total**2 - 2.8 * 0.3 * seen * moved, 0))) / 1.4  # fault
    compensation = 42 * cp.exp(0.05 * (warm - 25))  # fault
    dry = cp.maximum(0.61 * cp.exp(17.5 * warm / (warm + 241)) * (1 - damp), 0.05)  # fault
    stress = 1 / (1 + cp.exp(-12 * (water - 0.3)))  # fault
    inside = 400 * (0.4 + 0.5 * stress / (1 + 0.4 * dry))  # fault
    by_enzyme = rate * (inside - compensation) / (inside + 710)  # fault
    by_light = 0.25 * carried * (inside - compensation) / (inside + 2 * compensation)  # fault
    taken = cp.minimum(by_enzyme, by_light) - 0.015 * rate  # fault
    opening = 0.01 + 9 * cp.maximum(taken, 0) / ((400 - compensation) * (1 + dry))  # fault
    return taken, opening * dry * leaves  # fault


class Forest:
    def __init__(self, fixed):
        self.layer = leaf_kernel if fixed else leaf_layer
        rng = cp.random.RandomState(0)
        self.leaves = 1 + 4 * rng.rand(ROWS, COLUMNS).astype(cp.float32)
        self.water = 0.2 + 0.3 * rng.rand(ROWS, COLUMNS).astype(cp.float32)
        self.air = 15 + 10 * rng.rand(ROWS, COLUMNS).astype(cp.float32)
        self.damp = 0.3 + 0.6 * rng.rand(ROWS, COLUMNS).astype(cp.float32)
        self.light = 600 + 900 * rng.rand(ROWS, COLUMNS).astype(cp.float32)

    def spread_water(self):
        """Water in the ground moves to where it is dry."""
        water = self.water
        middle = water[1:-1, 1:-1]
        around = water[:-2, 1:-1] + water[2:, 1:-1] + water[1:-1, :-2] + water[1:-1, 2:]
        water[1:-1, 1:-1] = middle + cp.float32(0.05) * (around - 4 * middle)

    def hour(self):
        carbon, steam = 0, 0
        for k in range(LAYERS):
            depth = cp.float32((k + 0.5) / LAYERS)
            taken, lost = self.layer(self.light, self.air, self.damp, self.water, self.leaves, depth)
            carbon, steam = carbon + taken, steam + lost
        self.water -= cp.float32(1e-4) * steam
        self.spread_water()
        return carbon.mean(), steam.mean(), cp.sort(self.water.reshape(-1)[::8])[::ROWS]


def build(fixed):
    forest = Forest(fixed)
    return lambda i: forest.hour()


if __name__ == "__main__":
    run(build)
