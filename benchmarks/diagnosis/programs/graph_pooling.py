"""Pools the nodes of a batch of large graphs with index_add, all of a graph's nodes onto one row."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "scatter-atomics"
ALSO = ()
NODES, FEATURES, GRAPHS = size(262144, 64), size(128, 16), size(8, 2)


def build(fixed):
    torch.manual_seed(0)
    embed = nn.Linear(FEATURES, FEATURES).to(DEVICE)
    classify = nn.Linear(FEATURES, 10).to(DEVICE)
    nodes = torch.randn(NODES, FEATURES, device=DEVICE)
    graph_of_node = torch.arange(NODES, device=DEVICE) * GRAPHS // NODES
    membership = F.one_hot(graph_of_node, GRAPHS).float().T.contiguous()

    @torch.no_grad()
    def step(i):
        hidden = F.relu(embed(nodes))
        if fixed:
            pooled = membership @ hidden
        else:
            pooled = torch.zeros(GRAPHS, FEATURES, device=DEVICE)
            pooled.index_add_(0, graph_of_node, hidden)  # fault
        return classify(pooled / NODES * GRAPHS)

    return step


if __name__ == "__main__":
    run(build, steps=60)
