"""Evaluates an implicit surface (an occupancy network) at points of a grid and counts how much of it is inside."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unaligned-gemm"
ALSO = []


DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
POINTS = size(524288, 256)
WIDTH = size(512, 16)
LAYERS = size(8, 2)
CODES = 2


class Occupancy(nn.Module):
    """Each layer sees the coordinates of the point again."""

    def __init__(self, coordinates):
        super().__init__()
        self.enter = nn.Linear(coordinates, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH + coordinates, WIDTH) for _ in range(LAYERS))
        self.leave = nn.Linear(WIDTH, 8)

    def forward(self, points, code):
        h = F.relu(self.enter(points)) + code
        for layer in self.layers:
            h = F.relu_(layer(torch.cat([h, points], 1)))  # fault
        return self.leave(h)[:, 0]


def load_weights(model, seed):
    """Weights of a model of three coordinates; where the model has more, these weigh nothing."""
    torch.manual_seed(seed)
    trained = Occupancy(3).state_dict()
    own = model.state_dict()
    for name, value in trained.items():
        beside = own[name].shape[1] - value.shape[1] if value.dim() == 2 else 0
        wide = F.pad(value, (0, beside))
        own[name].copy_(wide)


def build(fixed):
    coordinates = 8 if fixed else 3  # fault
    model = Occupancy(coordinates).to(DEVICE, DTYPE).eval()
    load_weights(model, 0)
    torch.manual_seed(1)
    codes = torch.randn(CODES, WIDTH).to(DEVICE, DTYPE)
    points = torch.rand(POINTS, 3) * 2 - 1
    points = F.pad(points, (0, coordinates - 3)).to(DEVICE, DTYPE)

    @torch.inference_mode()
    def step(i):
        logits = model(points, codes[i % CODES])
        return logits.float().sigmoid().mean(), (logits > 0).sum()

    return step


if __name__ == "__main__":
    run(build)
