"""Recognises shapes of vessels scanned as points, by convolutions over the edges of their neighbourhoods."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()

VESSELS, POINTS, NEAR = size(16, 2), size(2048, 48), size(20, 4)
WIDTHS, SHAPES = (size(64, 8), size(64, 8), size(128, 8)), 40


def distances(x):
    squares = x.square().sum(-1)
    return squares[:, :, None] + squares[:, None] - 2 * x @ x.transpose(1, 2)


class EdgeConv(nn.Module):
    """The largest, over a point's neighbours in the space of features, of a function of the edge."""

    def __init__(self, inputs, outputs, fixed):
        super().__init__()
        self.fixed = fixed
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)
        self.norm = nn.LayerNorm(outputs)

    def neighbours(self, x):
        with torch.no_grad():
            apart = distances(x.float())
            if self.fixed:
                return apart.topk(NEAR + 1, largest=False).indices[:, :, 1:]
            return apart.argsort(dim=-1)[:, :, 1 : NEAR + 1]  # fault

    def forward(self, x):
        near = self.neighbours(x)
        other = self.other(x)
        flat = near.flatten(1)[..., None].expand(-1, -1, other.shape[-1])
        edges = other.gather(1, flat).unflatten(1, near.shape[1:]).amax(2)
        return F.leaky_relu(self.norm(self.own(x) + edges), 0.2)


class VesselNet(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        inputs = (3, *WIDTHS[:-1])
        self.convs = nn.ModuleList(EdgeConv(a, b, fixed) for a, b in zip(inputs, WIDTHS, strict=True))
        self.mix = nn.Linear(sum(WIDTHS), 8 * WIDTHS[-1])
        self.head = nn.Sequential(
            nn.Linear(8 * WIDTHS[-1], 4 * WIDTHS[-1]), nn.LeakyReLU(0.2), nn.Linear(4 * WIDTHS[-1], SHAPES)
        )

    def forward(self, points):
        x, levels = points, []
        for conv in self.convs:
            x = conv(x)
            levels.append(x)
        return self.head(F.leaky_relu(self.mix(torch.cat(levels, -1)), 0.2).amax(1))


def build(fixed):
    torch.manual_seed(0)
    model = VesselNet(fixed).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    points = torch.randn(VESSELS, POINTS, 3, device=DEVICE)
    points = points / points.norm(dim=-1, keepdim=True) * (1 + 0.2 * points.sin())
    shapes = torch.randint(0, SHAPES, (VESSELS,), device=DEVICE)

    def step(i):
        loss = F.cross_entropy(model(points), shapes, label_smoothing=0.2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
