"""Runs layers for many tenants at once, whose own scales and shifts of the outputs a Triton kernel applies."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "host-grid-loop"
ALSO = ()

TENANTS, LONGEST, WIDTH, LAYERS = 128, 96, 4096, 4


@triton.jit
def adapt(x, scales, shifts, width, BLOCK: tl.constexpr):
    """A row a program, of one tenant: `scales` and `shifts` are the tenant's."""
    row = tl.program_id(0)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < width
        value = tl.load(x + row * width + at, mask=inside).to(tl.float32)
        scale = tl.load(scales + at, mask=inside).to(tl.float32)
        shift = tl.load(shifts + at, mask=inside).to(tl.float32)
        tl.store(x + row * width + at, (value * scale + shift).to(x.dtype.element_ty), mask=inside)


@triton.jit
def adapt_rows(x, scales, shifts, tenants, width, BLOCK: tl.constexpr):
    """A row a program, of any tenant: `tenants` has that of each row."""
    row = tl.program_id(0)
    tenant = tl.load(tenants + row)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < width
        value = tl.load(x + row * width + at, mask=inside).to(tl.float32)
        scale = tl.load(scales + tenant * width + at, mask=inside).to(tl.float32)
        shift = tl.load(shifts + tenant * width + at, mask=inside).to(tl.float32)
        tl.store(x + row * width + at, (value * scale + shift).to(x.dtype.element_ty), mask=inside)


class Layer:
    def __init__(self):
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.weight = torch.randn(WIDTH, WIDTH, **options) * WIDTH**-0.5
        self.scales = 1 + 0.1 * torch.randn(TENANTS, WIDTH, **options)
        self.shifts = 0.1 * torch.randn(TENANTS, WIDTH, **options)

    def tenant_by_tenant(self, x, starts):
        y = x @ self.weight
        for tenant in range(TENANTS):  # fault
            rows = y[starts[tenant] : starts[tenant + 1]]  # fault
            adapt[(len(rows),)](rows, self.scales[tenant], self.shifts[tenant], WIDTH, BLOCK=2048)  # fault
        return y

    def all_tenants(self, x, tenants):
        y = x @ self.weight
        adapt_rows[(len(y),)](y, self.scales, self.shifts, tenants, WIDTH, BLOCK=2048)
        return y


def build(fixed):
    torch.manual_seed(0)
    lengths = torch.randint(LONGEST // 2, LONGEST + 1, (TENANTS,))
    starts = [0, *lengths.cumsum(0).tolist()]
    tenants = torch.arange(TENANTS).repeat_interleave(lengths).to("cuda", torch.int32)
    layers = [Layer() for _ in range(LAYERS)]
    words = torch.randn(starts[-1], WIDTH, device="cuda", dtype=torch.bfloat16)

    def step(i):
        x = words
        for layer in layers:
            x = layer.all_tenants(x, tenants) if fixed else layer.tenant_by_tenant(x, starts)  # fault
        return x

    return step


if __name__ == "__main__":
    run(build)
