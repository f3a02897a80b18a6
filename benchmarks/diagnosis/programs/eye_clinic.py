"""Grades photographs of retinas that a clinic's cameras deliver as 8-bit pictures."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "large-upload"
ALSO = ()
C = size(48, 8)
SIDE = size(448, 32)
EYES = size(16, 2)
GRADES = 5
MEAN, STD = (0.42, 0.28, 0.19), (0.27, 0.20, 0.16)


class Stage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
        self.same = nn.Sequential(nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    def forward(self, x):
        x = self.down(x)
        return x + self.same(x)


class Grader:
    def __init__(self, fixed):
        self.net = nn.Sequential(
            Stage(3, C), Stage(C, 2 * C), Stage(2 * C, 4 * C), Stage(4 * C, 8 * C),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * C, GRADES),
        )  # fmt: skip
        self.net = self.net.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
        self.on_device = fixed
        self.mean, self.std = torch.tensor(MEAN), torch.tensor(STD)
        if fixed:
            self.mean, self.std = self.mean.to(DEVICE), self.std.to(DEVICE)

    def prepare(self, photographs):
        if self.on_device:
            photographs = photographs.to(DEVICE, non_blocking=True)
        pictures = photographs.float() / 255  # fault
        pictures = (pictures - self.mean) / self.std  # fault
        return pictures.permute(0, 3, 1, 2).to(DEVICE).bfloat16()  # fault

    @torch.inference_mode()
    def grade(self, photographs):
        logits = self.net(self.prepare(photographs))
        return logits.float().softmax(1)


def build(fixed):
    torch.manual_seed(0)
    grader = Grader(fixed)
    camera = torch.randint(0, 256, (4, EYES, SIDE, SIDE, 3), dtype=torch.uint8)
    if DEVICE == "cuda":
        camera = camera.pin_memory()
    referred = torch.zeros((), dtype=torch.long, device=DEVICE)

    def step(i):
        grades = grader.grade(camera[i % 4])
        referred.add_((grades[:, 2:].sum(1) > 0.5).sum())
        return grades.cpu()

    return step


if __name__ == "__main__":
    run(build)
