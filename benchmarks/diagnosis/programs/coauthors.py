"""Trains a graph convolutional network (GCN) that tells fields of science of authors by whom they write with."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "product-order"
ALSO = ()

AUTHORS, PAPERS, WORDS, FIELDS = size(120000, 40), size(1200000, 90), size(768, 12), size(40, 4)
HIDDEN, DROPOUT = size(64, 5), 0.5


class Neighbours(torch.autograd.Function):
    """Weighted sums over neighbours, by a sparse matrix that is symmetric."""

    @staticmethod
    def forward(context, x, graph):
        context.graph = graph
        return graph @ x

    @staticmethod
    def backward(context, gradient):
        return context.graph @ gradient, None


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs, narrow_first):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.narrow_first = narrow_first

    def forward(self, x, graph):
        if self.narrow_first:
            return Neighbours.apply(self.linear(x), graph) + self.bias
        return self.linear(Neighbours.apply(x, graph)) + self.bias  # fault


def make_graph():
    """D^-1/2 (A + I) D^-1/2."""
    one, other = torch.randint(AUTHORS, (2, PAPERS))
    loops = torch.arange(AUTHORS)
    index = torch.stack([torch.cat([one, other, loops]), torch.cat([other, one, loops])])
    graph = torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (AUTHORS, AUTHORS)).coalesce()
    scale = torch.sparse.sum(graph, 1).to_dense().rsqrt()
    index = graph.indices()
    values = graph.values() * scale[index[0]] * scale[index[1]]
    return torch.sparse_coo_tensor(index, values, graph.shape).to_sparse_csr().to(DEVICE)


def build(fixed):
    torch.manual_seed(0)
    graph = make_graph()
    first = GraphConvolution(WORDS, HIDDEN, bool(fixed)).to(DEVICE)
    last = GraphConvolution(HIDDEN, FIELDS, narrow_first=True).to(DEVICE)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.01, weight_decay=5e-4, fused=True)
    abstracts = torch.randn(AUTHORS, WORDS, device=DEVICE)
    fields = torch.randint(FIELDS, (AUTHORS,), device=DEVICE)

    def step(i):
        h = F.relu(first(F.dropout(abstracts, DROPOUT), graph))  # fault
        loss = F.cross_entropy(last(F.dropout(h, DROPOUT), graph), fields)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
