"""Matches shoe prints with soles: two encoders and a bank of earlier soles, of which the nearest are negatives."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()
BATCH, BANK, HARD = size(256, 4), size(65_536, 64), size(64, 8)
SIDE, C, D = size(64, 16), size(48, 4), size(256, 8)


def stage(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(stage(1, C), stage(C, 2 * C), stage(2 * C, 4 * C), stage(4 * C, 8 * C))
        self.head = nn.Linear(8 * C, D)

    def forward(self, pictures):
        return F.normalize(self.head(self.body(pictures).mean((2, 3))).float(), dim=1)


class Bank:
    """The newest soles, in a ring."""

    def __init__(self, *, partial):
        self.partial = partial
        self.soles = F.normalize(torch.randn(BANK, D, device=DEVICE), dim=1)
        self.next = 0

    def hardest(self, prints):
        likeness = prints @ self.soles.T
        if self.partial:
            return likeness.topk(HARD, dim=1).values
        ranked, _ = likeness.sort(dim=1, descending=True)  # fault
        return ranked[:, :HARD]

    def keep(self, soles):
        self.soles[self.next : self.next + len(soles)] = soles
        self.next = (self.next + len(soles)) % BANK


def build(fixed):
    torch.manual_seed(0)
    print_encoder, sole_encoder = (Encoder().to(DEVICE, memory_format=torch.channels_last) for _ in range(2))
    weights = [*print_encoder.parameters(), *sole_encoder.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.03, momentum=0.9, weight_decay=1e-4, fused=True)
    bank = Bank(partial=fixed)
    pairs = torch.randn(4, 2, BATCH, 1, SIDE, SIDE, device=DEVICE)
    right = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)

    def step(i):
        prints, soles = pairs[i % len(pairs)]
        with torch.autocast(DEVICE, torch.bfloat16):
            prints, soles = print_encoder(prints), sole_encoder(soles)
        same = (prints * soles).sum(1, keepdim=True)
        scores = torch.cat((same, bank.hardest(prints)), 1)
        loss = F.cross_entropy(scores / 0.07, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank.keep(soles.detach())
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
