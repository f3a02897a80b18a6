"""Trains a graph network on the wells of an aquifer that predicts their levels in the next season."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
WELLS, NEAR, FIELDS, WIDTH, LAYERS = size(65536, 40), size(8, 3), size(32, 4), size(256, 8), size(4, 2)


def normalised(reach):
    """The symmetric, normalised graph of each well and those near it, as CSR."""
    rows = torch.arange(WELLS).repeat_interleave(NEAR)
    columns = (rows + torch.randint(1, reach, (len(rows),))) % WELLS
    own = torch.arange(WELLS)
    places = torch.stack((torch.cat((rows, columns, own)), torch.cat((columns, rows, own))))
    graph = torch.sparse_coo_tensor(places, torch.ones(places.shape[1]), (WELLS, WELLS)).coalesce()
    places = graph.indices()
    degree = torch.zeros(WELLS).index_add_(0, places[0], torch.ones(places.shape[1])).rsqrt()
    values = degree[places[0]] * degree[places[1]]
    return torch.sparse_coo_tensor(places, values, (WELLS, WELLS)).coalesce().to_sparse_csr()


class Spread(torch.autograd.Function):
    """A product with a symmetric graph, which is its own transpose."""

    @staticmethod
    def forward(ctx, graph, x):
        ctx.graph = graph
        return graph @ x

    @staticmethod
    def backward(ctx, slope):
        return None, ctx.graph @ slope.contiguous()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x, graph):
        return x + self.narrow(F.gelu(self.wide(Spread.apply(graph, self.norm(x)))))


class Levels(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(FIELDS, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x, graph):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, graph)
        return self.leave(x)[:, 0]


def build(fixed):
    torch.manual_seed(0)
    graph = normalised(size(64, 5)).to(DEVICE)
    model = Levels().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    wells, levels = torch.randn(WELLS, FIELDS, device=DEVICE), torch.randn(WELLS, device=DEVICE)
    known = (torch.rand(WELLS, device=DEVICE) < 0.7).float()

    def step(i):
        errors = F.huber_loss(model(wells, graph), levels, reduction="none")
        loss = (errors * known).sum() / known.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
