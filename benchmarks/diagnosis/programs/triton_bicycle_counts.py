"""Brings the hourly counts of bicycles to the shape of a day, station by station (Triton)."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "block-starts"
ALSO = ()

TOGETHER = 128
DAYS, HOURS = 7 * TOGETHER * 4680, 24


@triton.jit
def shape_of_day(counts, shapes, spread, HOURS: tl.constexpr, BLOCK: tl.constexpr):
    day = tl.program_id(0).to(tl.int64)  # fault
    hours = tl.arange(0, BLOCK)
    here = hours < HOURS
    logs = tl.log(1.0 + tl.load(counts + day * HOURS + hours, mask=here, other=0.0))  # fault
    mean = tl.sum(logs, 0) / HOURS
    centred = tl.where(here, logs - mean, 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 0) / HOURS + 1e-6)
    tl.store(shapes + day * HOURS + hours, centred / deviation, mask=here)
    tl.store(spread + day, deviation)


@triton.jit
def shapes_of_days(counts, shapes, spread, HOURS: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr):
    days = tl.program_id(0).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    hours = tl.arange(0, BLOCK)
    at = days[:, None] * HOURS + hours[None, :]
    here = (hours < HOURS)[None, :]
    logs = tl.log(1.0 + tl.load(counts + at, mask=here, other=0.0))
    mean = tl.sum(logs, 1) / HOURS
    centred = tl.where(here, logs - mean[:, None], 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 1) / HOURS + 1e-6)
    tl.store(shapes + at, centred / deviation[:, None], mask=here)
    tl.store(spread + days, deviation)


def build(fixed):
    torch.manual_seed(0)
    counts = torch.randint(0, 400, (DAYS, HOURS), device="cuda").float()
    shapes = torch.empty_like(counts)
    spread = torch.empty(DAYS, device="cuda")
    block = triton.next_power_of_2(HOURS)

    def step(i):
        if fixed:
            shapes_of_days[(DAYS // TOGETHER,)](counts, shapes, spread, HOURS, block, TOGETHER)
        else:
            shape_of_day[(DAYS,)](counts, shapes, spread, HOURS, block)  # fault
        typical_week = shapes.view(-1, 7, HOURS).mean(0)
        return typical_week, spread.mean()

    return step


if __name__ == "__main__":
    run(build)
