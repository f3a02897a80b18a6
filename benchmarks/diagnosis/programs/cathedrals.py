"""Labels the points of laser scans of buildings with a dynamic graph network."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()
SCANS, POINTS, NEAR = size(8, 2), size(4096, 32), size(20, 4)
WIDTHS = (size(64, 8), size(64, 8), size(128, 8))
PARTS = 24


def knn(x, k, fixed):
    """Indices of the k nearest points of each, in the space of features."""
    norms = x.square().sum(-1)
    distances = norms[:, :, None] - 2 * x @ x.transpose(1, 2) + norms[:, None]
    if fixed:
        return distances.topk(k, dim=-1, largest=False).indices
    return distances.argsort(dim=-1)[:, :, :k]  # fault


class EdgeConv(nn.Module):
    def __init__(self, inputs, outputs, fixed):
        super().__init__()
        self.fixed = fixed
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)
        self.norm = nn.LayerNorm(outputs)
        self.mix = nn.Linear(outputs, outputs)

    def forward(self, x):
        near = knn(x, NEAR, self.fixed)
        scan = torch.arange(len(x), device=x.device)[:, None, None]
        edges = self.own(x)[:, :, None] + self.other(x)[scan, near]
        edges = self.mix(torch.relu(self.norm(edges)))
        return edges.amax(2)


class PartSegmenter(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        inputs = (3, *WIDTHS[:-1])
        self.layers = nn.ModuleList(EdgeConv(n, m, fixed) for n, m in zip(inputs, WIDTHS, strict=True))
        total = sum(WIDTHS)
        self.whole = nn.Linear(total, size(1024, 16))
        self.head = nn.Sequential(
            nn.Linear(total + size(1024, 16), size(512, 16)),
            nn.ReLU(),
            nn.Linear(size(512, 16), size(256, 16)),
            nn.ReLU(),
            nn.Linear(size(256, 16), PARTS),
        )

    def forward(self, points):
        x, found = points, []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        x = torch.cat(found, -1)
        whole = self.whole(x).amax(1, keepdim=True).expand(-1, x.shape[1], -1)
        return self.head(torch.cat([x, whole], -1))


def build(fixed):
    torch.manual_seed(0)
    model = PartSegmenter(fixed).to(DEVICE).eval()
    scans = torch.randn(4, SCANS, POINTS, 3, device=DEVICE)
    counts = torch.zeros(PARTS, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        points = scans[i % len(scans)]
        points = points - points.mean(1, keepdim=True)
        logits = model(points / points.norm(dim=-1).amax(1)[:, None, None])
        counts.add_(logits.softmax(-1).sum((0, 1)))
        return logits

    return step


if __name__ == "__main__":
    run(build)
