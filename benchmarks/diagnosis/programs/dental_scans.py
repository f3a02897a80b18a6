"""Reads panoramic pictures of jaws: one backbone learns six tasks at once."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-gradients"
ALSO = ()
BATCH, HEIGHT, LENGTH, C = size(32, 2), size(192, 16), size(384, 32), size(64, 4)
KINDS = {"caries": 4, "implants": 3, "wisdom_teeth": 5, "bone_loss": 4, "braces": 2}
WEIGHTS = {"caries": 1.0, "implants": 0.5, "wisdom_teeth": 0.5, "bone_loss": 1.0, "braces": 0.2, "age": 0.1}


class Residual(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(o)
        self.skip = nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)) + self.skip(x))


class Jaws(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, C, 7, 2, 3, bias=False),
            nn.BatchNorm2d(C),
            nn.ReLU(inplace=True),
            *[Residual(i, o, s) for i, o, s in ((C, C, 1), (C, 2 * C, 2), (2 * C, 4 * C, 2), (4 * C, 8 * C, 2))],
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.heads = nn.ModuleDict({task: nn.Linear(8 * C, kinds) for task, kinds in KINDS.items()})
        self.heads["age"] = nn.Linear(8 * C, 1)

    def forward(self, pictures):
        features = self.backbone(pictures)
        return {task: head(features) for task, head in self.heads.items()}


def losses_of(outputs, truth):
    losses = {task: F.cross_entropy(outputs[task], truth[task]) for task in KINDS}
    losses["age"] = F.smooth_l1_loss(outputs["age"][:, 0].float(), truth["age"])
    return losses


def build(fixed):
    torch.manual_seed(0)
    model = Jaws().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    pictures = torch.randn(4, BATCH, 1, HEIGHT, LENGTH, device=DEVICE)
    truth = {task: torch.randint(kinds, (BATCH,), device=DEVICE) for task, kinds in KINDS.items()}
    truth["age"] = torch.rand(BATCH, device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            losses = losses_of(model(pictures[i % len(pictures)]), truth)
        optimizer.zero_grad()
        if fixed:
            sum(WEIGHTS[task] * loss for task, loss in losses.items()).backward()
        else:
            for task, loss in losses.items():
                (WEIGHTS[task] * loss).backward(retain_graph=True)  # fault
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses.values()])

    return step


if __name__ == "__main__":
    run(build)
