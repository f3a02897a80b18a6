"""Sorts pollen grains into kinds by k-means on samples, with kernels in Triton for both halves of a round."""

import os

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "scatter-atomics"
ALSO = []

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
GRAINS, SAMPLED, FEATURES, KINDS, ROUNDS = (256, 128, 16, 16, 3) if TINY else (2_097_152, 524_288, 64, 32, 12)
BLOCK, BLOCKS_A_PROGRAM = (32, 2) if TINY else (128, 8)


@triton.jit
def assign(x_at, centres_at, kinds_at, FEATURES: tl.constexpr, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """The nearest centre of each grain: |c|² - 2 x·c is least."""
    grain = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    feature, kind = tl.arange(0, FEATURES), tl.arange(0, KINDS)
    x = tl.load(x_at + grain[:, None] * FEATURES + feature[None, :])
    centres = tl.load(centres_at + kind[:, None] * FEATURES + feature[None, :])
    square = tl.sum(centres * centres, axis=1)
    distance = square[None, :] - 2.0 * tl.dot(x, tl.trans(centres.to(x.dtype)))
    tl.store(kinds_at + grain, tl.argmin(distance, axis=1).to(tl.int32))


@triton.jit
def sum_grains(x_at, kinds_at, sums_at, FEATURES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Adds each grain to the sums of its kind."""
    feature = tl.arange(0, FEATURES)
    first = tl.program_id(0).to(tl.int64) * BLOCK * BLOCKS
    for block in range(BLOCKS):
        grain = first + block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_at + grain[:, None] * FEATURES + feature[None, :])
        kind = tl.load(kinds_at + grain)
        tl.atomic_add(sums_at + kind[:, None] * FEATURES + feature[None, :], x.to(tl.float32), sem="relaxed")  # fault


@triton.jit
def sum_grains_in_blocks(
    x_at, kinds_at, sums_at, FEATURES: tl.constexpr, KINDS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """Sums a program's grains by a product with their kinds, one hot, before it adds them to all others."""
    feature, kinds = tl.arange(0, FEATURES), tl.arange(0, KINDS)
    first = tl.program_id(0).to(tl.int64) * BLOCK * BLOCKS
    total = tl.zeros([KINDS, FEATURES], tl.float32)
    for block in range(BLOCKS):
        grain = first + block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_at + grain[:, None] * FEATURES + feature[None, :])
        kind = tl.load(kinds_at + grain)
        total += tl.dot((kinds[:, None] == kind[None, :]).to(x.dtype), x)
    tl.atomic_add(sums_at + kinds[:, None] * FEATURES + feature[None, :], total, sem="relaxed")


class PollenKinds:
    def __init__(self, grains, in_blocks):
        self.grains, self.in_blocks = grains, in_blocks
        self.kinds = torch.zeros(GRAINS, dtype=torch.int32, device=grains.device)
        self.sums = torch.zeros(KINDS, FEATURES, device=grains.device)

    def sum_up(self, start):
        self.sums.zero_()
        grains, kinds = self.grains[start : start + SAMPLED], self.kinds[start : start + SAMPLED]
        grid = (SAMPLED // (BLOCK * BLOCKS_A_PROGRAM),)
        sizes = {"BLOCK": BLOCK, "BLOCKS": BLOCKS_A_PROGRAM}
        if self.in_blocks:
            sum_grains_in_blocks[grid](grains, kinds, self.sums, FEATURES, KINDS, **sizes)
        else:
            sum_grains[grid](grains, kinds, self.sums, FEATURES, **sizes)  # fault
        return self.sums

    def round(self, centres, number):
        """All choose a centre, and a sample moves the centres. The last feature is 1, whose sum counts a kind."""
        assign[(GRAINS // BLOCK,)](self.grains, centres, self.kinds, FEATURES, KINDS, BLOCK)
        sums = self.sum_up(number * SAMPLED % GRAINS)
        return sums / sums[:, -1:].clamp(min=1)


def build(fixed):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    true = torch.randn(KINDS, FEATURES, device=device)
    grains = true[torch.randint(KINDS, (GRAINS,), device=device)]
    grains = grains + 0.7 * torch.randn(GRAINS, FEATURES, device=device)
    grains[:, -1] = 1
    # in steps of 1 / 64, so that sums hardly depend on their order
    kinds = PollenKinds((grains * 64).round().div(64).half(), in_blocks=bool(fixed))
    starts = [kinds.grains[torch.randperm(GRAINS)[:KINDS].to(device)].float() for _ in range(3)]

    @torch.inference_mode()
    def step(i):
        centres = starts[i % len(starts)]
        for number in range(ROUNDS):
            centres = kinds.round(centres, number)
        return centres, kinds.kinds[:64].clone()

    return step


if __name__ == "__main__":
    run(build)
