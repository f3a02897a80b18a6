"""Goes back through a stack of layer norms, with gradients of their scales and shifts, in a Triton kernel."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "scatter-atomics"
ALSO = ()

TOKENS, WIDTH, LAYERS = 49_152, 1024, 10
PROGRAMS = 1056


@triton.jit
def input_gradient(x, dy, weight, mean, inverse, WIDTH: tl.constexpr):
    normal = (x - mean) * inverse
    scaled = weight * dy
    along = tl.sum(normal * scaled, axis=0) / WIDTH
    level = tl.sum(scaled, axis=0) / WIDTH
    return normal, (scaled - normal * along - level) * inverse


@triton.jit
def backward_of_row(x, dy, dx, weight, means, inverses, dweight, dbias, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    at = row.to(tl.int64) * WIDTH + columns
    gradient = tl.load(dy + at).to(tl.float32)
    values = tl.load(x + at).to(tl.float32)
    scale = tl.load(weight + columns)
    normal, result = input_gradient(values, gradient, scale, tl.load(means + row), tl.load(inverses + row), WIDTH)
    tl.store(dx + at, result.to(dx.dtype.element_ty))
    tl.atomic_add(dweight + columns, gradient * normal)  # fault
    tl.atomic_add(dbias + columns, gradient)  # fault


@triton.jit
def backward_of_rows(x, dy, dx, weight, means, inverses, dweights, dbiases, rows, WIDTH: tl.constexpr):
    program = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    scale = tl.load(weight + columns)
    to_weight = tl.zeros([WIDTH], tl.float32)
    to_bias = tl.zeros([WIDTH], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * WIDTH + columns
        gradient = tl.load(dy + at).to(tl.float32)
        values = tl.load(x + at).to(tl.float32)
        normal, result = input_gradient(values, gradient, scale, tl.load(means + row), tl.load(inverses + row), WIDTH)
        tl.store(dx + at, result.to(dx.dtype.element_ty))
        to_weight += gradient * normal
        to_bias += gradient
    tl.store(dweights + program * WIDTH + columns, to_weight)
    tl.store(dbiases + program * WIDTH + columns, to_bias)


class Norm:
    def __init__(self):
        self.x = torch.randn(TOKENS, WIDTH, device="cuda").to(torch.bfloat16)
        self.weight = torch.ones(WIDTH, device="cuda")
        self.means = self.x.float().mean(1)
        self.inverses = torch.rsqrt(self.x.float().var(1, unbiased=False) + 1e-5)
        self.dweight = torch.zeros(WIDTH, device="cuda")
        self.dbias = torch.zeros(WIDTH, device="cuda")

    def backward(self, dy, dx):
        self.dweight.zero_()
        self.dbias.zero_()
        backward_of_row[(TOKENS,)](  # fault
            self.x, dy, dx, self.weight, self.means, self.inverses, self.dweight, self.dbias, WIDTH=WIDTH, num_warps=4
        )

    def backward_in_parts(self, dy, dx, parts):
        backward_of_rows[(PROGRAMS,)](
            self.x, dy, dx, self.weight, self.means, self.inverses, parts[0], parts[1], TOKENS, WIDTH=WIDTH, num_warps=4
        )
        torch.sum(parts[0], 0, out=self.dweight)
        torch.sum(parts[1], 0, out=self.dbias)


def build(fixed):
    torch.manual_seed(0)
    norms = [Norm() for _ in range(LAYERS)]
    top = torch.randn(TOKENS, WIDTH, device="cuda").to(torch.bfloat16)
    gradients = [torch.empty_like(top) for _ in range(2)]
    parts = torch.empty(2, PROGRAMS, WIDTH, device="cuda")

    def step(i):
        dy = top
        for layer, norm in enumerate(reversed(norms)):
            dx = gradients[layer % 2]
            if fixed:
                norm.backward_in_parts(dy, dx, parts)
            else:
                norm.backward(dy, dx)  # fault
            dy = dx
        return dy

    return step


if __name__ == "__main__":
    run(build)
