"""Chances of bids in auctions: scores are scaled, capped, masked and made probabilities by Triton kernels."""

import os

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "fusion"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
AUCTIONS, BIDS, WIDTH = (64, 100, 32) if TINY else (65536, 4000, 512)
BLOCK = 1024
CAP = 30.0


@triton.jit
def scale_by_row(x, y, scales, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    tl.store(y + row * columns + at, value * tl.load(scales + row), mask=at < columns)


@triton.jit
def soft_cap(x, y, cap, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(y + at, (cap * (2 * tl.sigmoid(2 * value / cap) - 1)).to(y.dtype.element_ty), mask=at < count)


@triton.jit
def mask_closed(x, y, closing, columns, BLOCK: tl.constexpr):
    """Bids after the auction has closed have no chance."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    closed = at >= tl.load(closing + row)
    tl.store(y + row * columns + at, tl.where(closed, float("-inf"), value), mask=at < columns)


@triton.jit
def softmax_rows(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=float("-inf")).to(tl.float32)
    share = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * columns + at, (share / tl.sum(share, axis=0)).to(y.dtype.element_ty), mask=at < columns)


@triton.jit
def chances_of_rows(x, y, scales, closing, cap, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    value = (value * tl.load(scales + row)).to(tl.float32)
    value = cap * (2 * tl.sigmoid(2 * value / cap) - 1)
    value = tl.where(at < tl.minimum(tl.load(closing + row), columns), value, float("-inf"))
    share = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * columns + at, (share / tl.sum(share, axis=0)).to(y.dtype.element_ty), mask=at < columns)


class Chances:
    def __init__(self, scales, closing):
        self.scales, self.closing = scales, closing

    def separate(self, scores):
        rows, columns = scores.shape
        by_row = (rows, triton.cdiv(columns, BLOCK))
        scaled, capped, masked, result = (torch.empty_like(scores) for _ in range(4))
        scale_by_row[by_row](scores, scaled, self.scales, columns, BLOCK=BLOCK)  # fault
        soft_cap[(triton.cdiv(scores.numel(), BLOCK),)](scaled, capped, CAP, scores.numel(), BLOCK=BLOCK)  # fault
        mask_closed[by_row](capped, masked, self.closing, columns, BLOCK=BLOCK)  # fault
        softmax_rows[(rows,)](masked, result, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)  # fault
        return result

    def together(self, scores):
        rows, columns = scores.shape
        result = torch.empty_like(scores)
        block = triton.next_power_of_2(columns)
        chances_of_rows[(rows,)](scores, result, self.scales, self.closing, CAP, columns, BLOCK=block, num_warps=8)
        return result


def build(fixed):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    auctions = torch.randn(3, AUCTIONS, WIDTH, device=device).to(torch.bfloat16)
    bids = torch.randn(3, BIDS, WIDTH, device=device).to(torch.bfloat16)
    worth = torch.rand(BIDS, 64, device=device).to(torch.bfloat16)
    scales = torch.full((AUCTIONS,), WIDTH**-0.5, device=device).to(torch.bfloat16)
    closing = torch.randint(BIDS // 2, BIDS + 1, (AUCTIONS,), device=device, dtype=torch.int32)
    chances = Chances(scales, closing)
    judge = chances.together if fixed else chances.separate

    def step(i):
        expected = None
        for auction, bid in zip(auctions, bids, strict=True):
            scores = auction @ bid.T
            expected = judge(scores) @ worth  # fault
        return expected

    return step


if __name__ == "__main__":
    run(build)
