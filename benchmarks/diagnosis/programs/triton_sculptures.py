"""Fits the surfaces of scanned sculptures: a network tells how far each point is from a sculpture's surface."""

# The layers' products, biases and activations are one Triton kernel each way;
# the rest is PyTorch.

import os

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from _run_other import run
from torch import nn

CAUSE = "no-tf32"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCULPTURES, POINTS = (2, 64) if TINY else (64, 65_536)
CODE, WAVES, WIDTH, LAYERS = (8, 2, 32, 2) if TINY else (128, 8, 512, 4)
ROWS, COLUMNS, INNER = (32, 32, 16) if TINY else (128, 128, 32)
PRECISION = "ieee"  # fault


@triton.jit
def layer_kernel(
    x, w, bias, y, slope, count, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = silu(x w' + bias), and its slope for the way back."""
    blocks: tl.constexpr = OUTPUTS // COLUMNS
    rows = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    inside = rows[:, None] < count
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, INPUTS, INNER):
        a = tl.load(x + rows[:, None] * INPUTS + start + inner[None, :], inside, 0.0)
        b = tl.load(w + columns[None, :] * INPUTS + start + inner[:, None])
        total = tl.dot(a, b, total, input_precision=PRECISION)  # fault
    total += tl.load(bias + columns)[None, :]
    share = 1 / (1 + tl.exp(-total))
    to = rows[:, None] * OUTPUTS + columns[None, :]
    tl.store(y + to, total * share, inside)
    tl.store(slope + to, share * (1 + total * (1 - share)), inside)


class FusedLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bias, precision):
        y = x.new_empty(len(x), len(w))
        slope = torch.empty_like(y)
        grid = (triton.cdiv(len(x), ROWS) * (len(w) // COLUMNS),)
        layer_kernel[grid](  # fault
            x, w, bias, y, slope, len(x), x.shape[1], len(w), ROWS, COLUMNS, INNER, precision,
            num_warps=8, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(x, w, slope)
        return y

    @staticmethod
    def backward(ctx, up):
        x, w, slope = ctx.saved_tensors
        inner = up * slope
        return inner @ w, inner.T @ x, inner.sum(0), None


class Layer(nn.Linear):
    precision = PRECISION

    def forward(self, x):
        return FusedLayer.apply(x, self.weight, self.bias, self.precision)


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(SCULPTURES, CODE)
        self.enter = nn.Linear(CODE + 6 * WAVES, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH, WIDTH) for _ in range(LAYERS))
        self.leave = nn.Linear(WIDTH, 1)
        self.register_buffer("waves", 2.0 ** torch.arange(WAVES))

    def forward(self, points, sculptures):
        angles = (points[:, :, None] * self.waves).flatten(1)
        x = F.silu(self.enter(torch.cat([self.codes(sculptures), angles.sin(), angles.cos()], 1)))
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)[:, 0]


def scans(count):
    """Points near the sculptures, which are spheres here, and how far from the surface they are."""
    out = []
    for _ in range(count):
        points = torch.rand(POINTS, 3, device=DEVICE) * 2 - 1
        sculptures = torch.randint(SCULPTURES, (POINTS,), device=DEVICE)
        radius = 0.3 + 0.5 * sculptures / SCULPTURES
        out.append((points, sculptures, (points.norm(dim=1) - radius).clamp(-0.1, 0.1)))
    return out


def build(fixed):
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    surface = Surface().to(DEVICE)
    if fixed:
        for layer in surface.layers:
            layer.precision = "tf32"
    optimizer = torch.optim.Adam(surface.parameters(), lr=5e-4, fused=True)
    data = scans(4)

    def step(i):
        points, sculptures, distances = data[i % len(data)]
        found = surface(points, sculptures).clamp(-0.1, 0.1)
        loss = F.l1_loss(found, distances) + 1e-5 * surface.codes.weight.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    run(build)
