"""Trains a sparse dictionary of the concepts in a language model's activations: few of many features may speak."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()
ROWS, INPUTS, FEATURES, SPOKEN = size(4096, 8), size(1024, 12), size(16384, 64), size(48, 4)


class Dictionary(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.centre = nn.Parameter(torch.zeros(INPUTS))
        self.encode = nn.Linear(INPUTS, FEATURES)
        self.decode = nn.Linear(FEATURES, INPUTS, bias=False)
        with torch.no_grad():
            self.decode.weight.copy_(F.normalize(self.encode.weight.T, dim=0))

    def least(self, scores):
        """The score of the last of the features that speak."""
        if self.fixed:
            return scores.topk(SPOKEN, sorted=False).values.amin(-1, keepdim=True)
        ranked, _ = torch.sort(scores, dim=-1)  # fault
        return ranked[:, FEATURES - SPOKEN, None]

    def forward(self, x):
        scores = F.relu(self.encode(x - self.centre))
        with torch.no_grad():
            least = self.least(scores)  # fault
        spoken = scores * (scores >= least)
        return self.decode(spoken) + self.centre, spoken


def build(fixed):
    torch.manual_seed(0)
    model = Dictionary(fixed).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 2e-4, betas=(0.9, 0.999), fused=True)
    activations = torch.randn(4, ROWS, INPUTS, device=DEVICE)
    heard = torch.zeros(FEATURES, device=DEVICE)

    def step(i):
        x = activations[i % 4]
        again, spoken = model(x)
        loss = F.mse_loss(again, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.decode.weight.div_(model.decode.weight.norm(dim=0, keepdim=True))
            heard.mul_(0.99).add_(spoken.amax(0), alpha=0.01)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
