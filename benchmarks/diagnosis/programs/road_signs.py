"""Trains a capsule network (dynamic routing, Sabour et al.) to read road signs."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "expanded-products"
ALSO = ()

PICTURES, SIDE, SIGNS = size(96, 3), size(28, 20), size(43, 4)
FILTERS, KINDS, PRIMARY, DIGIT = size(256, 8), size(16, 2), 8, 16
ROUNDS = 3


def squash(x, dim=-1):
    square = x.square().sum(dim, keepdim=True)
    return square / (1 + square) * x * torch.rsqrt(square + 1e-8)


class PrimaryCapsules(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(FILTERS, KINDS * PRIMARY, 9, stride=2)

    def forward(self, x):
        x = self.convolution(x)
        x = x.unflatten(1, (KINDS, PRIMARY)).permute(0, 1, 3, 4, 2)
        return squash(x.flatten(1, 3))


class SignCapsules(nn.Module):
    """Each capsule below predicts each capsule above by a matrix of its own; agreement decides what goes where."""

    def __init__(self, below, at_once):
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(below, SIGNS, DIGIT, PRIMARY))
        self.at_once = at_once

    def predictions(self, u):
        """[pictures, below, signs, 16] of capsules [pictures, below, 8]."""
        if self.at_once:
            return torch.einsum("bnp,nsdp->bnsd", u, self.weight)
        return torch.matmul(self.weight, u[:, :, None, :, None]).squeeze(-1)  # fault

    def forward(self, u):
        votes = self.predictions(u)  # fault
        fixed_votes = votes.detach()
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(ROUNDS - 1):
            v = squash(torch.einsum("bns,bnsd->bsd", logits.softmax(2), fixed_votes))
            logits = logits + torch.einsum("bnsd,bsd->bns", fixed_votes, v)
        return squash(torch.einsum("bns,bnsd->bsd", logits.softmax(2), votes))


class CapsuleNet(nn.Module):
    def __init__(self, at_once):
        super().__init__()
        self.enter = nn.Conv2d(3, FILTERS, 9)
        self.primary = PrimaryCapsules()
        cells = ((SIDE - 8 - 9) // 2 + 1) ** 2
        self.signs = SignCapsules(KINDS * cells, at_once)
        self.decoder = nn.Sequential(
            nn.Linear(SIGNS * DIGIT, 512), nn.ReLU(), nn.Linear(512, 3 * SIDE * SIDE), nn.Sigmoid()
        )

    def forward(self, pictures, signs):
        x = F.relu(self.enter(pictures))
        v = self.signs(self.primary(x))
        only = v * F.one_hot(signs, SIGNS)[..., None]
        return v.norm(dim=2), self.decoder(only.flatten(1)).view_as(pictures)


def margin_loss(lengths, signs, up=0.9, down=0.1, share=0.5):
    present = F.one_hot(signs, SIGNS)
    losses = present * F.relu(up - lengths) ** 2 + share * (1 - present) * F.relu(lengths - down) ** 2
    return losses.sum(1).mean()


def build(fixed):
    torch.manual_seed(0)
    model = CapsuleNet(at_once=bool(fixed)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    pictures = torch.rand(3, PICTURES, 3, SIDE, SIDE, device=DEVICE)
    signs = torch.randint(SIGNS, (3, PICTURES), device=DEVICE)

    def step(i):
        lengths, pictured = model(pictures[i % 3], signs[i % 3])
        loss = margin_loss(lengths, signs[i % 3]) + 0.392 * F.mse_loss(pictured, pictures[i % 3])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
