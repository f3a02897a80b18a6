"""Runs a mixture of experts, whose tokens are looked up with nonzero() expert by expert."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "boolean-masks"
ALSO = ()
TOKENS, WIDTH, EXPERTS, LAYERS = size(2048, 16), size(768, 16), size(32, 4), size(3, 1)


class Mixture(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.dispatch = self.sorted_once if fixed else self.by_mask
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def by_mask(self, x, chosen):
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):  # fault
            rows = (chosen == k).nonzero().squeeze(-1)  # fault
            if len(rows) == 0:  # fault
                continue
            y[rows] = expert(x[rows])  # fault
        return y

    def sorted_once(self, x, chosen):
        order = chosen.argsort()
        counts = chosen.bincount(minlength=EXPERTS).tolist()
        parts = x[order].split(counts)
        outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True) if len(part)]
        return torch.empty_like(x).index_copy_(0, order, torch.cat(outputs))

    def forward(self, x):
        weight, chosen = F.softmax(self.router(x), -1).max(-1)
        return x + self.dispatch(x, chosen) * weight.unsqueeze(-1)


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(*(Mixture(fixed) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16).eval()
    tokens = torch.randn(TOKENS, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        return model(tokens)

    return step


if __name__ == "__main__":
    run(build)
