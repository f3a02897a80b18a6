"""Names the coins on a tray of a mint's museum: each coin is cut out of the photograph and recognised."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "small-batches"
ALSO = ()

COINS, SIDE, WIDTH, DEPTH, KINDS = size(40, 3), size(96, 16), size(64, 8), size(8, 2), 1200
TRAY = size(1536, 64)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


class CoinNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(3, WIDTH, 5, 2, 2)
        self.fine = nn.Sequential(*(Residual(WIDTH) for _ in range(DEPTH)))
        self.down = nn.Conv2d(WIDTH, 4 * WIDTH, 3, 2, 1)
        self.coarse = nn.Sequential(*(Residual(4 * WIDTH) for _ in range(DEPTH)))
        self.kinds = nn.Linear(4 * WIDTH, KINDS)

    def forward(self, x):
        x = self.coarse(self.down(self.fine(self.enter(x))))
        return self.kinds(x.mean((2, 3)))


class Recogniser:
    def __init__(self, net):
        self.net = net

    def recognise(self, crop):
        likely = self.net(crop[None]).float().softmax(-1)
        return likely.topk(5)

    def recognise_all(self, crops):
        found = [self.recognise(crop) for crop in crops]  # fault
        return torch.cat([f.indices for f in found]), torch.cat([f.values for f in found])

    def recognise_batch(self, crops):
        likely = self.net(torch.stack(crops).contiguous(memory_format=torch.channels_last)).float().softmax(-1)
        values, indices = likely.topk(5)
        return indices, values


def build(fixed):
    torch.manual_seed(0)
    net = CoinNet().to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    recogniser = Recogniser(net)
    trays = torch.rand(3, 3, TRAY, TRAY, device=DEVICE, dtype=torch.bfloat16)
    corners = torch.randint(TRAY - SIDE, (COINS, 2)).tolist()

    @torch.inference_mode()
    def step(i):
        tray = trays[i % 3]
        crops = [tray[:, y : y + SIDE, x : x + SIDE] for y, x in corners]
        names, certain = recogniser.recognise_batch(crops) if fixed else recogniser.recognise_all(crops)  # fault
        return names.cpu(), certain.cpu()

    return step


if __name__ == "__main__":
    run(build)
