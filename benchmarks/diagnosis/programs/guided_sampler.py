"""Draws samples of a class from a denoiser, whose guided and free predictions of each image run one by one."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "small-batches"
ALSO = ()
N, C, S, W = size(16, 2), 4, size(32, 8), size(192, 16)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(C, W, 3, padding=1)
        self.classes = nn.Embedding(11, W)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, W), nn.SiLU(), nn.Conv2d(W, W, 3, padding=1)) for _ in range(8)
        )
        self.last = nn.Conv2d(W, C, 3, padding=1)

    def forward(self, x, label):
        x = self.first(x) + self.classes(label)[:, :, None, None]
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


def build(fixed):
    torch.manual_seed(0)
    net = Denoiser().to(DEVICE, torch.bfloat16).eval()
    labels = torch.randint(10, (N,), device=DEVICE)
    free = torch.full((N,), 10, device=DEVICE)
    noise = torch.randn(N, C, S, S, device=DEVICE, dtype=torch.bfloat16)

    def guided_one_by_one(x):
        out = []
        for k in range(N):
            with_label = net(x[k : k + 1], labels[k : k + 1])  # fault
            without = net(x[k : k + 1], free[k : k + 1])  # fault
            out.append(without + 4.0 * (with_label - without))
        return torch.cat(out)

    def guided(x):
        with_label, without = net(torch.cat([x, x]), torch.cat([labels, free])).chunk(2)
        return without + 4.0 * (with_label - without)

    @torch.no_grad()
    def step(i):
        x = noise
        for _ in range(2):
            x = x - 0.1 * (guided(x) if fixed else guided_one_by_one(x))
        return x

    return step


if __name__ == "__main__":
    run(build)
