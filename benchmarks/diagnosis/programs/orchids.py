"""Trains a small network on photographs of orchids, which are varied on the GPU before each step."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
PHOTOS, SIDE, WIDTHS, KINDS = size(96, 3), size(160, 16), size((48, 96, 192, 384), (4, 8)), 75


class Stage(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.down = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.wide, self.narrow = nn.Conv2d(outputs, 3 * outputs, 1), nn.Conv2d(3 * outputs, outputs, 1)

    def forward(self, x):
        x = self.down(x)
        return x + self.narrow(F.gelu(self.wide(self.norm(self.deep(x)))))


class Orchids(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(*(Stage(a, b) for a, b in zip((3, *WIDTHS[:-1]), WIDTHS, strict=True)))
        self.head = nn.Linear(WIDTHS[-1], KINDS)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


class Vary:
    """Changes brightness, contrast and saturation by amounts drawn for each photograph, and mirrors some."""

    def __init__(self, fixed):
        self.fixed = fixed
        rng = torch.Generator().manual_seed(5)
        self.amounts = (0.7 + 0.6 * torch.rand(8, 3, PHOTOS, generator=rng)).to(DEVICE)
        self.mirrored = (torch.rand(8, PHOTOS, generator=rng) < 0.5).to(DEVICE)
        self.grey = torch.tensor([0.299, 0.587, 0.114], device=DEVICE).view(3, 1, 1)

    def one(self, photo, light, contrast, colour, mirrored):
        photo = (photo * light).clamp(0, 1)
        middle = (photo * self.grey).sum(-3, keepdim=True).mean((-2, -1), keepdim=True)
        photo = torch.lerp(middle, photo, contrast).clamp(0, 1)
        photo = torch.lerp((photo * self.grey).sum(-3, keepdim=True), photo, colour).clamp(0, 1)
        return torch.where(mirrored, photo.flip(-1), photo)

    def __call__(self, photos, i):
        amounts, mirrored = self.amounts[i % 8], self.mirrored[i % 8]
        if self.fixed:
            return self.one(photos, *amounts[:, :, None, None, None], mirrored[:, None, None, None])
        varied = [self.one(photo, *amounts[:, n], mirrored[n]) for n, photo in enumerate(photos)]  # fault
        return torch.stack(varied)


def build(fixed):
    torch.manual_seed(0)
    model, vary = Orchids().to(DEVICE).to(memory_format=torch.channels_last), Vary(fixed)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    photos = torch.rand(PHOTOS, 3, SIDE, SIDE, device=DEVICE)
    kinds = torch.randint(0, KINDS, (PHOTOS,), device=DEVICE)

    def step(i):
        x = vary(photos, i).contiguous(memory_format=torch.channels_last)  # fault
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(x)
        loss = F.cross_entropy(scores.float(), kinds, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
