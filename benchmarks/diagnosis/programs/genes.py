"""Pre-trains a transformer on expression profiles of single cells."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-attention"
ALSO = ()
GENES = size(20000, 200)
WIDTH, HEADS, LAYERS = size(768, 64), size(12, 4), size(6, 2)
CELLS, LENGTH = size(8, 2), size(2048, 16)
BINS = 64


class CellLayer(nn.Module):
    """A pre-norm layer; `weights` keeps what the notebook that draws attention maps asks of nn.MultiheadAttention."""

    def __init__(self, width, heads, weights):
        super().__init__()
        self.weights = weights
        self.norm_attention = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_hidden = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm_attention(x)
        if self.weights:
            y, _ = self.attention(y, y, y)  # fault
        else:
            y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.contract(F.gelu(self.expand(self.norm_hidden(x))))


class CellModel(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.genes = nn.Embedding(GENES, WIDTH)
        self.bins = nn.Embedding(BINS + 1, WIDTH)
        self.layers = nn.ModuleList(CellLayer(WIDTH, HEADS, weights) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.value = nn.Linear(WIDTH, BINS)

    def forward(self, genes, bins):
        x = self.genes(genes) + self.bins(bins)
        for layer in self.layers:
            x = layer(x)
        return self.value(self.norm(x))


class Cells:
    """Profiles of a few plates, kept on the GPU: which genes are expressed, and in which bin their counts are."""

    def __init__(self, count):
        self.genes = torch.randint(0, GENES, (count, LENGTH), device=DEVICE)
        self.bins = torch.randint(0, BINS, (count, LENGTH), device=DEVICE)
        self.masked = torch.rand(count, LENGTH, device=DEVICE) < 0.3
        self.inputs = torch.where(self.masked, BINS, self.bins)
        self.weight = self.masked.float() / self.masked.float().mean()

    def batch(self, i):
        start = i * CELLS % (len(self.genes) - CELLS + 1)
        part = slice(start, start + CELLS)
        return self.genes[part], self.inputs[part], self.bins[part], self.weight[part]


def check():
    """Both ways of asking give the same output."""
    layer = CellLayer(64, 4, True).to(DEVICE)
    x = torch.randn(2, 16, 64, device=DEVICE)
    with torch.no_grad():
        with_weights = layer(x)
        layer.weights = False
        layer.train()
        assert torch.allclose(with_weights, layer(x), atol=2e-3)  # noqa: S101 - of the program itself


def build(fixed):
    torch.manual_seed(0)
    check()
    model = CellModel(weights=not fixed).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    cells = Cells(4 * CELLS)

    def step(i):
        genes, inputs, bins, weight = cells.batch(i)
        values = model(genes, inputs)
        losses = F.cross_entropy(values.flatten(0, 1), bins.flatten(), reduction="none")
        loss = (losses * weight.flatten()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
